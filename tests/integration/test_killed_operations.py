"""A kill before any write of an operation of several steps: rows stay, the same call works, repair leaves no trace."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from faults import killed_before_each_write
from lance import DatasetBasePath

import lancekeep
from lancekeep.application.upkeep.fsck import Finding, Kind
from lancekeep.domain.identifiers import ObjectId

T, BASED, REPLACED = ObjectId.of("t"), ObjectId.of("based"), ObjectId.of("replaced")


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64()), "b": pa.array([value * 10 for value in values], pa.int64())})


class Lake:
    """A catalog over conditional-put, whose directory can be put back to where it was."""

    def __init__(self, directory: Path) -> None:
        self.now, self.before = directory / "now", directory / "before"
        self.root = self.now / "lake"
        catalog = self.connect()
        catalog.write("t", rows(1, 2))
        catalog.write("t", rows(3), "append")
        catalog.write("t", rows(4), "append")
        catalog.open("t").delete("a = 2")
        catalog.commit_change("t", lambda dataset: (dataset.create_scalar_index("a", "BTREE"), dataset)[1])
        catalog.write("t", rows(5), "append")
        catalog.clone("t", "shallow")
        catalog.write("unneeded", rows(1))
        catalog.drop_table("unneeded", keep=1000)
        catalog.write("based", rows(1))
        (self.now / "warm").mkdir()
        catalog.commit_change(
            "based", lambda dataset: dataset.add_bases([DatasetBasePath(str(self.now / "warm"), "warm", True)])
        )
        catalog.commit_change(
            "based", lambda dataset: lance.write_dataset(rows(2), dataset, mode="append", target_bases=["warm"])
        )
        shutil.copytree(self.now / "warm", self.now / "cold")
        catalog.close()
        shutil.copytree(self.now, self.before)

    def connect(self) -> lancekeep.Catalog:
        return lancekeep.connect(str(self.root), commit_store="conditional-put://", storage_options={"fsync": "false"})

    def restored(self) -> lancekeep.Catalog:
        shutil.rmtree(self.now)
        shutil.copytree(self.before, self.now)
        return self.connect()

    def state(self) -> dict[str, list[int] | None]:
        """Return the rows of each table as plain pylance reads them; None for a table without a version."""
        found: dict[str, list[int] | None] = {}
        with self.connect() as catalog:
            for name in map(str, catalog.list_all_tables()):
                table = catalog.describe_table(name)
                if table.version is None:
                    found[name] = None
                    continue
                dataset = lance.dataset(table.uri)
                found[name] = sorted(dataset.to_table()["a"].to_pylist())
                for value in found[name] or ():  # by the index, if there is one
                    assert dataset.count_rows(f"a = {value}") == 1, (name, value)
        return found


def beyond_repair(catalog: lancekeep.Catalog) -> list[Finding]:
    """Return the findings that repair leaves.

    A staged manifest is none: a commit of its version makes it removable.
    """
    found = catalog.upkeep.fsck(deep=True, grace=0, remove_tables=True).findings
    return [finding for finding in found if not finding.repair and finding.kind is not Kind.STAGED]


def _branches(catalog: lancekeep.Catalog) -> None:
    catalog.upkeep.fsck(deep=True, grace=0, repair=True)  # the remains of a branch have its name
    if "b" not in catalog.branches.list(T):
        catalog.branches.create(T, "b", None, 2)
    assert catalog.open("t", branch="b").count_rows() == 3


OPERATIONS: dict[str, Callable[[lancekeep.Catalog, Lake], object]] = {
    "create": lambda catalog, _: catalog.write("new", rows(9)),
    "shallow clone": lambda catalog, _: catalog.clone("t", "new"),
    "materialize": lambda catalog, _: catalog.upkeep.materialize("shallow"),
    "move fragments": lambda catalog, lake: catalog.upkeep.move_fragments("t", timedelta(0), str(lake.now / "tier")),
    "set base paths": lambda catalog, lake: catalog.structure.set_base_paths(BASED, {1: str(lake.now / "cold")}),
    "digest": lambda catalog, _: lancekeep.digest(catalog, tables=["t"]),
    "relocate": lambda catalog, _: catalog.upkeep.relocate("based", "place"),
    "rename": lambda catalog, _: catalog.rename_table("based", "renamed"),
    "branch": lambda catalog, _: _branches(catalog),
    "drop with keep": lambda catalog, _: catalog.drop_table("based", keep=1000),
    "undrop": lambda catalog, _: catalog.undrop("unneeded", "new"),
    "purge": lambda catalog, _: catalog.purge("unneeded"),
    "compact": lambda catalog, _: catalog.upkeep.compact("t"),
    "merge indexes": lambda catalog, _: catalog.structure.merge_indexes(T, ["a_idx"]),
    "clean up": lambda catalog, _: catalog.upkeep.cleanup(0, grace=0, tables=["t"]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_operation_is_repeated_or_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    lake, operation = Lake(tmp_path), OPERATIONS[name]
    old = lake.state()
    with lake.connect() as catalog:
        operation(catalog, lake)
    new = lake.state()
    kills = 0
    for nth in killed_before_each_write(monkeypatch, lake.restored, lambda catalog, _: operation(catalog, lake)):
        kills += 1
        found = lake.state()
        assert found in (old, new, {**old, "new": None}), nth
        with lake.connect() as catalog:
            assert beyond_repair(catalog) == [], nth
            if nth % 2:
                catalog.upkeep.fsck(deep=True, grace=0, repair=True)
                assert lake.state() == found, nth
                assert not any(finding.repair for finding in catalog.upkeep.fsck(deep=True, grace=0).findings), nth
            if lake.state().get("new", ()) is None:  # only declared
                catalog.drop_table("new")
            with suppress(*([lancekeep.TableAlreadyExists, lancekeep.TableNotFound] if found == new else [])):
                operation(catalog, lake)
            assert lake.state() == new, nth
            catalog.upkeep.fsck(deep=True, grace=0, repair=True, remove_tables=True)
            assert catalog.upkeep.fsck(deep=True, grace=0).findings == (), nth
            assert lake.state() == new, nth
    assert kills > 1


@pytest.mark.parametrize("store", ["sqlite", "conditional-put", "storage-managed"])
def test_remains_of_a_branch_are_removed_unless_it_has_rows(tmp_path: Path, store: str) -> None:
    urls = {"sqlite": f"sqlite://{tmp_path}/commits.db", "conditional-put": "conditional-put://"}
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=urls.get(store))
    catalog.write("t", rows(1, 2))
    for name in ("b", "b/c", "tagged", "written"):
        catalog.branches.create(T, name, None, None)
    catalog.open("t").tags.create("first", ("tagged", 1))
    catalog.commit_change("t", lambda dataset: lance.write_dataset(rows(3), dataset, mode="append"), branch="written")
    table = tmp_path / "lake/t.lance"
    for name in ("b", "tagged", "written"):
        (table / f"_refs/branches/{name}.json").unlink()
    with pytest.raises(lancekeep.BranchAlreadyExists, match="repair --deep"):
        catalog.branches.create(T, "b", None, None)

    young = catalog.upkeep.fsck(deep=True, repair=True).findings
    assert {finding.object for finding in young} >= {"t@b", "t@tagged", "t@written"}
    assert not any(finding.repaired for finding in young)
    kept = {"t@tagged": Kind.UNFINISHED_BRANCH, "t@written": Kind.UNFINISHED_BRANCH}
    found = catalog.upkeep.fsck(deep=True, repair=True, grace=0, tables=["t"]).findings
    assert {finding.object: finding.repaired for finding in found if finding.kind is Kind.UNFINISHED_BRANCH} == {
        "t@b": True,
        **dict.fromkeys(kept, False),
    }
    assert {one.object: one.kind for one in catalog.upkeep.fsck(deep=True, grace=0).findings if not one.repair} == kept
    assert catalog.open("t", branch="b/c").count_rows() == 2
    catalog.branches.create(T, "b", None, None)
    catalog.commit_change("t", lambda dataset: lance.write_dataset(rows(3), dataset, mode="append"), branch="b")
    assert sorted(catalog.open("t", branch="b").to_table()["a"].to_pylist()) == [1, 2, 3]
    assert sorted(lance.dataset(str(table)).to_table()["a"].to_pylist()) == [1, 2]
