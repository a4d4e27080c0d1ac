"""A crash at any call of a port leaves the old or the new state, in every operation and mode."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from faults import Crash, Faulty

import lancekeep
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores import open_object_store

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
    "relocate": lambda catalog: catalog.relocate("t", "place"),
    "relocate and keep": lambda catalog: catalog.relocate("a.u", "place", keep=True),
    "alter table": lambda catalog: catalog.alter_table("t", {"owner": "Zoë"}),
    "create namespace": lambda catalog: catalog.create_namespace("b", {"owner": "Zoë"}),
    "alter namespace": lambda catalog: catalog.alter_namespace("a", {"owner": "Zoë"}),
    "drop namespace": lambda catalog: catalog.drop_namespace("empty"),
    "drop namespace and all": lambda catalog: catalog.drop_namespace("a", cascade=True),
}
IN_COMPATIBILITY: dict[str, Operation] = {
    "migrate native": lambda catalog: catalog.migrate(batch=1),
    "rename native": lambda catalog: catalog.rename_table("native", "a.moved"),
}
CASES = [
    *(("v1", name) for name in EVERYWHERE),
    *(("compatible", name) for name in EVERYWHERE | WITH_A_MANIFEST | IN_COMPATIBILITY),
    *(("v2", name) for name in EVERYWHERE | WITH_A_MANIFEST if "native" not in name),
]
State = tuple[dict[str, tuple[int | None, dict[str, str]]], dict[str, dict[str, str]]]
LOOKS = {"get", "head", "list", "directories", "unfinished", "passes_link", "latest"}
OPERATIONS = EVERYWHERE | WITH_A_MANIFEST | IN_COMPATIBILITY
CHANCE = re.compile(r"[01]{24}[0-9a-f]{26}|[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}|\b[0-9a-f]{8}(?=_)")
"""What differs in the names of files from one run to the next."""


@attrs.define
class Fate:
    """Crash the process at the ``nth`` call of any port from now on; its later calls have no effect."""

    nth: int | None = None
    when: str = "before"
    method: str | None = None
    calls: int = 0

    @property
    def dead(self) -> bool:
        return self.method is not None

    def __call__(self, method: str, _: int) -> tuple[str, BaseException] | None:
        if self.dead:
            return "before", Crash()
        self.calls += 1
        if self.nth is None or self.calls <= self.nth:
            return None
        self.method = method
        return self.when, Crash()


class Lake:
    """A catalog whose state can be put back to where it was."""

    def __init__(self, directory: Path, mode: str) -> None:
        self.fate = Fate()
        self._mode = mode
        self._now = directory / "now"
        self._before = directory / "before"
        self.root = self._now / "lake"

    def connect(self) -> lancekeep.Catalog:
        return lancekeep.connect(
            str(self.root),
            mode=self._mode,
            commit_store=f"file://{self._now}/commits?fsync=false",
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
        shutil.copytree(self._now, self._before)

    def put_back(self) -> None:
        shutil.rmtree(self._now)
        shutil.copytree(self._before, self._now)

    def files(self) -> frozenset[tuple[str, int]]:
        """Return every file and its size. If these are equal, later processes find the same state."""
        files = [path for path in self._now.rglob("*") if path.is_file()]
        return frozenset((CHANCE.sub("#", str(path.relative_to(self._now))), path.stat().st_size) for path in files)

    def die(self, operation: Operation, nth: int, when: str) -> str | None:
        """The method at whose call the process died; None where the operation has completed."""
        catalog = self.connect()
        self.fate.nth, self.fate.when, self.fate.calls = nth, when, 0
        try:
            operation(catalog)
        except BaseException:  # the engine makes errors of its own of a callback that died
            if not self.fate.dead:
                raise
        method = self.fate.method
        self.fate.nth = self.fate.method = None
        return method

    def complete(self, operation: Operation, new: State) -> None:
        """What fsck removes changes no state; then do again what was not done, and nothing is left over."""
        catalog = self.connect()
        found = state(catalog)
        catalog.fsck(repair=True, grace=0)
        assert state(catalog) == found
        if found != new:
            for table in {"new", "a.new"} & found[0].keys():  # only declared
                catalog.drop_table(table)
            operation(catalog)
        assert state(catalog) == new
        catalog.fsck(repair=True, grace=0, remove_tables=True)
        assert catalog.fsck(grace=0).findings == ()
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


@pytest.fixture
def fate(monkeypatch: pytest.MonkeyPatch) -> Fate:
    """What every port that is opened from now on is subject to."""
    fate = Fate()

    def objects(root: str, options: Any, **how: Any) -> Any:
        store, key = open_object_store(root, options, **how)
        return Faulty(store, fate), key

    monkeypatch.setattr("lancekeep.composition.open_object_store", objects)
    monkeypatch.setattr("lancekeep.composition.open_commit_store", lambda *args: Faulty(open_commit_store(*args), fate))
    return fate


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "name"), CASES)
def test_crash_leaves_old_or_new_state_and_repair_removes_leftovers(
    tmp_path: Path, fate: Fate, mode: str, name: str
) -> None:
    operation, lake = OPERATIONS[name], Lake(tmp_path, mode)
    lake.fate = fate
    lake.fill(name)
    old = state(lake.connect())
    operation(lake.connect())
    new = state(lake.connect())
    declared = {"new", "a.new"} & new[0].keys()
    between = [({**old[0], table: (None, {})}, old[1]) for table in declared]
    seen = set[frozenset[tuple[str, int]]]()
    for nth in count():
        for when in ("before", "after"):
            lake.put_back()
            method = lake.die(operation, nth, when)
            files = lake.files()
            if files not in seen:
                seen.add(files)
                catalog = lake.connect()
                found = state(catalog)
                assert found in (old, new, *between), (nth, when)
                left = lake.unreferenced(catalog) - lake.fences()
                assert left <= {finding.object for finding in catalog.fsck(grace=0).findings}, (nth, when)
                catalog.fsck(repair=True, grace=0)
                assert state(catalog) == found, (nth, when)
                assert not any(finding.repair for finding in catalog.fsck(grace=0).findings), (nth, when)
                assert all(map(lake.holds_a_version, lake.unreferenced(catalog))), (nth, when)
                lake.complete(operation, new)
            if method is None:
                assert len(seen) > 1, "the process died nowhere"
                return
            if method in LOOKS:  # after a look is before the next call
                break
