"""The operations of the REST API, as its OpenAPI document describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Any

import attrs
from starlette.responses import Response

from lancekeep.entrypoints.page.request import PageRequest
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.entrypoints.rest.openapi import document

_REFERENCE = "#/components/schemas/"
_Schema = Mapping[str, Any]


@attrs.frozen
class Value:
    """A parameter of an operation, or a field of a model.

    Attributes:
        name: Its name.
        type: Its type in words.
        model: The model that the type names; empty if it names none.
        place: Where a parameter is: ``path``, ``query`` or ``header``; empty for a field.
        is_required: Whether it has to be given.
        description: What it means; may be empty.
    """

    name: str
    type: str
    model: str
    place: str
    is_required: bool
    description: str


@attrs.frozen
class Body:
    """A body of a request or of a response.

    Attributes:
        media_type: Its media type.
        type: Its type in words.
        model: The model that the type names; empty if it names none.
    """

    media_type: str
    type: str
    model: str


@attrs.frozen
class Operation:
    """An operation.

    Attributes:
        name: Its name in the specification.
        method: The HTTP method.
        path: The path, with names in braces.
        parameters: Its parameters.
        requests: The bodies that it takes.
        status: The status of an answer of success.
        responses: The bodies of such an answer.
    """

    name: str
    method: str
    path: str
    parameters: tuple[Value, ...]
    requests: tuple[Body, ...]
    status: str
    responses: tuple[Body, ...]


@attrs.frozen
class ApiView:
    """All operations and models.

    Attributes:
        description: What the API is.
        groups: The operations, by the kind of object that they are about.
        models: The fields of each model, by its name.
    """

    description: str
    groups: tuple[tuple[str, tuple[Operation, ...]], ...]
    models: Mapping[str, tuple[Value, ...]]

    def operation(self, name: str) -> Operation | None:
        """Return an operation by its name."""
        return next((each for _, operations in self.groups for each in operations if each.name == name), None)


@cache
def build() -> ApiView:
    """Return all operations and models; they depend on the version of Lancekeep."""
    api = document()
    routes = [(path, method, each) for path, methods in api["paths"].items() for method, each in methods.items()]
    routes.sort(key=lambda route: route[2]["tags"])
    groups = groupby(routes, key=lambda route: str(route[2]["tags"][0]))
    schemas = api["components"]["schemas"].items()
    return ApiView(
        api["info"]["description"],
        tuple((tag, tuple(_operation(*route) for route in group)) for tag, group in groups),
        {name: tuple(_fields(schema)) for name, schema in schemas},
    )


def _operation(path: str, method: str, described: _Schema) -> Operation:
    status = next(status for status in described["responses"] if status != "default")
    return Operation(
        described["operationId"],
        method.upper(),
        path,
        tuple(_parameter(each) for each in described["parameters"]),
        tuple(_bodies(described.get("requestBody", {}))),
        status,
        tuple(_bodies(described["responses"][status])),
    )


def _parameter(described: _Schema) -> Value:
    kind, model = _type(described["schema"])
    return Value(described["name"], kind, model, described["in"], described.get("required", False), "")


def _bodies(described: _Schema) -> Iterator[Body]:
    for media_type, content in described.get("content", {}).items():
        yield Body(media_type, *_type(content["schema"]))


def _fields(schema: _Schema) -> Iterator[Value]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        kind, model = _type(field)
        yield Value(name, kind, model, "", name in required, field.get("description") or "")


def _type(schema: _Schema) -> tuple[str, str]:
    """Return a type in words, and the model that it names."""
    if "$ref" in schema:
        model = str(schema["$ref"]).removeprefix(_REFERENCE)
        return model, model
    if "anyOf" in schema:  # a field without a value is null, too
        kinds = [_type(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kind for kind, _ in kinds)), next(
            filter(None, (model for _, model in kinds)), ""
        )
    if schema.get("type") == "array":
        kind, model = _type(schema.get("items", {}))
        return f"list of {kind}", model
    if isinstance(schema.get("additionalProperties"), Mapping):
        kind, model = _type(schema["additionalProperties"])
        return f"{kind} by name", model
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"])), ""
    return str(schema.get("format") or schema.get("type") or "any value"), ""


def api(request: PageRequest) -> Response:
    """Show all operations, one operation, or one model."""
    if not request.shown["has_api"]:
        raise HttpError(404, "This page is not part of a server; `lancekeep serve` has the REST API and this page.")
    view, name, model = build(), request.query.get("operation", ""), request.query.get("model", "")
    operation = view.operation(name)
    if (name and operation is None) or (model and model not in view.models):
        raise HttpError(404, "The API has no such operation or model.")
    return request.render("api.html", view=view, operation=operation, model=model)


ROUTES = (("/api", api),)
