"""Concurrent requests to remote stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from lancekeep.ports.object_store import ObjectStore

T = TypeVar("T")
U = TypeVar("U")

_THREADS = 16
_pools: list[ThreadPoolExecutor] = []
"""The thread pool of this process, created on first use; threads do not survive a fork."""

_MOST_IN_BACKGROUND = 256
_background: list[ThreadPoolExecutor] = []
"""The pool of `in_background`, which is apart because its acts wait for those of the other pool."""

os.register_at_fork(after_in_child=_pools.clear)
os.register_at_fork(after_in_child=_background.clear)


def is_remote(objects: ObjectStore) -> bool:
    """Return whether a request takes longer than starting it in a thread."""
    return not objects.root_uri.startswith(("file://", "memory://"))


def alongside(act: Callable[[], T]) -> Future[T]:
    """Start ``act`` in another thread."""
    return _pool().submit(act)


def all_alongside(act: Callable[[U], T], items: Iterable[U]) -> Iterator[T]:
    """Call ``act`` on several items at a time, and return the results in order."""
    return _pool().map(act, items)


def in_background(act: Callable[[], object]) -> None:
    """Run ``act`` in a thread that is kept for later acts.

    The engine sets up each thread that calls it. On local files that takes as long as an append.
    """
    if not _background:
        _background.append(ThreadPoolExecutor(_MOST_IN_BACKGROUND, "lancekeep-background"))
    _background[0].submit(act)


def _pool() -> ThreadPoolExecutor:
    if not _pools:
        _pools.append(ThreadPoolExecutor(_THREADS, "lancekeep"))
    return _pools[0]


_AT_ONCE = 8


def at_once(act: Callable[..., T], *arguments: Sequence[Any]) -> list[T]:
    """Call ``act`` on several items at a time, and return the results in order.

    The first error is raised after all calls have ended.
    """
    if len(arguments[0]) == 1:
        return list(map(act, *arguments))
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        running = [pool.submit(act, *item) for item in zip(*arguments, strict=True)]
    return [done.result() for done in running]
