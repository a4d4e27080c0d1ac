"""Responses of operations as HTTP responses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import lance_namespace as api
import pyarrow as pa
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.responses import JSONResponse, Response

from lancekeep.adapters.rest.routes import Body
from lancekeep.entrypoints.namespace.streams import write_batches
from lancekeep.entrypoints.rest.channel import ResponseBody
from lancekeep.entrypoints.rest.errors import Problem
from lancekeep.entrypoints.rest.requests import DELIMITER, JSON, Call

ARROW_FILE = "application/vnd.apache.arrow.file"

_HEADER = "header."
_NAME = re.compile("[A-Za-z0-9-]{1,100}")
_VALUE = re.compile("[\t -~]{0,4000}")
_RESERVED = frozenset(("connection", "content-length", "content-type", "transfer-encoding", "x-request-id"))


def response_of(call: Call, answer: Any) -> Response:
    """Return the answer of an operation, a model or a dict, as an HTTP response."""
    fields = fields_of(answer)
    headers = headers_of(fields)
    status = call.route.status
    if call.route.answer is Body.NONE:
        return Response(status_code=status, headers=headers)
    if call.route.answer is Body.ARROW:
        return Response(fields["data"], status, headers, ARROW_FILE)
    if call.route.value:
        content = to_json(fields[call.route.value] if isinstance(fields, dict) else fields)
    elif call.route.answer is Body.METADATA:
        content = to_json(fields.get("metadata") or {})
    else:
        if call.operation == "list_all_tables" and call.delimiter != DELIMITER:
            fields["tables"] = [name.replace(DELIMITER, call.delimiter) for name in fields["tables"]]
        content = to_json(fields)
    return Response(content, status, headers, JSON)


def refusal_of(problem: Problem, request_id: str) -> JSONResponse:
    """Return an error as an HTTP response."""
    return JSONResponse(problem.body(request_id), problem.status, problem.headers)


def write_file(reader: pa.RecordBatchReader, body: ResponseBody) -> None:
    """Write record batches as an Arrow IPC file."""
    with reader:
        write_batches(reader, pa.PythonFile(body, mode="w"))


def fields_of(answer: Any) -> Any:
    """Return an answer as plain values."""
    if isinstance(answer, BaseModel):
        if isinstance(answer, api.QueryTableResponse):
            return dict(answer)  # its data are bytes, which are no JSON
        return answer.model_dump(by_alias=True, exclude_none=True)
    return {} if answer is None else answer


def headers_of(fields: Any) -> dict[str, str]:
    """Take the headers out of the context of a response.

    See "Context Header Mapping" of the specification. Entries that cannot be a header, or that would replace one of the
    server's, stay in the body.
    """
    context: Mapping[str, str] | None = fields.get("context") if isinstance(fields, dict) else None
    if not context:
        return {}
    headers = {}
    rest = {}
    for entry, value in context.items():
        name = entry.removeprefix(_HEADER).lower()
        if entry.startswith(_HEADER) and _is_header(name, value):
            headers[name] = value
        else:
            rest[entry] = value
    fields.pop("context")
    if rest:
        fields["context"] = rest
    return headers


def _is_header(name: str, value: str) -> bool:
    return bool(_NAME.fullmatch(name) and _VALUE.fullmatch(value)) and name not in _RESERVED
