"""A crash after any change of the files leaves the old or the new state, in every operation and mode."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from faults import killed_at_each_state

import lancekeep

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
MORE = pa.table({"a": pa.array([4], pa.int64())})

Operation = Callable[[lancekeep.Catalog], Any]

EVERYWHERE: dict[str, Operation] = {
    "declare": lambda catalog: catalog.declare_table("new"),
    "create": lambda catalog: catalog.write("new", ROWS),
    "drop": lambda catalog: catalog.drop_table("t"),
    "deregister": lambda catalog: catalog.deregister_table("t"),
    "drop native": lambda catalog: catalog.drop_table("native"),
    "deregister native": lambda catalog: catalog.deregister_table("native"),
    "register again": lambda catalog: catalog.register_table("gone", "gone.lance"),
}
WITH_A_MANIFEST: dict[str, Operation] = {
    "declare below": lambda catalog: catalog.declare_table("a.new", {"owner": "Zoë"}),
    "create below": lambda catalog: catalog.write("a.new", ROWS),
    "drop below": lambda catalog: catalog.drop_table("a.u"),
    "deregister below": lambda catalog: catalog.deregister_table("a.u"),
    "register": lambda catalog: catalog.register_table("a.r", "elsewhere"),
    "rename": lambda catalog: catalog.rename_table("t", "moved"),
    "rename into a namespace": lambda catalog: catalog.rename_table("t", "a.moved"),
    "rename out of a namespace": lambda catalog: catalog.rename_table("a.u", "moved"),
    "relocate": lambda catalog: catalog.upkeep.relocate("t", "place"),
    "relocate and keep": lambda catalog: catalog.upkeep.relocate("a.u", "place", keep=True),
    "alter table": lambda catalog: catalog.alter_table("t", {"owner": "Zoë"}),
    "create namespace": lambda catalog: catalog.create_namespace("b", {"owner": "Zoë"}),
    "alter namespace": lambda catalog: catalog.alter_namespace("a", {"owner": "Zoë"}),
    "drop namespace": lambda catalog: catalog.drop_namespace("empty"),
    "drop namespace and all": lambda catalog: catalog.drop_namespace("a", cascade=True),
}
IN_COMPATIBILITY: dict[str, Operation] = {
    "migrate native": lambda catalog: catalog.upkeep.migrate(batch=1),
    "rename native": lambda catalog: catalog.rename_table("native", "a.moved"),
}
CASES = [
    *(("v1", name) for name in EVERYWHERE),
    *(("compatible", name) for name in EVERYWHERE | WITH_A_MANIFEST | IN_COMPATIBILITY),
    *(("v2", name) for name in EVERYWHERE | WITH_A_MANIFEST if "native" not in name),
]
State = tuple[dict[str, tuple[int | None, dict[str, str]]], dict[str, dict[str, str]]]
OPERATIONS = EVERYWHERE | WITH_A_MANIFEST | IN_COMPATIBILITY


class Lake:
    """A catalog, and plain looks at its files."""

    def __init__(self, directory: Path, mode: str) -> None:
        self._mode = mode
        self.now = directory / "now"
        self.root = self.now / "lake"

    def connect(self) -> lancekeep.Catalog:
        return lancekeep.connect(
            str(self.root),
            mode=self._mode,
            commit_store=f"file://{self.now}/commits?fsync=false",
            storage_options={"fsync": "false"},
        )

    def fill(self, name: str) -> None:
        """A table with two versions, and what the operation needs."""
        catalog = self.connect()
        catalog.write("t", ROWS)
        catalog.write("t", MORE, "append")
        if self._mode != "v1":
            for namespace in ("a", "empty"):
                catalog.create_namespace(namespace)
            catalog.write("a.u", ROWS)
        if name == "register again":
            catalog.write("gone", ROWS)
            (self.root / catalog.deregister_table("gone").location).rename(self.root / "gone.lance")
        if name == "register":
            lance.write_dataset(ROWS, str(self.root / "elsewhere"))
        if "native" in name:
            lance.write_dataset(ROWS, str(self.root / "native.lance"))

    def complete(self, operation: Operation, new: State) -> None:
        """What fsck removes changes no state; then do again what was not done, and nothing is left over."""
        catalog = self.connect()
        found = state(catalog)
        catalog.upkeep.fsck(repair=True, grace=0)
        assert state(catalog) == found
        if found != new:
            for table in {"new", "a.new"} & found[0].keys():  # only declared
                catalog.drop_table(table)
            operation(catalog)
        assert state(catalog) == new
        catalog.upkeep.fsck(repair=True, grace=0, remove_tables=True)
        assert catalog.upkeep.fsck(grace=0).findings == ()
        assert state(catalog) == new
        assert self.unreferenced(catalog) == set()
        assert self.strays() == set()

    def unreferenced(self, catalog: lancekeep.Catalog) -> set[str]:
        """The directories of the root that belong to no table, by a look that owes nothing to fsck."""
        used = {catalog.find_table(name).location for name in tables(catalog)}
        return {path.name for path in self.root.iterdir() if path.is_dir()} - used - {"__manifest"}

    def fences(self) -> set[str]:
        """The directories that a moved table has left, which fsck reports only where it may remove them."""
        return {path.parent.name for path in self.root.glob("*/.lancekeep-moved")}

    def strays(self) -> set[str]:
        """The files of the manifest table that belong to none of its versions, by the engine's word."""
        manifest = self.root / "__manifest"
        if not manifest.exists():
            return set()
        known: set[str] = set()
        for version in lance.dataset(str(manifest)).versions():
            for fragment in lance.dataset(str(manifest), version=version["version"]).get_fragments():
                known |= {file.path for file in fragment.data_files()}
        return {path.name for path in manifest.glob("data/*")} - known

    def holds_a_version(self, directory: str) -> bool:
        return any((self.root / directory / "_versions").glob("*.manifest"))


def tables(catalog: lancekeep.Catalog) -> list[list[str]]:
    return [list(table.names) for table in catalog.list_all_tables()]


def state(catalog: lancekeep.Catalog) -> State:
    """Every table with its rows as a plain reader sees them (None: only declared), and every namespace."""
    found = {}
    for name in tables(catalog):
        table = catalog.describe_table(name)
        rows = None if table.version is None else lance.dataset(table.uri).count_rows()
        found[".".join(name)] = (rows, dict(table.properties))
    namespaces = {name: dict(catalog.describe_namespace(name).properties) for name in catalog.list_namespaces()}
    return found, namespaces


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "name"), CASES)
def test_crash_leaves_old_or_new_state_and_repair_removes_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, name: str
) -> None:
    operation, lake = OPERATIONS[name], Lake(tmp_path, mode)
    lake.fill(name)
    old = state(lake.connect())
    shutil.copytree(lake.now, tmp_path / "before")
    operation(lake.connect())
    new = state(lake.connect())
    shutil.rmtree(lake.now)
    (tmp_path / "before").rename(lake.now)
    declared = {"new", "a.new"} & new[0].keys()
    between = [({**old[0], table: (None, {})}, old[1]) for table in declared]
    nth = 0
    for nth in killed_at_each_state(monkeypatch, lake.now, lake.connect, operation):
        catalog = lake.connect()
        found = state(catalog)
        assert found in (old, new, *between), nth
        left = lake.unreferenced(catalog) - lake.fences()
        assert left <= {finding.object for finding in catalog.upkeep.fsck(grace=0).findings}, nth
        catalog.upkeep.fsck(repair=True, grace=0)
        assert state(catalog) == found, nth
        assert not any(finding.repair for finding in catalog.upkeep.fsck(grace=0).findings), nth
        assert all(map(lake.holds_a_version, lake.unreferenced(catalog))), nth
        lake.complete(operation, new)
    assert nth > 1, "the process died nowhere"
