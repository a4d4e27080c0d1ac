"""Versions whose rows are lost, or were never made: readers find them, and histories are complete."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import lance
import pyarrow as pa
import pytest
from deployments import Deployment, bucket, deployment, s3_options
from faults import Faulty
from integration.test_redis_durability import SNAPSHOTS, running

import lancekeep
from lancekeep import composition
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.upkeep.fsck import Kind

KINDS = ("sqlite", "files", "redis", "postgres", "dynamodb")


def data(value: int) -> pa.Table:
    return pa.table({"a": pa.array([value], pa.int64())})


def values(dataset: Any) -> list[int]:
    found: list[int] = sorted(dataset.to_table()["a"].to_pylist())
    return found


class Lake:
    """A catalog with the table ``t``, one row per version."""

    def __init__(self, given: Deployment) -> None:
        self.given = given
        self.catalog = self.connect()

    def connect(self) -> lancekeep.Catalog:
        """Open the catalog as another process does."""
        given = self.given
        return lancekeep.connect(given.root, commit_store=given.commit_store, storage_options=given.storage_options)

    @property
    def uri(self) -> str:
        return self.catalog.describe_table("t").uri

    def write(self, *versions: int) -> None:
        for version in versions:
            self.catalog.write("t", data(version), "create" if version == 1 else "append")

    def forget(self, *versions: int, branch: str | None = None) -> None:
        """Let the commit store lose rows, as a restored backup has."""
        root = directory_of(self.catalog).places.dataset_root(self.catalog.find_table("t")).branch(branch)
        objects, _ = open_object_store(self.given.root, self.given.storage_options)
        with closing(open_commit_store(self.given.commit_store, {}, objects)) as rows:
            assert rows.delete(root.base_uri, versions) == len(versions)

    def rows(self) -> list[int]:
        root = directory_of(self.catalog).places.dataset_root(self.catalog.find_table("t"))
        rows = directory_of(self.catalog).commits.rows.list(root.base_uri, after=None, limit=None, descending=False)
        return [row.version for row in rows]


@pytest.fixture(params=KINDS)
def lake(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, moto_endpoint: str, postgres_url: str
) -> Iterator[Lake]:
    lake = Lake(deployment(request.param, tmp_path, redis_url, moto_endpoint, postgres_url))
    yield lake
    lake.catalog.close()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(Deployment(str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db"))
    yield lake
    lake.catalog.close()


def test_readers_see_versions_whose_rows_the_commit_store_forgot(lake: Lake) -> None:
    lake.write(1, 2, 3, 4, 5)
    lake.forget(3, 4, 5)
    reader = lake.connect()
    assert reader.describe_table("t").version == 5
    assert values(reader.open("t")) == [1, 2, 3, 4, 5]
    assert [entry.version for entry in reader.versions.history("t")] == [5, 4, 3, 2, 1]
    assert lake.rows() == [1, 2, 3, 4, 5]
    reader.close()


def test_read_modify_write_keeps_rows_that_the_commit_store_forgot(lake: Lake) -> None:
    lake.write(1, 2, 3)
    lake.forget(2, 3)
    writer = lake.connect()
    read = writer.open("t").to_table()
    writer.write("t", pa.concat_tables([read, data(9)]), "overwrite")
    assert values(lance.dataset(lake.uri)) == values(writer.open("t")) == [1, 2, 3, 9]
    writer.close()


def test_snapshot_holds_versions_whose_rows_the_commit_store_forgot(lake: Lake) -> None:
    lake.write(1, 2, 3)
    lake.forget(2, 3)
    reader = lake.connect()
    assert values(reader.snapshot(["t"]).open("t")) == [1, 2, 3]
    reader.close()


def test_readers_see_commits_of_a_writer_that_bypasses_the_catalog(lake: Lake) -> None:
    lake.write(1)
    namespace = lancekeep.DirectoryNamespace(**lake.given.properties)
    lance.write_dataset(data(2), lake.uri, mode="append")
    fragment = lance.fragment.LanceFragment.create(lake.uri, data(3))
    lance.LanceDataset.commit(lake.uri, lance.LanceOperation.Append([fragment]), read_version=2)
    assert values(lake.catalog.open("t")) == [1, 2, 3]
    assert values(lance.dataset(namespace_client=namespace, table_id=["t"])) == [1, 2, 3]
    lance.write_dataset(data(4), namespace_client=namespace, table_id=["t"], mode="append")
    lance.write_dataset(data(5), lake.uri, mode="append")
    lake.write(6)
    assert values(lance.dataset(lake.uri)) == values(lake.catalog.open("t")) == [1, 2, 3, 4, 5, 6]
    assert [entry.version for entry in lake.catalog.versions.history("t")] == [6, 5, 4, 3, 2, 1]
    namespace.catalog.close()


def test_readers_of_a_branch_see_commits_without_rows(local: Lake) -> None:
    local.write(1)
    local.catalog.open("t").create_branch("b", 1)
    for value in (2, 3):
        lance.write_dataset(data(value), local.catalog.open("t", branch="b"), mode="append")
    local.forget(3, branch="b")
    assert values(local.connect().open("t", branch="b")) == [1, 2, 3]
    lance.write_dataset(data(4), lance.dataset(local.uri).checkout_version(("b", None)), mode="append")
    assert values(local.connect().open("t", branch="b")) == [1, 2, 3, 4]
    assert values(local.connect().open("t")) == [1]


@pytest.mark.parametrize("lost", [[2], [1], [1, 2], [2, 4], [2, 3, 4]])
def test_histories_and_pages_show_versions_between_rows(local: Lake, lost: list[int]) -> None:
    local.write(1, 2, 3, 4, 5)
    root = directory_of(local.catalog).places.dataset_root(local.catalog.find_table("t"))
    pages = {
        "all": ((None, None, True), [5, 4, 3, 2, 1]),
        "ascending": ((None, None, False), [1, 2, 3, 4, 5]),
        "the first two": ((None, 2, False), [1, 2]),
        "after 4": ((4, None, True), [3, 2, 1]),
        "behind 1": ((1, 3, False), [2, 3, 4]),
        "the last two": ((None, 2, True), [5, 4]),
    }
    for page, expected in pages.values():
        local.forget(*lost)
        reader = local.connect()
        assert [row.version for row in directory_of(reader).commits.page(root, *page)] == expected
        assert [row.version for row in directory_of(reader).commits.page(root, None, None, True)] == [5, 4, 3, 2, 1]


def test_deleted_versions_stay_deleted_and_cost_one_request(local: Lake) -> None:
    local.write(1, 2, 3, 4, 5)
    root = directory_of(local.catalog).places.dataset_root(local.catalog.find_table("t"))
    directory_of(local.catalog).versions.delete_versions(root, [1, 3])
    reader = local.connect()
    objects: Any = Faulty(directory_of(reader).commits.objects)
    directory_of(reader).ledger.commits = TableCommits(
        objects, directory_of(reader).commits.rows, "reader", directory_of(reader).commits.retry
    )
    for looks in (3, 1):  # after the last row, and into the two gaps the first time
        objects.calls.clear()
        assert [row.version for row in directory_of(reader).commits.page(root, None, None, True)] == [5, 4, 2]
        assert objects.counts == {"head": looks}
    assert local.rows() == [2, 4, 5]


def test_fsck_reports_versions_without_rows_and_repair_enters_them(local: Lake) -> None:
    local.write(1, 2, 3, 4)
    local.forget(2, 4)
    found = local.catalog.upkeep.fsck(tables=["t"], repair=True).findings
    assert [each.kind for each in found] == [Kind.UNRECORDED, Kind.UNRECORDED]
    assert local.rows() == [1, 2, 3, 4]


def test_repair_restores_table_whose_rows_are_older_than_a_clean_up(local: Lake, tmp_path: Path) -> None:
    """The backup has only versions 1 and 2, and the clean-up has left only version 5."""
    local.write(1, 2)
    with (
        closing(sqlite3.connect(tmp_path / "commits.db")) as database,
        closing(sqlite3.connect(tmp_path / "backup.db")) as backup,
    ):
        database.backup(backup)
    local.write(3, 4, 5)
    local.catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    local.catalog.close()
    with (
        closing(sqlite3.connect(tmp_path / "backup.db")) as backup,
        closing(sqlite3.connect(tmp_path / "commits.db")) as database,
    ):
        backup.backup(database)
    restored = local.connect()
    found = restored.upkeep.fsck(tables=["t"], repair=True).findings
    assert {(each.kind, each.repaired) for each in found} == {(Kind.LOST, True), (Kind.UNRECORDED, True)}
    assert values(local.connect().open("t")) == [1, 2, 3, 4, 5]
    restored.write("t", data(6), "append")
    assert values(lance.dataset(local.uri)) == [1, 2, 3, 4, 5, 6]
    restored.close()


def test_file_that_is_not_a_manifest_is_not_the_next_version(local: Lake) -> None:
    local.write(1, 2)
    root = directory_of(local.catalog).places.dataset_root(local.catalog.find_table("t"))
    latest = directory_of(local.catalog).commits.latest(root)
    assert latest is not None
    following = Path("/", root.key, "_versions", f"{int(Path(latest.path).stem) - 1:020}.manifest")
    following.write_bytes(Path("/", latest.path).read_bytes()[:-9])
    assert values(local.connect().open("t", 2)) == [1, 2]
    assert local.connect().describe_table("t").version == 2
    following.unlink()
    local.write(3)
    assert values(lance.dataset(local.uri)) == [1, 2, 3]


@pytest.mark.parametrize("store", ["sqlite", "conditional-put"])
def test_manifest_with_a_v1_name_gets_a_v2_name_in_a_table_of_v2_names(tmp_path: Path, store: str) -> None:
    url = "conditional-put://" if store == "conditional-put" else f"sqlite://{tmp_path}/commits.db"
    lake = Lake(Deployment(str(tmp_path / "lake"), url))
    lake.write(1, 2)
    root = directory_of(lake.catalog).places.dataset_root(lake.catalog.find_table("t"))
    latest = directory_of(lake.catalog).commits.latest(root)
    assert latest is not None
    lance.write_dataset(data(3), lake.uri, mode="append")
    following = Path("/", root.key, "_versions", f"{int(Path(latest.path).stem) - 1:020}.manifest")
    staged = following.rename(following.with_name("3.manifest-0b1d33a2-30a6-4f5c-8a35-3b0f2b1d33a2"))
    namespace = lancekeep.DirectoryNamespace(**lake.given.properties)
    request: Any = {"id": ["t"], "version": 3, "manifest_path": str(staged)[1:]}
    committed = namespace.create_table_version(request).version
    assert committed is not None
    assert committed.manifest_path == str(following)[1:]
    assert not staged.exists()
    assert values(lance.dataset(lake.uri)) == values(lake.connect().open("t")) == [1, 2, 3]
    following.with_name("4.manifest").write_bytes(following.read_bytes())
    (found,) = lake.catalog.upkeep.fsck(tables=["t"]).findings
    assert found.kind is Kind.MIXED
    assert "1 manifests have V1 names and 3 have V2 names; the newest is '4.manifest'" in found.meaning
    namespace.catalog.close()


def test_readers_do_not_read_beyond_trusted_rows(local: Lake) -> None:
    local.write(1, 2)
    local.forget(2)
    store = f"{local.given.commit_store}?trust_rows=true"
    trusting = lancekeep.connect(local.given.root, commit_store=store)
    assert directory_of(trusting).commits.rows.url == directory_of(local.catalog).commits.rows.url
    assert trusting.describe_table("t").version == 1
    assert local.connect().describe_table("t").version == 2
    with pytest.raises(lancekeep.InvalidInput, match="trust_rows"):
        lancekeep.connect(local.given.root, commit_store="conditional-put://?trust_rows=true")


@pytest.mark.parametrize(
    ("option", "requests", "rows"),
    [("", ["head", "head"], ["latest"]), ("&trust_rows=true", ["head"], ["latest"])],
)
def test_on_s3_reading_the_latest_version_costs_one_more_request(
    moto_endpoint: str, monkeypatch: pytest.MonkeyPatch, option: str, requests: list[str], rows: list[str]
) -> None:
    """One request for the state of the catalog, and one for the version after the last row unless rows are trusted."""
    asked: list[Faulty] = []

    def counting(open_: Any) -> Any:
        def opened(*args: Any, **how: Any) -> Any:
            found = open_(*args, **how)
            objects, *rest = found if isinstance(found, tuple) else (found,)
            asked.append(Faulty(objects))
            return (asked[-1], *rest) if rest else asked[-1]

        return opened

    monkeypatch.setattr(composition, "open_object_store", counting(open_object_store))
    monkeypatch.setattr(composition, "open_commit_store", counting(open_commit_store))
    catalog = lancekeep.connect(
        f"s3://{bucket(moto_endpoint)}/lake",
        mode="v2",
        commit_store=f"dynamodb://requests?region=us-east-1&endpoint_url={moto_endpoint}{option}",
        storage_options=s3_options(moto_endpoint),
    )
    catalog.write("t", data(1))
    objects, store, direct = asked
    for _ in range(2):
        objects.calls.clear()
        store.calls.clear()
        assert catalog.describe_table("t").version == 1
        # The staged manifest of the write may still be removed in the background.
        assert [call for call in objects.calls if call not in ("passes_link", "delete")] == requests
        assert store.calls == rows
    assert direct.calls == []
    catalog.close()


def test_remote_storage_is_read_concurrently_with_the_commit_store(local: Lake) -> None:
    local.write(1)
    looked = Event()
    commits = directory_of(local.catalog).commits
    overlapped: list[bool] = []

    def look(name: str, _: int) -> None:
        if name == "head":
            looked.set()

    def answer(name: str, _: int) -> None:
        if name == "latest":
            overlapped.append(looked.wait(10))

    objects: Any = Faulty(commits.objects, look)
    rows: Any = Faulty(commits.rows)
    reader = TableCommits(objects, rows, "reader", commits.retry)
    root = directory_of(local.catalog).places.dataset_root(local.catalog.find_table("t"))
    assert reader.latest(root) is not None
    objects._target = Remote(objects._target)
    looked.clear()
    rows.decide = answer
    assert reader.latest(root) is not None
    assert overlapped == [True]


class Remote:
    """Local files that say that they are remote."""

    root_uri = "s3://somewhere/"

    def __init__(self, objects: Any) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)


def test_after_a_restart_of_redis_from_a_snapshot_readers_see_what_was_acknowledged(tmp_path: Path) -> None:
    with running(tmp_path / "redis", SNAPSHOTS) as server:
        lake = Lake(Deployment(str(tmp_path / "lake"), server.url))
        lake.write(1, 2)
        with closing(server.client()) as client:
            client.save()
        lake.write(3, 4)
        server.kill()
        server.start()
        lake.catalog.close()
        reader = lake.connect()
        assert values(reader.open("t")) == [1, 2, 3, 4]
        assert [entry.version for entry in reader.versions.history("t")] == [4, 3, 2, 1]
        reader.close()
