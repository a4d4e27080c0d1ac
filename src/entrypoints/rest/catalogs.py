"""Several catalogs below one address, as one ASGI application.

The catalog NAME is below ``/catalogs/NAME``: its application gets the paths without this prefix. Clients of the Lance
REST specification keep the path of their ``uri``, so a URL names a catalog. All other paths are the server's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import unquote

from lance_namespace.errors import ErrorCode
from prometheus_client import CollectorRegistry, Gauge
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from lancekeep.adapters.rest.routes import Router
from lancekeep.entrypoints.rest.app import Endpoints, application_of
from lancekeep.entrypoints.rest.audit import CATALOG, AuditLog
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.entrypoints.rest.health import OK, UNAVAILABLE, status_of
from lancekeep.entrypoints.rest.metrics import Exposition, OfCatalogs
from lancekeep.entrypoints.rest.observation import PREFIX, Observation, Telemetry
from lancekeep.entrypoints.rest.security.refusal import refuse
from lancekeep.entrypoints.rest.security.setup import Authenticators, guards_of
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.entrypoints.rest.task import CATALOGS, prefix_of
from lancekeep.entrypoints.rest.threads import AllThreads

METRICS: Final = "/metrics"


class Held(Protocol):
    """A catalog of a server, which may not be open."""

    @property
    def app(self) -> Starlette | None:
        """Its application; None while it is not open."""


def app_of(
    catalogs: Mapping[str, Held],
    settings: ServerSettings,
    authenticators: Authenticators,
    others: Mapping[str, ASGIApp],
    audit: AuditLog | None,
) -> Starlette:
    """Return the application that serves several catalogs.

    Args:
        catalogs: The catalogs by name.
        settings: The settings that they share.
        authenticators: What verifies credentials.
        others: The server's own applications, by the first segments of their paths.
        audit: The audit log; None without one.
    """
    telemetry, running, health = Telemetry(settings), _Running(catalogs), _Health(catalogs)
    registry = CollectorRegistry()
    registry.register(OfCatalogs(lambda: {"": telemetry.registry, **_registries(catalogs)}))
    is_open = Gauge(
        "lancekeep_catalog_open", "Processes of the server in which a catalog is open.", ("catalog",), registry=registry
    )
    for name in catalogs:
        is_open.labels(name).set_function(_is_open(catalogs[name]))
    metrics = Exposition(registry)
    elsewhere: ASGIApp = _Elsewhere(catalogs)
    for each in reversed(guards_of(settings, authenticators)):
        elsewhere = each.cls(elsewhere, *each.args, **each.kwargs)
    endpoints: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/healthz": health.alive,
        "/readyz": health.ready,
        METRICS: metrics.answer,
    }
    for name in catalogs:  # while they are not open
        endpoints |= {f"{prefix_of(name)}/healthz": health.alive, f"{prefix_of(name)}/readyz": health.closed}
    return application_of(
        Endpoints(endpoints, elsewhere, others),
        (
            Middleware(_Dispatch, catalogs=catalogs),
            Middleware(Observation, telemetry=telemetry, router=Router(()), audit=audit, quiet=tuple(endpoints)),
        ),
        health,
        metrics,
        running,
        _Events(catalogs),
        AllThreads(lambda: [app.state.threads for app in _apps(catalogs).values()]),
    )


def _apps(catalogs: Mapping[str, Held]) -> Mapping[str, Starlette]:
    return {name: app for name, each in catalogs.items() if (app := each.app) is not None}


def _registries(catalogs: Mapping[str, Held]) -> Mapping[str, CollectorRegistry]:
    return {name: app.state.metrics.registry for name, app in _apps(catalogs).items()}


def _is_open(held: Held) -> Callable[[], float]:
    return lambda: float(held.app is not None)


class _Dispatch:
    """Passes requests to the catalogs in their paths, and all others on."""

    def __init__(self, app: ASGIApp, catalogs: Mapping[str, Held]) -> None:
        self._app = app
        self._catalogs = catalogs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, raw_path, path = _named(scope)
        held = self._catalogs.get(name)
        app = None if held is None or path == METRICS else held.app
        if app is None:
            await self._app(scope, receive, send)
            return
        state = {**scope.get("state", {}), PREFIX: prefix_of(name)}
        with bound_contextvars(catalog=name):
            await app({**scope, "path": path, "raw_path": raw_path, "state": state}, receive, send)


def _named(scope: Scope) -> tuple[str, bytes, str]:
    """Return the catalog in the path of a request, and the path below it.

    pylance writes two slashes after a ``uri`` that ends with one.

    Returns:
        The name as it is written in the path, and the path below it, encoded and decoded.
    """
    if scope["type"] != "http" or not scope["raw_path"].startswith(CATALOGS.encode()):
        return "", b"", ""
    name, _, below = scope["raw_path"].removeprefix(CATALOGS.encode()).partition(b"/")
    path = b"/" + below.lstrip(b"/")
    return name.decode("latin-1"), path, unquote(path.decode("latin-1"))


class _Elsewhere:
    """Refuses requests that no catalog takes."""

    def __init__(self, catalogs: Mapping[str, Held]) -> None:
        self._catalogs = catalogs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, _, path = _named(scope)
        if name in self._catalogs:
            scope["state"][CATALOG] = name
        if name in self._catalogs and path != METRICS:
            message = f"The catalog {name!r} is not available at the moment; the log of the server has the cause."
            error = HttpError(503, message, ErrorCode.SERVICE_UNAVAILABLE, {"retry-after": "10"})
        elif name in self._catalogs:
            error = HttpError(404, f"The metrics of all catalogs are at {METRICS}.", ErrorCode.UNSUPPORTED)
        else:
            message = (
                f"There is nothing at this path. This server has several catalogs; the paths of one begin with "
                f"{CATALOGS}NAME, which belongs to the URL of a client."
            )
            error = HttpError(404, message, ErrorCode.UNSUPPORTED)
        await refuse(error, scope, receive, send)


class _Health:
    """The health of a server of several catalogs, as `Health` answers for one."""

    def __init__(self, catalogs: Mapping[str, Held]) -> None:
        self._catalogs = catalogs
        self._stopping = False

    def stop(self) -> None:
        """Answer from now on that the server is shutting down."""
        self._stopping = True
        for app in _apps(self._catalogs).values():
            app.state.health.stop()

    async def alive(self, request: Request) -> JSONResponse:
        """Answer 200 while the process serves requests."""
        return JSONResponse({"status": OK})

    async def closed(self, request: Request) -> JSONResponse:
        """Answer for a catalog that is not open."""
        return JSONResponse(_CLOSED, 503)

    async def ready(self, request: Request) -> JSONResponse:
        """Answer 200 if the server can work for at least one catalog, else 503.

        A load balancer that asks keeps the server while another catalog works.
        """
        apps = _apps(self._catalogs)
        answers = await asyncio.gather(*(app.state.health.found() for app in apps.values()), return_exceptions=True)
        checked = dict(zip(apps, answers, strict=True))
        found = {name: _result(checked.get(name)) for name in self._catalogs}
        ready = [each["status"] == OK for each in found.values()]
        status = OK if all(ready) else "degraded" if any(ready) else UNAVAILABLE
        if self._stopping:
            status = UNAVAILABLE
        answer = {"status": status, "checks": {"server": status_of(self._stopping)}, "catalogs": found}
        return JSONResponse(answer, 503 if status == UNAVAILABLE else 200)


_CLOSED: Final[Mapping[str, Any]] = {"status": UNAVAILABLE, "checks": {"catalog": UNAVAILABLE}}
"""The health of a catalog that is not open, or whose checks failed as a whole."""


def _result(found: Any) -> Mapping[str, Any]:
    return _CLOSED if found is None or isinstance(found, BaseException) else found


class _Running:
    """Waits for the operations of all catalogs, as `Running` for the operations of one."""

    def __init__(self, catalogs: Mapping[str, Held]) -> None:
        self._catalogs = catalogs

    def wait(self, seconds: float | None = None) -> int:
        """Wait until no operation runs, or for some seconds; return how many run."""
        end = None if seconds is None else time.monotonic() + seconds

        def left() -> float | None:
            return None if end is None else max(0.0, end - time.monotonic())

        return sum(app.state.running.wait(left()) for app in _apps(self._catalogs).values())


class _Events:
    """Ends the answers with events of all catalogs."""

    def __init__(self, catalogs: Mapping[str, Held]) -> None:
        self._catalogs = catalogs

    def stop(self) -> None:
        """End the answers that wait for events."""
        for app in _apps(self._catalogs).values():
            app.state.events.stop()
