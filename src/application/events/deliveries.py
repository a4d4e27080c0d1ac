"""Deliver the events of a log, in order and at least once (ADR 169)."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable

import attrs

from lancekeep.application.events.log import EventLog
from lancekeep.application.events.subscriptions import Subscription, now
from lancekeep.domain.errors import CursorExpired, LancekeepError
from lancekeep.domain.event_delivery import (
    LATEST,
    STOP,
    Attempt,
    Delivery,
    DeliveryPosition,
    Failures,
    Problem,
    Result,
    Subscriber,
)
from lancekeep.domain.events import Event, EventCursor, events_missed
from lancekeep.ports.event_sink import EventSink

_LOG = logging.getLogger(__name__)

POLL = 1.0
"""Seconds between two reads of the log without events."""
PAGE = 1000
"""How many events are read at once, and held in memory."""
STORED_EVERY = 3600.0
"""Seconds after which the position is stored although no event was delivered: old events are removed from the log."""


@attrs.define
class DeliveryCounts:
    """What the deliveries to a subscriber led to, in this process.

    Attributes:
        events: The events that were delivered.
        attempts: The attempts by their results.
        dead_letters: The deliveries that were given up.
        gaps: How often events were removed from the log before they were delivered.
        errors: How often the log or the storage failed.
        pending_since: The time of the oldest event that is read and not delivered, in seconds since 1970; None without.
        behind: How many batches the log has after the position.
        is_stopped: Whether deliveries have stopped.
    """

    events: int = 0
    attempts: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys((each.value for each in Result), 0))
    dead_letters: int = 0
    gaps: int = 0
    errors: int = 0
    pending_since: float | None = None
    behind: int = 0
    is_stopped: bool = False


class Deliveries:
    """Delivers the events of a log to one subscriber.

    One server at a time is meant to deliver, and two do no harm: each delivery begins with the stored position. A
    position is stored after the subscriber has taken everything before it, or after its events are a dead letter. So a
    kill at any time repeats events, and loses none.

    Args:
        subscriber: The subscriber.
        log: The log.
        subscription: The position and the dead letters of the subscriber.
        sink: Takes the events.
        clock: Returns monotonic seconds.
        chance: Returns a random number from 0 to 1.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        log: EventLog,
        subscription: Subscription,
        sink: EventSink,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.subscriber = subscriber
        self.counts = DeliveryCounts()
        self._log = log
        self._subscription = subscription
        self._sink = sink
        self._clock = clock
        self._chance = chance
        self._position: DeliveryPosition | None = None
        self._pending: deque[Event] = deque()
        self._read_to = ""
        self._source = ""
        self._stored_at = clock()
        self._failures = Failures()
        self._has_problem = True  # of a former process, until a delivery succeeds

    def begin(self) -> None:
        """Store where the first delivery begins, unless there is a position."""
        found = self._subscription.position()
        if found is None:
            is_latest = self.subscriber.start == LATEST
            found = self._subscription.begin(str(self._log.latest() if is_latest else self._log.oldest()))
        self._go_on(found)

    def forget(self) -> None:
        """Begin the next step at the stored position. Idempotent.

        Another server may have advanced it.
        """
        self._position = None
        self._pending.clear()
        self._observe()
        self._failures = Failures()
        self._has_problem = True

    def step(self) -> float:
        """Read events, or deliver a batch once.

        Returns:
            The seconds until the next step.

        Raises:
            LancekeepError: The log or the storage failed. The next step repeats the work.
        """
        if self.counts.is_stopped:
            return POLL
        if self._position is None:
            self.begin()
        if not self._pending:
            self._read()
        self._observe()
        if not self._pending:
            self._store_rarely()
            return POLL
        wait = self._stored_at + self.subscriber.every - self._clock()
        if len(self._pending) < self.subscriber.batch and wait > 0:
            self._read()
            return min(wait, POLL)
        return self._deliver()

    def finish(self) -> None:
        """Store how far events without interest were read. Idempotent."""
        if self._position is not None and not self._pending and not self.counts.is_stopped:
            self._store()

    def count_error(self) -> None:
        """Count a step that failed."""
        self.counts.errors += 1

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the next events after those that are pending."""
        if len(self._pending) >= PAGE:
            return
        after = EventCursor.parse(self._read_to)
        try:
            page = self._log.read(after, PAGE)
        except CursorExpired:
            oldest = self._log.oldest()
            _LOG.error(
                "The events for %s after the cursor %s are not kept any more; they are lost to it. It goes on with the "
                "oldest event, after %s",
                self.subscriber.name,
                self._read_to,
                oldest,
            )
            self.counts.gaps += 1
            self._source = self._log.read(oldest, 1).source
            self._pending.append(events_missed(self._read_to, oldest))
            self._read_to = str(oldest)
            return
        self._pending.extend(self.subscriber.wanted(page.events))
        self._read_to, self._source = page.cursor, page.source

    def _observe(self) -> None:
        """Count how far the subscriber is behind what was read."""
        if not self._pending:
            self.counts.pending_since, self.counts.behind = None, 0
            return
        oldest = self._pending[0]
        self.counts.pending_since = oldest.at / 1e6 if oldest.at > 0 else self.counts.pending_since or time.time()
        self.counts.behind = self._behind(EventCursor.parse(self._read_to))

    def _behind(self, latest: EventCursor) -> int:
        oldest = EventCursor.parse(self._pending[0].cursor)
        return 1 + latest.batch - oldest.batch

    # -- delivering ---------------------------------------------------------------------------------------------

    def _deliver(self) -> float:
        stored = self._subscription.position()
        if stored is None or stored != self._position:  # another server goes on with this subscriber
            self._position = None
            if stored is not None:
                self._go_on(stored)
            return 0.0
        events = [self._pending[at] for at in range(min(self.subscriber.batch, len(self._pending)))]
        is_all = len(events) == len(self._pending)
        delivery = Delivery(stored.number + 1, self._source, events, self._read_to if is_all else events[-1].cursor)
        attempt = self._attempted(delivery)
        self.counts.attempts[attempt.result.value] += 1
        if attempt.result is Result.TAKEN:
            return self._taken(delivery, attempt)
        self._failures = self._failures.after(attempt, self._clock())
        gives_up = self._failures.gives_up(self.subscriber, self._clock())
        if attempt.result is Result.GONE or (gives_up and self.subscriber.on_failure == STOP):
            self.counts.is_stopped = True
            _LOG.error(
                "Deliveries to %s stop, because %s. They go on when the server starts again: %s",
                self.subscriber.name,
                "it is gone" if attempt.result is Result.GONE else "its setting on_failure says so",
                attempt.problem,
            )
            self._report(attempt)
        elif not gives_up:
            _LOG.warning(
                "Events for %s were not taken (attempt %d): %s",
                self.subscriber.name,
                self._failures.attempts,
                attempt.problem,
            )
            self._report(attempt)
        else:
            self._give_up(delivery, attempt)
        return self._failures.pause(attempt, self._chance())

    def _attempted(self, delivery: Delivery) -> Attempt:
        try:
            return self._sink.deliver(delivery)
        except LancekeepError as error:
            return Attempt(Result.FAILED, str(error))

    def _taken(self, delivery: Delivery, attempt: Attempt) -> float:
        self._failures = Failures()
        self._advance(delivery, attempt.cursor)
        if attempt.cursor is None:
            self.counts.events += len(delivery.events)
        if self._has_problem:
            self._subscription.report(None)
            self._has_problem = False
        return 0.0

    def _give_up(self, delivery: Delivery, attempt: Attempt) -> None:
        self._subscription.bury(delivery, attempt.problem)
        self.counts.dead_letters += 1
        _LOG.error(
            "%d events for %s are a dead letter after %d attempts; `lancekeep webhooks --replay %s` delivers it: %s",
            len(delivery.events),
            self.subscriber.name,
            self._failures.attempts,
            self.subscriber.name,
            attempt.problem,
        )
        self._report(attempt)
        self._failures = self._failures.of_next_batch()
        self._advance(delivery, None)

    def _report(self, attempt: Attempt) -> None:
        self._has_problem = True
        self.counts.behind = self._behind(self._log.latest())
        found = Problem(now(), attempt.problem, self._failures.attempts, self.counts.is_stopped)
        self._subscription.report(found)

    # -- the position -------------------------------------------------------------------------------------------

    def _advance(self, delivery: Delivery, cursor: str | None) -> None:
        """Store the position after a delivery, or after the events that the sink has by another server."""
        position = DeliveryPosition(delivery.number, cursor or delivery.cursor)
        if not self._subscription.advance(position):
            self._position = None
            return
        if cursor not in (None, delivery.cursor):
            self._go_on(position)
            return
        for _ in delivery.events:
            self._pending.popleft()
        self._position, self._stored_at = position, self._clock()

    def _store_rarely(self) -> None:
        if self._clock() - self._stored_at >= STORED_EVERY:
            self._store()

    def _store(self) -> None:
        assert self._position is not None
        self._stored_at = self._clock()
        if self._position.cursor == self._read_to:
            return
        position = attrs.evolve(self._position, cursor=self._read_to, number=self._position.number + 1)
        if self._subscription.position() == self._position and self._subscription.advance(position):
            self._position = position
        else:
            self._position = None

    def _go_on(self, position: DeliveryPosition) -> None:
        self._position, self._read_to = position, position.cursor
        self._pending.clear()
        self._stored_at = self._clock()
