"""The log of events in the object store of a catalog (ADR 159)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import islice, pairwise

from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.directory import Directory
from lancekeep.domain.errors import CursorExpired, ObjectNotFound, Refused, StoreUnavailable, UnsafeStore
from lancekeep.domain.events import Event, EventBatch, EventCursor, EventPage
from lancekeep.domain.table import EVENTS_DIRECTORY
from lancekeep.format.event_log import (
    Checkpoint,
    decode_batch,
    decode_checkpoint,
    encode_batch,
    encode_checkpoint,
)
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

_DIGITS = 20
_MOST_BATCHES = 1000
"""How many batches one page reads at most; some have no events."""


class EventLog:
    """The batches of a log, and the checkpoints of what they cover.

    A batch is created once, by put-if-absent under its number. Batches are removed in order, the oldest first, and
    never the last one, nor one after the newest checkpoint.

    Args:
        objects: The object store.
        prefix: The prefix of every key of the catalog.
        retry: Retries requests.
        feed: Returns the feed from which the log is recorded, or raises `Unsupported`.
    """

    def __init__(
        self, objects: ObjectStore, prefix: str, retry: Retry, feed: Callable[[], object] = lambda: None
    ) -> None:
        self._objects = objects
        self._feed = feed
        self._retry = retry
        self._batches = f"{prefix}{EVENTS_DIRECTORY}/log/"
        self._checkpoints = f"{prefix}{EVENTS_DIRECTORY}/checkpoints/"
        self._root = objects.root_uri + prefix

    @classmethod
    def of(cls, own: Directory) -> EventLog:
        """Return the log of a catalog."""
        return cls(own.places.objects, own.places.prefix, own.commits.retry, own.ledger.feed)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, after: EventCursor | None, limit: int) -> EventPage:
        """Return the next events after a cursor; None for the oldest that are kept.

        Raises:
            CursorExpired: The events are not kept any more, or the cursor is of another log.
            Refused: There is no log.
            Unsupported: There is none, and the store of the entries keeps no changes.
        """
        position = after or self.oldest()
        events: list[Event] = []
        source = ""
        for batch in islice(self.batches(position.batch - (position.index is not None)), _MOST_BATCHES):
            if batch.log != position.log:
                raise self._expired(position)
            new = batch.after(position.index or 0)[: limit - len(events)]
            events += new
            position = EventCursor.parse(new[-1].cursor) if new else EventCursor(batch.log, batch.number)
            source = batch.source
            if len(events) >= limit:
                break
        if not source:  # the batch of the cursor is the last one, or it is gone
            last = self.batch(position.batch)
            if last is None or last.log != position.log:
                raise self._expired(position)
            source = last.source
        return EventPage(events, str(position), source)

    def oldest(self) -> EventCursor:
        """Return the position before the oldest event; raises as `read`."""
        first = self._first()
        if first is None:
            self._feed()  # without a feed, nothing can begin a log
            raise Refused(
                f"the catalog at {self._root} has no log of events. Start a server of the catalog with --events, or "
                "call catalog.events.record() (`lancekeep events --record`)"
            )
        return EventCursor(first.log, max(0, first.number - 1))

    def latest(self) -> EventCursor:
        """Return the position after the last batch. Raises `Refused` without a log."""
        checkpoint = self.checkpoint()
        if checkpoint is None:
            return self.oldest()
        begin = self._key(checkpoint.number)
        infos = self._retry.call(lambda: list(self._objects.list(self._batches, after=begin)))
        numbers = map(self._number, filter(self._is_own, infos))
        return EventCursor(checkpoint.log, max(numbers, default=checkpoint.number))

    def batch(self, number: int) -> EventBatch | None:
        """Return a batch; None if it does not exist."""
        key = self._key(number)
        try:
            return decode_batch(self._retry.call(partial(self._objects.get, key)), key, number)
        except ObjectNotFound:
            return None

    def batches(self, after: int) -> Iterator[EventBatch]:
        """Yield the batches after a number, in order and without gaps."""
        number = after + 1
        while (batch := self.batch(number)) is not None:
            yield batch
            number += 1

    def _first(self) -> EventBatch | None:
        """Return the oldest batch that is kept; None without a log."""
        while (number := self._oldest_number()) is not None:
            if (batch := self.batch(number)) is not None:
                return batch
        return None

    def _oldest_number(self) -> int | None:
        """Return the first number without a gap after it: a late process may be about to take its batch back."""
        numbers = map(self._number, filter(self._is_own, self._objects.list(self._batches)))
        number = next(numbers, None)
        for following in numbers:
            if number is not None and following == number + 1:
                break
            number = following
        return number

    def _expired(self, cursor: EventCursor) -> CursorExpired:
        return CursorExpired(
            f"the log of events of {self._root}: the events after the cursor {str(cursor)!r:.120} are not kept, or "
            "the cursor is of another log. Take the cursor of events.latest(), list the catalog, and continue "
            "with that cursor"
        )

    def require_safe(self) -> None:
        """Raise `UnsafeStore` if the storage has no create-only write."""
        if not self._objects.guarantees.atomic_create:
            raise UnsafeStore(
                f"the log of events of {self._root} needs a create-only write, and the storage has none. Move the "
                "catalog to a storage that has one; `lancekeep certify` measures it"
            )
        self._objects.prove()

    # -- appending ----------------------------------------------------------------------------------------------

    def append(self, batch: EventBatch) -> bool:
        """Append a batch; return whether this call did, and not another process.

        Raises:
            StoreUnavailable: It is not known whether the batch was appended.
        """
        key, content = self._key(batch.number), encode_batch(batch)
        try:
            created = self._objects.put_if_absent(key, content)
        except StoreUnavailable:  # the reply may be lost
            created = self._retry.call(lambda: self._objects.put_if_absent(key, content))
        if not created:
            created = self._content(key) == content
        if created and batch.number and self._content(self._key(batch.number - 1)) is None:
            # This process was suspended for so long that the batches of this number and before were removed.
            self._retry.call(partial(self._objects.delete, key))
            return False
        return created

    def _content(self, key: str) -> bytes | None:
        try:
            return self._retry.call(partial(self._objects.get, key))
        except ObjectNotFound:
            return None

    # -- checkpoints --------------------------------------------------------------------------------------------

    def begin(self, checkpoint: Checkpoint, source: str) -> bool:
        """Begin the log; return whether this call did, and not another process."""
        self.write(checkpoint)
        if self.append(EventBatch(checkpoint.log, 0, source)):
            return True
        self._retry.call(partial(self._objects.delete, self._checkpoint_key(checkpoint)))
        return False

    def checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint of the log; None without a log."""
        for info in reversed(self._retry.call(lambda: list(self._objects.list(self._checkpoints)))):
            content = self._content(info.key)
            if content is None:
                continue
            checkpoint = decode_checkpoint(content, info.key)
            batch = self.batch(checkpoint.number)
            if batch is not None and batch.log == checkpoint.log:
                return checkpoint
        return None

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint."""
        key = self._checkpoint_key(checkpoint)
        self._retry.call(partial(self._objects.put, key, encode_checkpoint(checkpoint)))

    def clean_up(self, checkpoint: Checkpoint, keep: timedelta) -> int:
        """Remove older checkpoints and old batches; return the number of batches.

        A batch is old if its successor is: `append` recognizes by the predecessor of a new batch that the number was
        free because its batch was removed. Ages are differences of times of the storage. The listing ends at the first
        batch that is kept.

        Args:
            checkpoint: The newest one, which was written now.
            keep: The age of old batches.
        """
        for info in list(self._objects.list(self._checkpoints)):
            if info.key < self._checkpoint_key(checkpoint):
                self._objects.delete(info.key)
        written = self._objects.head(self._checkpoint_key(checkpoint))
        if written is None or written.modified is None:  # a process with a later checkpoint cleans up
            return 0
        old: list[str] = []
        for info, successor in pairwise(filter(self._is_own, self._objects.list(self._batches))):
            is_covered = self._number(info) < checkpoint.number
            is_apart = self._number(successor) != self._number(info) + 1  # left by a late process that was killed
            is_old = successor.modified is not None and written.modified - successor.modified > keep
            if not is_covered or not (is_apart or is_old):
                break
            old.append(info.key)
        for key in old:
            self._objects.delete(key)
        return len(old)

    def _checkpoint_key(self, checkpoint: Checkpoint) -> str:
        return f"{self._checkpoints}{checkpoint.number:0{_DIGITS}}-{checkpoint.log}"

    def _key(self, number: int) -> str:
        return f"{self._batches}{number:0{_DIGITS}}"

    def _is_own(self, info: ObjectInfo) -> bool:
        name = info.key.removeprefix(self._batches)
        return len(name) == _DIGITS and name.isascii() and name.isdecimal()

    def _number(self, info: ObjectInfo) -> int:
        return int(info.key.removeprefix(self._batches))
