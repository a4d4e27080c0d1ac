"""A `CatalogServer` over HTTP (REST catalog specification)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from lancekeep.adapters.rest.connection import MOST_JSON, MOST_ROWS, Connection, NotSent, Reply
from lancekeep.adapters.rest.errors import RETRIED, code_of, error_of
from lancekeep.adapters.rest.routes import (
    CURSOR_HEADER,
    EXTENSIONS,
    LEGACY_ROUTES,
    READS,
    ROUTES,
    SOURCE_HEADER,
    Body,
    Route,
)
from lancekeep.adapters.rest.settings import RestSettings
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import InvalidInput, StoreUnavailable, Unsupported

KEY_HEADER = "idempotency-key"
JSON = "application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"

_BY_OPERATION = {route.operation: route for route in (*ROUTES, *EXTENSIONS)}
_BY_OPERATION |= {route.operation: route for route in LEGACY_ROUTES if route.operation == "list_operations"}
_OWN = {*(route.operation for route in EXTENSIONS), "list_operations"}
"""Operations that other servers may not know."""
_HEADER = "header."


class RestServer:
    """Any server of the specification.

    A request that fails without a definite answer is repeated if it reads, if it never reached the server, or if the
    server honours idempotency keys. Each change then carries the same key in every attempt.

    Args:
        settings: How to reach the server.
        retry: How to repeat requests.
        observe: Called with each response to a request of an operation, before it is read. Copies in other processes do
            not call it.
    """

    def __init__(
        self,
        settings: RestSettings,
        retry: Retry | None = None,
        observe: Callable[[Route, Reply], None] = lambda route, reply: None,
    ) -> None:
        self._connection = Connection(settings)
        self._observe = observe
        self._settings = settings
        self._retry = retry or Retry(patience=settings.retry_seconds, first=0.05, cap=2.0)
        self._honours_keys: bool | None = None
        self.uri = self._connection.uri

    def __reduce__(self) -> tuple[Any, ...]:
        return RestServer, (self._settings,)

    def call(
        self, operation: str, fields: Mapping[str, Any], *, data: bytes | None = None, key: str | None = None
    ) -> dict[str, Any]:
        route = _BY_OPERATION.get(operation)
        if route is None:
            raise Unsupported(f"the REST protocol has no operation {operation!r}")
        given = {name: value for name, value in fields.items() if value is not None}
        headers = _headers(given)
        reads = operation in READS
        if not reads and self.honours_keys():
            headers[KEY_HEADER] = key or str(uuid4())
        send = partial(self._once, route, given, headers, data, repeatable=reads or KEY_HEADER in headers)
        try:
            return self._retry.call(send)
        except (_Failed, _Unanswered) as failed:
            raise failed.error from failed.__cause__

    def honours_keys(self) -> bool:
        """Return whether the server keeps idempotency keys.

        A server that does echoes the key of a request in a header. The first call asks the server.

        Raises:
            StoreUnavailable: The server did not answer the question.
        """
        if self._honours_keys is None:
            key, root = str(uuid4()), f"/v1/namespace/{self._id(None)}"
            try:
                reply = self._ask("POST", f"{root}/exists", {}, key, b"{}")
                if reply.status == 403:  # this caller may only list what lies below the root
                    reply = self._ask("GET", f"{root}/list", {"limit": 1}, key, None)
                if reply.status == 403:  # this caller may list nothing, such as one that may only append
                    reply = self._ask("POST", "/ListOperations", {}, key, b"{}")
            except _Unanswered as unanswered:
                raise unanswered.error from None
            if reply.status in (401, 403):
                raise error_of(reply.status, _json(reply), self.uri)
            self._honours_keys = reply.headers.get(KEY_HEADER) == key
        return self._honours_keys

    def _ask(self, method: str, path: str, query: Mapping[str, Any], key: str, body: bytes | None) -> Reply:
        """Ask a question about the root namespace, with an idempotency key."""
        headers = {KEY_HEADER: key, **({} if body is None else {"content-type": JSON})}
        given = {**query, **self._delimiter}

        def ask() -> Reply:
            reply = self._connection.send(method, path, given, headers, body)
            if reply.status in RETRIED:  # such a response has no echo, also if the server keeps keys
                error = error_of(reply.status, _json(reply), self.uri)
                raise _Unanswered(str(error), error)
            return reply

        return self._retry.call(ask)

    @property
    def _delimiter(self) -> dict[str, str]:
        """The query parameter of a delimiter that is not the default."""
        return {} if self._settings.delimiter == "$" else {"delimiter": self._settings.delimiter}

    def close(self) -> None:
        self._connection.close()

    def _once(
        self,
        route: Route,
        fields: Mapping[str, Any],
        headers: Mapping[str, str],
        data: bytes | None,
        *,
        repeatable: bool,
    ) -> dict[str, Any]:
        """Send a request once.

        Raises:
            StoreUnavailable: The request may be sent again. _Failed: It must not be sent again; the exception carries
                the error for the caller.
        """
        what = f"{route.operation_id} at {self.uri}"
        path, query, own_headers, body = self._parts(route, dict(fields), data)
        most = MOST_ROWS if route.answer is Body.ARROW else MOST_JSON
        try:
            reply = self._connection.send(route.method, path, query, {**headers, **own_headers}, body, most=most)
            self._observe(route, reply)
            if 200 <= reply.status < 300:
                return _response(route, reply)
            error = error_of(reply.status, _json(reply), what)
            if route.operation in _OWN and reply.status in (404, 405) and code_of(error) is None:
                error = Unsupported(f"{what}: the server has no such operation. Nothing was changed")
        except NotSent:
            raise
        except _Malformed as malformed:
            raise _Failed(malformed) from None
        except StoreUnavailable as unanswered:
            if repeatable:
                raise
            raise _Failed(
                StoreUnavailable(
                    f"{what}: {unanswered}. The request may have taken effect, and the server keeps no idempotency "
                    "keys; check the state before you repeat it"
                )
            ) from unanswered
        if reply.status in RETRIED and (repeatable or reply.status == 429):
            raise _Unanswered(str(error), error) from None
        raise _Failed(error)

    def _parts(
        self, route: Route, fields: dict[str, Any], data: bytes | None
    ) -> tuple[str, dict[str, Any], dict[str, str], bytes | None]:
        """Return path, query, headers and body of a request ("Non-Standard Operations")."""
        path, query, headers = route.path, dict[str, Any](self._delimiter), dict[str, str]()
        for name in ("id", "index_name"):
            if f"{{{name}}}" in path:
                value = fields.pop(name, None)
                path = path.replace(f"{{{name}}}", self._id(value) if name == "id" else _segment(str(value)))
        for header, name in route.headers.items():
            if name in fields:
                value = fields.pop(name)
                headers[header] = value if isinstance(value, str) else json.dumps(value)
        for name in route.query:
            if name == "id" and "id" in fields:
                query[name] = self._settings.delimiter.join(fields.pop("id"))
            elif name in fields:
                query[name] = _parameter(fields.pop(name))
        if route.body is Body.ARROW:
            fields.pop("storage_options", None)
            if fields:
                raise InvalidInput(f"{route.operation_id} has no field {min(fields)!r} over REST")
            return path, query, {**headers, "content-type": ARROW_STREAM}, data or b""
        if route.method == "GET":
            if fields:
                raise InvalidInput(f"{route.operation_id} has no field {min(fields)!r} over REST")
            return path, query, headers, None
        if route.body is Body.METADATA:
            fields = fields.get("metadata") or {}
        content = json.dumps(fields).encode() if fields or route.body is not Body.NONE else b""
        return path, query, {**headers, "content-type": JSON}, content

    def _id(self, names: Any) -> str:
        """Return an identifier as a segment of a path; the delimiter alone is the root."""
        delimiter = self._settings.delimiter
        names = [] if names is None else [names] if isinstance(names, str) else list(names)
        for name in names:
            if not name or delimiter in name:
                raise InvalidInput(
                    f"the name {name!r} cannot be in a path, where {delimiter!r} joins names; set rest.delimiter"
                )
        return _segment(delimiter.join(names)) if names else quote(delimiter, safe="").replace(".", "%2E")


def _segment(text: str) -> str:
    """Return a text as a segment of a path.

    Raises:
        InvalidInput: The segment would name another path.
    """
    if text in ("", ".", ".."):
        raise InvalidInput(f"the name {text!r} cannot be in a path; nothing was sent")
    return quote(text, safe="")


class _Unanswered(StoreUnavailable):
    """A response after which the request may be sent again; ``error`` is raised if no attempt succeeds."""

    def __init__(self, message: str, error: Exception) -> None:
        super().__init__(message, error)
        self.error = error


class _Malformed(StoreUnavailable):
    """A response that does not follow the specification; another attempt would get the same."""


class _Failed(Exception):
    """Carries an error past the retries."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _headers(fields: dict[str, Any]) -> dict[str, str]:
    """Take identity and context out of the fields of a request, and return their headers."""
    headers = {}
    identity, context = fields.pop("identity", None) or {}, fields.pop("context", None) or {}
    if identity.get("api_key"):
        headers["x-api-key"] = identity["api_key"]
    if identity.get("auth_token"):
        headers["authorization"] = f"Bearer {identity['auth_token']}"
    for name, value in context.items():
        if name.startswith(_HEADER):
            headers[name.removeprefix(_HEADER).lower()] = value
    for name, value in headers.items():
        if "\r" in f"{name}{value}" or "\n" in f"{name}{value}":
            raise InvalidInput(f"the header {name!r:.100} of the request's context holds a line break")
    return headers


def _parameter(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict) else value


def _response(route: Route, reply: Reply) -> dict[str, Any]:
    """Return the fields of a successful response.

    Raises:
        _Malformed: The body is not what the specification says. The server, or a proxy before it, is broken.
    """
    context = {"context": {f"{_HEADER}{name}": value for name, value in reply.headers.items()}}
    if route.answer is Body.ARROW:
        return {"data": reply.content, **context}
    if route.answer is Body.NONE or not reply.content:
        return context
    body = _json(reply)
    if route.answer is Body.EVENTS:
        cursor = reply.headers.get(CURSOR_HEADER)
        if not isinstance(body, list) or cursor is None:
            raise _malformed(reply, route)
        return {"events": body, "cursor": cursor, "source": reply.headers.get(SOURCE_HEADER, ""), **context}
    if field := route.value:
        if isinstance(body, dict) and field in body:
            body = body[field]
        if body is None and field != "count":
            body = reply.content.decode(errors="replace")  # plain text, as the native server writes it
        if isinstance(body, bool) or not isinstance(body, int if field == "count" else str):
            raise _malformed(reply, route)
        return {field: body, **context}
    if not isinstance(body, dict):
        raise _malformed(reply, route)
    if route.answer is Body.METADATA:
        return {"metadata": body, **context}
    return {**body, **context}


def _malformed(reply: Reply, route: Route) -> _Malformed:
    return _Malformed(
        f"the response to {route.operation_id} with status {reply.status} and type {reply.media_type[:100]!r} is not "
        "what the specification says. The effect of a change is unknown; check the state before you repeat it"
    )


def _json(reply: Reply) -> Any:
    """Return the JSON value of a body; None if it is not JSON."""
    try:
        return json.loads(reply.content)
    except (ValueError, RecursionError):
        return None
