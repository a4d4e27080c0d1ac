"""The positions and the dead letters of subscribers of events (ADR 169).

They are objects beside the log of events.
A position is an object that is created by put-if-absent under the number of the delivery. So of several servers that
deliver to one subscriber, one goes on with its own position, and the others take it over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from lancekeep.application.events.cloud_events import event_of, fields_of
from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.directory import Directory
from lancekeep.domain.errors import Damaged, InvalidInput, ObjectNotFound
from lancekeep.domain.event_delivery import DeadLetter, Delivery, DeliveryPosition, Problem
from lancekeep.domain.events import EventCursor
from lancekeep.domain.table import EVENTS_DIRECTORY
from lancekeep.ports.object_store import ObjectStore

T = TypeVar("T")

SUBSCRIBERS = "subscribers"
_FORMAT = 1
_DIGITS = 20
POSITION = re.compile(r"[0-9]{20}")
LETTER = re.compile(r"[0-9]{20}-msg_[0-9a-f]{32}\.json")
PROBLEM = "problem.json"


class Subscription:
    """The position and the dead letters of one subscriber.

    Args:
        objects: The object store.
        prefix: The prefix of every key of the catalog.
        retry: Retries requests.
        name: The name of the subscriber.
    """

    def __init__(self, objects: ObjectStore, prefix: str, retry: Retry, name: str) -> None:
        self._objects = objects
        self._retry = retry
        self._directory = f"{prefix}{EVENTS_DIRECTORY}/{SUBSCRIBERS}/{name}/"
        self._positions = f"{self._directory}positions/"
        self._letters = f"{self._directory}dead-letters/"

    @classmethod
    def of(cls, own: Directory, name: str) -> Subscription:
        """Return the subscription of a name in a catalog."""
        return cls(own.places.objects, own.places.prefix, own.commits.retry, name)

    # -- positions ----------------------------------------------------------------------------------------------

    def position(self) -> DeliveryPosition | None:
        """Return the position; None before the first delivery has begun.

        Raises:
            Damaged: The object of the position is damaged.
        """
        while (keys := self._position_keys()) and (content := self._content(keys[-1])) is None:
            pass  # another server has stored a later position, and removed this one
        return decode_position(content or b"", keys[-1]) if keys else None

    def begin(self, cursor: str) -> DeliveryPosition:
        """Store the first position, and return it; the present one if there is one."""
        self._create(DeliveryPosition(0, cursor))
        found = self.position()
        return found or DeliveryPosition(0, cursor)

    def advance(self, position: DeliveryPosition) -> bool:
        """Store the next position after everything before it was taken.

        Returns:
            Whether this call did, and not another server.
        """
        if not self._create(position):
            return False
        own = self._position_key(position.number)
        for key in self._position_keys():
            if key < own:
                self._ask(partial(self._objects.delete, key))
        return True

    def _create(self, position: DeliveryPosition) -> bool:
        key, content = self._position_key(position.number), encode_position(position)
        if self._ask(partial(self._objects.put_if_absent, key, content)):
            return True
        return self._content(key) == content  # the reply to the first call may be lost

    def _position_keys(self) -> list[str]:
        infos = self._ask(lambda: list(self._objects.list(self._positions)))
        return [each.key for each in infos if POSITION.fullmatch(each.key.removeprefix(self._positions))]

    def _position_key(self, number: int) -> str:
        return f"{self._positions}{number:0{_DIGITS}}"

    # -- dead letters -------------------------------------------------------------------------------------------

    def bury(self, delivery: Delivery, problem: str) -> None:
        """Store a delivery that was given up. Idempotent.

        Several servers may give up deliveries with one number and different events, so each has a key of its own.
        """
        letter = DeadLetter(delivery, now(), problem)
        key = f"{self._letters}{delivery.number:0{_DIGITS}}-{delivery.id}.json"
        self._ask(partial(self._objects.put, key, encode_letter(letter)))

    def letters(self) -> list[str]:
        """Return the keys of the dead letters, in the order of their deliveries."""
        infos = self._ask(lambda: list(self._objects.list(self._letters)))
        return [each.key for each in infos if LETTER.fullmatch(each.key.removeprefix(self._letters))]

    def letter(self, key: str) -> DeadLetter | None:
        """Return a dead letter; None if it was removed.

        Raises:
            Damaged: The object is no dead letter.
        """
        content = self._content(key)
        return None if content is None else decode_letter(content, key)

    def remove(self, key: str) -> None:
        """Remove a dead letter that was delivered. Idempotent."""
        self._ask(partial(self._objects.delete, key))

    # -- problems -----------------------------------------------------------------------------------------------

    def report(self, problem: Problem | None) -> None:
        """Store why deliveries fail; None if they do not. Idempotent."""
        key = self._directory + PROBLEM
        if problem is None:
            self._ask(partial(self._objects.delete, key))
            return
        content = _text(at=problem.at, problem=problem.text, attempts=problem.attempts, is_stopped=problem.is_stopped)
        self._ask(partial(self._objects.put, key, content))

    def problem(self) -> Problem | None:
        """Return why deliveries fail; None if they do not."""
        key = self._directory + PROBLEM
        content = self._content(key)
        if content is None:
            return None
        return _decoded(
            content, key, lambda it: Problem(it["at"], it["problem"], int(it["attempts"]), bool(it["is_stopped"]))
        )

    # -- requests -----------------------------------------------------------------------------------------------

    def _content(self, key: str) -> bytes | None:
        try:
            return self._ask(partial(self._objects.get, key))
        except ObjectNotFound:
            return None

    def _ask(self, act: Callable[[], T]) -> T:
        return self._retry.call(act)


def now() -> str:
    """Return the present time in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# -- the objects as JSON -------------------------------------------------------------------------------------------


def encode_position(position: DeliveryPosition) -> bytes:
    """Encode a position."""
    return _text(number=position.number, cursor=position.cursor)


def decode_position(content: bytes, key: str) -> DeliveryPosition:
    """Decode the position with the number in a key; raises `Damaged`."""

    def build(found: dict[str, Any]) -> DeliveryPosition:
        number = int(key.rpartition("/")[2])
        if found["number"] != number:
            raise ValueError(f"it is the position {found['number']!r:.40}")
        return DeliveryPosition(number, str(EventCursor.parse(found["cursor"])))

    return _decoded(content, key, build)


def encode_letter(letter: DeadLetter) -> bytes:
    """Encode a dead letter; its events are CloudEvents."""
    delivery = letter.delivery
    return _text(
        at=letter.at,
        problem=letter.problem,
        number=delivery.number,
        source=delivery.source,
        cursor=delivery.cursor,
        events=[fields_of(event, delivery.source) for event in delivery.events],
    )


def decode_letter(content: bytes, key: str) -> DeadLetter:
    """Decode a dead letter; raises `Damaged`."""

    def build(found: dict[str, Any]) -> DeadLetter:
        events = [event_of(each) for each in found["events"]]
        delivery = Delivery(int(found["number"]), str(found["source"]), events, str(found["cursor"]))
        return DeadLetter(delivery, str(found["at"]), str(found["problem"]))

    return _decoded(content, key, build)


def _text(**fields: Any) -> bytes:
    return json.dumps({"format": _FORMAT, **fields}, separators=(",", ":")).encode()


def _decoded(content: bytes, key: str, build: Callable[[dict[str, Any]], T]) -> T:
    try:
        found = json.loads(content)
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT}; a later release of Lancekeep may have written it")
        return build(found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidInput, Damaged) as error:
        raise Damaged(
            f"{key} does not hold what its name says: {error!r:.200}. If it is a position, the subscriber begins again "
            "by its setting 'start' once the object is removed; a dead letter cannot be replayed"
        ) from error
