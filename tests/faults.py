"""Wrappers of ports that count calls, fail them on command, or kill the caller."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
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

    These are all states that a kill can leave: a call that reads changes none. The last operation is not killed.
    ``operation`` gets the number, for a place of its own.
    """
    left = 0

    def decide(method: str, _: int) -> tuple[str, BaseException] | None:
        nonlocal left
        left -= method not in READS or left <= 0
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


def killed_at_each_call(
    monkeypatch: pytest.MonkeyPatch, directory: Path, connect: Callable[[], Any], operation: Callable[[Any], object]
) -> Iterator[tuple[int, str]]:
    """Kill an operation before and after each call of a port; yield after each, with what it left in ``directory``.

    Every kill begins with the present content of the directory.
    """
    before = directory.with_name(f"{directory.name}-before")
    shutil.copytree(directory, before)
    left, when = 0, "before"

    def decide(*_: Any) -> tuple[str, BaseException] | None:
        nonlocal left
        left -= 1
        if left > 0:
            return None
        return (when if left == 0 else "before"), Crash()

    for nth in count(1):
        for when in ("before", "after"):
            shutil.rmtree(directory)
            shutil.copytree(before, directory)
            died = True
            with monkeypatch.context() as patch:
                _subject_to(patch, decide)
                left = 1 << 30
                catalog = connect()
                left = nth
                try:
                    operation(catalog)
                    died = False
                except Crash:
                    pass
            yield nth, when
        if not died:
            return
