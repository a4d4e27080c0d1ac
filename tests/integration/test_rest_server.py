"""The REST server: requests, responses, errors, streams, observation and shutdown."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from itertools import cycle
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import attrs
import httpx
import lance_namespace as api
import pyarrow as pa
import pytest
import writers
from click.testing import CliRunner
from faults import Faulty
from lance_namespace import errors as api_errors
from rest_server import serving
from served_processes import peak_memory
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.entrypoints.cli import lancekeep as program
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.listening import listen, url_of
from lancekeep.entrypoints.rest.server import Server
from lancekeep.entrypoints.rest.settings import ServerSettings

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
QUIET = ServerSettings(log_level="error")


class Recorder(api.LanceNamespace):
    """A namespace that records each request and returns or raises what the test sets."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.requests: list[Any] = []

    def namespace_id(self) -> str:
        return "recorder"

    def _record(self, request: Any, *data: Any) -> Any:
        self.requests.append(request)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(*data) if callable(self.answer) else self.answer

    describe_table = list_tables = list_all_tables = drop_table = create_namespace = _record
    describe_namespace = table_exists = count_table_rows = list_table_versions = query_table = _record
    create_table = merge_insert_into_table = _record  # type: ignore[assignment] # the data are optional here
    update_table_schema_metadata = explain_table_query_plan = create_table_version = _record
    describe_table_index_stats = _record


@pytest.fixture
def namespace() -> Recorder:
    return Recorder(api.DescribeTableResponse(location="/lake/t"))


@pytest.fixture
def client(namespace: Recorder) -> Iterator[TestClient]:
    with TestClient(create_app(namespace, QUIET)) as client:
        yield client


def refused(response: httpx.Response, status: int, code: int = 13) -> str:
    """Require an error of the specification's shape, and return its message."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body["code"] == code
    assert body["status"] == status
    assert body["instance"] == response.headers["x-request-id"]
    assert {"error", "type", "title", "detail"} < body.keys()
    return str(body["error"])


def stream(*tables: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    return bytes(sink.getvalue())


# -- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "query", "names"),
    [
        ("ml$t", "", ["ml", "t"]),
        ("ml%24t", "", ["ml", "t"]),
        ("ml.t", "?delimiter=.", ["ml", "t"]),
        ("ml::t", "?delimiter=::", ["ml", "t"]),
        ("a%2524b", "", ["a%24b"]),
        ("a%2Fb%3Fc%23d", "", ["a/b?c#d"]),
        ("a+b%2Bc%20d", "", ["a b+c d"]),
        ("Zo%C3%AB%0A", "", ["Zoë\n"]),
        ("$", "", []),
        ("%2E", "?delimiter=.", []),
        ("..%2f..$t", "", ["../..", "t"]),
    ],
)
def test_an_id_is_decoded_once_and_split_at_the_delimiter(
    client: TestClient, namespace: Recorder, path: str, query: str, names: list[str]
) -> None:
    scope_path = f"/v1/namespace/{path}/describe{query}"
    namespace.answer = api.DescribeNamespaceResponse()
    with httpx.Client(transport=client._transport, base_url="http://testserver") as raw:
        response = raw.send(
            raw.build_request("POST", httpx.URL("http://testserver").copy_with(raw_path=scope_path.encode()))
        )
    assert response.status_code == 200, response.text
    assert namespace.requests[0].id == names


def test_fields_may_be_in_the_path_the_query_and_the_body_if_they_agree(
    client: TestClient, namespace: Recorder
) -> None:
    body = {"id": ["ml", "t"], "with_table_uri": True, "version": 3}
    assert client.post("/v1/table/ml$t/describe?with_table_uri=true", json=body).status_code == 200
    [request] = namespace.requests
    assert (request.id, request.with_table_uri, request.version) == (["ml", "t"], True, 3)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/table/ml$t/describe", {"id": ["ml", "u"]}, "'id' has one value in the path and another in the body"),
        ("/v1/table/ml$t/describe", {"id": []}, "'id' has one value in the path and another in the body"),
        ("/v1/table/ml$t/describe", {"id": ["ml$t"]}, "'id' has one value in the path and another in the body"),
        ("/v1/table/t/describe?with_table_uri=true", {"with_table_uri": False}, "'with_table_uri' has one value"),
        ("/v1/table/t/index/a/stats", {"index_name": "b"}, "'index_name' has one value in the path"),
        ("/v1/table/t/describe", {"unknown": 1}, "DescribeTableRequest has no field 'unknown'"),
        ("/v1/table/t/describe", {"version": "3"}, "the field 'version' is malformed"),
        ("/v1/table/t/describe", {"identity": 3}, "the field 'identity' is malformed"),
        ("/v1/table/t/describe?limit=3", {}, "DescribeTable has no query parameter 'limit'"),
        ("/v1/table/t/describe?with_table_uri=1", {}, "give true or false"),
        ("/v1/table/t/version/list?limit=x", {}, "give an integer"),
        ("/v1/table/t/version/list?limit=1&limit=2", {}, "given 2 times"),
        ("/v1/table/t/describe?delimiter=", {}, "The delimiter is empty"),
        ("/v1/table//describe", {}, "The id in the path is empty"),
    ],
)
def test_a_malformed_request_is_refused_before_the_operation(
    client: TestClient, namespace: Recorder, path: str, body: dict[str, Any], message: str
) -> None:
    assert message in refused(client.post(path, json=body), 400)
    assert not namespace.requests


@pytest.mark.parametrize("content", [b"{", b"[]", b'"text"', b"\xff", b'{"version": NaN}', b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(client: TestClient, namespace: Recorder, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert "The body is" in refused(client.post("/v1/table/t/describe", content=content, headers=headers), 400)
    assert not namespace.requests


@pytest.mark.parametrize(
    "content",
    [
        b'{"version": 1, "version": 2}',
        b'{"version": 1, "vers\\u0069on": 1}',
        b'{"context": {"a": "x", "a": "y"}}',
        b'{"identity": {"api_key": "a:b\\":", "api_key": ""}}',
    ],
)
def test_a_member_that_is_given_twice_is_refused(client: TestClient, namespace: Recorder, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    message = refused(client.post("/v1/table/t/describe", content=content, headers=headers), 400)
    assert "two members of one name" in message
    assert not namespace.requests


def test_colons_in_strings_are_no_members(client: TestClient, namespace: Recorder) -> None:
    context = {"a:b": ':"\\":', "c\\": "::", "d": '{"e":1,"e":2}', "\n": "\u2028:"}
    assert client.post("/v1/table/t/describe", json={"context": context}).status_code == 200
    [request] = namespace.requests
    assert request.context is not None
    assert context.items() <= request.context.items()


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip", "GZIP"])
def test_a_body_with_a_coding_is_refused(client: TestClient, namespace: Recorder, coding: str) -> None:
    for path in ("describe", "create", "insert"):
        for content_type in ("application/json", "application/vnd.apache.arrow.stream"):
            headers = {"content-type": content_type, "content-encoding": coding}
            response = client.post(f"/v1/table/t/{path}", content=gzip.compress(b"{}"), headers=headers)
            assert "Content-Encoding" in refused(response, 415)
            assert response.headers["accept-encoding"] == "identity"
    assert not namespace.requests


def test_a_body_with_the_coding_identity_is_read(client: TestClient, namespace: Recorder) -> None:
    headers = {"content-type": "application/json", "content-encoding": "identity"}
    assert client.post("/v1/table/t/describe", content=b'{"version": 3}', headers=headers).status_code == 200
    assert [request.version for request in namespace.requests] == [3]


def test_an_empty_body_stands_for_an_empty_object(client: TestClient, namespace: Recorder) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"", b"null", b"{}", b" {}"):
        assert client.post("/v1/table/t/describe", content=content, headers=headers).status_code == 200
    assert [request.id for request in namespace.requests] == [["t"]] * 4


def test_a_body_of_another_type_is_refused(client: TestClient, namespace: Recorder) -> None:
    """A web page can send forms to a server of this machine, but not JSON."""
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"content-type": content_type}
        refused(client.post("/v1/table/t/describe", content=b"{}", headers=headers), 415)
        refused(client.post("/v1/table/t/create", content=b"{}", headers=headers), 415)
    assert not namespace.requests


def test_unknown_paths_and_methods_are_refused(client: TestClient) -> None:
    for path in ("/", "/v1", "/v1/table/t", "/v2/table/t/describe", "/v1/table/a/b/describe", "/docs", "/%ff"):
        assert client.post(path).status_code in (400, 404), path
    refused(client.post("/v1/table/a/b/describe"), 404, 0)
    response = client.get("/v1/table/t/describe")
    refused(response, 405, 0)
    assert response.headers["allow"] == "POST"
    refused(client.request("OPTIONS", "/v1/table/t/describe"), 405, 0)


def test_credentials_become_the_identity_and_own_headers_the_context(client: TestClient, namespace: Recorder) -> None:
    headers = {"x-api-key": "k", "authorization": "Bearer t", "x-lance-ctx-job": "j", "x-team": "a", "cookie": "c"}
    body = {"identity": {"api_key": "other"}, "context": {"header.x-team": "b", "own": "c"}}
    client.post("/v1/table/t/describe", json=body, headers=headers)
    [request] = namespace.requests
    assert request.identity.to_dict() == {"api_key": "k", "auth_token": "t"}
    assert request.context == {"own": "c", "header.x-lance-ctx-job": "j", "header.x-team": "a"}


def test_fields_beside_an_arrow_body_are_in_query_and_headers(client: TestClient, namespace: Recorder) -> None:
    namespace.answer = lambda data: api.CreateTableResponse(version=len(pa.ipc.open_stream(data).read_all()))
    rows = stream(pa.table({"a": [1, 2]}))
    headers = {**ARROW, "x-lance-table-properties": '{"team": "a"}'}
    response = client.post("/v1/table/t/create?mode=overwrite", content=rows, headers=headers)
    assert response.json()["version"] == 2
    assert (namespace.requests[0].mode, namespace.requests[0].properties) == ("overwrite", {"team": "a"})
    response = client.post("/v1/table/t/create", content=rows, headers={**ARROW, "x-lance-table-location": "/x"})
    assert "CreateTableRequest has no field 'location'" in refused(response, 400)
    namespace.answer = lambda data: api.MergeInsertIntoTableResponse()
    client.post("/v1/table/t/merge_insert?on=a&on=b&use_index=TRUE&timeout=5s", content=rows, headers=ARROW)
    request = namespace.requests[-1]
    assert (request.on, request.use_index, request.timeout) == (["a", "b"], True, "5s")


@pytest.mark.parametrize("name", ["DescribeTable", "GetTable"])
def test_the_older_routes_have_every_field_in_the_body(client: TestClient, namespace: Recorder, name: str) -> None:
    assert client.post(f"/{name}", json={"id": ["ml", "t"], "version": 1}).json() == {"location": "/lake/t"}
    assert (namespace.requests[0].id, namespace.requests[0].version) == (["ml", "t"], 1)


def test_the_older_operations_have_routes(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://") as catalog:
        catalog.create_namespace("ml")
        client = TestClient(create_app(CatalogNamespace(catalog), QUIET))

        def ask(name: str, **fields: Any) -> Any:
            answer = client.post(f"/{name}", json=fields)
            assert answer.status_code == 200, answer.text
            return answer.json()

        assert {"AlterTable", "CreateEmptyTable", "DescribeTable"} <= set(ask("ListOperations")["operations"])
        assert ask("CreateEmptyTable", id=["ml", "t"])["location"] == catalog.describe_table("ml.t").uri
        for name, object_id in (("AlterNamespace", ["ml"]), ("AlterTable", ["ml", "t"])):
            assert ask(name, id=object_id, properties={"a": "1", "b": "2"})["properties"] == {"a": "1", "b": "2"}
            changed = ask(name, id=object_id, properties={"a": None, "b": "3"}, context={"x": "y"})
            assert changed == {"id": object_id, "properties": {"b": "3"}}
            refused(client.post(f"/{name}", json={"id": object_id}), 400)
            refused(client.post(f"/{name}", json={"id": object_id, "properties": {"lancekeep.x": "1"}}), 400)
        assert catalog.describe_namespace("ml").properties == {"b": "3"}
        assert catalog.describe_table("ml.t").properties == {"b": "3"}
        key = {"idempotency-key": "8a2f1c1e-6b0d-4a53-9a51-0d7d1f2f6a01"}
        body = {"id": ["ml"], "properties": {"c": "4"}}
        first, again = (client.post("/AlterNamespace", json=body, headers=key).json() for _ in range(2))
        assert first == again == {"id": ["ml"], "properties": {"b": "3", "c": "4"}}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/healthz", 405),
        ("DELETE", "/readyz", 405),
        ("PUT", "/metrics", 405),
        ("OPTIONS", "/healthz", 405),
        ("GET", "/healthz%0a", 404),
        ("GET", "/healthz/", 404),
        ("GET", "/%0a", 404),
        ("GET", "/", 404),
        ("POST", "/v1/table/a%0ab/describ", 404),
        ("GET", "/v1/table/t/describe", 405),
        ("PATCH", "/v1/table/t/describe", 405),
        ("GET", "/DescribeTable", 405),
        ("POST", "/NoSuchOperation", 404),
        ("POST", "/v1/table/%ff/describe", 400),
    ],
)
def test_every_refusal_has_the_form_of_an_error(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    refused(answer, status, 13 if status == 400 else 0)
    assert ("allow" in answer.headers) == (status == 405)


def test_a_defect_outside_of_the_operations_has_the_form_of_an_error(
    namespace: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(namespace, QUIET)

    async def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("lancekeep.entrypoints.rest.app.Operations.__call__", broken)
    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.post("/v1/table/t/describe")
        refused(answer, 500, 18)
        assert "planted" not in answer.text
        assert answer.headers["x-request-id"] == answer.json()["instance"]


def test_a_web_socket_is_refused(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/table/t/describe"):
        pass


def test_the_older_route_of_an_arrow_body_has_every_field_in_the_query(client: TestClient, namespace: Recorder) -> None:
    namespace.answer = lambda data: api.CreateTableResponse(version=1)
    response = client.post("/CreateTable?id=ml.t&delimiter=.&mode=create", content=stream(BATCH), headers=ARROW)
    assert response.status_code == 200, response.text
    assert (namespace.requests[0].id, namespace.requests[0].mode) == (["ml", "t"], "create")


# -- responses ---------------------------------------------------------------------------------------------------


def test_plain_responses_are_not_objects(client: TestClient, namespace: Recorder) -> None:
    for path, answer, body in (
        ("count_rows", api.CountTableRowsResponse(count=3), 3),
        ("explain_plan", 'plan "1"', 'plan "1"'),
        ("schema_metadata/update", api.UpdateTableSchemaMetadataResponse(metadata={"a": "b"}), {"a": "b"}),
    ):
        namespace.answer = answer
        given = {"query": {"k": 1, "vector": {}}} if path == "explain_plan" else {}
        assert client.post(f"/v1/table/t/{path}", json=given).json() == body
    assert namespace.requests[-1].metadata == {}
    namespace.answer = api.TableExistsResponse()
    assert client.post("/v1/table/t/exists", json={}).content == b""


def test_context_of_a_response_becomes_headers(client: TestClient, namespace: Recorder) -> None:
    context = {"header.x-trace": "1", "header.content-length": "9", "header.x-bad": "a\r\nset-cookie: b", "own": "2"}
    namespace.answer = api.DescribeTableResponse(location="l", context=context)
    response = client.post("/v1/table/t/describe")
    assert response.headers["x-trace"] == "1"
    assert "set-cookie" not in response.headers
    assert response.json()["context"] == {key: context[key] for key in context if key != "header.x-trace"}


def test_all_tables_are_listed_with_the_delimiter_of_the_request(client: TestClient, namespace: Recorder) -> None:
    namespace.answer = lambda: api.ListTablesResponse(tables=["ml$t", "u"])
    assert client.get("/v1/table").json() == {"tables": ["ml$t", "u"]}
    assert client.get("/v1/table/?delimiter=.").json() == {"tables": ["ml.t", "u"]}


@pytest.mark.parametrize("code", list(api_errors.ErrorCode), ids=lambda code: code.name.lower())
def test_each_error_has_the_status_of_its_code(
    client: TestClient, namespace: Recorder, code: api_errors.ErrorCode
) -> None:
    namespace.answer = api_errors.from_error_code(code, "why")
    expected = {0: 501, 13: 400, 15: 403, 16: 401, 17: 503, 18: 500, 20: 400, 21: 429}
    conflicts = (2, 3, 5, 7, 9, 14, 19, 23)
    status = 409 if code in conflicts else expected.get(code, 404)
    response = client.post("/v1/table/t/describe")
    assert refused(response, status, code) == "why"
    assert ("retry-after" in response.headers) == (status in (429, 503))


def test_an_unsupported_operation_is_406_where_the_specification_says_so(client: TestClient) -> None:
    refused(client.post("/v1/table/t/register", json={"location": "x"}), 406, 0)
    refused(client.post("/v1/table/t/restore", json={"version": 1}), 501, 0)


def test_an_unexpected_error_stays_in_the_log(
    client: TestClient, namespace: Recorder, capfd: pytest.CaptureFixture[str]
) -> None:
    namespace.answer = RuntimeError("password=secret in /srv/lake")
    response = client.post("/v1/table/t/describe", headers={"x-request-id": "mine-1"})
    refused(response, 500, 18)
    assert response.headers["x-request-id"] == "mine-1"
    assert not re.search("secret|srv|Traceback|RuntimeError", response.text)


@pytest.mark.parametrize("given", ["a" * 65, "a b", "", "ä".encode().decode("latin-1"), 'x"y'])
def test_a_malformed_request_id_is_replaced(client: TestClient, given: str) -> None:
    response = client.post("/v1/table/t/describe", headers={"x-request-id": given.encode("latin-1")})
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


def test_an_unknown_commit_is_503_with_the_token_that_resolves_it(tmp_path: Path) -> None:
    namespace = lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/c.db")
    catalog = namespace.catalog
    catalog.write("t", writers.row(0, 0))
    healthy = directory_of(catalog).commits
    broken = [False]

    def down(name: str, _: int) -> tuple[str, BaseException] | None:
        if name == "reserve":
            broken[0] = True
            return "after", StoreUnavailable("the reply was lost")
        return ("before", StoreUnavailable("down")) if broken[0] else None

    doubles = Faulty(healthy.objects, down), Faulty(healthy.rows, down)
    directory_of(catalog).ledger.commits = TableCommits(*doubles, "tester", Retry(0.05, sleep=lambda _: None))
    with TestClient(create_app(namespace, QUIET)) as client:
        response = client.post("/v1/table/t/create?mode=overwrite", content=stream(writers.row(1, 1)), headers=ARROW)
        assert 'lancekeep_commits_total{operation="CreateTable",outcome="unknown"} 1.0' in client.get("/metrics").text
    refused(response, 503, 17)
    directory_of(catalog).ledger.commits = healthy
    token = response.json()["context"]["resolve_token"]
    assert isinstance(catalog.resolve(token), lancekeep.Committed)
    assert catalog.open("t").to_table()["number"].to_pylist() == [1]


# -- streams -----------------------------------------------------------------------------------------------------


class Streaming(Recorder):
    """A namespace with the streaming methods; ``answer`` gets the reader."""

    insert_stream = query_stream = Recorder._record


@contextmanager
def connection(uri: str) -> Iterator[http.client.HTTPConnection]:
    found = urlsplit(uri)
    connection = http.client.HTTPConnection(str(found.hostname), found.port, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


BATCH = pa.table({"a": pa.array(range(100_000), pa.int64())})


@contextmanager
def half_sent(uri: str) -> Iterator[http.client.HTTPConnection]:
    """Send an insert without its end; the server has seen its first part."""
    with connection(uri) as sending:
        content = stream(BATCH, BATCH)
        sending.putrequest("POST", "/v1/table/t/insert")
        sending.putheader("content-type", ARROW["content-type"])
        sending.putheader("content-length", str(len(content)))
        sending.endheaders()
        sending.send(content[:-1000])
        yield sending


def test_body_that_arrives_slowly_holds_no_thread() -> None:
    namespace = Streaming(lambda reader: api.InsertIntoTableResponse(version=len(reader.read_all())))
    settings = ServerSettings(log_level="error", threads=1)
    with serving(namespace, settings) as front, half_sent(front.uri) as sending:
        namespace.answer, insert = api.DescribeTableResponse(location="l"), namespace.answer
        assert httpx.post(f"{front.uri}/v1/table/t/describe", timeout=60).json() == {"location": "l"}
        namespace.answer = insert
        sending.send(stream(BATCH, BATCH)[-1000:])
        assert json.loads(sending.getresponse().read()) == {"version": 2 * len(BATCH)}


def test_response_of_a_small_answer_arrives_whole() -> None:
    namespace = Recorder(api.DescribeTableResponse(location="l"))
    request = b"POST /v1/table/t/describe HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"
    with serving(namespace, ServerSettings(log_level="error")) as front:
        found = urlsplit(front.uri)
        with socket.create_connection((str(found.hostname), found.port or 80)) as client:
            for _ in range(20):  # the body could arrive in time by chance
                client.sendall(request)
                assert client.recv(1 << 16).endswith(b'{"location":"l"}')


def test_server_holds_a_bounded_number_of_bytes_of_bodies() -> None:
    with serving(Streaming(None), ServerSettings(log_level="error", held_bodies=100_000)) as front:
        response = httpx.post(f"{front.uri}/v1/table/t/insert", content=stream(BATCH), headers=ARROW, timeout=60)
        assert "bytes of the bodies of all requests" in refused(response, 503, 17)
        assert response.headers["retry-after"] == "1"
        small = stream(BATCH.slice(0, 10))
        assert httpx.post(f"{front.uri}/v1/table/t/insert", content=small, headers=ARROW, timeout=60).is_success


def test_document_of_many_values_is_refused(client: TestClient) -> None:
    content = json.dumps({"id": ["ml"], "properties": {"a": [0] * 1_100_000}})
    answer = client.post("/v1/namespace/ml/create", content=content, headers={"content-type": "application/json"})
    assert "JSON values; the server accepts 1000000" in refused(answer, 413)


def test_rows_are_sent_before_the_last_ones_are_made() -> None:
    arrived = Event()

    def query() -> pa.RecordBatchReader:
        def batches() -> Iterator[pa.RecordBatch]:
            yield from BATCH.to_batches()
            assert arrived.wait(60)
            yield from BATCH.to_batches()

        return pa.RecordBatchReader.from_batches(BATCH.schema, batches())

    request = {"k": 0, "vector": {}}
    with (
        serving(Streaming(query), QUIET) as front,
        httpx.stream("POST", f"{front.uri}/v1/table/t/query", json=request, timeout=60) as response,
    ):
        assert response.headers["content-type"] == "application/vnd.apache.arrow.file"
        content = b""
        for part in response.iter_raw():
            content += part
            arrived.set()
    assert pa.ipc.open_file(content).read_all() == pa.concat_tables([BATCH, BATCH])


def test_rows_that_fail_halfway_are_an_incomplete_response() -> None:
    def query() -> pa.RecordBatchReader:
        def batches() -> Iterator[pa.RecordBatch]:
            yield from BATCH.to_batches()
            raise OSError("the storage is gone")

        return pa.RecordBatchReader.from_batches(BATCH.schema, batches())

    with serving(Streaming(query), QUIET) as front, pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{front.uri}/v1/table/t/query", json={"k": 0, "vector": {}}, timeout=60)


def test_rows_that_fail_at_once_are_an_error(client: TestClient, namespace: Recorder) -> None:
    namespace.answer = api_errors.TableNotFoundError("no t")
    refused(client.post("/v1/table/t/query", json={"k": 0, "vector": {}}), 404, 4)


def test_a_client_that_leaves_in_the_middle_of_its_rows_has_no_effect() -> None:
    namespace = Streaming(None)
    with serving(namespace, QUIET) as front:
        with half_sent(front.uri):
            pass
        assert httpx.get(f"{front.uri}/healthz").status_code == 200
    assert namespace.requests == []


@pytest.mark.parametrize("content", [b"", b"no arrow", stream(BATCH)[:100], stream(BATCH)[:-100_000]])
def test_a_body_that_is_no_arrow_stream_is_refused(tmp_path: Path, content: bytes) -> None:
    namespace = lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"))
    with serving(namespace, QUIET) as front:
        response = httpx.post(f"{front.uri}/v1/table/t/create", content=content, headers=ARROW, timeout=60)
        refused(response, 400)
        assert httpx.get(f"{front.uri}/v1/table").json()["tables"] == []


def test_a_refusal_is_read_by_a_client_that_still_sends() -> None:
    namespace = Streaming(api_errors.TableNotFoundError("no t"))
    with serving(namespace, QUIET) as front:
        content = stream(*[BATCH] * 4)
        refused(httpx.post(f"{front.uri}/v1/table/t/insert", content=content, headers=ARROW, timeout=60), 404, 4)


# -- operation ---------------------------------------------------------------------------------------------------


def test_metrics_count_requests_and_commits(client: TestClient, namespace: Recorder) -> None:
    client.post("/v1/table/t/describe")
    namespace.answer = api_errors.ConcurrentModificationError("lost")
    client.post("/v1/table/t/drop")
    client.get("/nowhere")
    metrics = client.get("/metrics").text
    for line in (
        'lancekeep_requests_total{operation="DescribeTable",status="200"} 1.0',
        'lancekeep_requests_total{operation="DropTable",status="409"} 1.0',
        'lancekeep_requests_total{operation="unknown",status="404"} 1.0',
        'lancekeep_commits_total{operation="DropTable",outcome="conflict"} 1.0',
        'lancekeep_request_seconds_count{operation="DescribeTable"} 1.0',
        "lancekeep_requests_in_progress 0.0",
    ):
        assert line in metrics
    assert 'lancekeep_commits_total{operation="DescribeTable"' not in metrics


def test_the_log_has_one_json_line_per_request_without_secrets(
    namespace: Recorder, capfd: pytest.CaptureFixture[str]
) -> None:
    with TestClient(create_app(namespace, ServerSettings(log_format="json"))) as client:
        headers = {"x-api-key": "secret", "x-request-id": "one"}
        client.post("/v1/table/ml$t/describe?delimiter=$", json={"context": {"a": "secret"}}, headers=headers)
        namespace.answer = RuntimeError("why")
        client.post("/v1/table/ml$t/describe")
        client.get("/healthz")
    first, second = (json.loads(line) for line in capfd.readouterr().err.splitlines())
    assert first.items() >= {
        "event": "request", "level": "info", "request_id": "one", "operation": "DescribeTable", "status": 200,
        "object": ["ml", "t"],
    }.items()  # fmt: skip
    assert "secret" not in str(first)
    assert second["level"] == "error"
    assert "RuntimeError: why" in second["exception"]


def test_readiness_names_the_store_that_does_not_answer(tmp_path: Path) -> None:
    namespace = lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/c.db")
    with TestClient(create_app(namespace, QUIET)) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        ready = client.get("/readyz")
        assert (ready.status_code, set(ready.json()["checks"].values())) == (200, {"ok"})
        rows = directory_of(namespace.catalog).commits.rows
        down = Faulty(rows, lambda name, _: ("before", StoreUnavailable("secret")))
        directory_of(namespace.catalog).ledger.commits = TableCommits(
            directory_of(namespace.catalog).commits.objects, down, "tester", Retry(0.05)
        )
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["checks"] == {"server": "ok", "storage": "ok", "commit store": "unavailable"}


def test_readiness_is_asked_of_a_store_that_hangs_once_at_a_time() -> None:
    release, asked = Event(), list[Any]()

    class Hanging(Recorder):
        def list_namespaces(self, request: Any) -> Any:
            asked.append(request)
            assert release.wait(60)
            return api.ListNamespacesResponse(namespaces=[])

    with serving(Hanging()) as front, ThreadPoolExecutor(50) as pool:
        try:
            found = list(pool.map(httpx.get, [f"{front.uri}/readyz"] * 50))
        finally:
            release.set()
        checks = {(each.status_code, each.json()["status"], each.json()["checks"]["namespace"]) for each in found}
        assert (checks, len(asked)) == ({(503, "unavailable", "unavailable")}, 1)
        while httpx.get(f"{front.uri}/readyz").status_code != 200:
            pass


def test_readiness_shows_how_busy_the_server_is() -> None:
    release = Event()

    class Slow(Recorder):
        def describe_table(self, request: Any) -> Any:
            assert release.wait(60)
            return api.DescribeTableResponse(location="done")

    with TestClient(create_app(Slow(), attrs.evolve(QUIET, threads=1))) as client, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(client.post, "/v1/table/t/describe") for _ in range(3)]
        busy = {"running": 1, "abandoned": 0, "waiting": 2, "most": 1}
        try:
            while client.get("/readyz").json()["threads"] != busy:
                assert not any(each.done() for each in asked)
            assert client.get("/readyz").json()["seconds"].keys() == {"namespace"}
        finally:
            release.set()
        assert [each.result().status_code for each in asked] == [200] * 3
        assert client.get("/readyz").json()["threads"] == {"running": 0, "abandoned": 0, "waiting": 0, "most": 1}


def test_a_shutdown_lets_an_operation_finish() -> None:
    started, stopping, answers = Event(), Event(), []

    class Slow(Recorder):
        def describe_table(self, request: Any) -> Any:
            started.set()
            assert stopping.wait(60)
            return api.DescribeTableResponse(location="done")

    class Stopping(Server):
        async def shutdown(self, sockets: Any = None) -> None:
            stopping.set()
            await super().shutdown(sockets)

    server = Stopping(create_app(Slow(), QUIET), QUIET)
    listener = listen("127.0.0.1", 0)
    uri = url_of(listener)
    running = Thread(target=server.run, kwargs={"sockets": [listener]})
    running.start()
    asking = Thread(target=lambda: answers.append(httpx.post(f"{uri}/v1/table/t/describe", timeout=60)))
    asking.start()
    assert started.wait(60)
    server.should_exit = True
    asking.join()
    running.join()
    assert answers[0].json() == {"location": "done"}


def test_a_shutdown_does_not_wait_longer_for_a_client_that_stalls() -> None:
    settings = ServerSettings(log_level="error", shutdown_seconds=1)
    server = Server(create_app(Streaming(None), settings), settings)
    listener = listen("127.0.0.1", 0)
    running = Thread(target=server.run, kwargs={"sockets": [listener]})
    running.start()
    with half_sent(url_of(listener)):
        server.should_exit = True
        running.join(60)
        assert not running.is_alive()


@pytest.mark.parametrize("headers", [{"x-request-timeout": "0.05"}, {}])
def test_operation_that_takes_too_long_is_answered(headers: dict[str, str]) -> None:
    released = Event()

    class Slow(Recorder):
        def describe_table(self, request: Any) -> Any:
            assert released.wait(60)
            return api.DescribeTableResponse(location="l")

        drop_table = describe_table

    settings = ServerSettings(log_level="error", operation_seconds=60 if headers else 1)
    with serving(Slow(), settings) as front:
        answers = [
            httpx.post(f"{front.uri}/v1/table/t/{operation}", headers=headers, timeout=60)
            for operation in ("describe", "drop")
        ]
        released.set()
    assert "DescribeTable took longer than" in refused(answers[0], 504, 17)
    assert "Its outcome is unknown" in refused(answers[1], 504, 17)


@pytest.mark.parametrize("given", ["0", "-1", "soon", "1e3", "nan"])
def test_timeout_that_is_no_number_of_seconds_is_refused(client: TestClient, given: str) -> None:
    answer = client.post("/v1/table/t/describe", headers={"x-request-timeout": given})
    assert "give a number of seconds above 0" in refused(answer, 400)


def test_rows_that_take_too_long_end_without_a_footer() -> None:
    def query() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(BATCH.schema, cycle(BATCH.to_batches()))

    request, headers = {"k": 0, "vector": {}}, {"x-request-timeout": "0.5"}
    with serving(Streaming(query), QUIET) as front, pytest.raises(httpx.RemoteProtocolError):  # waits for the query
        httpx.post(f"{front.uri}/v1/table/t/query", json=request, headers=headers, timeout=60)


ENDLESS = """
import sys, threading
import lance_namespace as api
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.server import Server
from lancekeep.entrypoints.rest.settings import ServerSettings

class Endless(api.LanceNamespace):
    def namespace_id(self):
        return "endless"

    def describe_table(self, request):
        print("started", flush=True)
        threading.Event().wait()

settings = ServerSettings(log_level="error", port=0, shutdown_seconds=1)
Server(create_app(Endless(), settings), settings).serve_on(lambda url: print(url, flush=True))
"""


def test_operation_that_outlasts_the_shutdown_ends_with_the_process() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with connection(url) as asking:
            asking.request("POST", "/v1/table/t/describe")
            assert process.stdout.readline() == "started\n"
            process.terminate()
            assert process.wait(60) == 1


def test_traces_continue_those_of_the_caller(namespace: Recorder) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with TestClient(create_app(namespace, ServerSettings(log_level="error", tracing=True))) as client:
        client.post("/v1/table/t/describe", headers={"traceparent": parent, "x-api-key": "secret"})
    [span] = spans.get_finished_spans()
    assert span.name == "DescribeTable"
    assert format(span.context.trace_id, "032x") == parent.split("-")[1]
    assert span.attributes is not None
    assert dict(span.attributes) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/table/{id}/describe",
    }


# -- the command -------------------------------------------------------------------------------------------------


@contextmanager
def command(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str], str]]:
    """Run ``lancekeep serve``; yield its URL, its process and the line that it prints for a shell."""
    line = [sys.executable, "-m", "lancekeep", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first, usage, stop = (process.stdout.readline() for _ in range(3))
            assert usage.startswith("Try:  curl ")
            assert stop.startswith("Stop: ")
            yield first.split()[-1], process, usage.removeprefix("Try:").strip()
        finally:
            process.kill()


def test_every_line_of_a_server_is_json(tmp_path: Path) -> None:
    policy, keys = tmp_path / "policy.toml", KeyFile(tmp_path / "keys.json")
    grant = '[[grants]]\nrole = "read"\non = ""\nprincipals = ["key:ada"]\n'
    policy.write_text(grant)
    headers = {"x-api-key": keys.create("ada")[1]}
    given = ("--commit-store", "conditional-put://", "--keys", str(keys.path), "--policy", str(policy))
    line = [sys.executable, "-m", "lancekeep", "serve", str(tmp_path / "lake"), *given, "--port", "0"]
    with subprocess.Popen(
        [*line, "--log-format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        serving = json.loads(process.stderr.readline())
        for content in (grant, "no policy"):
            policy.write_text(content)
            answer = httpx.post(f"{serving['url']}/v1/table/t/describe", json={}, headers=headers)
            assert answer.status_code == 404
        process.terminate()
        printed, logged = process.communicate(timeout=60)
    lines = [serving, *map(json.loads, logged.splitlines())]
    assert printed == ""
    assert [each["event"].split()[0] for each in lines] == ["serving", "Read", "request", "The", "request"]
    assert {"principal", "address", "operation", "object", "decision"} <= lines[2].keys()
    assert all(each["timestamp"] and each["level"] for each in lines)


def in_shell(line: str) -> Any:
    """Return the JSON that a line prints."""
    return json.loads(subprocess.run(f"{line} --silent --fail", shell=True, capture_output=True, check=True).stdout)


@pytest.mark.parametrize(
    ("server", "header"),
    [
        ("", ""),
        ("keys = 'keys.json'", "-H 'x-api-key: KEY' "),
        ("[server.tokens]", "-H 'authorization: Bearer TOKEN' "),
    ],
    ids=["none", "key", "token"],
)
def test_the_line_for_curl_has_the_header_of_the_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, header: str
) -> None:
    """The line is copied to a shell, with the key in its place."""
    monkeypatch.chdir(tmp_path)
    tokens = "\njwks = 'https://idp.test/jwks'\nissuer = 'https://idp.test'\naudience = 'lake'"
    Path("lancekeep.toml").write_text(f"[server]\nport = 0\n{server}{tokens if 'tokens' in server else ''}\n")
    key = CliRunner().invoke(program, ["keys", "create", "ada", "--file", "keys.json"], obj=lancekeep).stdout.strip()
    printed: list[Any] = []

    def serve_on(self: Server, announce: Callable[[str], None]) -> None:
        listener = listen("127.0.0.1", 0)
        running = Thread(target=self.run, kwargs={"sockets": [listener]})
        running.start()
        out = io.StringIO()
        with redirect_stdout(out):
            announce(url_of(listener))
        line = out.getvalue().splitlines()[1].removeprefix("Try:").strip()
        assert line.startswith(f"curl {header}'http")
        if "TOKEN" not in line:
            printed.append(in_shell(line.replace("KEY", key)))
        self.should_exit = True
        running.join()

    monkeypatch.setattr(Server, "serve_on", serve_on)
    done = CliRunner().invoke(program, ["serve", "memory://", "--log-level", "error"], obj=lancekeep)
    assert done.exit_code == 0, done.output
    assert printed == ([] if "TOKEN" in header else [{"tables": []}])


def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[server]\nthreads = 2\n")
    lake, store = str(tmp_path / "lake"), f"sqlite://{tmp_path}/c.db"
    with command(lake, "--commit-store", store, "--config", str(file)) as (uri, process, line):
        created = httpx.post(f"{uri}/v1/table/t/create", content=stream(writers.row(1, 1)), headers=ARROW, timeout=60)
        assert created.json()["version"] == 1, created.text
        assert in_shell(line) == {"tables": ["t"]}
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    assert json.loads(stderr.splitlines()[0])["operation"] == "CreateTable"
    assert lancekeep.connect(lake, commit_store=store).open("t").count_rows() == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[server]\nhots = 'a'", "the server has no setting 'hots'"),
        ("[server]\nport = 70000", "server.port is 70000; give a number from 0 to 65535"),
        ("[server]\ntracing = 3", "server.tracing is '3'; give true or false"),
        ("[server]\nthreads = 'many'", "server.threads is 'many'; give a number"),
        ("[server]\nlog_level = 'loud'", "server.log_level is 'loud'; choose debug, info"),
        ("server = 3", "write a section [server]"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(content)
    with pytest.raises(lancekeep.InvalidInput, match=re.escape(message)):
        ServerSettings.resolve({}, {"LANCEKEEP_CONFIG": str(file)})


def test_settings_have_the_precedence_of_those_of_a_connection(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("root = 'lake'\n[server]\nhost = 'a'\nport = 1\nthreads = 3")
    environment = {"LANCEKEEP_CONFIG": str(file), "LANCEKEEP_SERVER__PORT": "2", "LANCEKEEP_SERVER__HOST": "b"}
    settings = ServerSettings.resolve({"host": "c", "port": None}, environment)
    assert (settings.host, settings.port, settings.threads) == ("c", 2, 3)
    assert lancekeep.config.ConnectionConfig.resolve({}, environment).root == str(tmp_path / "lake")


def test_a_response_is_sent_without_waiting_for_an_acknowledgement() -> None:
    """Nagle's algorithm would add 40 ms to each response."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_in_use_is_refused() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(lancekeep.InvalidInput, match="cannot listen on"):
        listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.slow
def test_the_memory_of_the_server_does_not_grow_with_a_body(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": pa.array(range(20_000), pa.int64()), "b": pa.array([b"x" * 240] * 20_000)})

    def parts(batches: int) -> Iterator[bytes]:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            for _ in range(batches):
                writer.write_batch(batch)
                yield sink.getvalue()
                sink.seek(0)
                sink.truncate()
        yield sink.getvalue()

    with command(str(tmp_path / "lake"), "--commit-store", "conditional-put://") as (uri, process, _):
        url = f"{uri}/v1/table/t"
        httpx.post(f"{url}/create", content=parts(1), headers=ARROW, timeout=300).raise_for_status()
        before = peak_memory(process.pid)
        inserted = httpx.post(f"{url}/insert?mode=overwrite", content=parts(80), headers=ARROW, timeout=300)
        assert inserted.json()["num_inserted_rows"] == 1_600_000, inserted.text
        with httpx.stream("POST", f"{url}/query", json={"k": 10**7, "vector": {}}, timeout=300) as response:
            assert sum(map(len, response.iter_raw())) > 300_000_000
        assert peak_memory(process.pid) - before < 250
