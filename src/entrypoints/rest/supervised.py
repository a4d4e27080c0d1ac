"""A worker's connection to its supervisor.

Messages are pickled tuples with their length before them. Both ends are processes of one server and one program, and
the connection is a pair of sockets without a name, so no other process can write to it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Final

from prometheus_client import CollectorRegistry

from lancekeep.domain.errors import LancekeepError, StoreUnavailable
from lancekeep.entrypoints.rest.hold import Hold
from lancekeep.entrypoints.rest.metrics import Snapshot, snapshot

LENGTH: Final = struct.Struct(">I")
"""How the length of a message is written."""

PATIENCE: Final = 5.0
"""How many seconds a worker waits for the metrics of all workers."""

CHECK: Final = 1.0
"""The seconds between two checks whether a worker needs a successor, and whether its event loop runs."""


def encoded(message: Any) -> bytes:
    """Return a message with its length."""
    content = pickle.dumps(message)
    return LENGTH.pack(len(content)) + content


def portable(error: Exception) -> Exception:
    """Return an error that another process can read."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LancekeepError(str(error))
    return error


class Supervised:
    """The worker's end of the connection.

    Args:
        channel: The socket to the supervisor.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._sending = Lock()
        self._registry: CollectorRegistry | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Snapshot]] = {}
        self._leave: Callable[[], None] = lambda: None

    def receive(self) -> Any:
        """Return the next message. Raises `EOFError` after the end of the supervisor."""
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return pickle.loads(self._exactly(size))

    def send(self, *message: Any) -> None:
        """Send a message; without a supervisor, do nothing."""
        self._send(message)

    def _send(self, message: tuple[Any, ...], patience: float = -1) -> None:
        if not self._sending.acquire(timeout=patience):
            return
        try:
            with suppress(OSError):  # the thread that receives ends this process
                self._channel.sendall(encoded(message))
        finally:
            self._sending.release()

    def serve(self, served: Any) -> None:
        """Report that this process serves, and from then on that its event loop runs.

        The event loop calls it.

        Args:
            served: What the process serves.
        """
        self.send("ready", served)
        Thread(target=self._live, args=(asyncio.get_running_loop(),), name="liveness", daemon=True).start()

    def watch(self, shutdown_seconds: float) -> None:
        """Answer the supervisor in a thread, and end this process after it.

        Args:
            shutdown_seconds: How long this process may then finish its requests.
        """
        Thread(target=self._watch, args=(shutdown_seconds,), name="supervisor", daemon=True).start()

    def succeed_if(self, hold: Callable[[], Hold], leave: Callable[[], None]) -> None:
        """Ask the supervisor for a successor while the threads are held.

        Args:
            hold: Returns whether they are. A thread asks it.
            leave: Called once the successor serves.
        """
        self._leave = leave
        Thread(target=self._succeed_if, args=(hold,), name="succession", daemon=True).start()

    def show(self, registry: CollectorRegistry) -> None:
        """Show the metrics of a registry to all workers."""
        self._registry = registry

    async def metrics(self) -> Snapshot:
        """Return the metrics of all workers.

        Raises:
            StoreUnavailable: The supervisor does not answer.
        """
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        answer: asyncio.Future[Snapshot] = loop.create_future()
        self._waiting[number] = answer
        try:
            self._send_apart("metrics", number)
            async with asyncio.timeout(PATIENCE):
                return await answer
        except TimeoutError:
            raise StoreUnavailable("the supervisor of the workers does not answer; try again later") from None
        finally:
            del self._waiting[number]

    def finish(self) -> None:
        """Send the last values of the metrics, if the supervisor reads them soon."""
        self._send_apart("last", self._samples()).join(PATIENCE)

    def _send_apart(self, *message: Any) -> Thread:
        """Send a message in a thread of its own, which is returned: a supervisor that is stopped does not read.

        A thread is given up if others have been sending for some seconds. The one that sends ends with the process.
        """
        thread = Thread(target=self._send, args=(message, PATIENCE), name="message", daemon=True)
        thread.start()
        return thread

    def _samples(self) -> Snapshot:
        return {} if self._registry is None else snapshot(self._registry)

    def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report each second that a loop runs, or has ended: what follows its end has its own limit of time.

        The loop does not write itself, because a supervisor that is stopped does not read.
        """
        while True:
            ran = Event()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ran.set)
            while not (ran.wait(CHECK) or loop.is_closed()):
                pass
            self.send("alive")
            time.sleep(CHECK)

    def _succeed_if(self, hold: Callable[[], Hold]) -> None:
        while True:
            time.sleep(CHECK)
            if found := hold():
                self.send("held", found)

    def _watch(self, shutdown_seconds: float) -> None:
        try:
            while True:
                kind, number, *rest = self.receive()
                if kind == "sample":
                    self.send("sampled", number, self._samples())
                elif kind == "leave":
                    self._leave()
                else:
                    answer = self._waiting.get(number)
                    if answer is not None:
                        answer.get_loop().call_soon_threadsafe(_settle, answer, rest[0])
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(shutdown_seconds)
            os._exit(1)

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._channel.recv(size - len(received))
            if not part:
                raise EOFError("the supervisor has ended")
            received += part
        return bytes(received)


def _settle(answer: asyncio.Future[Snapshot], found: Snapshot) -> None:
    if not answer.done():
        answer.set_result(found)
