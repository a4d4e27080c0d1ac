"""Refusals of requests before they reach an operation."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from lancekeep.entrypoints.rest.errors import HttpError, Problem

REFUSAL = "refusal"
"""The entry of the state of a request whose function makes another response of a problem and the id of the request."""


async def refuse(error: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with an error, and close the connection.

    The body of the request stays unread.
    """
    state = scope.setdefault("state", {})
    problem = Problem.of(error)
    state["error"], state["problem"] = error, problem
    request_id, make = state.get("request_id", ""), state.get(REFUSAL)
    response: Response = (
        JSONResponse(problem.body(request_id), problem.status) if make is None else make(problem, request_id)
    )
    response.headers.update({"connection": "close", **problem.headers})
    await response(scope, receive, send)
