"""Every example of the README and of the pages works, and every page labels its code blocks.

The pages about Spark are in test_spark_pages.py.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import tomllib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

import attrs
import httpx
import lance
import lance_namespace
import pyarrow as pa
import pytest
from deployments import bucket
from fake_gcs import FakeGcs
from joserfc import jwk, jwt
from lance import DatasetBasePath
from pages import ROOT, Reader, blocks, free_port, server_at
from readers.walk import Walk
from rest_server import serving
from version_times import nanos_of, set_times

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.adapters.authorization.policy_file import read_policy
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.adapters.rest.routes import ADMINISTRATION
from lancekeep.application.catalog import directory_of
from lancekeep.config import ConnectionConfig
from lancekeep.config_settings import BOOLEANS, TEXTS
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.event_delivery import Subscriber
from lancekeep.domain.naming import NamingScheme
from lancekeep.entrypoints.maintenance import read_plan
from lancekeep.entrypoints.namespace.directory import DirectoryNamespace
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import OF_PROCESS, ServerSettings
from lancekeep.entrypoints.subscribers import OF_WEBHOOKS, ConfiguredSubscriber, configured_subscribers
from lancekeep.format.table_version import TableVersion

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
ELSEWHERE = {
    "backups.md": "integration/test_backups.py",
    "lsm.md": "integration/test_lsm.py",
    "jobs.md": "integration/test_spark_pages.py",
    "spark-deploy.md": "integration/test_spark_pages.py",
    "spark-search.md": "integration/test_spark_pages.py",
    "spark-source.md": "integration/test_spark_pages.py",
    "spark-sql.md": "integration/test_spark_pages.py",
    "spark-streams.md": "integration/test_spark_pages.py",
    "spark-types.md": "integration/test_spark_pages.py",
    "tutorial.md": "integration/test_spark_pages.py",
    "hive.md": "contracts/test_hive_commit_store.py",
    "postgres.md": "contracts/test_postgres_commit_store.py",
    "write-an-adapter.md": "contracts/test_write_an_adapter.py",
}
"""Pages whose examples need more than a reader has, and the tests that run them."""
COMMIT_STORE = "sqlite://{0}/commits.db"
ROWS = pa.table({"id": [1, 2], "text": ["one", "two"]})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def page(name: str) -> Path:
    return DOCS / name


def local(home: Path) -> dict[str, str]:
    """Return local places for the remote ones of the pages."""
    store = COMMIT_STORE.format(home)
    remote = ("redis://cache:6379/0", "redis://…", "dynamodb://lance-commits")
    return {"s3://bucket/lake": "bucket/lake", **dict.fromkeys(remote, store)}


def fill(root: str, commit_store: str | None) -> lancekeep.Catalog:
    """Make a catalog with tables of several versions, fragments and files."""
    catalog = lancekeep.connect(root, commit_store=commit_store)
    catalog.create_namespace("ml")
    for name in ("t", "ml.features", "ml.events"):
        for at in range(7):
            catalog.write(name, ROWS, "append" if at else "create")
    catalog.open("t").create_scalar_index("id", "BTREE")
    return catalog


# -- all pages -----------------------------------------------------------------------------------------------------


def test_code_blocks_of_all_pages_name_their_language() -> None:
    known = {"python", "sh", "text", "toml", "json", "sql", "mermaid"}
    found = {f"{each.name}:{line}: {language}" for each in PAGES for line, language in blocks(each)}
    assert {block for block in found if block.rpartition(": ")[2] not in known} == set()


def test_examples_of_all_pages_are_run() -> None:
    text = Path(__file__).read_text()
    named = {each.name for each in PAGES if {language for _, language in blocks(each)} - {"mermaid"}}
    for name in named - ELSEWHERE.keys():
        assert f'"{name}"' in text, f"no test runs the examples of {name}"
    for name, file in ELSEWHERE.items():
        assert f'"{name}"' in (ROOT / "tests" / file).read_text(), f"{file} does not run {name}"


# -- the page of each test -----------------------------------------------------------------------------------------


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server_settings(home: Path, port: int) -> dict[str, str]:
    return server_at(home, port)


def test_readme(home: Path, server_settings: dict[str, str]) -> None:
    catalog = lancekeep.connect("lake", commit_store="conditional-put://")
    catalog.create_namespace("ml")
    catalog.write("ml.features", ROWS)
    places = {"s3://bucket/lake": "lake", "redis://cache:6379/0": "conditional-put://", **server_settings}
    names = {"lance": lance, "lance_namespace": lance_namespace, "data": ROWS}
    assert Reader(places, names).read(ROOT / "README.md") >= 6
    assert lancekeep.connect("lake", commit_store="conditional-put://").open("ml.features").count_rows() == 4


def test_contributing() -> None:
    assert Reader().read(ROOT / "CONTRIBUTING.md")


def test_certify(home: Path, moto_endpoint: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEKEEP_STORAGE__ALLOW_HTTP", "true")
    (home / "secrets").write_text("")
    places = {
        "s3://bucket": f"s3://{bucket(moto_endpoint)}",
        "redis://cache:6379/0": redis_url,
        "https://minio.example:9000": moto_endpoint,
    }
    assert Reader(places).read(page("certify.md")) == 1


def test_conformance() -> None:
    with serving(DirectoryNamespace(root="lake")) as front:
        few = f"{front.uri} --only tables/declare"
        shown = "http://127.0.0.1:2333"
        places = {f"{shown} --only": f"{front.uri} --only", f"{shown} --junit": f"{few} --junit", shown: few}
        assert Reader(places).read(page("conformance.md")) == 1


def test_configuration(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(_: Mapping[str, Any]) -> None:
        [text] = re.findall(r"```toml\n(.*?)```", page("configuration.md").read_text(), re.DOTALL)
        (home / "lancekeep.toml").write_text(text)
        lake = ConnectionConfig.resolve({"catalog": "lake"})
        assert lake.commit_store is not None
        assert (
            open_commit_store(lake.commit_store, lake.commit_store_options, MemoryObjectStore()).url
            == lake.commit_store
        )
        assert (lake.root, lake.committer) == ("s3://bucket/lake", "nightly-job")
        assert ConnectionConfig.resolve({"catalog": "scratch"}).root == str(home / "scratch")

    assert Reader(settings=settings).read(page("configuration.md"))


def test_group_commit() -> None:
    catalog = lancekeep.connect("lake", commit_store="conditional-put://")
    catalog.create_namespace("ml")
    catalog.write("ml.events", ROWS)
    catalog.write("events", ROWS)
    assert Reader(names={"catalog": catalog, "table": ROWS}).read(page("group-commit.md"))


def key_of(catalog: lancekeep.Catalog, version: int) -> str:
    """Return the path of a manifest of ml.features."""
    root = directory_of(catalog).places.dataset_root(catalog.find_table("ml.features"))
    return f"/{root.versions_key}{NamingScheme.V2.final_name(version)}"


def staged(catalog: lancekeep.Catalog) -> StagedManifest:
    """Describe a manifest that a writer has staged for version 8, with the content of version 7."""
    root = directory_of(catalog).places.dataset_root(catalog.find_table("ml.features"))
    content = Path(key_of(catalog, 7)).read_bytes()
    path = f"{key_of(catalog, 8)}-{uuid4()}"[1:]
    digest = sha256(content).hexdigest()
    return StagedManifest(root.base_uri, 8, path, len(content), begins=False, digest=digest)


class Lakes:
    """Catalogs that can be restored: ``bucket/lake`` with a commit store, and ``lake`` without."""

    def __init__(self, home: Path) -> None:
        self.home = home
        catalog = fill("bucket/lake", COMMIT_STORE.format(home))
        fill("lake", None)
        self.staged, self.content = staged(catalog), Path(key_of(catalog, 7)).read_bytes()
        [transaction] = (Path(key_of(catalog, 7)).parent.parent / "_transactions").glob("6-*.txn")
        self.places = {
            "_transactions/6-….txn": f"_transactions/{transaction.name}",
            "s3://bucket/lake/1f…_ml$features/_versions/7.manifest": f"'{key_of(catalog, 7)}'",
            '{"token": …}': str(CommitToken(self.staged)),
            "/mnt/cold": str(home / "cold"),
            "/new/lake": str(home / "lake"),
            "/copy/of/lake": str(home / "copy"),
            **local(home),
        }
        for kept in ("bucket", "lake"):
            shutil.copytree(home / kept, home / "kept" / kept)
        self._copy_rows(home / "commits.db", home / "kept" / "commits.db")

    def restart(self, line: str) -> None:
        """Restore both catalogs, unless the line continues the line before it."""
        if "materialize" in line or "upsert" in line:
            return
        for kept in ("bucket", "lake", "copy"):
            shutil.rmtree(self.home / kept, ignore_errors=True)
            shutil.copytree(self.home / "kept" / kept.replace("copy", "lake"), self.home / kept)
        self._copy_rows(self.home / "kept" / "commits.db", self.home / "commits.db")
        if "resolve" in line:
            Path(f"/{self.staged.path}").write_bytes(self.content)

    def _copy_rows(self, source: Path, target: Path) -> None:
        """Copy the database by SQLite: its write-ahead log belongs to it, and connections may still be open."""
        with contextlib.closing(sqlite3.connect(source)) as rows, contextlib.closing(sqlite3.connect(target)) as copy:
            rows.backup(copy)


def test_maintenance(home: Path) -> None:
    def settings(plan: Mapping[str, Any]) -> None:
        [text] = re.findall(r"```toml\n(.*?)```", page("maintenance.md").read_text(), re.DOTALL)
        (home / "policy.toml").write_text(text)
        assert len(read_plan(home / "policy.toml").policy.rules) == len(plan["rules"])

    lakes = Lakes(home)
    catalog = fill("digests", None)
    names = {"catalog": catalog}
    reader = Reader(lakes.places, names, before=lakes.restart, apart=frozenset({"resolve"}), settings=settings)
    assert reader.read(page("maintenance.md")) >= 10
    assert catalog.find_table("ml.events").properties["lancekeep.digests"] == "false"


def test_migration(home: Path, postgres_url: str) -> None:
    for mode in ("v1", "compatible"):
        catalog = lancekeep.connect("bucket/lake", mode=mode)
        catalog.write(f"in_{mode}", ROWS)
    catalog.create_namespace("ml")
    catalog.write("ml.features", ROWS)
    entries = {"postgresql://lake@db/lake?catalog=prod": f"{postgres_url}?catalog={uuid4()}"}
    (home / "token.txt").write_text("token=secret\n")
    with serving(DirectoryNamespace(root=str(home / "bucket"), mode="v2")) as front:
        places = {
            "--commit-store dynamodb://lance-commits": "",
            "https://lance.example.com": front.uri,
            **entries,
            **local(home),
        }
        assert Reader(places, {"lancekeep": lancekeep}).read(page("migration.md"))
    assert lancekeep.connect("bucket/lake", mode="v2").table_exists("ml.features")


def test_namespace_operations() -> None:
    [text] = re.findall(r"```json\n(.*?)```", page("namespace-operations.md").read_text(), re.DOTALL)
    namespace = DirectoryNamespace(root="lake")
    namespace.create_namespace(lance_namespace.CreateNamespaceRequest(id=["sales"]))
    orders = pa.table({"id": [1, 2], "price": [2.0, 3.0], "amount": [0, 4]})
    lance.write_dataset(orders, namespace_client=namespace, table_id=["sales", "orders"])
    schema = pa.schema([("id", pa.int64()), ("total", pa.float64())])
    request = lance_namespace.CreateMaterializedViewRequest(
        id=["view"],
        kind="query",
        source_query=text,
        output_schema=b64encode(schema.serialize()).decode(),
        with_no_data=False,
    )
    namespace.create_materialized_view(request)
    found = lance.dataset(namespace_client=namespace, table_id=["view"]).to_table()
    assert found.to_pydict() == {"id": [2], "total": [12.0]}


def test_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    from lancekeep import spark

    written: list[Any] = []  # test_spark_partitioned.py writes and reads with Spark
    monkeypatch.setattr(spark, "write_partitioned", lambda *given: written.append(given))
    monkeypatch.setattr(spark, "read_partitioned", lambda *given: written.append(given))
    assert Reader(names={"frame": None, "spark": None}).read(page("partitions.md")) == 2
    assert [len(given) for given in written] == [2, 4]


def test_readers() -> None:
    names: dict[str, Any] = {"Walk": Walk}
    assert Reader(names=names).read(page("readers.md")) == 1


def test_rest_client(home: Path) -> None:
    with serving(DirectoryNamespace(root="lake")) as front:
        names = {"lancekeep": lancekeep, "lance": lance, "data": ROWS, "token": "token"}
        reader = Reader({"https://lance.example.com": front.uri}, names)
        assert reader.read(page("rest-client.md")) == 2
        assert reader.names["dataset"].count_rows() == 2
        assert reader.names["catalog"].open("ml.features").count_rows() == 4


def test_security(home: Path, server_settings: dict[str, str]) -> None:
    (home / "policy.toml").write_text("grants = []")
    (home / "audit.jsonl").touch()
    (home / "key.json").write_text(FakeGcs().key_file("https://oauth2.googleapis.com"))
    lancekeep.connect("lake", commit_store="conditional-put://").create_namespace("ml")
    read: list[str] = []

    def settings(given: Mapping[str, Any]) -> None:
        [kind] = given
        read.append(kind)
        if kind in ("grants", "quotas"):
            [text] = (text for text in toml if tomllib.loads(text) == given)
            if kind == "quotas":
                text += '[[grants]]\nrole = "write"\non = "ml"\nprincipals = ["key:ada"]\n'
            (home / "policy.toml").write_text(text)
            assert len(getattr(read_policy(home / "policy.toml"), kind)) == len(given[kind])
            return
        [(section, values)] = given["server"].items()
        security_of(ServerSettings(keys=str(home / "keys.json"), **{section: values}), {})

    toml = re.findall(r"```toml\n(.*?)```", page("security.md").read_text(), re.DOTALL)
    places = {
        "--file keys.json\n": "--file keys.json | tee key.txt\n",
        "'x-api-key: lk_3f0c5e9a1b2d_…'": '"x-api-key: $(cat key.txt)"',
        "lk_3f0c5e9a1b2d_…": "lk_…",
        "/var/log/lancekeep/audit.jsonl": "audit.jsonl",
        "/etc/lancekeep/key.json": "key.json",
        **server_settings,
    }
    assert Reader(places, settings=settings).read(page("security.md"))
    assert sorted(read) == [*["grants"] * 4, "quotas", *["server"] * 4]


def test_administration(home: Path, server_settings: dict[str, str]) -> None:
    """The commands of the page give a person a key, and change the policy of the server that runs."""
    lancekeep.connect("lake", commit_store="conditional-put://").create_namespace("ml")
    places = {
        "--file keys.json\n": "--file keys.json | tee key.txt\n",
        "'x-api-key: lk_3f0c5e9a1b2d_…'": '"x-api-key: $(cat key.txt)"',
        **server_settings,
    }
    assert Reader(places).read(page("administration.md"))
    assert [each.name for each in KeyFile(home / "keys.json").keys().values()] == ["root", "ada"]
    [grant] = read_policy(home / "policy.toml").grants  # the second was removed
    assert grant.principals == {"key:root"}
    changed = [json.loads(line).get("changed", "") for line in (home / "audit.jsonl").read_text().splitlines()]
    assert [each.split()[0] for each in changed if each] == ["created", "added", "removed"]
    listed = {route.path: route.operation_id for route in ADMINISTRATION}
    rows = rows_of("administration.md", "| route | operation | fields |")
    assert {cells[0].strip("`").split(" ")[1]: cells[1].strip("`") for cells in rows} == listed


class Provider(BaseHTTPRequestHandler):
    """An identity provider with one key, whose clients are in the group of engineers."""

    key = jwk.RSAKey.generate_key(2048, {"kid": "one"}, private=True)

    @property
    def _issuer(self) -> str:
        return f"http://{self.headers['host']}"

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/jwks":
            self._answer({"keys": [self.key.as_dict(private=False)]})
        else:
            issuer = self._issuer
            self._answer({"issuer": issuer, "jwks_uri": f"{issuer}/jwks", "token_endpoint": f"{issuer}/token"})

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        claims: dict[str, Any] = {
            "iss": self._issuer,
            "aud": "lancekeep",
            "sub": form["client_id"][0],
            "groups": ["engineers"],
        }
        claims["exp"] = int(datetime.now(UTC).timestamp()) + 300
        self._answer({"access_token": jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)})


def test_sign_in(home: Path, server_settings: dict[str, str]) -> None:
    """A client of a provider gets a token, with which the server knows the principal and the groups."""
    with lancekeep.connect("lake", commit_store="conditional-put://") as catalog:
        catalog.create_namespace("ml")
        catalog.create_namespace("hr")
    provider = HTTPServer(("127.0.0.1", 0), Provider)
    Thread(target=provider.serve_forever, daemon=True).start()
    places = {"https://id.example.com": f"http://127.0.0.1:{provider.server_port}", **server_settings}
    text = page("sign-in.md").read_text()
    for place, own in places.items():
        text = text.replace(place, own)
    tomls = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)

    def settings(given: Mapping[str, Any]) -> None:
        [found] = (each for each in tomls if tomllib.loads(each) == given)
        name = re.findall(r"# (\S+\.toml)", found)[0]
        before = (home / name).read_text() if (home / name).exists() else "[server]\n"
        (home / name).write_text(found.replace("[server]\n", before))

    reader = Reader(places, settings=settings)
    assert reader.read(page("sign-in.md")) == 7
    lines = [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]
    assert {line["principal"] for line in lines if line.get("operation")} == {"jwt:loader"}
    provider.shutdown()
    provider.server_close()


def read_with_policy(path: Path, home: Path, server_settings: Mapping[str, str]) -> int:
    """Read a page whose settings are a policy, and whose server has the key that the page creates."""

    def settings(given: Mapping[str, Any]) -> None:
        [text] = re.findall(r"```toml\n(.*?)```", path.read_text(), re.DOTALL)
        assert tomllib.loads(text) == given
        (home / "policy.toml").write_text(text)

    places = {
        "--file keys.json\n": "--file keys.json | tee key.txt\n",
        "'x-api-key: lk_3f0c5e9a1b2d_…'": '"x-api-key: $(cat key.txt)"',
        '"lk_3f0c5e9a1b2d_…"': 'open("key.txt").read().strip()',
        "lk_3f0c5e9a1b2d_…": "lk_…",
        **server_settings,
    }
    return Reader(places, settings=settings).read(path)


def test_team_subtree(home: Path, server_settings: dict[str, str]) -> None:
    assert read_with_policy(page("team-subtree.md"), home, server_settings) == 8
    with lancekeep.connect("lake", commit_store="conditional-put://") as catalog:
        assert catalog.open("vision.raw.frames").count_rows() == 2


def test_several_catalogs(home: Path, port: int, server_settings: dict[str, str]) -> None:
    """The server of the page runs; its log and its answers are as they are shown."""
    shared = {
        name for cells in rows_of("several-catalogs.md", "| of the server") for name in re.findall(r"`(\w+)`", cells[0])
    }
    assert shared == OF_PROCESS
    page_text = page("several-catalogs.md").read_text()
    tomls = re.findall(r"```toml\n(.*?)```", page_text, re.DOTALL)

    def settings(given: Mapping[str, Any]) -> None:
        [text] = (
            text for text in tomls if tomllib.loads(text) == given or ("catalogs" in given and "[server]" in text)
        )
        name = "lancekeep.toml" if "catalogs" in given else re.findall(r"# (\w+\.toml)", text)[0]
        for place, own in local(home).items():
            text = text.replace(place, own)
        (home / name).write_text(text.replace("[server]", f"[server]\nport = {port}\nlog_level = 'error'"))

    def documents(document: dict[str, Any]) -> None:
        ready = httpx.get(f"http://127.0.0.1:{port}/readyz").json()
        assert (ready.keys(), ready["checks"]) == (document.keys(), document["checks"])
        assert ready["catalogs"]["lab"]["checks"] == document["catalogs"]["lab"]["checks"]
        assert ready["catalogs"].keys() == document["catalogs"].keys()
        recorded = f"http://127.0.0.1:{port}/catalogs/lab/v1/events?wait=30"
        assert httpx.get(recorded, headers={"x-api-key": names["key"]()}, timeout=60).json()

    places = {
        "--file keys.json\n": "--file keys.json | tee key.txt\n",
        "'x-api-key: lk_3f0c5e9a1b2d_…'": '"x-api-key: $(cat key.txt)"',
        'properties={"rest.api_key": key}': 'properties={"rest.api_key": key()}',
        'header.x-api-key": key}': 'header.x-api-key": key()}',
        **server_settings,
    }
    names = {"key": lambda: (home / "key.txt").read_text().split()[-1], "data": ROWS}
    assert Reader(places, names, settings=settings, documents=documents).read(page("several-catalogs.md")) == 9
    assert {json.loads(line)["catalog"] for line in (home / "audit.jsonl").read_text().splitlines()} == {"lab"}


def test_server(port: int, server_settings: dict[str, str]) -> None:
    def settings(given: Mapping[str, Any]) -> None:
        assert ServerSettings(**given["server"]) != ServerSettings()

    batches: list[dict[str, Any]] = []

    def documents(document: dict[str, Any]) -> None:
        if "ids" in document:
            answer = httpx.post(f"http://127.0.0.1:{port}/lancekeep/v1/table/batch-describe", json=document)
            batches.append(answer.json())
        elif "results" in document:
            for shown, found in zip(document["results"], batches.pop()["results"], strict=True):
                assert (found["id"], found.keys()) == (shown["id"], shown.keys())
                for kind in shown.keys() - {"id"}:
                    assert shown[kind].keys() <= found[kind].keys()
        else:
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/table/ml$other/describe", json={})
            assert (answer.status_code, answer.json()["code"]) == (document["status"], document["code"])
            assert answer.json().keys() == document.keys()

    assert Reader(server_settings, settings=settings, documents=documents).read(page("server.md")) >= 6
    assert lancekeep.connect("lake", commit_store="conditional-put://").open("ml.names").count_rows() == 2


def test_table_format(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lakes = Lakes(home)
    table = Path("files/t.lance")
    lance.write_dataset(pa.table({"id": range(8)}), table, enable_stable_row_ids=True)
    for at in range(6):
        lance.dataset(table).delete(f"id = {at}")
    (home / "archive").mkdir()
    lance.dataset(table).add_bases([DatasetBasePath(str(home / "archive"), "archive")])
    catalog = lancekeep.connect("files")
    monkeypatch.setenv("LANCEKEEP_COMMIT_STORE", COMMIT_STORE.format(home))  # the commands name none
    manifest = (table / "_versions" / NamingScheme.V2.final_name(7)).read_bytes()
    [fragment] = TableVersion.parse(manifest, "t").manifest.fragments
    names = {
        "catalog": catalog,
        "name": "t",
        "manifest_file": manifest,
        "transaction_file": next(table.glob("_transactions/6-*")).read_bytes(),
        "fragment": fragment,
        "deletion_file": next(table.glob("_deletions/0-6-*")).read_bytes(),
        "uuid4": uuid4,
    }
    reader = Reader({"s3://new-bucket": str(home), **lakes.places}, names, before=lakes.restart)
    assert reader.read(page("table-format.md")) >= 6
    assert reader.names["found"].tolist() == [False] * 6 + [True] * 2
    assert "owner" in catalog.open("t").config()


def test_reading() -> None:
    catalog = lancekeep.connect("lake")
    catalog.create_namespace("ml")
    vectors = pa.array([[0.1, 0.9], [0.9, 0.1]], pa.list_(pa.float32(), 2))
    catalog.write("ml.features", ROWS.append_column("price", [[5.0, 20.0]]).append_column("vector", vectors))
    reader = Reader(names={"catalog": catalog})
    assert reader.read(page("reading.md")) == 4
    assert reader.names["scan"].to_arrow()["id"].to_pylist() == [2]


def test_catalog_file(home: Path) -> None:
    fill("lake", None)
    assert Reader().read(page("catalog-file.md")) == 2
    assert lancekeep.connect("staging").open("ml.features").count_rows() == 0


def test_differences() -> None:
    catalog = lancekeep.connect("lake")
    catalog.create_namespace("ml")
    catalog.write("ml.features", ROWS)
    dataset = catalog.open("ml.features")
    dataset.insert(pa.table({"id": [3], "text": ["three"]}), mode="append")
    dataset.delete("id = 1")
    dataset.tags.create("reviewed", 2)
    dataset.create_branch("experiment", 2)
    table = Path(catalog.describe_table("ml.features").uri.removeprefix("file://"))
    set_times(table, {1: nanos_of(datetime(2026, 11, 24, 8, 30, tzinfo=UTC))})
    reader = Reader(names={"catalog": catalog})
    assert reader.read(page("differences.md")) == 2
    assert reader.names["difference"].count(["id"]) == lancekeep.ChangeCounts(1, 1, 0)


def test_time_travel(home: Path) -> None:
    catalog = fill("lake", None)
    dataset = catalog.open("ml.features")
    dataset.tags.create("training-2026-03", 2)
    dataset.create_branch("experiment", 1)
    table = Path(catalog.describe_table("ml.features").uri.removeprefix("file://"))
    set_times(table, {1: nanos_of(datetime(2026, 11, 24, 8, 30, tzinfo=UTC))})
    set_times(table / "tree" / "experiment", {1: nanos_of(datetime(2026, 11, 24, 8, 30, tzinfo=UTC))})
    assert Reader(names={"catalog": catalog}).read(page("time-travel.md")) == 2
    assert catalog.open("ml.features").count_rows() == 2


def test_transactions(home: Path) -> None:
    names = {"directory": home, "orders": ROWS, "more_orders": ROWS, "totals": ROWS}
    reader = Reader(names=names)
    assert reader.read(page("transactions.md")) == 1
    found = {str(table): version for table, version in reader.names["snapshot"].versions.items()}
    assert found == {"orders": 1, "totals": 1}
    assert reader.names["catalog"].open("orders").count_rows() == 4


def test_page(home: Path) -> None:
    lancekeep.connect("lake").write("features", ROWS)
    assert Reader().read(page("page.md")) == 2


def test_commit_stores(home: Path) -> None:
    assert Reader({"/var/lib/lake": str(home)}).read(page("commit-stores.md")) == 3


def test_properties() -> None:
    names: dict[str, Any] = {}
    assert Reader(names=names).read(page("properties.md")) == 1
    assert all(names["catalog"].open(name).has_stable_row_ids for name in "abc")


def test_restricted_rights(home: Path, server_settings: dict[str, str]) -> None:
    assert read_with_policy(page("restricted-rights.md"), home, server_settings) == 7


def test_undrop(home: Path) -> None:
    assert Reader().read(page("undrop.md")) == 10


def test_events(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[dict[str, str], bytes]] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

    secret = "whsec_" + b64encode(b"s" * 32).decode()
    monkeypatch.setenv("BILLING_SECRET", secret)
    receiver = HTTPServer(("127.0.0.1", 0), Taking)
    Thread(target=receiver.serve_forever, daemon=True).start()
    text = page("events.md").read_text()
    files = "\n".join(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)).replace(
        "https://hooks.example.com", f"http://127.0.0.1:{receiver.server_port}"
    )
    (home / "lancekeep.toml").write_text(files)
    assert [each.subscriber.name for each in configured_subscribers()] == ["billing", "archive"]
    with serving(DirectoryNamespace(root="lake")) as front:
        reader = Reader(
            {"http://localhost:2333": front.uri, "lancekeep serve s3://bucket/lake": "echo lancekeep serve"}
        )
        assert reader.read(page("events.md")) == 9
        assert reader.names["page"].events[-1].data["version"] == 1
    receiver.shutdown()
    receiver.server_close()
    [(headers, body)] = taken  # of the test event
    verified = reader.names["verified"]
    assert verified(headers, body, secret)
    assert not verified(headers, body, "whsec_" + b64encode(b"x" * 32).decode())
    assert not verified(headers, body + b" ", secret)
    assert not verified({**headers, "webhook-timestamp": "1"}, body, secret)


def test_settings_of_subscribers_have_the_documented_defaults() -> None:
    defaults = {each.name: each.default for each in attrs.fields(Subscriber)}
    defaults |= {"timeout": attrs.fields_dict(ConfiguredSubscriber)["timeout"].default}
    units = {"s": 1, "d": 86_400}
    named = set()
    for setting, default, _ in rows_of("events.md", "| setting | default | meaning |"):
        key, text = setting.strip("`"), default.strip("`")
        named.add(key)
        found = defaults.get({"retry_for": "retry_seconds"}.get(key, key))
        number = text[:-1]
        if number.isdecimal() and text[-1] in units:
            assert int(number) * units[text[-1]] == found, key
        elif found is not None and text and key not in ("types", "below"):
            assert text == str(found), key
    assert named == {*OF_WEBHOOKS, "secrets", "below"}


# -- tables of settings --------------------------------------------------------------------------------------------


def rows_of(name: str, header: str) -> Iterator[list[str]]:
    """Yield the cells of each row of a table of a page."""
    lines = iter(page(name).read_text().splitlines())
    assert any(line.startswith(header) for line in lines), f"{name} has no table {header}"
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_settings_of_the_server_have_the_documented_defaults() -> None:
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    named: set[str] = set()
    for file, header in (
        ("server.md", "| setting | default |"),
        ("security.md", "| setting of `[server]` | default |"),
    ):
        for cells in rows_of(file, header):
            settings = re.findall(r"`(\w+)`", cells[0])
            defaults = cells[1].replace("`", "").split(", ")
            named.update(settings)
            for setting, default in zip(settings, defaults, strict=False):
                number, _, unit = default.replace("none", "0").partition(" ")
                value = str(int(number) * units[unit]) if unit else number
                assert value in ("", str(getattr(ServerSettings(), setting)).lower()), setting
    assert named == attrs.fields_dict(ServerSettings).keys()


def test_settings_of_connections_are_documented() -> None:
    documented = {re.findall(r"`([\w.]+)`", cells[0])[0] for cells in rows_of("configuration.md", "| property |")}
    open_ended = {"storage.NAME", "commit_store.NAME", "manifest_store.NAME"}
    assert documented - open_ended == {*TEXTS, *BOOLEANS, "catalog"}
