"""Acts in other threads: requests to remote stores, and committers.

While the interpreter shuts down, pools take no more acts, and threads of the caller may still end their work. Each act
then gets a thread of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Barrier, Thread, current_thread, local, main_thread
from typing import Any, TypeVar

from lancekeep.ports.object_store import ObjectStore

T = TypeVar("T")
U = TypeVar("U")

_THREADS = 16
_pools: list[ThreadPoolExecutor] = []
"""The thread pool of this process, created on first use; threads do not survive a fork."""

_MOST_IN_BACKGROUND = 256
_background: list[ThreadPoolExecutor] = []
"""The pool of `in_background`, which is separate because its acts wait for acts of the other pool."""

os.register_at_fork(after_in_child=_pools.clear)
os.register_at_fork(after_in_child=_background.clear)


def is_remote(objects: ObjectStore) -> bool:
    """Return whether a request takes longer than starting it in a thread."""
    return not objects.root_uri.startswith(("file://", "memory://"))


def alongside(act: Callable[[], T]) -> Future[T]:
    """Start ``act`` in another thread."""
    if not _pools:
        _pools.append(ThreadPoolExecutor(_THREADS, "lancekeep"))
    return _started(_pools[0], act)


def all_alongside(act: Callable[[U], T], items: Iterable[U]) -> Iterator[T]:
    """Call ``act`` on several items at a time, and return the results in order."""
    return _results([alongside(partial(act, item)) for item in items])


def in_background(act: Callable[[], object]) -> None:
    """Run ``act`` in a thread that is kept for later acts.

    The engine sets up each thread that calls it. On local files that takes as long as an append.

    Raises:
        RuntimeError: The system starts no more threads.
    """
    if not _background:
        _background.append(ThreadPoolExecutor(_MOST_IN_BACKGROUND, "lancekeep-background"))
    _started(_background[0], act)


class _Thread(local):
    """What this module knows about the current thread."""

    _has_asked = False

    def asks_again(self) -> bool:
        """Return whether the thread has called this before."""
        has_asked, self._has_asked = self._has_asked, True
        return has_asked


_thread = _Thread()


def is_kept() -> bool:
    """Return whether this thread may act itself, without `in_background`.

    A thread that asks for the first time may not: it may be new, and end after the act. Nor may the main thread, which
    signals interrupt.
    """
    return current_thread() is not main_thread() and _thread.asks_again()


def in_a_thread(act: Callable[[], T]) -> T:
    """Call ``act`` in a new thread.

    Inside a callback of the engine, a nested read in the same thread can end the process (pylance 14.0.2).
    """
    return _in_its_own_thread(act).result()


def race(contenders: int, act: Callable[[int], T]) -> list[T]:
    """Call ``act`` in threads that start together, and return the results in order.

    Args:
        contenders: The number of threads.
        act: Receives the number of its thread.
    """
    barrier = Barrier(contenders)

    def contend(number: int) -> T:
        barrier.wait()
        return act(number)

    with ThreadPoolExecutor(contenders) as pool:
        try:
            return list(pool.map(contend, range(contenders)))
        except BaseException:  # as Ctrl-C before all threads have started: the others would wait for them
            barrier.abort()
            raise


_AT_ONCE = 8


def at_once(act: Callable[..., T], *arguments: Sequence[Any]) -> list[T]:
    """Call ``act`` on several items at a time, and return the results in order.

    The first error is raised after all calls have ended.
    """
    if len(arguments[0]) == 1:
        return list(map(act, *arguments))
    running = _ended(act, *arguments)
    for each in running:
        each.exception()
    return [done.result() for done in running]


def collect(act: Callable[..., T], results: list[T], *arguments: Sequence[Any], together: bool) -> None:
    """Call ``act`` on items, append the results, then raise the first error.

    The results are in order.

    Args:
        act: The act.
        results: Where the results are appended, also of items after an error.
        arguments: The items, as in `at_once`.
        together: Whether to call it on several items at a time. Otherwise an error ends the calls.
    """
    if not together or len(arguments[0]) == 1:
        for item in zip(*arguments, strict=True):
            results += [act(*item)]
        return
    running = _ended(act, *arguments)
    results += [each.result() for each in running if each.exception() is None]
    for each in running:
        each.result()


def _ended(act: Callable[..., T], *arguments: Sequence[Any]) -> list[Future[T]]:
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return [_started(pool, partial(act, *item)) for item in zip(*arguments, strict=True)]


def _started(pool: ThreadPoolExecutor, act: Callable[[], T]) -> Future[T]:
    try:
        return pool.submit(act)
    except RuntimeError:  # the interpreter shuts down
        return _in_its_own_thread(act)


def _in_its_own_thread(act: Callable[[], T]) -> Future[T]:
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="lancekeep-act").start()
    return future


def _results(running: Sequence[Future[T]]) -> Iterator[T]:
    try:
        for each in running:
            yield each.result()
    finally:
        for each in running:
            each.cancel()
