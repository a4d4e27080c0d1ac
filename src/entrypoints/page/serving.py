"""The page as part of a server, and as a local server of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import attrs
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lancekeep.adapters.rest.routes import Router
from lancekeep.application.catalog import Catalog, services_of
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.page.app import THREADS, Page
from lancekeep.entrypoints.page.catalogs import CatalogsPage, ShownCatalog
from lancekeep.entrypoints.page.environment import environment
from lancekeep.entrypoints.page.responses import error_page, prefix_of, protected
from lancekeep.entrypoints.page.sessions import OPEN, KeySessions, LocalSession
from lancekeep.entrypoints.rest.errors import Problem
from lancekeep.entrypoints.rest.listening import listen, url_of
from lancekeep.entrypoints.rest.observation import Observation, Telemetry
from lancekeep.entrypoints.rest.security.authentication import LocalOnly
from lancekeep.entrypoints.rest.security.limits import Concurrency, Rate, Transfer
from lancekeep.entrypoints.rest.security.protocol import limited_headers
from lancekeep.entrypoints.rest.security.refusal import REFUSAL
from lancekeep.entrypoints.rest.security.setup import Authenticators, Security
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.entrypoints.rest.threads import Threads

LARGEST_FORM = 1 << 16
"""The maximum size of a form in bytes."""


def page_of(catalog: Catalog, settings: ServerSettings, security: Security, threads: Threads | None = None) -> ASGIApp:
    """Return the page of a server, with the limits and the permissions of its API.

    Args:
        catalog: The catalog.
        settings: The settings of the server.
        security: The security of its API.
        threads: The threads of its views; None for threads of its own.
    """
    threads = threads or Threads(THREADS)
    page = Page(catalog, security.authorizer, has_api=True, threads=threads, seconds=settings.operation_seconds)
    return _guarded(page, settings, Authenticators(security.keys, security.tokens))


def page_of_catalogs(
    catalogs: Callable[[], Sequence[ShownCatalog]], settings: ServerSettings, authenticators: Authenticators
) -> ASGIApp:
    """Return the first page of a server of several catalogs.

    Args:
        catalogs: Returns the catalogs, in their order.
        settings: The settings of the server.
        authenticators: What verifies credentials.
    """
    return _guarded(CatalogsPage(catalogs), settings, authenticators)


def _guarded(app: ASGIApp, settings: ServerSettings, authenticators: Authenticators) -> ASGIApp:
    """Return an application for browsers with the limits of a server, and for callers that have signed in."""
    if settings.rate:
        app = Rate(app, per_second=settings.rate, burst=settings.burst, workers=settings.workers)
    if authenticators:
        app = KeySessions(app, authenticators.keys, authenticators.tokens, secure=bool(settings.certificate))
    else:
        app = LocalOnly(app)
    return _limited(app, settings)


def serve_locally(catalog: Catalog, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page of a catalog to one browser until a signal stops it.

    Args:
        catalog: The catalog.
        port: The port; 0 for a free one.
        announce: Receives the URL that opens the page, once.

    Raises:
        InvalidInput: The port cannot be used.
    """
    settings = ServerSettings(port=port, log_level="error")
    listener = listen(settings.host, port)
    session = LocalSession(Page(catalog))
    config = uvicorn.Config(
        Observation(_limited(LocalOnly(session), settings), Telemetry(settings), Router(()), None),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
        http=limited_headers(settings.header_seconds),
    )
    with suppress(LancekeepError):  # The first page of a large catalog orders its names; do it before the visit.
        services_of(catalog).tables.page(ObjectId(), None, 1, include_declared=True)
    announce(f"{url_of(listener)}{OPEN}?token={session.token}")
    uvicorn.Server(config).run(sockets=[listener])


def _limited(app: ASGIApp, settings: ServerSettings) -> ASGIApp:
    app = Transfer(app, largest=LARGEST_FORM, document=LARGEST_FORM, seconds=settings.body_seconds)
    return _Refusals(Concurrency(app, most=settings.requests))


@attrs.frozen
class _Refusals:
    """Makes what the limits of a server refuse a page, as everything else that a browser asks for."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})[REFUSAL] = partial(_refusal, prefix_of(scope))
        await self.app(scope, receive, send)


def _refusal(prefix: str, problem: Problem, request_id: str) -> Response:
    return protected(error_page(environment(), problem, {"prefix": prefix}, request_id))
