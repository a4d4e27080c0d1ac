"""Any sequence of operations over real tables, through fresh handles and through those that outlived their table.

A rule performs one operation and says which outcomes are allowed; after each step `check` reads every table, clone,
branch and tag completely, and compares the rows with the model. Rules take plain numbers, so a finding can be replayed
as a script (see ``test_faults.py``).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count, pairwise
from typing import Any, TypeVar

import attrs
import lance
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from lance.fragment import write_fragments
from lance_namespace import InsertIntoTableRequest, ListTableVersionsRequest
from lance_namespace.errors import LanceNamespaceError
from readers.checks import problems_in
from readers.dropped_operations import DroppedOperations
from readers.model import CHANGES, Content, Given, History, State, Table, Target, content_of
from readers.neighbours import Neighbour, Neighbours
from readers.operations import FEW, FLAG, has_pending, has_tables, operation
from readers.own_operations import OwnOperations
from readers.reading_operations import ReadingOperations
from readers.requests import REQUESTS, Request
from readers.stores import ATOMIC, MODES, REMEMBERING, STORES, Lake
from readers.structure_operations import StructureOperations, View
from readers.upkeep_operations import UpkeepOperations

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.commits.protocol_runner import recognizable
from lancekeep.application.upkeep.examination import contradiction, examine
from lancekeep.application.upkeep.file_checks import Version
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.commit import Committed
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.dataset_files import TRANSACTIONS

T = TypeVar("T")
Names = tuple[str, ...]

REFUSALS = (lancekeep.LancekeepError, LanceNamespaceError, OSError, ValueError, RuntimeError)
"""What an operation may raise; the engine turns most errors of its callbacks into an ``OSError``."""

FOREIGN = ("notes.txt", "photos.lance/p.jpg", "20260101_exports/2026/invoices.csv", "deadbeef_old/keep.bin")
"""Files of the user, some in directories whose names look like a table's."""

BRANCHES = ("s", "t")
TAGS = ("k", "l")
CHANGE_NAMES = tuple(CHANGES)
CONCURRENTLY = ("drop", "recreate", "rename", "write", "create_branch")
UPKEEP = ("cleanup", "repair", "migrate", "reopen", "change_commit_store", "put_foreign_file")
NOW = timedelta(0)

DAMAGE = {
    Kind.HEAD,
    Kind.MISSING_FILE,
    Kind.DAMAGED_FILE,
    Kind.TAG,
    Kind.BRANCH,
    Kind.MALFORMED,
    Kind.DUPLICATE,
}
"""Findings that no sequence of operations may cause."""

OUTCOMES: Counter[str] = Counter()
"""What happened in all runs of this process: an instrument that never commits, or never refuses, finds nothing."""


def has_handles(machine: Any) -> bool:
    return bool(machine.handles)


def has_left(machine: Any) -> bool:
    return bool(machine.left)


@attrs.define(eq=False)
class Handle:
    """A dataset that was opened once, with the history that it reads and commits to."""

    dataset: Any
    table: Table
    branch: str | None
    history: History
    name: Names
    uri: str
    era: int
    native: bool
    kind: str


@attrs.define(eq=False)
class Pending:
    """A commit that was prepared and is finished later: a plan, a transaction, a token."""

    targets: list[Target]
    finish: Callable[[], object]
    abandon: Callable[[], object] | None = None


class Readers(DroppedOperations, OwnOperations, ReadingOperations, StructureOperations, UpkeepOperations, Neighbours):
    """A pool of handles over one lake, and the model of what readers must see."""

    servers: Mapping[str, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[Names, Table] = {}
        self.left: list[Table] = []
        self.dropped: list[tuple[Names, str, Table]] = []
        """The tables that can be brought back, with the name that each had, and that of its drop."""
        self.outside: list[Table] = []
        self.sources: frozenset[Table] = frozenset()
        self.foreign: dict[str, bytes] = {}
        self.handles: list[Handle] = []
        self.pending: list[Pending] = []
        self.stores: dict[str, str] = {}
        self.view: View | None = None
        self.neighbour: Neighbour | None = None
        self.catalogs: list[lancekeep.Catalog] = []
        self.of_engines: dict[tuple[Table, str, str], tuple[Any, State]] = {}
        """The handles of other engines, and what each of them reads."""
        self.numbers = count(1)
        self.steps = 0
        self.era = 0

    # -- beginning and end ------------------------------------------------------------------------------------------

    @initialize(mode=st.sampled_from(MODES), kind=st.sampled_from(STORES), foreign=st.booleans())
    def begin(self, mode: str, kind: str, foreign: bool) -> None:
        """Make a lake with two tables; ``foreign``: in a manifest table that another writer has made."""
        self.lake = Lake.make(mode, kind, self.servers)
        if foreign and mode != "v1":
            self.lake.write_manifest_table()
        self.names: list[Names] = [("a",), ("b",), ("c",)] if mode == "v1" else [("a",), ("b",), ("n", "c"), ("d",)]
        self.open_catalogs()
        if mode != "v1":
            self.catalogs[0].create_namespace("n")
        for at in (0, 1):
            self.shown = self.entries()
            self.create(at, at, at == 1)
            self.open(at, 0, at == 1, False)

    def open_catalogs(self) -> None:
        self.catalogs = [self.lake.connect(), self.lake.connect()]
        self.namespace: Any = self.lake.namespace()  # requests are dicts, too

    def teardown(self) -> None:
        if not hasattr(self, "lake"):
            return
        try:
            if sys.exc_info()[0] is None and self.catalogs:
                self.judge(everything=True)
        finally:
            self.lake.remove()

    # -- the model --------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return self.lake.kind

    @property
    def mode(self) -> str:
        return self.lake.mode

    def pick(self, found: Sequence[T], at: int) -> T:
        return found[at % len(found)]

    def named(self, at: int) -> Names | None:
        """One of the names that have a table."""
        names = sorted(self.tables)
        return self.pick(names, at) if names else None

    def free(self, at: int) -> Names | None:
        names = [name for name in self.names if name not in self.tables]
        return self.pick(names, at) if names else None

    def given(self, state: State, value: int, rows: int = 1) -> Given:
        ids = sorted(state.rows)
        return Given([next(self.numbers) for _ in range(rows)], self.pick(ids, value) if ids else 0, value)

    def is_live(self, target: Target | Handle) -> bool:
        return target.table in self.tables.values() and target.table.history(target.branch) is target.history

    def name_of(self, table: Table) -> Names | None:
        return next((name for name, found in self.tables.items() if found is table), None)

    def is_source(self, table: Table) -> bool:
        """Whether a clone was ever made of it: what a refused writer of the clone has staged still names its files."""
        return table in self.sources

    def enter(self, name: Names, state: State, sources: frozenset[Table] = frozenset()) -> None:
        found = self.catalogs[0].find_table(name)
        uri = services_of(self.catalogs[0]).uri(found)
        table = Table(found.location, uri, History(), sources=sources)
        table.main.versions[self.lake.plain(uri).version] = state
        table.main.kept.add(table.main.latest)
        self.tables[name] = table

    def is_occupied(self, name: Names) -> bool:
        """Return whether the V1 directory of a name has files; those of a refused writer make it a declared table.

        A migration enters such a table, which then stays without its files.
        """
        if self.mode == "v2" or len(name) > 1:
            return False
        catalog = self.catalogs[0]
        declared = name not in self.tables and catalog.table_exists(name) and not catalog.versions.history(name)
        return declared or self.lake.holds(f"{name[0]}.lance")

    def place_of(self, name: Names, other: str | None) -> str | None:
        """Return the directory where pylance may make a table of this name: its V1 directory, if it is unused."""
        if self.mode == "v2" or len(name) > 1:
            return other
        listed = f"{name[0]}.lance"
        if self.lake.holds(listed) or self.era > 1:
            return None  # the store may keep the fence of a table that had it before the catalog moved away
        return listed

    def forget_table(self, name: Names) -> None:
        """Drop a table. Clones outside every catalog lose what they read."""
        gone = self.tables.pop(name)
        self.outside = [clone for clone in self.outside if gone not in clone.sources]

    # -- outcomes ---------------------------------------------------------------------------------------------------

    def attempt(self, act: Callable[[], object], *, may_refuse: bool, what: str) -> bool:
        """Perform a catalog operation. Returns False where it was refused, after which nothing may have changed."""
        try:
            act()
        except REFUSALS as error:
            if not may_refuse:
                raise AssertionError(f"{what} was refused: {type(error).__name__}: {error}") from error
            OUTCOMES[f"{what}: refused"] += 1
            self.require_unchanged(what, error)
            return False
        OUTCOMES[f"{what}: done"] += 1
        return True

    def require_refused(self, act: Callable[[], object], what: str) -> None:
        assert not self.attempt(act, may_refuse=True, what=what), f"{what} was not refused"

    def commit(
        self,
        act: Callable[[], object],
        targets: Sequence[Target],
        *,
        must: bool,
        what: str,
        by_name: Names | None = None,
    ) -> bool:
        """Perform a commit. It may be accepted only if each target is still the table that its writer has read.

        ``by_name``: the writer has read no version; it adds rows to the table that has this name at the commit.
        """
        try:
            act()
        except REFUSALS as error:
            if must and all(map(self.is_live, targets)):
                raise AssertionError(f"{what} was refused: {type(error).__name__}: {error}") from error
            OUTCOMES[f"{what}: refused"] += 1
            self.require_unchanged(what, error)
            return False
        OUTCOMES[f"{what}: done"] += 1
        for target in targets:
            there = [table for table in self.tables.values() if table.uri == target.uri]
            if self.is_live(target) and (not there or there == [target.table]):
                after = target.change.after(target.history.state, target.seen, target.given)
                target.history.add(self.stored(target.table, target.branch).version, after)
            else:
                self.land_in_successor(target, what, by_name)
        return True

    def land_in_successor(self, target: Target, what: str, by_name: Names | None) -> None:
        """Expect an acknowledged commit of a table that is gone in the table which was recreated at its path.

        A handle that pylance opened by itself does not say which version it has read, and pylance repeats some changes
        on the latest version at its path (ADR 30). The rows must then be those of the new table with the change.
        """
        there = [
            table
            for name, table in self.tables.items()
            if (table.uri == target.uri if by_name is None else name == by_name)
        ]
        if by_name is not None and not there and self.catalogs[0].table_exists(by_name):
            # Files of a refused writer are a declared table in a V1 directory, which the rows have created.
            self.enter(by_name, target.change.after(State(target.seen.columns), target.seen, target.given))
            return
        history = there[0].history(target.branch) if there else None
        rebased = (by_name is not None or (target.change.rebased and target.native)) and history is not None
        assert rebased or target.is_without_effect, (
            f"{what}: acknowledged, and its table was dropped, moved out of the catalog, or is another table now"
        )
        if history is not None:
            seen = history.versions.get(target.version, target.seen)
            same_rows = history.state if target.is_without_effect and target.change is not CHANGES["restore"] else None
            after = same_rows or target.change.after(history.state, seen, target.given)
            history.add(self.stored(there[0], target.branch).version, after)

    def require_unchanged(self, what: str, error: Exception) -> None:
        found = self.entries()
        assert found == self.shown, f"{what} was refused ({error}) and has changed {self.shown} to {found}"

    def stored(self, table: Table, branch: str | None = None) -> Any:
        """A table as plain pylance reads it."""
        dataset = self.lake.plain(table.uri)
        return dataset if branch is None else dataset.checkout_version((branch, None))

    def entries(self) -> dict[Names, tuple[str, tuple[int, ...]]]:
        """What the catalog lists of our names: locations and version numbers.

        Without tables that are only declared: files that a stale writer puts into a V1 directory declare one.
        """
        catalog = self.catalogs[0]
        found = {}
        for object_id in catalog.list_all_tables(include_declared=False):
            if object_id.names in self.names:
                request = ListTableVersionsRequest(id=list(object_id.names), descending=True)
                versions = self.namespace.list_table_versions(request).versions
                location = catalog.find_table(object_id.names).location
                found[object_id.names] = (location, tuple(version.version for version in versions))
        return found

    # -- creating and removing tables -------------------------------------------------------------------------------

    @operation(at=FEW, value=FEW, native=FLAG)
    def create(self, at: int, value: int, native: bool) -> None:
        name = self.pick(self.names, at)
        state = State().put([next(self.numbers) for _ in range(2)], value)
        rows = state.arrow
        occupied = self.is_occupied(name)

        def act() -> None:
            if native:
                lance.write_dataset(
                    rows,
                    namespace_client=self.namespace,
                    table_id=list(name),
                    mode="create",
                    storage_options=self.lake.native_options,
                )
            else:
                self.catalogs[value % 2].write(name, rows)

        if name in self.tables:
            self.require_refused(act, "create an existing table")
        elif self.attempt(act, may_refuse=occupied, what="create"):
            self.enter(name, state)

    @operation(has_tables, at=FEW)
    def drop(self, at: int) -> None:
        name = self.named(at)
        if name is None:
            return
        needed = self.is_source(self.tables[name])
        if self.attempt(lambda: self.catalogs[at % 2].drop_table(name), may_refuse=needed, what="drop"):
            self.forget_table(name)

    @operation(has_tables, at=FEW, value=FEW, native=FLAG, weight=2)
    def recreate(self, at: int, value: int, native: bool) -> None:
        name = self.named(at)
        if name is None:
            return
        self.drop(at)
        if name not in self.tables:
            self.shown = self.entries()
            self.create(self.names.index(name), value, native)

    @operation(has_tables, at=FEW, into=FEW)
    def rename(self, at: int, into: int) -> None:
        name, goal = self.named(at), self.free(into)
        if name is None or goal is None:
            return
        table = self.tables[name]
        needed = self.is_source(table)
        moves = self.mode == "compatible" and table.path.endswith(".lance") and "/" not in table.path
        may_refuse = self.mode == "v1" or self.is_occupied(goal) or (moves and (needed or bool(table.branches)))
        catalog = self.catalogs[at % 2]
        if self.attempt(lambda: catalog.rename_table(name, goal), may_refuse=may_refuse, what="rename"):
            del self.tables[name]
            self.tables[goal] = table
            found = catalog.find_table(goal)
            if found.location != table.path:
                self.outside = [clone for clone in self.outside if table not in clone.sources]
            table.path, table.uri = found.location, services_of(catalog).uri(found)

    @operation(has_tables, at=FEW)
    def deregister(self, at: int) -> None:
        name = self.named(at)
        if name is None:
            return
        if self.attempt(lambda: self.catalogs[at % 2].deregister_table(name), may_refuse=False, what="deregister"):
            self.left.append(self.tables.pop(name))
            self.left[-1].left = self.era

    @operation(has_left, at=FEW, into=FEW, weight=2)
    def register(self, at: int, into: int) -> None:
        name = self.free(into)
        if name is None or not self.left:
            return
        table = self.pick(self.left, at)
        act = lambda: self.catalogs[at % 2].register_table(name, table.path)  # noqa: E731 - reads better as one line
        fenced = 0 < table.left < self.era  # the catalog may be back at a store that the table was moved away from
        if self.attempt(act, may_refuse=self.mode == "v1" or self.is_occupied(name) or fenced, what="register"):
            self.left.remove(table)
            self.tables[name] = table

    @operation(has_tables, at=FEW, into=FEW, place=FEW, version=FEW, weight=2)
    def clone(self, at: int, into: int, place: int, version: int) -> None:
        """Make a shallow clone by plain pylance: outside of the catalog, or inside and enter it."""
        name, goal = self.named(at), self.free(into)
        if name is None or goal is None or self.is_occupied(goal):
            return
        table = self.tables[name]
        reference = self.pick(sorted(table.main.kept), version)
        number = next(self.numbers)
        listed = self.place_of(goal, None)
        inside = [listed] if self.mode == "v1" else [f"elsewhere{number}", f"sub/clone{number}", listed]
        chosen = self.pick([*inside, None], place)
        uri = f"{self.lake.outside}/{number}" if chosen is None else f"{self.lake.root}/{chosen}"
        source = self.lake.plain(table.uri)
        made = source.shallow_clone(uri, reference=reference, storage_options=self.lake.native_options)
        state, sources = table.main.versions[reference], table.sources | {table}
        self.sources |= sources
        if chosen is None:
            clone = Table(uri, uri, History({made.version: state}, {made.version}), sources=sources)
            self.outside.append(clone)
            return
        if self.mode != "v1":
            self.catalogs[at % 2].register_table(goal, chosen)
        self.enter(goal, state, sources)

    @operation(has_tables, at=FEW, into=FEW, version=FEW, deep=FLAG)
    def clone_by_name(self, at: int, into: int, version: int, deep: bool) -> None:
        """Clone a version through the catalog."""
        name, goal = self.named(at), self.free(into)
        if name is None or goal is None:
            return
        table = self.tables[name]
        reference = self.pick(sorted(table.main.kept), version)
        act = lambda: self.catalogs[at % 2].clone(name, goal, reference, deep=deep)  # noqa: E731 - as in `register`
        if self.attempt(act, may_refuse=self.is_occupied(goal), what="clone by name"):
            sources = frozenset() if deep else table.sources | {table}
            self.sources |= sources
            self.enter(goal, table.main.versions[reference], sources)
            self.tables[goal].originals = table.originals | {table}

    @operation(has_tables, at=FEW)
    def materialize(self, at: int) -> None:
        """Copy what a clone reads from other tables; its rows stay."""
        name = self.named(at)
        if name is None:
            return
        table = self.tables[name]
        committed = self.catalogs[at % 2].upkeep.materialize(name)
        expected = table.sources or table.is_tiered
        assert committed is None or expected, "a table that reads only its own files was materialized"
        if committed is not None:
            table.main.add(committed.version, table.main.state)

    # -- handles ----------------------------------------------------------------------------------------------------

    @operation(has_tables, at=FEW, branch=FEW, native=FLAG, old=FLAG, weight=2)
    def open(self, at: int, branch: int, native: bool, old: bool) -> None:
        """Open a table and keep the handle in the pool."""
        name = self.named(at)
        if name is None:
            return
        table = self.tables[name]
        of = self.pick([None, None, None, *table.branches], branch)
        history = table.history(of)
        assert history is not None
        version = min(history.kept) if old else None
        native &= of is None
        if native:
            dataset = lance.dataset(
                namespace_client=self.namespace,
                table_id=list(name),
                version=version,
                storage_options=self.lake.native_options,
            )
        else:
            dataset = self.catalogs[at % 2].open(name, version, branch=of)
        self.handles = [
            *self.handles[-5:],
            Handle(dataset, table, of, history, name, table.uri, self.era, native, self.kind),
        ]

    def adopt_heir(self, handle: Handle) -> None:
        """Let a handle of a deleted branch stand for its successor where both are the same version of the parent."""
        heir = handle.table.history(handle.branch)
        begin = handle.dataset.version
        if heir is None or not begin == min(heir.versions) == min(handle.history.versions):
            return
        if heir.versions[begin] == handle.history.versions[begin]:
            handle.history = heir

    def change(self, handle: Handle, name: str, value: int) -> None:
        if name == "compact" and handle.branch is not None:
            return  # pylance 14 looks for the index that it remaps in the parent's directory (docs/interoperability.md)
        if name == "compact" and handle.table.sources:
            return  # likewise in the directory of the source
        self.adopt_heir(handle)
        seen = handle.history.versions.get(handle.dataset.version)
        gone = not self.is_live(handle) or handle.uri != handle.table.uri
        removed = handle.dataset.version not in handle.history.kept
        if seen is None or (handle.kind == "none" and (gone or removed)):
            return  # without a commit store pylance commits past the catalog, and rebases on versions that it can read
        heirs = [table for table in self.tables.values() if table.uri == handle.uri and table is not handle.table]
        if handle.native and any(
            heir.sources & handle.table.sources or handle.table in heir.originals for heir in heirs
        ):
            return  # a clone names the files of its source, or has files of the same names (docs/found-faults.md)
        if handle.native and heirs and name in ("drop column", "rename column"):
            return  # pylance gives the latest version at its path the handle's columns (docs/found-faults.md)
        current = (
            self.is_live(handle)
            and handle.dataset.version == handle.history.latest
            and self.tables.get(handle.name) is handle.table
            and handle.uri == handle.table.uri  # else it moved, and came back under its name at another place
            and handle.era == self.era
        )
        if name == "compact" and not current:
            return  # pylance commits the reservation of fragments first, which stays if the compaction is refused
        given, change = self.given(seen, value), CHANGES[name]
        version = handle.dataset.version
        target = Target(
            handle.table, handle.uri, version, handle.branch, handle.history, change, given, seen, handle.native
        )
        stale = "" if current else " by a stale handle"
        accepted = self.commit(lambda: change.act(handle.dataset, given), [target], must=current, what=f"{name}{stale}")
        if accepted and not self.is_live(handle):  # the dataset is at a version of the table that took its place now
            self.handles = [other for other in self.handles if other is not handle]

    @operation(has_handles, at=FEW, change=CHANGE_NAMES, value=FEW, weight=4)
    def change_by_handle(self, at: int, change: str, value: int) -> None:
        if self.handles:
            self.change(self.pick(self.handles, at), change, value)

    @operation(has_tables, at=FEW, branch=FEW, change=CHANGE_NAMES, value=FEW, weight=3)
    def change_by_name(self, at: int, branch: int, change: str, value: int) -> None:
        """Open a table and change it at once."""
        if self.tables:
            pool, self.handles = self.handles, []
            self.open(at, branch, value % 2 == 0, False)
            [handle], self.handles = self.handles, pool
            self.change(handle, change, value)

    @operation(has_tables, at=FEW, branch=FEW, change=tuple(REQUESTS), value=FEW, weight=3)
    def change_by_request(self, at: int, branch: int, change: str, value: int) -> None:
        """Change a table by a request to the namespace."""
        name = self.named(at)
        if name is None:
            return
        table = self.tables[name]
        of = self.pick([None, None, *table.branches], branch)
        history = table.history(of)
        assert history is not None
        version = self.pick(sorted(history.kept), value) if change == "restore" else history.latest
        seen = history.versions[version]
        given = self.given(seen, value)
        target = Target(table, table.uri, version, of, history, CHANGES[change], given, seen)
        request = Request(self.namespace, {"id": list(name), "branch": of}, version, seen, given)
        self.commit(lambda: REQUESTS[change](request), [target], must=True, what=f"{change} by a request")

    @operation(has_handles, at=FEW)
    def read_handle(self, at: int) -> None:
        """A handle reads its version, whatever has happened since, or fails if the version was removed."""
        if not self.handles:
            return
        handle = self.pick(self.handles, at)
        version = handle.dataset.version
        try:
            found = content_of(handle.dataset)
        except REFUSALS:
            moved = handle.uri != handle.table.uri
            kept = self.is_live(handle) and not moved and version in handle.history.kept
            assert not kept, "a handle cannot read its version"
            return
        if version in handle.history.versions:
            assert found == handle.history.versions[version].content, "a handle reads other rows than those it opened"

    @operation(has_tables, at=FEW, mode=("append", "overwrite"), value=FEW)
    def write(self, at: int, mode: str, value: int) -> None:
        name = self.named(at)
        if name is None:
            return
        target = self.target(name, mode, value)
        rows = target.given.rows(target.seen.columns if mode == "append" else ("id", "value"))
        self.commit(lambda: self.catalogs[value % 2].write(name, rows, mode), [target], must=True, what=f"write {mode}")

    def target(self, name: Names, change: str, value: int) -> Target:
        table = self.tables[name]
        main, given = table.main, self.given(table.main.state, value)
        return Target(table, table.uri, main.latest, None, main, CHANGES[change], given, main.state)

    @operation(has_tables, at=FEW, value=FEW, concurrently=CONCURRENTLY, request=FLAG)
    def slow_append(self, at: int, value: int, concurrently: str, request: bool = False) -> None:
        """Append a stream of rows, in the middle of which the table is dropped, recreated, renamed or changed.

        ``request``: through the namespace.
        """
        name = self.named(at)
        if name is None or self.kind == "none":
            return
        target = self.target(name, "append", value)
        rows = target.given.rows(target.seen.columns)
        errors: list[BaseException] = []

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                index = sorted(self.tables).index(name)
                arguments = {"recreate": (value, False), "rename": (value,), "write": ("append", value)}
                getattr(self, concurrently)(index, *arguments.get(concurrently, ()))
                self.shown = self.entries()
            except BaseException as error:
                errors.append(error)
                raise
            yield from rows.to_batches()

        reader = pa.RecordBatchReader.from_batches(rows.schema, batches())

        def act() -> None:
            try:
                if request:
                    self.namespace.insert_stream(InsertIntoTableRequest(id=list(name), mode="append"), reader)
                else:
                    self.catalogs[value % 2].write(name, reader, "append")
            finally:
                if errors:
                    raise errors[0]

        must = concurrently == "write"
        # The namespace reads a small stream whole before it commits the rows.
        self.commit(act, [target], must=must, what=f"append during {concurrently}", by_name=name if request else None)

    # -- commits that are finished later ----------------------------------------------------------------------------

    @operation(has_tables, at=FEW, mode=("append", "overwrite"), value=FEW)
    def plan_write(self, at: int, mode: str, value: int) -> None:
        name = self.named(at)
        if name is None:
            return
        catalog, target = self.catalogs[value % 2], self.target(name, mode, value)
        rows = target.given.rows(target.seen.columns if mode == "append" else ("id", "value"))
        plan = catalog.begin_write(name, rows.schema, mode)
        fragments = write_fragments(
            rows, plan.uri, schema=plan.schema, mode=plan.fragment_mode, storage_options=dict(plan.storage_options)
        )
        finish = lambda: catalog.commit_fragments(plan, fragments)  # noqa: E731 - as in `register`
        self.pending.append(Pending([target], finish, lambda: catalog.abandon_write(plan)))

    @operation(has_tables, at=FEW, value=FEW)
    def stage(self, at: int, value: int) -> None:
        """Stage a commit whose outcome its writer does not know, and keep the token."""
        name = self.named(at)
        if name is None or self.kind == "none":
            return
        catalog, target = self.catalogs[value % 2], self.target(name, "append", value)
        rows = target.given.rows(target.seen.columns)
        plan = catalog.begin_write(name, rows.schema, "append")
        staged = directory_of(catalog).engine.stage(plan, directory_of(catalog).engine.write_fragments(plan, rows))
        root = directory_of(catalog).places.dataset_root(catalog.find_table(name))
        manifest, content = directory_of(catalog).commits.read_staged(
            root, staged.version, staged.path, staged.size, branch=False, check=directory_of(catalog).versions.check
        )
        token = CommitToken(recognizable(manifest, content))

        def finish() -> None:
            outcome = catalog.resolve(str(token))
            if not isinstance(outcome, Committed):
                raise lancekeep.VersionTaken(str(outcome))

        self.pending.append(Pending([target], finish))

    @operation(has_tables, at=FEW, other=FEW, value=FEW)
    def open_transaction(self, at: int, other: int, value: int) -> None:
        names = sorted(self.tables)
        if len(names) < 2 or self.kind not in ATOMIC:
            return
        first = self.pick(names, at)
        second = self.pick([name for name in names if name != first], other)
        catalog = self.catalogs[value % 2]
        if not all(catalog.describe_table(name).managed for name in (first, second)):
            return  # refused: test_managed_tables.py
        targets = [self.target(first, "append", value), self.target(second, "overwrite", value)]
        transaction = catalog.transaction()
        transaction.__enter__()
        transaction.write(first, targets[0].given.rows(targets[0].seen.columns), "append")
        transaction.write(second, targets[1].given.rows(("id", "value")), "overwrite")
        self.pending.append(Pending(targets, lambda: transaction.__exit__(None, None, None)))

    @operation(has_pending, at=FEW, weight=3)
    def finish(self, at: int) -> None:
        if not self.pending:
            return
        pending = self.pick(self.pending, at)
        self.pending.remove(pending)
        targets = pending.targets
        if self.kind == "none" and not all(map(self.is_live, targets)):
            return
        self.commit(pending.finish, targets, must=False, what="finish a commit")

    # -- branches and tags ------------------------------------------------------------------------------------------

    @operation(has_tables, at=FEW, branch=FEW, request=FLAG)
    def create_branch(self, at: int, branch: int = 0, request: bool = False) -> None:
        name = self.named(at)
        if name is None:
            return
        table, chosen = self.tables[name], self.pick(BRANCHES, branch)
        if chosen in table.branches:
            return
        version = table.main.latest

        def act() -> None:
            if request:
                self.namespace.create_table_branch({"id": list(name), "name": chosen})
            else:
                self.catalogs[at % 2].open(name).create_branch(chosen)

        self.attempt(act, may_refuse=False, what="create a branch")
        history = History()
        table.branches[chosen], table.parents[chosen] = history, version
        history.versions[self.stored(table, chosen).version] = table.main.state
        history.kept.add(history.latest)

    @operation(has_tables, at=FEW, branch=FEW, again=FLAG, request=FLAG)
    def delete_branch(self, at: int, branch: int, again: bool, request: bool = False) -> None:
        name = self.named(at)
        if name is None or not self.tables[name].branches:
            return
        table = self.tables[name]
        chosen = self.pick(sorted(table.branches), branch)
        for tag, (of, _) in list(table.tags.items()):
            if of == chosen:
                self.catalogs[0].open(name).tags.delete(tag)
                del table.tags[tag]
        if request:
            self.namespace.delete_table_branch({"id": list(name), "name": chosen})
        else:
            self.catalogs[at % 2].open(name).branches.delete(chosen)
        del table.branches[chosen], table.parents[chosen]
        if again:
            self.create_branch(at, BRANCHES.index(chosen), request)

    @operation(has_tables, at=FEW, tag=FEW, branch=FEW, version=FEW, request=FLAG)
    def tag(self, at: int, tag: int, branch: int, version: int, request: bool = False) -> None:
        """Create a tag, or delete the one of that name."""
        name = self.named(at)
        if name is None:
            return
        table, chosen = self.tables[name], self.pick(TAGS, tag)
        tags, fields = self.catalogs[at % 2].open(name).tags, {"id": list(name), "tag": chosen}
        if chosen in table.tags:
            if request:
                self.namespace.delete_table_tag(fields)
            else:
                tags.delete(chosen)
            del table.tags[chosen]
            return
        of = self.pick([None, *table.branches], branch)
        history = table.history(of)
        assert history is not None
        target = self.pick(sorted(history.kept), version)
        if request:
            self.namespace.create_table_tag({**fields, "version": target, "branch": of})
        else:
            tags.create(chosen, target if of is None else (of, target))
        table.tags[chosen] = (of, target)

    # -- upkeep -----------------------------------------------------------------------------------------------------

    @operation(what=UPKEEP, at=FEW, flag=FLAG, weight=3)
    def upkeep(self, what: str, at: int, flag: bool) -> None:
        """Rules that are always possible, as one, so that they do not crowd out the others."""
        getattr(self, what)(at, flag)

    def settle_grace(self) -> None:
        """An operation with a grace period of 0 may remove what writers have prepared, as documented."""
        self.pending.clear()

    def cleanup(self, at: int, keep_two: bool = False) -> None:
        report = self.catalogs[at % 2].upkeep.cleanup(NOW, keep=2 if keep_two else 1, grace=NOW)
        assert not report.skipped, report
        OUTCOMES["clean up: versions"] += report.versions
        self.settle_grace()
        self.outside.clear()  # documented: clones outside of the catalog are not known
        for table in self.tables.values():
            table.clean_up()
            table.detached.clear()
        self.judge(everything=True)

    def repair(self, at: int, remove_tables: bool = False) -> None:
        self.catalogs[at % 2].upkeep.fsck(repair=True, grace=0, deep=at % 3 > 0, remove_tables=remove_tables)
        self.settle_grace()
        if remove_tables:
            removed = {table for table in self.left if not self.lake.holds(f"{table.path}/_versions")}
            self.left = [table for table in self.left if table not in removed]
            self.outside = [clone for clone in self.outside if not removed & clone.sources]  # the catalog knows none
        self.judge(everything=True)

    def migrate(self, at: int, optimize: bool = False) -> None:
        if optimize and self.mode != "v1":
            self.catalogs[at % 2].upkeep.optimize()
        elif self.mode == "compatible":
            self.catalogs[at % 2].upkeep.migrate()

    def reopen(self, at: int, namespace: bool = False) -> None:
        if namespace:
            self.namespace = self.lake.namespace()
        else:
            self.catalogs[at % 2] = self.lake.connect()

    def change_commit_store(self, at: int, back: bool = False) -> None:
        """Move to another commit store, or back to one that the catalog has left before."""
        left = [url for url in self.stores if url != self.lake.store]
        back = back and bool(left)
        store = left[0] if back else self.lake.new_store(self.pick(sorted(REMEMBERING - {"redis"}), at))
        self.stores[str(self.lake.store)] = self.lake.kind
        assert store is not None
        if self.attempt(
            lambda: self.catalogs[0].upkeep.change_commit_store(store), may_refuse=back, what="change store"
        ):
            self.lake.store, self.lake.kind = store, store.partition(":")[0]
            self.era += 1
            self.open_catalogs()

    # -- what is outside of the protocol ----------------------------------------------------------------------------

    def put_foreign_file(self, at: int, again: bool = False) -> None:
        path = self.pick(FOREIGN, at)
        if not self.tables:
            return  # in an empty root `photos.lance` would be a table of an unmanaged V1 catalog
        self.foreign[path] = f"file {next(self.numbers)}".encode()
        self.lake.put(path, self.foreign[path])

    @operation(has_tables, at=FEW, value=FEW, branch=FEW)
    def write_past_the_store(self, at: int, value: int, branch: int) -> None:
        """Append by a native writer without the commit store."""
        name = self.named(at)
        if name is None:
            return
        table = self.tables[name]
        of = self.pick([None, *table.branches], branch)
        history = table.history(of)
        assert history is not None
        given = self.given(history.state, value)
        dataset = self.stored(table, of)
        dataset.insert(given.rows(history.state.columns))
        history.add(dataset.version, CHANGES["append"].after(history.state, history.state, given))
        OUTCOMES["bypass: done"] += 1

    @operation(has_tables, at=FEW, rows=(1, 2, 3), branch=FEW)
    def lose_rows(self, at: int, rows: int, branch: int) -> None:
        """Lose the last rows of a table in the commit store, as after a restart from a snapshot."""
        name = self.named(at)
        if name is None or self.kind not in REMEMBERING:
            return
        table = self.tables[name]
        of = self.pick([None, *table.branches], branch)
        history = table.history(of)
        assert history is not None
        catalog = self.catalogs[0]
        root = directory_of(catalog).places.dataset_root(catalog.find_table(name)).branch(of)
        known = directory_of(catalog).commits.rows.list(root.base_uri, after=None, limit=rows + 1, descending=True)
        last = known[:rows]
        gap = any(later.version != row.version + 1 for later, row in pairwise(known))
        if len(known) > rows and (gap or known[rows].version not in history.kept):
            return  # a backup older than a clean-up (docs/commit-stores.md): readers do not look beyond a gap
        directory_of(catalog).commits.rows.delete(root.base_uri, [row.version for row in last])
        OUTCOMES["lost rows"] += len(last)

    # -- the judge --------------------------------------------------------------------------------------------------

    @invariant()
    def check(self) -> None:
        if getattr(self, "catalogs", None):
            self.steps += 1
            self.judge(everything=False)
            self.shown = self.entries()

    def judge(self, *, everything: bool) -> None:
        """Read all that there is and compare it with the model."""
        if everything or self.steps % 8 == 0:
            self.require_undamaged()
        listed = self.catalogs[self.steps % 2].list_all_tables(include_declared=False)
        found = {entry.names for entry in listed if entry.names in self.names}
        assert found == set(self.tables), f"the catalog lists {found} where {set(self.tables)} are"
        for name, table in self.tables.items():
            self.judge_table(table)
            self.judge_entry(name, table)
            if everything:
                self.judge_versions(name, table)
        dropped = [table for _, _, table in self.dropped]
        for table in (*self.left, *dropped, *self.outside):
            self.judge_table(table)
        drops = {(each.id.names, each.drop) for each in self.catalogs[self.steps % 2].list_dropped()}
        assert drops == {(name, drop) for name, drop, _ in self.dropped}, f"{drops} can be brought back"
        self.judge_view()
        self.judge_neighbours()
        for path, content in self.foreign.items():
            assert self.lake.get(path) == content, f"the foreign file {path} has changed"

    def require_undamaged(self) -> None:
        """The deep check must find every file that a version names, and nothing that is damaged."""
        report = self.catalogs[self.steps % 2].upkeep.fsck(deep=True)
        wrong = [finding for finding in report.findings if finding.kind in DAMAGE]
        assert not wrong, f"fsck finds damage in a healthy catalog: {wrong}"
        problems = problems_in(self.catalogs[self.steps % 2])
        assert not problems, f"verify finds problems in a healthy catalog: {problems}"

    def judge_table(self, table: Table) -> None:
        """Read a table, its branches and tags by plain pylance."""
        dataset = self.lake.plain(table.uri)
        self.require(dataset, table.main, f"{table.path}, by plain pylance")
        for number, state in table.detached.items():
            found = content_of(self.lake.plain(table.uri, number))
            same(found, state.content, f"{table.path}, detached version {number}")
        for branch, history in table.branches.items():
            place = f"{table.path}, branch {branch}, by plain pylance"
            self.require(dataset.checkout_version((branch, None)), history, place)
        for tag, (of, version) in table.tags.items():
            history = table.history(of)  # type: ignore[assignment] # a tag's branch is there
            expected = history.versions[version].content
            same(content_of(self.lake.plain(table.uri, tag)), expected, f"{table.path}, tag {tag}, by plain pylance")

    def judge_entry(self, name: Names, table: Table) -> None:
        """Read a table through the catalog and through the namespace; each step by another catalog."""
        catalog, place = self.catalogs[self.steps % 2], ".".join(name)
        if self.steps % 3:
            self.require(catalog.open(name), table.main, f"{place}, by the catalog")
        else:
            options = self.lake.native_options
            through = lance.dataset(namespace_client=self.namespace, table_id=list(name), storage_options=options)
            self.require(through, table.main, f"{place}, by the namespace")
        for branch, history in table.branches.items():
            self.require(catalog.open(name, branch=branch), history, f"{place}, branch {branch}, by the catalog")
        for tag, (of, version) in table.tags.items():
            history = table.history(of)  # type: ignore[assignment] # a tag's branch is there
            same(content_of(catalog.open(name, tag=tag)), history.versions[version].content, f"{place}, tag {tag}")
        request = ListTableVersionsRequest(id=list(name), descending=True)
        listed = [version.version for version in self.namespace.list_table_versions(request).versions]
        assert listed[:1] == [table.main.latest], f"{place}: {listed} are listed, and {table.main.latest} is latest"
        missing = table.main.kept - set(listed)
        assert not missing, f"{place}: versions {missing} are not listed"

    def judge_versions(self, name: Names, table: Table) -> None:
        """Read every version that must be there."""
        for branch in (None, *table.branches):
            history = table.history(branch)
            assert history is not None
            dataset = self.stored(table, branch)
            self.require_transactions(name, branch, history)
            for version in history.kept:
                expected = history.versions[version].content
                place = f"{'.'.join(name)}, branch {branch}, version {version}"
                same(content_of(dataset.checkout_version((branch, version))), expected, place)
                same(content_of(self.catalogs[1].open(name, version, branch=branch)), expected, f"{place}, catalog")

    def require_transactions(self, name: Names, branch: str | None, history: History) -> None:
        """Each version must have the transaction file that it names, and agree with it and the version before."""
        catalog = self.catalogs[0]
        root = directory_of(catalog).places.dataset_root(catalog.find_table(name)).branch(branch)
        commits = directory_of(catalog).commits
        for version in history.kept:
            row = commits.get(root, version)
            assert row is not None
            kept = Version(root, version, row.path)
            decoded = examine(commits, kept)
            file = decoded.manifest.transaction_file
            place = f"{name}, branch {branch}, version {version}"
            assert not file or commits.objects.head(f"{root.key}/{TRANSACTIONS}/{file}"), f"{place}: {file} is missing"
            said = contradiction(commits, kept, decoded)
            assert not said, f"{place}: {said}"

    def require(self, dataset: Any, history: History, place: str) -> None:
        assert dataset.version == history.latest, f"{place}: version {dataset.version}, expected {history.latest}"
        same(content_of(dataset), history.state.content, place)
        for number in list(history.state.rows)[:1]:
            assert dataset.count_rows(f"id = {number}") == 1, f"{place}: the row {number} is not found"
        self.require_indexes(dataset, history, place)

    def require_indexes(self, dataset: Any, history: History, place: str) -> None:
        """Every indexed answer must equal the scan, also for values that rows had in the last versions."""
        indexed = {field for index in dataset.describe_indices() for field in index.field_names}
        columns = history.state.columns
        recent = [history.versions[version] for version in sorted(history.versions)[-4:]]
        for column in indexed & set(columns):
            states = [state for state in recent if column in state.columns]
            values = {row[state.columns.index(column)] for state in states for row in state.rows.values()}
            for value in values - {None}:
                filter_ = f"{column} = {value}"
                by_index, by_scan = (
                    sorted(dataset.to_table(["id"], filter_, use_scalar_index=indexed)["id"].to_pylist())
                    for indexed in (True, False)
                )
                assert by_index == by_scan, f"{place}: {filter_} finds {by_index} by index, {by_scan} by scan"


def same(found: Content, expected: Content, place: str) -> None:
    assert found == expected, f"{place}: {found}, expected {expected}"
