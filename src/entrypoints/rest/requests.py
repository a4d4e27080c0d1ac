"""HTTP requests as calls (specification: "Non-Standard Operations").

The fields of an operation's request are in the path, in query parameters, in headers and in the body. A field that is
given twice must have one value, and a JSON object has each member once: a proxy that checks requests may read the first
of two, and the server the last. Unknown fields and parameters are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final, cast
from urllib.parse import parse_qsl, unquote_plus

import attrs
from lance_namespace.errors import ErrorCode
from pydantic import BaseModel
from pydantic_core import from_json, to_json
from starlette.datastructures import Headers
from starlette.types import Scope

from lancekeep.adapters.rest.routes import Body, Match, Route, Router
from lancekeep.domain.restrictions import Restriction
from lancekeep.entrypoints.namespace.boundary import request_of
from lancekeep.entrypoints.rest.errors import HttpError, Problem

JSON = "application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
DELIMITER = "$"
"""The delimiter of identifiers in paths, unless the query parameter ``delimiter`` gives another."""

MOST_VALUES: Final = 1_000_000
"""The maximum number of values in a JSON body or parameter; each takes about a hundred bytes once decoded."""

_CONTEXT = re.compile(
    "x-(?!api-key$|forwarded-|real-ip$|request-id$|request-timeout$|lance-table-).+|traceparent|tracestate"
)
"""The request headers that become entries of the context; other headers concern the connection or hold credentials."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
"""A string in JSON, which may contain colons."""
_INTEGER = re.compile("-?[0-9]{1,19}")


@attrs.frozen
class Failure:
    """A member of a batch that failed, while other members may have succeeded."""

    object_id: tuple[str, ...]
    error: BaseException
    problem: Problem


@attrs.define
class Progress:
    """What a batch, its deadline and the logs share.

    Attributes:
        failures: The members that failed so far.
        over: Whether the caller no longer waits, so that no further member begins.
        restricted: What the caller's grants restricted: ``columns``, ``rows``.
        changed: What an administrator changed, without secrets.
    """

    failures: list[Failure] = attrs.field(factory=list)
    over: bool = False
    restricted: set[str] = attrs.field(factory=set)
    changed: str = ""

    def record(self, changed: str) -> None:
        """Record what an administrator changed."""
        self.changed = changed

    def end(self) -> None:
        """Let no further member begin."""
        self.over = True


@attrs.frozen
class Call:
    """One call of an operation.

    Attributes:
        route: The route of the request, which names the operation.
        request: The request model, complete.
        headers: The headers of the HTTP request.
        principal: The authenticated caller; None without authentication.
        body: The Arrow IPC stream of the request as a file, if the operation takes one.
        delimiter: The delimiter of identifiers in the request and the response.
        progress: The state of a batch.
        restriction: What the caller may read of the object; None for all of it.
    """

    route: Route
    request: BaseModel
    headers: Headers = attrs.field(repr=False)
    principal: Any = None
    body: BinaryIO | None = attrs.field(default=None, repr=False)
    delimiter: str = DELIMITER
    progress: Progress = attrs.field(factory=Progress, eq=False, repr=False)
    restriction: Restriction | None = None

    @property
    def operation(self) -> str:
        """The method of the namespace."""
        return self.route.operation

    @property
    def object_id(self) -> tuple[str, ...]:
        """The identifier of the object; empty for the root or without an object."""
        return tuple(getattr(self.request, "id", None) or ())


def route_of(scope: Scope, router: Router) -> tuple[Route, Mapping[str, str]]:
    """Return the route of a request and the parameters in its path.

    Each segment of the path is percent-decoded once, after the path is split. A ``+`` is a space, because pylance's
    client encodes paths like forms; every client encodes a plus as ``%2B``.

    Raises:
        HttpError: There is no such path (404), or not with this method (405).
    """
    path = scope["raw_path"].decode("latin-1").removeprefix(scope.get("root_path", ""))
    segments = path.split("/")[1:]
    if len(segments) > 1 and not segments[-1]:
        segments.pop()  # the specification writes `GET /v1/table/`, too
    try:
        match = router.find([unquote_plus(segment, errors="strict") for segment in segments], scope["method"])
    except UnicodeDecodeError:
        raise HttpError(400, "The path is not percent-encoded UTF-8.") from None
    if match is None:
        raise HttpError(
            404,
            "There is no operation at this path. Use a path of the Lance namespace specification, such as "
            "/v1/table/{id}/describe.",
            ErrorCode.UNSUPPORTED,
        )
    route = match.routes.get(scope["method"])
    if route is None:
        raise _wrong_method(match)
    return route, match.parameters


def _wrong_method(match: Match) -> HttpError:
    allowed = ", ".join(match.routes)
    operation = next(iter(match.routes.values())).operation_id
    message = f"{operation} has the method {allowed}."
    return HttpError(405, message, ErrorCode.UNSUPPORTED, {"allow": allowed})


def call_of(route: Route, parameters: Mapping[str, str], scope: Scope, body: BinaryIO) -> Call:
    """Return an HTTP request as the call of its operation.

    Args:
        route: The route of the request.
        parameters: The parameters in the path.
        scope: The ASGI scope of the request.
        body: The body, at its start.

    Raises:
        HttpError, InvalidInput: The request is malformed.
    """
    headers = Headers(scope=scope)
    query, delimiter = _query(route, scope["query_string"])
    given = _fields(route, headers, body)
    for source, found in (
        ("path", _in_path(parameters, delimiter)),
        ("query", query),
        ("headers", _in_headers(route, headers)),
    ):
        for name, value in found.items():
            if given.get(name) is not None and given[name] != value:
                raise HttpError(
                    400, f"The field {name!r} has one value in the {source} and another in the body; give one of them."
                )
            given[name] = value
    for name, value in route.fixed.items():
        if given.get(name) not in (None, value):
            raise HttpError(400, f"{name} is always {to_json(value).decode()} with {route.method} {route.path}.")
        given[name] = value
    _identify(given, headers)
    _add_context(given, headers)
    return Call(
        route=route,
        request=request_of(route.model, given),
        headers=headers,
        principal=scope.get("state", {}).get("principal"),
        body=body if route.body is Body.ARROW else None,
        delimiter=delimiter,
    )


def _in_path(parameters: Mapping[str, str], delimiter: str) -> dict[str, Any]:
    fields: dict[str, Any] = dict(parameters)
    if "id" in fields:
        fields["id"] = identifier(fields["id"], delimiter)
    return fields


def identifier(text: str, delimiter: str) -> list[str]:
    """Return the names in an identifier; the delimiter alone is the root."""
    if not text:
        raise HttpError(400, f"The id in the path is empty. The id of the root namespace is {delimiter!r}.")
    return [] if text == delimiter else text.split(delimiter)


def _query(route: Route, query_string: bytes) -> tuple[dict[str, Any], str]:
    """Return the fields that query parameters give, and the delimiter."""
    given: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(query_string.decode("latin-1"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise HttpError(400, "The query of the URL is not percent-encoded UTF-8.") from None
    for name, value in pairs:
        given.setdefault(name, []).append(value)
    [delimiter] = _only("delimiter", given.pop("delimiter", [DELIMITER]))
    if not delimiter:
        raise HttpError(400, "The delimiter is empty; leave it out for '$'.")
    unknown = given.keys() - set(route.query)
    if unknown:
        known = ", ".join((*route.query, "delimiter"))
        raise HttpError(
            400, f"{route.operation_id} has no query parameter {min(unknown)[:100]!r}; its parameters are {known}."
        )
    fields = {name: _value(name, values, route.kinds.get(name, str)) for name, values in given.items()}
    if isinstance(fields.get("id"), list):  # an older route, with every field in the query
        fields["id"] = identifier(given["id"][0], delimiter)
    return fields, delimiter


def _value(name: str, texts: Sequence[str], kind: type) -> Any:
    """Return the text of a query parameter or header as the type of its field."""
    if kind is list:
        return list(texts)
    [text] = _only(name, texts)
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is int and _INTEGER.fullmatch(text):
        return int(text)
    if kind is dict:
        return _object(text.encode("utf-8", "surrogateescape"), f"The parameter {name!r}")
    if kind is str:
        return text
    expected = "true or false" if kind is bool else "an integer"
    raise HttpError(400, f"The parameter {name!r} is {text[:100]!r}; give {expected}.")


def _only(name: str, values: Sequence[str]) -> Sequence[str]:
    if len(values) > 1:
        raise HttpError(400, f"The parameter {name!r} is given {len(values)} times; give it once.")
    return values


def _fields(route: Route, headers: Headers, body: BinaryIO) -> dict[str, Any]:
    """Return the fields in the body; an Arrow body stays unread."""
    if route.body is Body.ARROW:
        return {}
    content = body.read()
    if not content:
        return {}
    _require_type(route, headers, JSON)
    fields = _object(content, "The body")
    return {"metadata": fields} if route.body is Body.METADATA else fields


def require_plain(route: Route, headers: Headers) -> None:
    """Refuse, before it arrives, a coded body or one that should be Arrow.

    Raises:
        HttpError: The request states a coding, or another type (415).
    """
    codings = {each.strip().lower() for each in ",".join(headers.getlist("content-encoding")).split(",")}
    if codings - {"", "identity"}:
        raise HttpError(
            415,
            f"The request states the Content-Encoding {', '.join(sorted(codings))[:100]!r}; send the body without a "
            "coding. Arrow streams may compress their buffers.",
            headers={"accept-encoding": "identity"},
        )
    if route.body is Body.ARROW:
        _require_type(route, headers, ARROW_STREAM)


def _require_type(route: Route, headers: Headers, expected: str) -> None:
    found = headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != expected:
        raise HttpError(
            415, f"{route.operation_id} takes a body of the type {expected}; the request says {found[:100] or 'none'}."
        )


def _object(content: bytes, name: str) -> dict[str, Any]:
    values = sum(map(content.count, (b",", b"[", b"{")))
    if values > MOST_VALUES:
        raise HttpError(413, f"{name} has about {values} JSON values; the server accepts {MOST_VALUES}.")
    try:
        found = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise HttpError(400, f"{name} is not JSON: {error}.") from None
    members = _members(found)
    if content.count(b":") != members and _STRING.sub(b"", content).count(b":") != members:
        raise HttpError(400, f"{name} is JSON in which an object has two members of one name; give each member once.")
    if found is None:
        return {}  # lancedb's client sends ``null`` for a request without fields
    if not isinstance(found, dict):
        raise HttpError(400, f"{name} is a JSON {type(found).__name__}; give an object with the fields of the request.")
    return cast(dict[str, Any], found)


def _members(value: Any) -> int:
    """Return the number of members of all objects in a JSON value."""
    count, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            count += len(each)
            each = each.values()
        elif not isinstance(each, list):
            continue
        left += [inner for inner in each if isinstance(inner, dict | list)]
    return count


def _in_headers(route: Route, headers: Headers) -> dict[str, Any]:
    return {
        field: _value(name, headers.getlist(name), route.kinds.get(field, str))
        for name, field in route.headers.items()
        if name in headers
    }


def _identify(fields: dict[str, Any], headers: Headers) -> None:
    """Add the credentials, which have precedence ("Identity Header Mapping")."""
    found = {}
    if "x-api-key" in headers:
        found["api_key"] = headers["x-api-key"]
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        found["auth_token"] = token.strip()
    given = fields.get("identity")
    if found and (given is None or isinstance(given, dict)):
        fields["identity"] = {**(given or {}), **found}


def _add_context(fields: dict[str, Any], headers: Headers) -> None:
    """Add the caller's own headers, which have precedence ("Context Header Mapping")."""
    found = {f"header.{name}": value for name, value in headers.items() if _CONTEXT.fullmatch(name)}
    given = fields.get("context")
    if found and (given is None or isinstance(given, dict)):
        fields["context"] = {**(given or {}), **found}
