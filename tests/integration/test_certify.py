"""`certify` measures what stores guarantee, and `connect` refuses stores that failed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import boto3
import lance
import pyarrow as pa
import pytest
from deployments import ALL, bucket, deployment, s3_options
from faults import Crash, Faulty
from lying import OBJECT_LIES, ROW_LIES, Overrides, clients_of, connections_of, ignoring_conditions
from s3_front import Answer, Asked, checking_first, s3_front

import lancekeep
from lancekeep.adapters.commit_stores.memory import MemoryCommitStore
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.adapters.object_stores.s3 import RACERS
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.certification import measure

UNREACHABLE = "http://127.0.0.1:9"


def silent(done: int, total: int, name: str) -> None:
    """Ignore the progress."""


def measured(objects: Overrides, rows: Overrides) -> tuple[lancekeep.Certificate, MemoryObjectStore]:
    open_objects = clients_of(objects)
    certificate = measure(open_objects, connections_of(rows, f"lie-{uuid4()}"), "lake", silent)
    return certificate, open_objects()


def failed(certificate: lancekeep.Certificate) -> set[str]:
    return {check.name for check in certificate.failed}


def results(certificate: lancekeep.Certificate) -> dict[str, str]:
    return {check.name: check.result.value for check in certificate.checks}


def keys(endpoint: str, name: str) -> list[str]:
    client = boto3.client("s3", endpoint_url=endpoint)
    return [found["Key"] for found in client.list_objects_v2(Bucket=name).get("Contents", ())]


# -- honest stores -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_honest_stores_pass_and_nothing_of_the_measuring_is_left(
    kind: str, tmp_path: Path, redis_url: str, moto_endpoint: str
) -> None:
    here = deployment(kind, tmp_path, redis_url, moto_endpoint)
    certificate = lancekeep.certify(here.root, commit_store=here.commit_store, storage_options=here.storage_options)
    assert certificate.safe, certificate.failed
    assert results(certificate)["remembers"] == ("unsupported" if kind == "redis" else "passed")
    if here.root.startswith("s3:"):
        assert keys(moto_endpoint, here.root.split("/")[2]) == []
        assert results(certificate)["create_only_multipart"] == "passed"
        assert results(certificate)["create_only_copy"] == "unsupported"
    else:
        assert list(Path(here.root).iterdir()) == []
        assert results(certificate)["create_only_copy_race"] == "passed"


def test_without_a_commit_store_the_condition_of_the_storage_is_measured(tmp_path: Path) -> None:
    certificate = lancekeep.certify(str(tmp_path / "lake"))
    assert certificate.safe
    assert certificate.commit_store == "conditional-put://"


def test_rows_are_removed_with_the_objects(redis_url: str, tmp_path: Path) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as server:
        before = set(server.keys("lancekeep:*"))
        lancekeep.certify(str(tmp_path), commit_store=redis_url)
        assert set(server.keys("lancekeep:*")) == before


def test_progress_reports_each_check_before_it_begins(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    certificate = lancekeep.certify(str(tmp_path), progress=lambda *step: told.append(step))
    names = [check.name for check in certificate.checks]
    assert [name for _, _, name in told] == names[:-1]
    assert [done for done, _, _ in told] == list(range(len(names) - 1))
    assert {total for _, total, _ in told} == {len(names) - 1}


# -- lying stores --------------------------------------------------------------------------------------------------


def test_stores_in_memory_pass_as_long_as_they_do_not_lie() -> None:
    certificate, objects = measured({}, {})
    assert certificate.safe, certificate.failed
    assert list(objects.list("")) == []


@pytest.mark.parametrize("lie", OBJECT_LIES)
def test_faulty_object_store_fails_its_check(lie: str) -> None:
    check, overrides = OBJECT_LIES[lie]
    certificate, objects = measured(overrides, {})
    assert check in failed(certificate)
    assert not certificate.safe
    evidence = next(found.evidence for found in certificate.failed if found.name == check)
    assert "Do not" in evidence or "do not" in evidence
    if "delete" not in overrides:
        assert objects._objects == {}, "a check that fails is cleaned up behind, too"


@pytest.mark.parametrize("lie", ROW_LIES)
def test_faulty_commit_store_fails_its_check(lie: str) -> None:
    check, overrides = ROW_LIES[lie]
    certificate, objects = measured({}, overrides)
    assert check in failed(certificate)
    assert objects._objects == {}


def test_every_check_has_a_faulty_store() -> None:
    certificate, _ = measured({}, {})
    lied_about = {check for check, _ in (*OBJECT_LIES.values(), *ROW_LIES.values())}
    told_of = {"etag_on_copy", "modified", "remembers"}  # reported, and required by nothing
    assert {check.name for check in certificate.checks} - lied_about - told_of == {"combination"}


@pytest.mark.parametrize(("method", "check"), [(b"PUT", "create_only_put"), (b"POST", "create_only_multipart")])
def test_server_that_ignores_the_condition_fails_its_checks(method: bytes, check: str, moto_endpoint: str) -> None:
    name = bucket(moto_endpoint)
    with ignoring_conditions(moto_endpoint, method) as endpoint:
        certificate = lancekeep.certify(f"s3://{name}/lake", storage_options=s3_options(endpoint))
    assert check in failed(certificate)
    assert ("create_only_put" in failed(certificate)) is (method == b"PUT")
    assert keys(moto_endpoint, name) == []


class Stopped(KeyboardInterrupt):
    """Ctrl-C, at a chosen moment."""


@pytest.mark.parametrize("nth", [0, 5, 20, 26])
def test_interrupted_run_removes_its_objects(nth: int) -> None:
    open_objects, rows = clients_of({}), MemoryCommitStore(f"stop-{nth}")

    def stop(done: int, total: int, name: str) -> None:
        if done == nth:
            raise Stopped

    with pytest.raises(Stopped):
        measure(open_objects, lambda _: rows, "lake", stop)
    assert list(open_objects().list("")) == []
    assert rows._histories.rows == {}


def test_failed_removal_is_noted_on_the_original_error() -> None:
    objects = Faulty(clients_of({})())
    down = lancekeep.StoreUnavailable("down")

    def stop(done: int, total: int, name: str) -> None:
        if done == 3:
            objects.decide = lambda method, _: ("before", down) if method == "list" else None
            raise Crash

    with pytest.raises(Crash) as caught:
        measure(lambda: objects, None, "lake", stop)
    assert "could not be removed: down" in caught.value.__notes__[0]


def test_store_that_stops_answering_is_reported_as_unavailable() -> None:
    objects = Faulty(clients_of({})())
    objects.decide = lambda method, _: ("before", lancekeep.StoreUnavailable("down")) if method == "copy" else None
    with pytest.raises(lancekeep.StoreUnavailable, match="down"):
        measure(lambda: objects, None, "lake", silent)
    objects.decide = lambda _method, _count: None
    assert list(objects.list("")) == []


def test_racers_without_an_answer_do_not_make_a_store_unsafe() -> None:
    objects = Faulty(clients_of({})())
    counted = {"put_if_absent": 0}

    def every_third_reply_is_lost(method: str, _: int) -> tuple[str, BaseException] | None:
        counted[method] = counted.get(method, 0) + 1
        lost = method == "put_if_absent" and counted[method] > 4 and counted[method] % 3 == 0
        return ("after", lancekeep.StoreUnavailable("lost")) if lost else None

    objects.decide = every_third_reply_is_lost
    certificate = measure(lambda: objects, None, "lake", silent)
    assert failed(certificate) <= {"combination"}
    race = next(check for check in certificate.checks if check.name == "create_only_put_race")
    assert "got no answer" in race.evidence


def test_unreachable_store_is_reported_before_any_write(tmp_path: Path) -> None:
    with pytest.raises(lancekeep.StoreUnavailable):
        lancekeep.certify("s3://bucket/lake", storage_options=s3_options(UNREACHABLE))
    with pytest.raises(lancekeep.StoreUnavailable):
        lancekeep.certify(str(tmp_path / "lake"), commit_store="redis://127.0.0.1:9/0")
    assert not (tmp_path / "lake").exists()


# -- storage that claims nothing -----------------------------------------------------------------------------------


def test_storage_without_a_create_only_write_is_safe_with_a_store_that_remembers_and_with_no_other(
    shelf: str, tmp_path: Path, redis_url: str
) -> None:
    safe = lancekeep.certify(shelf, commit_store=f"sqlite://{tmp_path}/commits.db")
    assert safe.safe, safe.failed
    assert results(safe)["create_only_put_race"] == "unsupported"
    for commit_store in (redis_url, None):
        assert failed(lancekeep.certify(shelf, commit_store=commit_store)) == {"combination"}


def test_connect_refuses_unsafe_combination_of_stores(shelf: str, redis_url: str) -> None:
    for commit_store in (redis_url, None, "conditional-put://"):
        with pytest.raises(lancekeep.UnsafeStore, match="shelf://"):
            lancekeep.connect(shelf, commit_store=commit_store)
    with pytest.warns(lancekeep.UnsafeStoreWarning, match="could lose an acknowledged commit"):
        catalog = lancekeep.connect(shelf, commit_store=redis_url, unsafe=True)
    catalog.create_namespace("n")
    assert catalog.list_namespaces() == ["n"]


def test_unsafe_storage_without_create_only_write_commits_by_check_then_write(shelf: str) -> None:
    with pytest.warns(lancekeep.UnsafeStoreWarning, match="no create-only write"):
        catalog = lancekeep.connect(shelf, commit_store="conditional-put://", unsafe=True)
    catalog.create_namespace("n")
    catalog.declare_table("n.t")
    assert catalog.list_tables("n") == ["t"]


def test_property_unsafe_equals_argument_of_connect(shelf: str, redis_url: str) -> None:
    properties = {"root": shelf, "commit_store": redis_url}
    with pytest.warns(lancekeep.UnsafeStoreWarning):
        lancekeep.DirectoryNamespace(**properties, unsafe="true")
    with pytest.raises(Exception, match="could lose an acknowledged commit"):
        lancekeep.DirectoryNamespace(**properties, unsafe="false")


# -- servers that are tried out before the first change ------------------------------------------------------------


@pytest.fixture
def lying_s3(moto_endpoint: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A root on a server that ignores conditions, and its options."""
    with ignoring_conditions(moto_endpoint) as endpoint:
        yield f"s3://{bucket(moto_endpoint)}/lake", s3_options(endpoint)


def rows(count: int = 1) -> pa.Table:
    return pa.table({"a": pa.array(range(count), pa.int64())})


@pytest.mark.parametrize("commit_store", [None, "conditional-put://", "memory://lied-to"])
def test_first_change_refuses_server_that_ignores_the_condition(
    lying_s3: tuple[str, dict[str, str]], moto_endpoint: str, commit_store: str | None
) -> None:
    root, options = lying_s3
    catalog = lancekeep.connect(root, commit_store=commit_store, storage_options=options)
    for change in (
        lambda: catalog.create_namespace("n"),
        lambda: catalog.declare_table("t"),
        lambda: catalog.write("t", rows()),
    ):
        with pytest.raises(lancekeep.UnsafeStore, match=r"created it and then created it.*unsafe=True"):
            change()
    assert catalog.list_tables() == []
    left = keys(moto_endpoint, root.split("/")[2])
    assert [key for key in left if not key.startswith("lake/__manifest/")] == []
    assert [key for key in left if key.endswith(".manifest")] == []


@pytest.mark.parametrize("commit_store", [None, "memory://lied-to-later"])
def test_append_through_unsafe_server_is_refused_without_a_reservation(
    lying_s3: tuple[str, dict[str, str]], moto_endpoint: str, commit_store: str | None
) -> None:
    root, options = lying_s3
    honest = lancekeep.connect(root, commit_store=commit_store, storage_options=s3_options(moto_endpoint))
    honest.write("t", rows())
    catalog = lancekeep.connect(root, commit_store=commit_store, storage_options=options)
    with pytest.raises(lancekeep.UnsafeStore):
        catalog.write("t", rows(), mode="append")
    if commit_store is not None:  # without one, a native writer commits by itself and cannot be refused
        properties = {f"storage.{name}": value for name, value in options.items()}
        namespace = lancekeep.DirectoryNamespace(root=root, commit_store=commit_store, **properties)
        with pytest.raises(Exception, match="version 2"):  # native words
            lance.write_dataset(
                rows(), namespace_client=namespace, table_id=["t"], mode="append", storage_options=options
            )
        assert directory_of(catalog).commits.rows.url.startswith("memory://")
        latest = directory_of(catalog).commits.rows.latest(f"{root}/t.lance")
        assert latest is not None
        assert (latest.version, latest.is_final) == (1, True)
    assert honest.open("t").count_rows() == 1


def test_unsafe_warns_once_and_continues(lying_s3: tuple[str, dict[str, str]]) -> None:
    root, options = lying_s3
    name = str(uuid4())
    catalog = lancekeep.connect(root, commit_store=f"memory://{name}", storage_options=options, unsafe=True)
    with pytest.warns(lancekeep.UnsafeStoreWarning, match="one would overwrite the other"):
        catalog.create_namespace("n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", lancekeep.UnsafeStoreWarning)
        catalog.declare_table("n.t")
    another = lancekeep.connect(root, commit_store=f"memory://{name}", storage_options=options)
    with pytest.raises(lancekeep.UnsafeStore):
        another.create_namespace("m")


def test_reads_send_no_probe_and_changes_send_one_per_bucket(
    moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bucket(moto_endpoint)
    probes: list[Any] = []

    def connect() -> lancekeep.Catalog:
        catalog = lancekeep.connect(
            f"s3://{name}/lake", commit_store=f"memory://{name}", storage_options=s3_options(moto_endpoint)
        )
        client: Any = directory_of(catalog).commits.objects
        client._client.meta.events.register(
            "before-send.s3.*", lambda request, **_: probes.append(request.method) if "probe" in request.url else None
        )
        return catalog

    catalog = connect()
    assert catalog.list_tables() == []
    assert probes == []
    catalog.create_namespace("n")
    assert [probes.count(method) for method in ("PUT", "HEAD", "DELETE")] == [2 + 2 * RACERS, 0, 3]
    asked = len(probes)
    catalog.declare_table("n.t")
    connect().declare_table("n.u")
    assert len(probes) == asked
    assert not [key for key in keys(moto_endpoint, name) if "probe" in key]


def test_server_that_checks_first_and_writes_then_is_refused(moto_endpoint: str) -> None:
    """It keeps the condition for one client after the other; a race has several winners."""
    meeting, name = Barrier(2), bucket(moto_endpoint)
    with s3_front(moto_endpoint, lambda asked: checking_first(asked, meeting)) as endpoint:
        options = s3_options(endpoint)
        catalog = lancekeep.connect(f"s3://{name}/lake", storage_options=options)
        with pytest.raises(lancekeep.UnsafeStore, match=r"checks first and then writes.*conditional_put=disabled"):
            catalog.create_namespace("n")
        assert [key for key in keys(moto_endpoint, name) if not key.startswith("lake/__manifest/data/")] == []


@pytest.mark.parametrize("mode", ["compatible", "v2"])
def test_server_without_the_condition_is_usable_with_a_store_that_remembers(
    mode: str, moto_endpoint: str, tmp_path: Path
) -> None:
    name, store = bucket(moto_endpoint), f"sqlite://{tmp_path}/commits.db"

    def without_condition(asked: Asked) -> Answer:
        if "If-None-Match" in asked.headers:
            return Answer(501, {}, b"<Error><Code>NotImplemented</Code></Error>")
        return asked.forward()

    with s3_front(moto_endpoint, without_condition) as endpoint:
        options = s3_options(endpoint)
        catalog = lancekeep.connect(f"s3://{name}/lake", mode=mode, commit_store=store, storage_options=options)
        with pytest.raises(lancekeep.UnsafeStore, match=r"sqlite:///.*dynamodb://.*conditional_put=disabled"):
            catalog.create_namespace("n")
        options["conditional_put"] = "disabled"
        for other in (None, "conditional-put://", f"memory://{name}"):
            with pytest.raises(lancekeep.UnsafeStore, match="sqlite://"):
                lancekeep.connect(f"s3://{name}/lake", commit_store=other, storage_options=options)
        catalog = lancekeep.connect(f"s3://{name}/lake", mode=mode, commit_store=store, storage_options=options)
        catalog.create_namespace("n")
        for table in ("t", "n.t"):
            catalog.write(table, rows())
            catalog.write(table, rows(2), "append")
            plain = lance.dataset(
                services_of(catalog).uri(catalog.find_table(table)), storage_options=s3_options(moto_endpoint)
            )
            assert plain.to_table()["a"].to_pylist() == [0, 0, 1]
        properties = {f"storage.{key}": value for key, value in options.items()}
        namespace = lancekeep.DirectoryNamespace(
            root=f"s3://{name}/lake", commit_store=store, **properties, **({} if mode == "compatible" else V2)
        )
        lance.write_dataset(
            rows(), namespace_client=namespace, table_id=["n", "t"], mode="append", storage_options=options
        )
        assert catalog.open("n.t").count_rows() == 4


V2 = {"dir_listing_enabled": "false"}


def test_server_that_omits_etags_is_usable(moto_endpoint: str) -> None:
    name = bucket(moto_endpoint)

    def omit(asked: Asked) -> Answer:
        copies = asked.method == "PUT" and any(header.lower() == "x-amz-copy-source" for header in asked.headers)
        answer = asked.forward()
        return answer.without("ETag") if copies or asked.method == "HEAD" else answer

    with s3_front(moto_endpoint, omit) as endpoint:
        objects, _ = open_object_store(f"s3://{name}", s3_options(endpoint))
        for content in (b"small", bytes(9 * 2**20)):  # the large one is copied in parts, whose ETags the driver needs
            objects.put("original", content)
            objects.copy("original", "copied")
            info = objects.head("copied")
            assert info is not None
            assert (info.size, info.etag) == (len(content), None)
            assert objects.get("copied") == content


def test_certify_measures_batches_of_a_store_without_transactions(tmp_path: Path, moto_endpoint: str) -> None:
    class Alone(MemoryCommitStore):
        def reserve_all(self, claims: Any) -> Any:
            raise lancekeep.Unsupported("no TransactWriteItems here.")

    certificate = measure(clients_of({}), lambda _: Alone("without-transactions"), "lake", silent)
    assert certificate.safe, certificate.failed
    assert results(certificate)["reserve_all_race"] == "unsupported"
    assert lancekeep.certify(str(tmp_path), commit_store=f"sqlite://{tmp_path}/rows.db").safe


def test_expired_session_token_is_named(moto_endpoint: str) -> None:
    """The answer to a HEAD has no body, so its code is asked for by another request."""
    name = bucket(moto_endpoint)

    def refuse(asked: Asked) -> Answer:
        return Answer(400, {}, b"" if asked.method == "HEAD" else b"<Error><Code>InvalidToken</Code></Error>")

    with s3_front(moto_endpoint, refuse) as endpoint:
        objects, _ = open_object_store(f"s3://{name}/lake", s3_options(endpoint))
        with pytest.raises(lancekeep.AccessDenied, match="400 InvalidToken"):
            objects.head("a")
        with pytest.raises(lancekeep.AccessDenied, match="400 InvalidToken"):
            lancekeep.connect(f"s3://{name}/lake", storage_options=s3_options(endpoint))


def test_aws_is_not_probed() -> None:
    objects: Any = open_object_store("s3://bucket/lake", {"region": "eu-west-1"}, probe=True)[0]
    objects._put_if_absent = None  # asking would fail
    objects.prove()
