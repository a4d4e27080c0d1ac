"""A worker of `lancekeep serve`, as a process.

The supervisor passes the numbers of two open files: its connection to this worker, and the listening socket.
"""

from __future__ import annotations

import signal
import socket
import sys

from lancekeep.entrypoints.rest.server import Server
from lancekeep.entrypoints.rest.supervised import Supervised, portable
from lancekeep.entrypoints.rest.task import SeveralTasks, Task
from lancekeep.entrypoints.serving_catalogs import served_by


def main(connection: int, listening: int) -> None:
    """Serve until the supervisor sends SIGTERM, or ends."""
    channel, listener = (socket.socket(fileno=number) for number in (connection, listening))
    for each in (channel, listener):
        each.set_inheritable(False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor replaces this process
    supervised = Supervised(channel)
    task: Task | SeveralTasks = supervised.receive()
    supervised.watch(task.settings.shutdown_seconds)
    try:
        with served_by(task) as (app, served, end_background):
            supervised.show(app.state.metrics.registry)
            app.state.metrics.gather_by(supervised.metrics)
            server = Server(app, task.settings, end_background, lambda: supervised.send("ready", served))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            server.serve_from(listener)
            supervised.finish()
            server.leave()
    except Exception as error:
        supervised.send("failed", portable(error))
        raise SystemExit(1) from error


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
