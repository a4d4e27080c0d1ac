"""Files that a refused writer leaves in a V1 directory after a drop: fsck reports and removes them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.application.upkeep.refused_writes import RefusedWrites

STORES = [None, "conditional-put://", "sqlite", "file"]


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def connect(path: Path, store: str | None = None, mode: str = "compatible") -> lancekeep.Catalog:
    urls = {"sqlite": f"sqlite://{path}/commits.db", "file": f"file://{path}/commits"}
    url = None if store is None else urls.get(store, store)
    return lancekeep.connect(str(path / "lake"), mode=mode, commit_store=url, storage_options={"fsync": "false"})


def refuse(catalog: lancekeep.Catalog, other: lancekeep.Catalog, keep: float = 0) -> None:
    """Drop ``t``, and write by a handle that was opened before."""
    handle = catalog.open("t")
    other.drop_table("t", keep=keep)
    with pytest.raises(OSError, match="unknown"):
        handle.insert(rows(2), mode="append")


def leave_files(path: Path, store: str | None = None, mode: str = "compatible") -> lancekeep.Catalog:
    catalog, other = connect(path, store, mode), connect(path, store, mode)
    catalog.write("t", rows(1))
    refuse(catalog, other)
    return other


def findings(catalog: lancekeep.Catalog, **options: Any) -> list[tuple[Kind, str, bool]]:
    report = catalog.upkeep.fsck(**options)
    return [(each.kind, each.object, each.repaired) for each in report.findings]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("mode", ["compatible", "v1"])
@pytest.mark.parametrize("deep", [False, True])
def test_repair_frees_the_name_that_a_refused_write_brought_back(
    tmp_path: Path, mode: str, store: str | None, deep: bool
) -> None:
    catalog = leave_files(tmp_path, store, mode)
    assert catalog.list_tables() == ["t"]
    with pytest.raises(lancekeep.TableAlreadyExists):
        catalog.write("t", rows(3))
    assert findings(catalog, deep=deep, grace=0)[0] == (Kind.UNREFERENCED, "t.lance", False)
    young = catalog.upkeep.fsck(repair=True, deep=deep, grace=timedelta(days=1)).findings[0]
    assert not young.repaired
    assert "a writer may still be running" in young.meaning
    assert catalog.list_tables() == ["t"]
    assert findings(catalog, repair=True, deep=deep, grace=0)[0] == (Kind.UNREFERENCED, "t.lance", True)
    assert findings(catalog, deep=True, grace=0) == []
    assert catalog.list_tables() == []
    assert not (tmp_path / "lake" / "t.lance").exists()
    assert catalog.write("t", rows(3)).version == 1
    assert catalog.open("t").to_table() == rows(3)


def test_tables_and_foreign_files_stay(tmp_path: Path) -> None:
    catalog = leave_files(tmp_path)
    plan = catalog.begin_write("declared", rows(1).schema, "create")
    lance.fragment.write_fragments(rows(1), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    catalog.write("written", rows(1))
    lance.write_dataset(rows(5), str(tmp_path / "lake" / "native.lance"))
    branched = lance.write_dataset(rows(6), str(tmp_path / "lake" / "branched.lance"))
    branched.create_branch("b").insert(rows(7))
    shutil.rmtree(tmp_path / "lake" / "branched.lance" / "_versions")
    foreign = tmp_path / "lake" / "t.lance" / "notes.txt"
    foreign.write_text("mine")
    before = sorted(str(path) for path in (tmp_path / "lake" / "t.lance").rglob("*"))
    assert findings(catalog, repair=True, grace=0) == [(Kind.UNREFERENCED, "t.lance", False)]
    assert sorted(str(path) for path in (tmp_path / "lake" / "t.lance").rglob("*")) == before
    assert catalog.list_tables() == ["branched", "declared", "native", "t", "written"]


@pytest.mark.parametrize("mode", ["compatible", "v1"])
def test_declared_table_with_files_of_a_write_in_progress_stays(tmp_path: Path, mode: str) -> None:
    catalog = connect(tmp_path, mode=mode)
    plan = catalog.begin_write("t", rows(1).schema, "create")
    fragments = lance.fragment.write_fragments(rows(1), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    assert findings(connect(tmp_path, mode=mode), repair=True, grace=0) == []
    assert catalog.commit_fragments(plan, fragments).version == 1


def test_files_of_a_dropped_table_that_can_come_back_stay(tmp_path: Path) -> None:
    catalog, other = connect(tmp_path), connect(tmp_path)
    catalog.write("t", rows(1))
    refuse(catalog, other, keep=3600)
    assert other.list_tables() == []
    assert findings(other, repair=True, remove_tables=True, grace=0) == []
    other.undrop("t")
    assert other.open("t").to_table() == rows(1)


NEWCOMERS: dict[str, Callable[[lancekeep.Catalog, Path], Any]] = {
    "native": lambda catalog, path: lance.write_dataset(rows(7), str(path / "lake" / "t.lance"), mode="overwrite"),
    "dropped": lambda catalog, path: catalog.drop_table("t", keep=0),
    "created again": lambda catalog, path: (catalog.drop_table("t", keep=0), catalog.write("t", rows(7))),
    "registered": lambda catalog, path: catalog.register_table(
        "t", str(Path(lance.write_dataset(rows(7), str(path / "lake" / "other")).uri).name), overwrite=True
    ),
}


@pytest.mark.parametrize("store", [None, "sqlite"])
@pytest.mark.parametrize("newcomer", NEWCOMERS)
@pytest.mark.parametrize("at", range(4))
def test_repair_spares_a_table_that_takes_the_name_at_this_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newcomer: str, at: int, store: str | None
) -> None:
    """The newcomer comes before one of the looks of the repair, of which the last is made once the name is taken."""
    catalog, other = leave_files(tmp_path, store), connect(tmp_path, store)
    look, looks = RefusedWrites._of, 0

    def come(self: RefusedWrites, table: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == at + 1 and at < 3:
            arrive()
        found = look(self, table)
        if looks == at and at == 3:
            arrive()
        return found

    def arrive() -> None:
        try:
            NEWCOMERS[newcomer](other, tmp_path)
        except lancekeep.LancekeepError as error:
            refused.append(error)

    refused: list[Exception] = []
    monkeypatch.setattr(RefusedWrites, "_of", come)
    catalog.upkeep.fsck(repair=True, grace=0)
    assert looks or newcomer == "dropped"
    monkeypatch.undo()
    fresh = connect(tmp_path, store)
    if newcomer == "native" and at == 3:
        return  # its files are younger than any grace time
    if newcomer == "dropped" or refused:
        assert [name for name in fresh.list_tables() if fresh.describe_table(name).version] == []
        return
    assert fresh.list_tables() == ["t"]
    assert fresh.open("t").to_table() == rows(7)


@pytest.mark.parametrize("is_taken", [False, True])
def test_repair_removes_nothing_once_a_further_file_has_appeared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    catalog, other = leave_files(tmp_path), connect(tmp_path)
    directory = tmp_path / "lake" / "t.lance"
    before = {str(path) for path in directory.rglob("*")}
    remove, further = RefusedWrites._repaired, directory / "data" / "0123456789abcdef0123456789abcdef.lance"

    def repaired(self: RefusedWrites, table: Any, finding: Any) -> Any:
        def remove_unwritten(table: Any, is_still: Callable[[], bool]) -> bool:
            def look() -> bool:  # once the name is taken from the directory
                further.write_bytes(b"of a writer that creates the table by the path")
                if is_taken:
                    other.declare_table("t")
                return is_still()

            return self.remove_unwritten(table, look)

        return remove(attrs.evolve(self, remove_unwritten=remove_unwritten), table, finding)

    monkeypatch.setattr(RefusedWrites, "_repaired", repaired)
    assert [(each.object, each.repaired) for each in catalog.upkeep.fsck(repair=True, grace=0).findings] == [
        ("t.lance", False)
    ]
    assert before <= {str(path) for path in directory.rglob("*")}
    assert further.exists()
    assert connect(tmp_path).list_tables() == ["t"]


def test_plan_that_began_in_the_directory_is_refused_after_the_repair(tmp_path: Path) -> None:
    catalog = leave_files(tmp_path)
    plan = catalog.begin_write("t", rows(9).schema, "overwrite")
    fragments = lance.fragment.write_fragments(rows(9), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    other = connect(tmp_path)
    other.upkeep.fsck(repair=True, grace=0)
    with pytest.raises((lancekeep.LancekeepError, OSError)):
        catalog.commit_fragments(plan, fragments)
    assert [str(name) for name in directory_of(other).tables.all(None, include_declared=True)] == []


ASKS: dict[str, Callable[[lancekeep.Catalog], Any]] = {
    "append": lambda catalog: catalog.write("t", rows(3), "append"),
    "plan": lambda catalog: catalog.begin_write("t", rows(3).schema, "append"),
    "open": lambda catalog: catalog.open("t"),
    "describe": lambda catalog: catalog.versions.describe("t"),
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("mode", ["compatible", "v1"])
@pytest.mark.parametrize("ask", ASKS)
def test_error_names_the_files_of_a_refused_write_and_what_frees_the_name(
    tmp_path: Path, mode: str, store: str | None, ask: str
) -> None:
    catalog = leave_files(tmp_path, store, mode)
    with pytest.raises(lancekeep.NotFound, match=r"refused.*left files in 't.lance'.*lancekeep drop.*lancekeep repair"):
        ASKS[ask](catalog)
    assert findings(catalog, repair=True, grace=0)[0] == (Kind.UNREFERENCED, "t.lance", True)
    with pytest.raises(lancekeep.TableNotFound, match="does not exist"):
        ASKS[ask](catalog)


def test_first_version_may_be_written_over_files_of_a_refused_write(tmp_path: Path) -> None:
    catalog = leave_files(tmp_path)
    assert catalog.write("t", rows(3), "overwrite").version == 1
    assert catalog.open("t").to_table() == rows(3)


@pytest.mark.parametrize("mode", ["compatible", "v1"])
@pytest.mark.parametrize("ask", ASKS)
def test_error_of_a_table_that_is_only_declared_says_so(tmp_path: Path, mode: str, ask: str) -> None:
    catalog = connect(tmp_path, mode=mode)
    plan = catalog.begin_write("t", rows(1).schema, "create")
    lance.fragment.write_fragments(rows(1), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    with pytest.raises(lancekeep.NotFound, match="only declared"):
        ASKS[ask](catalog)
