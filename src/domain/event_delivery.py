"""The delivery of events to a subscriber, and what follows it (ADR 169)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from enum import Enum

import attrs

from lancekeep.domain.events import CHANGES_MISSED, COMMITTED, EVENTS_MISSED, VERSIONS_MISSED, Event, is_below
from lancekeep.domain.identifiers import ObjectId

OLDEST, LATEST = "oldest", "latest"
STARTS = (LATEST, OLDEST)
"""Where a new subscriber begins."""
DEAD_LETTER, STOP = "dead-letter", "stop"
FAILURES = (DEAD_LETTER, STOP)
"""What happens to a batch that is given up."""

REFUSALS = 5
"""How often a batch is delivered that the subscriber refuses."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0
LONGEST_RETRY_AFTER = 3600.0
"""Seconds for which a subscriber may postpone the next attempt."""

_ALWAYS = frozenset((CHANGES_MISSED, EVENTS_MISSED))
_RETRIED = frozenset((408, 425, 429))
"""The answers to a client's error that ask for another attempt."""
_GONE = 410


@attrs.frozen(kw_only=True)
class Subscriber:
    """A subscriber of the events of a catalog.

    Attributes:
        name: The name. What was delivered is stored under it.
        types: The types of events to deliver; empty for all of them.
        below: Only events of this object, and of everything below it.
        batch: The most events of a delivery.
        start: Where the first delivery begins: ``latest`` or ``oldest``.
        on_failure: What happens to a batch that is given up: ``dead-letter`` or ``stop``.
        retry_seconds: How long deliveries may fail until a batch is given up.
        every: The least seconds between two deliveries, unless there are enough events for a whole batch.
        takeover: The seconds without a sign of life of the server that delivers, after which another server goes on.
    """

    name: str
    types: frozenset[str] = frozenset()
    below: ObjectId = attrs.field(factory=ObjectId)
    batch: int = 100
    start: str = LATEST
    on_failure: str = DEAD_LETTER
    retry_seconds: float = 86_400.0
    every: float = 0.0
    takeover: float = 30.0

    def wanted(self, events: Iterable[Event]) -> list[Event]:
        """Return the events to deliver.

        An event that stands for others, which were missed, is delivered with each type for which it may stand.
        """
        return [event for event in events if self._takes(event) and is_below(event, self.below)]

    def _takes(self, event: Event) -> bool:
        if not self.types or event.type in self.types or event.type in _ALWAYS:
            return True
        return event.type == VERSIONS_MISSED and COMMITTED in self.types


@attrs.frozen
class DeliveryPosition:
    """How far a subscriber has all events.

    Attributes:
        number: The number of deliveries so far; 0 at the beginning.
        cursor: The position in the log of events.
    """

    number: int
    cursor: str

    def after(self, cursor: str) -> DeliveryPosition:
        """Return the position after the next delivery."""
        return DeliveryPosition(self.number + 1, cursor)


@attrs.frozen
class Delivery:
    """Events to deliver at once.

    Attributes:
        number: The number of the delivery.
        source: The catalog, as a URI.
        events: The events.
        cursor: The position in the log after the delivery.
    """

    number: int
    source: str
    events: Sequence[Event]
    cursor: str

    @property
    def id(self) -> str:
        """The id of the message, which no delivery of other events has."""
        text = "\n".join((self.source, *(event.id for event in self.events)))
        return f"msg_{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


@attrs.frozen
class DeadLetter:
    """A delivery that was given up.

    Attributes:
        delivery: The delivery.
        at: When it was given up, as a time in ISO 8601.
        problem: Why.
    """

    delivery: Delivery
    at: str
    problem: str


@attrs.frozen
class Problem:
    """Why deliveries to a subscriber fail.

    Attributes:
        at: The time of the last attempt in ISO 8601.
        text: What failed.
        attempts: How often the present batch was delivered without success.
        is_stopped: Whether the server makes no further attempt.
    """

    at: str
    text: str
    attempts: int = 1
    is_stopped: bool = False


class Result(Enum):
    """What an attempt to deliver led to.

    A refusal is an answer that another attempt does not change. A subscriber that is gone asks for no further events.
    Every other problem is a failure.
    """

    TAKEN = "taken"
    REFUSED = "refused"
    GONE = "gone"
    FAILED = "failed"


@attrs.frozen
class Attempt:
    """The end of an attempt to deliver.

    Attributes:
        result: What it led to.
        problem: Why the events were not taken; empty if they were.
        retry_after: The seconds after which the subscriber asks for another attempt; None if it does not.
        cursor: The position after the events that the subscriber has by now; None for the delivery's.
    """

    result: Result
    problem: str = ""
    retry_after: float | None = None
    cursor: str | None = None


def result_of(status: int) -> Result:
    """Return what the status of an HTTP response says.

    A redirect is a refusal: it is not followed, because the events and their signature are for the configured address.
    """
    if 200 <= status < 300:
        return Result.TAKEN
    if status == _GONE:
        return Result.GONE
    return Result.REFUSED if 300 <= status < 500 and status not in _RETRIED else Result.FAILED


@attrs.frozen
class Failures:
    """The attempts since the last success.

    Attributes:
        since: The monotonic time of the first of them; None without one.
        attempts: How many of them were for the present batch.
        refusals: How many of these the subscriber refused.
        pauses: How many of them there are, at most as many as make the pause longer.
    """

    since: float | None = None
    attempts: int = 0
    refusals: int = 0
    pauses: int = 0

    def after(self, attempt: Attempt, now: float) -> Failures:
        """Return the failures after another attempt that did not succeed."""
        return Failures(
            now if self.since is None else self.since,
            self.attempts + 1,
            self.refusals + (attempt.result is Result.REFUSED),
            min(self.pauses + 1, 32),
        )

    def of_next_batch(self) -> Failures:
        """Return the failures after the present batch was given up."""
        return Failures(self.since, pauses=self.pauses)

    def gives_up(self, subscriber: Subscriber, now: float) -> bool:
        """Return whether the present batch is not tried again."""
        is_long = self.since is not None and now - self.since >= subscriber.retry_seconds
        return self.refusals >= REFUSALS or (self.attempts > 0 and is_long)

    def pause(self, attempt: Attempt, chance: float) -> float:
        """Return the seconds until the next attempt.

        Args:
            attempt: The last attempt.
            chance: A random number from 0 to 1.
        """
        backoff = min(LONGEST_PAUSE, FIRST_PAUSE * (1 << max(0, self.pauses - 1))) * (0.5 + chance / 2)
        return max(backoff, min(attempt.retry_after or 0.0, LONGEST_RETRY_AFTER))
