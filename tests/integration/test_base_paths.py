"""Attacks by base paths: a manifest that names files of a table that its author may not read.

The attacker has written the manifest to the storage, with vended credentials or otherwise.
"""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from uuid import uuid4

import attrs
import httpx
import lance
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.maintenance import MaintenanceAction
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.maintenance import MaintenancePolicy, MaintenanceRule
from lancekeep.entrypoints.maintenance import MaintenanceWorker, Plan
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

ARROW = "application/vnd.apache.arrow.stream"
SECRET = pa.table({"id": ["classified-one", "classified-two"]})
POLICY = """
[[grants]]
role = "admin"
on = ""
principals = ["key:root"]

[[grants]]
role = "admin"
on = "ml"
principals = ["key:attacker", "key:curator"]

[[grants]]
role = "read"
on = "secret"
principals = ["key:curator"]

[[grants]]
role = "read"
on = "ml"
principals = ["key:reader"]
"""


@attrs.frozen
class Site:
    """A server with a policy, and its storage."""

    root: Path
    catalog: lancekeep.Catalog
    client: TestClient
    keys: dict[str, str]

    def ask(self, who: str, path: str, body: object = None) -> httpx.Response:
        headers = {"x-api-key": self.keys[who]}
        answer: httpx.Response = self.client.post(path, json={} if body is None else body, headers=headers)
        return answer

    def directory(self, table: str) -> Path:
        return Path(lance.dataset(self.catalog.describe_table(table).uri)._ds.uri.removeprefix("file://"))

    def clone_of(self, table: str, folder: Path) -> bytes:
        """Return a manifest that reads the files of a table by its base paths."""
        lance.dataset(self.catalog.describe_table(table).uri).shallow_clone(str(folder), 1)
        [manifest] = (folder / "_versions").glob("*.manifest")
        return manifest.read_bytes()


@pytest.fixture(params=["sqlite", "conditional-put"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    root = tmp_path / "lake"
    store = f"sqlite:///{tmp_path}/commits.db" if request.param == "sqlite" else "conditional-put://"
    file = KeyFile(tmp_path / "keys.json")
    keys = {name: file.create(name)[1] for name in ("root", "attacker", "curator", "reader")}
    (tmp_path / "policy.toml").write_text(POLICY)
    settings = ServerSettings(log_level="error", keys=str(file.path), policy=str(tmp_path / "policy.toml"))
    with lancekeep.connect(str(root), commit_store=store) as catalog:
        for name in ("ml", "secret"):
            catalog.create_namespace(name)
        catalog.write("secret.plans", SECRET)
        catalog.write("ml.own", pa.table({"id": ["1"]}))
        security = security_of(settings, {}, directory_of(catalog).versions.base_paths)
        app = create_app(CatalogNamespace(catalog), settings, around=security.around, middleware=security.middleware)
        with TestClient(app) as client:
            yield Site(root, catalog, client, keys)


def staged(site: Site, table: str, content: bytes) -> dict[str, object]:
    """Stage a manifest as version 1 of a table that is declared; return the request that commits it."""
    assert site.ask("attacker", f"/v1/table/{table.replace('.', '$')}/declare").status_code == 200
    directory = site.catalog.describe_table(table).uri.removeprefix("file:///")
    key = f"{directory}/_versions/18446744073709551614.manifest-{uuid4()}"
    Path(f"/{key}").parent.mkdir(parents=True)
    Path(f"/{key}").write_bytes(content)
    return {"version": 1, "manifest_path": key, "manifest_size": len(content), "naming_scheme": "V2"}


def published(site: Site, table: str, content: bytes) -> None:
    """Write a manifest as version 1 of a declared table, past the server."""
    request = staged(site, table, content)
    path = Path(f"/{request['manifest_path']}")
    assert site.ask("root", f"/v1/table/{table.replace('.', '$')}/version/create", request).status_code == 200
    assert not path.exists()


def secrets_below(site: Site, table: str) -> list[str]:
    """Return the data files of a table that contain a secret row."""
    directory = Path(f"/{site.catalog.describe_table(table).uri.removeprefix('file:///')}")
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path.name for path in files if b"classified" in path.read_bytes()]


def test_a_commit_with_base_paths_of_a_forbidden_table_is_refused(site: Site, tmp_path: Path) -> None:
    request = staged(site, "ml.stolen", site.clone_of("secret.plans", tmp_path / "clone"))
    entry = {"id": ["ml", "stolen"], **request}
    attempts = [
        ("/v1/table/ml$stolen/version/create", request),
        ("/v1/table/version/batch-create", {"entries": [entry]}),
        ("/v1/table/batch-commit", {"operations": [{"create_table_version": entry}]}),
    ]
    for path, body in attempts:
        answer = site.ask("attacker", path, body)
        assert (answer.status_code, answer.json()["code"]) == (403, 15), answer.text
        assert "secret" not in answer.text
    assert site.catalog.describe_table("ml.stolen").version is None
    source = Path(f"/{site.catalog.describe_table('secret.plans').uri.removeprefix('file:///')}")
    assert not (source / ".lancekeep-clones").exists()  # a refused commit writes nothing into the other table
    assert site.ask("curator", *attempts[0]).status_code == 200
    assert lance.dataset(site.catalog.describe_table("ml.stolen").uri).to_table() == SECRET


def test_a_clone_is_readable_with_the_role_read_on_its_source(site: Site, tmp_path: Path) -> None:
    published(site, "ml.clone", site.clone_of("secret.plans", tmp_path / "clone"))
    for who, status in (("curator", 200), ("root", 200), ("reader", 403), ("attacker", 403)):
        answer = site.ask(who, "/v1/table/ml$clone/query", {"vector": {}, "k": 10})
        assert answer.status_code == status, answer.text[:300]
        if status == 200:
            assert pa.ipc.open_file(answer.content).read_all()["id"].to_pylist() == SECRET["id"].to_pylist()
        assert site.ask(who, "/v1/table/ml$clone/count_rows", {}).status_code == status


def test_the_server_reads_no_forbidden_base_path_for_any_operation(site: Site, tmp_path: Path) -> None:
    """The attacker has written the final manifest past the server; the server must not copy or return a row."""
    published(site, "ml.stolen", site.clone_of("secret.plans", tmp_path / "clone"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SECRET.schema) as stream:
        stream.write_table(pa.table({"id": ["5"]}))
    table = "/v1/table/ml$stolen"
    schema = b64encode(SECRET.schema.serialize()).decode()
    view = {"kind": "query", "source_query": json.dumps({"table": ["ml", "stolen"]}), "output_schema": schema}
    asked = [
        (f"{table}/query", {"vector": {}, "k": 10}),
        (f"{table}/count_rows", {"predicate": "id = 'classified-one'"}),
        (f"{table}/explain_plan", {"query": {"vector": {}, "k": 1}}),
        (f"{table}/analyze_plan", {"vector": {}, "k": 1}),
        (f"{table}/stats", {}),
        (f"{table}/describe", {"load_detailed_metadata": True}),
        (f"{table}/update", {"updates": [["id", "upper(id)"]]}),
        (f"{table}/delete", {"predicate": "id = 'classified-one'"}),
        (f"{table}/add_columns", {"new_columns": [{"name": "copy", "expression": "id"}]}),
        (f"{table}/create_scalar_index", {"column": "id", "index_type": "BTREE"}),
        ("/v1/materialized_view/ml$view/create", view),
    ]
    for path, body in asked:
        answer = site.ask("attacker", path, body)
        assert answer.status_code == 403, (path, answer.status_code, answer.text)
        assert "classified" not in answer.text
    for path in ("insert", "merge_insert?on=id&when_not_matched_insert_all=true"):
        headers = {"x-api-key": site.keys["attacker"], "content-type": ARROW}
        answer = site.client.post(f"{table}/{path}", content=sink.getvalue().to_pybytes(), headers=headers)
        assert answer.status_code == 403, (path, answer.status_code, answer.text)
    assert secrets_below(site, "ml.stolen") == []


@pytest.mark.parametrize("confined", [True, False])
def test_the_worker_of_a_server_with_a_policy_copies_no_rows_through_base_paths(
    site: Site, tmp_path: Path, confined: bool
) -> None:
    """Without a policy, all callers may read everything, and the worker compacts clones, too."""
    published(site, "ml.clone", site.clone_of("secret.plans", tmp_path / "clone"))
    site.catalog.write("ml.clone", pa.table({"id": ["5"]}), "append")
    rule = MaintenanceRule(target_rows=1000, small_fragments=2)
    worker = MaintenanceWorker(site.catalog, Plan(MaintenancePolicy((rule,))), confined=confined)
    run_in_thread(worker)
    assert bool(secrets_below(site, "ml.clone")) is not confined
    assert sorted(site.catalog.open("ml.clone").to_table()["id"].to_pylist()) == ["5", *SECRET["id"].to_pylist()]


def run_in_thread(worker: MaintenanceWorker) -> None:
    """Let the thread of a worker run once."""
    done = Event()
    run_once = worker.run_once

    def once() -> Iterator[MaintenanceAction]:
        found = list(run_once() or ())
        done.set()
        return iter(found)

    worker.run_once = once  # type: ignore[method-assign] # the same run, with a signal at its end
    worker.start()
    assert done.wait(120)
    worker.stop()


SPELLINGS = [
    "{root}/{own}/../{secret}",
    "{root}/{own}/%2e%2e/{secret}",
    "{root}/{own}%2f..%2f{secret}",
    "file://{root}/{own}/%252e%252e/{secret}",
    "file://{root}/{secret}#/{own}",
    "file://{root}/{secret}?{own}",
    "file://localhost{root}/{secret}",
    "FILE://{root}/{secret}",
    "{root}//{secret}",
    "{root}",
    "file://{root}/",
    "/",
    "",
    "{secret}",
    "s3://other/{own}",
    "{root}/{own}\\..\\{secret}",
    "{root}/__manifest",
    "{root}/{own}x",
]


def test_other_spellings_of_a_forbidden_table_are_not_the_own_one(site: Site) -> None:
    uris = {name: site.catalog.describe_table(name).uri for name in ("ml.own", "secret.plans")}
    own, secret = (uri.rpartition("/")[2] for uri in uris.values())
    table_at = directory_of(site.catalog).versions.base_paths._table_at
    assert [table_at(uri) for uri in uris.values()] == [ObjectId.of(name) for name in uris]
    for spelling in SPELLINGS:
        path = spelling.format(root=site.root, own=own, secret=secret)
        assert table_at(path) in (None, ObjectId.of("secret.plans")), path


def test_a_base_path_outside_the_catalog_needs_an_administrator(site: Site, tmp_path: Path) -> None:
    copied = tmp_path / "elsewhere"
    shutil.copytree(Path(f"/{site.catalog.describe_table('secret.plans').uri.removeprefix('file:///')}"), copied)
    lance.dataset(str(copied)).shallow_clone(str(tmp_path / "clone"), 1)
    [manifest] = (tmp_path / "clone" / "_versions").glob("*.manifest")
    request = staged(site, "ml.stolen", manifest.read_bytes())
    for who in ("attacker", "curator"):
        assert site.ask(who, "/v1/table/ml$stolen/version/create", request).status_code == 403
    assert site.ask("root", "/v1/table/ml$stolen/version/create", request).status_code == 200
    assert site.ask("curator", "/v1/table/ml$stolen/count_rows", {}).status_code == 403
    assert site.ask("root", "/v1/table/ml$stolen/count_rows", {}).status_code == 200
