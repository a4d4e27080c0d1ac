"""Wrappers of ports that count calls, fail them on command, or kill the caller."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.domain.errors import StoreUnavailable


class Crash(BaseException):
    """The process ends here; no handler may catch this."""


class Faulty:
    """A port object whose calls can fail, before or after they had their effect.

    ``decide(method, nth)`` is asked before each call (``nth`` counts all calls from 0) and answers None, or a pair of
    ``"before"`` or ``"after"`` and the exception to raise.
    """

    def __init__(
        self, target: Any, decide: Callable[[str, int], tuple[str, BaseException] | None] | None = None
    ) -> None:
        self._target = target
        self.decide = decide
        self.calls: list[str] = []

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.calls)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value) or name == "prove":  # sends no request of its own
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            fate = self.decide(name, len(self.calls)) if self.decide else None
            self.calls.append(name)
            if fate and fate[0] == "before":
                raise fate[1]
            result = value(*args, **kwargs)
            if fate:
                raise fate[1]
            return result

        return call


def lost_replies(method: str, times: int) -> Callable[[str, int], tuple[str, BaseException] | None]:
    """Lose the replies of the first ``times`` calls of ``method``, after their effect."""
    left = [times]

    def decide(name: str, _: int) -> tuple[str, BaseException] | None:
        if name != method or left[0] == 0:
            return None
        left[0] -= 1
        return "after", StoreUnavailable(f"{method}: the reply was lost")

    return decide


def crash_at(nth: int, when: str) -> Callable[[str, int], tuple[str, BaseException] | None]:
    """Kill the process at the ``nth`` call, ``before`` or ``after`` its effect."""
    return lambda _, count: (when, Crash()) if count == nth else None


READS = frozenset(
    (
        "get",
        "tail",
        "piece",
        "head",
        "list",
        "directories",
        "unfinished",
        "passes_link",
        "latest",
        "latest_all",
        "sort_out",
        "close",
    )
)
"""The methods of ports that write nothing."""


def killed_before_each_write(
    monkeypatch: pytest.MonkeyPatch, connect: Callable[[], Any], operation: Callable[[Any, int], object]
) -> Iterator[int]:
    """Kill an operation before each call of a port that may write; yield the number of the kill after each.

    The last operation is not killed. ``operation`` gets the number, for a place of its own. Where the engine writes
    several files by itself, `killed_at_each_state` also kills between them.
    """
    return _killed(monkeypatch, connect, operation, lambda method: method not in READS)


def killed_at_each_state(
    monkeypatch: pytest.MonkeyPatch, directory: Path, connect: Callable[[], Any], operation: Callable[[Any], object]
) -> Iterator[int]:
    """Kill an operation at the first call of a port after each change of ``directory``; yield the number of the kill.

    Every kill begins with the present content of the directory. The last operation is not killed.
    """
    before = directory.with_name(f"{directory.name}-before")
    shutil.copytree(directory, before)
    known = _files(directory)

    def restored() -> Any:
        nonlocal known
        shutil.rmtree(directory)
        shutil.copytree(before, directory)
        catalog = connect()
        known = _files(directory)
        return catalog

    def has_changed(_: str) -> bool:
        nonlocal known
        former, known = known, _files(directory)
        return known != former

    return _killed(monkeypatch, restored, lambda catalog, _: operation(catalog), has_changed)


def _files(directory: Path) -> frozenset[tuple[str, int, int, int]]:
    found = []
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # another thread has removed it
                status = os.stat(os.path.join(place, name))
                found.append((os.path.join(place, name), status.st_ino, status.st_size, status.st_mtime_ns))
    return frozenset(found)


def _killed(
    monkeypatch: pytest.MonkeyPatch,
    connect: Callable[[], Any],
    operation: Callable[[Any, int], object],
    counts: Callable[[str], bool],
) -> Iterator[int]:
    """Kill an operation at the first, second, … call of a port that counts, until it is not killed."""
    left = 0
    one_at_a_time = Lock()

    def decide(method: str, _: int) -> tuple[str, BaseException] | None:
        nonlocal left
        with one_at_a_time:
            left -= left <= 0 or counts(method)
            return ("before", Crash()) if left <= 0 else None

    for nth in count(1):
        died = True
        left = 1 << 30
        with monkeypatch.context() as patch:
            _subject_to(patch, decide)
            catalog = connect()
            left = nth
            try:
                operation(catalog, nth)
                died = left <= 0  # in another thread, after the outcome was known
            except BaseException:  # native code makes errors of its own of a callback that died
                if left > 0:
                    raise
        yield nth
        if not died:
            return


def _subject_to(patch: pytest.MonkeyPatch, decide: Callable[[str, int], tuple[str, BaseException] | None]) -> None:
    """Wrap every port that a catalog opens from now on."""

    def objects(root: str, options: Any, **how: Any) -> Any:
        store, key = open_object_store(root, options, **how)
        return Faulty(store, decide), key

    patch.setattr("lancekeep.composition.open_object_store", objects)
    patch.setattr("lancekeep.composition.open_commit_store", lambda *args: Faulty(open_commit_store(*args), decide))


class Meddler:
    """Another process that acts once, before the ``nth`` call of a port from `begin` on that ``counts``."""

    def __init__(self, nth: int, counts: Callable[[str], bool]) -> None:
        self._left = nth
        self._counts = counts
        self._act: Callable[[], object] | None = None
        self.method: str | None = None

    def begin(self, act: Callable[[], object]) -> None:
        self._act = act

    def decide(self, method: str, _: int) -> None:
        if self._act is None or not self._counts(method):
            return
        self._left -= 1
        if self._left == 0:
            act, self._act, self.method = self._act, None, method
            act()


def outcomes_beside(
    monkeypatch: pytest.MonkeyPatch,
    connect: Callable[[int], Any],
    prepare: Callable[[Any], Callable[[], object]],
    meddle: Callable[[Any], object],
    *,
    counts: Callable[[str], bool] = lambda method: True,
) -> Iterator[tuple[str, object]]:
    """Run an operation beside another process, which acts before the first, second, … call of a port.

    Yields the method of each such call, and the result of the operation or its error. ``connect`` gets the number of
    the call, for a new place each, and makes the catalogs of both processes. ``prepare`` returns the operation. Only
    calls of methods that ``counts`` are counted.
    """
    for nth in count(1):
        meddler = Meddler(nth, counts)
        with monkeypatch.context() as patch:
            _subject_to(patch, meddler.decide)
            catalog = connect(nth)
        operation = prepare(catalog)
        meddler.begin(partial(meddle, connect(nth)))
        outcome: object
        try:
            outcome = operation()
        except Exception as error:
            outcome = error
        if meddler.method is None:
            return
        yield meddler.method, outcome
