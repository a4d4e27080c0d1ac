"""A worker of `lancekeep serve`, as a process.

The supervisor passes the numbers of two open files: its connection to this worker, and the listening socket. If it
reads what this process prints on stderr, a third file is where the log is written, and a fourth one has its mark.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
from functools import partial
from typing import Final

from lancekeep.entrypoints.rest.logs import write_to
from lancekeep.entrypoints.rest.server import Server
from lancekeep.entrypoints.rest.supervised import Supervised, portable
from lancekeep.entrypoints.rest.task import SeveralTasks, Task
from lancekeep.entrypoints.rest.whole_lines import log_stream
from lancekeep.entrypoints.serving_catalogs import served_by

_PR_SET_PDEATHSIG: Final = 1


def main(connection: int, listening: int, log: int | None = None, mark: int | None = None) -> None:
    """Serve until the supervisor sends SIGTERM, or ends."""
    if log is not None:
        write_to(log_stream(log, mark))
    channel, listener = (socket.socket(fileno=number) for number in (connection, listening))
    for each in (channel, listener):
        each.set_inheritable(False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor replaces this process
    supervised = Supervised(channel)
    task: Task | SeveralTasks = supervised.receive()
    if task.settings.workers == 1:
        _die_with_supervisor()
    supervised.watch(task.settings.shutdown_seconds)
    try:
        with served_by(task) as (app, served, end_background):
            supervised.show(app.state.metrics.registry)
            app.state.metrics.gather_by(supervised.metrics)
            server = Server(app, task.settings, end_background, partial(supervised.serve, served))
            supervised.succeed_if(app.state.threads.hold, partial(server.stop_after_requests, task.longest))
            server.serve_from(listener)
            supervised.finish()
            server.leave()
            server.end_process()
    except Exception as error:
        supervised.send("failed", portable(error))
        raise SystemExit(1) from error


def _die_with_supervisor() -> None:
    """Let the system kill this process if the supervisor is killed: the two are one server to those that stop it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
