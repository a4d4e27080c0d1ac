"""Writers that read a table or branch which was dropped and recreated since: their commits are refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from faults import Faulty

import lancekeep
from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.commits.lineage import Lineage
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.errors import LancekeepError

NO_STORE = "none"
STORES = ("conditional-put://", "sqlite", "file", "memory")
MODES = ("compatible", "v1", "v2")


def url(store: str, path: Path) -> str:
    return {
        "sqlite": f"sqlite:///{path}/rows.db",
        "file": f"file://{path}/rows",
        "memory": f"memory://{path.name}",
    }.get(store, store)


@pytest.fixture(
    params=[(mode, "conditional-put://") for mode in MODES] + [("compatible", s) for s in STORES[1:]], ids="-".join
)
def catalog(request: Any, tmp_path: Path) -> Iterator[Catalog]:
    mode, store = request.param
    commit_store = None if store == NO_STORE else url(store, tmp_path)
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=commit_store, mode=mode) as catalog:
        yield catalog


def also_without_a_store(modes: Sequence[str] = MODES[:1]) -> pytest.MarkDecorator:
    """Also run a test whose writers are handles in catalogs without a commit store."""
    params = [(mode, STORES[0]) for mode in MODES] + [(MODES[0], store) for store in STORES[1:]]
    params += [(mode, NO_STORE) for mode in modes]
    return pytest.mark.parametrize("catalog", params, ids="-".join, indirect=True)


def rows(first: int, count: int = 3) -> pa.Table:
    return pa.table({"x": pa.array(range(first, first + count), pa.int64()), "y": pa.array([0] * count, pa.int64())})


def stored(catalog: Catalog, name: str = "t") -> list[int]:
    """Return what plain pylance reads in the directory of the table."""
    return sorted(lance.dataset(catalog.describe_table(name).uri).to_table()["x"].to_pylist())


def recreate(catalog: Catalog, versions: int = 1) -> None:
    catalog.drop_table("t")
    catalog.write("t", rows(100))
    for version in range(1, versions):
        catalog.write("t", rows(100 + 10 * version), "append")


def test_fsck_reports_a_stale_append_that_no_commit_store_could_refuse(tmp_path: Path) -> None:
    """Without a commit store pylance commits to a V1 directory itself, past the catalog."""
    with lancekeep.connect(str(tmp_path / "lake"), mode="v1") as catalog:
        catalog.write("t", rows(0))
        old = lance.dataset(catalog.describe_table("t").uri)
        recreate(catalog)
        old.insert(rows(10))
        found = catalog.upkeep.fsck(deep=True, grace=0).findings
        assert {each.kind for each in found} == {Kind.MISSING_FILE, Kind.DAMAGED_FILE}  # it contradicts version 1, too
        repaired = catalog.upkeep.fsck(deep=True, repair=True, accept_loss=True, grace=0).findings
        assert [each.repaired for each in repaired if each.kind is Kind.MISSING_FILE] == [True]
        assert stored(catalog) == [100, 101, 102]


# -- honest writers ---------------------------------------------------------------------------------------------------


@also_without_a_store(MODES[:2])
def test_every_operation_of_the_engine_is_committed(catalog: Catalog) -> None:
    catalog.write("t", rows(0))
    catalog.write("t", rows(10), "append")
    ds = catalog.open("t")
    ds.delete("x = 0")
    ds.update({"y": "5"}, where="x = 1")
    ds.optimize.compact_files()
    ds.add_columns({"z": "x + 1"})
    ds.alter_columns({"path": "z", "data_type": pa.int32()})
    ds.drop_columns(["z"])
    ds.create_scalar_index("x", "BTREE")
    ds.update_config({"a": "b"})
    ds.merge_insert("x").when_matched_update_all().when_not_matched_insert_all().execute(rows(2, 2))
    ds.update({"y": "6"})
    ds.delete("true")
    catalog.write("t", rows(20), "append")
    old = catalog.open("t", version=2)
    old.restore()
    assert stored(catalog) == [0, 1, 2, 10, 11, 12]
    catalog.write("t", rows(30), "overwrite")
    ds = catalog.open("t")
    ds.drop_columns(["y"])
    ds.alter_columns({"path": "x", "data_type": pa.int32()})  # leaves no file of the fragment in place
    lance.write_dataset(pa.table({"x": pa.array([40], pa.int32())}), ds, mode="append")
    ds = catalog.open("t")
    ds.optimize.compact_files()
    assert stored(catalog) == [30, 31, 32, 40]


@also_without_a_store()
def test_appends_that_are_rebased_are_committed(catalog: Catalog) -> None:
    catalog.write("t", rows(0))
    one, other = catalog.open("t"), catalog.open("t")
    for first in (10, 20, 30):
        one = lance.write_dataset(rows(first), one, mode="append")
    lance.write_dataset(rows(40), other, mode="append")
    other = catalog.open("t", version=2)
    other.delete("x = 40 or x = 1")
    assert stored(catalog) == [0, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42]


def test_first_append_to_an_empty_table_is_committed(catalog: Catalog) -> None:
    catalog.write("t", rows(0, 0))
    catalog.write("t", rows(0), "append")
    assert stored(catalog) == [0, 1, 2]


@also_without_a_store()
def test_branches_are_created_and_written(catalog: Catalog) -> None:
    catalog.write("t", rows(0))
    catalog.write("t", rows(10), "append")
    branch = catalog.open("t").create_branch("b")
    lance.write_dataset(rows(20), branch, mode="append")
    branch = catalog.open("t", branch="b")
    branch.delete("x < 10")
    catalog.open("t", branch="b").optimize.compact_files()
    assert sorted(catalog.open("t", branch="b").to_table()["x"].to_pylist()) == [10, 11, 12, 20, 21, 22]


# -- what the check costs ---------------------------------------------------------------------------------------------


def test_commit_reads_its_predecessor_at_most_once(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path), commit_store="conditional-put://", mode="v2") as first:
        first.create_namespace("ns")
        first.write("ns.t", rows(0))
        first.write("ns.t", rows(5).to_reader(), "append")
        versions = directory_of(first).commits.lineage._objects = Faulty(directory_of(first).commits.objects)
        # Streams are appended by the engine, through the callback.
        for number in range(1, 4):  # what this process has committed, it holds
            first.write("ns.t", rows(10 * number).to_reader(), "append")
        assert not versions.calls
        with lancekeep.connect(str(tmp_path), commit_store="conditional-put://", mode="v2") as second:
            other = directory_of(second).commits.lineage._objects = Faulty(directory_of(second).commits.objects)
            second.write("ns.t", rows(40).to_reader(), "append")
            assert dict(other.counts) == {"get": 1}
            second.write("ns.t", rows(50).to_reader(), "append")
            assert dict(other.counts) == {"get": 1}
        assert not versions.calls
        first.write("ns.t", rows(60), "overwrite")
        assert dict(versions.counts) == {"head": 1}


# -- stale handles ----------------------------------------------------------------------------------------------------


CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda ds: lance.write_dataset(rows(50), ds, mode="append"),
    "delete some": lambda ds: ds.delete("x = 0"),
    "add a column": lambda ds: ds.add_columns(pa.schema([("z", pa.int64())])),
    "delete all": lambda ds: ds.delete("true"),
    "update all": lambda ds: ds.update({"y": "1"}),
    "overwrite": lambda ds: lance.write_dataset(rows(50), ds, mode="overwrite"),
    "configure": lambda ds: ds.update_config({"a": "b"}),
}

COLUMN_CHANGES: dict[str, Callable[[Any], Any]] = {
    "merge": lambda ds: ds.merge_insert("x").when_matched_update_all().execute(rows(1)),
    "add a column": lambda ds: ds.add_columns({"z": "x + 1"}),
    "change all columns": lambda ds: ds.alter_columns(*({"path": x, "data_type": pa.int32()} for x in ("x", "y"))),
}


@also_without_a_store()
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("versions", [1, 2])
def test_handle_of_a_recreated_table_is_refused(catalog: Catalog, change: str, versions: int) -> None:
    catalog.write("t", rows(0))
    for version in range(1, versions):
        catalog.write("t", rows(10 * version), "append")
    handle = catalog.open("t")
    recreate(catalog, versions)
    before = stored(catalog)
    with pytest.raises((OSError, LancekeepError)):
        CHANGES[change](handle)
    assert stored(catalog) == before
    catalog.write("t", rows(200), "append")
    assert stored(catalog) == sorted([*before, 200, 201, 202])


@also_without_a_store(MODES[:2])
def test_slow_write_into_a_recreated_table_is_refused(catalog: Catalog) -> None:
    catalog.write("t", rows(0))

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows(10).to_batches()
        recreate(catalog, versions=3)
        yield from rows(20).to_batches()

    with pytest.raises(LancekeepError):
        catalog.write("t", pa.RecordBatchReader.from_batches(rows(0).schema, slow()), "append")
    assert stored(catalog) == [100, 101, 102, 110, 111, 112, 120, 121, 122]


@also_without_a_store(MODES[:2])
@pytest.mark.parametrize("versions", [1, 3])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_old_plan_for_a_recreated_table_is_refused(catalog: Catalog, versions: int, mode: str) -> None:
    catalog.write("t", rows(0))
    catalog.write("t", rows(10), "append")
    plan = pickle.loads(pickle.dumps(catalog.begin_write("t", rows(0).schema, mode)))
    fragments = lance.fragment.write_fragments(rows(20), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    recreate(catalog, versions)
    before = stored(catalog)
    with pytest.raises(LancekeepError):
        catalog.commit_fragments(plan, fragments)
    assert stored(catalog) == before


@pytest.mark.parametrize("change", ["update", "delete"])
def test_change_by_a_handle_older_than_a_cleanup_keeps_new_columns(catalog: Catalog, change: str) -> None:
    """The engine finds no conflict if cleanup removed the versions in between."""
    catalog.write("t", rows(10))
    held = catalog.open("t")
    catalog.open("t").add_columns({"more": "x + 1"})
    catalog.write("t", catalog.open("t").to_table().slice(0, 1), "append")
    catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    with suppress(OSError):
        held.delete("x = 11") if change == "delete" else held.update({"y": "2"}, where="x = 11")
    found = catalog.open("t").to_table()
    assert found["more"].to_pylist() == [value + 1 for value in found["x"].to_pylist()]


@pytest.mark.parametrize("change", ["update", "delete", "compact"])
def test_change_brings_back_no_row_whose_deletion_was_cleaned_up(catalog: Catalog, change: str) -> None:
    """The engine finds no conflict with a version that cleanup removed, and would replace its deletion file."""
    catalog.write("t", rows(10))
    catalog.write("t", rows(20), "append")
    held = catalog.open("t")
    catalog.open("t").delete("x = 10")
    catalog.write("t", rows(30), "append")
    catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    before = stored(catalog)
    changes: dict[str, Callable[[], object]] = {
        "update": lambda: held.update({"y": "2"}, where="x = 10"),
        "delete": lambda: held.delete("x = 11"),
        "compact": held.optimize.compact_files,
    }
    with suppress(OSError):
        changes[change]()
    assert stored(catalog) == before


def test_commit_does_not_land_in_a_table_recreated_after_the_check(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new table has as many versions as the old one, so the number of the commit fits it."""
    catalog.write("t", rows(0))
    catalog.write("t", rows(10), "append")
    ds = catalog.open("t")
    check = Lineage.require

    def checked(self: Lineage, *arguments: Any) -> Any:
        descendant = check(self, *arguments)
        monkeypatch.undo()
        recreate(catalog, 2)
        return descendant

    monkeypatch.setattr(Lineage, "require", checked)
    with pytest.raises(OSError, match="unknown"):
        lance.write_dataset(rows(20), ds, mode="append")
    catalog.write("t", rows(30), "append")
    assert stored(catalog) == [30, 31, 32, 100, 101, 102, 110, 111, 112]


@also_without_a_store(MODES[:2])
def test_old_plan_for_a_dropped_table_is_refused(catalog: Catalog) -> None:
    """A refused writer leaves files, so V1 readers see a declared table under the old name."""
    catalog.write("t", rows(10))
    plan = catalog.begin_write("t", rows(0).schema, "overwrite")
    fragments = lance.fragment.write_fragments(rows(20), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    catalog.drop_table("t")
    lance.fragment.write_fragments(rows(30), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    with pytest.raises(lancekeep.LancekeepError):
        catalog.commit_fragments(plan, fragments)
    assert "t" not in [str(table) for table in catalog.list_all_tables(include_declared=False)]


@pytest.mark.parametrize("versions", [1, 3])
def test_transaction_on_a_recreated_table_is_refused(tmp_path: Path, versions: int) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=url("sqlite", tmp_path)) as catalog:
        catalog.write("t", rows(0))
        catalog.write("other", rows(0))
        tx = catalog.transaction()
        tx.__enter__()
        tx.write("other", rows(10), "append")
        tx.write("t", rows(10), "append")
        recreate(catalog, versions)
        before = stored(catalog)
        with pytest.raises(LancekeepError):
            tx.__exit__(None, None, None)
        assert stored(catalog) == before
        assert stored(catalog, "other") == [0, 1, 2]


@also_without_a_store(MODES[:2])
def test_change_to_a_recreated_table_is_refused(catalog: Catalog) -> None:
    catalog.write("t", rows(0))

    def late(dataset: Any) -> Any:
        recreate(catalog)
        dataset.delete("true")
        return dataset

    with pytest.raises(LancekeepError):
        catalog.commit_change("t", late)
    assert stored(catalog) == [100, 101, 102]


@also_without_a_store(MODES[:2])
@pytest.mark.parametrize("change", ["append", "delete all", "overwrite"])
def test_handle_is_refused_after_rename_and_create(catalog: Catalog, change: str) -> None:
    catalog.write("t", rows(0))
    handle = catalog.open("t")
    if not directory_of(catalog).ledger.guarantees.locations:
        recreate(catalog)
    else:
        catalog.rename_table("t", "u")
        catalog.write("t", rows(100))
    with pytest.raises((OSError, LancekeepError)):
        CHANGES[change](handle)
    assert stored(catalog) == [100, 101, 102]


@pytest.mark.parametrize("change", ["append", "delete all"])
def test_handle_of_a_recreated_branch_is_refused(catalog: Catalog, change: str) -> None:
    catalog.write("t", rows(0))
    branch = catalog.open("t").create_branch("b")
    lance.write_dataset(rows(10), branch, mode="append")
    handle = catalog.open("t", branch="b")
    catalog.open("t").branches.delete("b")
    again = catalog.open("t").create_branch("b")
    lance.write_dataset(rows(20), again, mode="append")
    with pytest.raises((OSError, LancekeepError)):
        CHANGES[change](handle)
    assert sorted(catalog.open("t", branch="b").to_table()["x"].to_pylist()) == [0, 1, 2, 20, 21, 22]


@pytest.mark.parametrize("mode", ["compatible", "v1"])
def test_commit_is_refused_where_a_clone_without_the_version_read_took_the_place(tmp_path: Path, mode: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite:///{tmp_path}/rows.db", mode=mode) as catalog:
        catalog.write("t", rows(0))
        catalog.write("u", rows(10))
        catalog.write("u", rows(20), "append")
        stale = catalog.open("t")
        place = catalog.describe_table("t").uri
        catalog.drop_table("t")
        lance.dataset(catalog.describe_table("u").uri).shallow_clone(place, reference=2)
        with pytest.raises(OSError, match="Commit result for version 3 is unknown"):  # what Lance makes of a refusal
            stale.insert(rows(30))
        assert stored(catalog) == [10, 11, 12, 20, 21, 22]


@pytest.mark.parametrize("mode", ["compatible", "v1"])
@pytest.mark.parametrize("change", COLUMN_CHANGES)
def test_change_to_a_clone_does_not_land_in_the_table_that_took_its_place(
    tmp_path: Path, mode: str, change: str
) -> None:
    """The stale manifest names files of the clone's source, which still exist."""
    properties = {"root": str(tmp_path / "lake"), "commit_store": f"sqlite:///{tmp_path}/rows.db"}
    namespace = lancekeep.DirectoryNamespace(**properties, manifest_enabled=str(mode == "compatible").lower())
    catalog = namespace.catalog
    catalog.write("s", rows(0))
    lance.dataset(catalog.describe_table("s").uri).shallow_clone(f"{properties['root']}/t.lance", reference=1)
    stale = lance.dataset(namespace_client=namespace, table_id=["t"])
    recreate(catalog)
    with pytest.raises(OSError, match="Commit result for version 2 is unknown"):
        COLUMN_CHANGES[change](stale)
    assert stored(catalog) == [100, 101, 102]


@pytest.mark.parametrize("mode", ["compatible", "v1"])
def test_column_added_to_an_emptied_table_does_not_wipe_its_successor(tmp_path: Path, mode: str) -> None:
    """No fragment of the stale manifest could show its lineage, and the handle is one that pylance opened itself."""
    properties = {"root": str(tmp_path / "lake"), "commit_store": f"sqlite:///{tmp_path}/rows.db"}
    namespace = lancekeep.DirectoryNamespace(**properties, manifest_enabled=str(mode == "compatible").lower())
    catalog = namespace.catalog
    catalog.write("t", rows(0))
    stale = lance.dataset(namespace_client=namespace, table_id=["t"])
    stale.delete("true")
    recreate(catalog, versions=2)
    with pytest.raises(OSError, match="Commit result for version 3 is unknown"):
        stale.add_columns({"z": "x + 1"})
    assert stored(catalog) == [100, 101, 102, 110, 111, 112]


def test_handle_commits_after_the_version_that_it_opened_was_cleaned_up(catalog: Catalog) -> None:
    catalog.write("t", rows(0))
    handle = catalog.open("t")
    handle.add_columns({"z": "x + 1"})
    assert catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0)).tables
    handle.delete("x = 0")
    handle.delete("x = 1")
    assert stored(catalog) == [2]


@pytest.mark.parametrize("mode", ["compatible", "v1", "v2"])
def test_branch_that_another_catalog_recreated_is_known(tmp_path: Path, mode: str) -> None:
    """Lance deletes a branch without a change of the catalog, so no memory of its versions can be trusted."""

    def connect() -> Catalog:
        return lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite:///{tmp_path}/rows.db", mode=mode)

    with connect() as catalog, connect() as other:
        catalog.write("t", rows(0))
        catalog.open("t").create_branch("b")
        stale = catalog.open("t", branch="b")
        stale.insert(rows(10))
        other.open("t").branches.delete("b")
        other.open("t").create_branch("b")
        fresh = catalog.open("t", branch="b")
        fresh.insert(rows(20))
        other.open("t").branches.delete("b")
        other.open("t").create_branch("b")
        other.open("t", branch="b").insert(rows(30))
        for handle in (stale, fresh):
            with pytest.raises(OSError, match="is unknown"):
                handle.insert(rows(40))
        branch = lance.dataset(catalog.describe_table("t").uri).checkout_version(("b", None))
        assert sorted(branch.to_table()["x"].to_pylist()) == [0, 1, 2, 30, 31, 32]


def test_table_that_a_v1_catalog_recreated_is_known(tmp_path: Path) -> None:
    """A V1 catalog changes no manifest table by which another catalog could notice it."""

    def connect(mode: str) -> Catalog:
        return lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite:///{tmp_path}/rows.db", mode=mode)

    with connect("v1") as v1, connect("compatible") as catalog:
        v1.write("t", rows(0))
        stale = catalog.open("t")
        stale.insert(rows(10))
        v1.drop_table("t")
        v1.write("t", rows(20))
        v1.write("t", rows(30), "append")
        with pytest.raises(OSError, match="is unknown"):
            stale.insert(rows(40))
        assert stored(catalog) == [20, 21, 22, 30, 31, 32]
