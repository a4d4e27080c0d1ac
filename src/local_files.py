"""Local files, as several adapters use them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Final

from lancekeep.domain.errors import UnsafeStore

NO_HARD_LINKS: Final = frozenset(
    (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
)
"""The errors of a file system that refuses a hard link."""


def hard_link(source: str, target: str, place: str, advice: str) -> bool:
    """Give a file a second name; return False if the name is taken.

    Args:
        source: The path of the file.
        target: The path of the second name.
        place: What an error calls the place of the name.
        advice: What to do if the file system refuses.

    Raises:
        UnsafeStore: The file system refuses hard links.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        raise UnsafeStore(
            f"{place}: a hard link was refused ({error.strerror}), and nothing else here creates a file both whole and "
            f"for one writer only. Nothing was written. {advice}"
        ) from error
    return True


_PART: Final = 1 << 20


def content_of(path: str) -> bytes:
    """Return the content of a file; `open` would make three more system calls."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(file, os.fstat(file).st_size + 1)]
        while parts[-1]:
            parts.append(os.read(file, _PART))
        return b"".join(parts)
    finally:
        os.close(file)


Reloaded = Callable[[Path, str | None], None]
"""Receives the path of a file that was read again, and why its content was refused; None if it was accepted."""


def not_reported(path: Path, problem: str | None) -> None:
    """Ignore that a file was read again."""


class WatchedFile:
    """A file that is read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._seen = _stamp(path)

    def refresh(self, read: Callable[[], None]) -> None:
        """Call ``read`` if the file changed since the last call.

        Of concurrent calls, one reads.
        """
        stamp = _stamp(self.path)
        if stamp != self._seen:
            with self._lock:
                if stamp != self._seen:
                    read()
                    self._seen = stamp


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with the file; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
