"""Stores that fail, refuse or exceed a limit while a catalog is open: the error names the next step."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
import writers
from deployments import bucket, s3_options
from lying import relay
from redis import Redis
from redis_servers import own_redis

import lancekeep
from lancekeep.adapters.lance.native_errors import classified
from lancekeep.application.catalog import directory_of
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import (
    AccessDenied,
    Damaged,
    InvalidInput,
    LancekeepError,
    SchemaMismatch,
    StoreUnavailable,
    Unsupported,
)
from servers import silent_server

SCHEMA = writers.row(0, 0).schema


@attrs.define
class Clock:
    """A clock that only sleeping moves."""

    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def hurry(catalog: lancekeep.Catalog) -> Clock:
    """Let the catalog wait out an outage without waiting."""
    clock = Clock()
    directory_of(catalog).commits.retry.clock, directory_of(catalog).commits.retry.sleep = (
        lambda: clock.now,
        clock.sleep,
    )
    return clock


def namespace_over(root: Path, url: str, **properties: str) -> lancekeep.DirectoryNamespace:
    return lancekeep.DirectoryNamespace(root=str(root), commit_store=url, **properties)


def rows_while(act: Callable[[], object]) -> pa.RecordBatchReader:
    """Two rows; ``act`` happens between them, when the writer has opened the table."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield writers.row(1, 1).to_batches()[0]
        act()
        yield writers.row(2, 2).to_batches()[0]

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


def plain_rows(catalog: lancekeep.Catalog, name: str) -> list[int]:
    location = directory_of(catalog).places.dataset_root(catalog.find_table(name)).base_uri
    return sorted(lance.dataset(location).to_table()["number"].to_pylist())


def files(root: Path) -> set[str]:
    """Everything below a directory but data that garbage collection removes."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.suffix != ".lance"}


# -- outages ------------------------------------------------------------------------------------------------------


def test_redis_down_before_an_append_is_unavailable(tmp_path: Path) -> None:
    with own_redis() as port:
        catalog = lancekeep.connect(str(tmp_path), commit_store=f"redis://127.0.0.1:{port}")
        catalog.write("t", writers.row(0, 0))
    hurry(catalog)
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}"):
        catalog.write("t", writers.row(1, 1), "append")
    assert plain_rows(catalog, "t") == [0]


def test_redis_down_during_an_append_leaves_a_token(tmp_path: Path) -> None:
    with own_redis() as port:
        url = f"redis://127.0.0.1:{port}"
        catalog = lancekeep.connect(str(tmp_path), commit_store=url)
        catalog.write("t", writers.row(0, 0))
        hurry(catalog)
        with Redis(port=port) as admin, pytest.raises(CommitUnknown) as raised:
            catalog.write("t", rows_while(lambda: admin.shutdown(nosave=True)), "append")
    assert plain_rows(catalog, "t") == [0]
    with own_redis("--port", str(port)):
        healthy = lancekeep.connect(str(tmp_path), commit_store=url)
        assert isinstance(healthy.resolve(raised.value.token), lancekeep.Committed)
        assert plain_rows(healthy, "t") == [0, 1, 2]


def test_native_append_ends_within_a_minute_of_an_outage(tmp_path: Path) -> None:
    """The engine asks about its commit four more times; only the first request waits."""
    with own_redis() as port:
        namespace = namespace_over(tmp_path, f"redis://127.0.0.1:{port}")
        namespace.catalog.write("t", writers.row(0, 0))
        clock = hurry(namespace.catalog)
        with Redis(port=port) as admin, pytest.raises(OSError, match="is unknown"):
            lance.write_dataset(
                rows_while(lambda: admin.shutdown(nosave=True)),
                namespace_client=namespace,
                table_id=["t"],
                mode="append",
            )
    assert clock.now <= 60
    assert plain_rows(namespace.catalog, "t") == [0]


def test_patience_returns_after_the_outage(tmp_path: Path) -> None:
    with own_redis() as port:
        catalog = lancekeep.connect(str(tmp_path), commit_store=f"redis://127.0.0.1:{port}")
        catalog.write("t", writers.row(0, 0))
        clock = hurry(catalog)
    for waited in (True, False, True):
        before = clock.now
        with pytest.raises(StoreUnavailable):
            catalog.versions.history("t")
        assert (clock.now - before > 15) == waited
        clock.now += 0 if waited else 21


@pytest.mark.parametrize("managed", [False, True])
def test_s3_down_during_an_append_is_never_called_damage(managed: bool, tmp_path: Path, moto_endpoint: str) -> None:
    root = f"s3://{bucket(moto_endpoint)}/{uuid4()}"
    store = f"sqlite://{tmp_path}/commits.db" if managed else None
    with relay(moto_endpoint.removeprefix("http://")) as server:
        options = s3_options(f"http://127.0.0.1:{server.port}") | {"client_max_retries": "0"}
        catalog = lancekeep.connect(root, commit_store=store, storage_options=options)
        catalog.write("t", writers.row(0, 0))
        hurry(catalog)
        with pytest.raises((StoreUnavailable, CommitUnknown)):
            catalog.write("t", rows_while(server.cut), "append")
    healthy = lancekeep.connect(root, commit_store=store, storage_options=s3_options(moto_endpoint))
    assert healthy.open("t").to_table()["number"].to_pylist() == [0]


@pytest.mark.slow
def test_connect_to_silent_s3_ends_after_one_attempt() -> None:
    """The attempt ends by the timeout of the client; a second one would take longer than ten seconds."""
    with silent_server() as (address, connections):
        with pytest.raises(StoreUnavailable, match="no answer from"):
            lancekeep.connect("s3://bucket/lake", storage_options=s3_options(f"http://{address}"))
        assert len(connections) == 1


# -- the operating system -----------------------------------------------------------------------------------------


@contextmanager
def few_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))  # those that are open stay open
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("managed", [False, True])
def test_too_many_open_files_is_unavailable(managed: bool, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/commits.db" if managed else None
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=store)
    catalog.write("t", writers.row(0, 0))
    hurry(catalog)
    with few_files(), pytest.raises(StoreUnavailable, match="Too many open files"):
        catalog.write("t", writers.row(1, 1), "append")
    with ExitStack() as limits, pytest.raises((StoreUnavailable, CommitUnknown)):
        catalog.write("t", rows_while(lambda: limits.enter_context(few_files())), "append")
    assert plain_rows(catalog, "t") == [0]
    catalog.write("t", writers.row(1, 1), "append")
    assert plain_rows(catalog, "t") == [0, 1]


@pytest.mark.parametrize("mode", ["compatible", "v2"])
@pytest.mark.parametrize("change", ["drop", "rename"])
def test_append_to_a_table_that_leaves_is_refused(change: str, mode: str, tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), mode=mode, commit_store=f"sqlite://{tmp_path}/commits.db")
    catalog.write("t", writers.row(0, 0))

    def leave() -> None:
        if change == "drop":
            catalog.drop_table("t")
        else:
            catalog.rename_table("t", "u")

    with pytest.raises(lancekeep.Refused, match="dropped or renamed"):
        catalog.write("t", rows_while(leave), "append")
    if change == "rename":
        assert plain_rows(catalog, "u") == [0]
    assert catalog.list_tables() == (["u"] if change == "rename" else [])


S3_DOWN = (
    "LanceError(IO): Generic S3 error: Error performing PUT http://127.0.0.1:1/b/t.lance/data/x.lance in 8ms, after 3 "
    "retries, max_retries: 3, retry_timeout: 180s  - HTTP error: error sending request, /src/object_writer.rs:1:2"
)
S3_403 = "LanceError(IO): Generic S3 error: Error performing GET http://h/b/k: Client error with status 403 Forbidden: "


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("LanceError(IO): No space left on device (os error 28), /lance/rust/structural.rs:254:9", StoreUnavailable),
        ("LanceError(IO): Too many open files (os error 24), /lance/rust/x.rs:1:1", StoreUnavailable),
        ("LanceError(IO): Disk quota exceeded (os error 122)", StoreUnavailable),
        ("LanceError(IO): Permission denied (os error 13)", AccessDenied),
        ("LanceError(IO): Read-only file system (os error 30)", AccessDenied),
        (S3_DOWN, StoreUnavailable),
        (f"{S3_403}<Error><Code>AccessDenied</Code></Error>", AccessDenied),
        ("Dataset already exists: x, /lance/y.rs:1:2", lancekeep.TableAlreadyExists),
        ("Too many concurrent writers. Attempted 20 times", lancekeep.ConcurrentModification),
        ("Retryable commit conflict for version 3", lancekeep.ConcurrentModification),
        (
            "Commit conflict for version 3: Failed to commit the transaction after 20 retries",
            lancekeep.ConcurrentModification,
        ),
        (
            "Incompatible transaction: This Rewrite transaction is incompatible with concurrent transaction Restore at "
            "version 16., /lance/rust/conflict_resolver.rs:1802:30",
            lancekeep.CommitRefused,
        ),
        ("Wrapped error: Commit result for version 2 is unknown: the commit may or may not", StoreUnavailable),
        ("Not supported: This dataset cannot be read by this version of Lance. Flags: 64", lancekeep.Unsupported),
        ("Not found: x/_versions/3.manifest", lancekeep.VersionNotFound),
        ("Invalid user input: column 'server error' 500 ", InvalidInput),
        ("Append with different schema: fields did not match", SchemaMismatch),
        ("LanceError(IO): file size is smaller than the footer", Damaged),
    ],
)
def test_each_text_of_the_engine_has_its_meaning(text: str, meaning: type[LancekeepError]) -> None:
    found = classified("t", OSError(text), reading=False)
    assert type(found) is meaning
    assert "rs:" not in str(found)


# -- definite refusals --------------------------------------------------------------------------------------------


def without_scripts(admin: Redis) -> None:
    admin.acl_setuser("default", enabled=True, nopass=True, commands=["-evalsha"])


def as_replica(admin: Redis) -> None:
    admin.replicaof("127.0.0.1", "1")


@pytest.mark.parametrize(
    ("forbid", "meaning"), [(without_scripts, AccessDenied), (as_replica, Unsupported)], ids=["acl", "replica"]
)
def test_refusal_of_redis_is_definite_and_leaves_nothing(
    forbid: Callable[[Redis], None], meaning: type[LancekeepError], tmp_path: Path
) -> None:
    with own_redis() as port, Redis(port=port) as admin:
        catalog = lancekeep.connect(str(tmp_path), commit_store=f"redis://127.0.0.1:{port}")
        catalog.create_namespace("n")
        catalog.write("t", writers.row(0, 0))
        clock = hurry(catalog)
        keys, before = set(admin.keys()), files(tmp_path)
        forbid(admin)
        for name, mode in (("t", "append"), ("t", "overwrite")):
            with pytest.raises(meaning) as raised:
                catalog.write(name, writers.row(1, 1), mode)
            assert type(raised.value) is meaning
        assert {name for name in files(tmp_path) - before if "_transactions" not in name} == set()
        for name in ("u", "n.u"):
            with pytest.raises(meaning):
                catalog.write(name, writers.row(1, 1))
        assert clock.now == 0
        assert set(admin.keys()) == keys
        assert plain_rows(catalog, "t") == [0]
        assert (catalog.list_tables(), catalog.list_tables("n")) == (["t"], [])


def test_refused_transaction_leaves_nothing(tmp_path: Path) -> None:
    with own_redis() as port, Redis(port=port) as admin:
        catalog = lancekeep.connect(str(tmp_path), commit_store=f"redis://127.0.0.1:{port}")
        for name in ("t", "u"):
            catalog.write(name, writers.row(0, 0))
        before = files(tmp_path)
        without_scripts(admin)

        def append_to_both() -> None:
            with catalog.transaction() as transaction:
                transaction.write("t", writers.row(1, 1), "append")
                transaction.write("u", writers.row(1, 1), "append")

        with pytest.raises(AccessDenied):
            append_to_both()
        assert {name for name in files(tmp_path) - before if "_versions" in name and "hint" not in name} == set()
        assert (plain_rows(catalog, "t"), plain_rows(catalog, "u")) == ([0], [0])
