"""The objects of the log of events, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from lancekeep.domain.errors import Damaged
from lancekeep.domain.events import Event, EventBatch, HistoryPosition, TablePosition
from lancekeep.domain.identifiers import ObjectId

_FORMAT = 1


@attrs.frozen
class Checkpoint:
    """What the log has covered up to a batch.

    Attributes:
        log: The id of the log.
        number: The number of the batch.
        position: The position in the changes of the catalog.
        positions: The positions of all tables.
    """

    log: str
    number: int
    position: str
    positions: Mapping[str, TablePosition]


def encode_batch(batch: EventBatch) -> bytes:
    """Encode a batch."""
    events = [[each.id, each.type, list(each.object_id.names), each.at, dict(each.data)] for each in batch.events]
    return _text(
        log=batch.log,
        number=batch.number,
        source=batch.source,
        position=batch.position,
        events=events,
        positions=_positions(batch.positions),
    )


def decode_batch(content: bytes, name: str, number: int) -> EventBatch:
    """Decode the batch with a number.

    Raises:
        Damaged: The bytes are no such batch.
    """
    try:
        found = _object(content)
        if found["number"] != number:
            raise ValueError(f"it is the batch {found['number']!r:.40} of a log")
        return EventBatch(
            str(found["log"]),
            number,
            str(found["source"]),
            str(found["position"]),
            tuple(_event(*each) for each in found["events"]),
            {place: _position(each) for place, each in found["positions"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(name, error) from error


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint."""
    return _text(
        log=checkpoint.log,
        number=checkpoint.number,
        position=checkpoint.position,
        positions=_positions(checkpoint.positions),
    )


def decode_checkpoint(content: bytes, name: str) -> Checkpoint:
    """Decode a checkpoint.

    Raises:
        Damaged: The bytes are no checkpoint.
    """
    try:
        found = _object(content)
        positions = {place: _position(each) for place, each in found["positions"].items()}
        known = {place: each for place, each in positions.items() if each is not None}
        return Checkpoint(str(found["log"]), int(found["number"]), str(found["position"]), known)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(name, error) from error


def _event(name: Any, kind: Any, names: Any, at: Any, data: Any) -> Event:
    former = data.get("former", [])
    if not isinstance(former, list) or not all(isinstance(each, str) for each in former):
        raise ValueError(f"the former names of an object are {former!r:.40}")
    return Event(str(name), str(kind), ObjectId(tuple(map(str, names))), int(at), dict(data))


def _text(**fields: Any) -> bytes:
    return json.dumps({"format": _FORMAT, **fields}, separators=(",", ":")).encode()


def _object(content: bytes) -> dict[str, Any]:
    found = json.loads(content)
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT}; a later release of Lancekeep may have written it")
    return found


def _positions(positions: Mapping[str, TablePosition | None]) -> dict[str, Any]:
    return {
        place: None
        if each is None
        else [each.key, {branch: [one.version, one.transaction] for branch, one in each.histories.items()}]
        for place, each in positions.items()
    }


def _position(found: Any) -> TablePosition | None:
    if found is None:
        return None
    key, histories = found
    return TablePosition(
        str(key),
        {branch: HistoryPosition(int(version), str(name)) for branch, (version, name) in histories.items()},
    )


def _damaged(name: str, error: Exception) -> Damaged:
    return Damaged(
        f"{name} is not a part of the log of events: {error!r:.200}. Stop the servers that record events, remove the "
        "directory of the log, and start them again: subscribers then list the catalog, and begin again"
    )
