"""Write events as files of JSON lines, each event exactly once."""

from __future__ import annotations

import json

from lancekeep.application.events.cloud_events import event_of, fields_of
from lancekeep.domain.errors import Damaged, UnsafeStore
from lancekeep.domain.event_delivery import Attempt, Delivery, Result
from lancekeep.domain.events import EventCursor
from lancekeep.ports.object_store import ObjectStore

_LAST = 999_999_999
"""In names the place of the last event of a batch, whose cursor names the batch only."""


class EventFiles:
    """Creates one file for each delivery, by put-if-absent.

    The name of a file is the place of its first event in the log, so names are in order, and two servers that write the
    same event write the same name: one of them creates the file, and the other goes on after its last event.

    Args:
        objects: The object store.
        directory: The key of the directory.

    Raises:
        UnsafeStore: The storage has no create-only write.
    """

    def __init__(self, objects: ObjectStore, directory: str) -> None:
        self._objects = objects
        self._directory = f"{directory}/" if directory else ""
        if not objects.guarantees.atomic_create:
            raise UnsafeStore(
                f"{objects.root_uri}{directory}: files of events need a create-only write, and the storage has none"
            )
        objects.prove()

    def deliver(self, delivery: Delivery) -> Attempt:
        """Create the file of the events, or find the end of the file that exists."""
        key = self._directory + name_of(delivery)
        lines = [json.dumps(fields_of(event, delivery.source)) + "\n" for event in delivery.events]
        if self._objects.put_if_absent(key, "".join(lines).encode()):
            return Attempt(Result.TAKEN)
        end = self._end_of(key, EventCursor.parse(delivery.events[0].cursor))
        return Attempt(Result.TAKEN, cursor=None if end == delivery.events[-1].cursor else end)

    def _end_of(self, key: str, first: EventCursor) -> str:
        """Return the cursor after a file that begins with the event before the position ``first``.

        Raises:
            Damaged: It is no such file. To go on after it would repeat events without an end, or lose some.
        """
        last = self._objects.get(key).splitlines()[-1:]
        try:
            end = event_of(json.loads(last[0])).cursor
            found = EventCursor.parse(end)
            if found.log != first.log or found.precedes(first):
                raise ValueError(f"it ends at {end}, before its beginning, or belongs to another log")
        except (IndexError, ValueError, RecursionError, Damaged) as error:
            raise Damaged(
                f"{self._objects.root_uri}{key} is not a file of events, and has the name of the next one. Remove it"
            ) from error
        return end

    def close(self) -> None:
        """Close the connections of the object store."""
        self._objects.close()


def name_of(delivery: Delivery) -> str:
    """Return the name of the file of a delivery."""
    first = EventCursor.parse(delivery.events[0].cursor)
    return f"{first.batch:020}-{_LAST if first.index is None else first.index:09}-{first.log}.jsonl"
