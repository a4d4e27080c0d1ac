"""The audit log of a server: who asked for what, what was decided, and what came of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.application.catalog import directory_of
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import LONGEST
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.page.app import SEGMENTS
from lancekeep.entrypoints.page.serving import page_of
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.audit import AuditLog
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

ARROW = "application/vnd.apache.arrow.stream"
POLICY = """
[[grants]]
role = "admin"
on = "ml"
principals = ["key:ada"]

[[grants]]
role = "read"
on = "ml"
principals = ["key:bob"]
"""


@attrs.frozen
class Site:
    """A server with an audit log."""

    client: TestClient
    keys: dict[str, str]
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "audit.jsonl"

    def ask(self, who: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        answer: httpx.Response = self.client.post(
            path, json={} if body is None else body, headers={"x-api-key": self.keys.get(who, who), **headers}
        )
        return answer

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    file = KeyFile(tmp_path / "keys.json")
    keys = {name: file.create(name)[1] for name in ("ada", "bob")}
    (tmp_path / "policy.toml").write_text(POLICY)
    settings = ServerSettings(log_level="error", keys=str(file.path), policy=str(tmp_path / "policy.toml"))
    audit = AuditLog(tmp_path / "audit.jsonl")
    with lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://") as catalog:
        for name in ("ml", "secret"):
            catalog.create_namespace(name)
            catalog.write(f"{name}.t", pa.table({"id": [1]}))
        security = security_of(settings, {}, directory_of(catalog).versions.base_paths, audit.reloaded)
        others = dict.fromkeys(SEGMENTS, page_of(catalog, settings, security))
        app = create_app(
            CatalogNamespace(catalog),
            settings,
            around=security.around,
            middleware=security.middleware,
            others=others,
            audit=audit,
        )
        with TestClient(app) as client:
            yield Site(client, keys, tmp_path)


def test_a_line_says_who_did_what_and_what_came_of_it(site: Site) -> None:
    answer = site.ask("ada", "/v1/table/ml$t/update", {"updates": [["id", "id + 1"]]}, **{"x-request-id": "one"})
    assert answer.status_code == 200, answer.text
    [line] = site.lines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*\+00:00", line.pop("time"))
    assert line == {
        "event": "request",
        "request_id": "one",
        "principal": "key:ada",
        "address": "testclient",
        "operation": "UpdateTable",
        "object": ["ml", "t"],
        "decision": "allowed",
        "rights": ["change", "read"],
        "status": 200,
        "version": answer.json()["version"],
        "transaction_id": answer.json()["transaction_id"],
    }


@pytest.mark.parametrize(
    ("who", "path", "decision", "status", "reason"),
    [
        ("bob", "/v1/table/ml$t/drop", "refused", 403, "key:bob needs the right drop (role admin) on ml.t"),
        ("bob", "/v1/table/secret$t/describe", "refused", 404, "key:bob has no right on secret.t; describe is needed"),
        ("bob", "/v1/table/ml$none/describe", "allowed", 404, "does not exist"),
        ("lk_0", "/v1/table/ml$t/describe", "unauthenticated", 401, "The credential is not valid"),
        ("bob", "/v1/table/ml$t/describe?with_table_uri=maybe", "invalid", 400, "Invalid input"),
        ("bob", "/v1/table/a%00b/describe", "invalid", 400, "Invalid input"),
    ],
)
def test_each_decision_has_its_reason(site: Site, who: str, path: str, decision: str, status: int, reason: str) -> None:
    assert site.ask(who, path).status_code == status
    [line] = site.lines()
    assert (line["decision"], line["status"]) == (decision, status)
    assert reason in line["reason"]
    assert line["operation"] == ("DropTable" if "drop" in path else "DescribeTable")
    assert line["principal"] == (None if decision == "unauthenticated" else f"key:{who}")


def test_a_request_to_several_objects_names_them(site: Site) -> None:
    body = {"new_table_name": "u", "new_namespace_id": ["ml"]}
    assert site.ask("ada", "/v1/table/ml$t/rename", body).status_code == 200
    [line] = site.lines()
    assert (line["object"], line["others"]) == (["ml", "t"], [["ml", "u"]])


def test_a_batch_names_its_members_and_what_was_refused(site: Site) -> None:
    path = "/lancekeep/v1/table/batch-describe"
    assert site.ask("bob", path, {"ids": [["ml", "t"], ["ml", "none"], ["a\0b"]]}).status_code == 200
    assert site.ask("bob", path, {"ids": [["ml", "t"], ["secret", "t"]]}).status_code == 200
    allowed, refused = site.lines()
    assert (allowed["operation"], allowed["object"], allowed["decision"]) == ("DescribeTables", [], "allowed")
    assert allowed["others"] == [["ml", "none"], ["ml", "t"]]
    assert [(*each["object"], each["status"]) for each in allowed["failures"]] == [("ml", "none", 404), ("a\0b", 400)]
    assert (refused["decision"], refused["status"]) == ("refused", 200)
    reason = "key:bob has no right on secret.t; describe is needed"
    assert refused["failures"] == [{"object": ["secret", "t"], "status": 404, "reason": reason}]


def test_hidden_tables_of_the_page_are_refused(site: Site) -> None:
    def sign_in(credential: str) -> httpx.Response:
        form = {"credential": credential, "next": "/t/secret.t"}
        answer: httpx.Response = site.client.post("/sign-in", data=form, headers={"origin": "http://testserver"})
        return answer

    assert sign_in("lk_0").status_code == 401
    assert sign_in(site.keys["bob"]).status_code == 404
    found = [(line["operation"], line["principal"], line["decision"]) for line in site.lines()]
    assert found == [
        ("page session", None, "unauthenticated"),
        ("page session", "key:bob", "allowed"),
        ("page /t/{id}", "key:bob", "refused"),
    ]
    assert site.lines()[-1]["object"] == ["secret", "t"]
    assert site.lines()[-1]["reason"] == "key:bob has no right on secret.t; read is needed"


def test_changes_of_keys_and_grants_have_lines(site: Site) -> None:
    (site.folder / "policy.toml").write_text(POLICY.replace("read", "owner"))
    site.ask("bob", "/v1/table/ml$t/describe")
    (site.folder / "policy.toml").write_text(POLICY.replace("ml", "other"))
    site.ask("bob", "/v1/table/ml$t/describe")
    KeyFile(site.folder / "keys.json").create("eve")
    site.ask("bob", "/v1/table/ml$t/describe")
    reloads = [line for line in site.lines() if line["event"] == "reload"]
    assert [(Path(line["file"]).name, line["outcome"]) for line in reloads] == [
        ("policy.toml", "refused"),
        ("policy.toml", "read"),
        ("keys.json", "read"),
    ]
    assert "choose read, write, admin, or give rights" in reloads[0]["reason"]


def test_lines_hold_no_credential_and_no_row(site: Site) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"id": pa.int64(), "name": pa.string()})) as writer:
        writer.write(pa.record_batch({"id": [1], "name": ["classified"]}))
    headers = {"x-api-key": site.keys["ada"], "content-type": ARROW}
    created = site.client.post("/v1/table/ml$new/create", content=sink.getvalue().to_pybytes(), headers=headers)
    assert created.status_code == 200
    where = {"k": 1, "vector": {}, "filter": "name = 'classified'"}
    site.ask("ada", "/v1/table/ml$new/query", where)
    site.client.post("/v1/table/ml$t/describe", headers={"authorization": "Bearer hunter2"})
    text = site.file.read_text()
    assert len(site.lines()) == 3
    for secret in (site.keys["ada"], "classified", "hunter2"):
        assert secret not in text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("query", {"k": 1, "vector": {}, "filter": "id === 'classified'"}),
        ("query", {"k": 1, "vector": {}, "filter": "cast('classified' as int) = id"}),
        ("query", {"k": 1, "vector": {}, "filter": "classified = id"}),
        ("delete", {"predicate": "cast(concat('classified', cast(id as string)) as int) = 1"}),
        ("update", {"updates": [["id", "'classified'"]]}),
        ("create_index", {"column": "id", "index_type": "classified"}),
        ("describe?with_table_uri=classified", {}),
    ],
)
def test_reason_quotes_nothing_of_a_request(site: Site, path: str, body: object) -> None:
    assert site.ask("ada", f"/v1/table/ml$t/{path}", body).status_code in (400, 404)
    [line] = site.lines()
    assert line["object"] == ["ml", "t"]
    assert "classified" not in json.dumps(line)


def test_lines_obey_the_delimiter_and_are_ascii(site: Site) -> None:
    site.ask("lk_0", "/v1/table/ml.t%C2%9B/describe?delimiter=.")
    [line] = site.lines()
    assert line["object"] == ["ml", "t\x9b"]
    assert site.file.read_bytes().isascii()


def test_names_that_no_object_has_are_cut(site: Site) -> None:
    site.ask("ada", "/v1/table/" + "n" * 20_000 + "/describe")
    site.ask("ada", "/lancekeep/v1/table/batch-describe", {"ids": [["n" * 1_000_000], ["ml"] * 1000]})
    named = [line["object"] for line in site.lines()]
    assert [len(names[0]) for names in named if names] == [LONGEST + 1]
    assert site.file.stat().st_size < 20_000


def test_line_after_an_incomplete_one_is_whole(site: Site) -> None:
    site.file.write_text('{"time": "2026-')
    site.ask("ada", "/v1/table/ml$t/describe")
    assert [json.loads(line)["status"] for line in site.file.read_text().splitlines()[1:]] == [200]


def test_no_write_waits_for_the_reader_of_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidInput, match="cannot write the audit log"):
        AuditLog(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    audit = AuditLog(pipe)
    for _ in range(3):
        audit.write("request", {"reason": "x" * 60_000})
    os.close(reader)
    assert audit.problem


def test_a_file_that_was_moved_away_is_created_again(site: Site) -> None:
    site.ask("ada", "/v1/table/ml$t/describe")
    site.file.rename(site.folder / "audit.1")
    site.ask("ada", "/v1/table/ml$t/exists")
    assert [line["operation"] for line in site.lines()] == ["TableExists"]
    assert site.file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_makes_the_server_unready(site: Site) -> None:
    site.file.unlink()
    site.file.mkdir()
    assert site.ask("ada", "/v1/table/ml$t/describe").status_code == 200
    refused = site.client.get("/readyz")
    assert (refused.status_code, refused.json()["checks"]["audit log"]) == (503, "unavailable")
    site.file.rmdir()
    assert site.client.get("/readyz").status_code == 200
    site.ask("ada", "/v1/table/ml$t/describe")
    assert [line["event"] for line in site.lines()] == ["resumed", "request"]


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot write the audit log"):
        AuditLog(tmp_path)


def test_the_command_filters_lines(site: Site) -> None:
    for who, path in (("ada", "ml$t/describe"), ("bob", "ml$t/drop"), ("bob", "secret$t/describe"), ("x", "ml/drop")):
        site.ask(who, f"/v1/table/{path}")
    with site.file.open("a") as file:
        file.write('{"time": "2026-')

    def found(*options: str) -> list[tuple[Any, Any]]:
        result = CliRunner().invoke(command, ["audit", str(site.file), "--json", *options], obj=lancekeep)
        assert result.exit_code == 0, result.output
        assert "Skipped 1 incomplete lines; the first is line 5." in result.stderr
        return [(line["principal"], line["operation"]) for line in json.loads(result.stdout)]

    assert found("--decision", "refused") == [("key:bob", "DropTable"), ("key:bob", "DescribeTable")]
    assert found("--principal", "key:a*") == [("key:ada", "DescribeTable")]
    assert found("--object", "secret") == [("key:bob", "DescribeTable")]
    assert found("--operation", "Drop*", "-n", "1") == [(None, "DropTable")]
    assert len(found("--since", "1h")) == 4
    table = CliRunner().invoke(command, ["audit", str(site.file)], obj=lancekeep, env={"COLUMNS": "200"})
    assert "unauthenticated" in table.output
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", table.output)
