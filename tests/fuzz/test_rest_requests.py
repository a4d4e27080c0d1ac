"""Requests that schemathesis generates from the OpenAPI document: no 500, and every response fits its schema.

The document of the REST catalog specification is ``openapi.json`` of `lancekeep.testing`.
"""

from __future__ import annotations

import json
import os
from importlib.resources import files
from typing import Any

import hypothesis
import lance_namespace as api
import pyarrow as pa
import pytest
import schemathesis
from hypothesis import strategies
from lance_namespace_urllib3_client import models
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from starlette.applications import Starlette
from starlette.testclient import TestClient

import lancekeep
from lancekeep.adapters.rest.routes import ROUTES
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.openapi import document as served
from lancekeep.entrypoints.rest.settings import ServerSettings

EXAMPLES = int(os.environ.get("LANCEKEEP_REST_EXAMPLES", "3"))
"""Requests per operation and kind; 100 of them are 10,800 requests."""

DOCUMENT = json.loads(files("lancekeep.testing").joinpath("openapi.json").read_text())
BEYOND = {405, 409, 415, 429}
"""Statuses that an operation may have although the document does not name them for it."""


PROBES = {"minimum_nprobes", "maximum_nprobes"}
DIFFERENCES: dict[str, set[str]] = {
    "AnalyzeTableQueryPlanRequest": PROBES,
    "QueryTableRequest": PROBES,
    "MergeInsertIntoTable?on": {"array"},
}
"""What the client 0.13 has and the document 0.11.1 has not: fields of models, and types of query parameters."""


def _stream() -> bytes:
    table = pa.table({"a": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


schemathesis.openapi.media_type(
    "application/vnd.apache.arrow.stream", strategies.just(_stream()) | strategies.binary(max_size=200)
)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
_FOUND: list[Any] = [found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)]
OPERATIONS = {operation.definition.raw["operationId"]: operation for operation in _FOUND}
SERVED = {
    found.ok().definition.raw["operationId"]: found.ok()
    for found in schemathesis.openapi.from_dict(served()).get_all_operations()
    if isinstance(found, Ok)
}
"""The operations as the server itself describes them."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Starlette:
    root = tmp_path_factory.mktemp("fuzz") / "lake"
    namespace = lancekeep.DirectoryNamespace(root=str(root), **{"storage.fsync": "false"})
    namespace.create_namespace(api.CreateNamespaceRequest(id=["0"]))
    namespace.create_table(api.CreateTableRequest(id=["0", "0"]), _stream())
    return create_app(namespace, ServerSettings(log_level="error", log_format="json"))


def test_the_document_has_every_operation() -> None:
    assert {route.operation_id for route in ROUTES} == OPERATIONS.keys()


def test_the_server_describes_every_operation_as_the_document(app: Starlette) -> None:
    with TestClient(app) as client:
        described = client.get("/openapi.json").json()
    assert described == served()
    for path, methods in DOCUMENT["paths"].items():
        for method, raw in methods.items():
            if method == "parameters":
                continue
            found = described["paths"][path][method]
            operation = OPERATIONS[raw["operationId"]]
            assert found["operationId"] == raw["operationId"]
            assert {parameter.name for parameter in operation.query} == {
                each["name"] for each in found["parameters"] if each["in"] == "query"
            }
            bodies = ({*each.get("requestBody", {}).get("content", {})} for each in (raw, found))
            assert len(set(map(frozenset, bodies))) == 1, path


@pytest.mark.parametrize(
    ("operation", "method", "path", "body"),
    [
        ("ListTables", "get", "/v1/namespace/0/table/list", None),
        ("ListAllTables", "get", "/v1/table", None),
        ("DescribeNamespace", "post", "/v1/namespace/0/describe", {}),
        ("DescribeTable", "post", "/v1/table/0$0/describe", {"load_detailed_metadata": True}),
        ("DescribeTableByGet", "get", "/lancekeep/v1/table/0$0", None),
        ("CountTableRows", "post", "/v1/table/0$0/count_rows", {}),
        ("ExplainTableQueryPlan", "post", "/v1/table/0$0/explain_plan", {"query": {"k": 1, "vector": {}}}),
        ("QueryTable", "post", "/v1/table/0$0/query", {"k": 1, "vector": {}}),
        ("UpdateTableSchemaMetadata", "post", "/v1/table/0$0/schema_metadata/update", {"a": "b"}),
        ("GetTableStats", "post", "/v1/table/0$0/stats", {}),
        ("ListTableVersions", "post", "/v1/table/0$0/version/list", {}),
        ("ListTableTags", "post", "/v1/table/0$0/tags/list", None),
        ("DescribeTables", "post", "/lancekeep/v1/table/batch-describe", {"ids": [["0", "0"]]}),
        ("ListDroppedTables", "get", "/lancekeep/v1/object/0/dropped", None),
        ("TableExists", "post", "/v1/table/0$0/exists", {}),
    ],
)
def test_answers_are_as_the_server_describes_them(
    app: Starlette, operation: str, method: str, path: str, body: Any
) -> None:
    with TestClient(app) as client:
        response = client.request(method, path, json=body)
    assert response.is_success, response.text
    SERVED[operation].validate_response(schemathesis.Response.from_httpx(response, verify=False))


def test_the_client_differs_from_the_document_as_listed() -> None:
    found: dict[str, set[str]] = {}
    for name, schema in DOCUMENT["components"]["schemas"].items():
        model = getattr(models, name, None)
        if "properties" in schema:
            assert model is not None, name
            fields = {field.alias or key for key, field in model.model_fields.items()}
            if difference := fields ^ set(schema["properties"]):
                found[name] = difference
    types = {bool: "boolean", int: "integer", list: "array"}
    for route in ROUTES:
        for parameter in OPERATIONS[route.operation_id].query:
            kind = types.get(route.kinds.get(parameter.name, str), "string")
            schema = parameter.definition["schema"]
            documented = DOCUMENT["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
            if kind != documented["type"] and route.kinds.get(parameter.name) is not dict:
                found[f"{route.operation_id}?{parameter.name}"] = {kind}
    assert found == DIFFERENCES


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_generated_requests_get_specified_responses(app: Starlette, operation: str, mode: GenerationMode) -> None:
    @hypothesis.settings(
        max_examples=EXAMPLES,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=OPERATIONS[operation].as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        response = case.call(app=app)
        assert response.status_code != 500, response.text
        responses = OPERATIONS[operation].definition.raw["responses"]
        if response.status_code in BEYOND or str(response.status_code) not in responses:
            assert response.status_code in BEYOND or response.status_code >= 501, response.text
            assert set(response.json()) >= {"code", "error", "instance"}
        else:
            case.validate_response(response, checks=[content_type_conformance, response_schema_conformance])
            SERVED[operation].validate_response(response)

    ask()
