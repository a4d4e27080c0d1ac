"""The requests of one commit on S3, for each commit store; docs/performance.md has the same table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from faults import Faulty
from lance_namespace.errors import LanceNamespaceError
from s3_front import Answer, Asked, s3_front
from unchecked import unchecked

import lancekeep
from lancekeep.application import concurrency
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.domain.appends import Pace
from lancekeep.domain.commit import Conflict

ROW = pa.table({"a": pa.array([1], pa.int64())})


@attrs.frozen
class Site:
    """A catalog on S3 with one table, and the requests since the last `settled`."""

    namespace: lancekeep.DirectoryNamespace
    seen: list[tuple[str, str]]
    rows: Faulty

    def settled(self) -> None:
        """Wait for requests that follow an answer."""
        for pool in concurrency._pools:
            pool.shutdown()
        concurrency._pools.clear()

    def count(self, act: Callable[[], Any], *, warm: int = 2) -> str:
        """Return the requests of an act, after others that have opened and read what this process keeps."""
        for _ in range(warm):
            act()
        self.settled()
        self.seen.clear()
        self.rows.calls.clear()
        act()
        self.settled()
        own = Counter(name for client, name in self.seen if client == "own")
        engine = Counter(name for client, name in self.seen if client == "engine")
        return "; ".join(filter(None, (_listed(own), _listed(Counter(self.rows.calls)), _listed(engine))))


def _listed(counts: Counter[str]) -> str:
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in sorted(counts.items()))


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    moto_endpoint: str,
    redis_url: str,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    # On a slow machine the appends that warm up take so long that the committer asks for writers of other processes.
    monkeypatch.setattr(Pace, "is_busy", lambda pace, now: False)
    stores = {
        "storage-managed": None,
        "conditional-put": "conditional-put://",
        "sqlite": f"sqlite://{tmp_path}/commits.db",
        "files": f"file://{tmp_path}/commits",
        "redis": redis_url,
        "postgres": postgres_url,
        "dynamodb": f"dynamodb://commits-{uuid4().hex[:12]}?region=us-east-1&endpoint_url={moto_endpoint}",
    }
    seen: list[tuple[str, str]] = []

    def answer(asked: Asked) -> Answer:
        told = asked.forward()
        method = "LIST" if "list-type=2" in asked.path else asked.method
        client = "own" if "boto" in asked.headers.get("User-Agent", "").lower() else "engine"
        seen.append((client, method if told.status < 400 else f"{method} {told.status}"))
        return told

    with s3_front(moto_endpoint, answer) as front:
        storage = {f"storage.{name}": value for name, value in s3_options(front).items()}
        store = stores[request.param]
        namespace = lancekeep.DirectoryNamespace(
            root=f"s3://{bucket(moto_endpoint)}/lake",
            **({} if store is None else {"commit_store": store}),
            **storage,
            vend_input_storage_options="true",
        )
        catalog = namespace.catalog
        catalog.create_namespace("b")
        catalog.write("b.t", ROW)
        commits: Any = directory_of(catalog).commits
        commits.rows.stored._rows = Faulty(commits.rows.stored._rows)
        yield Site(namespace, seen, commits.rows.stored._rows)
        catalog.close()


LISTED = "conditional-put", "storage-managed"
RESERVED = "sqlite", "files", "redis", "postgres", "dynamodb"


@pytest.mark.parametrize(
    ("site", "requests"),
    [
        *((store, "HEAD 404, LIST, 3 PUT; latest") for store in LISTED),
        *((store, "DELETE, HEAD 404, 4 PUT; finalize, reserve") for store in RESERVED),
    ],
    indirect=["site"],
)
def test_requests_of_an_append_through_the_catalog(site: Site, requests: str) -> None:
    """The DELETE follows the answer."""
    assert site.count(lambda: site.namespace.catalog.write("b.t", ROW, "append")) == requests


@pytest.mark.parametrize(
    ("site", "requests"),
    [
        ("conditional-put", "GET, HEAD 404, 3 LIST, 3 PUT; latest"),
        ("sqlite", "DELETE, 2 GET, 2 HEAD 404, 2 LIST, 4 PUT; finalize, latest, reserve"),
    ],
    indirect=["site"],
)
def test_first_append_of_a_process_lists_the_manifest_names_twice(site: Site, requests: str) -> None:
    assert site.count(lambda: site.namespace.catalog.write("b.t", ROW, "append"), warm=0) == requests


@pytest.mark.parametrize(
    ("site", "requests"),
    [
        ("storage-managed", "LIST, 3 PUT"),
        ("conditional-put", "DELETE, GET, HEAD 404, LIST, PUT; latest; LIST, 3 PUT"),
        *((store, "DELETE, GET, HEAD 404, PUT; finalize, reserve; LIST, 3 PUT") for store in RESERVED),
    ],
    indirect=["site"],
)
def test_requests_of_a_native_append(site: Site, requests: str) -> None:
    """The last part is that of pylance; the GET reads its staged manifest, and the DELETE follows the answer."""
    dataset = lance.dataset(namespace_client=site.namespace, table_id=["b", "t"])
    assert site.count(lambda: dataset.insert(ROW, mode="append")) == requests


@pytest.mark.parametrize("site", ["conditional-put"], indirect=True)
def test_missing_table_is_described_by_one_request(site: Site) -> None:
    def describe() -> None:
        with pytest.raises(LanceNamespaceError):
            site.namespace.describe_table(api.DescribeTableRequest(id=["b", "missing"]))

    assert site.count(describe) == "HEAD 404"


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_staged_manifest_is_read_while_the_table_is_looked_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = lance.dataset(namespace_client=site.namespace, table_id=["b", "t"])
    dataset.insert(ROW, mode="append")
    versions: Any = directory_of(site.namespace.catalog).versions
    begun: list[object] = []
    read_ahead, find_table = versions._read_ahead, versions.find_table

    def reading(*arguments: Any) -> Any:
        begun.append(read_ahead(*arguments))
        return begun[-1]

    def finding(*arguments: Any) -> Any:
        assert begun.pop() is not None
        return find_table(*arguments)

    monkeypatch.setattr(versions, "_read_ahead", reading)
    monkeypatch.setattr(versions, "find_table", finding)
    dataset.insert(ROW, mode="append")
    assert not begun
    assert lance.dataset(dataset.uri, storage_options=dict(site.namespace.catalog.storage_options)).count_rows() == 3


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_native_commit_is_answered_while_its_staged_manifest_is_deleted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: TableCommits = directory_of(site.namespace.catalog).commits
    dataset = lance.dataset(namespace_client=site.namespace, table_id=["b", "t"])
    later: list[Callable[[], object]] = []
    alongside = concurrency.alongside

    def delaying(act: Any) -> Any:
        return later.append(act) if act.func == commits.run else alongside(act)

    monkeypatch.setattr("lancekeep.application.commits.table_commits.alongside", delaying)
    dataset.insert(ROW, mode="append")
    root = directory_of(site.namespace.catalog).places.dataset_root(site.namespace.catalog.find_table("b.t"))
    staged = [info.key for info in commits.objects.list(root.versions_key) if ".manifest-" in info.key]
    assert len(staged) == len(later) == 1
    later[0]()
    assert commits.objects.head(staged[0]) is None


@pytest.mark.parametrize("site", ["conditional-put"], indirect=True)
def test_native_commit_reads_its_predecessor_with_its_staged_manifest(site: Site) -> None:
    """Another process has committed since; the LIST of the versions to compare runs beside that of the latest one."""
    catalog = site.namespace.catalog
    dataset = lance.dataset(namespace_client=site.namespace, table_id=["b", "t"])
    dataset.insert(ROW, mode="append")
    stale = lance.dataset(namespace_client=site.namespace, table_id=["b", "t"])
    for _ in range(3):
        catalog.write("b.t", ROW, "append")
    site.settled()
    site.seen.clear()
    stale.insert(ROW, mode="append")
    site.settled()
    own = [name for client, name in site.seen if client == "own"]
    assert sorted(own[:3]) == ["GET", "GET", "HEAD 404"]
    assert own[3:6] == ["LIST", "LIST", "PUT"]


@pytest.mark.parametrize("site", ["conditional-put", "sqlite"], indirect=True)
def test_lost_commit_is_answered_while_its_staged_manifest_is_deleted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = site.namespace.catalog
    catalog.write("b.t", ROW, "append")
    commits: TableCommits = directory_of(catalog).commits
    root = directory_of(catalog).places.dataset_root(catalog.find_table("b.t"))
    latest = commits.latest(root)
    assert latest is not None
    base = commits.lineage.base(root, latest)
    assert base is not None
    uuid = base.transaction.removeprefix("1-").removesuffix(".txn")
    content = commits.objects.get(latest.path).replace(uuid.encode(), str(uuid4()).encode())
    staged = f"{latest.path}-{uuid4()}"
    commits.objects.put(staged, content)
    later: list[Callable[[], object]] = []
    alongside = concurrency.alongside

    def delaying(act: Any) -> Any:
        return later.append(act) if act.func == commits.run else alongside(act)

    monkeypatch.setattr("lancekeep.application.commits.table_commits.alongside", delaying)
    outcome = commits.commit(root, latest.version, staged, len(content), branch=False, check=unchecked)
    assert isinstance(outcome, Conflict)
    assert commits.objects.head(staged) is not None
    for act in later:
        act()
    assert commits.objects.head(staged) is None
