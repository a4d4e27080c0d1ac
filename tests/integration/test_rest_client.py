"""Our REST client: over our server, over pylance's, and over servers that misbehave."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import lance
import lance.namespace
import lance_namespace as api
import pyarrow as pa
import pytest
from lance_namespace import errors as api_errors
from rest_server import Front, serving

import lancekeep
from lancekeep.application.catalog import services_of
from lancekeep.config import ConnectionConfig
from lancekeep.domain.view import Refresh, ViewDefinition
from lancekeep.entrypoints.namespace.implementations import namespace_of
from lancekeep.ports.table_structure import NewIndex
from lancekeep.testing.behaviours import Contents, Open
from lancekeep.testing.suite import NamespaceBehaviours

ROWS = pa.table({"id": [1, 2]})
RETRIES = {"rest.retry_seconds": "0.2"}


@pytest.fixture
def native_server(tmp_path: Path) -> Iterator[str]:
    """pylance's own server over its directory namespace."""
    with lance.namespace.RestAdapter("dir", {"root": str(tmp_path / "native")}, port=0) as adapter:
        yield f"http://127.0.0.1:{adapter.port}"


# -- over pylance's server ---------------------------------------------------------------------------------------


def test_a_catalog_over_the_native_server(native_server: str) -> None:
    with lancekeep.connect(impl="rest", uri=native_server) as catalog:
        catalog.create_namespace("ns", {"owner": "ann"})
        assert catalog.describe_namespace("ns").properties["owner"] == "ann"
        assert catalog.namespace_exists("ns")
        assert not catalog.namespace_exists("other")
        assert catalog.list_namespaces() == ["ns"]
        assert catalog.write("ns.t", ROWS).version == 1
        assert catalog.write("ns.t", pa.table({"id": [3]}), "append").version == 2
        assert sorted(catalog.open("ns.t").to_table()["id"].to_pylist()) == [1, 2, 3]
        assert sorted(catalog.open("ns.t", 1).to_table()["id"].to_pylist()) == [1, 2]
        assert catalog.list_tables("ns") == ["t"]
        assert catalog.describe_table("ns.t").version == 2
        assert [(entry.version, entry.rows) for entry in catalog.versions.history("ns.t")] == [(2, 3), (1, 2)]
        times = {entry.version: entry.timestamp for entry in catalog.versions.history("ns.t")}
        assert catalog.open("ns.t", timestamp=times[1]).version == 1
        assert catalog.scan("ns.t", timestamp=times[2]).where("id > 1").count() == 2
        assert catalog.diff("ns.t", 1).count(["id"]) == lancekeep.ChangeCounts(1, 0, 0)
        catalog.drop_table("ns.t")
        assert not catalog.table_exists("ns.t")
        with pytest.raises(lancekeep.TableNotFound):
            catalog.find_table("ns.t")
        with pytest.raises(lancekeep.NamespaceNotFound):
            catalog.drop_namespace("other")


def test_what_a_server_cannot_do_is_unsupported(native_server: str) -> None:
    with lancekeep.connect(native_server) as catalog:
        for act in (
            catalog.upkeep.fsck,
            catalog.upkeep.optimize,
            lambda: catalog.alter_table("t", {"a": "b"}),
            lambda: catalog.alter_namespace("ns", {"a": "b"}),
            lambda: catalog.drop_table("t", force=True),
            catalog.transaction,
            catalog.partitions.open,
            lambda: catalog.structure.set_base_paths(lancekeep.ObjectId.of("t"), {1: "/elsewhere"}),
        ):
            with pytest.raises(lancekeep.Unsupported, match="REST protocol"):
                act()


# -- over a server that misbehaves -------------------------------------------------------------------------------


Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def answering(answer: Callable[[str, dict[str, str], bytes], Answer | None]) -> Iterator[str]:
    """Run a server with one function for all requests; None drops the connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"] or 0))
            found = answer(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            if found is None:
                self.close_connection = True
                return
            status, headers, content = found
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST  # noqa: N815 - the name that the base class calls

        def log_message(self, *_: Any) -> None:
            """Suppress the log of requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def keeping_keys(
    answer: Callable[[int], Answer | None], seen: list[dict[str, str]]
) -> Callable[[str, dict[str, str], bytes], Answer | None]:
    """Echo keys; ``answer`` gets the number of the change, and ``seen`` its headers."""

    def respond(path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        if path.endswith("/exists"):
            return 200, {"idempotency-key": headers.get("idempotency-key", "")}, b""
        seen.append(headers)
        return answer(len(seen) - 1)

    return respond


CREATED: Answer = (200, {"content-type": "application/json"}, b'{"properties": {"a": "b"}}')
UNAVAILABLE: Answer = (503, {"content-type": "application/json"}, b'{"code": 17, "error": "try again"}')


@pytest.mark.parametrize("fault", [UNAVAILABLE, (502, {"content-type": "text/html"}, b"<html>"), None])
def test_a_change_is_repeated_with_its_key(fault: Answer | None) -> None:
    seen: list[dict[str, str]] = []
    with answering(keeping_keys(lambda number: fault if number < 2 else CREATED, seen)) as uri:
        catalog = lancekeep.connect(impl="rest", uri=uri, properties={"rest.retry_seconds": "20"})
        assert catalog.create_namespace("ns").properties == {"a": "b"}
    assert len(seen) == 3
    assert len({headers["idempotency-key"] for headers in seen}) == 1


def test_keys_are_sent_to_a_server_that_was_busy_at_first() -> None:
    asked, seen = list[str](), list[dict[str, str]]()
    respond = keeping_keys(lambda number: UNAVAILABLE if number == 0 else CREATED, seen)

    def busy_at_first(path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        asked.append(path)
        return UNAVAILABLE if len(asked) < 3 else respond(path, headers, body)

    with answering(busy_at_first) as uri:
        catalog = lancekeep.connect(impl="rest", uri=uri, properties={"rest.retry_seconds": "20"})
        assert catalog.create_namespace("ns").properties == {"a": "b"}
    assert len(seen) == 2
    assert all("idempotency-key" in headers for headers in seen)


@pytest.mark.parametrize("fault", [UNAVAILABLE, None])
def test_a_change_is_not_repeated_if_the_server_keeps_no_keys(fault: Answer | None) -> None:
    seen: list[str] = []

    def respond(path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        if path.endswith("/exists"):
            return 200, {}, b""
        seen.append(headers.get("idempotency-key", ""))
        return fault

    with answering(respond) as uri:
        catalog = lancekeep.connect(uri)
        with pytest.raises(lancekeep.StoreUnavailable):
            catalog.create_namespace("ns")
    assert seen == [""]


def test_reads_are_repeated() -> None:
    seen: list[int] = []

    def respond(path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        if path.endswith("/exists"):
            return 200, {}, b""
        seen.append(1)
        return None if len(seen) < 3 else CREATED

    with answering(respond) as uri:
        assert lancekeep.connect(uri).describe_namespace("ns").properties == {"a": "b"}


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"content-type": "application/json"}, b"\xff{"),
        (200, {"content-type": "text/html"}, b"<html>welcome</html>"),
        (200, {"content-type": "application/json"}, b"[1]"),
        (200, {"content-type": "application/json"}, b"[" * 100_000),
        (200, {"content-type": "application/json", "content-length": "1000000"}, b"{}"),
    ],
)
def test_a_malformed_response_is_an_error_that_names_the_operation(answer: Answer) -> None:
    with answering(lambda path, *_: (200, {}, b"") if path.endswith("/exists") else answer) as uri:
        catalog = lancekeep.connect(uri, properties={**RETRIES, "rest.read_timeout": "0.5"})
        with pytest.raises(lancekeep.StoreUnavailable):
            catalog.describe_namespace("ns")


def test_a_response_larger_than_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancekeep.adapters.rest.server.MOST_JSON", 1000)
    big = (200, {"content-type": "application/json"}, json.dumps({"properties": {"a": "b" * 2000}}).encode())
    with (
        answering(lambda path, *_: (200, {}, b"") if path.endswith("/exists") else big) as uri,
        pytest.raises(lancekeep.StoreUnavailable, match="larger than 1000 bytes"),
    ):
        lancekeep.connect(uri, properties=RETRIES).describe_namespace("ns")


def test_credentials_do_not_follow_a_redirect() -> None:
    reached: list[dict[str, str]] = []

    def elsewhere(path: str, headers: dict[str, str], body: bytes) -> Answer:
        reached.append(headers)
        return CREATED

    with answering(elsewhere) as other:
        redirect = (307, {"location": f"{other}/v1/namespace/ns/describe"}, b"")
        with answering(lambda path, *_: (200, {}, b"") if path.endswith("/exists") else redirect) as uri:
            catalog = lancekeep.connect(impl="rest", uri=uri, token="secret", api_key="key")
            with pytest.raises(lancekeep.InvalidInput, match="Redirects are not followed"):
                catalog.describe_namespace("ns")
    assert reached == []


def test_credentials_and_headers_are_sent_and_never_shown() -> None:
    seen: list[dict[str, str]] = []

    def respond(path: str, headers: dict[str, str], body: bytes) -> Answer:
        seen.append(headers)
        return 200, {}, b""

    with answering(respond) as uri:
        catalog = lancekeep.connect(
            impl="rest", uri=uri, token="secret-token", api_key="secret-key", headers={"x-team": "secret-team"}
        )
    assert seen[0]["authorization"] == "Bearer secret-token"
    assert seen[0]["x-api-key"] == "secret-key"
    assert seen[0]["x-team"] == "secret-team"
    assert "secret" not in repr(catalog)
    with pytest.raises(lancekeep.StoreUnavailable) as raised:
        lancekeep.connect(impl="rest", uri=uri, token="secret-token", properties=RETRIES)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (404, {"code": 1, "error": "gone"}, lancekeep.NamespaceNotFound),
        (404, {}, lancekeep.NotFound),
        (409, {"code": 14, "error": "race"}, lancekeep.ConcurrentModification),
        (401, {"code": 16, "error": "who"}, lancekeep.AccessDenied),
        (403, {"code": 15, "error": "no"}, lancekeep.AccessDenied),
        (501, {"code": 0, "error": "no"}, lancekeep.Unsupported),
        (500, {"code": 18, "error": "bug"}, lancekeep.Damaged),
        (400, {"code": 13, "error": "bad"}, lancekeep.InvalidInput),
        (400, {"code": "x", "error": 5}, lancekeep.InvalidInput),
        (418, {}, lancekeep.Refused),
    ],
)
def test_errors_of_the_server_have_the_class_of_a_local_catalog(
    status: int, body: dict[str, Any], error: type[lancekeep.LancekeepError]
) -> None:
    answer = (status, {"content-type": "application/json"}, json.dumps(body).encode())
    with (
        answering(lambda path, *_: (200, {}, b"") if path.endswith("/exists") else answer) as uri,
        pytest.raises(error),
    ):
        lancekeep.connect(uri, properties=RETRIES).describe_namespace("ns")


def test_refused_credentials_are_an_error_of_connect() -> None:
    with (
        answering(lambda *_: (401, {"content-type": "application/json"}, b'{"code": 16, "error": "who"}')) as uri,
        pytest.raises(lancekeep.AccessDenied),
    ):
        lancekeep.connect(uri)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no catalog is named"),
        ({"uri": "ftp://x"}, "must be http"),
        ({"uri": "http://ann:secret@x"}, "holds credentials"),
        ({"uri": "http://x?q"}, "must be http"),
        ({"uri": "http://x", "token": "a\nb"}, "cannot hold"),
        ({"uri": "http://x", "headers": {"a b": "c"}}, "not the name"),
        ({"uri": "http://x", "properties": {"rest.colour": "red"}}, "unknown setting rest.colour"),
        ({"uri": "http://x", "properties": {"rest.read_timeout": "soon"}}, "number of seconds"),
        ({"uri": "http://x", "commit_store": "memory://x"}, "no commit store"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(lancekeep.InvalidInput, match=message) as raised:
        lancekeep.connect(impl="rest", **options)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["..", "."])
def test_a_name_that_changes_the_path_of_a_request_is_not_sent(front: Front, name: str) -> None:
    """``/table/t/index/../drop`` is the path that drops the table."""
    namespace = lancekeep.RestNamespace(uri=front.uri)
    lancekeep.connect(front.uri).write("t", ROWS)
    with pytest.raises(api_errors.InvalidInputError, match="nothing was sent"):
        namespace.drop_table_index(api.DropTableIndexRequest(id=["t"], index_name=name))
    with pytest.raises(api_errors.InvalidInputError, match="nothing was sent"):
        namespace.drop_table(api.DropTableRequest(id=[name]))
    assert lancekeep.connect(front.uri).open("t").count_rows() == 2


def test_the_token_of_one_server_is_not_sent_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lancekeep.toml").write_text('root = "http://one.example"\nrest.token = "of one"\n')
    monkeypatch.chdir(tmp_path)
    seen: list[dict[str, str]] = []

    def respond(path: str, headers: dict[str, str], body: bytes) -> Answer:
        seen.append(headers)
        return 200, {}, b""

    with answering(respond) as uri:
        lancekeep.connect(uri)
    assert "authorization" not in seen[0]


# -- over our server ---------------------------------------------------------------------------------------------


class TestOurServer(NamespaceBehaviours):
    """The behaviour table through our client and our server."""

    @pytest.fixture
    def namespace_factory(self, tmp_path: Path) -> Iterator[Open]:
        namespace = lancekeep.DirectoryNamespace(
            **{"root": str(tmp_path / "lake"), "storage.fsync": "false", "commit_store": "conditional-put://"}
        )
        with serving(namespace) as front:
            yield lambda: lancekeep.RestNamespace(uri=front.uri)

    @pytest.fixture
    def namespace_contents(self, tmp_path: Path) -> Contents:
        return lambda: sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    namespace = lancekeep.DirectoryNamespace(
        **{
            "root": str(tmp_path / "lake"),
            "storage.fsync": "false",
            "commit_store": f"sqlite://{tmp_path}/commits.db",
            "vend_input_storage_options": "true",
        }
    )
    with serving(namespace) as running:
        yield running


def rows(catalog: lancekeep.Catalog, table: str) -> list[int]:
    return sorted(catalog.open(table).to_table()["id"].to_pylist())


@pytest.mark.parametrize("operation", ["create_namespace", "declare_table", "rename_table", "drop_table"])
def test_a_lost_reply_of_our_server_is_one_effect(front: Front, operation: str) -> None:
    catalog = lancekeep.connect(front.uri)
    catalog.create_namespace("ns")
    catalog.declare_table("ns.t")
    front.losses[operation] = 2
    act: Callable[[], object] = {
        "create_namespace": lambda: catalog.create_namespace("other"),
        "declare_table": lambda: catalog.declare_table("ns.u"),
        "rename_table": lambda: catalog.rename_table("ns.t", "ns.u"),
        "drop_table": lambda: catalog.drop_table("ns.t"),
    }[operation]
    before = front.asked.count(operation)
    act()
    assert front.asked.count(operation) == before + 3


def test_a_native_commit_whose_replies_are_lost_adds_its_rows_once(front: Front) -> None:
    catalog = lancekeep.connect(front.uri)
    catalog.create_namespace("ns")
    catalog.write("ns.t", ROWS)
    for number in range(3, 6):
        front.losses["create_table_version"] = 2
        catalog.write("ns.t", pa.table({"id": [number]}), "append")
    assert rows(catalog, "ns.t") == [1, 2, 3, 4, 5]
    assert lance.dataset(catalog.find_table("ns.t").location).version == 4


def test_native_writers_commit_through_the_client(front: Front) -> None:
    namespace = lancekeep.RestNamespace(uri=front.uri)
    namespace.create_namespace(api.CreateNamespaceRequest(id=["ns"]))
    for number, mode in ((1, "create"), (2, "append"), (3, "append")):
        front.losses["create_table_version"] = 1
        lance.write_dataset(pa.table({"id": [number]}), namespace_client=namespace, table_id=["ns", "t"], mode=mode)
    dataset = lance.dataset(namespace_client=namespace, table_id=["ns", "t"])
    dataset.delete("id = 2")
    assert dataset.to_table()["id"].to_pylist() == [1, 3]
    assert lancekeep.connect(front.uri).describe_table("ns.t").version == 4


def test_a_handle_of_a_dropped_table_does_not_commit(front: Front) -> None:
    catalog = lancekeep.connect(front.uri)
    catalog.create_namespace("ns")
    catalog.write("ns.t", ROWS)
    dataset = catalog.open("ns.t")
    catalog.drop_table("ns.t")
    with pytest.raises((OSError, lancekeep.LancekeepError)):
        dataset.insert(pa.table({"id": [3]}), mode="append")
    catalog.write("ns.t", ROWS)
    with pytest.raises((OSError, lancekeep.LancekeepError)):
        dataset.insert(pa.table({"id": [3]}), mode="append")
    assert rows(catalog, "ns.t") == [1, 2]


def test_an_unknown_commit_is_settled_by_its_token(front: Front) -> None:
    catalog = lancekeep.connect(front.uri, properties={"rest.retry_seconds": "0.3"})
    catalog.create_namespace("ns")
    catalog.write("ns.t", ROWS)
    front.losses["create_table_version"] = 1000
    front.losses["describe_table_version"] = 1000
    with pytest.raises(lancekeep.CommitUnknown) as unknown:
        catalog.write("ns.t", pa.table({"id": [3]}), "append")
    front.losses.clear()
    outcome = lancekeep.connect(front.uri).resolve(str(unknown.value.token))
    assert isinstance(outcome, lancekeep.Committed)
    assert rows(lancekeep.connect(front.uri), "ns.t") == [1, 2, 3]


def test_the_same_key_with_another_request_is_400(front: Front) -> None:
    server = lancekeep.RestNamespace(uri=front.uri).server
    key = "7c1b7c5e-2d5f-4a4c-9d0e-4f8f0a6f3f11"
    first = server.call("create_namespace", {"id": ["ns"], "properties": {"a": "b"}}, key=key)
    again = server.call("create_namespace", {"id": ["ns"], "properties": {"a": "b"}}, key=key)
    assert first["properties"] == again["properties"]
    with pytest.raises(lancekeep.InvalidInput, match="another request"):
        server.call("create_namespace", {"id": ["ns"], "properties": {"a": "c"}}, key=key)
    with pytest.raises(lancekeep.InvalidInput, match="not a UUID"):
        server.call("create_namespace", {"id": ["ns"]}, key="../x")


def test_a_repeated_insert_adds_its_rows_once(front: Front) -> None:
    catalog = lancekeep.connect(front.uri)
    catalog.write("t", ROWS)
    server = lancekeep.RestNamespace(uri=front.uri).server
    front.losses["insert_into_table"] = 2
    server.call("insert_into_table", {"id": ["t"], "mode": "append"}, data=stream([3]))
    assert rows(catalog, "t") == [1, 2, 3]
    key = "7c1b7c5e-2d5f-4a4c-9d0e-4f8f0a6f3f13"
    update = {"id": ["t"], "updates": [["id", "id + 10"]], "predicate": "id > 1"}
    first = server.call("update_table", update, key=key)
    again = server.call("update_table", update, key=key)
    assert (first["updated_rows"], first["version"]) == (again["updated_rows"], again["version"]) == (2, 3)
    assert rows(catalog, "t") == [1, 12, 13]


def test_data_operations_of_a_served_catalog(front: Front) -> None:
    catalog = lancekeep.connect(front.uri)
    catalog.write("t", ROWS)
    catalog.commit_change("t", lambda dataset: (dataset.delete("id = 1") and dataset) or dataset)
    assert rows(catalog, "t") == [2]
    assert [entry.version for entry in catalog.versions.history("t")] == [2, 1]


def test_a_repeated_create_with_other_data_is_400(front: Front) -> None:
    server = lancekeep.RestNamespace(uri=front.uri).server
    key = "7c1b7c5e-2d5f-4a4c-9d0e-4f8f0a6f3f12"
    fields = {"id": ["t"], "mode": "create"}
    first = server.call("create_table", fields, data=stream([3]), key=key)
    again = server.call("create_table", fields, data=stream([3]), key=key)
    assert {**first, "context": None} == {**again, "context": None}
    with pytest.raises(lancekeep.InvalidInput, match="another request"):
        server.call("create_table", fields, data=stream([4]), key=key)
    assert rows(lancekeep.connect(front.uri), "t") == [3]


def stream(ids: list[int]) -> bytes:
    return tabular(pa.table({"id": ids}))


@pytest.mark.parametrize("impl", ["dir", "rest", "native"])
def test_any_implementation_can_be_served(tmp_path: Path, native_server: str, impl: str) -> None:
    root = native_server if impl == "rest" else str(tmp_path / "lake")
    config = ConnectionConfig.resolve({"root": root})
    with namespace_of(config, native=impl == "native") as (namespace, _), serving(namespace) as running:
        catalog = lancekeep.connect(running.uri)
        catalog.create_namespace("ns")
        catalog.write("ns.t", ROWS)
        assert rows(catalog, "ns.t") == [1, 2]
        assert lance.dataset(catalog.find_table("ns.t").location).count_rows() == 2
        keeps = lancekeep.RestNamespace(uri=running.uri).server.honours_keys()
        assert keeps == (impl == "dir")


class Forgetful(lancekeep.DirectoryNamespace):
    """A namespace whose methods in ``lost`` take effect once, and then fail."""

    lost: set[str]

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        lost = super().__getattribute__("__dict__").get("lost", ())
        if name not in lost:
            return found

        def forgotten(*arguments: Any) -> Any:
            self.lost.discard(name)
            found(*arguments)
            raise api_errors.ServiceUnavailableError("the connection to the store was lost")

        return forgotten


NEW = pa.table({"id": [2, 3], "name": ["b", "c"]})
VERSIONED: dict[str, dict[str, Any]] = {
    "insert_into_table": {"mode": "append"},
    "merge_insert_into_table": {"on": ["id"], "when_matched_update_all": True, "when_not_matched_insert_all": True},
    "update_table": {"updates": [["name", "'z'"]], "predicate": "id = 1"},
    "delete_from_table": {"predicate": "id = 1"},
    "restore_table": {"version": 1},
    "alter_table_add_columns": {"new_columns": [{"name": "twice", "expression": "id * 2"}]},
    "alter_table_alter_columns": {"alterations": [{"path": "name", "rename": "title"}]},
    "alter_table_drop_columns": {"columns": ["name"]},
    "update_table_schema_metadata": {"metadata": {"owner": "ann"}},
    "update_field_metadata": {"updates": [{"path": "id", "metadata": {"unit": "m"}}]},
    "create_table": {"mode": "overwrite"},
}


@pytest.mark.parametrize("operation", VERSIONED)
def test_a_version_whose_attempt_failed_after_its_commit_is_committed_once(tmp_path: Path, operation: str) -> None:
    namespace = Forgetful(
        **{"root": str(tmp_path / "lake"), "storage.fsync": "false", "commit_store": f"sqlite://{tmp_path}/c.db"}
    )
    with serving(namespace) as running:
        catalog = lancekeep.connect(running.uri)
        catalog.write("t", pa.table({"id": [1, 2], "name": ["a", "b"]}))
        catalog.write("t", pa.table({"id": [9], "name": ["i"]}), "append")
        stream_method = {
            "insert_into_table": "insert_stream",
            "merge_insert_into_table": "merge_insert_stream",
            "create_table": "create_table_stream",
        }
        namespace.lost = {stream_method.get(operation, operation)}
        data = tabular(NEW) if operation in stream_method else None
        request = {"id": ["t"], **VERSIONED[operation]}
        lancekeep.RestNamespace(uri=running.uri).server.call(operation, request, data=data)
        assert not namespace.lost
        assert running.asked.count(operation) == 2
        assert catalog.describe_table("t").version == 3


def tabular(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


# -- tags, branches, views and transactions ----------------------------------------------------------------------


def test_tags_and_branches_of_a_served_catalog(front: Front) -> None:
    catalog = lancekeep.connect(front.uri)
    catalog.write("t", ROWS)
    catalog.write("t", pa.table({"id": [3]}), "append")
    table = lancekeep.ObjectId.of("t")
    catalog.tags.create(table, "first", 1, None)
    catalog.tags.create(table, "moved", 1, None)
    catalog.tags.update(table, "moved", 2, None)
    with pytest.raises(lancekeep.TagAlreadyExists):
        catalog.tags.create(table, "first", 2, None)
    assert {name: tag.version for name, tag in catalog.tags.list(table).items()} == {"first": 1, "moved": 2}
    assert catalog.tags.get(table, "moved").version == 2
    location = catalog.find_table("t").location
    assert lance.dataset(location, version="first").count_rows() == 2
    assert catalog.open("t", tag="first").count_rows() == 2
    catalog.tags.delete(table, "first")
    with pytest.raises(lancekeep.TagNotFound):
        catalog.tags.get(table, "first")
    catalog.branches.create(table, "side", None, 1)
    assert catalog.branches.list(table)["side"].version == 1
    assert lance.dataset(location).checkout_version(("side", None)).count_rows() == 2
    catalog.branches.delete(table, "side")
    assert catalog.branches.list(table) == {}


def test_indexes_of_a_served_catalog(front: Front) -> None:
    catalog = lancekeep.connect(front.uri)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([float(n) for n in range(512)], pa.float32()), 2)
    catalog.write("t", pa.table({"id": range(256), "text": [f"word{n % 5}" for n in range(256)], "vector": vectors}))
    table = lancekeep.ObjectId.of("t")
    for column, kind, parameters in (
        ("id", "BTREE", {}),
        ("text", "FTS", {}),
        ("vector", "IVF_FLAT", {"num_partitions": 1, "distance_type": "cosine"}),
    ):
        index = NewIndex(column, kind, f"on_{column}", parameters)
        assert catalog.structure.create_index(table, index, None).transaction
    found = {index.name: list(index.columns) for index in catalog.structure.indexes(table, None, None)}
    assert found == {"on_id": ["id"], "on_text": ["text"], "on_vector": ["vector"]}
    plain = lance.dataset(catalog.find_table("t").location)
    assert {index.name for index in plain.describe_indices()} == found.keys()
    assert plain.to_table(full_text_query="word3").num_rows == 51
    catalog.write("t", plain.to_table().slice(0, 4), "append")
    stats = catalog.structure.index_statistics(table, "on_vector", None, None)
    assert (stats.distance, stats.indexed_rows, stats.unindexed_rows) == ("cosine", 256, 4)
    with pytest.raises(lancekeep.IndexAlreadyExists):
        catalog.structure.create_index(table, NewIndex("id", "BTREE", "on_id", {}), None)
    catalog.structure.drop_index(table, "on_id", None)
    with pytest.raises(lancekeep.IndexNotFound):
        catalog.structure.drop_index(table, "on_id", None)
    with pytest.raises(lancekeep.IndexNotFound):
        catalog.structure.index_statistics(table, "on_id", None, None)
    assert {index.name for index in catalog.structure.indexes(table, None, None)} == {"on_text", "on_vector"}


def test_views_of_a_served_catalog(front: Front) -> None:
    catalog = lancekeep.connect(front.uri)
    catalog.write("t", ROWS)
    view = lancekeep.ObjectId.of("v")
    definition = ViewDefinition.parse('{"table": ["t"], "filter": "id > 1"}', auto_refresh=False)
    assert catalog.views.create(view, definition, ROWS.schema).version == 1
    refreshed = catalog.views.refresh(view)
    assert (refreshed.how, refreshed.version) == (Refresh.FULL, 2)
    assert refreshed.source is not None
    assert refreshed.source.version == 1
    assert catalog.views.refresh(view).how is Refresh.NOTHING
    catalog.write("t", pa.table({"id": [3]}), "append")
    assert catalog.views.refresh(view).how is Refresh.APPEND
    assert sorted(lance.dataset(catalog.find_table("v").location).to_table()["id"].to_pylist()) == [2, 3]
    assert catalog.views.definition(view).query == definition.query
    with pytest.raises(lancekeep.Unsupported, match="worker of the server"):
        catalog.views.refresh_due()
    job = str(refreshed.job)
    record = services_of(catalog).transaction_records.describe(["v", job])
    assert (record.status, record.properties["version"]) == ("SUCCEEDED", "2")
    with pytest.raises(lancekeep.TransactionNotFound):
        services_of(catalog).transaction_records.describe(["v", "7c1b7c5e-2d5f-4a4c-9d0e-4f8f0a6f3f11"])


def test_a_transaction_of_unknown_outcome_is_settled_through_the_server(front: Front) -> None:
    catalog = lancekeep.connect(front.uri, properties={"rest.retry_seconds": "0.3"})
    catalog.write("t", ROWS)
    front.losses["create_table_version"] = front.losses["describe_table_version"] = 1000
    with pytest.raises(lancekeep.CommitUnknown) as unknown:
        catalog.write("t", pa.table({"id": [3]}), "append")
    front.losses.clear()
    assert services_of(catalog).transaction_records.settle([str(unknown.value.token)]).status == "SUCCEEDED"
    assert rows(catalog, "t") == [1, 2, 3]


def test_the_token_of_a_client_is_never_a_conflict_where_its_commit_succeeded(front: Front, tmp_path: Path) -> None:
    """The client cannot read its staged manifest, so the token lacks the digest to recognize the final one by."""
    catalog = lancekeep.connect(front.uri, properties={"rest.retry_seconds": "0.3"})
    catalog.write("t", ROWS)
    front.losses["create_table_version"] = front.losses["describe_table_version"] = 1000
    with pytest.raises(lancekeep.CommitUnknown) as unknown:
        catalog.write("t", pa.table({"id": [3]}), "append")
    front.losses.clear()
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db") as local:
        outcome = local.resolve(unknown.value.token)
        assert isinstance(outcome, lancekeep.Unknown)
        assert "through the server" in outcome.reason
    assert services_of(catalog).transaction_records.describe([str(unknown.value.token)]).status == "RUNNING"
    assert isinstance(catalog.resolve(unknown.value.token), lancekeep.Committed)
    assert rows(catalog, "t") == [1, 2, 3]


@pytest.mark.parametrize("tagged", [None, "side"])
def test_a_tag_protects_the_version_of_its_own_history_only(front: Front, tagged: str | None) -> None:
    catalog = lancekeep.connect(front.uri)
    catalog.write("t", ROWS)
    table = lancekeep.ObjectId.of("t")
    catalog.branches.create(table, "side", None, 1)
    catalog.write("t", pa.table({"id": [3]}), "append")
    catalog.commit_change("t", lambda dataset: (dataset.insert(ROWS, mode="append"), dataset)[1], branch="side")
    catalog.tags.create(table, "x", 1, tagged)
    namespace = lancekeep.RestNamespace(uri=front.uri)
    ranges: Any = [{"start_version": 1, "end_version": 2}]
    for branch in (None, "side"):
        request = api.BatchDeleteTableVersionsRequest(id=["t"], branch=branch, ranges=ranges)
        if branch == tagged:
            with pytest.raises(api_errors.LanceNamespaceError, match="a tag points at version 1"):
                namespace.batch_delete_table_versions(request)
        else:
            assert namespace.batch_delete_table_versions(request).deleted_count == 1
    read = lance.dataset(catalog.find_table("t").location)
    assert read.checkout_version("x").to_table()["id"].to_pylist() == [1, 2]
    assert read.count_rows() == 3
    assert read.checkout_version(("side", None)).count_rows() == 4


@pytest.mark.parametrize(
    ("given", "native", "message"),
    [
        ({"root": "/tmp/lake", "impl": "rest"}, False, "must be http"),
        ({"root": "http://127.0.0.1:1"}, True, "is the URI of a server"),
    ],
)
def test_a_root_that_does_not_fit_the_implementation_is_refused(
    given: dict[str, Any], native: bool, message: str
) -> None:
    config = ConnectionConfig.resolve(given)
    with pytest.raises(lancekeep.InvalidInput, match=message), namespace_of(config, native=native):
        pass
