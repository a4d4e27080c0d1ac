"""Appends of several threads at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import lancekeep
from lancekeep.application.catalog import directory_of


def all_at_once(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """Call each act in a thread of its own, and return results or errors in order."""
    barrier = threading.Barrier(len(acts))

    def call(act: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return act()
        except lancekeep.LancekeepError as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(call, acts))


def held_back(catalog: lancekeep.Catalog, until: int, *, upserts: bool = False) -> None:
    """Let the committer wait before its first group until so many appends wait, or upserts."""
    committer: Any = directory_of(catalog).upserts if upserts else directory_of(catalog).writes._appends
    pause = committer._pause
    rounds = count()

    def wait(line: Any) -> None:
        if next(rounds) == 0:
            while len(line.waiting) < until:
                threading.Event().wait(0.001)
        pause(line)

    committer._pause = wait
