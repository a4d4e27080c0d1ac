"""Power losses during any processes, native code included, by their system calls in strace.

A call is there once it has begun. A sync is once it has ended, for what was there when it began. So no effect precedes
its cause where processes overlap, and nothing counts as synced too early. A call that is not understood is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path

import attrs
import pytest
from powerless import Moment, Names, Write, written

_CALLS = (
    "open(at)?|write|pwrite64|lseek|ftruncate|f(data)?sync|mmap|link(at)?|rename(at2?)?|unlink(at)?|mkdir(at)?|rmdir"
    "|creat|openat2|pwritev2?|writev|truncate|fallocate|copy_file_range|sendfile|splice|symlink(at)?|io_.*"  # refused
)
_LINE = re.compile(r"(\d+) +(<\.\.\. \w+ resumed>)?(.*?)(<unfinished \.\.\.>)?")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\w+|\?).*")
_BYTES = r"((?:\\x[0-9a-f]{2})*)"
_ARGUMENT = re.compile(rf'(\w+)<{_BYTES}>(\(deleted\))?|"{_BYTES}"')


@attrs.frozen
class _Descriptor:
    """An open file and its last path; if ``deleted``, another file may have the path."""

    number: int
    path: str
    deleted: bool


_SAME = {
    "openat": "open",
    "linkat": "link",
    "renameat": "rename",
    "renameat2": "rename",
    "unlinkat": "unlink",
    "mkdirat": "mkdir",
}
"""Calls with a directory before each path."""
_Argument = str | bytes | _Descriptor
"""Paths are text; bytes are content."""


@attrs.define(eq=False)
class _Call:
    """A call of a process, without the suffix -at and with absolute paths."""

    text: str = ""
    name: str = ""
    arguments: list[_Argument] = attrs.field(factory=list)
    result: int = -1
    reached: int = 0
    """The length of the history at the start of a sync."""

    def understand(self) -> None:
        found = _CALL.fullmatch(self.text)
        if found is None:
            raise NotImplementedError(f"strace told what is not understood: {self.text:.300}")
        name, arguments, result = found.groups()
        self.result = -1 if result == "?" else int(result, 0)
        self.name = _SAME.get(name, name)
        base = "/"
        for text in arguments.strip().split(", "):
            argument = _argument(text)
            if isinstance(argument, bytes) and "write" not in name:
                self.arguments.append(os.path.join(base, os.fsdecode(argument)))
            elif isinstance(argument, _Descriptor) and name in _SAME:
                base = argument.path
            else:
                self.arguments.append(argument)


def _argument(text: str) -> _Argument:
    found = _ARGUMENT.fullmatch(text)
    if found is None:
        return text
    number, place, deleted, data = found.groups()
    if number is None:
        return _decoded(data)
    return _Descriptor(-1 if number == "AT_FDCWD" else int(number), os.fsdecode(_decoded(place)), bool(deleted))


def _decoded(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@attrs.define(eq=False)
class _File:
    history: list[Write] = attrs.field(factory=list)
    reached: int = 0
    """The length of the synced part of the history, by ``content``."""
    content: bytes = b""

    def sync(self, reached: int) -> None:
        if reached > self.reached:
            self.content = reduce(written, self.history[self.reached : reached], self.content)
            self.reached = reached


@attrs.define(eq=False)
class _Directory:
    history: list[Names] = attrs.field(factory=lambda: [{}])
    reached: int = 1

    def sync(self, reached: int) -> None:
        self.reached = max(self.reached, reached)


class Trace:
    """Runs ``command``, which works in the empty ``directory``.

    told: the lines that it wrote to the file ``ear``, one at once, each with the number of moments before it.
    """

    def __init__(self, command: Sequence[str], directory: Path, ear: Path) -> None:
        self._root = os.path.realpath(directory)
        self._ear = os.path.realpath(ear)
        self._files: list[_File] = []
        self._directories = {self._root: _Directory()}
        self._removed: dict[str, int] = {}
        """The files that had a name last: descriptors may still be open."""
        self._positions: dict[tuple[int, int], int | None] = {}
        """The next write offset of a descriptor; None appends."""
        self.moments: list[Moment] = []
        self.told: list[tuple[int, str]] = []
        self._moment("the beginning")
        lines = _traced(command, ear.with_suffix(".strace"))
        for begins, call in _steps(lines, (self._root, self._ear)):
            self._take(begins, call)

    def _take(self, begins: bool, call: _Call) -> None:
        places = [place.path if isinstance(place, _Descriptor) else place for place in call.arguments]
        if begins and call.name == "write" and places[0] == self._ear:
            self.told.append((len(self.moments), os.fsdecode(places[1])))
        inside = [place for place in places if isinstance(place, str) and f"{place}/".startswith(f"{self._root}/")]
        if not inside:
            return
        syncs = call.name in ("fsync", "fdatasync")
        try:
            if syncs:
                self._sync(begins, call)
            elif begins:
                getattr(self, f"_{call.name}")(call.result, *call.arguments)
        except (AttributeError, KeyError, TypeError) as error:
            raise NotImplementedError(f"{call.name}{call.arguments}, which strace told, is not understood") from error
        if begins != syncs:
            self._moment(f"{call.name} {inside[0].removeprefix(self._root)}")

    def _moment(self, call: str) -> None:
        self.moments.append(
            Moment(
                self._root,
                call,
                {number: file.content for number, file in enumerate(self._files)},
                {path: directory.history[directory.reached - 1] for path, directory in self._directories.items()},
                {path: directory.history[-1] for path, directory in self._directories.items()},
                {number: file.history[file.reached :] for number, file in enumerate(self._files)},
            )
        )

    # -- files ----------------------------------------------------------------------------------------------------

    def _open(self, descriptor: int, path: str, flags: str, _mode: str = "") -> None:
        if "O_SYNC" in flags or "O_DSYNC" in flags:
            raise KeyError(flags)
        if path in self._directories:
            return
        number = self._named(path)
        if number is None and "O_CREAT" in flags:
            number = len(self._files)
            self._files.append(_File())
            self._name(path, number)
        elif number is not None and "O_TRUNC" in flags:
            self._files[number].history.append((0, None))
        if number is not None:
            self._positions[descriptor, number] = None if "O_APPEND" in flags else 0

    def _write(self, count: int, descriptor: _Descriptor, data: bytes, _count: str) -> None:
        number = self._number(descriptor)
        position = self._positions[descriptor.number, number]
        if position is None:
            file = self._files[number]
            self._put(number, len(reduce(written, file.history[file.reached :], file.content)), data[:count])
        else:
            self._put(number, position, data[:count])
            self._positions[descriptor.number, number] = position + count

    def _pwrite64(self, count: int, descriptor: _Descriptor, data: bytes, _count: str, offset: str) -> None:
        if not _is_memory(descriptor):
            self._put(self._number(descriptor), int(offset), data[:count])

    def _ftruncate(self, _: int, descriptor: _Descriptor, length: str) -> None:
        if not _is_memory(descriptor):
            self._put(self._number(descriptor), int(length), None)

    def _put(self, number: int, offset: int, piece: bytes | None) -> None:
        self._files[number].history.append((offset, piece))

    def _lseek(self, position: int, descriptor: _Descriptor, *_: str) -> None:
        self._positions[descriptor.number, self._number(descriptor)] = position

    def _mmap(self, _: int, _where: str, _length: str, access: str, flags: str, file: _Descriptor, *_more: str) -> None:
        if "MAP_SHARED" in flags and "PROT_WRITE" in access and not _is_memory(file):
            raise KeyError(flags)

    def _sync(self, begins: bool, call: _Call) -> None:
        descriptor = call.arguments[0]
        assert isinstance(descriptor, _Descriptor)
        synced = self._directories.get(descriptor.path) or self._files[self._number(descriptor)]
        if begins:
            call.reached = len(synced.history)
        else:
            synced.sync(call.reached)

    def _number(self, descriptor: _Descriptor) -> int:
        number = self._removed[descriptor.path] if descriptor.deleted else self._named(descriptor.path)
        if number is None:
            raise KeyError(descriptor.path)
        return number

    # -- names ----------------------------------------------------------------------------------------------------

    def _link(self, _: int, source: str, target: str, _flags: str = "") -> None:
        number = self._named(source)
        if number is None:
            raise KeyError(source)
        self._name(target, number)

    def _rename(self, _: int, source: str, target: str, flags: str = "0") -> None:
        if source in self._directories or flags not in ("0", "RENAME_NOREPLACE"):
            raise KeyError(source)
        replaced = self._named(target)
        if replaced is not None:
            self._removed[target] = replaced
        self._link(0, source, target)
        self._remove(source)

    def _unlink(self, _: int, path: str, flags: str = "0") -> None:
        if flags == "AT_REMOVEDIR":
            self._rmdir(0, path)
        else:
            self._removed[path] = self._number(_Descriptor(-1, path, deleted=False))
            self._remove(path)

    def _mkdir(self, _: int, path: str, _mode: str) -> None:
        self._name(path, None)
        self._directories[path] = _Directory()

    def _rmdir(self, _: int, path: str) -> None:
        self._remove(path)
        del self._directories[path]

    def _named(self, path: str) -> int | None:
        directory, name = os.path.split(path)
        return self._directories[directory].history[-1].get(name)

    def _name(self, path: str, number: int | None) -> None:
        directory, name = os.path.split(path)
        history = self._directories[directory].history
        history.append({**history[-1], name: number})

    def _remove(self, path: str) -> None:
        directory, name = os.path.split(path)
        history = self._directories[directory].history
        history.append({other: number for other, number in history[-1].items() if other != name})


def _is_memory(file: _Descriptor) -> bool:
    """Return whether a file is SQLite's shared memory, which the first process initializes again."""
    return file.path.endswith("-shm")


def _traced(command: Sequence[str], log: Path) -> list[str]:
    if not shutil.which("strace"):
        pytest.skip("needs strace, which tells the system calls of a process: install the package strace")
    allowed = subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode:
        pytest.skip(f"strace may not trace here (containers: --cap-add=SYS_PTRACE): {allowed.stderr.strip()}")
    options = ["-f", "-y", "-xx", "-s", str(2**24), "-e", f"trace=/^({_CALLS})$", "-e", "signal=none", "-o", str(log)]
    subprocess.run(["strace", *options, *command], check=True, cwd="/")
    return log.read_text("ascii").splitlines()


def _steps(lines: Iterable[str], places: Sequence[str]) -> Iterator[tuple[bool, _Call]]:
    """Return the start (True) and the end (False) of each successful call at these places."""
    steps: list[tuple[bool, _Call]] = []
    running: dict[str, _Call] = {}
    for line in lines:
        found = _LINE.fullmatch(line)
        assert found, line[:300]
        process, resumed, text, unfinished = found.groups()
        if text.startswith("+++"):
            continue
        call = running.pop(process) if resumed else _Call()
        call.text += text
        if not resumed:
            steps.append((True, call))
        if unfinished:
            running[process] = call
        else:
            steps.append((False, call))
    marks = [_hexadecimal(place) for place in places]
    for begins, call in steps:
        if any(mark in call.text for mark in marks):
            if begins:
                call.understand()
            if call.result >= 0:
                yield begins, call


def _hexadecimal(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(text))
