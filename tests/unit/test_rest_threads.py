"""The worker threads of the server."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from threading import Event
from typing import Any

import pytest

from lancekeep.entrypoints.rest.threads import Threads


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
