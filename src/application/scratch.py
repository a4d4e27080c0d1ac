"""Scratch directories: the table engine reads and writes directories only."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A directory in memory, if the system has one."""
_OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a directory that is removed afterwards.

    Unlike `tempfile.TemporaryDirectory`, a forked child does not remove the directories of its parent when it exits.
    """
    directory = tempfile.mkdtemp(prefix="lancekeep-", dir=_MEMORY)
    try:
        yield Path(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def scratch_file(name: str) -> Iterator[str]:
    """Yield the path of a new file in a directory of its own.

    Both are removed afterwards. It makes a quarter of the system calls of `scratch_directory`, and each of them may
    cost a busy process a switch of threads.
    """
    directory = f"{_MEMORY or tempfile.gettempdir()}/lancekeep-{uuid4().hex}"
    os.mkdir(directory, 0o700)
    path = f"{directory}/{name}"
    try:
        yield path
    finally:
        try:
            os.unlink(path)
            os.rmdir(directory)
        except OSError:  # the file was not written, or there are others
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def disk_directory(purpose: str) -> Iterator[Path]:
    """Yield a directory on disk that is removed afterwards.

    Also removes the directories that killed processes left: a living process locks its own.

    Args:
        purpose: A part of the name of the directory.
    """
    prefix = f"lancekeep-{purpose}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            _remove_unlocked(left)
    directory, lock = _locked_directory(prefix)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _remove_unlocked(directory: Path) -> None:
    lock = os.open(directory, _OPENED)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory)
    finally:
        os.close(lock)


def _locked_directory(prefix: str) -> tuple[Path, int]:
    """Create and lock a directory, again if another process removes it before it is locked."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):
            lock = os.open(directory, _OPENED)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if directory.exists():
                return directory, lock
            os.close(lock)
