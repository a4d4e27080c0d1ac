"""A disk that loses what was not synced: it watches the system calls below a directory, and can show what a power loss
at any of them would leave there.

The contents of a file are on the disk once the file is synced, a name once its directory is. Two worst cases are shown:
nothing that was not synced is there; or every name is there, and files that were not synced are empty.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import attrs
import pytest

T = TypeVar("T")
Names = dict[str, int | None]
"""What a directory names: the numbers of files; None for directories."""


class Loss(Enum):
    """What a power loss takes."""

    EVERYTHING_UNSYNCED = "everything that was not synced"
    CONTENTS = "contents that were not synced"


@attrs.frozen
class Moment:
    """The disk after one system call. contents: what is synced of each file. durable, present: the directories."""

    call: str
    contents: dict[int, bytes]
    durable: dict[str, Names]
    present: dict[str, Names]


class Disk:
    """Watches ``directory``, which exists; ``kept`` is an empty place on the same file system.

    Every file that is met gets a second name in ``kept``, so that no number is given twice.
    """

    def __init__(self, directory: Path, kept: Path) -> None:
        self._root = os.path.realpath(directory)
        self._kept = kept
        self._lock = RLock()
        self._files: dict[int, int] = {}
        self._directories: dict[int, str] = {}
        self._contents: dict[int, bytes] = {}
        self._durable: dict[str, Names] = {}
        self.moments: list[Moment] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """All that happens inside is seen; what was there before counts as synced."""
        for directory, names in self._present().items():
            self._durable[directory] = names
            for name, number in names.items():
                if number is not None:
                    self._contents[number] = Path(directory, name).read_bytes()
        self._moment("the beginning")
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "write", "fsync", "link", "rename", "replace", "unlink", "mkdir", "rmdir"):
                patch.setattr(os, name, self._seen(name, getattr(os, name)))
            yield

    def lose(self, moment: Moment, loss: Loss) -> None:
        """Make the directory what a power loss at that moment leaves."""
        directories = moment.durable if loss is Loss.EVERYTHING_UNSYNCED else moment.present
        shutil.rmtree(self._root)
        self._restore(self._root, directories, moment.contents)

    def _restore(self, directory: str, directories: dict[str, Names], contents: dict[int, bytes]) -> None:
        os.mkdir(directory)
        for name, number in directories.get(directory, {}).items():
            path = f"{directory}/{name}"
            if number is None:
                self._restore(path, directories, contents)
            else:
                Path(path).write_bytes(contents.get(number, b""))

    def _seen(self, name: str, call: Callable[..., T]) -> Callable[..., T]:
        @wraps(call)
        def seen(*args: Any, **kwargs: Any) -> T:
            with self._lock:
                result = call(*args, **kwargs)
                if name == "open":
                    self._opened(result, args[0])
                if name == "fsync":
                    self._synced(args[0])
                about = args[0] if isinstance(args[0], str) else self._path(args[0])
                if about.startswith(self._root):
                    self._moment(f"{name} {about.removeprefix(self._root)}")
                return result

        return seen

    def _path(self, descriptor: object) -> str:
        if not isinstance(descriptor, int):
            return str(descriptor)
        known = descriptor in self._files or descriptor in self._directories
        return f"{self._root}/… ({self._directories.get(descriptor, 'a file')})" if known else ""

    def _opened(self, descriptor: Any, path: Any) -> None:
        self._files.pop(descriptor, None)
        self._directories.pop(descriptor, None)
        if not os.path.realpath(path).startswith(self._root):
            return
        if os.path.isdir(path):
            self._directories[descriptor] = os.path.realpath(path)
        else:
            self._files[descriptor] = self._number(str(path))

    def _synced(self, descriptor: int) -> None:
        if descriptor in self._directories:
            directory = self._directories[descriptor]
            self._durable[directory] = self._names(directory)
        elif descriptor in self._files:
            number = self._files[descriptor]
            self._contents[number] = (self._kept / str(number)).read_bytes()

    def _moment(self, call: str) -> None:
        self.moments.append(Moment(call, dict(self._contents), dict(self._durable), self._present()))

    def _present(self) -> dict[str, Names]:
        found: dict[str, Names] = {}
        waiting = [self._root]
        while waiting:
            directory = waiting.pop()
            found[directory] = names = self._names(directory)
            waiting += [f"{directory}/{name}" for name, number in names.items() if number is None]
        return found

    def _names(self, directory: str) -> Names:
        with os.scandir(directory) as entries:
            return {entry.name: None if entry.is_dir() else self._number(entry.path) for entry in entries}

    def _number(self, path: str) -> int:
        number = os.stat(path).st_ino
        if not (self._kept / str(number)).exists():
            _LINK(path, self._kept / str(number))
        return number


_LINK = os.link
