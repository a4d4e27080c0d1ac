"""The REST server in this process, with faults between it and its namespace."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import attrs
import lance_namespace as api
from lance_namespace.errors import ServiceUnavailableError
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from lancekeep.entrypoints.rest.app import Handler, create_app
from lancekeep.entrypoints.rest.listening import listen, url_of
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.entrypoints.rest.server import Server
from lancekeep.entrypoints.rest.settings import ServerSettings

SETTINGS = ServerSettings(log_level="error")


@attrs.define
class Front:
    """A running server.

    Attributes:
        uri: its URL.
        losses: how many responses of an operation, by its name, become 503 although it was carried out.
        repeats: how many requests arrive twice, as from a proxy that retries, and get the second response.
        asked: the operations so far.
    """

    uri: str = ""
    losses: Counter[str] = attrs.field(factory=Counter)
    repeats: Counter[str] = attrs.field(factory=Counter)
    asked: list[str] = attrs.field(factory=list)

    def around(self, call: Call, proceed: Handler) -> Any:
        self.asked.append(call.operation)
        answer = proceed(call)
        if self.repeats[call.operation]:
            self.repeats[call.operation] -= 1
            answer = proceed(call)
        if self.losses[call.operation]:
            self.losses[call.operation] -= 1
            raise ServiceUnavailableError("no answer came in time")
        return answer


class Host:
    """A server in a thread that serves one application after the other, since a server stops slowly."""

    def __init__(self, app: Starlette) -> None:
        self.app = app
        listener = listen("127.0.0.1", 0)
        self.uri = url_of(listener)
        self._server = Server(self, SETTINGS)  # type: ignore[arg-type] # stands for the application
        self._thread = Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    @property
    def state(self) -> Any:
        return self.app.state

    def stop(self) -> None:
        """Stop the server and wait for its thread."""
        self._server.should_exit = True
        self._thread.join()


_IDLE: list[Host] = []


@contextmanager
def serving(namespace: api.LanceNamespace, settings: ServerSettings = SETTINGS) -> Iterator[Front]:
    """Serve a namespace from a thread of this process."""
    front = Front()
    with running(create_app(namespace, settings, around=[front.around]), settings) as front.uri:
        yield front


@contextmanager
def running(app: Starlette, settings: ServerSettings = SETTINGS) -> Iterator[str]:
    """Run an application in a thread of this process; yield its URL."""
    if settings == SETTINGS:
        host = _IDLE.pop() if _IDLE else Host(app)
        host.app = app
        try:
            yield host.uri
        finally:
            app.state.running.wait()
            _IDLE.append(host)
        return
    server = Server(app, settings)
    listener = listen("127.0.0.1", 0)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
