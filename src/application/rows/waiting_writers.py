"""Tell committers of other processes that a writer of a table has lost a commit.

A native writer loses to a committer of appends that does not pause for long enough, and waits longer before each
further attempt. Lancekeep sees each lost commit in the process of the writer, and changes a small object. So does a
committer of appends that loses every version to a faster one of another process. A busy committer reads the object,
and gives way after a change. No safety depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from threading import Lock
from uuid import uuid4

from lancekeep.application.concurrency import in_background
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.table import WAITING_DIRECTORY
from lancekeep.ports.object_store import ObjectStore

_EVERY = 0.2
_REMEMBERED = 256
"""The number of tables whose last change by this process is remembered."""
_ONE_TURN = b"turn"
"""The end of the object if the loser needs one version, and no pauses after it."""


class WaitingWriters:
    """The objects that waiting writers change, one for each table.

    Args:
        objects: The object store.
        prefix: The prefix of every key of the catalog.
        clock: Returns monotonic seconds.
    """

    def __init__(self, objects: ObjectStore, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._objects = objects
        self._prefix = f"{prefix}{WAITING_DIRECTORY}/"
        self._clock = clock
        self._lock = Lock()
        self._changed: dict[ObjectId, float] = {}
        self._process = uuid4().bytes

    def add(self, table: ObjectId, *, for_one_turn: bool = False) -> None:
        """Change the object of a table in the background, at most five times a second.

        Args:
            table: The table.
            for_one_turn: The loser rebases its commit in memory, and needs no pauses to commit.
        """
        now = self._clock()
        with self._lock:
            if now - self._changed.get(table, float("-inf")) < _EVERY:
                return
            if len(self._changed) == _REMEMBERED:
                self._changed.clear()
            self._changed[table] = now
        with suppress(RuntimeError):  # the system starts no thread
            in_background(partial(self._change, self._key(table), for_one_turn))

    def last(self, table: ObjectId) -> bytes:
        """Return the content of the object; empty if it cannot be read."""
        with suppress(LancekeepError):
            return self._objects.get(self._key(table))
        return b""

    def is_own(self, content: bytes) -> bool:
        """Return whether a writer of this process has changed an object."""
        return content.startswith(self._process)

    def needs_pauses(self, content: bytes) -> bool:
        """Return whether the writer that has changed an object needs pauses to commit."""
        return not content.endswith(_ONE_TURN)

    def _change(self, key: str, for_one_turn: bool) -> None:
        with suppress(LancekeepError):  # the committer then makes its usual pauses
            self._objects.put(key, self._process + uuid4().bytes + for_one_turn * _ONE_TURN)

    def _key(self, table: ObjectId) -> str:
        return self._prefix + sha256(table.key.encode()).hexdigest()[:32]
