"""Quotas of tables and bytes through HTTP: races, each operation, repeated requests, several servers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import httpx
import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import PermissionDeniedError
from quota_sites import FAST, GRANTS, ROWS, Site, refused, site_of, stream

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.limits import Limits, limited
from lancekeep.domain.authorization import Quota
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.quotas import Held
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

SCHEMA = base64.b64encode(ROWS.schema.serialize().to_pybytes()).decode()
VIEW = {"kind": "query", "output_schema": SCHEMA, "source_query": json.dumps({"table": ["ml", "t"]})}


@pytest.fixture(params=["v2", "compatible"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    def connect() -> lancekeep.Catalog:
        return lancekeep.connect(
            str(tmp_path / "lake"), commit_store="conditional-put://", mode=request.param, storage_options=FAST
        )

    with site_of(connect, tmp_path, ("ml", "ml.a", "other")) as site:
        yield site


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
    bigger = pa.table({"id": [number * number % 8191 for number in range(10_000)]})
    for _ in range(9):
        site.catalog.write("ml.u", bigger, "append" if site.catalog.table_exists("ml.u") else "create")
    for _ in range(3):
        site.catalog.write("ml.t", ROWS, "append")
    site.catalog.write("ml.dropped", ROWS)
    site.catalog.drop_table("ml.dropped", keep=3600)
    size = site.held("ml").bytes
    site.limit(f'on = "ml"\nbytes = {size}')
    assert site.ask("/v1/table/ml$t/insert", stream()).status_code == 200  # before the first measurement
    site.measure()
    stored = site.stored()
    renamed = {"new_namespace_id": ["ml"], "new_table_name": "new"}
    for who, path, body in (
        ("team", "/v1/table/ml$t/insert", stream()),
        ("team", "/v1/table/ml$b$t/insert", stream()),
        ("team", "/v1/table/ml$t/merge_insert?on=id&when_matched_update_all=true", stream()),
        ("team", "/v1/table/ml$t/merge_insert?on=id&when_not_matched_insert_all=true", stream()),
        ("team", "/v1/table/ml$t/merge_insert?on=id&when_matched_update_all_filt=true", stream()),
        ("team", "/v1/table/ml$t/update", {"updates": [["id", "id + 1"]]}),
        ("team", "/v1/table/ml$new/create", stream()),
        ("team", "/v1/table/ml$new/create?mode=exist_ok", stream()),
        ("team", "/v1/materialized_view/ml$new/create", VIEW),
        ("root", "/v1/table/ml$new/register", {"location": "apart/loose"}),
        ("team", "/v1/table/ml$t/add_columns", {"new_columns": [{"name": "n", "expression": "id + 1"}]}),
        ("team", "/v1/table/ml$t/create_scalar_index", {"column": "id", "index_type": "BTREE"}),
        ("root", "/v1/table/other$t/rename", renamed),
    ):
        message = refused(site.ask(path, body, who), f"{size:,} bytes for ml. Its tables had ", " s ago")
        line = site.audited()
        assert (line["decision"], line["reason"]) == ("refused", message), path
        assert site.stored() == stored, path
    latest = site.catalog.describe_table("ml.t").version
    for path in ("/v1/table/ml$t/insert?mode=overwrite", "/v1/table/ml$t/create?mode=overwrite"):
        refused(site.ask(path, stream(bigger), server=1))  # judged by the commit
    assert site.catalog.describe_table("ml.t").version == latest
    permitted: tuple[tuple[str, Any], ...] = (
        ("/v1/table/ml$t/create?mode=exist_ok", stream()),
        ("/v1/table/ml$t/tags/create", {"tag": "x", "version": 1}),
        ("/v1/table/ml$t/delete", {"predicate": "id = 1"}),
        ("/v1/table/ml$t/merge_insert?on=id&when_not_matched_by_source_delete=true", stream(ROWS.slice(1, 1))),
        ("/v1/table/ml$t/alter_columns", {"alterations": [{"path": "id", "rename": "key"}]}),
        ("/v1/table/ml$declared/declare", None),
        ("/v1/table/ml$t/rename", {"new_table_name": "renamed"}),
        ("/v1/table/ml$renamed/insert?mode=overwrite", stream(ROWS.slice(0, 1))),
        ("/v1/table/ml$u/drop", None),
        ("/v1/table/ml$b$t/drop", None),
        ("/lancekeep/v1/table/ml$dropped/undrop", None),  # its bytes count while it is dropped
    )
    for path, body in permitted:
        answer = site.ask(path, body)
        assert answer.status_code == 200, (path, answer.text)
    site.measure()
    refused(site.ask("/v1/table/ml$renamed/insert", stream(ROWS)))  # the dropped tables are stored
    site.catalog.purge("ml.u")
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


def test_usage_is_what_the_directories_of_tables_hold(site: Site) -> None:
    def stored(name: str) -> int:
        directory = site.folder / "lake" / site.catalog.find_table(name).location
        return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())

    site.catalog.create_namespace("mlx")
    site.catalog.write("mlx.t", ROWS)
    site.catalog.write("ml.t", ROWS, "overwrite")  # version 1 stays
    site.catalog.branches.create("ml.t", "dev")
    site.catalog.data.insert("ml.t", ROWS.to_reader(), branch="dev")
    site.catalog.structure.create_index("ml.t", lancekeep.NewIndex("id", "BTREE"))
    (site.folder / "lake" / site.catalog.find_table("ml.t").location / "left.bin").write_bytes(b"x" * 4321)
    first = stored("ml.t")
    for name in ("ml", "ml.t"):
        assert site.held(name) == Held(1, first)
    assert site.held("") == Held(3, first + stored("mlx.t") + stored("other.t"))
    assert site.held("ml.a") == Held(0, 0)
    site.catalog.clone("ml.t", "other.clone")
    site.catalog.declare_table("ml.declared")
    first = stored("ml.t")  # with the record of its clone
    assert site.held("ml") == Held(2, first)
    assert site.held("other") == Held(2, stored("other.t") + stored("other.clone"))
    [tables_only] = directory_of(site.catalog).usage.measure([Quota(ObjectId.of("ml"), tables=1)]).values()
    assert tables_only == Held(2)
    site.catalog.drop_table("ml.t", keep=3600, force=True)
    assert site.held("ml") == Held(1, first)
    assert site.held("ml.t") == Held(0, first)
    site.catalog.purge("ml.t", force=True)
    assert site.held("ml") == Held(1, 0)


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
