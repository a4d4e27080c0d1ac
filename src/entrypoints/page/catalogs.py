"""The first page of a server of several catalogs: their names and their states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from lancekeep.entrypoints.page.assets import assets
from lancekeep.entrypoints.page.environment import environment
from lancekeep.entrypoints.page.responses import error_page, protected
from lancekeep.entrypoints.rest.errors import HttpError, Problem

SEGMENTS_OF_CATALOGS: Final = frozenset(("", "assets", "sign-in", "sign-out"))
"""The first segments of the paths of this page."""


@attrs.frozen
class ShownCatalog:
    """A catalog on the page.

    Attributes:
        name: Its name.
        path: The path of its own page.
        is_open: Whether it is available.
    """

    name: str
    path: str
    is_open: bool


@attrs.frozen
class CatalogsPage:
    """The ASGI application of the page.

    Attributes:
        catalogs: Returns the catalogs, in their order.
    """

    catalogs: Callable[[], Sequence[ShownCatalog]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
            return
        response = assets().response(scope["path"]) or self._answer(scope)
        await protected(response)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response:
        state = scope.setdefault("state", {})
        principal = state.get("principal")
        shown = {"signed_in": "" if principal is None else principal.name}
        if scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
            state["operation"] = "page catalogs"
            content = environment().get_template("catalogs.html").render(**shown, catalogs=self.catalogs())
            return HTMLResponse(content)
        error = HttpError(404, "There is no page at this address. Start from the catalogs.")
        if scope["path"] == "/":
            error = HttpError(405, "A page has the methods GET and HEAD.", headers={"allow": "GET, HEAD"})
        state["error"], state["problem"] = error, Problem.of(error)
        return error_page(environment(), state["problem"], shown, state.get("request_id", ""))
