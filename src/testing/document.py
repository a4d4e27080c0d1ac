"""The OpenAPI document, and what an answer of a server departs from.

``openapi.json`` is the document without examples, and without texts except the texts of responses. The models of
`lance_namespace` are generated from the document, so they validate the bodies; the schemas show what a model accepts
and the document does not have: nulls and further fields.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Annotated, Any

import attrs
from lance_namespace.errors import ErrorCode
from lance_namespace_urllib3_client import models
from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError
from pydantic_core import from_json

JSON = "application/json"
ARROW_FILE = "application/vnd.apache.arrow.file"

Schema = Mapping[str, Any]

_METHODS = ("get", "post")
_UNSUPPORTED = (405, 406, 501)
_CONFLICT = "#/components/responses/ConflictErrorResponse"
_CONFLICTS: Mapping[str, Collection[int]] = {
    **dict.fromkeys(("AlterTableAddColumns", "AlterTableAlterColumns", "AlterTableDropColumns"), (14,)),
    **dict.fromkeys(("RestoreTable", "UpdateTableSchemaMetadata", "UpdateTableTag"), (14,)),
    **dict.fromkeys(("InsertIntoTable", "MergeInsertIntoTable", "UpdateTable", "DeleteFromTable"), (14, 19)),
    **dict.fromkeys(("CreateTableIndex", "CreateTableScalarIndex"), (7, 14)),
}
"""The error codes of conflicts that the page "Error Handling" lists for operations without 409 in the document.

Other operations answer conflicts with these codes by 409, so an answer with such a code may have this status.
"""
_SCHEMAS = "#/components/schemas/"
_PLAIN: Mapping[str, Any] = {
    "integer": Annotated[StrictInt, Field(ge=0)],
    "string": StrictStr,
    "object": dict[str, StrictStr],
}
"""The types of bodies that have no model, by the type in the schema."""


@attrs.frozen
class Finding:
    """What an answer departs from.

    Attributes:
        answer: the answer, in a few words.
        specified: the sentence of the document, or the pointer of the schema.
    """

    answer: str
    specified: str


@attrs.frozen
class Operation:
    """One operation of the document.

    Attributes:
        id: the name, such as ``CreateTable``.
        method: the HTTP method.
        path: the template of the path.
        pointer: where the document describes it.
        parameters: the query parameters, by name.
        media_type: the type of the request's body; empty without a body.
        body: the pointer of the schema of the request's body.
        statuses: the pointers of the responses, by status: ``200``, ``5XX``.
    """

    id: str
    method: str
    path: str
    pointer: str
    parameters: Mapping[str, Schema]
    media_type: str
    body: str
    statuses: Mapping[str, str]

    @property
    def success(self) -> int:
        """The status of a success."""
        return next(int(status) for status in self.statuses if status.startswith("2"))

    @property
    def kind(self) -> str:
        """The kind of object that the path names.

        ``namespace``, ``table``, ``materialized_view`` or ``transaction``.
        """
        return self.path.split("/")[2]

    def sentence(self, status: int) -> str:
        """Return what the document says about a status."""
        described: str = at(self.statuses[str(status)])[1]["description"]
        return f"{self.id} {status}: {described}"

    def findings(self, status: int, media_type: str, content: bytes) -> list[Finding]:
        """Return what an answer departs from: status, type or body.

        Args:
            status: the HTTP status.
            media_type: the type of the body, without parameters.
            content: the body.
        """
        where = self._response(status, content)
        if where is None:
            return [Finding(f"status {status}", f"{self.pointer}/responses has {', '.join(self.statuses)}")]
        where, response = at(where)
        bodies = response.get("content", {})
        if not bodies:
            found = Finding(f"status {status} with a body", f"{where}: {response['description']}")
            return [found] if content else []
        if media_type not in bodies:
            if status == 400 and media_type == "text/plain":  # "might be returned by the server's middleware"
                return []
            named = media_type or "no type"
            return [Finding(f"status {status} with a body of {named[:80]}", f"{where}/content has {', '.join(bodies)}")]
        if media_type == ARROW_FILE:
            found = Finding("the body is no Arrow IPC file", f"{where}: {response['description']}")
            return [] if content.startswith(b"ARROW1") else [found]
        return list(_findings(content, f"{where}/content/{_escaped(media_type)}/schema"))

    def beyond(self, status: int, content: bytes) -> list[str]:
        """Return the fields of an answer that the document does not have."""
        where = self._response(status, content)
        try:
            value = from_json(content)
        except ValueError:
            return []
        if where is None or JSON not in at(where)[1].get("content", {}):
            return []
        found = _walk(value, f"{at(where)[0]}/content/{_escaped(JSON)}/schema", ())
        return sorted({f"{each.pointer}/properties/{each.names[-1]}" for each in found if not each.known})

    def _response(self, status: int, content: bytes) -> str | None:
        """Return the pointer of the response of a status; None if the operation has no such status."""
        where = self.statuses.get(str(status)) or self.statuses.get(f"{status // 100}XX")
        if where is None and status == 409 and error_code(status, content) in _CONFLICTS.get(self.id, ()):
            return _CONFLICT
        return where


def value_of(content: bytes) -> Any:
    """Return the JSON value of a body; None if it is not JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def error_code(status: int, content: bytes) -> Any:
    """Return the error code of an answer; None without one."""
    body = value_of(content) if status >= 400 else None
    return body.get("code") if isinstance(body, dict) else None


def is_unsupported(status: int, content: bytes) -> bool:
    """Return whether a server does not offer an operation.

    It says so, or does not know the path.
    """
    code = error_code(status, content)
    return code == ErrorCode.UNSUPPORTED or status in _UNSUPPORTED or (status == 404 and code is None)


@functools.cache
def operations() -> Mapping[str, Operation]:
    """Return the operations of the document, by name."""
    found = {}
    for path, item in _document()["paths"].items():
        for method in _METHODS:
            if method in item:
                operation = _operation(path, method, item)
                found[operation.id] = operation
    return found


def at(pointer: str) -> tuple[str, Schema]:
    """Return the part of the document at a pointer, and its own pointer.

    A ``$ref`` at the pointer is followed, so the pointers may differ.
    """
    found: Any = _document()
    for part in pointer.removeprefix("#/").split("/"):
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return at(found["$ref"]) if "$ref" in found else (pointer, found)


@functools.cache
def _document() -> Any:
    return json.loads(files(__package__).joinpath("openapi.json").read_text())


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def _operation(path: str, method: str, item: Schema) -> Operation:
    raw = item[method]
    pointer = f"#/paths/{_escaped(path)}/{method}"
    given = [
        at(each["$ref"])[1] if "$ref" in each else each
        for each in (*item.get("parameters", ()), *raw.get("parameters", ()))
    ]
    bodies = raw.get("requestBody", {}).get("content", {})
    media_type = next(iter(bodies), "")
    return Operation(
        id=raw["operationId"],
        method=method.upper(),
        path=path,
        pointer=pointer,
        parameters={each["name"]: each for each in given if each["in"] == "query"},
        media_type=media_type,
        body=at(f"{pointer}/requestBody/content/{_escaped(media_type)}/schema")[0] if bodies else "",
        statuses={status: f"{pointer}/responses/{status}" for status in raw["responses"]},
    )


def _findings(content: bytes, pointer: str) -> Iterator[Finding]:
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError:
        yield Finding("the body is no JSON", pointer)
        return
    try:
        _model(at(pointer)[0]).validate_python(value)
    except ValidationError as error:
        for each in error.errors(include_url=False, include_input=False):
            yield Finding(f"{_named(each['loc'])}: {each['msg']}", _deepest(pointer, each["loc"]))
    for part in _walk(value, pointer, ()):
        if part.value is None and part.known and not _nullable(at(part.pointer)[1]):
            yield Finding(f"{_named(part.names)}: null", part.pointer)


@functools.cache
def _model(pointer: str) -> TypeAdapter[Any]:
    name = pointer.removeprefix(_SCHEMAS)
    model = None if "/" in name else getattr(models, name)
    return TypeAdapter(model or _PLAIN[at(pointer)[1]["type"]])


_Names = tuple[str | int, ...]


@attrs.frozen
class _Part:
    """A value in a body.

    Attributes:
        names: the names and indexes that lead to the value.
        value: the value.
        pointer: its schema; if the document has none, the schema of its object.
        known: whether the document has a schema for the value.
    """

    names: _Names
    value: Any
    pointer: str
    known: bool = True


def _walk(value: Any, pointer: str, names: _Names) -> Iterator[_Part]:
    """Yield a value and each value in it."""
    pointer, schema = at(pointer)
    yield _Part(names, value, pointer)
    children: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for name, child in children:
        below = _child(pointer, schema, name)
        if below is not None:
            yield from _walk(child, below, (*names, name))
        elif "properties" in schema and "additionalProperties" not in schema:
            yield _Part((*names, name), child, pointer, known=False)


def _child(pointer: str, schema: Schema, name: str | int) -> str | None:
    """Return the pointer of the schema of a field or item; None if there is no such schema."""
    if isinstance(name, int):
        return f"{pointer}/items" if "items" in schema else None
    if name in schema.get("properties", {}):
        return f"{pointer}/properties/{_escaped(name)}"
    return f"{pointer}/additionalProperties" if isinstance(schema.get("additionalProperties"), dict) else None


def _deepest(pointer: str, names: _Names) -> str:
    """Return the pointer of the deepest schema on the way to a value."""
    for name in names:
        resolved, schema = at(pointer)
        below = _child(resolved, schema, name)
        if below is None:
            return resolved
        pointer = below
    return pointer


def _nullable(schema: Schema) -> bool:
    kinds = schema.get("type", ())
    if schema.get("nullable") or "null" in ([kinds] if isinstance(kinds, str) else kinds):
        return True
    return any(each.get("type") == "null" for each in schema.get("oneOf", ()))


def _named(names: _Names) -> str:
    return f"`{'.'.join(map(str, names))}`" if names else "the body"
