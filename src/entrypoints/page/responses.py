"""Responses of the page: security headers, and pages about errors."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from jinja2 import Environment
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from lancekeep.entrypoints.rest.errors import Problem
from lancekeep.entrypoints.rest.observation import PREFIX

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # "no-referrer" hides the origin of the page's own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def prefix_of(scope: Scope) -> str:
    """Return the path before the paths of the page in a request.

    It has no slash at its end.
    """
    return str(scope.get("state", {}).get(PREFIX, ""))


def protected(response: Response) -> Response:
    """Add the headers that protect a page to a response.

    A page may show data, so no cache keeps it unless its response allows it.
    """
    for name, value in (*_HEADERS.items(), ("cache-control", "no-store")):
        response.headers.setdefault(name, value)
    return response


def error_page(templates: Environment, problem: Problem, shown: Mapping[str, Any], request_id: str) -> Response:
    """Return the page about an error."""
    title = HTTPStatus(problem.status).phrase
    message = problem.message if problem.expected else "The server failed to make this page."
    content = templates.get_template("error.html").render(
        **shown, title=title, message=message, request_id="" if problem.expected else request_id
    )
    return HTMLResponse(content, problem.status, problem.headers)
