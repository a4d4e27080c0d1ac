"""Several tables in one transaction, over real commit stores and the native engine."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
import writers
from click.testing import CliRunner
from deployments import deployment
from faults import Faulty
from lance_namespace import errors as api_errors
from lance_namespace_urllib3_client.models.version_range import VersionRange

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.application.rows.versions import Versions
from lancekeep.domain.naming import NamingScheme
from lancekeep.entrypoints.cli import lancekeep as commands
from lancekeep.testing.concurrency import PROCESSES, race

KILLS = int(os.environ.get("LANCEKEEP_KILLS", "2"))
PAGE = Path(__file__).parents[2] / "docs" / "transactions.md"
Open = Callable[[], lancekeep.Catalog]


def rows(*numbers: int) -> pa.Table:
    return pa.table({"number": pa.array(numbers, pa.int64())})


def numbers(catalog: lancekeep.Catalog, table: str) -> list[int]:
    """Return the rows that a native reader of the catalog finds."""
    return sorted(catalog.open(table).to_table()["number"].to_pylist())


def plain(catalog: lancekeep.Catalog, table: str) -> list[int]:
    """Return the rows that a native reader of the directory finds."""
    return sorted(lance.dataset(catalog.describe_table(table).uri).to_table()["number"].to_pylist())


def staged(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("lake/**/_versions/*") if ".manifest-" in path.name]


@pytest.fixture(params=["sqlite", "redis", "postgres", "dynamodb"])
def everywhere(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, moto_endpoint: str, postgres_url: str
) -> Open:
    """Opens a catalog with the tables ``a`` and ``b``, one row each."""
    place = deployment(request.param, tmp_path, redis_url, moto_endpoint, postgres_url)
    return opened(lambda: lancekeep.connect(place.root, commit_store=place.commit_store))


@pytest.fixture
def here(tmp_path: Path) -> Open:
    return opened(lambda: lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db"))


def opened(connect: Open) -> Open:
    catalog = connect()
    for table in ("a", "b"):
        catalog.write(table, rows(0))
    return connect


@pytest.fixture
def catalog(here: Open) -> lancekeep.Catalog:
    return here()


# -- publishing -----------------------------------------------------------------------------------------------------


def test_new_versions_of_several_tables_are_published_together(everywhere: Open, tmp_path: Path) -> None:
    catalog, reader = everywhere(), everywhere()
    with catalog.transaction() as tx:
        tx.write("a", rows(1), "append")
        tx.write("a", rows(2), "append")
        tx.write("b", rows(7), "overwrite")
        tx.write("new", rows(1), properties={"owner": "Zoë"})
        tx.write("new", rows(2), "append")
        plan = catalog.begin_write("spread", rows().schema)
        tx.commit_fragments(
            plan,
            [
                fragment
                for part in (rows(1), rows(2))
                for fragment in lance.fragment.write_fragments(part, plan.uri, schema=plan.schema, mode="create")
            ],
        )
        assert (numbers(reader, "a"), numbers(reader, "b")) == ([0], [0])
        assert reader.describe_table("new").version is None
        assert tx.committed == {}
    assert {str(table): committed.version for table, committed in tx.committed.items()} == {
        "a": 2,
        "b": 2,
        "new": 1,
        "spread": 1,
    }
    for table, held in {"a": [0, 1, 2], "b": [7], "new": [1, 2], "spread": [1, 2]}.items():
        assert numbers(reader, table) == plain(reader, table) == held
    assert reader.describe_table("new").properties == {"owner": "Zoë"}
    assert [entry.operation for entry in reader.versions.history("a")] == ["Append", "Overwrite"]
    assert staged(tmp_path) == []
    assert reader.upkeep.fsck(deep=True, grace=0).findings == ()


@pytest.mark.parametrize("store", ["files", "conditional-put", "none"])
def test_store_without_atomic_reservation_refuses_before_any_write(tmp_path: Path, store: str) -> None:
    urls = {"files": f"file://{tmp_path}/commits", "conditional-put": "conditional-put://", "none": None}
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=urls[store])
    with pytest.raises(lancekeep.Unsupported, match=r"sqlite://, redis:// .* and dynamodb://"):
        catalog.transaction()
    assert not (tmp_path / "lake").exists()
    catalog.write("a", rows(1))
    assert catalog.snapshot().versions == {lancekeep.ObjectId.of("a"): 1}


def test_error_inside_the_block_rolls_back(catalog: lancekeep.Catalog, tmp_path: Path) -> None:

    def fails() -> None:
        with catalog.transaction() as tx:
            tx.write("a", rows(1), "append")
            tx.write("new", rows(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert catalog.list_tables() == ["a", "b"]
    assert catalog.snapshot().versions == {lancekeep.ObjectId.of("a"): 1, lancekeep.ObjectId.of("b"): 1}
    assert not (tmp_path / "lake" / "new.lance").exists()
    assert staged(tmp_path) == []


def test_invalid_calls_are_refused(catalog: lancekeep.Catalog) -> None:
    with catalog.transaction() as tx:
        tx.write("a", rows(1), "append")
        for data, mode, properties in (
            (rows(2), "overwrite", None),
            (rows(2), "create", None),
            (rows(2), "append", {"owner": "Zoë"}),
            (pa.table({"other": [1]}), "append", None),
        ):
            with pytest.raises(lancekeep.InvalidInput, match="makes one version of it"):
                tx.write("a", data, mode, properties=properties)
        with pytest.raises(lancekeep.InvalidInput, match="give all fragments of a table together"):
            tx.commit_fragments(catalog.begin_write("a", rows().schema, "append"), [])
        with pytest.raises(lancekeep.InvalidInput, match="Append with different schema"):
            tx.write("b", pa.table({"other": [1]}), "append")
        with pytest.raises(lancekeep.TableNotFound):
            tx.write("missing", rows(1), "append")
        with pytest.raises(lancekeep.InvalidInput, match="unknown write mode"):
            tx.write("b", rows(1), "upsert")
    assert [str(table) for table in tx.committed] == ["a"]
    for act in (lambda: tx.write("a", rows(1), "append"), tx.__enter__):
        with pytest.raises(lancekeep.InvalidInput, match="block"):
            act()
    with catalog.transaction() as nothing:
        pass
    assert nothing.committed == {}


# -- others at the same time ----------------------------------------------------------------------------------------


def test_appends_are_rebased_and_overwrites_conflict(here: Open, tmp_path: Path) -> None:
    catalog, other = here(), here()
    with catalog.transaction() as tx:
        tx.write("a", rows(1), "append")
        tx.write("b", rows(7), "overwrite")
        other.write("a", rows(2), "append")
    assert {str(table): committed.version for table, committed in tx.committed.items()} == {"a": 3, "b": 2}
    tx = catalog.transaction().__enter__()
    tx.write("a", rows(3), "append")
    tx.write("new", rows(1))
    tx.write("b", rows(8), "overwrite")
    other.write("b", rows(9), "append")
    with pytest.raises(lancekeep.ConcurrentModification, match="would undo version 3"):
        tx.__exit__(None, None, None)
    assert (numbers(catalog, "a"), numbers(catalog, "b")) == ([0, 1, 2], [7, 9])
    assert catalog.list_tables() == ["a", "b"]
    assert staged(tmp_path) == []
    assert tx.committed == {}


def test_appends_are_staged_again_after_a_conflict(here: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = here(), here()
    commit = Versions.commit_versions
    interruptions = iter(range(2))

    def interrupted(self: Versions, candidates: Any) -> Any:
        if next(interruptions, None) is not None:
            other.write("b", rows(5), "append")
        return commit(self, candidates)

    monkeypatch.setattr(Versions, "commit_versions", interrupted)
    with catalog.transaction() as tx:
        tx.write("a", rows(1), "append")
        tx.write("b", rows(1), "append")
    assert {str(table): committed.version for table, committed in tx.committed.items()} == {"a": 2, "b": 4}
    assert (numbers(catalog, "a"), numbers(catalog, "b")) == ([0, 1], [0, 1, 5, 5])
    assert staged(tmp_path) == []


def test_concurrent_overwrites_succeed_once_and_snapshots_are_consistent(everywhere: Open) -> None:
    catalogs = [everywhere() for _ in range(3)]

    def act(number: int) -> Any:
        catalog = catalogs[number]
        if number == 2:
            return [catalog.snapshot() for _ in range(4)]
        try:
            with catalog.transaction() as tx:
                for table in ("a", "b")[:: 1 - 2 * number]:
                    tx.write(table, rows(number + 1), "overwrite")
                ready.wait()
        except lancekeep.ConcurrentModification as error:
            return error
        return tx.committed

    ready = threading.Barrier(2)
    first, second, snapshots = race(3, act)
    (winner,) = [number for number, told in ((1, first), (2, second)) if not isinstance(told, Exception)]
    assert numbers(catalogs[2], "a") == numbers(catalogs[2], "b") == [winner]
    for snapshot in snapshots:
        a, b = (snapshot.open(table).to_table()["number"].to_pylist() for table in ("a", "b"))
        assert a == b
        assert a in ([0], [winner])


def test_snapshot_shows_all_or_none_of_the_tables_a_transaction_creates(here: Open) -> None:
    catalog, reader = here(), here()

    def write() -> None:
        for number in range(6):
            with catalog.transaction() as tx:
                for table in (f"x{number}", f"y{number}"):
                    tx.write(table, rows(number))
                tx.write("a", rows(number), "append")

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        snapshot = reader.snapshot()
        made = snapshot.version("a") - 1
        expected = {"a", "b", *(f"{kind}{number}" for kind in "xy" for number in range(made))}
        assert {str(table) for table in snapshot.versions} == expected
    writer.join()
    assert reader.snapshot().version("a") == 7


# -- snapshots ------------------------------------------------------------------------------------------------------


def test_snapshot_pins_versions(catalog: lancekeep.Catalog) -> None:
    snapshot = catalog.snapshot(["a", "b"])
    with catalog.transaction() as tx:
        tx.write("a", rows(1), "append")
        tx.write("b", rows(1), "append")
    assert snapshot.open("a").count_rows() == snapshot.open("b").count_rows() == 1
    assert snapshot.version("a") == 1
    for table, uri in snapshot.uris.items():
        assert lance.dataset(uri, version=snapshot.versions[table]).count_rows() == 1
    catalog.declare_table("declared")
    assert [str(table) for table in catalog.snapshot().versions] == ["a", "b"]
    with pytest.raises(lancekeep.VersionNotFound, match="only declared"):
        catalog.snapshot(["a", "declared"])
    with pytest.raises(lancekeep.TableNotFound):
        catalog.snapshot(["missing"])
    with pytest.raises(lancekeep.TableNotFound, match="the snapshot holds no table"):
        snapshot.open("declared")
    catalog.drop_table("a")
    catalog.rename_table("b", "a")
    with pytest.raises(lancekeep.TableNotFound, match="since the snapshot was taken"):
        snapshot.open("a")


@pytest.mark.parametrize("mode", ["v1", "v2", "compatible"])
@pytest.mark.parametrize("store", ["sqlite", "conditional-put", None])
def test_snapshot_refuses_a_table_that_was_recreated(tmp_path: Path, mode: str, store: str | None) -> None:
    url = f"sqlite://{tmp_path}/commits.db" if store == "sqlite" else store and f"{store}://"
    catalog, other = (lancekeep.connect(str(tmp_path / "lake"), mode=mode, commit_store=url) for _ in range(2))
    catalog.write("a", rows(0))
    snapshot = catalog.snapshot()
    catalog.write("a", rows(1), "append")
    assert snapshot.open("a").count_rows() == 1
    other.drop_table("a")
    other.write("a", rows(7, 8))
    with pytest.raises(lancekeep.TableNotFound, match="since the snapshot was taken"):
        snapshot.open("a")
    assert catalog.snapshot().open("a").count_rows() == 2


# -- faults ---------------------------------------------------------------------------------------------------------


def test_unknown_transaction_is_settled_by_its_token(here: Open, tmp_path: Path) -> None:
    catalog, healthy = here(), directory_of(here()).commits
    lost = ("after", lancekeep.StoreUnavailable("the reply was lost"))
    down: Any = Faulty(healthy.rows, lambda name, _: lost if name == "reserve_all" else None)
    directory_of(catalog).ledger.commits = TableCommits(healthy.objects, down, "tester", Retry(0.05))
    tx = catalog.transaction().__enter__()
    tx.write("a", rows(1), "append")
    tx.write("new", rows(1))
    with pytest.raises(lancekeep.CommitUnknown, match="the transaction over a, new") as raised:
        tx.__exit__(None, None, None)
    token = str(raised.value.token)
    again = here()
    for _ in range(2):
        settled = again.resolve(token)
        assert isinstance(settled, lancekeep.AllCommitted)
        assert [committed.version for committed in settled.versions] == [2, 1]
    assert (numbers(again, "a"), numbers(again, "new")) == ([0, 1], [1])
    store = f"sqlite://{tmp_path}/commits.db"
    told = CliRunner().invoke(
        commands, ["resolve", "--json", "--commit-store", store, str(tmp_path / "lake"), token], obj=lancekeep
    )
    assert told.exit_code == 0, told.output
    assert [version["version"] for version in json.loads(told.output)["versions"]] == [2, 1]


def test_transactions_move_with_their_tables_to_another_store(here: Open, tmp_path: Path) -> None:
    catalog, late = here(), here()
    tx = late.transaction().__enter__()
    tx.write("a", rows(1), "append")
    tx.write("b", rows(1), "append")
    catalog.upkeep.change_commit_store(f"sqlite://{tmp_path}/others.db")
    with pytest.raises(lancekeep.CommitStoreMismatch):
        tx.__exit__(None, None, None)
    assert staged(tmp_path) == []
    with catalog.transaction() as tx:
        tx.write("a", rows(2), "append")
        tx.write("b", rows(2), "append")
    assert numbers(catalog, "a") == numbers(catalog, "b") == [0, 2]
    catalog.upkeep.change_commit_store(f"file://{tmp_path}/files")
    with pytest.raises(lancekeep.Unsupported, match="change_commit_store"):
        catalog.transaction()


def test_killed_process_leaves_all_of_a_transaction_or_nothing(here: Open, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, acknowledged = random.Random(seed), {0}
    for kill in range(KILLS):
        ledger, its = PROCESSES.Pipe(duplex=False)
        arguments = (str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db", its)
        process = PROCESSES.Process(target=writers.write_pairs, args=arguments, daemon=True)
        process.start()
        its.close()
        acknowledged.add(ledger.recv())
        ledger.poll(chance.random() * 0.05)  # for a while that is different every time
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        acknowledged.update(_rest(ledger))
        catalog = here()
        first, second = ("a", "b") if kill % 2 else ("b", "a")
        found = numbers(catalog, first)
        assert found == numbers(catalog, second) == plain(catalog, first) == plain(catalog, second)
        assert acknowledged <= set(found)
        assert len(found) == len(set(found))
        with catalog.transaction() as tx:  # no writer is blocked
            for table in ("a", "b"):
                tx.write(table, rows(-len(found)), "append")
        catalog.upkeep.fsck(deep=True, repair=True, grace=0)
        assert catalog.upkeep.fsck(deep=True, grace=0).findings == (), f"kill {kill}"


def _rest(ledger: Connection) -> Iterator[int]:
    try:
        while True:
            yield ledger.recv()
    except EOFError:
        return


# -- the interface --------------------------------------------------------------------------------------------------


def entry(catalog: lancekeep.Catalog, table: str, version: int) -> dict[str, Any]:
    """Return a manifest that another engine staged for a version of the table."""
    found = catalog.find_table(table)
    root = directory_of(catalog).places.dataset_root(found)
    latest = directory_of(catalog).commits.latest(root)
    assert latest is not None
    path = f"{root.versions_key}{NamingScheme.V2.final_name(version)}-{random.randrange(2**32):08x}"
    content = directory_of(catalog).commits.objects.get(latest.path)
    made = re.sub(
        rb"[09]-[0-9a-f]{8}(?=-)", f"9-{random.randrange(2**32):08x}".encode(), content
    )  # another's transaction
    directory_of(catalog).commits.objects.put(path, made)
    return {"id": [table], "version": version, "manifest_path": path, "manifest_size": len(content)}


def test_batch_requests_create_all_versions_or_none(tmp_path: Path, here: Open) -> None:
    catalog = here()
    namespace = lancekeep.DirectoryNamespace(
        root=str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db"
    )
    entries = [entry(catalog, table, 2) for table in ("b", "a")]
    response = namespace.batch_create_table_versions(
        api.BatchCreateTableVersionsRequest(entries=[api.CreateTableVersionEntry(**each) for each in entries])
    )
    places = [directory_of(catalog).places.dataset_root(catalog.find_table(table)) for table in ("b", "a")]
    assert [(each.version, each.manifest_path) for each in response.versions] == [
        (2, root.manifest_key(2, NamingScheme.V2)) for root in places
    ]
    operations = [
        api.CommitTableOperation(create_table_version=api.CreateTableVersionRequest(**each))
        for each in (entry(catalog, "a", 3), entry(catalog, "b", 2))
    ]
    with pytest.raises(api_errors.ConcurrentModificationError, match=r"a, b: the version is taken by .*b\.lance"):
        namespace.batch_commit_tables(api.BatchCommitTablesRequest(operations=operations))
    assert set(catalog.snapshot().versions.values()) == {2}
    operations[0] = api.CommitTableOperation(
        create_table_version=api.CreateTableVersionRequest(**entry(catalog, "a", 3))
    )
    (result,) = namespace.batch_commit_tables(api.BatchCommitTablesRequest(operations=operations[:1])).results
    assert result.create_table_version is not None
    assert result.create_table_version.version is not None
    assert result.create_table_version.version.version == 3
    assert staged(tmp_path) == []


def test_batches_without_an_atomic_step_are_refused(tmp_path: Path, here: Open) -> None:
    catalog = here()
    namespace = lancekeep.DirectoryNamespace(
        root=str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db"
    )
    declare = api.CommitTableOperation(declare_table=api.DeclareTableRequest(id=["new"]))
    deregister = api.CommitTableOperation(deregister_table=api.DeregisterTableRequest(id=["new"]))
    create = api.CommitTableOperation(create_table_version=api.CreateTableVersionRequest(**entry(catalog, "a", 2)))
    delete = api.CommitTableOperation(
        delete_table_versions=api.BatchDeleteTableVersionsRequest(
            id=["a"], ranges=[VersionRange(start_version=0, end_version=1)]
        )
    )
    for mixture in ([declare, create], [declare, delete], [delete, delete], [deregister, create]):
        with pytest.raises(api_errors.UnsupportedOperationError, match="cannot be atomic here"):
            namespace.batch_commit_tables(api.BatchCommitTablesRequest(operations=mixture))
    for wrong in ([], [api.CommitTableOperation()]):
        with pytest.raises(api_errors.InvalidInputError, match=r"exactly one|no operation"):
            namespace.batch_commit_tables(api.BatchCommitTablesRequest(operations=wrong))
    with pytest.raises(api_errors.InvalidInputError, match="named twice"):
        namespace.batch_commit_tables(api.BatchCommitTablesRequest(operations=[declare, deregister]))
    both = api.CommitTableOperation(
        declare_table=api.DeclareTableRequest(id=["x"]), deregister_table=api.DeregisterTableRequest(id=["a"])
    )
    with pytest.raises(api_errors.InvalidInputError, match="found 2 of them"):
        namespace.batch_commit_tables(api.BatchCommitTablesRequest(operations=[both]))
    assert catalog.list_tables() == ["a", "b"]
    assert set(catalog.snapshot().versions.values()) == {1}
    for one in (declare, deregister, delete):
        (result,) = namespace.batch_commit_tables(api.BatchCommitTablesRequest(operations=[one])).results
        assert len(result.model_dump(exclude_none=True)) == 1
    assert catalog.list_tables() == ["a", "b"]
