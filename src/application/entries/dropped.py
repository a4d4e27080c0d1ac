"""Dropped tables that can be brought back (ADR 109).

The methods of `Catalog` with similar names document these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import attrs

from lancekeep.application.entries.ledger import Ledger, once
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.removal import Removal
from lancekeep.domain.catalog import CatalogView, Change, Remove
from lancekeep.domain.dropped import (
    DropRecord,
    drop_table,
    dropped_tables,
    find_dropped,
    kept_for,
    purge_table,
    record_drop,
    undrop_table,
)
from lancekeep.domain.errors import InvalidInput, Refused, TableNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.notebook import Shown
from lancekeep.domain.table import Table, find_table, v1_table
from lancekeep.ports.object_store import StorageTime

ADVICE = "`lancekeep purge --force` (purge(force=True)) removes it all the same; the clones cannot be read afterwards."


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen
class DroppedTable(Shown):
    """A dropped table that can be brought back.

    Attributes:
        id: The identifier that the table had.
        drop: The name of this drop, which tells dropped tables of one identifier apart.
        location: The directory of the table, relative to the root.
        properties: The properties of the table.
        at: When it was dropped.
        until: When `Upkeep.cleanup` may remove its files.
        by: Who dropped it; the ``committer`` of `lancekeep.connect`.
        is_purging: Whether the removal of its files has begun. It cannot be brought back then.
    """

    id: ObjectId
    drop: str
    location: str
    properties: Mapping[str, str]
    at: datetime
    until: datetime
    by: str
    is_purging: bool


class DroppedTables:
    """Drops tables, brings them back, and purges them.

    Args:
        ledger: The entries.
        places: The directories.
        removal: Removes the files.
        now: A clock, for storage whose replies state no time.
    """

    def __init__(
        self, ledger: Ledger, places: Places, removal: Removal, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._ledger = ledger
        self._places = places
        self._removal = removal
        self._now = now

    def spans(self, tables: Sequence[Table], keep: timedelta | float | None) -> Mapping[ObjectId, int]:
        """Return how long tables stay after their drop.

        Tables that are removed at once are left out. A table without a version has nothing to bring back.
        """
        catalog, given = self._ledger.view().properties, None if keep is None else microseconds(keep)
        spans = {table.id: kept_for(given, catalog, table.properties) for table in tables}
        return {table.id: spans[table.id] for table in tables if spans[table.id] and self._is_written(table)}

    def drop(self, table: Table, keep: int) -> Table:
        """Record a table as dropped, in the change that removes its entry."""
        at, by = self.now(), self._ledger.commits.committer
        self._removal.record_listed(table.id)

        def decide(view: CatalogView) -> tuple[list[Change], Table]:
            return drop_table(view, table, at, keep, by), find_table(view, table.id)

        return self._ledger.apply(decide, effect=lambda dropped: dropped)

    def records_of(
        self, tables: Sequence[Table], keep: Mapping[ObjectId, int], at: int, view: CatalogView
    ) -> list[Change]:
        """Return the records of those tables of a dropped namespace that stay."""
        by = self._ledger.commits.committer
        return [record_drop(view, table, at, keep[table.id], by) for table in tables if table.id in keep]

    def list(self, below: ObjectId) -> list[DroppedTable]:
        return [_shown(each) for each in dropped_tables(self._ledger.view(), below)]

    @once(Table)
    def undrop(self, object_id: ObjectId, target: ObjectId, drop: str | datetime | None) -> Table:
        which = _since_epoch(drop) if isinstance(drop, datetime) else drop

        def decide(view: CatalogView) -> tuple[list[Change], Table]:
            record, entered = undrop_table(view, find_dropped(view, object_id, which), target)
            return [record, entered], Table.from_entry(entered.entry)

        return self._ledger.apply(decide, effect=lambda entered: entered)

    def purge(self, object_id: ObjectId, drop: str | datetime | None, *, force: bool) -> DroppedTable:
        which = _since_epoch(drop) if isinstance(drop, datetime) else drop
        dropped = find_dropped(self._ledger.view(), object_id, which)
        self._purge(dropped, force=force)
        return _shown(dropped)

    def complete(self, record: DropRecord) -> None:
        """Complete a purge that has begun."""
        self._purge(record, force=False)

    def purge_expired(self, *, dry_run: bool) -> Iterator[tuple[DroppedTable, str]]:
        """Purge the tables whose time is over.

        Yield each with the reason why it stays, which is empty if it is removed. A clone is purged before its source,
        whose files it reads.
        """
        now = self.now()
        waiting = [
            each for each in dropped_tables(self._ledger.view(), ObjectId()) if each.is_over(now) or each.is_purging
        ]
        if dry_run:
            yield from ((_shown(each), "") for each in waiting)
            return
        while waiting:
            refused: list[tuple[DropRecord, str]] = []
            for each in waiting:
                try:
                    self._purge(each, force=False)
                except TableNotFound:
                    continue  # it was brought back, or another process has purged it
                except Refused as error:
                    refused.append((each, str(error)))
                else:
                    yield _shown(each), ""
            if len(refused) == len(waiting):
                yield from ((_shown(each), reason) for each, reason in refused)
                return
            waiting = [each for each, _ in refused]

    def now(self) -> int:
        """Return the time in replies of the storage; without one, the time of the clock."""
        with StorageTime() as answered:
            self._ledger.view()
        return _since_epoch(answered.last or self._now())

    def _purge(self, dropped: DropRecord, *, force: bool) -> None:
        """Remove a dropped table: mark its record, remove the files, remove the record.

        If it is interrupted, the same call completes it.
        """
        table = dropped.table
        self._places.dataset_root(table)
        if not force:
            self._removal.refuse_needed([table], ADVICE)
        if self._ledger.guarantees.lists_directories and v1_table(table.location) is not None:
            self._require_hidden(table)
        self._mark(dropped, begins=True)
        if not force and (clones := self._removal.recorded_readers(table)):
            self._mark(dropped, begins=False)
            raise self._removal.needed(table, clones, ADVICE)
        self._removal.remove(table, record=dropped.key)
        self._ledger.apply(lambda view: ([Remove(dropped.key)] if view.find(dropped.key) else [], None))

    def _mark(self, dropped: DropRecord, *, begins: bool) -> None:
        self._ledger.apply(lambda view: (purge_table(view, dropped, begins=begins), None))

    def _require_hidden(self, table: Table) -> None:
        """Raise `Refused` if V1 readers see a dropped table: another process has registered its directory."""
        if not self._places.is_deregistered(table) and self._places.is_occupied(table):
            raise Refused(
                f"the directory {table.location!r} of the dropped table {table.id} has no marker that hides it, so V1 "
                f"readers see a table there. Bring it back with undrop({str(table.id)!r}), and drop it again"
            )

    def _is_written(self, table: Table) -> bool:
        return self._ledger.commits.latest(self._places.dataset_root(table)) is not None


def microseconds(span: timedelta | float) -> int:
    """Return a span of a call in microseconds.

    Raises:
        InvalidInput: It is no time span and no number of seconds.
    """
    try:
        if span is True:
            raise TypeError("True is no time span")
        return (span if isinstance(span, timedelta) else timedelta(seconds=span)) // timedelta(microseconds=1)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"keep is {span!r}; expected a time span, seconds, or 0 to drop at once") from error


def _since_epoch(time: datetime) -> int:
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)


def _shown(record: DropRecord) -> DroppedTable:
    at, until = (EPOCH + timedelta(microseconds=each) for each in (record.at, record.until))
    return DroppedTable(
        record.id, record.drop, record.location, record.properties, at, until, record.by, record.is_purging
    )
