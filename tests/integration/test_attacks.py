"""One attack for each security rule of the server, over a real catalog."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import attrs
import httpx
import pyarrow as pa
import pytest
from rest_server import running
from starlette.applications import Starlette
from starlette.testclient import TestClient

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.security.limits import TokenBucket
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.server import Server
from lancekeep.entrypoints.rest.settings import ServerSettings

ARROW = "application/vnd.apache.arrow.stream"
ROWS = pa.table({"id": [1, 2]})
POLICY = """
[[grants]]
role = "admin"
on = ""
principals = ["key:root"]

[[grants]]
role = "read"
on = "ml"
principals = ["key:reader"]

[[grants]]
role = "write"
on = "ml"
groups = ["writers"]

[[grants]]
role = "admin"
on = "ml"
principals = ["key:owner"]

[[grants]]
role = "read"
on = "secret.plans"
principals = ["key:guest"]
"""


@attrs.frozen
class Site:
    """A server with its callers.

    Attributes:
        app: The application.
        catalog: Its catalog.
        keys: The API key of each caller.
        client: A client without a key.
    """

    app: Starlette
    catalog: lancekeep.Catalog
    keys: dict[str, str]
    client: TestClient

    def ask(self, who: str, path: str, body: Any = None, **how: Any) -> httpx.Response:
        headers = {"x-api-key": self.keys[who], **how.pop("headers", {})}
        content = json.dumps({} if body is None else body)
        answer: httpx.Response = self.client.post(
            path, content=content, headers={"content-type": "application/json", **headers}, **how
        )
        return answer

    def get(self, who: str, path: str) -> httpx.Response:
        answer: httpx.Response = self.client.get(path, headers={"x-api-key": self.keys[who]})
        return answer


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    return ServerSettings(
        log_level="info",
        log_format="json",
        keys=str(tmp_path / "keys.json"),
        policy=str(policy),
        largest_document=10_000,
    )


@pytest.fixture
def site(tmp_path: Path, settings: ServerSettings) -> Iterator[Site]:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite:///{tmp_path}/commits.db") as catalog:
        for name in ("ml", "secret"):
            catalog.create_namespace(name)
        for name in ("ml.features", "secret.plans", "secret.other"):
            catalog.write(name, ROWS)
        file = KeyFile(Path(settings.keys))
        groups = {"writer": ("writers",)}
        names = ("root", "reader", "writer", "owner", "guest", "stranger")
        keys = {name: file.create(name, groups.get(name, ()))[1] for name in names}
        app = application(catalog, settings)
        with TestClient(app) as client:
            yield Site(app, catalog, keys, client)


def application(catalog: lancekeep.Catalog, settings: ServerSettings) -> Starlette:
    security = security_of(settings, catalog.storage_options)
    namespace = CatalogNamespace(catalog)
    return create_app(namespace, settings, around=security.around, middleware=security.middleware)


def refusal(response: httpx.Response) -> tuple[int, dict[str, Any]]:
    """Return what a refused caller sees, apart from the id of its request."""
    body = response.json()
    body.pop("instance")
    return response.status_code, body


# -- authentication --------------------------------------------------------------------------------------------------


def test_requests_without_a_valid_credential_are_refused(site: Site) -> None:
    path = "/v1/table/ml$features/describe"
    bad: list[dict[str, str]] = [
        {},
        {"x-api-key": ""},
        {"x-api-key": site.keys["root"][:-1]},
        {"authorization": "Bearer x.y.z"},
        {"authorization": f"Basic {site.keys['root']}"},
    ]
    for headers in bad:
        answer = site.client.post(path, headers=headers)
        assert (answer.status_code, answer.json()["code"], answer.headers["www-authenticate"]) == (401, 16, "Bearer")
    body = json.dumps({"identity": {"api_key": site.keys["root"]}})
    assert site.client.post(path, content=body, headers={"content-type": "application/json"}).status_code == 401
    assert site.client.post(path, headers={"authorization": f"Bearer {site.keys['root']}"}).status_code == 200


def test_several_credentials_are_refused(site: Site) -> None:
    both = [("x-api-key", site.keys["stranger"]), ("authorization", f"Bearer {site.keys['root']}")]
    twice = [("x-api-key", site.keys["stranger"]), ("x-api-key", site.keys["root"])]
    for headers in (both, twice):
        assert site.client.post("/v1/table/ml$features/describe", headers=headers).status_code == 400


def test_other_addresses_than_loopback_need_authentication(settings: ServerSettings, site: Site) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "lake.example", "127.0.0.1.example", ""):
        with pytest.raises(InvalidInput, match="without authentication"):
            security_of(ServerSettings(host=host), {})
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert security_of(ServerSettings(host=host), {}).around == ()
    assert security_of(attrs.evolve(settings, host="0.0.0.0"), {}).around
    with pytest.raises(InvalidInput, match="need to know the caller"):
        security_of(ServerSettings(policy=settings.policy), {})


def test_a_web_page_cannot_use_an_open_local_server(site: Site) -> None:
    with TestClient(application(site.catalog, ServerSettings(log_level="error")), "http://127.0.0.1:2333") as client:
        path = "/v1/table/ml$features/drop"
        attacks = (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"host": "evil.example:2333"},
            {"host": "127.0.0.1.evil.example"},
        )
        for headers in attacks:
            assert client.post(path, headers=headers).status_code == 403
        assert site.catalog.open("ml.features").count_rows() == 2
        assert client.post("/v1/table/ml$features/describe").status_code == 200


def test_request_with_several_hosts_is_refused(site: Site) -> None:
    answer = site.client.post("/v1/table/ml$features/describe", headers=[("host", "127.0.0.1"), ("host", "other")])
    assert answer.status_code == 400
    assert "several headers Host" in answer.json()["error"]


@pytest.mark.parametrize("properties", [{str(number): "" for number in range(10_001)}, {"a": "x" * (17 << 20)}])
def test_properties_are_limited(site: Site, properties: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="give at most"):
        site.catalog.create_namespace("large", properties)
    assert not site.catalog.namespace_exists("large")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/table/ml$features/query", {"k": 1, "vector": {}, "filter": "nope = 1"}),
        ("/v1/table/ml$other/register", {"location": "nothing"}),
        ("/v1/table/ml$features/version/describe", {"version": 99}),
    ],
)
def test_errors_name_no_path_of_the_server(site: Site, path: str, body: dict[str, Any]) -> None:
    answer = site.ask("root", path, body)
    assert answer.status_code >= 400
    assert site.catalog.root_uri.removeprefix("file://") not in answer.text


# -- privileges ------------------------------------------------------------------------------------------------------


def test_a_stranger_finds_nothing(site: Site) -> None:
    """Horizontal privilege: a valid key of another tenant."""
    for path in (
        "/v1/table/secret$plans/describe",
        "/v1/table/secret$plans/exists",
        "/v1/table/secret$plans/drop",
        "/v1/table/secret$plans/version/describe",
        "/v1/namespace/secret/describe",
        "/v1/namespace/secret/drop",
        "/DescribeTable",
        "/AlterTable",
        "/CreateEmptyTable",
    ):
        body = {"id": ["secret", "plans"]} if "/v1/" not in path else None
        assert site.ask("stranger", path, body).status_code == 404
    for path in ("/v1/namespace/$/list", "/v1/namespace/secret/table/list", "/v1/table"):
        assert site.get("stranger", path).status_code == 404
    assert site.catalog.open("secret.plans").count_rows() == 2


@pytest.mark.parametrize("who", ["reader", "stranger", "writer"])
@pytest.mark.parametrize(
    ("forbidden", "absent", "body"),
    [
        ("/v1/table/secret$other/describe", "/v1/table/secret$NONE!/describe", {}),
        ("/v1/table/secret$other/drop", "/v1/table/secret$NONE!/drop", None),
        ("/v1/table/secret$other/rename", "/v1/table/secret$NONE!/rename", {"new_table_name": "x"}),
        ("/v1/table/secret$other/version/describe", "/v1/table/secret$NONE!/version/describe", {"version": 7}),
        ("/v1/table/secret$t/declare", "/v1/table/NONE!!$t/declare", {}),
        ("/v1/namespace/secret/describe", "/v1/namespace/NONE!!/describe", {}),
        ("/v1/namespace/secret$x/create", "/v1/namespace/NONE!!$x/create", {}),
    ],
)
def test_a_forbidden_object_looks_absent(site: Site, who: str, forbidden: str, absent: str, body: Any) -> None:
    """The answers to a caller without access, and to an administrator about a missing object, are equal."""
    status, seen = refusal(site.ask(who, forbidden, body))
    expected_status, expected = refusal(site.ask("root", absent, body))
    names = {"NONE!!": "secret", "NONE!": "other"}
    text = json.dumps(expected)
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    assert (status, seen) == (expected_status, json.loads(text))
    assert status == 404


def test_roles_are_no_more_than_they_say(site: Site) -> None:
    """Vertical privilege: a reader does not write, a writer does not remove, an owner does not leave its namespace."""
    table = "/v1/table/ml$features"
    for who, path, body in (
        ("reader", f"{table}/version/create", {"version": 2, "manifest_path": "x"}),
        ("reader", "/v1/table/ml$new/declare", {}),
        ("reader", "/v1/namespace/ml$new/create", {}),
        ("reader", f"{table}/drop", None),
        ("reader", "/AlterTable", {"id": ["ml", "features"], "properties": {"a": "1"}}),
        ("reader", "/AlterNamespace", {"id": ["ml"], "properties": {"a": "1"}}),
        ("writer", f"{table}/drop", None),
        ("writer", f"{table}/deregister", {}),
        ("writer", f"{table}/rename", {"new_table_name": "x"}),
        ("writer", f"{table}/version/delete", {"ranges": [{"start_version": 1, "end_version": 2}]}),
        ("writer", "/v1/namespace/ml/drop", {}),
        ("owner", "/v1/table/ml$stolen/register", {"location": "secret$other"}),
        ("owner", "/v1/table/ml$stolen/declare", {"location": "secret$other"}),
    ):
        answer = site.ask(who, path, body)
        assert (answer.status_code, answer.json()["code"]) == (403, 15), (who, path, answer.text)
    assert (
        site.ask("owner", f"{table}/rename", {"new_table_name": "t", "new_namespace_id": ["secret"]}).status_code == 404
    )
    assert site.ask("reader", f"{table}/describe").status_code == 200
    assert site.ask("writer", "/v1/table/ml$new/declare").status_code == 200
    assert site.ask("owner", "/v1/table/ml$new/drop").status_code == 200


def test_dropped_tables_have_the_permissions_of_tables(site: Site) -> None:
    """A dropped table, its absence and its protection look alike to callers who may not read it."""
    for name in ("ml.features", "secret.plans", "secret.other"):
        site.catalog.drop_table(name, keep=3600)

    def listed(who: str, path: str = "$") -> list[str]:
        answer = site.get(who, f"/lancekeep/v1/object/{path}/dropped?limit=2")
        return [each["id"][-1] for each in answer.json().get("tables", [answer.status_code])]

    def asked(who: str, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        return refusal(site.ask(who, f"/lancekeep/v1/{path}", body))

    assert (listed("root"), listed("owner"), listed("guest")) == (["features", "other"], ["features"], ["plans"])
    assert site.get("stranger", "/lancekeep/v1/object/$/dropped").status_code == 404
    assert site.get("owner", "/lancekeep/v1/object/secret/dropped").status_code == 404
    for who in ("reader", "writer"):
        for path in ("table/ml$features/undrop", "table/ml$features/purge", "object/ml/protect", "object/ml/unprotect"):
            assert asked(who, path)[0] == 403, (who, path)
    for path in ("table/secret$plans/undrop", "table/secret$plans/purge", "object/secret$plans/protect"):
        hidden, absent = asked("owner", path), asked("owner", path.replace("plans", "gone!"))
        assert json.loads(json.dumps(hidden).replace("plans", "gone!")) == json.loads(json.dumps(absent))
        assert hidden[0] == 404
    assert asked("owner", "table/ml$features/purge", force=True)[0] == 403
    assert asked("owner", "table/ml$features/undrop", new_table_name="t", new_namespace_id=["secret"])[0] == 404
    assert asked("owner", "object/$/unprotect")[0] == 403
    assert len(site.catalog.list_dropped()) == 3
    assert site.ask("owner", "/lancekeep/v1/table/ml$features/undrop").status_code == 200
    assert site.ask("owner", "/lancekeep/v1/object/ml/protect").status_code == 200


@pytest.mark.parametrize("value", ["lpad('x', 2000000000, 'x')", "repeat(repeat('x', 50000), 50000)"])
def test_a_value_that_fills_the_memory_is_refused(site: Site, value: str) -> None:
    table = "/v1/table/ml$features"
    condition = f"{value} = 'y'"
    schema = base64.b64encode(pa.schema([("x", pa.string())]).serialize().to_pybytes()).decode()
    source = json.dumps({"table": ["ml", "features"], "columns": {"x": value}})
    requests: list[tuple[str, dict[str, Any]]] = [
        (f"{table}/query", {"k": 1, "vector": {}, "filter": condition}),
        (f"{table}/query", {"k": 1, "vector": {}, "columns": {"column_aliases": {"x": value}}}),
        (f"{table}/explain_plan", {"query": {"k": 1, "vector": {}, "filter": condition}}),
        (f"{table}/count_rows", {"predicate": condition}),
        (f"{table}/update", {"updates": [["id", f"length({value})"]]}),
        (f"{table}/delete", {"predicate": condition}),
        (f"{table}/add_columns", {"new_columns": [{"name": "x", "expression": value}]}),
        ("/v1/materialized_view/ml$v/create", {"kind": "query", "output_schema": schema, "source_query": source}),
    ]
    for path, body in requests:
        status, found = refusal(site.ask("root", path, body))
        assert (status, found["code"], "times as large" in found["error"]) == (400, 13, True), (path, found)


@pytest.mark.parametrize(
    "value", ["1 / (id - id)", "cast(concat('not found ', cast(id as string)) as bigint)", "factorial(100 + id)"]
)
def test_an_expression_without_a_value_for_a_row_is_the_callers_fault(site: Site, value: str) -> None:
    table, condition = "/v1/table/ml$features", f"{value} = 1"
    version = site.catalog.open("ml.features").version
    requests: list[tuple[str, dict[str, Any]]] = [
        (f"{table}/query", {"k": 1, "vector": {}, "filter": condition}),
        (f"{table}/query", {"k": 1, "vector": {}, "columns": {"column_aliases": {"x": value}}}),
        (f"{table}/count_rows", {"predicate": condition}),
        (f"{table}/update", {"updates": [["id", value]]}),
        (f"{table}/update", {"predicate": condition, "updates": [["id", "1"]]}),
        (f"{table}/delete", {"predicate": condition}),
        (f"{table}/add_columns", {"new_columns": [{"name": "x", "expression": value}]}),
    ]
    for path, body in requests:
        status, found = refusal(site.ask("root", path, body))
        assert (status, found["code"]) == (400, 13), (path, found)
    assert site.catalog.open("ml.features").version == version


@pytest.mark.parametrize("delimiter", ["$", "."])
def test_a_caller_of_one_namespace_connects(site: Site, delimiter: str) -> None:
    """The root is not theirs to read; idempotency keys are recognized all the same."""
    key = site.keys["writer"]
    with running(site.app) as uri:
        namespace = lancekeep.RestNamespace(uri=uri, api_key=key, delimiter=delimiter)
        assert namespace.server.honours_keys()
        with lancekeep.connect(uri, api_key=key, properties={"rest.delimiter": delimiter}) as catalog:
            assert catalog.list_namespaces() == ["ml"]
            catalog.write("ml.features", ROWS, "append")
        with pytest.raises(lancekeep.AccessDenied):
            lancekeep.connect(uri, api_key="not a key")
    assert site.catalog.open("ml.features").count_rows() == 4


def test_a_batch_needs_every_permission(site: Site) -> None:
    for other in ("secret", "ml"):
        names = [["ml", "features"], [other, "other"]]
        body = {"entries": [{"id": name, "version": 2, "manifest_path": "x"} for name in names]}
        answer = refusal(site.ask("writer", "/v1/table/version/batch-create", body))
        assert answer[0] == 404
        assert "secret" not in json.dumps(answer)
    operations = [{"deregister_table": {"id": ["secret", "other"]}}]
    assert site.ask("owner", "/v1/table/batch-commit", {"operations": operations}).status_code == 404
    assert site.catalog.open("secret.other").count_rows() == 2


def test_a_batch_describes_what_single_requests_describe(site: Site) -> None:
    """A member of a batch gets the answer of a single request of the same caller, whatever the other members are."""
    ids = [["ml", "features"], ["secret", "plans"], ["secret", "gone"], ["gone", "t"], ["ml"], [], ["ml", "\0"]]
    body = {"ids": ids, "load_detailed_metadata": True}
    for who in site.keys:
        answer = site.ask(who, "/lancekeep/v1/table/batch-describe", body)
        results = answer.json()["results"]
        assert (answer.status_code, [each["id"] for each in results]) == (200, ids)
        for names, found in zip(ids, results, strict=True):
            single = site.ask(who, "/DescribeTable", {"id": names, "load_detailed_metadata": True})
            shown = single.json()
            shown.pop("instance", None)
            assert found == {"id": names, ("response" if single.status_code == 200 else "error"): shown}, (who, names)
    [hidden] = site.ask("owner", "/lancekeep/v1/table/batch-describe", {"ids": [ids[1]]}).json()["results"]
    [absent] = site.ask("owner", "/lancekeep/v1/table/batch-describe", {"ids": [ids[2]]}).json()["results"]
    assert json.loads(json.dumps(hidden).replace("plans", "gone")) == absent
    assert site.client.post("/lancekeep/v1/table/batch-describe", json=body).status_code == 401


def test_a_view_of_a_forbidden_table_cannot_be_created(site: Site) -> None:
    query = json.dumps({"table": ["secret", "plans"]})
    body = {"kind": "query", "source_query": query, "output_schema": "{}"}
    assert site.ask("writer", "/v1/materialized_view/ml$copy/create", body).status_code == 404
    assert site.ask("writer", "/v1/materialized_view/ml$copy/refresh", {}).status_code == 404


@pytest.mark.parametrize("name", ["lancekeep.materialized_view", "materialized_view"])
@pytest.mark.parametrize("who", ["writer", "owner"])
def test_the_property_of_a_view_cannot_be_forged(site: Site, who: str, name: str) -> None:
    """A refresh reads the source that the property names, so no request may set or remove it."""
    properties = {name: json.dumps({"kind": "query", "source_query": json.dumps({"table": ["secret", "other"]})})}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as stream:
        stream.write_table(ROWS)

    def created(mode: str, table: str) -> httpx.Response:
        answer: httpx.Response = site.client.post(
            f"/v1/table/ml${table}/create",
            params={"properties": json.dumps(properties), "mode": mode},
            content=sink.getvalue().to_pybytes(),
            headers={"x-api-key": site.keys[who], "content-type": ARROW},
        )
        return answer

    batch = {"operations": [{"declare_table": {"id": ["ml", "copy"], "properties": properties}}]}
    alter = {"id": ["ml", "features"]}
    for answer in (
        site.ask(who, "/v1/table/ml$copy/declare", {"properties": properties}),
        created("create", "copy"),
        created("overwrite", "features"),
        site.ask(who, "/v1/table/batch-commit", batch),
        site.ask(who, "/AlterTable", {**alter, "properties": properties}),
        site.ask(who, "/AlterTable", {**alter, "properties": {name: None}}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (400, 13), answer.text
    assert site.catalog.find_table("ml.features").properties == {}
    assert site.catalog.list_tables("ml") == ["features"]


def test_listings_are_filtered_before_they_are_paged(site: Site) -> None:
    for name in ("a", "b", "q", "z"):
        site.catalog.declare_table(f"secret.{name}")
    pages = []
    token = ""
    while True:
        answer = site.get("guest", f"/v1/namespace/secret/table/list?limit=1&page_token={token}").json()
        pages.append(answer["tables"])
        token = answer.get("page_token") or ""
        if not token:
            break
    assert pages == [["plans"]]
    assert site.get("guest", "/v1/namespace/$/list").json()["namespaces"] == ["secret"]
    assert site.get("guest", "/v1/table?limit=1").json() == {"tables": ["secret$plans"]}
    assert site.get("reader", "/v1/table").json()["tables"] == ["ml$features"]
    assert site.get("reader", "/v1/namespace/$/list").json()["namespaces"] == ["ml"]
    assert len(site.get("root", "/v1/table").json()["tables"]) == 7


# -- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "..$secret$other",
        "ml$..$secret$other",
        "ml%2f..%2fsecret$other",
        "ml/../secret$other",
        "ml%252fsecret$other",
        "secret%24other",
        "secret%00$other",
        "SECRET$other",
        "%EF%BD%93ecret$other",
        "secret$other%00",
        "secret$other%20",
        "./secret$other",
        "secret.other?delimiter=.",
        "secretXother?delimiter=X",
        "%73ecret$other",
        "secret$$other",
        "ml$features%0d%0ax-evil:%201",
        "%ff",
        "%c0%ae%c0%ae$other",
    ],
)
def test_tricks_in_paths_reach_no_other_table(site: Site, name: str) -> None:
    path, _, query = name.partition("?")
    url = f"/v1/table/{path}/describe" + (f"?{query}" if query else "")
    for who in ("reader", "writer", "owner"):
        answer = site.ask(who, url)
        assert answer.status_code in (400, 404), answer.text
        assert "x-evil" not in answer.headers


def test_the_ids_of_path_and_body_must_agree(site: Site) -> None:
    assert site.ask("owner", "/v1/table/ml$features/drop", {"id": ["secret", "other"]}).status_code == 400
    assert site.ask("owner", "/v1/table/ml$features/describe", {"id": ["secret", "other"]}).status_code == 400


def test_control_characters_reach_neither_headers_nor_log(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    """Header and log injection."""
    evil = "ml$a%0d%0aset-cookie:%20x%0a%7b%22level%22:%22forged%22%7d"
    body = {"id": ["ml", 'a\r\nset-cookie: x\n{"level":"forged"}']}
    for path, given in ((f"/v1/table/{evil}/describe", None), ("/DescribeTable", body)):
        answer = site.ask("reader", path, given, headers={"x-request-id": "forged id"})
        assert answer.status_code in (400, 404), answer.text
        assert "set-cookie" not in answer.headers
        assert answer.headers["x-request-id"] != "forged id"
    lines = [line for line in capfd.readouterr().err.splitlines() if line]
    assert all(json.loads(line).get("level") != "forged" for line in lines)


def test_an_idempotency_key_replays_nothing_for_another_principal(site: Site) -> None:
    key = {"idempotency-key": str(uuid4())}
    path = "/v1/table/ml$new/declare"
    first = site.ask("writer", path, {}, headers=key)
    again = site.ask("writer", path, {}, headers=key)
    assert (first.status_code, again.status_code, again.json()) == (200, 200, first.json())
    assert site.ask("reader", path, {}, headers=key).status_code == 403
    assert site.ask("stranger", path, {}, headers=key).status_code == 404
    assert site.ask("owner", path, {}, headers=key).status_code == 409  # its own request, whose name is taken


# -- secrets ---------------------------------------------------------------------------------------------------------


def test_the_stored_answer_of_a_request_holds_no_credentials(tmp_path: Path) -> None:
    planted = f"planted-{uuid4().hex}"
    properties = {"root": str(tmp_path / "lake"), "commit_store": "conditional-put://"}
    namespace = lancekeep.DirectoryNamespace(
        **properties, **{"storage.aws_secret_access_key": planted, "vend_input_storage_options": "true"}
    )
    client = TestClient(create_app(namespace))
    for _ in range(2):
        answer = client.post("/v1/table/t/declare", json={}, headers={"idempotency-key": str(UUID(int=7))})
        assert answer.status_code == 200
        assert "storage_options" not in answer.json()
    assert planted in client.post("/v1/table/t/describe", json={}).text
    stored = [path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    assert any(b'"response"' in content.replace(b"\\", b"") for content in stored)
    assert not any(planted.encode() in content for content in stored)


def test_credentials_appear_in_no_response_and_no_log(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    planted = f"planted-{uuid4().hex}"
    shown = [repr(site.app), repr(site.app.user_middleware)]
    for headers in (
        {"x-api-key": planted},
        {"authorization": f"Bearer {planted}"},
        {"x-api-key": site.keys["root"]},
        {"x-api-key": site.keys["stranger"]},
    ):
        for path in ("/v1/table/ml$features/describe", "/v1/table/ml$none/describe", "/v1/nowhere"):
            answer = site.client.post(path, headers=headers)
            shown += [answer.text, str(answer.headers)]
    shown.append(site.client.get("/metrics").text)
    shown.append(capfd.readouterr().err)
    for secret in (planted, *site.keys.values()):
        assert [text for text in shown if secret in text] == []


def test_the_storage_options_of_the_server_are_never_returned(site: Site, settings: ServerSettings) -> None:
    class Vendor(CatalogNamespace):
        def _storage_options(self, vend: bool | None) -> dict[str, str]:
            return {"aws_secret_access_key": "planted"}

    security = security_of(settings, {})
    app = create_app(Vendor(site.catalog), settings, around=security.around, middleware=security.middleware)
    with TestClient(app) as client:
        headers = {"x-api-key": site.keys["root"]}
        for path in ("ml$features/describe", "ml$new/declare"):
            assert "planted" not in client.post(f"/v1/table/{path}", headers=headers).text
        body = {"vend_credentials": True}
        answer = client.post("/v1/table/ml$features/describe", headers=headers, json=body)
        assert answer.status_code == 501
        assert "planted" not in answer.text


# -- limits ----------------------------------------------------------------------------------------------------------


def test_oversized_bodies_are_refused(site: Site) -> None:
    path = "/v1/table/ml$features/describe"
    headers = {"x-api-key": site.keys["reader"], "content-type": "application/json"}

    def chunks() -> Iterator[bytes]:
        while True:  # ends when the server stops reading
            yield b" " * 5000

    large = b'{"version": 1}' + b" " * 10_000
    assert site.client.post(path, content=large, headers=headers).status_code == 413
    assert site.client.post(path, content=large[:10_000], headers=headers).status_code == 200
    with running(site.app) as uri:
        try:
            status = httpx.post(uri + path, content=chunks(), headers=headers).status_code
        except httpx.WriteError:  # the server answered and closed while the client still wrote
            status = 413
        assert status == 413
        with connected(uri) as connection:
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {site.keys['reader']}\r\n"
            connection.sendall(f"{head}content-length: {1 << 40}\r\n\r\n".encode())
            assert b"413 Request Entity Too Large" in received(connection)


def test_slow_bodies_are_refused(site: Site, settings: ServerSettings) -> None:
    """The body never ends; the limit is as short as the settings permit."""
    app = application(site.catalog, attrs.evolve(settings, body_seconds=1))
    with running(app) as uri:
        with connected(uri) as connection:
            head = f"POST /v1/table/ml$features/describe HTTP/1.1\r\nhost: x\r\nx-api-key: {site.keys['reader']}\r\n"
            connection.sendall(f"{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode())
            assert b"408 Request Timeout" in received(connection)
        assert httpx.post(uri + "/v1/table/ml$features/describe", headers={"x-api-key": site.keys["reader"]}).is_success


def test_slow_headers_are_cut_off(site: Site, settings: ServerSettings) -> None:
    with running(site.app, attrs.evolve(settings, header_seconds=1)) as uri:
        with connected(uri) as silent, connected(uri) as partial, connected(uri) as second:
            partial.sendall(b"GET /healthz HTTP/1.1\r\nhost:")
            second.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n\r\n")
            assert b"200 OK" in second.recv(1000)
            second.sendall(b"\r\n")  # no byte of a request, but of a client that is not idle
            assert (received(silent), received(partial), received(second)) == (b"", b"", b"")
        assert httpx.get(uri + "/healthz").is_success


def test_endless_headers_are_refused(site: Site, settings: ServerSettings) -> None:
    patient = attrs.evolve(settings, header_seconds=3600)
    for begun, part in (
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"x: y\r\n"),
        (b"GET /", b"x"),
        (b"GET / HTTP/1.1\r\nx:", b"x"),
    ):
        with running(site.app, patient) as uri, connected(uri) as connection:
            with suppress(ConnectionError):  # the server closes while the client still writes
                connection.sendall(begun)
                for _ in range(1000):
                    connection.sendall(part * 1000)
            answer = received(connection)  # ends when the server closes
            assert answer == b"" or b"400 Bad Request" in answer


def test_too_many_requests_at_once_are_refused(site: Site, settings: ServerSettings) -> None:
    app = application(site.catalog, attrs.evolve(settings, requests=1))
    head = f"POST /v1/table/ml$features/describe HTTP/1.1\r\nhost: x\r\nx-api-key: {site.keys['reader']}\r\n"
    with running(app) as uri, connected(uri) as first:
        first.sendall(
            f"{head}content-type: application/json\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n".encode()
        )
        assert b"100 Continue" in first.recv(1000)  # the server waits for the body of the first request
        answer = httpx.post(uri + "/v1/table/ml$features/describe", headers={"x-api-key": site.keys["reader"]})
        assert (answer.status_code, answer.headers["retry-after"], answer.json()["code"]) == (503, "1", 17)
        first.sendall(b"{}")
        assert b"200 OK" in first.recv(1000)


def test_a_principal_with_many_requests_leaves_some_to_others(site: Site, settings: ServerSettings) -> None:
    app = application(site.catalog, attrs.evolve(settings, requests=4))
    head = f"POST /v1/table/ml$features/describe HTTP/1.1\r\nhost: x\r\nx-api-key: {site.keys['reader']}\r\n"
    with running(app) as uri, ExitStack() as stack:
        waiting = [stack.enter_context(connected(uri)) for _ in range(3)]
        for connection in waiting:
            connection.sendall(
                f"{head}content-type: application/json\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n".encode()
            )
            assert b"100 Continue" in connection.recv(1000)
        path = uri + "/v1/table/ml$features/describe"
        refused = httpx.post(path, headers={"x-api-key": site.keys["reader"]})
        assert (refused.status_code, refused.json()["code"]) == (503, 17)
        assert "key:reader has 3 requests in progress" in refused.json()["error"]
        assert httpx.post(path, headers={"x-api-key": site.keys["owner"]}).is_success
        waiting[0].sendall(b"{}")
        assert b"200 OK" in waiting[0].recv(1000)
        assert httpx.post(path, headers={"x-api-key": site.keys["reader"]}).is_success


def test_each_principal_has_a_rate(site: Site, settings: ServerSettings) -> None:
    with TestClient(application(site.catalog, attrs.evolve(settings, rate=1, burst=3))) as client:
        path = "/v1/table/ml$features/exists"
        answers = [client.post(path, headers={"x-api-key": site.keys["reader"]}) for _ in range(10)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert refused[0].json()["code"] == 21
        assert int(refused[0].headers["retry-after"]) >= 1
        assert client.post(path, headers={"x-api-key": site.keys["owner"]}).status_code == 200


def test_a_token_bucket_fills_with_time() -> None:
    bucket = TokenBucket(2, 3, 3, 0)
    assert [bucket.take(0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert (bucket.take(0.5), bucket.take(0.5)) == (0, 0.5)
    assert [bucket.take(100) for _ in range(4)] == [0, 0, 0, 0.5]


# -- TLS -------------------------------------------------------------------------------------------------------------


def test_the_server_speaks_tls(site: Site, settings: ServerSettings, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    with_tls = attrs.evolve(settings, certificate=str(certificate), private_key=str(key))
    with running(site.app, with_tls) as uri:
        context = ssl.create_default_context(cafile=str(certificate))
        assert httpx.get(uri.replace("http:", "https:") + "/healthz", verify=context).is_success
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(httpx.ConnectError):
            httpx.get(uri.replace("http:", "https:") + "/healthz", verify=context)
    changes: list[dict[str, Any]] = [{"private_key": ""}, {"certificate": str(key)}, {"certificate": "/none"}]
    for change in changes:
        with pytest.raises(InvalidInput):
            Server(site.app, attrs.evolve(with_tls, **change))


# -- helpers ---------------------------------------------------------------------------------------------------------


@contextmanager
def connected(uri: str) -> Iterator[socket.socket]:
    url = httpx.URL(uri)
    with socket.create_connection((url.host, url.port or 80), timeout=60) as connection:
        yield connection


def received(connection: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)
