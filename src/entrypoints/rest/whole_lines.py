"""Lines of several processes in one pipe.

The system writes up to 4 KiB to a pipe at once. A longer line is written in parts while the pipe is full, and lines of
other processes come between them. So the processes of a server lock the pipe for each line.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Final, TextIO

_STEP: Final = 0.001
"""The seconds between two attempts to lock a pipe."""
_PATIENCE: Final = 1.0
"""The seconds after which a process writes without the lock, if the pipe has room: its holder must be stopped."""


def log_stream(number: int) -> TextIO:
    """Return an open file as a stream for the lines of a log.

    It stays open: threads may write to the log until the process ends.
    """
    os.set_inheritable(number, False)
    mode = os.fstat(number).st_mode
    kind = _WholeLines if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else io.TextIOWrapper
    return kind(open(number, "wb", closefd=False), encoding="utf-8", errors="backslashreplace")


class _WholeLines(io.TextIOWrapper):
    """A stream each of whose writes arrives as a whole."""

    _threads = RLock()
    """The lock of the pipe is of a process, not of a thread."""
    _patience = _PATIENCE

    def write(self, text: str) -> int:
        with self._threads, self._alone():
            count = super().write(text)
            self.flush()
            return count

    @contextmanager
    def _alone(self) -> Iterator[None]:
        is_locked = self._lock()
        self._patience = _PATIENCE if is_locked else 0.0
        try:
            yield
        finally:
            if is_locked:
                fcntl.lockf(self.fileno(), fcntl.LOCK_UN)

    def _lock(self) -> bool:
        """Lock the pipe; return whether it is locked."""
        room = select.poll()
        room.register(self.fileno(), select.POLLOUT)
        waited = 0.0
        while True:
            try:
                fcntl.lockf(self.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                if waited >= self._patience:
                    return False
            except OSError:
                return False  # a system without locks of pipes
            else:
                return True
            time.sleep(_STEP)
            waited = waited + _STEP if room.poll(0) else 0.0  # a write to a full pipe would wait as well
