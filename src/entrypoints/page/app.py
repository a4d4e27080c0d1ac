"""The web page of a catalog as an ASGI application.

Handlers are blocking functions. They run in threads, with the catalog as the signed-in principal may read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

import attrs
from lance_namespace.errors import ErrorCode
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from lancekeep.adapters.lance.panics import is_panic
from lancekeep.application.catalog import Catalog
from lancekeep.entrypoints.page.assets import assets
from lancekeep.entrypoints.page.authorized import Access, AuthorizedCatalog, Listing
from lancekeep.entrypoints.page.environment import environment
from lancekeep.entrypoints.page.names import NameIndex
from lancekeep.entrypoints.page.request import PageRequest
from lancekeep.entrypoints.page.responses import error_page, prefix_of, protected
from lancekeep.entrypoints.page.views import api, commits, compare, diff, dropped, file, files, history, table
from lancekeep.entrypoints.page.views import catalog as catalog_view
from lancekeep.entrypoints.page.views.finding import FINDINGS, finding
from lancekeep.entrypoints.rest.channel import disconnected
from lancekeep.entrypoints.rest.errors import HttpError, Problem
from lancekeep.entrypoints.rest.threads import Threads
from lancekeep.ports.authorization import Authorizer

Handler = Callable[[PageRequest], Response]

VIEWS: Sequence[tuple[str, Handler]] = (
    *catalog_view.ROUTES,
    *table.ROUTES,
    *history.ROUTES,
    *diff.ROUTES,
    *compare.ROUTES,
    *files.ROUTES,
    *file.ROUTES,
    *commits.ROUTES,
    *dropped.ROUTES,
    *api.ROUTES,
)
"""The path and the handler of every page. ``{id}`` stands for one segment of the path."""

SEGMENTS = frozenset({"", "assets", "sign-in", "sign-out", *(path.split("/")[1] for path, _ in VIEWS)})
"""The first segments of the paths of the page; all other paths belong to the API."""

THREADS = 16
"""How many pages are made at the same time."""

SEARCHES = 4
"""How many searches run at the same time. They have their own threads, because they wait for the names of a catalog."""


@attrs.frozen
class Page:
    """The ASGI application of all views.

    Attributes:
        catalog: The catalog.
        authorizer: Decides what principals may read; None if every principal may read everything.
        has_api: Whether the page is part of a server with the REST API.
        threads: The threads of all views but searches.
        seconds: The most seconds that a view may take.
    """

    catalog: Catalog
    authorizer: Authorizer | None = None
    has_api: bool = False
    _names: NameIndex = attrs.field(factory=NameIndex)
    threads: Threads = attrs.field(factory=lambda: Threads(THREADS))
    seconds: float = 60
    _searches: Threads = attrs.field(factory=lambda: Threads(SEARCHES))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        response = assets().response(scope["path"]) or await self._answer(scope, state, receive)
        await protected(response)(scope, receive, send)

    async def _answer(self, scope: Scope, state: dict[str, Any], receive: Receive) -> Response:
        try:
            path, handler, parameters = _found(scope)
            state["operation"] = f"page {path}"
            request = self._request(scope, state, parameters)
            access = Access(state.get("principal"), self.authorizer)
            if "id" in parameters:
                state["named"] = list(request.object_id.names)

            def act() -> Response:
                with access.base_paths():
                    try:
                        return handler(request)
                    except FINDINGS as error:
                        if "id" not in parameters or handler is table.picture:
                            raise
                        return finding(request, error)

            threads = self._searches if handler is catalog_view.search else self.threads
            caller = getattr(state.get("principal"), "name", "")
            try:
                async with asyncio.timeout(self.seconds):
                    return await threads.run(act, caller, partial(disconnected, receive))
            except TimeoutError:
                message = f"The page took longer than {self.seconds:g} seconds."
                raise HttpError(504, message, ErrorCode.SERVICE_UNAVAILABLE) from None
        except BaseException as error:  # a panic of native code is no Exception
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            problem = Problem.of(error)
            state["error"], state["problem"] = error, problem
            return error_page(environment(), problem, self._shown(scope), state.get("request_id", ""))

    def _request(self, scope: Scope, state: Mapping[str, Any], parameters: Mapping[str, str]) -> PageRequest:
        access = Access(state.get("principal"), self.authorizer)
        try:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"), errors="strict"))
        except ValueError:
            raise HttpError(400, "The query of the URL is not percent-encoded UTF-8.") from None
        listing, prefix = Listing(self.catalog, access), prefix_of(scope)
        return PageRequest(
            catalog=cast(Catalog, AuthorizedCatalog(self.catalog, access)),
            listing=listing,
            names=partial(self._names.names, access.audience, listing),
            path=prefix + scope["raw_path"].decode("latin-1"),
            path_params=parameters,
            query=query,
            templates=environment(),
            shown=self._shown(scope),
            prefix=prefix,
        )

    def _shown(self, scope: Scope) -> Mapping[str, Any]:
        """Return the values that the frame of every page shows."""
        principal = scope["state"].get("principal")
        return {
            "root": self.catalog.root_uri,
            "signed_in": "" if principal is None else principal.name,
            "has_api": self.has_api,
            "prefix": prefix_of(scope),
        }


def _found(scope: Scope) -> tuple[str, Handler, Mapping[str, str]]:
    """Return the view of a path, and the decoded parameters in the path.

    A path is split before it is decoded, so a name may contain an encoded slash.
    """
    if scope["method"] not in ("GET", "HEAD"):
        raise HttpError(405, "A page has the methods GET and HEAD.", headers={"allow": "GET, HEAD"})
    segments = scope["raw_path"].decode("latin-1").split("/")
    for path, handler in VIEWS:
        pattern = path.split("/")
        if len(pattern) == len(segments) and all(
            wanted == given or (wanted[:1] == "{" and given) for wanted, given in zip(pattern, segments, strict=True)
        ):
            try:
                named = {
                    wanted.strip("{}"): unquote(given, errors="strict")
                    for wanted, given in zip(pattern, segments, strict=True)
                    if wanted[:1] == "{"
                }
            except UnicodeDecodeError:
                raise HttpError(400, "The path is not percent-encoded UTF-8.") from None
            return path, handler, named
    raise HttpError(404, "There is no page at this address. Start from the catalog.")
