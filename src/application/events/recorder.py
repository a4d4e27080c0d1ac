"""Record the events of a catalog in its log (ADR 159)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import islice

from lancekeep.application.concurrency import at_once, is_remote
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.events.histories import TableHistories
from lancekeep.application.events.log import EventLog
from lancekeep.domain.change_feed import CREATED, DROPPED_KIND, CatalogVersion, ChangeCursor
from lancekeep.domain.errors import LancekeepError, StoreUnavailable, VersionNotFound
from lancekeep.domain.events import (
    Event,
    EventBatch,
    TablePosition,
    changes_missed,
    difference,
    events_of,
    listed,
    positions_after,
)
from lancekeep.domain.manifest_entry import TABLE
from lancekeep.domain.table import v1_table
from lancekeep.format.event_log import Checkpoint

_LOG = logging.getLogger(__name__)

KEEP = timedelta(days=7)
"""How long events are kept at least."""
MOST_EVENTS = 1000
"""How many events a batch has, unless one change of the catalog has more."""
CHECKPOINT_EVERY = 256
"""After so many batches, what the log covers is written down."""
_TOGETHER = 64
"""How many tables are read at a time from a remote store."""
SWEPT = 2000
"""How many tables one run checks for commits."""
_MOST_VERSIONS = 500
"""How many versions of a history one run reads."""


class EventRecorder:
    """Appends the changes of a catalog and the commits of its tables to the log.

    Several processes may record at the same time: each batch is appended once, and a process whose batch was taken
    reads the other batch, and records what follows it.

    Args:
        ledger: The entries, and the commits.
        log: The log.
        histories: Reads the commits of tables.
        new_id: Returns a random id for a new log.
    """

    def __init__(
        self,
        ledger: Ledger,
        log: EventLog,
        histories: TableHistories,
        new_id: Callable[[], str],
    ) -> None:
        self._ledger = ledger
        self._log = log
        self._histories = histories
        self._new_id = new_id
        self._covered: _Covered | None = None
        self._round: Iterator[str] = iter(())

    def run_once(self) -> int:
        """Append the events that are not in the log yet.

        One run checks a number of tables; further runs check the others.

        Returns:
            The number of new events.
        """
        self._ledger.view()
        covered = self._caught_up()
        draft = _Draft(covered)
        recorded = 0
        for _ in self._catalog(draft):
            recorded += self._append(draft)
            if draft.is_lost:
                return recorded
        for _ in self._tables(draft):
            recorded += self._append(draft)
            if draft.is_lost:
                return recorded
        if draft.is_changed:
            recorded += self._append(draft)
        return recorded

    # -- what the log covers ------------------------------------------------------------------------------------

    def _caught_up(self) -> _Covered:
        """Return what the log covers, with the batches of other processes."""
        covered = self._covered
        if covered is not None:
            last = self._log.batch(covered.number)
            if last is None or last.log != covered.log:  # the log was removed, or this process was suspended for long
                covered = None
        if covered is None:
            covered = self._opened()
        for batch in self._log.batches(covered.number):
            covered.take(batch)
        self._covered = covered
        return covered

    def _opened(self) -> _Covered:
        self._ledger.feed()
        self._log.require_safe()
        source = self._source()
        checkpoint = self._log.checkpoint()
        while checkpoint is None:
            begin = self._beginning()
            checkpoint = begin if self._log.begin(begin, source) else self._log.checkpoint()
        return _Covered(checkpoint, source)

    def _beginning(self) -> Checkpoint:
        """Return the present state: a log begins with what follows."""
        position = self._ledger.commits.retry.call(self._ledger.feed().latest)
        tables = self._known_tables()
        positions = {place: self._latest(place, key) for place, key in tables.items()}
        cursor = position
        while versions := self._ledger.commits.retry.call(partial(self._ledger.feed().versions, cursor, MOST_EVENTS)):
            for version in versions:  # a table that was created since has all of its commits in the log
                for location in {each.location for each in version.after.values()}:
                    if location not in {each.location for each in version.before.values()}:
                        positions.pop(location or "", None)
            cursor = versions[-1].cursor
        return Checkpoint(self._new_id(), 0, str(position), positions)

    def _latest(self, location: str, key: str) -> TablePosition:
        try:
            return self._histories.latest(location, TablePosition(key))
        except StoreUnavailable:
            raise
        except LancekeepError as error:  # once it can be read, its versions are events
            _LOG.warning("The versions of %s at %s cannot be read now: %s", key, location, error)
            return TablePosition(key)

    def _known_tables(self) -> Mapping[str, str]:
        """Return the object ids of all tables by location."""
        view = self._ledger.view()
        return {entry.location: entry.object_id for entry in view.all_of(TABLE) if entry.location}

    def _source(self) -> str:
        identity = self._ledger.identity() or self._ledger.require_identity()
        return f"urn:lancekeep:{identity.id}"

    # -- reading ------------------------------------------------------------------------------------------------

    def _catalog(self, draft: _Draft) -> Iterator[None]:
        """Draft the changes of the catalog; yield whenever a batch is full."""
        feed, retry = self._ledger.feed(), self._ledger.commits.retry
        while True:
            position = ChangeCursor.parse(draft.position)
            try:
                versions = retry.call(partial(feed.versions, position, MOST_EVENTS))
            except VersionNotFound:
                self._skip(draft, position)
                yield
                continue
            for version in versions:
                self._enter(draft, version)
                draft.events += events_of(version)
                draft.position = str(version.cursor)
                if len(draft.events) >= MOST_EVENTS:
                    yield
            if not versions:
                return

    def _enter(self, draft: _Draft, version: CatalogVersion) -> None:
        """Take the positions of tables after a version, and first the last commits of tables that it ends."""
        ending, _ = positions_after(version, draft.known)
        for location in ending:
            while commits := self._commits((location, draft.known.get(location))):
                draft.add(location, commits)
        _, changed = positions_after(version, draft.known)
        draft.positions |= changed

    def _skip(self, draft: _Draft, position: ChangeCursor) -> None:
        """Go on at the present state of the catalog, because changes in between are not kept.

        Commits are not lost by it: tables that have appeared are read from their first version on.
        """
        latest = self._ledger.commits.retry.call(self._ledger.feed().latest)
        draft.events.append(changes_missed(str(position), str(latest), 0))
        self._compare(draft, self._known_tables())
        draft.position = str(latest)

    def _compare(self, draft: _Draft, tables: Mapping[str, str]) -> None:
        version = difference(tables, draft.known)
        if version is not None:
            self._enter(draft, version)

    def _tables(self, draft: _Draft) -> Iterator[None]:
        """Draft the commits of some tables; yield whenever a batch is full."""
        remaining = iter(self._next(draft))
        while locations := list(islice(remaining, _TOGETHER)):
            positions = [(location, draft.known.get(location)) for location in locations]
            together = is_remote(self._ledger.commits.objects)
            found = at_once(self._commits, positions) if together else map(self._commits, positions)
            for location, commits in zip(locations, found, strict=True):
                draft.add(location, commits)
                if len(draft.events) >= MOST_EVENTS:
                    yield

    def _next(self, draft: _Draft) -> list[str]:
        """Return the tables to check: all of them, or the next ones in turn."""
        found = list(islice(self._round, SWEPT))
        if len(found) < SWEPT:
            if self._ledger.guarantees.lists_directories:
                self._list(draft)
            self._round = iter(list(draft.covered.positions))
            found += islice(self._round, SWEPT - len(found))
        new = [place for place in draft.positions if place not in found]
        return [*new, *dict.fromkeys(found)]

    def _list(self, draft: _Draft) -> None:
        """Enter the tables that only a listing of directories shows, and end those that it shows no more."""
        view = self._ledger.view()
        for entry in view.all_of(TABLE):
            if entry.listed and entry.location and entry.location not in draft.known:
                position = TablePosition(entry.object_id)
                first = next(self._histories.after(entry.location, position, 1), None)
                if first is not None:
                    at, name = first[0].at, str(first[0].data["transaction"])
                    draft.events.append(listed(entry.location, entry.object_id, CREATED, name, at))
                    draft.positions[entry.location] = position
        for location, position in list(draft.known.items()):
            if v1_table(location) is not None and position.is_followed and view.owner_of(location) is None:
                name = position.of("").transaction
                draft.events.append(listed(location, position.key, DROPPED_KIND, name, 0))
                draft.positions[location] = None

    def _commits(self, table: tuple[str, TablePosition | None]) -> list[tuple[Event, TablePosition]]:
        """Return commits of the table at a location after its position, each with the position after it."""
        location, position = table
        found: list[tuple[Event, TablePosition]] = []
        if position is None or not position.is_followed:
            return found
        try:
            found.extend(self._histories.after(location, position, _MOST_VERSIONS))  # keeps those before an error
        except StoreUnavailable:
            raise
        except LancekeepError as error:  # the other tables go on
            _LOG.warning("The commits of %s at %s cannot be recorded now: %s", position.key, location, error)
        return found

    # -- appending ----------------------------------------------------------------------------------------------

    def _append(self, draft: _Draft) -> int:
        batch = draft.batch()
        if not self._log.append(batch):
            self._covered = None
            draft.is_lost = True
            return 0
        draft.covered.take(batch)
        draft.begin()
        if batch.number - draft.covered.checkpoint >= CHECKPOINT_EVERY:
            checkpoint = draft.covered.written()
            self._log.write(checkpoint)
            self._log.clean_up(checkpoint, KEEP)
        return len(batch.events)


class _Covered:
    """What the log covers up to a batch."""

    def __init__(self, checkpoint: Checkpoint, source: str) -> None:
        self.log, self.number, self.position = checkpoint.log, checkpoint.number, checkpoint.position
        self.positions = dict(checkpoint.positions)
        self.checkpoint = checkpoint.number
        self.source = source

    def take(self, batch: EventBatch) -> None:
        """Take the next batch."""
        self.number = batch.number
        self.position = batch.position or self.position
        for location, position in batch.positions.items():
            if position is None:
                self.positions.pop(location, None)
            else:
                self.positions[location] = position

    def written(self) -> Checkpoint:
        """Return the checkpoint of the present state."""
        self.checkpoint = self.number
        return Checkpoint(self.log, self.number, self.position, dict(self.positions))


class _Draft:
    """The next batch.

    Attributes:
        covered: What the log covers before it.
        is_lost: Whether another process has appended a batch in its place.
    """

    def __init__(self, covered: _Covered) -> None:
        self.covered = covered
        self.is_lost = False
        self.begin()

    def begin(self) -> None:
        """Begin a new batch."""
        self.position = self.covered.position
        self.events: list[Event] = []
        self.positions: dict[str, TablePosition | None] = {}

    def add(self, location: str, commits: Sequence[tuple[Event, TablePosition]]) -> None:
        """Add commits of a table, with the position after each."""
        for event, position in commits:
            self.events.append(event)
            self.positions[location] = position

    @property
    def known(self) -> Mapping[str, TablePosition]:
        """The positions of tables with the changes of the draft."""
        return _Known(self.positions, self.covered.positions)

    @property
    def is_changed(self) -> bool:
        """Whether the batch would change what the log covers."""
        return bool(self.events or self.positions or self.position != self.covered.position)

    def batch(self) -> EventBatch:
        """Return the batch."""
        position = "" if self.position == self.covered.position else self.position
        return EventBatch(
            self.covered.log, self.covered.number + 1, self.covered.source, position, self.events, self.positions
        )


class _Known(Mapping[str, TablePosition]):
    """Positions with changes over them; None in the changes hides a position."""

    def __init__(self, changed: Mapping[str, TablePosition | None], before: Mapping[str, TablePosition]) -> None:
        self._changed, self._before = changed, before

    def __getitem__(self, location: str) -> TablePosition:
        found = self._changed[location] if location in self._changed else self._before[location]
        if found is None:
            raise KeyError(location)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from (location for location, position in self._changed.items() if position is not None)
        yield from (location for location in self._before if location not in self._changed)

    def __len__(self) -> int:
        return sum(1 for _ in self)
