"""The worker threads of the server."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from threading import Event
from typing import Any

import pytest
from lance_namespace.errors import ServiceUnavailableError

from lancekeep.entrypoints.rest.hold import Hold
from lancekeep.entrypoints.rest.threads import AllThreads, Threads


def test_each_caller_gets_its_own_result_or_error() -> None:
    def act(number: int) -> int:
        if number % 3 == 0:
            raise ValueError(number)
        return number

    threads = Threads(8)

    async def main() -> list[Any]:
        return await asyncio.gather(*(threads.run(partial(act, n)) for n in range(200)), return_exceptions=True)

    for _ in range(2):  # the second time in another event loop
        outcomes = asyncio.run(main())
        assert [each.args[0] if isinstance(each, ValueError) else each for each in outcomes] == list(range(200))
        assert [isinstance(each, ValueError) for each in outcomes] == [n % 3 == 0 for n in range(200)]


def test_an_act_runs_in_the_context_of_its_caller() -> None:
    name: ContextVar[str] = ContextVar("name")

    async def call(threads: Threads, given: str) -> str:
        name.set(given)
        return await threads.run(name.get)

    async def main() -> list[str]:
        threads = Threads(2)
        return list(await asyncio.gather(call(threads, "a"), call(threads, "b")))

    assert asyncio.run(main()) == ["a", "b"]


def test_an_act_that_waits_for_a_thread_does_not_begin_after_its_caller_was_cancelled() -> None:
    begun, release, ran = Event(), Event(), list[str]()

    def first() -> None:
        ran.append("first")
        begun.set()
        release.wait(60)

    async def main() -> None:
        threads = Threads(1)
        running = asyncio.create_task(threads.run(first))
        waiting = asyncio.create_task(threads.run(lambda: ran.append("second")))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        running.cancel()
        waiting.cancel()
        for task in (running, waiting):
            with pytest.raises(asyncio.CancelledError):
                await task
        release.set()
        await threads.run(lambda: ran.append("third"))

    asyncio.run(main())
    assert ran == ["first", "third"]


class Hung:
    """Acts that run until they are released, and calls of them."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.release = Event()
        self.begun: list[str] = []

    def act(self, caller: str) -> None:
        self.begun.append(caller)
        self.release.wait(10)

    def call(self, caller: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.threads.run(partial(self.act, caller), caller))

    async def calls(self, *callers: str) -> list[asyncio.Task[None]]:
        """Call an act for each caller; return the calls once all acts have begun."""
        enough = len(self.begun) + len(callers)
        found = list(map(self.call, callers))
        while len(self.begun) < enough:
            await asyncio.sleep(0.001)
        return found


async def cancelled(calls: list[asyncio.Task[None]]) -> None:
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def test_spare_threads_take_the_place_of_acts_without_a_caller() -> None:
    async def main() -> None:
        hung, holds = Hung(threads := Threads(4, patience=0.0)), list[Hold]()
        for _ in range(3):
            await cancelled(await hung.calls(""))
            holds.append(threads.hold())
        assert holds == [Hold.NONE, Hold.SOME, Hold.SOME]
        last = await hung.calls(*[""] * 4)  # as many with a caller as before
        assert threads.use() == {"running": 7, "abandoned": 3, "waiting": 0, "most": 4}
        await cancelled(last[:1])
        assert threads.hold() is Hold.ALL
        await cancelled(last)
        waiting = hung.call("")
        await asyncio.sleep(0.05)
        assert (len(hung.begun), threads.use()["waiting"]) == (7, 1)  # no more spare threads
        assert AllThreads(lambda: [Threads(1), threads]).hold() is Hold.ALL
        hung.release.set()
        await waiting
        while threads.use()["running"]:
            await asyncio.sleep(0.001)
        assert (threads.abandoned(), threads.hold()) == (0, Hold.NONE)

    asyncio.run(main())


def test_a_known_caller_holds_its_share_and_nothing_of_others() -> None:
    async def main() -> None:
        hung = Hung(threads := Threads(4, patience=0.0))
        await cancelled(await hung.calls("a", "a", "a"))
        waiting = hung.call("a")
        await asyncio.sleep(0.05)
        assert (threads.use()["waiting"], threads.hold()) == (1, Hold.SOME)
        others = await hung.calls("b", "b", "b", "c")  # as many as without the acts of the first one
        await cancelled(others)
        assert threads.hold() is Hold.ALL
        last = hung.call("d")
        await asyncio.sleep(0.05)
        assert (hung.begun.count("a"), threads.use()["waiting"]) == (3, 2)
        hung.release.set()
        await asyncio.gather(waiting, last)

    asyncio.run(main())


def test_an_act_without_a_caller_counts_after_the_patience_alone() -> None:
    async def main() -> None:
        hung = Hung(threads := Threads(1, patience=0.2))
        await cancelled(await hung.calls(""))
        assert (threads.abandoned(), threads.hold()) == (0, Hold.NONE)
        await asyncio.sleep(0.25)
        assert (threads.abandoned(), threads.hold()) == (1, Hold.SOME)
        hung.release.set()

    asyncio.run(main())


def test_a_caller_of_a_long_act_that_leaves_abandons_it() -> None:
    async def main() -> None:
        hung, leaves = Hung(threads := Threads(2, patience=0.05)), asyncio.Event()
        call = asyncio.create_task(threads.run(partial(hung.act, ""), left=leaves.wait))
        await asyncio.sleep(0.15)
        assert threads.abandoned() == 0
        leaves.set()
        while not threads.abandoned():
            await asyncio.sleep(0.001)
        hung.release.set()
        await call  # whose result is there all the same
        assert threads.abandoned() == 0

    asyncio.run(main())


def test_callers_of_all_long_acts_are_watched() -> None:
    async def main() -> None:
        hung, leaves = Hung(threads := Threads(2, patience=0.1)), asyncio.Event()
        calls = []
        for left in (asyncio.Event(), leaves):
            calls.append(asyncio.create_task(threads.run(partial(hung.act, ""), left=left.wait)))
            await asyncio.sleep(0.06)  # so that the second act is not long yet when the first one is
        await asyncio.sleep(0.2)
        leaves.set()
        while threads.abandoned() != 1:
            await asyncio.sleep(0.001)
        hung.release.set()
        await asyncio.gather(*calls)

    asyncio.run(asyncio.wait_for(main(), 5))


def test_acts_that_wait_for_held_threads_are_refused_at_the_end() -> None:
    async def main() -> None:
        hung = Hung(threads := Threads(1, patience=0.0))
        first, *_ = await hung.calls("")
        waiting = hung.call("")
        await asyncio.sleep(0)
        threads.stop()
        assert not waiting.done()  # an act with a caller holds the thread, so it may end
        await cancelled([first])
        while len(hung.begun) < 2:  # by the spare thread
            await asyncio.sleep(0.001)
        refused = hung.call("")
        await asyncio.sleep(0)
        AllThreads(lambda: [threads]).stop()
        for each in (refused, hung.call("")):
            with pytest.raises(ServiceUnavailableError, match="nothing was done"):
                await each
        hung.release.set()
        await waiting
        assert hung.begun == ["", ""]

    asyncio.run(main())
