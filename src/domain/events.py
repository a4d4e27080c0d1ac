"""Events: each change of a catalog and each commit of a table, once (ADR 159).

The log of events consists of numbered batches. What the log has covered is a fold over its batches: the position in the
changes of the catalog, and the last version of each history. So the process that appends batch N + 1 by put-if-absent
has seen exactly what the batches up to N cover, and no event is lost or repeated if a process is killed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from lancekeep.domain.change_feed import ALTERED, CREATED, DROPPED_KIND, RENAMED, CatalogChange, CatalogVersion
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import DROPPED, MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry

PREFIX = "lancekeep."
"""The prefix of the types of events."""
COMMITTED = f"{PREFIX}table.committed"
VERSIONS_MISSED = f"{PREFIX}table.versions-missed"
CHANGES_MISSED = f"{PREFIX}catalog.changes-missed"
EVENTS_MISSED = f"{PREFIX}catalog.events-missed"
KINDS = (CREATED, ALTERED, RENAMED, DROPPED_KIND, "committed", "versions-missed", "changes-missed", "events-missed")
"""The last parts of the types."""
LATEST = "latest"
"""In place of a cursor: the latest one, without events."""
MOST_ANSWERED = 1000
"""The most events of one answer of a server."""

_CURSOR = re.compile(r"([0-9a-f]{1,64})\.(0|[1-9][0-9]{0,18})(?:\.([1-9][0-9]{0,8}))?")


@attrs.frozen
class EventCursor:
    """A position in the log of events.

    Attributes:
        log: The id of the log.
        batch: The number of a batch.
        index: How many events of the batch were read; None for all.
    """

    log: str
    batch: int
    index: int | None = None

    @staticmethod
    def parse(text: str) -> EventCursor:
        """Parse the text of a cursor.

        Raises:
            InvalidInput: The text is no cursor.
        """
        found = _CURSOR.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidInput(
                f"the cursor is {text!r:.80}; expected the cursor of an event or of a page, the result of latest(), "
                "or, at a server, 'latest'. Leave it out to begin with the oldest event that is kept"
            )
        return EventCursor(found[1], int(found[2]), None if found[3] is None else int(found[3]))

    def precedes(self, other: EventCursor) -> bool:
        """Return whether the position is before another position of the same log."""
        return self.log == other.log and self._place < other._place

    @property
    def _place(self) -> tuple[int, bool, int]:
        return self.batch, self.index is None, self.index or 0

    def __str__(self) -> str:
        return f"{self.log}.{self.batch}" + ("" if self.index is None else f".{self.index}")


@attrs.frozen
class Event:
    """A change of a namespace or a table, or a commit of a table.

    Attributes:
        id: The id. No other event of the catalog has it; an event that is delivered twice has the same id.
        type: ``lancekeep.table.committed``, or ``lancekeep.`` with the type of the object and ``created``, ``altered``,
            ``renamed`` or ``dropped``; or ``lancekeep.table.versions-missed`` and ``lancekeep.catalog.changes-missed``;
            for subscribers also ``lancekeep.catalog.events-missed``.
        object_id: The object; the root for the catalog itself.
        at: The time of the change in microseconds since 1970 in UTC, by the clock of its writer.
        data: Facts about the change, never rows or properties.
        cursor: Where to continue after the event; empty before it is in the log.
    """

    id: str
    type: str
    object_id: ObjectId
    at: int
    data: Mapping[str, Any]
    cursor: str = ""

    @property
    def kind(self) -> str:
        """The last part of the type, such as ``committed``."""
        return self.type.rpartition(".")[2]


@attrs.frozen
class EventPage:
    """Some events, in order.

    Attributes:
        events: The events; none if there are no further ones.
        cursor: Where to continue.
        source: The catalog, as a URI.
    """

    events: Sequence[Event]
    cursor: str
    source: str


@attrs.frozen
class HistoryPosition:
    """The last version of a history that the log has covered.

    Attributes:
        version: The version; 0 for none.
        transaction: The identity of the version, which no version of another history has.
    """

    version: int = 0
    transaction: str = ""


@attrs.frozen
class TablePosition:
    """What the log has covered of a table.

    Attributes:
        key: The object id of the table, or of the record of a dropped table.
        histories: The positions of its histories by branch; ``""`` is the main history.
    """

    key: str
    histories: Mapping[str, HistoryPosition] = attrs.field(factory=dict)

    @property
    def is_followed(self) -> bool:
        """Whether commits are expected: not of a dropped table."""
        return not is_dropped(self.key)

    def of(self, branch: str) -> HistoryPosition:
        """Return the position of a history."""
        return self.histories.get(branch) or HistoryPosition()

    def at(self, branch: str, position: HistoryPosition) -> TablePosition:
        """Return the position of the table with a new position of a history."""
        return attrs.evolve(self, histories={**self.histories, branch: position})


Positions = Mapping[str, TablePosition]
"""The positions of tables by their locations."""


@attrs.frozen
class EventBatch:
    """One batch of the log.

    Attributes:
        log: The id of the log.
        number: The number of the batch; 0 begins the log and has no events.
        source: The catalog, as a URI.
        position: The position in the changes of the catalog after the batch; empty if it stays.
        events: The events.
        positions: The positions that the batch changes; None for a table that has left the catalog.
    """

    log: str
    number: int
    source: str
    position: str = ""
    events: Sequence[Event] = ()
    positions: Mapping[str, TablePosition | None] = attrs.field(factory=dict)

    def after(self, index: int) -> list[Event]:
        """Return the events after so many of the batch, with their cursors."""
        last = len(self.events)
        return [
            attrs.evolve(event, cursor=str(EventCursor(self.log, self.number, None if at == last else at)))
            for at, event in enumerate(self.events[index:], index + 1)
        ]


# -- changes of the catalog ----------------------------------------------------------------------------------------


def events_of(version: CatalogVersion) -> list[Event]:
    """Return the events of a version of the catalog."""
    return [_event_of(change) for change in version.changes()]


def _event_of(change: CatalogChange) -> Event:
    data: dict[str, Any] = {"id": list(change.object_id.names), "catalog_version": change.version}
    if change.former is not None:
        data["former"] = list(change.former.names)
    name = f"{change.id.partition('-')[0]}_{_digest(change.object_id.key)}"
    return Event(name, f"{PREFIX}{change.object_type}.{change.kind}", change.object_id, change.at, data)


def positions_after(version: CatalogVersion, known: Positions) -> tuple[list[str], dict[str, TablePosition | None]]:
    """Return what a version of the catalog ends, and the positions after it.

    A table whose directory moves keeps its position: its commits were read at the old place.

    Args:
        version: The version of the catalog.
        known: The positions before it.

    Returns:
        The locations whose commits are to be read before, and the changes of positions.
    """
    before, after = _locations(version.before.values()), _locations(version.after.values())
    lost, new = before.keys() - after.keys(), after.keys() - before.keys()
    changed: dict[str, TablePosition | None] = {}
    for location, key in sorted(after.items()):
        source: str | None = location
        if location in new:
            source = next((each for each in sorted(lost) if before[each] == key), None)
            if source is None and location in known:  # its directory was listed before it was entered
                source = location
            if source is None and len(lost) == len(new) == 1:
                source = next(iter(lost))
        position = None if source is None else known.get(source)
        changed[location] = TablePosition(key) if position is None else attrs.evolve(position, key=key)
    changed |= dict.fromkeys(each for each in lost if each in known)
    ending = (each for each in sorted(before) if each in lost or is_dropped(after[each]))
    return [each for each in ending if each in known], changed


def _locations(entries: Iterable[ManifestEntry]) -> dict[str, str]:
    """Return the object ids of tables, and of records of dropped tables, by their locations."""
    return {
        entry.location: entry.object_id
        for entry in entries
        if entry.location and (entry.object_type == TABLE or is_dropped(entry.object_id))
    }


def is_dropped(key: str) -> bool:
    """Return whether an object id belongs to the record of a dropped table."""
    return key.partition(MANIFEST_DELIMITER)[0] == DROPPED


def difference(view: Mapping[str, str], known: Positions) -> CatalogVersion | None:
    """Return the tables that appeared and vanished, as a version of the catalog.

    Args:
        view: The tables as they are: object ids by location.
        known: The positions of tables.

    Returns:
        None if no table did.
    """
    tables = {place: each.key for place, each in known.items() if each.is_followed}
    before = {key: ManifestEntry(key, TABLE, place) for place, key in tables.items() if view.get(place) != key}
    after = {key: ManifestEntry(key, TABLE, place) for place, key in view.items() if tables.get(place) != key}
    return CatalogVersion(0, "", 0, before, after) if before or after else None


# -- commits -------------------------------------------------------------------------------------------------------


@attrs.frozen
class CommittedVersion:
    """A version of a history.

    Attributes:
        version: The number.
        transaction: The name of its transaction file, or another name that no other version has.
        operation: The operation of its transaction; ``unknown`` if its transaction is gone.
        rows: The rows of the table; None if the manifest cannot be decoded.
        at: The time in its manifest, in microseconds since 1970.
    """

    version: int
    transaction: str
    operation: str
    rows: int | None
    at: int


def committed(location: str, position: TablePosition, branch: str, found: CommittedVersion) -> Event:
    """Return the event of a commit.

    Args:
        location: The location of the table.
        position: The table.
        branch: The branch; empty for the main history.
        found: The version.
    """
    data = {**_history(position, branch), "version": found.version, "transaction": found.transaction}
    data |= {"operation": found.operation} | ({} if found.rows is None else {"rows": found.rows})
    name = f"{_digest(f'{location}/{branch}')}_{found.version}_{found.transaction.removesuffix('.txn')}"
    return Event(name, COMMITTED, _object(position), found.at, data)


def missed(location: str, position: TablePosition, branch: str, first: int, last: int, at: int) -> Event:
    """Return the event of versions that were removed before they were recorded."""
    data = {**_history(position, branch), "first": first, "last": last}
    return Event(f"{_digest(f'{location}/{branch}')}_{first}-{last}", VERSIONS_MISSED, _object(position), at, data)


def listed(location: str, key: str, kind: str, transaction: str, at: int) -> Event:
    """Return the event of a table that a listing shows, or shows no more.

    Args:
        location: The location of the table.
        key: Its object id.
        kind: ``created`` or ``dropped``.
        transaction: The identity of its first or last version.
        at: The time of that version; 0 if it is unknown.
    """
    name = f"{_digest(location)}_{kind}_{transaction.removesuffix('.txn')}"
    object_id = ObjectId.from_key(key)
    return Event(name, f"{PREFIX}{TABLE}.{kind}", object_id, at, {"id": list(object_id.names)})


def changes_missed(before: str, after: str, at: int) -> Event:
    """Return the event of changes that were removed before they were recorded."""
    return Event(f"{before}-{after}".replace(".", "_"), CHANGES_MISSED, ObjectId(), at, {"id": []})


def events_missed(expired: str, oldest: EventCursor) -> Event:
    """Return the event of events that were removed before they were delivered.

    Args:
        expired: The cursor of the subscriber.
        oldest: Where the log begins now.
    """
    name = f"{expired}-{oldest}".replace(".", "_")
    return Event(name, EVENTS_MISSED, ObjectId(), 0, {"id": [], "after": expired}, str(oldest))


def _history(position: TablePosition, branch: str) -> dict[str, Any]:
    return {"id": list(_object(position).names)} | ({"branch": branch} if branch else {})


def _object(position: TablePosition) -> ObjectId:
    names = ObjectId.from_key(position.key).names
    return ObjectId(names) if position.is_followed else ObjectId(names[1:-1])


def _digest(text: str) -> str:
    """Return a short name in place of a text that may hold a name which the reader may not see."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


# -- what a principal sees -----------------------------------------------------------------------------------------


def visible(events: Iterable[Event], may_see: Callable[[ObjectId], bool]) -> Iterator[Event]:
    """Return the events that a principal may see.

    A table that is renamed to a place that the principal does not see is dropped for it, and one from such a place is
    created. All learn that changes were missed: they may have been changes of what the principal sees.
    """
    for event in events:
        former = event.data.get("former")
        if former is None:
            if event.type == CHANGES_MISSED or may_see(event.object_id):
                yield event
            continue
        old, data = ObjectId(tuple(former)), {k: v for k, v in event.data.items() if k != "former"}
        kind = event.type.rpartition(".")[0]
        match may_see(old), may_see(event.object_id):
            case True, True:
                yield event
            case False, True:
                yield attrs.evolve(event, type=f"{kind}.{CREATED}", data=data)
            case True, False:
                yield attrs.evolve(
                    event, type=f"{kind}.{DROPPED_KIND}", object_id=old, data={**data, "id": list(old.names)}
                )


def is_below(event: Event, above: ObjectId) -> bool:
    """Return whether an event is of an object or below it, also before a rename.

    Changes that were missed may have been such events.
    """
    if event.type in (CHANGES_MISSED, EVENTS_MISSED):
        return True
    places = (event.object_id.names, tuple(event.data.get("former") or ()) or event.object_id.names)
    return any(names[: len(above.names)] == above.names for names in places)
