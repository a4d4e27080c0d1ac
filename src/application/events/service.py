"""The events of a catalog: ``catalog.events``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Protocol

from lancekeep.application.entries.catalog_changes import LARGEST_PAGE, checked_seconds
from lancekeep.application.events.log import EventLog
from lancekeep.application.events.recorder import EventRecorder
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.events import Event, EventCursor, EventPage, is_below
from lancekeep.domain.identifiers import Identifier, ObjectId

POLL = 0.5
"""Seconds between two reads without events."""

Page = Callable[[str | None, int], EventPage]
"""Reads a page after a cursor, without a wait."""


class EventService(Protocol):
    """The events of a catalog; `Events` describes the methods."""

    def read(
        self, after: str | None = None, limit: int = 100, *, below: Identifier = "", wait: float = 0.0
    ) -> EventPage: ...

    def watch(self, after: str | None = None, *, below: Identifier = "", poll: float = 1.0) -> Iterator[Event]: ...

    def latest(self) -> str: ...

    def record(self) -> int: ...


class Events:
    """The events of a catalog: ``catalog.events``.

    They are each change of an entry and each commit of a table, once and in order per object. A server that runs with
    ``--events`` records them, or `record` does. They are fed from the histories of the catalog and of its tables, so
    native commits are among them, and a kill loses none. A consumer stores the cursor of the last event that it has
    processed, and continues there. If it ends between both steps, it reads that event again, with the same id.

    Args:
        log: The log.
        recorder: Records events; made when it is needed.
        retry: Has the clock, and sleeps.
    """

    def __init__(self, log: EventLog, recorder: Callable[[], EventRecorder], retry: Retry) -> None:
        self._log = log
        self._recorder = recorder
        self._retry = retry
        self._made: EventRecorder | None = None
        self._recording = Lock()

    def read(
        self, after: str | None = None, limit: int = 100, *, below: Identifier = "", wait: float = 0.0
    ) -> EventPage:
        """Return the next events.

        Args:
            after: The cursor; None for the oldest event that is kept.
            limit: The maximum number of events, at most 10,000.
            below: Only events of this object, and of everything below it. A page may then have fewer events although
                there are more: continue as long as its cursor changes.
            wait: If there is no event, wait for one, at most this many seconds.

        Raises:
            CursorExpired: Events after the cursor are not kept any more. Call `latest`, list the catalog, and continue
                with that cursor.
            InvalidInput: An argument is invalid.
            Refused: The catalog has no log of events.
        """
        return waited(self._page(ObjectId.of(below)), self._retry, after, limit, wait)

    def watch(self, after: str | None = None, *, below: Identifier = "", poll: float = 1.0) -> Iterator[Event]:
        """Iterate over the events, and wait for further ones; the iterator does not end.

        Args:
            after: As of `read`.
            below: As of `read`.
            poll: Seconds between two reads without events.

        Raises:
            CursorExpired, InvalidInput, Refused: As `read`.
        """
        return watched(self._page(ObjectId.of(below)), self._retry, after, poll)

    def latest(self) -> str:
        """Return the cursor after the latest event.

        Raises:
            Refused: The catalog has no log of events.
        """
        return str(self._log.latest())

    def record(self) -> int:
        """Append the events that are not in the log yet.

        The first call begins the log with what happens after it. One call checks up to 2,000 tables; further calls
        check the others in turn. Several processes may record at the same time.

        Returns:
            The number of events that this call appended.

        Raises:
            Unsupported: The store of the entries keeps no changes.
            UnsafeStore: The storage has no create-only write.
        """
        with self._recording:
            self._made = self._made or self._recorder()
            return self._made.run_once()

    def _page(self, below: ObjectId) -> Page:
        def page(after: str | None, limit: int) -> EventPage:
            found = self._log.read(None if after is None else EventCursor.parse(after), limit)
            if below.is_root:
                return found
            return EventPage([each for each in found.events if is_below(each, below)], found.cursor, found.source)

        return page


def waited(page: Page, retry: Retry, after: str | None, limit: int, wait: float) -> EventPage:
    """Return a page; if it has no event, wait for one.

    Raises:
        InvalidInput: The limit or the wait is not valid.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
        raise InvalidInput(f"the limit is {limit!r:.80}; expected a number from 1 to {LARGEST_PAGE}")
    until = retry.clock() + checked_seconds("wait", wait)
    while True:
        found = page(after, limit)
        left = until - retry.clock()
        if found.events or (left <= 0 and found.cursor == after) or not wait:
            return found
        if found.cursor == after:
            retry.sleep(min(left, POLL))
        after = found.cursor


def watched(page: Page, retry: Retry, after: str | None, poll: float) -> Iterator[Event]:
    """Check the arguments, and return the iterator of `Events.watch`."""
    if not checked_seconds("poll", poll):
        raise InvalidInput("poll is 0; expected the seconds between two reads")
    if after is not None:
        EventCursor.parse(after)
    return _watching(page, retry, after, poll)


def _watching(page: Page, retry: Retry, after: str | None, poll: float) -> Iterator[Event]:
    while True:
        found = page(after, LARGEST_PAGE // 10)
        yield from found.events
        if found.cursor == after:
            retry.sleep(poll)
        after = found.cursor
