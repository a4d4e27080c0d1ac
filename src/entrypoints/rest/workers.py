"""Worker processes behind one socket, and the process that supervises them.

The supervisor opens the socket and starts the workers, which inherit it and accept connections from one queue. So a
connection that waits outlives the worker that would have accepted it. The supervisor itself opens no catalog and has
no connection to any store.

- A worker that ends is started again. If it ends soon after its start, the supervisor waits before the next start, up
  to half a minute.
- SIGHUP replaces the workers one by one: the next worker is ready before the old one stops.
- A worker whose threads are held by abandoned operations is replaced: the next worker is ready before the old one
  stops, which lets all requests in progress finish. If the next one is held, too, it waits for the end of the old one.
  If its hold leaves nothing to other callers, the old one is killed. So each worker has at most three processes.
- A worker whose event loop is silent is killed, and started again: a native call may keep the lock of the interpreter.
- SIGTERM and SIGINT, and SIGHUP from a terminal that has gone, stop all workers; they are killed `shutdown_seconds`
  later.
- Each worker holds one end of a connection to the supervisor. If the supervisor ends in any way, the workers stop.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from lancekeep.domain.errors import EngineFailed
from lancekeep.entrypoints.rest.hold import Hold
from lancekeep.entrypoints.rest.logs import files_of_log
from lancekeep.entrypoints.rest.metrics import Snapshot, counted, snapshot, total
from lancekeep.entrypoints.rest.printed import Printed
from lancekeep.entrypoints.rest.supervised import CHECK, LENGTH, encoded

PROGRAM: Final = "lancekeep.entrypoints.worker"
"""The module that a worker runs."""

STABLE: Final = 10.0
"""A worker that ran for so many seconds is started again at once."""

LONGEST_PAUSE: Final = 30.0
"""The maximum time in seconds before a worker is started again."""

START: Final = 60.0
"""How many seconds a successor has to be ready: a store that hangs must not stop the supervision."""

RETRY: Final = 10.0
"""How many seconds pass before another successor of a held worker is started, if one could not start."""

SILENCE: Final = 30
"""After how many checks without a sign of its event loop a worker is killed; after half of them, the log says so.

Checks are counted, not seconds: a suspended machine or supervisor has missed one check at most.
"""

ANSWER: Final = 2.0
"""How many seconds a worker has to send its metrics; afterwards its last known ones count."""


class Worker:
    """One worker process.

    Attributes:
        number: Its number, from 0; its successors have the same one.
        process: The process.
        started: When it was started, in monotonic seconds.
        ended: Whether it has ended.
        silence: The checks since its event loop was heard; None while it starts, and once it is killed for it.
        warning: Writes to the log that it is silent.
    """

    def __init__(
        self,
        number: int,
        listener: socket.socket,
        asked: Callable[[Worker, int], None],
        held: Callable[[Worker, Hold], None],
        log: Any = None,
    ) -> None:
        self.number = number
        self.started = time.monotonic()
        self.ended = asyncio.Event()
        self.samples: Snapshot = {}
        self.silence: int | None = None
        self.warning = Thread()
        self._asked = asked
        self._held = held
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._channel, other = socket.socketpair()
        with other:
            # Ctrl-C reaches every process of a terminal. A worker that stops already would cut off its requests. So
            # workers never take SIGINT: the supervisor passes it on as SIGTERM.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                inherited = (other.fileno(), listener.fileno())
                self.process, self._printed = _process((PROGRAM, *map(str, inherited)), inherited, log)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        loop = asyncio.get_running_loop()
        Thread(target=self._reap, args=(loop,), name=f"worker {number}", daemon=True).start()

    async def open(self, task: Any) -> Any:
        """Send a worker its task, and return what it says once it accepts connections.

        Raises:
            LancekeepError: The worker could not start.
        """
        reader, self._writer = await asyncio.open_unix_connection(sock=self._channel)
        self._writer.write(encoded(task))
        self._reading = asyncio.create_task(self._read(reader))
        return await self._ready

    async def closed(self) -> None:
        """Wait until everything is read that it has sent."""
        if self._reading is not None:
            await self._reading

    async def sampled(self) -> Snapshot:
        """Return its metrics, or the last known ones if it does not answer."""
        if self._writer is None or self.ended.is_set():
            return self.samples
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._writer.write(encoded(("sample", number)))
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER):
                await answer
        self._waiting.pop(number, None)
        return self.samples

    def tell(self, number: int, metrics: Snapshot) -> None:
        """Answer its question for the metrics of all workers, unless it has ended."""
        assert self._writer is not None
        if not self._writer.is_closing():
            self._writer.write(encoded(("metrics", number, metrics)))

    async def leave(self, seconds: float) -> None:
        """Let it finish all its requests, which takes at most some seconds, and end."""
        assert self._writer is not None
        self._writer.write(encoded(("leave", 0)))
        await self._end_within(seconds)

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if not self.ended.is_set():
            self.process.send_signal(number)

    async def stop(self, seconds: float) -> None:
        """Let it finish its requests within some seconds."""
        self.signal(signal.SIGTERM)
        await self._end_within(seconds)

    async def _end_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.ended.wait()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                kind, *values = pickle.loads(await reader.readexactly(size))
                if kind in ("ready", "alive"):
                    self.silence = 0
                if kind in ("ready", "failed"):
                    self._started(kind, values[0])
                elif kind == "metrics":
                    self._asked(self, values[0])
                elif kind == "held":
                    self._held(self, values[0])
                elif kind == "last":
                    self.samples = values[0]
                elif kind == "sampled":
                    number, self.samples = values
                    self._settle(number)
        for number in list(self._waiting):
            self._settle(number)
        await self.ended.wait()
        if not self._ready.done():
            self._ready.set_exception(
                EngineFailed(f"worker {self.number} ended with the status {self.process.returncode} while it started")
            )
        assert self._writer is not None
        self._writer.close()

    def _started(self, kind: str, said: Any) -> None:
        if self._ready.done():
            return  # it failed after it was ready, or nothing waits for it any more
        if kind == "ready":
            self._ready.set_result(said)
        else:
            self._ready.set_exception(said)

    def _settle(self, number: int) -> None:
        answer = self._waiting.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(None)

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        self.process.wait()
        if self._printed is not None:
            self._printed.finish()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self.ended.set)


def _process(
    program: Sequence[str], inherited: Sequence[int], log: Any
) -> tuple[subprocess.Popen[bytes], Printed | None]:
    """Start a module as a process, and what writes its stderr to a log, if there is one."""
    line = [sys.executable, "-P", "-m", *program]
    if log is None:
        return subprocess.Popen(line, pass_fds=inherited, stdin=subprocess.DEVNULL), None
    own = files_of_log()  # the process writes its own log there
    process = subprocess.Popen(
        [*line, *map(str, own)], pass_fds=(*inherited, *own), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    with process.stderr as pipe:
        return process, Printed(os.dup(pipe.fileno()), log.bind(pid=process.pid))


class Supervisor:
    """Starts workers, and keeps them running.

    Args:
        task: What a worker has to do, by its number. It is pickled.
        workers: How many workers there are.
        listener: The socket from which the workers accept connections.
        shutdown_seconds: How long requests in progress may take after a signal.
        log: The log.
        longest: How long any request may take.
        captures: Whether what native code prints in workers is written to the log.
    """

    def __init__(
        self,
        task: Callable[[int], Any],
        workers: int,
        listener: socket.socket,
        shutdown_seconds: float,
        log: Any,
        longest: float,
        captures: bool = False,
    ) -> None:
        self._longest = longest
        self._printed = log if captures else None
        self._task = task
        self._number = workers
        self._listener = listener
        self._seconds = shutdown_seconds
        self._log = log
        self._workers: dict[int, Worker] = {}
        self._starting = [asyncio.Lock() for _ in range(workers)]
        self._changed = [asyncio.Event() for _ in range(workers)]
        self._retry_at = [0.0] * workers
        self._processes: set[Worker] = set()
        self._past: Snapshot = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        registry = self._registry = CollectorRegistry()
        running = Gauge("lancekeep_workers", "Worker processes that serve requests.", registry=registry)
        running.set_function(lambda: sum(not each.ended.is_set() for each in self._workers.values()))
        self._restarts = Counter(
            "lancekeep_worker_restarts", "Worker processes that were started again after their end.", registry=registry
        )
        self._replacements = Counter(
            "lancekeep_worker_replacements",
            "Worker processes that were replaced because operations held their threads.",
            registry=registry,
        )
        self._silences = Counter(
            "lancekeep_worker_silences",
            "Worker processes that were killed because their event loop was silent.",
            registry=registry,
        )

    def run(self, announce: Callable[[Any], None]) -> None:
        """Serve until a signal.

        Args:
            announce: Receives what the first worker says, once all accept connections.

        Raises:
            LancekeepError: A worker could not start.
        """
        asyncio.run(self._run(announce))

    async def _run(self, announce: Callable[[Any], None]) -> None:
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up, sys.stderr.isatty())
        serving = asyncio.create_task(self._serve(announce))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            self._stopping.set()
            self._listener.close()  # the workers close theirs, so new connections are refused
            for each in (serving, stopping, *self._tasks):
                each.cancel()
            await asyncio.gather(*(each.stop(self._seconds) for each in list(self._processes)))
            await asyncio.gather(serving, stopping, *self._tasks, return_exceptions=True)

    def _stop(self) -> None:
        if self._stopping.is_set():  # the second signal
            for each in self._processes:
                each.signal(signal.SIGKILL)
        self._stopping.set()

    def _hang_up(self, had_terminal: bool) -> None:
        """Reload, or stop if the terminal of the server was closed."""
        if had_terminal and not sys.stderr.isatty():
            self._stop()
        else:
            self._reloading.set()

    async def _serve(self, announce: Callable[[Any], None]) -> None:
        first = await self._start(0)  # it reports what is wrong, and makes what the catalog lacks
        await asyncio.gather(*map(self._start, range(1, self._number)))
        announce(first)
        for number in range(self._number):
            self._spawn(self._keep(number))
        self._spawn(self._listen())
        while True:
            await self._reloading.wait()
            self._reloading.clear()
            await self._reload()

    async def _start(self, number: int, seconds: float | None = None) -> Any:
        """Start a worker in the place of its predecessor, and return what it says when it is ready.

        Raises:
            LancekeepError: It could not start, or was not ready within some seconds.
        """
        worker = Worker(
            number,
            self._listener,
            lambda *asked: self._spawn(self._answer(*asked)),
            lambda *held: self._spawn(self._replace(*held)),
            self._printed,
        )
        self._processes.add(worker)
        self._spawn(self._outlive(worker))
        try:
            async with asyncio.timeout(seconds):
                said = await worker.open(self._task(number))
        except TimeoutError:
            worker.signal(signal.SIGKILL)
            raise EngineFailed(f"worker {number} was not ready within {seconds:g} seconds") from None
        except Exception:
            worker.signal(signal.SIGKILL)  # it has closed its catalog, but a thread that hangs would keep it
            raise
        if self._number > 1 or number in self._workers:  # one alone is the server, which is announced
            self._log.info("worker started", number=number, pid=worker.process.pid)
        self._workers[number] = worker
        self._changed[number].set()
        return said

    async def _outlive(self, worker: Worker) -> None:
        """Keep what a worker has counted after its end."""
        await worker.ended.wait()
        self._changed[worker.number].set()
        await worker.closed()
        self._processes.discard(worker)  # at once with the next line, so that counters never fall
        self._past = total((self._past, counted(worker.samples)))
        worker.samples = {}

    async def _keep(self, number: int) -> None:
        """Start a worker again whenever it ends."""
        pause = 0.0
        while True:
            worker = self._workers[number]
            if not worker.ended.is_set():  # its successor can end before it
                await self._changed[number].wait()
                self._changed[number].clear()
                continue
            status = worker.process.returncode
            self._log.error("worker ended", number=number, pid=worker.process.pid, status=status)
            pause = 0.0 if time.monotonic() - worker.started > STABLE else min(LONGEST_PAUSE, 2 * pause or 0.1)
            while True:
                await asyncio.sleep(pause)
                if self._workers[number] is worker:
                    self._restarts.inc()
                try:
                    async with self._starting[number]:
                        if self._workers[number] is worker:  # else a reload has replaced it
                            await self._start(number, START)
                    break
                except Exception as error:
                    self._log.error("worker does not start", number=number, error=str(error))
                    pause = min(LONGEST_PAUSE, 2 * pause or 0.1)

    async def _listen(self) -> None:
        """Kill workers whose event loops are silent.

        If the log takes no lines, the event loops wait for it as well. So the supervisor first writes a line, in a
        thread, and the silence lasts no longer than half of its limit until the line is written. A debugger may stop
        a worker for any time.
        """
        while True:
            await asyncio.sleep(CHECK)
            for each in list(self._processes):
                if each.silence is None or each.ended.is_set():
                    continue
                each.silence += 1
                fields = {"number": each.number, "pid": each.process.pid}
                if each.silence == SILENCE // 2:
                    each.warning = Thread(
                        target=self._log.error, args=("worker silent",), kwargs=fields, name="warning", daemon=True
                    )
                    each.warning.start()
                elif each.warning.is_alive() or (each.silence > SILENCE and _is_traced(each.process.pid)):
                    each.silence = SILENCE // 2
                elif each.silence > SILENCE:
                    each.silence = None
                    self._silences.inc()
                    self._log.error("worker silent; killed", **fields)
                    each.signal(signal.SIGKILL)

    async def _reload(self) -> None:
        """Replace the workers one by one; stop at the first that cannot start."""
        for number in range(self._number):
            async with self._starting[number]:
                old = self._workers[number]
                if old.ended.is_set():
                    continue  # its successor, which is about to start, reads the files anyway
                try:
                    await self._start(number, START)
                except Exception as error:
                    self._log.error("reload failed; the other workers go on", number=number, error=str(error))
                    return
            await old.stop(self._seconds)
        self._log.info("reloaded", workers=self._number)

    async def _replace(self, worker: Worker, hold: Hold) -> None:
        """Replace a worker whose threads are held, which says so again while it serves."""
        number = worker.number
        async with self._starting[number]:
            if self._workers[number] is not worker or worker.ended.is_set():
                return
            if time.monotonic() < self._retry_at[number]:
                return
            leaving = [each for each in self._processes if each.number == number and each is not worker]
            if leaving and hold < Hold.ALL:
                return  # the operations that still run there are not the fault of their callers
            for each in leaving:
                each.signal(signal.SIGKILL)
            try:
                await self._start(number, START)
            except Exception as error:
                self._retry_at[number] = time.monotonic() + RETRY
                self._log.error("held worker cannot be replaced yet", number=number, error=str(error))
                return
            self._replacements.inc()
            self._log.error("worker held; replaced", number=number, pid=worker.process.pid)
        await worker.leave(self._longest + self._seconds)

    async def _answer(self, worker: Worker, number: int) -> None:
        """Send a worker the metrics of all workers."""
        # Also of workers that leave: their requests in progress end. A worker that starts does not answer yet.
        await asyncio.gather(*(each.sampled() for each in self._processes if each.silence is not None))
        present = [each.samples for each in self._processes]
        worker.tell(number, total((snapshot(self._registry), self._past, *present)))

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_traced(pid: int) -> bool:
    """Return whether a debugger is attached to a process, if the system shows it."""
    with suppress(OSError):
        return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()
    return False
