"""Worker threads that hand their results to the event loop together."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
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

    While all threads are in use, waiting callers take turns. A known caller has at most three quarters of the threads,
    so its slow operations leave some to others.

    Args:
        most: The number of acts that run at the same time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_of_caller = math.ceil(most * 3 / 4)
        self._pool = ThreadPoolExecutor(most, "lancekeep-request")
        self._finished: _Finished | None = None
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def use(self) -> Mapping[str, int]:
        """Return the acts that are ``running``, ``waiting``, and may run at ``most``."""
        waiting = sum(map(len, self._waiting.values()))
        return {"running": self._running.total(), "waiting": waiting, "most": self._most}

    async def run(self, act: Callable[[], T], caller: str = "") -> T:
        """Return the result of ``act``, which runs in the context of the coroutine.

        If the coroutine is cancelled, an act that has begun continues, and keeps its thread.

        Args:
            act: What to do in a thread.
            caller: For whom; empty if the server does not know.
        """
        await self._turn(caller)
        loop = asyncio.get_running_loop()
        finished = self._finished
        if finished is None or finished.loop is not loop:
            finished = self._finished = _Finished(loop)
        future: asyncio.Future[_Outcome] = loop.create_future()
        future.add_done_callback(lambda _: self._leave(caller))
        self._pool.submit(copy_context().run, _perform, act, future, finished)
        result, error = await asyncio.shield(future)
        if error is not None:
            raise error
        returned: T = result
        return returned

    async def _turn(self, caller: str) -> None:
        """Wait until the caller may use a thread, and take it."""
        if caller not in self._waiting and self._may_run(caller):
            self._running[caller] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(caller)
            raise

    def _may_run(self, caller: str) -> bool:
        of_caller = self._most_of_caller if caller else self._most
        return self._running.total() < self._most and self._running[caller] < of_caller

    def _leave(self, caller: str) -> None:
        """Return a thread, and pass it to the caller whose turn it is."""
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        while (waiting := next(filter(self._may_run, self._waiting), None)) is not None:
            turns = self._waiting.pop(waiting)
            turn = turns.popleft()
            if turns:
                self._waiting[waiting] = turns  # at the end: the next turn is another caller's
            if not turn.done():  # its coroutine was not cancelled
                self._running[waiting] += 1
                turn.set_result(None)


def _perform(act: Callable[[], Any], future: asyncio.Future[_Outcome], finished: _Finished) -> None:
    try:
        outcome: _Outcome = act(), None
    except BaseException as error:
        outcome = None, error
    finished.add(future, outcome)
