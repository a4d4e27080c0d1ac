"""Run tasks in a child process, which damaged input may crash.

The table engine aborts the process on some contents, for example if a length in a file makes it allocate terabytes. The
child's memory is limited, so that a smaller excess is an error of the child, too, and never takes the memory of others.
The module is also the program of the child.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import attrs

T = TypeVar("T")
R = TypeVar("R")

_MEMORY = 8 << 30
"""The bytes that a child may allocate beyond what it has after its start."""

_MOST_OUTPUT = 2000


@attrs.frozen
class Crashed:
    """The end of a child process during an item.

    Attributes:
        reason: how it ended, with the last line that it wrote.
    """

    reason: str


class Isolation(Generic[T, R]):
    """Applies a task to items in a child process, which a crash restarts.

    Args:
        task: The task. It is pickled by reference, like a function of a module.
        threads: The number of items at a time.
    """

    def __init__(self, task: Callable[[T], R], threads: int) -> None:
        self._task = task
        self._threads = threads
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._child is not None:
            self._child.end()

    def run(self, items: Sequence[T]) -> Iterator[R | Crashed]:
        """Yield the result of each item in order.

        After a crash, the items that were in progress are repeated one at a time, until the item that causes the crash
        is known. An error of the task is raised.
        """
        waiting, suspects = deque(range(len(items))), deque[int]()
        running, done = set[int](), dict[int, R | Crashed]()
        for at in range(len(items)):
            while at not in done:
                queue, most = (suspects, 1) if suspects else (waiting, self._threads)
                child = self._child = self._child or _Child(self._task, self._threads)
                while queue and len(running) < most:
                    running.add(number := queue.popleft())
                    child.send((number, items[number]))
                try:
                    number, done[number] = child.receive()
                    running.discard(number)
                except EOFError:
                    self._child = None
                    reason = child.end()
                    if len(running) == 1:
                        done[running.pop()] = Crashed(reason)
                    suspects += sorted(running)
                    running.clear()
            yield done.pop(at)


_kept: dict[tuple[int, bytes], Isolation[Any, Any]] = {}
"""The child of each task in this process, for `apart`; a fork does not inherit the children of its parent."""


def apart(item: T, *, task: Callable[[T], R]) -> R | Crashed:
    """Apply a task to one item in a child process, which is kept for later calls."""
    key = (os.getpid(), pickle.dumps(task))
    [found] = _kept.setdefault(key, Isolation(task, 1)).run([item])
    return found


class _Child:
    """A child process, as its parent sees it."""

    def __init__(self, task: Callable[[Any], Any], threads: int) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.send((task, threads))

    def send(self, value: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the child has ended, which `receive` finds
            pickle.dump(value, self._process.stdin)
            self._process.stdin.flush()

    def receive(self) -> tuple[int, Any]:
        """Return the next result. Raise `EOFError` if the child has ended, or the error of a task."""
        assert self._process.stdout is not None
        try:
            number, result, error = pickle.load(self._process.stdout)
        except pickle.UnpicklingError as broken:  # the child has ended within a message
            raise EOFError from broken
        if error is not None:
            raise error
        return number, result

    def end(self) -> str:
        """End the child, and return how it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        ended = self._process.poll()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()
        if ended is None:
            with suppress(subprocess.TimeoutExpired):
                ended = self._process.wait(1)
        if ended is None:
            self._process.kill()
            ended = self._process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _MOST_OUTPUT))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self._errors.close()
        how = f"by the signal {signal.Signals(-ended).name}" if ended < 0 else f"with the exit code {ended}"
        return f"the process that read it ended {how}" + (f": {lines[-1]}" if lines else "")


def main() -> None:
    """Answer the requests of the parent until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the engine prints is no reply
    task, threads = pickle.load(requests)
    _limit()
    lock = threading.Lock()

    def answer(number: int, item: Any) -> None:
        try:
            reply = pickle.dumps((number, task(item), None))
        except BaseException as error:
            reply = pickle.dumps((number, None, RuntimeError(f"{type(error).__name__}: {error}")))
        with lock:
            replies.write(reply)
            replies.flush()

    pool = ThreadPoolExecutor(threads)
    with suppress(EOFError):
        while True:
            pool.submit(answer, *pickle.load(requests))
    os._exit(0)  # the parent has ended this process, and needs no more replies


def _limit() -> None:
    """Limit the memory of this process, and write no core dump."""
    try:
        import resource  # not on Windows
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError), open("/proc/self/statm") as sizes:  # only Linux limits the address space
        used = int(sizes.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = used + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))


if __name__ == "__main__":
    main()
