"""The supervisor, with workers that are no processes."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from lancekeep.domain.errors import LancekeepError, StoreUnavailable
from lancekeep.entrypoints.rest import supervised, workers
from lancekeep.entrypoints.rest.hold import Hold
from lancekeep.entrypoints.rest.workers import Supervisor


class Workers:
    """The workers of a supervisor, by the order of their start.

    Args:
        play: What happens once the first worker serves; then the supervisor stops.
        hanging: The starts that never end, from 0.
        lasting: The workers that do not end when they leave.
        failing: The workers that say that they cannot start.
        silent: The workers whose event loops are silent once they serve.
        short: The workers that end when they say that they serve.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        play: Callable[[Workers], Any],
        hanging: tuple[int, ...] = (),
        lasting: tuple[int, ...] = (),
        failing: tuple[int, ...] = (),
        silent: tuple[int, ...] = (),
        short: tuple[int, ...] = (),
    ) -> None:
        self.all: list[Fake] = []
        self.hanging, self.lasting, self.failing, self.silent, self.short = hanging, lasting, failing, silent, short
        self.takes_lines = Event()
        self.takes_lines.set()
        self.logged: list[str] = []
        monkeypatch.setattr(workers, "Worker", self._new)
        log = SimpleNamespace(info=self._log, error=self._log)
        with socket.socket() as listener:
            supervisor = Supervisor(lambda number: number, 1, listener, 1, log, 100)
            supervisor.run(lambda said: self._began(play))
        self._play.result()

    def _new(self, number: int, listener: Any, asked: Any, held: Callable[[Any, Hold], None], _: Any = None) -> Fake:
        fake = Fake(len(self.all), number, self, held, asked)
        self.all.append(fake)
        return fake

    def _log(self, event: str, **fields: Any) -> None:
        self.takes_lines.wait(5)
        self.logged.append(event)

    def _began(self, play: Callable[[Workers], Any]) -> None:
        async def run() -> None:
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(10):
                    await play(self)
            finally:
                signal.raise_signal(signal.SIGTERM)

        self._play = asyncio.create_task(run())

    async def until(self, started: int) -> None:
        """Wait until so many workers were started, and the last one serves."""
        while len(self.all) < started or not self.all[-1].serves:
            await asyncio.sleep(0.001)


class Fake:
    """A worker that is no process."""

    def __init__(
        self,
        index: int,
        number: int,
        own: Workers,
        held: Callable[[Any, Hold], None],
        asked: Callable[[Any, int], None],
    ) -> None:
        self.index, self.number, self._own, self._held, self._asked = index, number, own, held, asked
        self.is_sampled = False
        self.process = SimpleNamespace(pid=index, returncode=0)
        self.started = time.monotonic()
        self.ended = asyncio.Event()
        self.samples: dict[str, Any] = {}
        self.silence: int | None = None
        self.warning = Thread()
        self.signals: list[int] = []
        self.serves = self.leaves = False

    async def hold(self, hold: Hold) -> None:
        """Say that the threads are held, and let the supervisor act."""
        self._held(self, hold)
        await asyncio.sleep(0.01)

    async def open(self, task: Any) -> str:
        if self.index in self._own.hanging:
            await asyncio.Event().wait()
        if self.index in self._own.failing:
            raise LancekeepError("no keys")
        self.silence = 0 if self.index in self._own.silent else -(10**9)
        if self.index in self._own.short:
            self.ended.set()
            await asyncio.sleep(0.01)
        self.serves = True
        return "ready"

    async def ask(self) -> list[int]:
        """Ask for the metrics of all workers; return the workers that the supervisor samples for the answer."""
        self.told = asyncio.Event()
        for each in self._own.all:
            each.is_sampled = False
        self._asked(self, 0)
        await self.told.wait()
        return [each.index for each in self._own.all if each.is_sampled]

    async def sampled(self) -> None:
        self.is_sampled = True

    def tell(self, number: int, metrics: Any) -> None:
        self.told.set()

    async def closed(self) -> None: ...

    async def stop(self, seconds: float) -> None:
        self.ended.set()

    async def leave(self, seconds: float) -> None:
        self.leaves = True
        if self.index not in self._own.lasting:
            self.ended.set()

    def signal(self, number: int) -> None:
        self.signals.append(number)
        self.ended.set()


def test_successor_that_does_not_start_is_killed_and_the_next_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "START", 0.05)
    monkeypatch.setattr(workers, "RETRY", 0.1)

    async def play(own: Workers) -> None:
        while len(own.all) < 3:
            await own.all[0].hold(Hold.SOME)
            assert len(own.all) == 3 or not own.all[0].ended.is_set()
        await own.until(3)
        await asyncio.sleep(0.01)

    own = Workers(monkeypatch, play, hanging=(1,))
    assert own.all[1].signals == [signal.SIGKILL]
    assert own.all[2].started - own.all[1].started > 0.15  # it is not tried at once
    assert (own.all[0].leaves, own.all[2].leaves) == (True, False)
    assert own.logged == ["held worker cannot be replaced yet", "worker started", "worker held; replaced"]


def test_process_that_leaves_is_killed_only_if_other_callers_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(own: Workers) -> None:
        for _ in range(3):
            await own.all[0].hold(Hold.SOME)  # only the first time counts
        await own.until(2)
        await own.all[0].hold(Hold.ALL)  # which it says while it leaves
        await own.all[1].hold(Hold.SOME)
        assert (len(own.all), own.all[0].leaves, own.all[0].signals) == (2, True, [])
        await own.all[1].hold(Hold.ALL)
        await own.until(3)
        assert own.all[0].signals == [signal.SIGKILL]
        assert (own.all[1].leaves, own.all[1].signals) == (True, [])
        own.all[1].ended.set()  # it has finished its requests
        await asyncio.sleep(0.01)
        await own.all[2].hold(Hold.SOME)
        await own.until(4)

    own = Workers(monkeypatch, play, lasting=(0, 1))
    assert [each.leaves for each in own.all] == [True, True, True, False]
    assert own.logged.count("worker held; replaced") == 3


def test_successor_that_ends_before_its_predecessor_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(own: Workers) -> None:
        await own.all[0].hold(Hold.SOME)
        await own.until(2)
        own.all[1].ended.set()
        await own.until(3)
        own.all[2].ended.set()
        await own.until(4)
        assert (own.all[0].leaves, own.all[0].ended.is_set()) == (True, False)

    own = Workers(monkeypatch, play, lasting=(0,))
    assert own.logged.count("worker ended") == 2


def test_successor_that_ends_once_it_serves_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(own: Workers) -> None:
        await own.all[0].hold(Hold.SOME)
        await own.until(3)

    own = Workers(monkeypatch, play, lasting=(0,), short=(1,))
    assert own.logged.count("worker ended") == 1


def test_metrics_are_those_of_all_workers_that_serve_or_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(own: Workers) -> None:
        assert await own.all[0].ask() == [0]
        await own.all[0].hold(Hold.SOME)
        await own.until(2)
        assert await own.all[1].ask() == [0, 1]
        await own.all[1].hold(Hold.ALL)  # the worker that leaves is killed, and another one starts
        assert (len(own.all), await own.all[1].ask()) == (3, [1])

    Workers(monkeypatch, play, lasting=(0,), hanging=(2,))


def test_silent_worker_is_killed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHECK", 0.001)

    async def play(own: Workers) -> None:
        await own.until(3)
        await asyncio.sleep(0.1)

    own = Workers(monkeypatch, play, silent=(0, 1))
    assert [each.signals for each in own.all] == [[signal.SIGKILL], [signal.SIGKILL], []]
    assert own.logged[:4] == ["worker silent", "worker silent; killed", "worker ended", "worker started"]


def test_suspension_of_the_machine_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHECK", 0.01)

    async def play(own: Workers) -> None:
        await asyncio.sleep(0.03)
        time.sleep(1)  # the supervisor, too, does not run
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert own.all[0].silence in range(10)

    assert Workers(monkeypatch, play, silent=(0,)).logged == []


def test_worker_is_not_killed_while_the_log_takes_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHECK", 0.001)

    async def play(own: Workers) -> None:
        own.takes_lines.clear()
        await asyncio.sleep(0.3)
        assert not own.all[0].signals
        own.takes_lines.set()
        await own.until(2)

    own = Workers(monkeypatch, play, silent=(0,))
    assert own.logged[:2] == ["worker silent", "worker silent; killed"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show debuggers")
def test_worker_in_a_debugger_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHECK", 0.001)
    line = "import ctypes; ctypes.CDLL(None).ptrace(0, 0, None, None); print(flush=True); input()"  # PTRACE_TRACEME
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", line], stdin=pipe, stdout=pipe, text=True) as traced:
        assert traced.stdout is not None
        traced.stdout.readline()

        async def play(own: Workers) -> None:
            own.all[0].process.pid = traced.pid
            await asyncio.sleep(0.3)

        own = Workers(monkeypatch, play, silent=(0,))
        traced.kill()
    assert (own.all[0].signals, set(own.logged)) == ([], {"worker silent"})


def test_successor_that_cannot_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "RETRY", 0.0)

    async def play(own: Workers) -> None:
        await own.all[0].hold(Hold.SOME)
        await own.all[0].hold(Hold.SOME)
        await own.until(3)

    own = Workers(monkeypatch, play, failing=(1,))
    assert (own.all[1].signals, own.all[0].leaves) == ([signal.SIGKILL], True)


def test_worker_answers_and_ends_although_its_supervisor_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "PATIENCE", 0.1)
    own, other = socket.socketpair()
    with own, other:
        own.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                own.send(b"alive")
        own.setblocking(True)
        worker = supervised.Supervised(own)
        done: list[str] = []

        def play() -> None:
            for _ in range(2):  # the first request is the one that still sends
                with suppress(StoreUnavailable):
                    asyncio.run(worker.metrics())
                done.append("refused")
            worker.finish()
            done.append("finished")

        thread = Thread(target=play, daemon=True)
        thread.start()
        thread.join(30)
        assert done == ["refused", "refused", "finished"]


def test_supervisor_imports_nothing_that_opens_a_catalog() -> None:
    """Each server has one, so it must be small, and start fast."""
    modules = "lancekeep.entrypoints.rest.workers, lancekeep.entrypoints.rest.task, lancekeep.entrypoints.cli.serve"
    line = f"import sys, {modules}; print(*{{'pyarrow', 'pydantic', 'lance', 'uvicorn'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
