"""Refusals of requests before they reach an operation."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from lancekeep.entrypoints.rest.errors import HttpError, Problem


async def refuse(error: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with an error, and close the connection.

    The body of the request stays unread.
    """
    state = scope.setdefault("state", {})
    problem = Problem.of(error)
    state["error"], state["problem"] = error, problem
    headers = {"connection": "close", **problem.headers}
    await JSONResponse(problem.body(state.get("request_id", "")), problem.status, headers)(scope, receive, send)
