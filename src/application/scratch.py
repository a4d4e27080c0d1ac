"""Scratch directories: the table engine reads and writes directories only."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A directory in memory, if the system has one."""


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
