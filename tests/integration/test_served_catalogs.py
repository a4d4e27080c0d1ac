"""`lancekeep serve` with several catalogs below one address: each apart from the others, and one of them broken."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any
from uuid import uuid4

import attrs
import httpx
import lance
import lance_namespace as api
import lancedb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance.namespace import RestNamespace
from rest_server import running

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.entrypoints import serving_catalogs
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.rest.task import SeveralTasks
from lancekeep.entrypoints.serving_catalogs import served_by
from servers import silent_server

METRIC = re.compile(r"^(lancekeep_\w+)\{(.*)\} (.*)$", re.MULTILINE)
ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
POLICY = """
[[grants]]
role = "{role}"
on = ""
principals = ["key:{name}"]
"""
QUOTAS = """
[[quotas]]
on = "few"
tables = 1

[[quotas]]
on = "small"
bytes = 0
"""


@attrs.frozen
class Served:
    """A server of catalogs.

    Attributes:
        uri: Its address.
        folder: The folder of its configuration.
        keys: The API keys of ada and bob.
    """

    uri: str
    folder: Path
    keys: dict[str, str] = attrs.field(repr=False)

    def of(self, name: str) -> str:
        return f"{self.uri}/catalogs/{name}"

    def ask(self, path: str, body: object = None, name: str = "ada", **headers: str) -> httpx.Response:
        method = "GET" if body is None else "POST"
        headers = {"x-api-key": self.keys[name], **headers}
        return httpx.request(method, self.uri + path, json=body, headers=headers, timeout=60)

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]


@attrs.frozen(kw_only=True)
class Running(Served):
    """Such a server in a process of its own.

    Attributes:
        process: The process.
        lines: The lines of its log that no test has read.
    """

    process: subprocess.Popen[str]
    lines: Queue[str] = attrs.field(factory=Queue, repr=False)

    def await_event(self, name: str, **fields: object) -> dict[str, Any]:
        while True:
            line = self.lines.get(timeout=60)
            found = json.loads(line) if line.startswith("{") else {"event": line}
            if name in found["event"] and fields.items() <= found.items():
                return found

    def read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.put(line)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0


def configure(folder: Path, more: str = "") -> dict[str, str]:
    """Write the configuration of two catalogs and further ones; return the keys of ada and bob.

    Ada may read prod and write dev; bob may write prod.
    """
    keys = {name: KeyFile(folder / "keys.json").create(name)[1] for name in ("ada", "bob")}
    (folder / "dev.toml").write_text(POLICY.format(role="write", name="ada") + QUOTAS)
    (folder / "prod.toml").write_text(POLICY.format(role="read", name="ada") + POLICY.format(role="write", name="bob"))
    (folder / "lancekeep.toml").write_text(
        f"""
[server]
port = 0
keys = "{folder}/keys.json"
audit = "{folder}/audit.jsonl"
policy = "{folder}/prod.toml"
log_format = "json"

[catalogs.prod]
root = "prod"
commit_store = "sqlite://{folder}/prod.db"
storage_options = {{ fsync = "false" }}

[catalogs.dev]
root = "dev"
commit_store = "conditional-put://"
storage_options = {{ fsync = "false" }}
[catalogs.dev.server]
policy = "{folder}/dev.toml"
events = true

{more}"""
    )
    return keys


def bad(folder: Path) -> str:
    """Return a catalog whose commit store can be opened once a directory is made."""
    return f'[catalogs.bad]\nroot = "bad"\ncommit_store = "sqlite://{folder}/missing/commits.db"\n'


@contextmanager
def serving(folder: Path, keys: dict[str, str]) -> Iterator[Served]:
    """Serve the configured catalogs in this process."""
    tasks = SeveralTasks.configured({}, environment={"LANCEKEEP_CONFIG": str(folder / "lancekeep.toml")})
    with served_by(tasks) as (app, _, _), running(app, tasks.settings) as uri:
        yield Served(uri, folder, keys)


@contextmanager
def started(folder: Path, keys: dict[str, str], *arguments: str) -> Iterator[Running]:
    """Run the command."""
    line = [sys.executable, "-m", "lancekeep", "serve", *arguments]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LANCEKEEP_")}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=folder, env=variables) as process:
        try:
            server = Running("", folder, keys, process=process)
            reader = Thread(target=server.read)
            reader.start()
            yield attrs.evolve(server, uri=server.await_event("serving")["url"])
        finally:
            process.kill()
            reader.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("catalogs")
    keys = configure(folder, bad(folder))
    with lancekeep.connect(str(folder / "prod"), commit_store=f"sqlite://{folder}/prod.db") as prod:
        prod.write("t", ROWS)
    with serving(folder, keys) as served:
        yield served


def create(server: Served, name: str, table: str, by: str = "ada", **headers: str) -> httpx.Response:
    return server.ask(f"/catalogs/{name}/v1/table/{table}/declare", {}, by, **headers)


def tables(server: Served, name: str, by: str = "ada") -> list[str]:
    answer = server.ask(f"/catalogs/{name}/v1/namespace/$/table/list", name=by)
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.json()["tables"]
    return found


def test_native_clients_reach_a_catalog_by_its_url_alone(server: Served) -> None:
    for slash in ("", "/"):
        properties = {"uri": server.of("dev") + slash, "header.x-api-key": server.keys["ada"]}
        native = RestNamespace(**properties)
        with_rows = f"native{len(slash)}"
        native.create_namespace(api.CreateNamespaceRequest(id=[with_rows]))
        lance.write_dataset(ROWS, namespace_client=native, table_id=[with_rows, "t"], mode="create")
        found = lance.dataset(namespace_client=native, table_id=[with_rows, "t"])
        assert found.to_table() == ROWS
        assert native.list_tables(api.ListTablesRequest(id=[with_rows])).tables == ["t"]
        database = lancedb.connect_namespace("rest", properties)
        assert database.open_table("t", namespace_path=[with_rows]).count_rows() == 3
    with lancekeep.connect(server.of("prod"), properties={"rest.api_key": server.keys["ada"]}) as prod:
        assert [str(each) for each in prod.list_tables()] == ["t"]
    assert not (server.folder / "prod" / "native0").exists()


def test_each_catalog_has_its_own_policy_entries_and_audit_lines(server: Served) -> None:
    answers = {
        (by, name): create(server, name, f"of_{by}", by).status_code
        for by in ("ada", "bob")
        for name in ("dev", "prod")
    }
    assert answers == {("ada", "dev"): 200, ("ada", "prod"): 403, ("bob", "dev"): 404, ("bob", "prod"): 200}
    assert "of_ada" in tables(server, "dev")
    assert "of_bob" not in tables(server, "dev")
    assert tables(server, "prod", "bob") == ["of_bob", "t"]
    hidden = server.ask("/catalogs/dev/v1/namespace/$/table/list", name="bob")
    assert hidden.status_code >= 400 or hidden.json()["tables"] == [], hidden.text
    about = [each for each in server.audited() if each.get("object") == ["of_ada"]]
    assert {(each["catalog"], each["decision"], each["principal"]) for each in about} == {
        ("dev", "allowed", "key:ada"),
        ("prod", "refused", "key:ada"),
    }
    shown = CliRunner().invoke(command, ["audit", str(server.folder / "audit.jsonl"), "--catalog", "prod", "--json"])
    assert {each["catalog"] for each in json.loads(shown.output)} == {"prod"}


def test_each_catalog_has_its_own_quotas(server: Served) -> None:
    for name, by, status in (("dev", "ada", 403), ("prod", "bob", 200)):
        for namespace in ("few", "small"):
            made = server.ask(f"/catalogs/{name}/v1/namespace/{namespace}/create", {}, by)
            assert made.status_code == 200, made.text
        assert [create(server, name, f"few${each}", by).status_code for each in "ab"] == [200, status]
    update = ("/catalogs/dev/v1/table/small$t/update", {"updates": [["n", "n + 1"]]})
    answers = (server.ask(*update).text for _ in range(1000))  # until the thread of the server has measured
    assert any("quota 2: 0 bytes for small. Its tables had 0 bytes" in answer for answer in answers)


def test_only_catalogs_that_record_events_have_them(server: Served) -> None:
    assert create(server, "dev", "recorded").status_code == 200
    found = server.ask("/catalogs/dev/v1/events?wait=30")
    assert found.status_code == 200, found.text
    without = server.ask("/catalogs/prod/v1/events")
    assert without.status_code >= 400, without.text


def test_a_catalog_that_does_not_open_stops_no_other(server: Served) -> None:
    found = server.ask("/catalogs/bad/v1/namespace/$/list")
    assert (found.status_code, found.json()["code"], found.headers["retry-after"]) == (503, 17, "10")
    assert str(server.folder) not in found.text
    with ThreadPoolExecutor(8) as callers:
        ready, *others = callers.map(httpx.get, [f"{server.uri}/readyz"] * 8)
    assert {each.json()["status"] for each in others} == {"degraded"}
    states = {name: each["status"] for name, each in ready.json()["catalogs"].items()}
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    assert states == {"bad": "unavailable", "dev": "ok", "prod": "ok"}
    own = {name: httpx.get(f"{server.of(name)}/readyz").status_code for name in states}
    assert own == {"bad": 503, "dev": 200, "prod": 200}
    [line] = [each for each in server.audited() if each.get("status") == 503]
    assert (line["catalog"], line["principal"]) == ("bad", "key:ada")


def test_the_example_asks_a_catalog_that_is_open(tmp_path: Path) -> None:
    (tmp_path / "lancekeep.toml").write_text(bad(tmp_path) + '[catalogs.good]\nroot = "good"\n')
    tasks = SeveralTasks.configured({}, environment={"LANCEKEEP_CONFIG": str(tmp_path / "lancekeep.toml")})
    with served_by(tasks) as (_, served, _):
        assert (list(served.catalogs), served.example) == (["bad", "good"], "good")


def test_the_command_tries_again_and_its_log_names_the_catalog(tmp_path: Path) -> None:
    keys = configure(tmp_path, bad(tmp_path))
    with started(tmp_path, keys) as server:
        assert server.ask("/catalogs/bad/v1/namespace/$/list").status_code == 503
        (tmp_path / "missing").mkdir()
        server.await_event("catalog opened", catalog="bad")
        assert server.ask("/catalogs/bad/v1/namespace/$/list").status_code == 200
        assert httpx.get(f"{server.uri}/readyz").json()["status"] == "ok"
        (tmp_path / "dev.toml").write_text(POLICY.format(role="read", name="ada"))
        assert create(server, "dev", "later").status_code == 403
        server.await_event("Read the policy", catalog="dev")  # a line of a library that does not know the name
        server.stop()


def test_homes_are_side_by_side_and_a_store_that_hangs_stops_no_other(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_catalogs, "PATIENCE", 0.1)
    home, _, query = postgres_url.partition("?")
    home = f"{home}?{query}&catalog=c{uuid4().hex}".replace("?&", "?")
    with silent_server() as (address, accepted):
        keys = configure(
            tmp_path,
            f"""
[catalogs.v1]
root = "v1"
impl = "postgres"
manifest_store = "{home}"
[catalogs.v1.server]
policy = "{tmp_path}/dev.toml"
[catalogs.metrics]
root = "metrics"
commit_store = "redis://{address}/0"
[catalogs.limited]
root = "limited"
commit_store = "conditional-put://"
[catalogs.limited.server]
rate = 1
burst = 1
""",
        )
        with serving(tmp_path, keys) as server:
            once = str(uuid4())
            for name in ("dev", "v1"):
                made = create(server, name, "same", **{"idempotency-key": once})
                again = create(server, name, "same", **{"idempotency-key": once})
                assert (made.status_code, again.text) == (200, made.text)
                assert tables(server, name) == ["same"]
                assert f"{tmp_path}/{name}/" in made.json()["location"]
            assert tables(server, "prod") == []
            assert server.ask("/catalogs/metrics/v1/namespace/$/list").status_code == 503
            assert httpx.get(f"{server.of('metrics')}/readyz").status_code == 503
            assert "lancekeep_catalog_open" in httpx.get(f"{server.uri}/metrics").text
            asked = [server.ask("/catalogs/limited/v1/namespace/$/list").status_code for _ in range(4)]
            assert 429 in asked
            assert tables(server, "dev") == ["same"]
        assert accepted  # the server has ended, while the store still has not answered


def test_metrics_of_all_catalogs_have_a_label(server: Served) -> None:
    create(server, "prod", "counted")
    found = httpx.get(f"{server.uri}/metrics").text
    values = {(name, labels): float(value) for name, labels, value in METRIC.findall(found)}
    assert values["lancekeep_requests_total", 'catalog="prod",operation="DeclareTable",status="403"'] >= 1
    assert values["lancekeep_catalog_open", 'catalog="bad"'] == 0
    assert values["lancekeep_catalog_open", 'catalog="prod"'] == 1
    types = re.findall("^# TYPE (.*?) ", found, re.MULTILINE)
    assert len(types) == len(set(types))  # a family that appears twice is refused by Prometheus
    for path in ("metrics", "%6detrics"):
        assert server.ask(f"/catalogs/prod/{path}").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/namespace/$/list", "/catalogs/", "/catalogs/none/v1/namespace/$/list", "/catalogs/PROD/readyz"),
        *("/catalogs/prod%2Fv1/namespace/$/list", "/%63atalogs/prod/v1/namespace/$/list", "/catalogs//prod/readyz"),
        *(
            "/catalogs/prod/catalogs/prod/v1/namespace/$/list",
            "/catalogs/%2e%2e/v1/table",
            "/catalogs/pr%C3%B6d/v1/table",
        ),
    ],
)
def test_other_paths_name_no_catalog(server: Served, path: str) -> None:
    assert server.ask(path).status_code == 404
    assert httpx.get(server.uri + path).status_code == 401


def test_a_target_that_is_no_path_is_refused(server: Served) -> None:
    host, _, port = server.uri.removeprefix("http://").partition(":")
    for key, status in ((server.keys["ada"], b"404"), ("wrong", b"401")):
        with socket.create_connection((host, int(port))) as connection:
            head = f"OPTIONS * HTTP/1.1\r\nhost: {host}\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.makefile("rb").readline().split()[1] == status


def test_an_encoded_path_is_no_way_around_authentication(server: Served) -> None:
    for path in ("/catalogs/prod/%2e%2e/dev/v1/table", "/catalogs/prod/v1/%74able", "/catalogs/prod//v1//table"):
        assert httpx.get(server.uri + path).status_code == 401
    assert httpx.get(f"{server.of('prod')}/v1/table", headers={"x-api-key": "wrong"}).status_code == 401


def test_the_pages_link_within_their_catalog(server: Served) -> None:
    origin = {"origin": server.uri}
    with httpx.Client(base_url=server.uri, follow_redirects=True) as browser:
        form = browser.get("/catalogs/prod/t/t")
        assert 'action="/catalogs/prod/sign-in"' in form.text
        page = browser.post(
            "/catalogs/prod/sign-in",
            data={"credential": server.keys["ada"], "next": "/catalogs/prod/t/t"},
            headers=origin,
        )
        assert str(page.url) == f"{server.uri}/catalogs/prod/t/t"
        todo, seen = ["/", "/catalogs/prod/t/t"], set[str]()
        while todo:
            path = todo.pop()
            seen.add(path.partition("?")[0])
            answer = browser.get(path)
            assert answer.status_code == 200, (path, answer.text)
            links = [each.replace("&amp;", "&") for each in re.findall('(?:href|src|action)="(/[^"]*)"', answer.text)]
            forms = set(re.findall('action="(/[^"]*)"', answer.text))
            assert all(each == "/" or each.startswith("/catalogs/") or path == "/" for each in links), (path, links)
            todo += {each for each in links if each.partition("?")[0] not in seen and each not in forms}
            seen |= {each.partition("?")[0] for each in links}
        assert {"/catalogs/prod/t/t/history", "/catalogs/prod/api", "/catalogs/dev/"} <= seen
        assert "/catalogs/bad/" not in seen
        out = browser.post("/catalogs/dev/sign-out", headers=origin)
        assert str(out.url) == f"{server.uri}/catalogs/dev/sign-in"
        assert "Sign in" in browser.get("/").text


def test_workers_serve_all_catalogs_and_a_reload_reads_them_again(tmp_path: Path) -> None:
    with silent_server() as (address, _):
        keys = configure(tmp_path, f'[catalogs.hung]\nroot = "hung"\ncommit_store = "redis://{address}/0"\n')
        with started(tmp_path, keys, "--workers", "2") as server:
            for name in ("dev", "prod"):
                assert tables(server, name) == []
            found = httpx.get(f"{server.uri}/metrics").text
            assert 'lancekeep_catalog_open{catalog="prod"} 2.0' in found
            assert 'lancekeep_catalog_open{catalog="hung"} 0.0' in found
            assert create(server, "prod", "later").status_code == 403
            (tmp_path / "prod.toml").write_text(POLICY.format(role="write", name="ada"))
            server.process.send_signal(signal.SIGHUP)
            server.await_event("reloaded")
            assert create(server, "prod", "later").status_code == 200
            server.stop()


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        *((f'[catalogs."{name}"]\nroot = "x"', (), "cannot be served below") for name in ("a b", "..", "é", "a/b", "")),
        ('[catalogs.a]\nroot = "x"\n[catalogs.b]\nroot = "./x"', (), "have one root"),
        ('[catalogs.a]\nroot = "x"\n[catalogs.a.server]\nport = 1', (), "all catalogs of a server share 'port'"),
        ('[catalogs.a]\nroot = "x"\n[catalogs.a.server]\nports = 1', (), "the server has no setting 'ports'"),
        ('[catalogs.a]\nroot = "x"\n[catalogs.a.server]\npolicy = "p"', (), "need to know the caller"),
        ('[catalogs.a]\nroot = "x"', ("--mode", "v2"), "--mode concerns one catalog"),
        ('[catalogs.a]\nroot = "x"', ("--commit-store", "conditional-put://"), "--commit-store concerns one catalog"),
        ('[catalogs.a]\nroot = "x"\n[[event_files]]\nname = "b"\nurl = "files"', (), "do not say"),
        ("", (), "no catalog is named"),
    ],
)
def test_a_wrong_configuration_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "lancekeep.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANCEKEEP_CONFIG", str(tmp_path / "lancekeep.toml"))
    result = CliRunner().invoke(command, ["serve", "--port", "0", *arguments])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split()), result.output
    assert [each.name for each in tmp_path.iterdir()] == ["lancekeep.toml"]
