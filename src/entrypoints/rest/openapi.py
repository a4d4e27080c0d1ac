"""The routes of the server as an OpenAPI document (``/openapi.json``)."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
import lance_namespace_urllib3_client.models as responses
from lance_namespace_urllib3_client.models.error_response import ErrorResponse
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from lancekeep.adapters.rest.administration import RESPONSES
from lancekeep.adapters.rest.routes import (
    ADMINISTRATION,
    EXTENSIONS,
    GET,
    GET_ROUTES,
    ROUTES,
    Body,
    ListQuotasResponse,
    Route,
)
from lancekeep.entrypoints.rest.events import BATCH, STREAM
from lancekeep.entrypoints.rest.requests import ARROW_STREAM, DELIMITER, JSON
from lancekeep.entrypoints.rest.responses import ARROW_FILE

_ANSWERS = {"list_all_tables": "ListTables"}
"""The operations whose response model has the name of another operation."""
_OWN_ANSWERS = {ListQuotasResponse.__name__: ListQuotasResponse, **RESPONSES}
"""The response models of Lancekeep's own operations."""
_TYPES = {bool: "boolean", int: "integer", list: "array", dict: "string", str: "string"}
"""The types of parameters; a dict is a JSON object as text."""
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_DESCRIPTION = (
    "The Lance REST namespace, and operations of Lancekeep below /lancekeep/v1, at /v1/events and at /v1/quotas. "
    "An id is the names of an object, joined by the delimiter; the delimiter alone is the root."
)
_Schema = dict[str, Any]
_Schemas = Mapping[type[BaseModel], _Schema]
"""The references to the schemas of models."""


@functools.cache
def _content_of_document() -> bytes:
    return to_json(document())


async def answer(request: Request) -> Response:
    """Answer with the document; it needs no authentication."""
    return Response(await anyio.to_thread.run_sync(_content_of_document), media_type=JSON)


def document() -> _Schema:
    """Return the document of all operations.

    It leaves out the routes of older versions of the specification, and depends on the version of Lancekeep only.
    """
    routes = (*ROUTES, *EXTENSIONS, *ADMINISTRATION, *GET_ROUTES)
    requests = {route.model for route in routes if route.body is Body.JSON}
    answers = {model for route in routes if (model := _answer_model(route)) is not None}
    models: set[type[BaseModel]] = {ErrorResponse, *requests, *answers}
    used = sorted(models, key=lambda model: model.__name__)
    references, definitions = models_json_schema(
        [(model, "validation") for model in used], by_alias=True, ref_template="#/components/schemas/{model}"
    )
    schemas = {model: references[model, "validation"] for model in used}
    paths: dict[str, _Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Lancekeep", "version": "v1", "description": _DESCRIPTION},
        "servers": [{"url": "."}],  # where the document is
        "security": [{}, {"ApiKey": []}, {"Bearer": []}],
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "Bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _answer_model(route: Route) -> type[BaseModel] | None:
    """Return the model of a response; None where there is none."""
    name = f"{_ANSWERS.get(route.operation, route.operation_id)}Response"
    if route.answer is not Body.JSON:
        return None
    found: type[BaseModel] | None = getattr(responses, name, None) or _OWN_ANSWERS.get(name)
    return found


def _operation(route: Route, schemas: _Schemas) -> _Schema:
    success = {"description": "The operation succeeded.", **_content(_answer(route, schemas))}
    refusal = {"description": "The operation failed.", **_content({JSON: schemas[ErrorResponse]})}
    described: _Schema = {
        "operationId": f"{route.operation_id}ByGet" if route in GET_ROUTES else route.operation_id,
        "tags": [route.path.removeprefix("/lancekeep").split("/")[2]],
        "parameters": [*_parameters(route)],
        "responses": {str(route.status): success, "default": refusal},
    }
    if route.method != GET and route.body is not Body.NONE:
        described["requestBody"] = {"required": route.body is not Body.JSON, **_content(_request(route, schemas))}
    return described


def _parameters(route: Route) -> list[_Schema]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    in_query = [{"name": name, "in": "query", "schema": _parameter(route, name)} for name in route.query]
    in_headers = [{"name": name, "in": "header", "schema": {"type": "string"}} for name in route.headers]
    delimiter = {"name": "delimiter", "in": "query", "schema": {"type": "string", "default": DELIMITER}}
    return [*in_path, *in_query, *in_headers, delimiter]


def _parameter(route: Route, name: str) -> _Schema:
    if name == "id":
        return {"type": "string"}  # joined by the delimiter, as in a path
    kind = _TYPES[route.kinds.get(name, str)]
    return {"type": kind, "items": {"type": "string"}} if kind == "array" else {"type": kind}


def _request(route: Route, schemas: _Schemas) -> _Schema:
    if route.body is Body.ARROW:
        return {ARROW_STREAM: {"type": "string", "format": "binary"}}
    return {JSON: _TEXTS if route.body is Body.METADATA else schemas[route.model]}


def _answer(route: Route, schemas: _Schemas) -> _Schema:
    """Return the schemas of a response by media type."""
    if route.answer is Body.NONE:
        return {}
    if route.answer is Body.ARROW:
        return {ARROW_FILE: {"type": "string", "format": "binary"}}
    if route.answer is Body.EVENTS:
        event = {"type": "object", "required": ["specversion", "id", "source", "type"]}
        return {BATCH: {"type": "array", "items": event}, STREAM: {"type": "string"}}
    if route.answer is Body.METADATA:
        return {JSON: _TEXTS}
    if route.value:
        return {JSON: {"type": "integer" if route.value == "count" else "string"}}
    model = _answer_model(route)
    return {JSON: {"type": "object"} if model is None else schemas[model]}


def _content(schemas: Mapping[str, _Schema]) -> _Schema:
    return {"content": {kind: {"schema": schema} for kind, schema in schemas.items()}} if schemas else {}
