"""A disk that loses what was not synced: what a power loss at any system call below a directory would leave there.

The contents of a file are on the disk once the file is synced, a name once its directory is. The worst cases are shown:
see `Loss`. `Disk` watches the calls that Python makes in this process, `traced.Trace` those of any processes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import attrs
import pytest

from lancekeep.domain.errors import LancekeepError

T = TypeVar("T")
Names = dict[str, int | None]
"""The entries of a directory: numbers of files, or None for directories."""
Write = tuple[int, bytes | None]
"""The bytes written to a file from an offset; None truncates the file there."""
Left = dict[str, bytes | None]
"""The entries in order, directories (None) before their entries."""


class Loss(Enum):
    """The effects that a power loss removes."""

    EVERYTHING_UNSYNCED = "everything that was not synced"
    CONTENTS = "contents that were not synced"
    SECOND_HALVES = "the second half of every write that was not synced"


@attrs.frozen
class Moment:
    """The disk after one system call. synced: contents of files. durable, present: the directories.

    unsynced: what was written to files since, where that is known; it counts as lost where it is not.
    """

    root: str
    call: str
    synced: dict[int, bytes]
    durable: dict[str, Names]
    present: dict[str, Names]
    unsynced: Mapping[int, Sequence[Write]] = {}

    def lose(self, loss: Loss) -> None:
        """Restore the directory to the state after a power loss at this moment."""
        shutil.rmtree(self.root)
        for path, content in self.left_by(loss).items():
            if content is None:
                os.mkdir(path)
            else:
                Path(path).write_bytes(content)

    def left_by(self, loss: Loss) -> Left:
        directories = self.durable if loss is Loss.EVERYTHING_UNSYNCED else self.present
        left: Left = {self.root: None}
        waiting = [self.root]
        while waiting:
            directory = waiting.pop()
            for name, number in directories.get(directory, {}).items():
                path = f"{directory}/{name}"
                left[path] = None if number is None else self._content(number, loss)
                if number is None:
                    waiting.append(path)
        return left

    def _content(self, number: int, loss: Loss) -> bytes:
        content = self.synced.get(number, b"")
        if loss is Loss.SECOND_HALVES:
            for offset, piece in self.unsynced.get(number, ()):
                content = written(content, (offset, piece and piece[: len(piece) // 2]))
        return content


def written(content: bytes, write: Write) -> bytes:
    """Return the content of a file after a write; a gap before it is zeros."""
    offset, piece = write
    before = content[:offset].ljust(offset, b"\0")
    return before if piece is None else before + piece + content[offset + len(piece) :]


def losses(
    moments: Iterable[Moment], acknowledged: Sequence[tuple[int, T]], check: Callable[[Sequence[T]], object]
) -> Iterator[str]:
    """What a power loss would take at each moment in every way: where ``check`` of what was acknowledged fails.

    acknowledged: with the number of moments before each.
    """
    checked: set[object] = set()
    for count, moment in enumerate(moments, 1):
        expected = [entry for before, entry in acknowledged if before <= count]
        for loss in Loss:
            state = frozenset(moment.left_by(loss).items()), len(expected)
            if state not in checked:
                checked.add(state)
                moment.lose(loss)
                try:
                    check(expected)
                except (AssertionError, LancekeepError) as error:
                    yield f"after {moment.call}, without {loss.value}: {error!r}"


class Disk:
    """Watches ``directory``, which exists; ``kept`` is an empty place on the same file system.

    Every file that is met gets a second name in ``kept``, so that no number is given twice. What other than Python
    writes is seen, its syncs are not.
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
        """Record all changes inside the context; earlier files count as synced."""
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
        self.moments.append(Moment(self._root, call, dict(self._contents), dict(self._durable), self._present()))

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
