"""Quotas of tables and bytes through HTTP: races, each operation, repeated requests, several servers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import attrs
import httpx
import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import PermissionDeniedError
from rest_server import running

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.limits import Limits, limited
from lancekeep.domain.authorization import Quota
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.metering import Meter
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.audit import AuditLog
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

ARROW = "application/vnd.apache.arrow.stream"
ROWS = pa.table({"id": [1, 2]})
SCHEMA = base64.b64encode(ROWS.schema.serialize().to_pybytes()).decode()
VIEW = {"kind": "query", "output_schema": SCHEMA, "source_query": json.dumps({"table": ["ml", "t"]})}
GRANTS = """
[[grants]]
role = "admin"
on = ""
principals = ["key:root"]

[[grants]]
role = "write"
on = "ml"
principals = ["key:team"]

[[grants]]
rights = ["drop"]
on = "ml"
principals = ["key:team"]

[[grants]]
role = "write"
on = "ml.a"
principals = ["key:guest"]
"""


def stream(table: pa.Table = ROWS) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@attrs.frozen
class Site:
    """Two servers of one catalog.

    Attributes:
        folder: The folder of the catalog, its policy and its audit log.
        catalog: The catalog, as an operator without limits opens it.
        keys: The API keys by name.
        uris: The addresses of the servers.
        meters: What measures bytes in each server.
    """

    folder: Path
    catalog: lancekeep.Catalog
    keys: dict[str, str]
    uris: list[str]
    meters: list[Meter]
    client: httpx.Client

    def limit(self, *quotas: str, more: str = "") -> None:
        (self.folder / "policy.toml").write_text(GRANTS + "".join(f"\n[[quotas]]\n{each}\n" for each in quotas) + more)

    def ask(self, path: str, body: Any = None, who: str = "team", server: int = 0, key: str = "") -> httpx.Response:
        headers = {"x-api-key": self.keys[who], **({"idempotency-key": key} if key else {})}
        if isinstance(body, bytes):
            headers["content-type"] = ARROW
            return self.client.post(self.uris[server] + path, content=body, headers=headers)
        return self.client.post(self.uris[server] + path, json={} if body is None else body, headers=headers)

    def measure(self) -> None:
        for meter in self.meters:
            meter.measure()

    def tables(self) -> list[str]:
        return sorted(map(str, self.catalog.list_all_tables()))

    def stored(self) -> dict[str, tuple[int, int]]:
        """Return what is stored: each file with its size and its time."""
        files = (path for path in (self.folder / "lake").rglob("*") if path.is_file())
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

    def audited(self) -> dict[str, Any]:
        line: dict[str, Any] = json.loads((self.folder / "audit.jsonl").read_text().splitlines()[-1])
        return line


@pytest.fixture(params=["v2", "compatible"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    file = KeyFile(tmp_path / "keys.json")
    keys = {name: file.create(name)[1] for name in ("root", "team", "guest")}
    (tmp_path / "policy.toml").write_text(GRANTS)
    settings = ServerSettings(log_level="error", keys=str(file.path), policy=str(tmp_path / "policy.toml"))
    audit = AuditLog(tmp_path / "audit.jsonl")
    with ExitStack() as stack:
        uris: list[str] = []
        meters: list[Meter] = []
        for _ in range(2):
            catalog = stack.enter_context(
                lancekeep.connect(
                    str(tmp_path / "lake"),
                    commit_store="conditional-put://",
                    mode=request.param,
                    storage_options={"fsync": "false"},
                )
            )
            if not uris:
                catalog.initialize()
                for name in ("ml", "ml.a", "other"):
                    catalog.create_namespace(name)
                catalog.write("ml.t", ROWS)
                catalog.write("other.t", ROWS)
            own = directory_of(catalog)
            security = security_of(settings, {}, own.versions.base_paths, audit.reloaded, usage=own.usage)
            app = create_app(
                CatalogNamespace(catalog),
                settings,
                around=security.around,
                inside=security.inside,
                middleware=security.middleware,
                audit=audit,
                decisions=security.decisions,
            )
            uris.append(stack.enter_context(running(app)))
            assert security.meter is not None
            meters.append(security.meter)
        yield Site(tmp_path, catalog, keys, uris, meters, stack.enter_context(httpx.Client(timeout=60)))


def refused(answer: httpx.Response, *parts: str) -> str:
    """Return the message of a refusal by a quota."""
    assert (answer.status_code, answer.json()["code"]) == (403, 15), answer.text
    message: str = answer.json()["error"]
    for each in ("no room in quota 1: ", "ask an administrator for a higher quota", *parts):
        assert each in message, message
    return message


def test_creators_behind_a_barrier_never_exceed_a_quota(site: Site) -> None:
    site.limit('on = "ml"\ntables = 4')
    writers = 8
    barrier = Barrier(writers)

    def create(number: int) -> httpx.Response:
        barrier.wait()
        path = f"/v1/table/ml${'a$' * (number % 2)}n{number}"
        if number % 4 < 2:
            return site.ask(f"{path}/create", stream(), server=number // 4)
        return site.ask(f"{path}/declare", server=number // 4)

    with ThreadPoolExecutor(writers) as pool:
        answers = list(pool.map(create, range(writers)))
    made = [number for number, answer in enumerate(answers) if answer.status_code == 200]
    for answer in answers:
        if answer.status_code != 200:
            refused(answer, "4 tables for ml. It has 4 tables, and the request adds 1")
    assert len(made) == 3
    names = [f"ml.{'a.' * (number % 2)}n{number}" for number in made]
    assert site.tables() == sorted(["ml.t", "other.t", *names])
    assert site.ask("/v1/table/other$new/declare", who="root").status_code == 200


def test_each_operation_that_adds_a_table_is_refused_at_the_limit(site: Site) -> None:
    site.catalog.write("ml.dropped", ROWS)
    site.catalog.drop_table("ml.dropped", keep=3600)
    site.catalog.create_namespace("mlx")
    site.catalog.write("ml.u", ROWS)
    site.limit('on = "ml"\ntables = 2')
    location = site.catalog.find_table("other.t").location
    lance.write_dataset(ROWS, str(site.folder / "lake" / "apart" / "loose"))
    stored = site.stored()
    for who, path, body in (
        ("team", "/v1/table/ml$new/create", stream()),
        ("team", "/v1/table/ml$new/create?mode=exist_ok", stream()),
        ("team", "/v1/table/ml$new/create?mode=overwrite", stream()),
        ("team", "/v1/table/ml$a$new/declare", None),
        ("team", "/CreateEmptyTable", {"id": ["ml", "new"]}),
        ("root", "/v1/table/ml$new/register", {"location": "apart/loose"}),
        ("team", "/v1/materialized_view/ml$new/create", VIEW),
        ("root", "/v1/table/other$t/rename", {"new_namespace_id": ["ml"], "new_table_name": "new"}),
        ("team", "/lancekeep/v1/table/ml$dropped/undrop", None),
        ("team", "/v1/table/batch-commit", {"operations": [{"declare_table": {"id": ["ml", "new"]}}]}),
    ):
        message = refused(site.ask(path, body, who), "2 tables for ml. It has 2 tables, and the request adds 1")
        assert "nothing was changed" in message
        line = site.audited()
        assert (line["decision"], line["status"], line["reason"]) == ("refused", 403, message), path
        assert site.stored() == stored, path
    assert site.catalog.find_table("other.t").location == location
    swap = [{"deregister_table": {"id": ["ml", "u"]}}, {"declare_table": {"id": ["ml", "v"]}}]
    for path, body in (
        ("/v1/table/ml$t/create?mode=exist_ok", stream()),
        ("/v1/table/ml$t/create?mode=overwrite", stream()),
        ("/v1/table/ml$t/insert", stream()),
        ("/v1/table/ml$t/rename", {"new_table_name": "renamed"}),
        ("/v1/table/batch-commit", {"operations": swap}),
        ("/v1/table/ml$v/drop", None),
        ("/v1/table/ml$new/create", stream()),
    ):
        answer = site.ask(path, body)
        assert answer.status_code == 200, (path, answer.text)
    assert site.tables() == ["ml.new", "ml.renamed", "other.t"]
    refused(site.ask("/v1/table/ml$more/declare"))


def test_refusal_names_no_table_that_the_caller_may_not_see(site: Site) -> None:
    site.catalog.write("ml.secret", ROWS)
    site.limit('on = "ml"\ntables = 1\nprincipals = ["key:guest"]', 'on = "ml.a"\nbytes = 0\ngroups = ["none"]')
    message = refused(site.ask("/v1/table/ml$a$new/declare", who="guest"), "It has more than 1 tables")
    assert "secret" not in message
    for name in ("ml$secret/insert", "other$t/insert"):
        hidden = site.ask(f"/v1/table/{name}", stream(), who="guest")
        assert (hidden.status_code, hidden.json()["code"]) == (404, 4)
        assert "quota" not in hidden.text
    assert site.ask("/v1/table/ml$a$new/declare").status_code == 200  # the quota does not limit the team


def test_full_subtree_takes_no_bytes_until_it_is_measured_below_its_quota(site: Site) -> None:
    site.catalog.create_namespace("ml.b")
    site.catalog.write("ml.b.t", ROWS)
    site.catalog.write("ml.u", ROWS)
    for _ in range(3):
        site.catalog.write("ml.t", ROWS, "append")
    site.catalog.write("ml.dropped", ROWS)
    site.catalog.drop_table("ml.dropped", keep=3600)
    site.limit('on = "ml"\nbytes = "1 kB"')
    assert site.ask("/v1/table/ml$t/insert", stream()).status_code == 200  # before the first measurement
    site.measure()
    stored = site.stored()
    renamed = {"new_namespace_id": ["ml"], "new_table_name": "new"}
    for who, path, body in (
        ("team", "/v1/table/ml$t/insert", stream()),
        ("team", "/v1/table/ml$b$t/insert", stream()),
        ("team", "/v1/table/ml$t/merge_insert?on=id&when_matched_update_all=true", stream()),
        ("team", "/v1/table/ml$t/merge_insert?on=id&when_not_matched_insert_all=true", stream()),
        ("team", "/v1/table/ml$t/update", {"updates": [["id", "id + 1"]]}),
        ("team", "/v1/table/ml$new/create", stream()),
        ("team", "/v1/materialized_view/ml$new/create", VIEW),
        ("root", "/v1/table/ml$new/register", {"location": "apart/loose"}),
        ("team", "/v1/table/ml$t/add_columns", {"new_columns": [{"name": "n", "expression": "id + 1"}]}),
        ("team", "/v1/table/ml$t/create_scalar_index", {"column": "id", "index_type": "BTREE"}),
        ("team", "/lancekeep/v1/table/ml$dropped/undrop", None),
        ("root", "/v1/table/other$t/rename", renamed),
    ):
        message = refused(site.ask(path, body, who), "1,000 bytes for ml. Its tables had ", " s ago")
        line = site.audited()
        assert (line["decision"], line["reason"]) == ("refused", message), path
        assert site.stored() == stored, path
    latest = site.catalog.describe_table("ml.t").version
    bigger = pa.table({"id": [number * number % 8191 for number in range(10_000)]})
    for path in ("/v1/table/ml$t/insert?mode=overwrite", "/v1/table/ml$t/create?mode=overwrite"):
        refused(site.ask(path, stream(bigger), server=1))  # judged by the commit
    assert site.catalog.describe_table("ml.t").version == latest
    permitted: tuple[tuple[str, Any], ...] = (
        ("/v1/table/ml$t/tags/create", {"tag": "x", "version": 1}),
        ("/v1/table/ml$t/delete", {"predicate": "id = 1"}),
        ("/v1/table/ml$t/merge_insert?on=id&when_not_matched_by_source_delete=true", stream(ROWS.slice(1, 1))),
        ("/v1/table/ml$t/alter_columns", {"alterations": [{"path": "id", "rename": "key"}]}),
        ("/v1/table/ml$declared/declare", None),
        ("/v1/table/ml$t/rename", {"new_table_name": "renamed"}),
        ("/v1/table/ml$renamed/insert?mode=overwrite", stream(ROWS.slice(0, 1))),
        ("/v1/table/ml$u/drop", None),
        ("/v1/table/ml$b$t/drop", None),
    )
    for path, body in permitted:
        answer = site.ask(path, body)
        assert answer.status_code == 200, (path, answer.text)
    refused(site.ask("/v1/table/ml$renamed/insert", stream(ROWS)))
    site.measure()
    assert site.ask("/v1/table/ml$renamed/insert", stream(ROWS)).status_code == 200


def test_direct_writer_commits_to_a_full_subtree_what_adds_no_bytes(site: Site) -> None:
    for _ in range(3):
        site.catalog.write("ml.t", ROWS, "append")
    site.limit('on = ""\nbytes = 1')
    site.measure()
    namespace = lancekeep.RestNamespace(uri=site.uris[0], api_key=site.keys["team"])
    latest = site.catalog.describe_table("ml.t").version or 0
    with pytest.raises((PermissionDeniedError, OSError, RuntimeError), match=r"(?i)no room in quota 1|unknown"):
        lance.write_dataset(ROWS, namespace_client=namespace, table_id=["ml", "t"], mode="append")
    assert site.catalog.describe_table("ml.t").version == latest
    dataset = lance.dataset(namespace_client=namespace, table_id=["ml", "t"])
    dataset.delete("id = 2")
    dataset.optimize.compact_files()
    assert (site.catalog.describe_table("ml.t").version or 0) > latest + 1
    assert site.catalog.open("ml.t").to_table()["id"].to_pylist() == [1, 1, 1, 1]


def test_repeated_request_has_the_answer_of_the_first_one(site: Site) -> None:
    site.limit('on = "ml"\ntables = 2\nbytes = "1 MB"')
    created, inserted, again = (str(uuid4()) for _ in range(3))
    assert site.ask("/v1/table/ml$u/create", stream(), key=created).status_code == 200
    assert site.ask("/v1/table/ml$u/insert", stream(), key=inserted).status_code == 200
    site.limit('on = "ml"\ntables = 2\nbytes = 1')
    site.measure()
    assert site.ask("/v1/table/ml$u/create", stream(), key=created).status_code == 200
    assert site.ask("/v1/table/ml$u/insert", stream(), key=inserted).status_code == 200
    refused(site.ask("/v1/table/ml$u/insert", stream(), key=again))
    assert site.catalog.open("ml.u").count_rows() == 4
    site.limit('on = "ml"\ntables = 2\nbytes = "1 MB"')
    refused(site.ask("/v1/table/ml$u/insert", stream(), key=again))
    assert site.ask("/v1/table/ml$u/insert", stream(), key=str(uuid4())).status_code == 200
    assert site.catalog.open("ml.u").count_rows() == 6


def test_table_that_a_change_has_removed_returns_to_a_full_subtree(site: Site) -> None:
    own = directory_of(site.catalog)
    site.catalog.declare_table("ml.new")
    table = own.tables.find(ObjectId.of("ml.new"))
    with limited(Limits([Quota(ObjectId(), tables=0)], lambda _: None)):
        assert not own.tables.remove_unwritten(table, lambda: False)  # another writer has its directory
    assert site.tables() == ["ml.new", "ml.t", "other.t"]


def test_usage_follows_versions_and_leaves_out_files_of_other_tables(site: Site) -> None:
    usage, subtrees = directory_of(site.catalog).usage, [ObjectId.of("ml"), ObjectId.of("ml.t"), ObjectId()]
    first = usage.measure(subtrees)
    assert first[ObjectId.of("ml")] == first[ObjectId.of("ml.t")] == first[ObjectId()] // 2 > 0
    site.catalog.clone("ml.t", "other.clone")
    site.catalog.declare_table("ml.declared")
    assert usage.measure(subtrees) == first
    site.catalog.write("ml.t", ROWS, "append")
    assert usage.measure(subtrees)[ObjectId.of("ml")] > first[ObjectId.of("ml")]
    site.catalog.drop_table("ml.t")
    assert usage.measure(subtrees)[ObjectId.of("ml")] == 0


def test_policy_is_read_again_with_its_quotas(site: Site) -> None:
    site.limit('on = "ml"\ntables = 1')
    refused(site.ask("/v1/table/ml$new/declare"))
    site.limit('on = "ml"\ntables = "many"')
    refused(site.ask("/v1/table/ml$new/declare"))
    assert site.ask("/v1/table/ml$t/describe").status_code == 200
    assert (site.folder / "audit.jsonl").read_text().count("tables is 'many'; give a number of tables") == 1
    site.limit('on = "ml"\ntables = 2')
    assert site.ask("/v1/table/ml$new/declare").status_code == 200


def test_server_of_a_foreign_namespace_refuses_quotas(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(GRANTS + '\n[[quotas]]\non = ""\ntables = 1\n')
    KeyFile(tmp_path / "keys.json").create("root")
    settings = ServerSettings(keys=str(tmp_path / "keys.json"), policy=str(tmp_path / "policy.toml"))
    with pytest.raises(InvalidInput, match="write the quotas into the policy of the server that opens the catalog"):
        security_of(settings, {})
