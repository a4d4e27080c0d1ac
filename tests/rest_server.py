"""The REST server in this process, with faults between it and its namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import Any

import attrs
import lance_namespace as api
from lance_namespace.errors import ServiceUnavailableError
from starlette.applications import Starlette

from lancekeep.entrypoints.rest.app import Handler, create_app
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.entrypoints.rest.server import Server, listen, url_of
from lancekeep.entrypoints.rest.settings import ServerSettings


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


class Switch(api.LanceNamespace):
    """Another namespace, which the test may exchange."""

    namespace: api.LanceNamespace

    def namespace_id(self) -> str:
        return "switch"

    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "namespace"), name)


class Pool:
    """Servers that serve one namespace after the other: starting a server takes longer than most tests."""

    def __init__(self) -> None:
        self._servers: list[tuple[Switch, Front]] = []
        self._used = 0
        self._running = ExitStack()

    def serve(self, namespace: api.LanceNamespace) -> Front:
        """Serve a namespace by a server that serves none."""
        if self._used == len(self._servers):
            switch = Switch()
            switch.namespace = namespace
            self._servers.append((switch, self._running.enter_context(serving(switch))))
        switch, front = self._servers[self._used]
        switch.namespace = namespace
        self._used += 1
        return front

    def release(self) -> None:
        """Free every server for other namespaces."""
        self._used = 0

    def close(self) -> None:
        """Stop the servers."""
        self._running.close()


@contextmanager
def serving(namespace: api.LanceNamespace, settings: ServerSettings | None = None) -> Iterator[Front]:
    """Serve a namespace from a thread of this process."""
    settings = settings or ServerSettings(log_level="error")
    front = Front()
    with running(create_app(namespace, settings, around=[front.around]), settings) as front.uri:
        yield front


@contextmanager
def running(app: Starlette, settings: ServerSettings | None = None) -> Iterator[str]:
    """Run an application in a thread of this process; yield its URL."""
    server = Server(app, settings or ServerSettings(log_level="error"))
    listener = listen("127.0.0.1", 0)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
