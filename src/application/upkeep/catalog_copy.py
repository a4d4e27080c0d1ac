"""The copy of a catalog from one home of its entries to another (ADR 132).

The directories of the tables stay where they are. Writers continue while entries are copied; then the source refuses
all operations, and the entries that changed since follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import attrs

from lancekeep.application.concurrency import all_alongside
from lancekeep.application.entries.clones import Clones
from lancekeep.application.entries.ledger import COMMIT_STORE_PROPERTY, Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.upkeep.commit_store_move import move_to
from lancekeep.application.upkeep.compared_homes import Compared
from lancekeep.application.upkeep.copy_plan import Home, Obstacles, batches, name_of
from lancekeep.application.upkeep.copy_report import CatalogCopy, Obstacle
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.application.upkeep.migration import migrate
from lancekeep.domain.catalog import (
    AddColumns,
    CatalogView,
    Change,
    Put,
    Remove,
    SetProperties,
)
from lancekeep.domain.dropped import is_record
from lancekeep.domain.errors import (
    ConcurrentModification,
    Damaged,
    LancekeepError,
    Refused,
    Retryable,
)
from lancekeep.domain.home_copy import (
    MOVED_PROPERTY,
    NO_POSITIONS,
    Ends,
    Stage,
    all_entries,
    begun,
    changes_between,
    compared_until,
    copied,
    copied_properties,
    fenced,
    live,
    positions_of,
    require_no_move,
    stage_of,
    unfenced,
    withdrawn,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.identity import IDENTITY_PROPERTY, identity_in
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.table import MARKER_CONTENT, Table
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.manifest_store import Decision

_BATCH = 1000
"""Entries per atomic change of the target."""
_ROUNDS = 5
"""The most comparisons before the fence; with many writers the last changes follow after the fence."""
_FEW = 100
"""Changes that may remain for the time after the fence."""
_STEPS = 100
"""The same if the target makes one change after the other."""
_NAMED = 10
"""Obstacles that an error names."""


class HomeCopy:
    """The copy of one catalog.

    Args:
        ledger: The catalog at its source.
        places: The directories of the catalog.
        clones: The records of clones.
        source: The home that the catalog leaves.
        target: The home that it gets.
        copier: A random name of this copy's process.
    """

    def __init__(self, ledger: Ledger, places: Places, clones: Clones, source: Home, target: Home, copier: str) -> None:
        self._ledger = ledger
        self._places = places
        self._clones = clones
        self._source = source
        self._target = target
        self._ends = Ends(source.name, target.name)
        self._copier = copier
        self._compared = Compared(source.store, target.store, ledger.commits.retry)
        self._entered: set[str] = set()  # namespaces that this copy created, if other software has namespaces, too
        self._fenced = False  # whether the source refuses operations
        self._ended = False  # whether this process gave the copy up
        self._alone = False  # whether no other process has entered tables in a server
        self._retry = ledger.commits.retry
        self._obstacles = Obstacles(ledger, places, source, target)

    # -- the whole ----------------------------------------------------------------------------------------------

    def run(
        self,
        rows: ExternalCommitStore | None,
        *,
        writers_stopped: bool,
        dry_run: bool,
        progress: Progress,
    ) -> CatalogCopy:
        """Copy the catalog; see `lancekeep.copy_catalog`.

        Args:
            rows: The commit store to which the versions move afterwards; None if they stay.
            writers_stopped: The caller promises that no process changes the catalog in the source.
            dry_run: Change nothing.
            progress: Called before each step.
        """
        stage = self._stage()
        if stage is Stage.GIVEN_UP:
            raise Refused(
                f"the copy from {self._ends.source} to {self._ends.target} was given up, and not to the end: pass "
                "give_up=True (--give-up) again"
            )
        self._require_fence(writers_stopped)
        if stage in (Stage.NEW, Stage.LEFT, Stage.BEGUN):
            if not dry_run:
                self._enter_directories()
            report = self._plan(rows, dry_run=dry_run, progress=progress)
            if dry_run:
                return report
            self._require_possible(report)
            self._copy_while_writers_continue(progress)
            stage = Stage.FENCED
        elif dry_run:
            return self._report(self._view_of(self._source), (), rows, done=stage is Stage.DONE, dry_run=True)
        elif stage is Stage.FENCED:
            views = (self._view_of(home).properties for home in (self._source, self._target))
            self._compared.begin_at(positions_of(self._ends, *views))
        if stage is Stage.FENCED:
            progress(3, 5, "fence")  # also if only a part of the source has it: a directory without its manifest table
            self._apply(self._source, partial(fenced, ends=self._ends))
            self._fenced = True
            with self._saying_what_to_do():
                self._finish(progress)
        else:
            self._target.take_root(self._view_of(self._target))
        moved = 0 if rows is None else self._move_versions(rows, progress)
        counted = self._source if self._target.served else self._target  # do not read the server once more
        report = self._report(self._view_of(counted), (), rows, done=True, dry_run=False)
        return attrs.evolve(report, rows=moved)

    def _move_versions(self, rows: ExternalCommitStore, progress: Progress) -> int:
        """Move the versions to another commit store; return the number of rows."""
        if self._view_of(self._target).properties.get(COMMIT_STORE_PROPERTY) == rows.url:
            return 0
        progress(5, 5, "versions")
        return move_to(rows, self._ledger.at(self._target.store), self._places)

    def give_up(self, *, dry_run: bool) -> CatalogCopy:
        """End an unfinished copy; the source stays the home.

        Raises:
            Refused: There is no unfinished copy.
        """
        stage = self._stage()
        if stage in (Stage.NEW, Stage.DONE):
            state = "has not begun" if stage is Stage.NEW else f"is finished: {self._ends.target} is the home"
            raise Refused(f"the copy from {self._ends.source} to {self._ends.target} {state}; nothing was changed")
        if not dry_run:
            with self._saying_what_to_do():
                self._fenced = stage is not Stage.BEGUN
                self._withdraw()
        return self._report(self._view_of(self._source), (), None, done=False, dry_run=dry_run)

    @contextmanager
    def _saying_what_to_do(self) -> Iterator[None]:
        """Add to an error how the source becomes usable again, unless it is."""
        try:
            yield
        except ConcurrentModification:
            raise  # another process continues, or the message says what to do
        except LancekeepError as error:
            if self._fenced:
                gone = " If the server is gone permanently, also set its option gone=true."
                error.add_note(
                    f"{self._ends.source} refuses all operations until the copy is complete. Call copy_catalog again, "
                    f"or end the copy with give_up=True (--give-up).{gone if self._target.served else ''}"
                )
            elif self._ended:
                error.add_note(f"The copy was ended; {self._ends.source} is the home of the catalog.")
            raise

    def _withdraw(self, copier: str | None = None) -> None:
        """Make the target remains of the source before the source permits operations again.

        The tables that a server shows leave it, too.

        Args:
            copier: The process that must still make the copy; None for any.
        """
        decide = partial(withdrawn, ends=self._ends, identity=self._identity(), copier=copier)
        if MOVED_PROPERTY not in self._apply(self._target, decide).properties:
            raise Refused(f"{self._ends.target} has become the home of the catalog since; nothing was changed")
        source = self._view_of(self._source)
        if MOVED_PROPERTY in source.properties:  # the entries of a server follow the fence
            self._retry.call(partial(self._target.leave, tuple(source.all_of(TABLE)), self._alone))
        self._source.take_root(self._view_of(self._source))
        self._apply(self._source, partial(unfenced, ends=self._ends))
        self._fenced, self._ended = False, True

    # -- the plan -----------------------------------------------------------------------------------------------

    def _stage(self) -> Stage:
        source, target = self._view_of(self._source), self._view_of(self._target)
        require_no_move(source.properties, self._ends.source)
        return stage_of(self._ends, source.properties, target.properties, occupied=self._target.occupied(target))

    def _require_fence(self, writers_stopped: bool) -> None:
        guarantees = self._source.store.guarantees
        if not guarantees.ordered and not writers_stopped:
            raise guarantees.refusal(
                "cannot refuse writers atomically. Stop every process that changes the catalog, then pass "
                "writers_stopped=True (--writers-stopped); nothing was changed"
            )

    def _enter_directories(self) -> None:
        """Enter the tables that are only directories, so that the fence covers them."""
        guarantees = self._ledger.guarantees
        if guarantees.lists_directories and guarantees.locations:
            migrate(self._ledger, self._places, self._clones, dry_run=False, batch=_BATCH, progress=None)

    def _plan(self, rows: ExternalCommitStore | None, *, dry_run: bool, progress: Progress) -> CatalogCopy:
        progress(0, 5, "plan")
        view = self._view_of(self._source)
        identity = identity_in(view.properties)
        if identity is not None:
            identity.require_at(self._places.root_uri)
        if rows is not None:
            rows.latest(self._places.probe_uri)  # an unreachable store must not stop the copy in the middle
        return self._report(view, tuple(self._obstacles.of(view)), rows, done=False, dry_run=dry_run)

    def _require_possible(self, report: CatalogCopy) -> None:
        if report.obstacles:
            named = "; ".join(f"{each.name}: {each.reason}" for each in report.obstacles[:_NAMED])
            more = len(report.obstacles) - _NAMED
            raise Refused(
                f"{self._ends.target} cannot hold the catalog of {self._ends.source}: {named}"
                + (f"; and {more} more" if more > 0 else "")
                + ". Nothing was copied"
            )

    # -- copying ------------------------------------------------------------------------------------------------

    def _copy_while_writers_continue(self, progress: Progress) -> None:
        """Begin the copy, and repeat it until few changes of other writers remain."""
        progress(1, 5, "begin")
        self._begin(fenced=False)
        if self._target.served:
            self._alone = True
            return
        for _ in range(_ROUNDS):
            progress(2, 5, "entries")
            self._compared.begin()
            if self._round(self._view_of(self._source)) <= _FEW:
                break
        self._target.show_tables(self._view_of(self._target), None)
        if self._compared.positions != NO_POSITIONS:
            self._apply(
                self._target,
                partial(compared_until, ends=self._ends, copier=self._copier, compared=self._compared.positions),
            )

    def _begin(self, *, fenced: bool) -> None:
        """Begin the copy in the target, or take it over."""
        decide = partial(begun, ends=self._ends, copier=self._copier, identity=self._identity(), fenced=fenced)
        self._apply(self._target, decide)

    def _identity(self) -> dict[str, str]:
        properties = self._view_of(self._source).properties
        return {name: properties[name] for name in (IDENTITY_PROPERTY,) if name in properties}

    def _round(self, view: CatalogView, ids: Sequence[str] | None = None) -> int:
        """Give the target the entries of a view of the source; return the number of changes.

        Args:
            view: The source.
            ids: The entries that may differ, in byte order; None for all.
        """
        target = self._view_of(self._target)
        guarantees = self._target.store.guarantees
        made = 0
        size = _BATCH if guarantees.atomic_changes else _STEPS
        ordered = _removals_first if self._target.served else _parents_last
        for batch in batches(ordered(self._changes(view, target, ids)), size):
            for change in batch:
                if isinstance(change, Put):
                    reason = self._obstacles.reason(change.entry)
                    if reason is not None:
                        raise Refused(
                            f"{self._ends.target} cannot hold {name_of(change.entry)}, which was created during the "
                            f"copy: {reason}. {self._ends.source} is the home of the catalog"
                        )
                    if guarantees.shared and target.find(change.entry.object_id) is None:
                        self._entered.add(change.entry.object_id)
            if guarantees.marks_declared and not self._source.store.guarantees.marks_declared:
                put = (change.entry for change in batch if isinstance(change, Put))
                list(all_alongside(self._mark_declared, (entry for entry in put if entry.object_type == TABLE)))
            self._apply(self._target, partial(copied, ends=self._ends, copier=self._copier, changes=batch))
            made += len(batch)
        return made

    def _mark_declared(self, entry: ManifestEntry) -> None:
        """Give an empty directory the marker of a declared table."""
        table = Table.from_entry(entry)
        objects, marker = self._places.objects, self._places.reserved_marker(table)
        if not self._retry.call(partial(self._places.is_occupied, table)):
            self._retry.call(partial(objects.put, marker, MARKER_CONTENT))

    def _changes(self, view: CatalogView, target: CatalogView, ids: Sequence[str] | None) -> Iterator[Change]:
        guarantees = self._target.store.guarantees
        if guarantees.columns:
            columns = {name: kind for name, kind in view.columns.items() if target.columns.get(name) != kind}
            if columns:
                yield AddColumns(columns)
        wanted = copied_properties(view.properties, guarantees)
        present = copied_properties(target.properties, guarantees)
        differing = {name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name)}
        if differing:
            yield SetProperties({name: wanted.get(name) for name in differing})
        wanted_entries, present_entries = (
            all_entries(each) if ids is None else _found(each, ids) for each in (view, target)
        )
        yield from changes_between(wanted_entries, present_entries, guarantees, self._may_remove)

    def _may_remove(self, entry: ManifestEntry) -> bool:
        if not self._target.store.guarantees.shared or entry.object_id in self._entered or is_record(entry):
            return True
        return entry.object_type == TABLE and self._target.may_remove(entry)

    # -- the change of the home ---------------------------------------------------------------------------------

    def _finish(self, progress: Progress) -> None:
        """Copy the last changes, and make the target the home."""
        self._begin(fenced=True)
        progress(4, 5, "last changes")
        view, changed = self._view_of(self._source), self._compared.changed()
        try:
            self._round(view, changed)
            again = self._round(view, None if changed is None else self._compared.changed())
        except LancekeepError as error:
            if not isinstance(error, Retryable):
                self._withdraw(self._copier)
            raise
        if again:
            raise Damaged(
                f"{self._ends.target} does not hold what was copied to it from {self._ends.source}: another process "
                "writes there. Stop it, then call copy_catalog again"
            )
        self._target.show_tables(self._view_of(self._target), self._compared.changed_locations())
        self._target.take_root(self._view_of(self._target))
        self._apply(self._target, partial(live, ends=self._ends, copier=self._copier))

    # -- reporting ----------------------------------------------------------------------------------------------

    def _report(
        self,
        view: CatalogView,
        obstacles: tuple[Obstacle, ...],
        rows: ExternalCommitStore | None,
        *,
        done: bool,
        dry_run: bool,
    ) -> CatalogCopy:
        counts = dict.fromkeys((NAMESPACE, TABLE, "dropped", ""), 0)
        for entry in view.descendants(ObjectId()):
            known = entry.object_type if entry.object_type in counts else ""
            counts["dropped" if is_record(entry) else known] += 1
        kept = copied_properties(view.properties, self._target.store.guarantees)
        return CatalogCopy(
            self._ends.source,
            self._ends.target,
            counts[NAMESPACE],
            counts[TABLE],
            counts["dropped"],
            counts[""],
            len(kept),
            obstacles,
            None if rows is None else rows.url,
            0,
            done,
            dry_run,
        )

    def _view_of(self, home: Home) -> CatalogView:
        return self._retry.call(home.store.view)

    def _apply(self, home: Home, decide: Decision[None]) -> CatalogView:
        view, _ = self._retry.call(partial(home.store.apply, decide))
        return view


def _found(view: CatalogView, ids: Iterable[str]) -> Iterator[ManifestEntry]:
    return filter(None, map(view.find, ids))


def _parents_last(changes: Iterable[Change]) -> Iterator[Change]:
    """Order changes so that no namespace is removed before what is in it."""
    removed = []
    for change in changes:
        if isinstance(change, Remove):
            removed.append(change)
        else:
            yield change
    yield from reversed(removed)


def _removals_first(changes: Iterable[Change]) -> Iterator[Change]:
    """Order changes so that a directory is free before another name gets it."""
    return iter(sorted(changes, key=lambda change: not isinstance(change, Remove)))
