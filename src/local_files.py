"""Local files, as several adapters use them."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

from lancekeep.domain.errors import InvalidInput, LancekeepError, StoreUnavailable, UnsafeStore, Unsupported

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


_READ_ONLY: Final = frozenset((errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY))
"""The errors of a file that this process may not replace; a file that is mounted by itself is busy."""

LOCK_SECONDS: Final = 10.0
"""How long a change waits for the changes of other processes."""


@contextmanager
def locked(path: Path, what: str) -> Iterator[Path]:
    """Let no other process change a file.

    Args:
        path: The file, which need not exist.
        what: What an error calls the file.

    Yields:
        The file that `replace_file` replaces: if the path is a symbolic link, its target.

    Raises:
        Unsupported: This process may not change the file.
        StoreUnavailable: Other processes hold the lock for too long, or the disk failed.
    """
    target = Path(os.path.realpath(path))
    lock = target.with_name(f".{target.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _keep_owner(descriptor, target if target.exists() else target.parent, mode=False)
    except OSError as error:
        raise _unchangeable(error, what, path) from error
    with os.fdopen(descriptor, "rb") as file:
        end = time.monotonic() + LOCK_SECONDS
        while not _is_locked(file.fileno()):
            if time.monotonic() >= end:
                raise StoreUnavailable(
                    f"{what} {path}: another process has held the lock of the file for {LOCK_SECONDS:g} seconds; "
                    "nothing was changed. Try again, or end the process"
                )
            time.sleep(0.02)
        yield target


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def replace_file(target: Path, content: bytes, what: str, path: Path, *, private: bool = True) -> None:
    """Replace a file as a whole, and sync it.

    The file keeps its owner if this process may give it away, and its mode.

    Args:
        target: The file, as `locked` yields it. A new file is readable by its owner alone.
        content: The content.
        what: What an error calls the file.
        path: The path that an error names.
        private: Whether a file with a new owner is readable by this owner alone.

    Raises:
        Unsupported: This process may not change the file.
        StoreUnavailable: The disk failed, for example because it is full.
    """
    staged = target.with_name(f".{target.name}.new")
    try:
        staged.unlink(missing_ok=True)  # of a process that was killed; the lock is this one's
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if target.exists():
                    _keep_owner(file.fileno(), target, private=private)
                file.write(content)
                file.flush()
                if target.exists():
                    _be_later(file.fileno(), target)
                os.fsync(file.fileno())
            os.replace(staged, target)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unchangeable(error, what, path) from error
    with suppress(OSError):  # not every file system syncs directories
        directory = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _be_later(descriptor: int, target: Path) -> None:
    """Give a file a later time than the file that it replaces.

    Two changes within a tick of the clock may bring an inode and a size back, and `WatchedFile` must see them.
    """
    old, new = os.stat(target), os.fstat(descriptor)
    if new.st_mtime_ns <= old.st_mtime_ns:
        os.utime(descriptor, ns=(new.st_atime_ns, old.st_mtime_ns + 1))


def _keep_owner(descriptor: int, target: Path, *, mode: bool = True, private: bool = True) -> None:
    """Give a file the owner of another file, if this process may, and its mode.

    A command of root must not take the file from the server that reads it.
    """
    old, new = os.stat(target), os.fstat(descriptor)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        with suppress(PermissionError):  # the owner is then this process, which can read the file
            os.fchown(descriptor, old.st_uid, old.st_gid)
            new = os.fstat(descriptor)
    if mode and (not private or (old.st_uid, old.st_gid) == (new.st_uid, new.st_gid)):
        os.fchmod(descriptor, old.st_mode & 0o777)


def _unchangeable(error: OSError, what: str, path: Path) -> LancekeepError:
    reason = error.strerror or type(error).__name__
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return InvalidInput(f"{what} {path} cannot be made: {reason}; make its directory")
    if error.errno in _READ_ONLY:
        return Unsupported(
            f"{what} {path} cannot be changed by this process ({reason}: {error.filename}); nothing was changed. "
            "Change the file where it comes from, such as a secret of Kubernetes, or let this process write in its "
            "directory"
        )
    return StoreUnavailable(f"{what} {path} cannot be changed: {reason}. Nothing was changed")


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
