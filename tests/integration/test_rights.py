"""Rights through HTTP: a request needs exactly the rights of its row, and a refused one writes nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import lance_namespace as api
import pyarrow as pa
import pytest
from redis_servers import poll
from rest_server import running

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.application.catalog import directory_of
from lancekeep.domain.rights import INCLUDED, Right
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.page.app import SEGMENTS
from lancekeep.entrypoints.page.serving import page_of
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.audit import AuditLog
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

ARROW = "application/vnd.apache.arrow.stream"
ROWS = pa.table({"id": [1, 2]})
SCHEMA = base64.b64encode(ROWS.schema.serialize().to_pybytes()).decode()
PASSES = -1
"""The status of a request that passes authorization, and is not complete enough to succeed."""


def stream(table: pa.Table = ROWS) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@attrs.frozen
class Ask:
    """A request with the rights that it needs, in the order of their checks.

    Attributes:
        path: The path with its query; a path that begins with ``GET `` is read.
        rights: The rights.
        body: The body as JSON; bytes are Arrow.
        status: The status of the answer.
        on: The object on which the rights are needed.
    """

    path: str
    rights: str
    body: Any = None
    status: int = 200
    on: str = "ml"


T = "/v1/table/ml$t"
VIEW = {"kind": "query", "output_schema": SCHEMA, "source_query": json.dumps({"table": ["ml", "t"]})}
MERGE = f"{T}/merge_insert?on=id&when_not_matched_insert_all=true"
SETTLED = {"actions": [{"setStatusAction": {"status": "SUCCEEDED"}}]}
STAGED = {"version": 99, "manifest_path": "x"}
ASKS = (
    Ask("GET /v1/namespace/ml/list", "list"),
    Ask("GET /v1/namespace/ml/table/list", "list"),
    Ask("GET /v1/table", "list", on=""),
    Ask("GET /lancekeep/v1/object/ml/dropped", "list"),
    Ask("/v1/namespace/ml/describe", "describe"),
    Ask("/v1/namespace/ml/exists", "describe"),
    Ask(f"{T}/describe", "describe"),
    Ask("/GetTable", "describe", {"id": ["ml", "t"]}),
    Ask(f"{T}/exists", "describe"),
    Ask(f"{T}/version/list", "describe"),
    Ask(f"{T}/version/describe", "describe"),
    Ask(f"{T}/stats", "describe"),
    Ask(f"{T}/index/list", "describe"),
    Ask(f"{T}/tags/list", "describe"),
    Ask(f"{T}/branches/list", "describe"),
    Ask("/v1/transaction/ml$none/describe", "describe", status=PASSES, on=""),
    Ask(f"{T}/query", "read", {"k": 1, "vector": {}}),
    Ask(f"{T}/count_rows", "read"),
    Ask(f"{T}/explain_plan", "read", {"query": {"k": 1, "vector": {}}}),
    Ask(f"{T}/analyze_plan", "read", {"k": 1, "vector": {}}),
    Ask(f"{T}/insert", "append", stream()),
    Ask(MERGE, "append read", stream()),
    Ask(f"{MERGE}&when_matched_update_all=true", "append change read", stream()),
    Ask(f"{T}/update", "change read", {"updates": [["id", "id + 1"]]}),
    Ask(f"{T}/delete", "change read", {"predicate": "id > 100"}),
    Ask(f"{T}/insert?mode=Overwrite", "append change schema", stream()),
    Ask(f"{T}/add_columns", "schema read", {"new_columns": [{"name": "x", "expression": "id * 2"}]}),
    Ask(f"{T}/alter_columns", "schema read", {"alterations": [{"path": "x", "rename": "y"}]}),
    Ask(f"{T}/backfill_column", "schema read", {"column": "y"}, PASSES),
    Ask(f"{T}/schema_metadata/update", "schema", {"a": "1"}),
    Ask(f"{T}/update_field_metadata", "schema", {"updates": [{"path": "y", "metadata": {"a": "1"}}]}, PASSES),
    Ask(f"{T}/drop_columns", "schema", {"columns": ["y"]}),
    Ask(f"{T}/create_scalar_index", "index", {"column": "id", "index_type": "BTREE", "name": "i"}),
    Ask(f"{T}/create_index", "index", {"column": "id", "index_type": "BTREE", "name": "j"}, PASSES),
    Ask(f"{T}/index/i/stats", "describe"),
    Ask(f"{T}/index/i/drop", "index"),
    Ask(f"{T}/tags/create", "tag", {"tag": "one", "version": 1}),
    Ask(f"{T}/tags/version", "describe", {"tag": "one"}),
    Ask(f"{T}/tags/update", "tag", {"tag": "one", "version": 2}),
    Ask(f"{T}/tags/delete", "tag", {"tag": "one"}),
    Ask(f"{T}/branches/create", "branch", {"name": "b", "from_version": 1}),
    Ask(f"{T}/branches/delete", "branch", {"name": "b"}),
    Ask(f"{T}/restore", "restore", {"version": 1}),
    Ask(f"{T}/version/create", "commit", STAGED, PASSES),
    Ask("/v1/table/version/batch-create", "commit", {"entries": [{"id": ["ml", "t"], **STAGED}]}, PASSES),
    Ask(
        "/v1/table/batch-commit",
        "commit",
        {"operations": [{"create_table_version": {"id": ["ml", "t"], **STAGED}}]},
        PASSES,
    ),
    Ask("/v1/table/batch-commit", "create", {"operations": [{"declare_table": {"id": ["ml", "batched"]}}]}),
    Ask("/v1/table/batch-commit", "drop", {"operations": [{"deregister_table": {"id": ["ml", "batched"]}}]}),
    Ask(
        "/v1/table/batch-commit",
        "purge",
        {"operations": [{"delete_table_versions": {"id": ["ml", "t"], "ranges": []}}]},
        PASSES,
    ),
    Ask("/v1/namespace/ml$new/create", "create"),
    Ask("/v1/namespace/ml$new/create", "create describe", {"mode": "exist_ok"}),
    Ask("/v1/namespace/ml$new/create", "create drop", {"mode": "Overwrite"}),
    Ask("/v1/table/ml$made/create", "create", stream()),
    Ask("/v1/table/ml$made/create?mode=exist_ok", "create describe", stream()),
    Ask("/v1/table/ml$made/create?mode=overwrite", "create append change schema properties maintain", stream()),
    Ask("/v1/table/ml$declared/declare", "create"),
    Ask("/CreateEmptyTable", "create", {"id": ["ml", "empty"]}),
    Ask("/CreateEmptyTable", "create describe", {"id": ["ml", "empty"], "mode": "exist_ok"}),
    Ask("/v1/table/ml$placed/declare", "create administer", {"location": "placed.lance"}, PASSES, ""),
    Ask("/v1/table/ml$placed/register", "create administer", {"location": "ml$t"}, PASSES, ""),
    Ask(
        "/v1/table/ml$placed/register",
        "create drop administer",
        {"location": "ml$t", "mode": "overwrite"},
        PASSES,
        "",
    ),
    Ask("/v1/materialized_view/ml$v/create", "create read", VIEW, 201),
    Ask("/v1/materialized_view/ml$v/refresh", "maintain", status=202),
    Ask("/v1/materialized_view/ml$v/refresh", "maintain restore", {"src_version": 1}, PASSES),
    Ask("/AlterNamespace", "properties", {"id": ["ml"], "properties": {"a": "1"}}),
    Ask("/AlterTable", "properties", {"id": ["ml", "t"], "properties": {"a": "1"}}),
    Ask("/AlterTable", "properties maintain", {"id": ["ml", "t"], "properties": {"lancekeep.undrop": "0"}}),
    Ask("/AlterNamespace", "properties maintain", {"id": ["ml"], "properties": {"lancekeep.x": None}}, PASSES),
    Ask("/lancekeep/v1/object/ml$t/protect", "protect"),
    Ask("/lancekeep/v1/object/ml$t/unprotect", "protect"),
    Ask(f"{T}/version/delete", "purge", {"ranges": [{"start_version": 1, "end_version": 2}]}),
    Ask("/v1/table/ml$made/rename", "drop create", {"new_table_name": "renamed"}),
    Ask("/v1/table/ml$renamed/drop", "drop"),
    Ask("/lancekeep/v1/table/ml$renamed/undrop", "drop create"),
    Ask("/DropTable", "drop purge", {"id": ["ml", "renamed"], "context": {"lancekeep.keep": "1h"}}),
    Ask("/lancekeep/v1/table/ml$renamed/purge", "purge administer", {"force": True}, PASSES, ""),
    Ask("/lancekeep/v1/table/ml$renamed/purge", "purge", status=PASSES),
    Ask("/v1/table/ml$declared/deregister", "drop"),
    Ask("/v1/namespace/ml$new/drop", "drop"),
    Ask("/DropNamespace", "drop purge", {"id": ["ml", "new"], "context": {"lancekeep.keep": "0"}}, PASSES),
    Ask(
        "/v1/transaction/ml$none/alter",
        "administer",
        SETTLED,
        PASSES,
        "",
    ),
)


def grant(name: str, rights: list[str], on: str) -> str:
    return f"[[grants]]\nrights = {json.dumps(rights)}\non = {json.dumps(on)}\nprincipals = [{json.dumps(name)}]\n"


def all_but(right: Right) -> list[str]:
    """Return all rights but one, and those that include it."""
    return [each for each in Right if each is not right and right not in INCLUDED.get(each, ())]


@attrs.define
class Site:
    """A server with its catalog and its callers, through HTTP."""

    folder: Path
    catalog: lancekeep.Catalog
    keys: KeyFile
    secrets: dict[str, str] = attrs.field(factory=dict)
    uri: str = ""

    def key(self, name: str) -> str:
        if name not in self.secrets:
            self.secrets[name] = self.keys.create(name)[1]
        return self.secrets[name]

    def permit(self, *grants: str) -> None:
        (self.folder / "policy.toml").write_text("".join(grants))

    def send(self, client: httpx.Client, who: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"x-api-key": self.key(who)}
        if path.startswith("GET "):
            return client.get(self.uri + path.removeprefix("GET "), headers=headers)
        if isinstance(body, bytes):
            return client.post(self.uri + path, content=body, headers={**headers, "content-type": ARROW})
        return client.post(self.uri + path, json={} if body is None else body, headers=headers)

    def stored(self) -> dict[str, tuple[int, int]]:
        """Return what is stored: each file with its size and its time.

        A commit removes its staged manifest after its answer.
        """
        poll(lambda: not list((self.folder / "lake").rglob("*.manifest-*")))
        found = {}
        for path in (self.folder / "lake").rglob("*"):
            status = path.stat()
            found[str(path)] = (status.st_size, status.st_mtime_ns)
        return found

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Site, httpx.Client]]:
    (folder / "policy.toml").write_text("")
    settings = ServerSettings(log_level="error", keys=str(folder / "keys.json"), policy=str(folder / "policy.toml"))
    audit = AuditLog(folder / "audit.jsonl")
    with lancekeep.connect(str(folder / "lake"), commit_store="conditional-put://") as catalog:
        catalog.initialize()
        site = Site(folder, catalog, KeyFile(folder / "keys.json"))
        site.key("root")
        for name in ("ml", "other"):
            catalog.create_namespace(name)
            catalog.write(f"{name}.t", ROWS)
        security = security_of(settings, {}, directory_of(catalog).versions.base_paths, audit.reloaded)
        app = create_app(
            CatalogNamespace(catalog),
            settings,
            around=security.around,
            middleware=security.middleware,
            others=dict.fromkeys(SEGMENTS, page_of(catalog, settings, security)),
            audit=audit,
        )
        with running(app) as site.uri, httpx.Client() as client:
            yield site, client


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Site, httpx.Client]]:
    with serving(tmp_path) as found:
        yield found


def test_each_request_needs_exactly_its_rights(served: tuple[Site, httpx.Client]) -> None:
    site, client = served
    lacking: dict[Right, str] = {right: f"but-{right}" for right in Right if right is not Right.CONNECT}
    exact = {at: f"exact-{at}" for at, _ in enumerate(ASKS)}
    for name in (*lacking.values(), *exact.values()):
        site.key(name)
    site.permit(
        *(grant(f"key:{name}", all_but(right), "") for right, name in lacking.items()),
        *(grant(f"key:{exact[at]}", ask.rights.split(), ask.on) for at, ask in enumerate(ASKS)),
    )
    for at, ask in enumerate(ASKS):
        stored = site.stored()
        for right in map(Right, ask.rights.split()):
            answer = site.send(client, lacking[right], ask.path, ask.body)
            assert (answer.status_code, answer.json()["code"]) == (403, 15), (ask, right, answer.text)
            assert f"needs the right {right} (role " in answer.text, (ask, right, answer.text)
            [line] = site.audited()[-1:]
            assert (line["decision"], line["rights"]) == ("refused", ask.rights.split())
            assert f"the right {right} " in line["reason"]
        assert site.stored() == stored, ask
        answer = site.send(client, exact[at], ask.path, ask.body)
        if ask.status == PASSES:
            assert answer.status_code not in (401, 403, 500), (ask, answer.text)
        else:
            assert answer.status_code == ask.status, (ask, answer.text)
        assert site.audited()[-1]["decision"] != "refused", ask
    asked = {line["operation"] for line in site.audited() if line["event"] == "request"}
    assert asked >= {"CreateTableVersion", "AlterTransaction", "BatchCommitTables", "PurgeTable"}


def test_a_caller_with_one_right_has_no_other(served: tuple[Site, httpx.Client]) -> None:
    site, client = served
    for right in Right:
        site.key(right)
    site.permit(*(grant(f"key:{right}", [right], "") for right in Right))
    stored = site.stored()
    different = {ask.rights: ask for ask in ASKS}.values()
    for right in Right:
        held = {right, *INCLUDED.get(right, ())}
        for ask in different:
            missing = [each for each in ask.rights.split() if each not in held]
            if missing:
                answer = site.send(client, right, ask.path, ask.body)
                assert (answer.status_code, answer.json()["code"]) == (403, 15), (right, ask, answer.text)
                assert f"needs the right {missing[0]} " in answer.text, (right, ask, answer.text)
    assert site.stored() == stored
    assert site.send(client, "connect", "/ListOperations").status_code == 200


def test_a_team_appends_and_does_nothing_else(served: tuple[Site, httpx.Client]) -> None:
    site, client = served
    site.permit(
        grant("key:team", ["describe", "append"], "ml"),
        grant("key:tagger", ["describe", "CreateTableTag"], "ml"),
        grant("key:reader", ["describe", "read"], "ml"),
    )
    key = site.key("team")
    with lancekeep.connect(site.uri, api_key=key) as catalog:  # lists nothing, and connects
        assert catalog.describe_table("ml.t").uri
        stored = site.stored()
        with pytest.raises(lancekeep.AccessDenied):
            catalog.drop_table("ml.t")
        with pytest.raises(lancekeep.AccessDenied):
            catalog.list_tables("ml")
        assert site.stored() == stored
    namespace = lancekeep.RestNamespace(uri=site.uri, api_key=key)
    namespace.insert_into_table(api.InsertIntoTableRequest(id=["ml", "t"]), stream())
    assert site.catalog.open("ml.t").count_rows() == 4

    for who, path, body, status in (
        ("team", "/v1/table/other$t/insert", stream(), 404),
        ("team", "GET /v1/namespace/other/table/list", None, 404),
        ("tagger", f"{T}/tags/create", {"tag": "x", "version": 1}, 200),
        ("tagger", f"{T}/tags/delete", {"tag": "x"}, 403),
        ("reader", f"{T}/count_rows", None, 200),
        ("reader", "GET /v1/namespace/ml/table/list", None, 403),
        ("reader", "GET /v1/table", None, 403),
        ("reader", "GET /lancekeep/v1/object/ml/dropped", None, 403),
    ):
        assert site.send(client, who, path, body).status_code == status, (who, path)
    batch = {"ids": [["ml", "t"], ["other", "t"]]}
    results = site.send(client, "team", "/lancekeep/v1/table/batch-describe", batch).json()["results"]
    assert [each.get("error", {}).get("code") for each in results] == [None, 4]


def test_a_batch_needs_the_right_of_each_member(served: tuple[Site, httpx.Client]) -> None:
    site, client = served
    site.permit(grant("key:maker", ["create"], "ml"))
    operations = [{"declare_table": {"id": ["ml", "new"]}}, {"deregister_table": {"id": ["ml", "t"]}}]
    stored = site.stored()
    answer = site.send(client, "maker", "/v1/table/batch-commit", {"operations": operations})
    assert (answer.status_code, "needs the right drop" in answer.text) == (403, True)
    results = site.send(client, "maker", "/lancekeep/v1/table/batch-describe", {"ids": [["ml", "t"]]}).json()["results"]
    assert "needs the right describe" in results[0]["error"]["error"]
    assert site.stored() == stored


def test_a_listing_shows_where_the_right_list_holds(served: tuple[Site, httpx.Client]) -> None:
    site, client = served
    for name in ("a", "b", "c"):
        site.catalog.write(f"ml.{name}", ROWS)
    site.permit(
        grant("key:ada", ["read"], "ml"), grant("key:ada", ["list"], "ml.a"), grant("key:ada", ["ListTables"], "ml.b")
    )
    assert site.send(client, "ada", "GET /v1/namespace/ml/table/list").json()["tables"] == ["a", "b"]
    assert site.send(client, "ada", "GET /v1/table").json()["tables"] == ["ml$a"]
    assert site.send(client, "ada", "/v1/table/ml$c/count_rows").status_code == 200


def test_a_move_gives_no_right(served: tuple[Site, httpx.Client]) -> None:
    """To read a table, its mover would rename it to a place that the mover reads."""
    site, client = served
    site.permit(
        grant("key:mover", ["drop", "create", "describe"], ""), grant("key:mover", ["read", "CountTableRows"], "ml")
    )
    stored = site.stored()
    moved = {"new_table_name": "stolen", "new_namespace_id": ["ml"]}
    answer = site.send(client, "mover", "/v1/table/other$t/rename", moved)
    assert (answer.status_code, "needs the right read on other.t" in answer.text) == (403, True), answer.text
    assert site.stored() == stored
    assert site.send(client, "mover", "/v1/table/other$t/drop").status_code == 200
    answer = site.send(client, "mover", "/lancekeep/v1/table/other$t/undrop", moved)
    assert (answer.status_code, "needs the right read on other.t" in answer.text) == (403, True), answer.text
    back = site.send(client, "mover", "/lancekeep/v1/table/other$t/undrop", {"new_table_name": "again"})
    assert back.status_code == 200, back.text


def test_pages_need_the_rights_of_a_reader(served: tuple[Site, httpx.Client]) -> None:
    site, client = served
    for missing in ("list", "describe", "read"):
        rights = [each for each in ("list", "describe", "read", "append", "drop") if each != missing]
        site.permit(grant("key:ada", rights, ""))
        form = {"credential": site.key("ada"), "next": "/t/ml.t"}
        signed_in = client.post(f"{site.uri}/sign-in", data=form, headers={"origin": site.uri})
        answer = client.get(f"{site.uri}/t/ml.t", cookies=signed_in.cookies)
        assert answer.status_code == 404, (missing, answer.text)


def test_a_changed_policy_holds_for_the_next_request(served: tuple[Site, httpx.Client]) -> None:
    site, client = served
    site.permit(grant("key:ada", ["append"], "ml"))
    assert site.send(client, "ada", f"{T}/insert", stream()).status_code == 200
    site.permit(grant("key:ada", ["apend"], "ml"), grant("key:ada", ["drop"], ""))
    assert site.send(client, "ada", f"{T}/insert", stream()).status_code == 200  # the last valid policy
    assert site.send(client, "ada", f"{T}/drop").status_code == 403
    site.permit(grant("key:ada", ["describe"], "ml"))
    assert site.send(client, "ada", f"{T}/insert", stream()).status_code == 403
    reloads = [(line["outcome"], line["reason"]) for line in site.audited() if line["event"] == "reload"]
    assert [outcome for outcome, _ in reloads if outcome != "read"] == ["refused"]
    assert any(reason and "the nearest is 'append'" in reason for _, reason in reloads)
