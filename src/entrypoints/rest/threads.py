"""Worker threads that hand their results to the event loop together."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

import attrs
from lance_namespace.errors import ServiceUnavailableError

from lancekeep.entrypoints.rest.hold import Hold

T = TypeVar("T")
PATIENCE: Final = 5.0
"""The seconds for which an act may run although its caller does not wait any more."""
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

    An act cannot be stopped. Once its caller has ceased to wait, a spare thread takes the place of its thread, and
    after some time it counts as abandoned. There are as many spare threads as a known caller can hold. Only the end of
    the process ends acts that hang.

    Args:
        most: The number of acts with callers that run at the same time.
        patience: The seconds for which an act may run although its caller does not wait any more.
    """

    def __init__(self, most: int, patience: float = PATIENCE) -> None:
        self._most = most
        self._patience = patience
        self._most_of_caller = math.ceil(most * 3 / 4)
        self._spare = self._most_of_caller
        self._pool = ThreadPoolExecutor(most + self._spare, "lancekeep-request")
        self._finished: _Finished | None = None
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._unawaited: dict[asyncio.Future[_Outcome], float] = {}
        self._unwatched: dict[asyncio.Future[_Outcome], tuple[float, Callable[[], Awaitable[object]]]] = {}
        self._is_sweeping = False
        self._is_leaving = False

    def use(self) -> Mapping[str, int]:
        """Return how the threads are used.

        Returns:
            The acts that are ``running``, how many of these are ``abandoned``, the acts that are ``waiting``, and how
            many acts with callers may run at ``most``.
        """
        return {
            "running": self._running.total(),
            "abandoned": self.abandoned(),
            "waiting": sum(map(len, self._waiting.values())),
            "most": self._most,
        }

    def abandoned(self) -> int:
        """Return the number of abandoned acts. Any thread may ask."""
        before = time.monotonic() - self._patience
        return sum(since <= before for since in list(self._unawaited.values()))

    def hold(self) -> Hold:
        """Return what abandoned acts leave of the threads. Any thread may ask."""
        abandoned = self.abandoned()
        return Hold.ALL if abandoned > self._spare else Hold.SOME if 2 * abandoned >= self._most else Hold.NONE

    def stop(self) -> None:
        """If the threads are held, refuse acts that have to wait for one."""
        if not self.hold():
            return
        self._is_leaving = True
        waiting, self._waiting = self._waiting, OrderedDict()
        for turn in chain.from_iterable(waiting.values()):
            if not turn.done():  # its coroutine was not cancelled
                turn.set_exception(_leaving())

    async def run(
        self, act: Callable[[], T], caller: str = "", left: Callable[[], Awaitable[object]] | None = None
    ) -> T:
        """Return the result of ``act``, which runs in the context of the coroutine.

        If the coroutine is cancelled, an act that has begun continues, and keeps its thread.

        Args:
            act: What to do in a thread.
            caller: For whom; empty if the server does not know.
            left: Returns once the caller waits no longer. It is called for long acts alone.

        Raises:
            ServiceUnavailableError: The act has not begun, because this process ends.
        """
        await self._turn(caller)
        loop = asyncio.get_running_loop()
        finished = self._finished
        if finished is None or finished.loop is not loop:
            finished = self._finished = _Finished(loop)
            self._is_sweeping = False
        future: asyncio.Future[_Outcome] = loop.create_future()
        future.add_done_callback(partial(self._leave, caller))
        self._pool.submit(copy_context().run, _perform, act, future, finished)
        if left is not None:
            self._unwatched[future] = time.monotonic(), left
            if not self._is_sweeping:
                self._is_sweeping = True
                loop.call_later(self._patience, self._sweep, loop)
        try:
            result, error = await asyncio.shield(future)
        except asyncio.CancelledError:
            self._await_no_longer(future)
            raise
        if error is not None:
            raise error
        returned: T = result
        return returned

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to watch the callers of long acts; a timer for each act would cost each of them some microseconds."""
        before = time.monotonic() - self._patience
        for future, (began, left) in list(self._unwatched.items()):
            if began <= before:
                del self._unwatched[future]
                watching = loop.create_task(self._watch(future, left))
                future.add_done_callback(partial(_cancel, watching))
        self._is_sweeping = bool(self._unwatched)
        if self._is_sweeping:
            loop.call_later(self._patience, self._sweep, loop)

    async def _watch(self, future: asyncio.Future[_Outcome], left: Callable[[], Awaitable[object]]) -> None:
        """Notice that the caller of an act leaves."""
        await left()
        self._await_no_longer(future)

    def _await_no_longer(self, future: asyncio.Future[_Outcome]) -> None:
        if not future.done() and future not in self._unawaited:
            self._unawaited[future] = time.monotonic()
            self._pass_on()

    async def _turn(self, caller: str) -> None:
        """Wait until the caller may use a thread, and take it."""
        if caller not in self._waiting and self._may_run(caller):
            self._running[caller] += 1
            return
        if self._is_leaving:
            raise _leaving()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave(caller)
            raise

    def _may_run(self, caller: str) -> bool:
        of_caller = self._most_of_caller if caller else self._most + self._spare
        in_use = self._running.total() - min(len(self._unawaited), self._spare)
        return in_use < self._most and self._running[caller] < of_caller

    def _leave(self, caller: str, future: asyncio.Future[_Outcome] | None = None) -> None:
        """Return the thread of a caller's act."""
        if future is not None:
            self._unawaited.pop(future, None)
            self._unwatched.pop(future, None)
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass free threads to the callers whose turn it is."""
        while (waiting := next(filter(self._may_run, self._waiting), None)) is not None:
            turns = self._waiting.pop(waiting)
            turn = turns.popleft()
            if turns:
                self._waiting[waiting] = turns  # at the end: the next turn is another caller's
            if not turn.done():  # its coroutine was not cancelled
                self._running[waiting] += 1
                turn.set_result(None)


def _cancel(task: asyncio.Task[None], _: object) -> None:
    task.cancel()


def _leaving() -> Exception:
    return ServiceUnavailableError("another process of the server takes over; nothing was done, so repeat the request")


def _perform(act: Callable[[], Any], future: asyncio.Future[_Outcome], finished: _Finished) -> None:
    try:
        outcome: _Outcome = act(), None
    except BaseException as error:
        outcome = None, error
    finished.add(future, outcome)


class AllThreads:
    """All threads of a process.

    Args:
        parts: Returns its threads.
    """

    def __init__(self, parts: Callable[[], Iterable[Threads | AllThreads]]) -> None:
        self._parts = parts

    def hold(self) -> Hold:
        """Return the greatest hold."""
        return max((each.hold() for each in self._parts()), default=Hold.NONE)

    def stop(self) -> None:
        """As `Threads.stop`, for each of them."""
        for each in self._parts():
            each.stop()
