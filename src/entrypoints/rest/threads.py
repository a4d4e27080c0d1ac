"""Worker threads that hand their results to the event loop together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

import attrs

T = TypeVar("T")
_Outcome = tuple[Any, BaseException | None]
"""The result of an act, or its error."""


@attrs.define
class _Finished:
    """The outcomes for one event loop.

    Waking the loop takes two system calls, and at each call a thread may have to wait for the interpreter's lock. The
    appends of a group finish together, so the loop is woken once and takes all outcomes.
    """

    loop: asyncio.AbstractEventLoop
    _outcomes: deque[tuple[asyncio.Future[_Outcome], _Outcome]] = attrs.field(factory=deque)
    _is_woken: bool = False

    def add(self, future: asyncio.Future[_Outcome], outcome: _Outcome) -> None:
        self._outcomes.append((future, outcome))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop has ended, so nothing waits for the outcome
                self.loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._is_woken = False  # first, so that an outcome that comes later wakes the loop again
        while self._outcomes:
            future, outcome = self._outcomes.popleft()
            if not future.cancelled():
                future.set_result(outcome)


class Threads:
    """Threads that act for an event loop.

    Args:
        most: The number of acts that run at the same time.
    """

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, "lancekeep-request")
        self._finished: _Finished | None = None

    async def run(self, act: Callable[[], T]) -> T:
        """Return the result of ``act``, which runs in the context of the caller.

        If the caller is cancelled, an act that has begun continues.
        """
        loop = asyncio.get_running_loop()
        finished = self._finished
        if finished is None or finished.loop is not loop:
            finished = self._finished = _Finished(loop)
        future: asyncio.Future[_Outcome] = loop.create_future()
        submitted = self._pool.submit(copy_context().run, _perform, act, future, finished)
        try:
            result, error = await future
        finally:
            submitted.cancel()
        if error is not None:
            raise error
        returned: T = result
        return returned


def _perform(act: Callable[[], Any], future: asyncio.Future[_Outcome], finished: _Finished) -> None:
    try:
        outcome: _Outcome = act(), None
    except BaseException as error:
        outcome = None, error
    finished.add(future, outcome)
