"""A lease on the maintenance of a catalog, in its object store.

A lease only keeps two workers from doing the same work. Every action is safe without it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from uuid import uuid4

from lancekeep.domain.errors import ObjectNotFound
from lancekeep.domain.table import MAINTENANCE_DIRECTORY
from lancekeep.ports.object_store import ObjectStore

_DIGITS = 20


class Lease:
    """A lease with a fencing token: the number of the newest object in a directory.

    The holder renews it by the next number. A worker that sees the same number for a whole term, by its own monotonic
    clock, creates the next object by put-if-absent, which one worker wins. No clock is compared with another.

    Args:
        objects: The object store.
        prefix: The prefix of every key of the catalog.
        holder: The name of this worker.
        term: After how many seconds without renewal another worker may take the lease.
        name: The name of the lease in the catalog; empty for the lease on the whole catalog.
    """

    def __init__(self, objects: ObjectStore, prefix: str, holder: str, term: float, name: str = "") -> None:
        self._objects = objects
        self._directory = f"{prefix}{MAINTENANCE_DIRECTORY}" + (f"/{name}" if name else "")
        self._prefix = f"{self._directory}/"
        self._content = f"{holder}\n{uuid4().hex}".encode()
        self._term = term
        self._seen: tuple[int, float] | None = None
        self.token: int | None = None

    @property
    def seen(self) -> int | None:
        """The token of another worker that `acquire` saw last."""
        return None if self._seen is None else self._seen[0]

    def acquire(self, now: float) -> bool:
        """Take the lease if it is free, or if its holder has not renewed it for a term.

        Args:
            now: The monotonic time in seconds.
        """
        newest = self._newest()
        if newest:
            if self._seen is None or self._seen[0] != newest:
                self._seen = (newest, now)
            if now - self._seen[1] < self._term:
                return False
        return self._advance(newest)

    def renew(self) -> bool:
        """Renew the lease; False if another worker has taken it."""
        newest = self._newest()
        if self.token is None or (newest != self.token and not self._is_own(newest)):
            self.token = None
            return False
        return self._advance(newest)

    def release(self) -> None:
        """Give the lease up. Idempotent."""
        if self.token is not None and self._newest() == self.token:
            self._objects.delete(self._key(self.token))
            self._objects.prune(self._directory)
        self.token = None

    def holder(self) -> str | None:
        """Return the name of the worker that has the lease; None if it is free.

        The worker may have ended.
        """
        newest = self._newest()
        return self._read(newest).decode("utf-8", "replace").partition("\n")[0] if newest else None

    def present(self) -> datetime | None:
        """Return when this worker took or renewed the lease, by the storage.

        None if it does not have the lease.
        """
        info = None if self.token is None else self._objects.head(self._key(self.token))
        return None if info is None else info.modified

    def _advance(self, newest: int) -> bool:
        token = newest + 1
        is_created = self._objects.put_if_absent(self._key(token), self._content) or self._is_own(token)
        self.token = token if is_created else None
        if self.token is None:
            return False
        for number in self._numbers():
            if number < token:
                self._objects.delete(self._key(number))
        return True

    def _is_own(self, token: int) -> bool:
        """Return whether this worker created an object: the reply to its request may have been lost."""
        with suppress(ObjectNotFound):
            return self._read(token) == self._content
        return False

    def _read(self, token: int) -> bytes:
        return self._objects.get(self._key(token))

    def _newest(self) -> int:
        return max(self._numbers(), default=0)

    def _numbers(self) -> list[int]:
        names = [info.key.removeprefix(self._prefix) for info in self._objects.list(self._prefix)]
        return [int(name) for name in names if name.isdecimal() and len(name) == _DIGITS]

    def _key(self, token: int) -> str:
        return f"{self._prefix}{token:0{_DIGITS}}"
