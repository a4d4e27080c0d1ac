"""Lines of several processes in one pipe.

The system writes up to 4 KiB to a pipe at once. A longer line is written in parts while the pipe is full, and lines of
other processes come between them. So the processes of a server lock the pipe for each line. A process that is killed in
the middle of a line leaves a mark, so that the next line begins after the torn one.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
import select
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Final, TextIO

_AT_ONCE: Final = 4096
"""The characters up to which the system writes a line as a whole."""
_STEP: Final = 0.001
"""The seconds between two attempts to lock a pipe."""
_PATIENCE: Final = 1.0
"""The seconds after which a process writes without the lock, if the pipe has room: its holder must be stopped."""


def log_stream(number: int, mark: int | None = None) -> TextIO:
    """Return an open file as a stream for the lines of a log.

    It stays open: threads may write to the log until the process ends.

    Args:
        number: The number of the file.
        mark: The number of the file with the mark of the processes that write to the same pipe; None for a new mark.
    """
    for each in (number, mark):
        if each is not None:
            os.set_inheritable(each, False)
    mode = os.fstat(number).st_mode
    file = open(number, "wb", closefd=False)  # noqa: SIM115 - it stays open
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return _WholeLines(file, _new_mark() if mark is None else mark)
    return io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace")


def numbers_of(stream: TextIO) -> tuple[int, ...]:
    """Return the arguments of `log_stream` for another process."""
    return (stream.fileno(), stream.mark) if isinstance(stream, _WholeLines) else (stream.fileno(),)


def _new_mark() -> int:
    if not hasattr(os, "memfd_create"):
        return os.dup(tempfile.TemporaryFile().fileno())
    return os.memfd_create("lancekeep-log")


class _WholeLines(io.TextIOWrapper):
    """A stream each of whose writes arrives as a whole.

    Attributes:
        mark: The number of the file with the mark.
    """

    _threads = RLock()
    """The lock of the pipe is of a process, not of a thread."""
    _patience = _PATIENCE

    def __init__(self, file: io.BufferedWriter, mark: int) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace")
        self.mark = mark
        os.ftruncate(mark, 1)
        self._is_torn = mmap.mmap(mark, 1)

    def write(self, text: str) -> int:
        with self._threads, self._alone() as is_alone:
            torn = "\n" if self._is_torn[0] else ""  # its process has ended, or is stopped
            self._is_torn[0] = is_alone and len(text) > _AT_ONCE
            try:
                count = super().write(torn + text)
                self.flush()
                return count
            finally:
                self._is_torn[0] = False

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        is_locked = self._lock()
        self._patience = _PATIENCE if is_locked else 0.0
        try:
            yield is_locked
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
