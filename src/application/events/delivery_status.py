"""How far a subscriber of events is, as stored in the catalog."""

from __future__ import annotations

import attrs

from lancekeep.application.events.cloud_events import time_of
from lancekeep.application.events.deliveries import PAGE
from lancekeep.application.events.log import EventLog
from lancekeep.application.events.subscriptions import Subscription
from lancekeep.domain.errors import CursorExpired, Damaged
from lancekeep.domain.event_delivery import Problem, Subscriber
from lancekeep.domain.events import Event, EventCursor


@attrs.frozen
class DeliveryStatus:
    """How far a subscriber is.

    Attributes:
        cursor: The position in the log; empty if no delivery has begun.
        behind: How many batches the log has from the first event on that the subscriber has not; 0 if it has all.
        since: The time of that event in ISO 8601; empty without one.
        dead_letters: How many deliveries were given up and not replayed.
        problem: Why deliveries fail; None if they do not.
        is_expired: Whether events were removed from the log before they were delivered.
        defect: Why the state of the subscriber cannot be read; empty if it can.
    """

    cursor: str = ""
    behind: int = 0
    since: str = ""
    dead_letters: int = 0
    problem: Problem | None = None
    is_expired: bool = False
    defect: str = ""


def status_of(subscriber: Subscriber, log: EventLog, subscription: Subscription) -> DeliveryStatus:
    """Return how far a subscriber is; raises `Refused` if there is no log."""
    try:
        return _status(subscriber, log, subscription)
    except Damaged as error:  # the other subscribers are shown
        return DeliveryStatus(defect=str(error))


def _status(subscriber: Subscriber, log: EventLog, subscription: Subscription) -> DeliveryStatus:
    latest, position = log.latest(), subscription.position()
    found = DeliveryStatus(dead_letters=len(subscription.letters()), problem=subscription.problem())
    if position is None:
        return found
    found = attrs.evolve(found, cursor=position.cursor)
    try:
        first = _first(subscriber, log, position.cursor)
    except CursorExpired:
        return attrs.evolve(found, is_expired=True)
    if first is None:
        return found
    return attrs.evolve(
        found, behind=1 + latest.batch - EventCursor.parse(first.cursor).batch, since=time_of(first) or ""
    )


def _first(subscriber: Subscriber, log: EventLog, cursor: str) -> Event | None:
    """Return the first event after a cursor that a subscriber wants."""
    while True:
        page = log.read(EventCursor.parse(cursor), PAGE)
        wanted = subscriber.wanted(page.events)
        if wanted or page.cursor == cursor:
            return wanted[0] if wanted else None
        cursor = page.cursor
