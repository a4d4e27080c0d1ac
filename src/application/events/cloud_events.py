"""Events in the JSON format of CloudEvents 1.0."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from lancekeep.domain.errors import Damaged
from lancekeep.domain.events import Event
from lancekeep.domain.identifiers import ObjectId

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def fields_of(event: Event, source: str) -> dict[str, Any]:
    """Return an event as the members of a JSON object.

    ``subject`` has the names of the object joined by ``$``; the catalog itself has none. ``cursor`` is an extension.
    """
    found: dict[str, Any] = {"specversion": "1.0", "id": event.id, "source": source, "type": event.type}
    if event.object_id.names:
        found["subject"] = event.object_id.key
    if (time := time_of(event)) is not None:
        found["time"] = time
    return {**found, "datacontenttype": "application/json", "cursor": event.cursor, "data": dict(event.data)}


def time_of(event: Event) -> str | None:
    """Return the time of an event in the form of RFC 3339; None if it is unknown."""
    if event.at > 0:
        with suppress(OverflowError):  # the clock of a writer was off by thousands of years
            return f"{_EPOCH + event.at * _MICROSECOND:%Y-%m-%dT%H:%M:%S.%f}Z"
    return None


def event_of(fields: Mapping[str, Any]) -> Event:
    """Return the event that `fields_of` has written.

    Raises:
        Damaged: The object is no such event.
    """
    try:
        time = fields.get("time")
        at = 0 if time is None else (datetime.fromisoformat(time) - _EPOCH) // _MICROSECOND
        object_id = ObjectId.from_key(fields.get("subject", ""))
        return Event(fields["id"], fields["type"], object_id, at, dict(fields["data"]), fields["cursor"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise Damaged(f"the answer holds no event of Lancekeep: {error!r:.200}") from error
