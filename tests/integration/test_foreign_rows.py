"""Rows and tokens that another program forged: each is refused at every door, and storage stays as it was."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import lance
import psycopg
import pyarrow as pa
import pytest
import redis
from deployments import Deployment, deployment

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.naming import NamingScheme

KINDS = ("sqlite", "files", "redis", "postgres", "dynamodb")
ROWS = pa.table({"a": [1, 2, 3]})
STAGED = "manifest-0b1d33a2-30a6-4f5c-8a35-3b0f2b1d33a2"
LATEST = 3


def forge(store: str, base_uri: str, version: int, path: str, size: int = 100) -> None:
    """Write a row with the store's own driver."""
    parts = urlsplit(store)
    final = path.endswith(".manifest") and not path.startswith("moved-to:")
    match parts.scheme:
        case "sqlite":
            with closing(sqlite3.connect(parts.path)) as connection, connection:
                values = (base_uri, version, path, size, "eve", int(final))
                connection.execute("INSERT OR REPLACE INTO version_rows VALUES (?, ?, ?, ?, ?, ?)", values)
        case "file":
            history = Path(parts.path, sha256(base_uri.encode()).hexdigest())
            (history / str(version)).write_bytes(f"{size}\0{path}\0eve".encode())
            with (history / "history").open("ab") as file:
                file.write(b".")
        case "redis":
            with closing(redis.Redis.from_url(store)) as client:
                key = f"lancekeep:{{{base_uri}}}"
                state = "M" if path.startswith("moved-to:") else "F" if final else "S"
                client.zremrangebyscore(key, version, version)
                client.zadd(key, {f"{version}\0{state}\0{size}\0{path}\0eve": version})
        case "postgresql":
            with psycopg.connect(store) as rows:
                rows.execute(
                    "INSERT INTO lancekeep.version_row VALUES (%(uri)s, %(version)s, %(path)s, %(size)s, 'eve', false) "
                    "ON CONFLICT (base_uri, version) DO UPDATE SET path = %(path)s, size = %(size)s",
                    {"uri": base_uri, "version": version, "path": path, "size": size},
                )
        case _:
            endpoint = parse_qs(parts.query)["endpoint_url"][0]
            item: Mapping[str, Any] = {
                "base_uri": {"S": base_uri},
                "version": {"N": str(version)},
                "path": {"S": path},
                "size": {"N": str(size)},
            }
            boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1").put_item(
                TableName=parts.netloc, Item=item
            )


class Lake:
    """A catalog with the tables ``t`` and ``other``, files of others around it, and a store to forge rows in."""

    def __init__(self, given: Deployment, directory: Path) -> None:
        self.given = given
        self.directory = directory
        for name in ("home/secret.txt", "home/_versions/4.manifest-x", "lake/notes/_versions/4.manifest"):
            file = directory / name
            file.parent.mkdir(parents=True)
            file.write_bytes(b"another's")
        self.catalog = self.connect()
        for table in ("t", "other"):
            for _ in range(LATEST):
                self.catalog.write(table, ROWS, "overwrite")

    def connect(self) -> lancekeep.Catalog:
        return lancekeep.connect(self.given.root, commit_store=self.given.commit_store)

    def base_uri(self, table: str = "t") -> str:
        return directory_of(self.catalog).places.dataset_root(self.catalog.find_table(table)).base_uri

    def key(self, table: str = "t") -> str:
        return directory_of(self.catalog).places.dataset_root(self.catalog.find_table(table)).key

    def forge(self, version: int, path: str) -> None:
        forge(self.given.commit_store, self.base_uri(), version, path)

    def files(self) -> dict[str, bytes]:
        """Everything in and around the catalog, apart from the commit store."""
        return {
            str(path): path.read_bytes()
            for path in sorted(self.directory.rglob("*"))
            if path.is_file() and "commits" not in path.relative_to(self.directory).parts[0]
        }

    def paths(self) -> dict[str, tuple[int, str]]:
        """Forged rows: a version, and the path that its row names."""
        outside, other, own = str(self.directory / "home")[1:], self.key("other"), self.key()
        v1, v2, following = NamingScheme.V1, NamingScheme.V2, LATEST + 1
        return {
            "a file outside": (following, f"{outside}/secret.txt"),
            "a staged manifest outside": (following, f"{outside}/_versions/4.{STAGED}"),
            "another table's manifest": (following, f"{other}/_versions/{v2.final_name(LATEST)}"),
            "another version of this table": (following, f"{own}/_versions/{v2.final_name(2)}"),
            "a way out": (following, f"{own}/_versions/../../other.lance/_versions/{v2.final_name(following)}"),
            "a directory below": (following, f"{own}/_versions/x/{v1.final_name(following)}"),
            "a fence that names no store": (following, "moved-to:nowhere"),
            "nothing": (following, ""),
            "another table's data": (2, f"{other}/data/x.lance"),
            "an old version": (2, f"{other}/_versions/{v2.final_name(2)}"),
        }


@pytest.fixture(params=KINDS)
def lake(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, moto_endpoint: str, postgres_url: str
) -> Iterator[Lake]:
    lake = Lake(deployment(request.param, tmp_path, redis_url, moto_endpoint, postgres_url), tmp_path)
    yield lake
    lake.catalog.close()


def readers_and_writers(catalog: lancekeep.Catalog, store: str) -> dict[str, Callable[[], Any]]:
    namespace = lancekeep.DirectoryNamespace(root=catalog.root_uri, commit_store=store)
    base = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    return {
        "describe": lambda: catalog.describe_table("t"),
        "open": lambda: catalog.open("t").to_table(),
        "history": lambda: catalog.versions.history("t"),
        "append": lambda: catalog.write("t", ROWS, "append"),
        "native append": lambda: lance.write_dataset(ROWS, namespace_client=namespace, table_id=["t"], mode="append"),
        "native open": lambda: lance.dataset(namespace_client=namespace, table_id=["t"]).to_table(),
        "delete versions": lambda: directory_of(catalog).versions.delete_versions(base, [1, 2]),
        "snapshot": lambda: catalog.snapshot(["t"]),
        "rename": lambda: catalog.rename_table("t", "u"),
        "change commit store": lambda: catalog.upkeep.change_commit_store("memory://elsewhere"),
    }


def test_forged_row_is_refused_everywhere_and_changes_no_file(lake: Lake) -> None:
    for what, (version, path) in lake.paths().items():
        lake.forge(version, path)
        catalog = lake.connect()
        before = lake.files()
        for door, call in readers_and_writers(catalog, lake.given.commit_store).items():
            try:
                call()
            except (lancekeep.LancekeepError, OSError, ValueError):
                after = lake.files()
                assert [name for name in before if after.get(name) != before[name]] == [], f"{door}: {what}"
            else:  # it reads the latest version only
                assert version < LATEST, f"{door}: {what}"
                before = lake.files()
        assert catalog.open("other").to_table() == ROWS
        assert catalog.list_tables(include_declared=False) == ["other", "t"]
        skipped = [each.table for each in catalog.upkeep.cleanup(timedelta(0), dry_run=True).skipped]
        assert skipped == (["t"] if version < LATEST else []), what
        (found,) = [
            each for each in catalog.upkeep.fsck(deep=True, repair=True).findings if each.kind is Kind.FOREIGN_ROW
        ]
        assert (found.object, found.repaired) == ("t", True), what
        healthy = lake.connect()
        assert {each.kind for each in healthy.upkeep.fsck(tables=["t"]).findings} <= {Kind.STAGED}, what
        assert lance.dataset(f"{lake.given.root}/t.lance").to_table() == healthy.open("t").to_table(), what
        assert lake.files()[str(lake.directory / "home/secret.txt")] == b"another's"
        catalog.close()
        healthy.close()


def test_table_with_forged_row_can_be_dropped_and_recreated(lake: Lake) -> None:
    _, path = lake.paths()["a file outside"]
    lake.forge(LATEST + 1, path)
    base_uri = lake.base_uri()
    lake.catalog.drop_table("t")
    forge(lake.given.commit_store, base_uri, 7, path)
    catalog = lake.connect()
    catalog.write("t", ROWS)
    assert lance.dataset(f"{lake.given.root}/t.lance").to_table() == catalog.open("t").to_table() == ROWS
    assert Path(lake.directory, "home/secret.txt").read_bytes() == b"another's"
    catalog.close()


def test_forged_token_is_refused_and_changes_no_file(lake: Lake) -> None:
    """Each token names a manifest that exists, so that a reservation or a copy would show."""
    catalog = lake.catalog
    catalog.declare_table("declared")
    base_uri, key, following = lake.base_uri(), lake.key(), LATEST + 1
    staged = f"{key}/_versions/{NamingScheme.V2.final_name(following)}-0b1d33a2"
    content = Path("/", key, "_versions", NamingScheme.V2.final_name(LATEST)).read_bytes()
    outside = str(lake.directory / "home")[1:]
    inside = f"{lake.directory}/lake/notes"[1:]
    for path in (staged, f"{outside}/_versions/4.{STAGED}", f"{inside}/_versions/4.{STAGED}", f"{key}/x/4.{STAGED}"):
        Path("/", path).parent.mkdir(exist_ok=True)
        Path("/", path).write_bytes(content)
    sound = StagedManifest(base_uri, following, staged, len(content))
    parts: dict[str, dict[str, Any]] = {
        "outside the root": {"base_uri": f"file:///{outside}", "path": f"{outside}/_versions/4.{STAGED}"},
        "another root of the table": {"base_uri": f"file:///{outside}"},
        "a directory of no table, claimed for a table": {"path": f"{inside}/_versions/4.{STAGED}"},
        "a directory below the table": {"path": f"{key}/x/4.{STAGED}"},
        "a way out": {"base_uri": f"{base_uri}/../../home", "path": f"{key}/../../home/_versions/4.{STAGED}"},
        "another version": {"version": following + 1},
        "a negative version": {"version": -1},
        "a version beyond all": {"version": 2**64},
        "a negative size": {"size": -1},
        "a final manifest": {"path": f"{key}/_versions/{NamingScheme.V2.final_name(following)}"},
        "a beginning in the middle": {"begins": True},
        "a digest that is none": {"digest": "x"},
        "inside a table's directory": {"base_uri": f"{base_uri}/data", "path": f"{key}/data/_versions/4.{STAGED}"},
        "the catalog's own table": {
            "base_uri": f"file://{lake.given.root}/__manifest",
            "path": f"{lake.given.root[1:]}/__manifest/_versions/4.{STAGED}",
        },
    }
    before = lake.files()
    for part in parts.values():
        forged = json.loads(str(CommitToken(sound))) | part
        for text in (json.dumps(forged), json.dumps([json.loads(str(CommitToken(sound))), forged])):
            with pytest.raises(lancekeep.InvalidInput):
                catalog.resolve(text)
            with pytest.raises(lancekeep.InvalidInput):
                catalog.resolve(CommitToken(StagedManifest(**forged)))
    for text in ("[]", "[1]", json.dumps([json.loads(str(CommitToken(sound)))] * 2)):
        with pytest.raises(lancekeep.InvalidInput):
            catalog.resolve(text)
    nobodys = StagedManifest(f"file:///{inside}", 4, f"{inside}/_versions/4.{STAGED}", len(content))
    outcome = catalog.resolve(CommitToken(nobodys))
    assert isinstance(outcome, lancekeep.Unknown)
    assert "the catalog has no table at" in outcome.reason
    assert lake.files() == before
    assert catalog.describe_table("t").version == LATEST
