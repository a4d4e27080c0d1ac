"""Races between threads and between processes."""

from __future__ import annotations

import faulthandler
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier as ProcessBarrier
from typing import TypeVar

from lancekeep.application.concurrency import race

__all__ = ["EXIT_PATIENCE", "PROCESSES", "race", "race_processes", "watch_exit"]

T = TypeVar("T")

PROCESSES = multiprocessing.get_context("forkserver")
"""Forks of a server that only imports, since a process that has used lance must not fork."""
PROCESSES.set_forkserver_preload(["lance", "lance_namespace", "lancekeep.composition"])

EXIT_PATIENCE = 60.0
"""Seconds after the end of its main function after which a process that has not exited shows its stacks."""

_barrier: ProcessBarrier


def watch_exit() -> None:
    """Show the stacks of all threads if this process does not exit.

    Call it at the end of the main function of a process.
    """
    faulthandler.dump_traceback_later(EXIT_PATIENCE, repeat=True)


def race_processes(contenders: int, act: Callable[[int, ProcessBarrier], T]) -> list[T]:
    """Return the results of ``act`` in several processes.

    Args:
        contenders: the number of processes.
        act: receives the number of its process and a barrier of all contenders, and starts each step of the race by
            waiting there. The function must pickle.
    """
    barrier = PROCESSES.Barrier(contenders, timeout=60)
    with ProcessPoolExecutor(contenders, PROCESSES, _share, (barrier,)) as pool:
        return [future.result() for future in [pool.submit(_contend, act, each) for each in range(contenders)]]


def _share(barrier: ProcessBarrier) -> None:
    global _barrier
    _barrier = barrier


def _contend(act: Callable[[int, ProcessBarrier], T], number: int) -> T:
    return act(number, _barrier)
