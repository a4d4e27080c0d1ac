"""Requests to remote stores that are made at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from lancekeep.ports.object_store import ObjectStore

T = TypeVar("T")
U = TypeVar("U")

_THREADS = 16
_pools: list[ThreadPoolExecutor] = []
"""The pool of this process, once it is needed; threads do not survive a fork."""

os.register_at_fork(after_in_child=_pools.clear)


def is_remote(objects: ObjectStore) -> bool:
    """Return whether a request to the store takes so long that a thread is worth its while."""
    return not objects.root_uri.startswith(("file://", "memory://"))


def alongside(act: Callable[[], T]) -> Future[T]:
    """Begin ``act`` in another thread."""
    return _pool().submit(act)


def all_alongside(act: Callable[[U], T], items: Iterable[U]) -> Iterator[T]:
    """Return what ``act`` returns for each item, in order, several at a time."""
    return _pool().map(act, items)


def _pool() -> ThreadPoolExecutor:
    if not _pools:
        _pools.append(ThreadPoolExecutor(_THREADS, "lancekeep"))
    return _pools[0]
