"""Run the application on uvicorn."""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from threading import Thread
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette

from lancekeep.entrypoints.rest.listening import BACKLOG, listen, url_of
from lancekeep.entrypoints.rest.logs import log_everything
from lancekeep.entrypoints.rest.security.protocol import limited_headers
from lancekeep.entrypoints.rest.security.setup import tls_of
from lancekeep.entrypoints.rest.settings import ServerSettings

CLOSING: Final = 5.0
"""The least seconds that a process has to close its catalogs and to end its threads."""


class _Config(uvicorn.Config):
    def let_requests_finish(self, seconds: int) -> None:
        """Let requests in progress finish within some seconds at the end."""
        self.timeout_graceful_shutdown = seconds


class Server(uvicorn.Server):
    """A server that lets requests in progress finish when it stops.

    On SIGTERM or SIGINT it stops accepting connections, ``/readyz`` answers 503, and requests in progress have
    ``shutdown_seconds`` to finish, as has the work in the background.

    Args:
        app: The application.
        settings: The settings of the server.
        end_background: Ends the work in the background within a number of seconds. Returns whether it has ended.
        started: Called once the server accepts connections.
    """

    def __init__(
        self,
        app: Starlette,
        settings: ServerSettings,
        end_background: Callable[[float], bool] = lambda seconds: True,
        started: Callable[[], None] | None = None,
    ) -> None:
        tls: dict[str, Any] = tls_of(settings)
        self._config = _Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=settings.shutdown_seconds,
            http=limited_headers(settings.header_seconds),
            backlog=BACKLOG,
            **tls,
        )
        super().__init__(self._config)
        self._started = started
        self._application = app
        self._settings = settings
        self._end_background = end_background
        self._stopped_at = math.inf

    def serve_on(self, announce: Callable[[str], None]) -> None:
        """Listen, announce the URL, and serve until a signal stops the server.

        Raises:
            InvalidInput: The address cannot be used.
        """
        listener = listen(self._settings.host, self._settings.port)
        announce(url_of(listener, self._settings.scheme))
        self.serve_from(listener)
        self.leave()

    def serve_from(self, listener: socket.socket) -> None:
        """Serve from a socket until a signal stops the server."""
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._leave)  # also before uvicorn's own handler, and again after its shutdown
        _spare_collections()
        log_everything(self._settings)
        self.run(sockets=[listener])

    def stop_after_requests(self, seconds: int) -> None:
        """Stop, but let requests in progress finish within some seconds.

        Operations without a caller then end with the process. Any thread may call it.
        """
        self._config.let_requests_finish(seconds)
        self.should_exit = True

    def leave(self) -> None:
        """End the process if operations or background work outlast the shutdown.

        The interpreter would wait for their threads. The commit protocol expects that processes end.
        """
        if self._application.state.running.wait(0) or not self._end_background(self._left()):
            os._exit(1)

    def end_process(self) -> None:
        """Let the process end soon, also if a store does not close or a thread hangs.

        Views of pages and checks of health can hang like operations.
        """
        Thread(target=_end_after, args=(max(CLOSING, self._left()),), name="end", daemon=True).start()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, then wait for operations within what is left of ``shutdown_seconds``.

        A signal ends the process while it waits.
        """
        super().run(sockets)
        for each in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(each) == self._leave:
                signal.signal(each, signal.SIG_DFL)
        self._application.state.running.wait(self._left())

    def _leave(self, number: int, frame: object) -> None:
        """Stop, also if the signal comes before uvicorn takes signals."""
        self.should_exit = True

    def _left(self) -> float:
        """Return what is left of ``shutdown_seconds``."""
        return max(0.0, self._stopped_at + self._settings.shutdown_seconds - time.monotonic())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._started is not None and self.started:
            self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopped_at = time.monotonic()
        self._application.state.health.stop()
        self._application.state.events.stop()
        self._application.state.threads.stop()
        self._end_background(0)
        await super().shutdown(sockets)


def _end_after(seconds: float) -> None:
    time.sleep(seconds)
    os._exit(1)


def _spare_collections() -> None:
    """Let the garbage collector run less often, and not over what start-up has left.

    Each request leaves hundreds of objects, nearly all without cycles. With the defaults, collections took a fifth of
    the time of a small request, and collections of the oldest generation stopped all requests for a tenth of a second.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
