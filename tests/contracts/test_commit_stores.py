"""The commit store contract for every adapter, and tests of single adapters."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

import attrs
import boto3
import pytest
from botocore.errorfactory import ClientExceptionsFactory
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from deployments import bucket, s3_options
from faults import Faulty, lost_replies
from losing_proxy import losing_proxy
from redis import Redis
from redis_servers import own_redis

from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.commit_stores.conditional_put import ConditionalPutCommitStore
from lancekeep.adapters.commit_stores.dynamodb import OWNER
from lancekeep.adapters.commit_stores.files import FilesCommitStore
from lancekeep.adapters.commit_stores.sqlite import SqliteCommitStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.commits.managed_rows import ManagedRows
from lancekeep.domain.errors import (
    AccessDenied,
    Damaged,
    InvalidInput,
    ObjectNotFound,
    Refused,
    StoreUnavailable,
    UnsafeStore,
    Unsupported,
)
from lancekeep.domain.naming import NamingScheme, final_path
from lancekeep.domain.version_row import Claim, Reserved, Taken, VersionRow
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectInfo, ObjectStoreGuarantees
from lancekeep.testing.commit_site import Site, Writer
from lancekeep.testing.commit_store import (
    BatchContract,
    CommitStoreContract,
    SharedCommitStoreContract,
)
from lancekeep.testing.concurrency import race
from lancekeep.testing.unfinished_rows import UnfinishedContract
from servers import silent_server

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

MEMORY = MemoryObjectStore()


def table_url(endpoint: str, table: str | None = None, more: str = "") -> str:
    return f"dynamodb://{table or f'rows-{uuid4().hex[:12]}'}?region=us-east-1&endpoint_url={endpoint}{more}"


# -- the contract ---------------------------------------------------------------------------------------------------


class TestMemory(BatchContract, UnfinishedContract):
    @pytest.fixture
    def site(self) -> Site:
        return Site(f"memory://{uuid4()}")


class TestFiles(SharedCommitStoreContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        return Site(f"file://{tmp_path}/commits", options={"fsync": "false"})


class TestDurableFiles(SharedCommitStoreContract):
    rows = 200  # each row is synced

    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        return Site(f"file://{tmp_path}/commits%20of%20me")


class TestSqlite(BatchContract, SharedCommitStoreContract, UnfinishedContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        return Site(f"sqlite://{tmp_path}/commits.db", options={"synchronous": "normal", "timeout": "60"})


class TestDurableSqlite(BatchContract, SharedCommitStoreContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        return Site(f"sqlite://{tmp_path}/commits%3Fof%20me.db?timeout=60")


class TestRedis(BatchContract, SharedCommitStoreContract):
    @pytest.fixture
    def site(self, redis_url: str) -> Site:
        return Site(redis_url)


class TestPostgres(BatchContract, SharedCommitStoreContract):
    @pytest.fixture
    def site(self, postgres_url: str) -> Site:
        return Site(postgres_url)


class TestDynamoDB(BatchContract, SharedCommitStoreContract):
    rows = 200  # each row is a request

    @pytest.fixture
    def site(self, moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Site:
        # On a busy machine, moto takes seconds for a long history.
        monkeypatch.setattr("lancekeep.adapters.commit_stores.dynamodb.READ_TIMEOUT", 60)
        return Site(table_url(moto_endpoint))

    def test_requests_of_threads_load_no_classes_of_errors(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """The driver loads them once for each thread whose first error comes then, and no thread knows the others."""
        store = site.connect()

        def loaded(*_: object) -> None:
            raise AssertionError("a request loads classes of errors")

        monkeypatch.setattr(ClientExceptionsFactory, "create_client_exceptions", loaded)
        row = VersionRow("memory:///t.lance", 1, "t.lance/_versions/1.manifest", 1)
        assert isinstance(store.reserve(row, first=True), Reserved)  # which finds no table, and creates it


class TestDynamoDBInContainer(SharedCommitStoreContract):
    rows = 200

    @pytest.fixture
    def site(self, moto_container_endpoint: str) -> Site:
        return Site(table_url(moto_container_endpoint))


class TestConditionalPutInMemory(CommitStoreContract):
    @pytest.fixture
    def site(self) -> Site:
        return Site("conditional-put://", derived=True)


class TestConditionalPutOnFiles(SharedCommitStoreContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        return Site("conditional-put://", str(tmp_path / "lake"), {"fsync": "false"}, derived=True)


class TestConditionalPutOnS3(SharedCommitStoreContract):
    rows = 50  # the object store's tests cover listings of several pages
    races = 10

    @pytest.fixture
    def site(self, moto_endpoint: str) -> Site:
        return Site("conditional-put://", f"s3://{bucket(moto_endpoint)}/lake", s3_options(moto_endpoint), derived=True)


@attrs.frozen
class ManagedSite(Site):
    """A commit store and the storage's own condition, behind one `ManagedRows`."""

    def connect(self) -> ManagedRows:
        objects = self.objects
        return ManagedRows(super().connect(), ConditionalPutCommitStore(objects), objects.root_uri)


@attrs.frozen
class ReleasedSite(ManagedSite):
    """The same, where every history is a branch of a table that is left to the storage."""

    def new_base_uri(self, name: str = "t.lance") -> str:
        table = super().new_base_uri()
        self.connect().release(table)
        return f"{table}/tree/{name}"


class TestManagedByCommitStore(BatchContract):
    test_release_ends_claims_until_it_is_deleted = None  # type: ignore[assignment] # the rows show no release

    @pytest.fixture
    def site(self) -> Site:
        return ManagedSite(f"memory://{uuid4().hex}")


class TestManagedByStorage(CommitStoreContract):
    @pytest.fixture
    def site(self) -> Site:
        return ReleasedSite(f"memory://{uuid4().hex}", derived=True)


class TestManagedByStorageBesideFiles(CommitStoreContract):
    rows = 50
    races = 5

    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        return ReleasedSite(f"file://{tmp_path}/commits", str(tmp_path / "lake"), {"fsync": "false"}, derived=True)


def staged(version: int, base_uri: str = "s3://bucket/lake/t.lance", committer: str = "ada@host") -> VersionRow:
    key = base_uri.removeprefix("s3://bucket/")
    path = f"{key}/_versions/{NamingScheme.V2.final_name(version)}-{uuid4()}"
    return VersionRow(base_uri, version, path, 1000 + version, committer)


def final(row: VersionRow) -> VersionRow:
    return VersionRow(row.base_uri, row.version, final_path(row.path), row.size, row.committer)


def address_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


# -- lost replies, and stores that are not there ----------------------------------------------------------------------


@pytest.mark.parametrize("losses", [1, 2, 7])
@pytest.mark.parametrize("kind", ["redis", "postgres", "dynamodb"])
def test_reserve_with_lost_reply_is_recognized(
    kind: str, losses: int, redis_url: str, postgres_url: str, moto_endpoint: str
) -> None:
    """The driver retries first; after that, the caller retries."""
    server, marker = {
        "redis": (redis_url, b"EVALSHA"),
        "postgres": (postgres_url, b"WITH claim"),
        "dynamodb": (moto_endpoint, b"DynamoDB_20120810.PutItem"),
    }[kind]
    base_uri = f"s3://bucket/{uuid4()}"
    table = f"rows-{uuid4().hex[:12]}"

    def url(address: str) -> str:
        if kind == "dynamodb":
            return table_url(f"http://{address}", table)
        return server.replace(address_of(server), address)

    with (
        losing_proxy(address_of(server), marker) as proxy,
        closing(open_commit_store(url(f"127.0.0.1:{proxy.port}"), {}, MEMORY)) as store,
    ):
        one = staged(1, base_uri)
        assert store.reserve(one, first=True) == Reserved()  # loads the script or creates the table
        store.finalize(final(one))
        proxy.losses = losses
        row, raised = staged(2, base_uri), 0
        while True:
            try:
                answer = store.reserve(row, first=False)
                break
            except StoreUnavailable:
                raised += 1
        assert answer == Reserved()
        lost = min(losses, 2) if kind == "dynamodb" else losses  # DynamoDB is read before the next attempt to write
        assert (proxy.lost, raised) == (lost, lost // 2)  # each driver tries twice
        assert store.reserve(staged(2, base_uri), first=False) == Taken(row)
        assert store.list(base_uri, after=1, limit=None, descending=False) == [row]


@pytest.mark.parametrize("kind", ["redis", "postgres", "dynamodb"])
def test_batch_with_lost_reply_is_recognized(kind: str, redis_url: str, postgres_url: str, moto_endpoint: str) -> None:
    names, table = [f"s3://bucket/{uuid4()}" for _ in range(2)], f"rows-{uuid4().hex[:12]}"
    server, marker = {
        "redis": (redis_url, b"EVALSHA"),
        "postgres": (postgres_url, b"WITH claim"),
        "dynamodb": (moto_endpoint, b"_20120810.TransactWriteItems"),
    }[kind]

    def url(address: str) -> str:
        if kind == "dynamodb":
            return table_url(f"http://{address}", table)
        return server.replace(address_of(server), address)

    with (
        losing_proxy(address_of(server), marker) as proxy,
        closing(open_commit_store(url(f"127.0.0.1:{proxy.port}"), {}, MEMORY)) as store,
        closing(open_commit_store(url(address_of(server)), {}, MEMORY)) as near,
    ):
        assert near.reserve(staged(1, f"s3://bucket/{uuid4()}"), first=True) == Reserved()  # creates the table
        rows = [staged(1, name) for name in names]
        proxy.losses = 2
        with pytest.raises(StoreUnavailable):
            store.reserve_all([Claim(row, first=True) for row in rows])
        assert proxy.lost == 2
        assert near.finalize(final(rows[1]))  # a concurrent reader
        assert store.reserve_all([Claim(row, first=True) for row in rows]) == Reserved()
        assert list(near.latest_all(names)) == [rows[0], final(rows[1])]


@pytest.mark.parametrize("kind", ["redis", "postgresql", "dynamodb"])
def test_refused_connection_is_unavailable(kind: str) -> None:
    address = closed_port()
    if kind != "dynamodb":
        store = open_commit_store(f"{kind}://ada:hunter2@{address}/0", {}, MEMORY)
    else:
        store = open_commit_store(table_url(f"http://{address}"), {**CREDENTIALS_OF_ADA}, MEMORY)
    check_unavailable(store, address)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "redis-cluster", "postgresql", "dynamodb"])
def test_silent_store_is_unavailable_after_two_attempts(kind: str) -> None:
    """Each attempt ends by the timeout of its client; more than two would take longer than ten seconds."""
    with silent_server() as (address, connections):
        if kind == "dynamodb":
            store = open_commit_store(table_url(f"http://{address}"), {**CREDENTIALS_OF_ADA}, MEMORY)
        else:
            scheme, _, cluster = kind.partition("-")
            more = "?cluster=true" if cluster else ""
            store = open_commit_store(f"{scheme}://ada:hunter2@{address}/0{more}", {}, MEMORY)
        with pytest.raises(StoreUnavailable, match=address) as caught:
            store.latest("s3://bucket/t")
        assert 1 <= len(connections) <= 2
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))


CREDENTIALS_OF_ADA = {"aws_access_key_id": "ada", "aws_secret_access_key": "hunter2", "aws_session_token": "hunter2"}


def every_call(store: ExternalCommitStore, row: VersionRow) -> tuple[Callable[[], object], ...]:
    return (
        lambda: store.get(row.base_uri, 1),
        lambda: store.latest(row.base_uri),
        lambda: store.list(row.base_uri, after=None, limit=1, descending=True),
        lambda: store.reserve(row, first=True),
        lambda: store.reserve_all([Claim(row, first=True)]),
        lambda: store.latest_all([row.base_uri]),
        lambda: store.finalize(final(row)),
        lambda: store.record([final(row)]),
        lambda: store.delete(row.base_uri),
    )


def check_unavailable(store: ExternalCommitStore, address: str) -> None:
    row = staged(1)
    for act in every_call(store, row):
        with pytest.raises(StoreUnavailable, match=address) as caught:
            act()
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in repr(store) + store.url


# -- Redis --------------------------------------------------------------------------------------------------------


def commit_a_few(store: ExternalCommitStore) -> None:
    base_uri = f"s3://bucket/{uuid4()}"
    for version in range(1, 4):
        row = staged(version, base_uri)
        assert store.reserve(row, first=version == 1) == Reserved()
        assert store.finalize(final(row))
        assert store.latest(base_uri) == final(row)
    assert store.delete(base_uri) == 3


def test_killed_redis_is_unavailable_until_restarted() -> None:
    with own_redis() as port:
        store = open_commit_store(f"redis://127.0.0.1:{port}", {}, MEMORY)
        commit_a_few(store)
    check_unavailable(store, f"127.0.0.1:{port}")
    with own_redis("--port", str(port)):  # without scripts, and the pooled connections are dead
        commit_a_few(store)
    store.close()


def test_redis_users_and_passwords() -> None:
    with own_redis("--port", "PORT", "--requirepass", "hunter2") as port:
        commit_a_few(open_commit_store(f"redis://:hunter2@127.0.0.1:{port}", {}, MEMORY))
        commit_a_few(
            open_commit_store(f"redis://127.0.0.1:{port}", {"username": "default", "password": "hunter2"}, MEMORY)
        )
        for wrong in (f"redis://127.0.0.1:{port}", f"redis://:hunter3@127.0.0.1:{port}"):
            store = open_commit_store(wrong, {}, MEMORY)
            with pytest.raises(AccessDenied, match=f"127.0.0.1:{port}") as caught:
                store.latest("s3://bucket/t")
            assert "hunter" not in "".join(traceback.format_exception(caught.value))


def test_redis_user_needs_exactly_the_documented_commands() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "commit-stores.md").read_text()
    listed = re.findall(r"\+[a-z|]+", guide.partition("Users need")[2].partition("in a cluster")[0])
    with own_redis() as port, Redis(port=port) as admin:
        admin.acl_setuser("ada", enabled=True, passwords=["+hunter2"], keys=["lancekeep:*"], commands=listed)
        store = open_commit_store(f"redis://ada:hunter2@127.0.0.1:{port}", {}, MEMORY)
        use_everything(store)
        for missing in listed:
            admin.acl_setuser("ada", reset=True, enabled=True, passwords=["+hunter2"], keys=["lancekeep:*"])
            admin.acl_setuser("ada", commands=[command for command in listed if command != missing])
            admin.script_flush()
            with pytest.raises(AccessDenied, match=f"127.0.0.1:{port}"):
                use_everything(store)


def use_everything(store: ExternalCommitStore) -> None:
    commit_a_few(store)
    row = final(staged(1))
    store.record([row])
    store.get(row.base_uri, 1)
    for descending in (False, True):
        store.list(row.base_uri, after=None, limit=None, descending=descending)
    store.delete(row.base_uri, [1])


def test_redis_over_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    tls = ("--port", "0", "--tls-port", "PORT", "--tls-cert-file", certificate, "--tls-key-file", key)
    with own_redis(*tls, "--tls-ca-cert-file", certificate, "--tls-auth-clients", "no") as port:
        commit_a_few(open_commit_store(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}", {}, MEMORY))
        stranger = open_commit_store(f"rediss://127.0.0.1:{port}", {}, MEMORY)
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            stranger.latest("s3://bucket/t")


def self_signed(directory: Path) -> tuple[str, str]:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "redis.crt", directory / "redis.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(paths[0]), str(paths[1])


def test_redis_cluster(tmp_path: Path) -> None:
    cluster = ("--port", "PORT", "--cluster-enabled", "yes", "--dir", str(tmp_path))
    with own_redis(*cluster) as port:
        with Redis(port=port) as admin:
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while b"cluster_state:ok" not in admin.execute_command("CLUSTER", "INFO"):
                pass
        store = open_commit_store(f"redis://127.0.0.1:{port}?cluster=true", {}, MEMORY)
        commit_a_few(store)
        for name in ("a{b}c", "{}", "}x{"):
            store.record([final(staged(1, name))])
        with Redis(port=port, decode_responses=True) as admin:
            for key in admin.scan_iter():  # the hash tag is the whole base URI, whatever braces it has
                tag = key[key.index("{") + 1 : key.index("}")]
                assert key == f"lancekeep:{{{tag}}}"
        store.close()
    check_unavailable(store, f"127.0.0.1:{port}")


def test_foreign_value_in_redis_is_damaged(redis_url: str) -> None:
    base_uri = f"s3://bucket/{uuid4()}"
    store = open_commit_store(redis_url, {}, MEMORY)
    with Redis.from_url(redis_url) as other:
        other.zadd(f"lancekeep:{{{base_uri}}}", {"nonsense": 1})
        with pytest.raises(Damaged, match="nonsense"):
            store.latest(base_uri)
        other.set(f"lancekeep:{{{base_uri}}}", "nonsense")
        with pytest.raises(Damaged, match="written by another program"):
            store.reserve(staged(1, base_uri), first=True)


# -- DynamoDB -----------------------------------------------------------------------------------------------------


def dynamodb(endpoint: str) -> DynamoDBClient:
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def test_reading_creates_no_table_and_first_row_does(moto_endpoint: str) -> None:
    client, table = dynamodb(moto_endpoint), f"rows-{uuid4().hex[:12]}"
    store = open_commit_store(table_url(moto_endpoint, table), {}, MEMORY)
    assert store.latest("s3://bucket/t") is None
    assert store.delete("s3://bucket/t") == 0
    assert store.finalize(final(staged(1))) is False
    assert table not in client.list_tables()["TableNames"]
    store.reserve(staged(1), first=True)
    assert client.describe_table(TableName=table)["Table"]["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_concurrent_writers_create_table_once(moto_endpoint: str) -> None:
    url = table_url(moto_endpoint)
    stores = [open_commit_store(url, {}, MEMORY) for _ in range(4)]
    rows = [staged(1) for _ in stores]
    answers = race(4, lambda number: stores[number].reserve(rows[number], first=True))
    (winner,) = [row for row, answer in zip(rows, answers, strict=True) if answer == Reserved()]
    assert answers.count(Taken(winner)) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_items_have_native_format(moto_endpoint: str, shared: bool) -> None:
    client, table = dynamodb(moto_endpoint), f"rows-{uuid4().hex[:12]}"
    store = open_commit_store(table_url(moto_endpoint, table, "&shared_with_native=true" if shared else ""), {}, MEMORY)
    row = staged(1)
    store.reserve(row, first=True)
    key = "lake/t.lance" if shared else row.base_uri
    item = {
        "base_uri": {"S": key},
        "version": {"N": "1"},
        "path": {"S": row.path},
        "size": {"N": "1001"},
        "committer": {"S": "ada@host"},
    }
    assert items_of(client, table) == [item]
    store.finalize(final(row))
    assert items_of(client, table) == [{**item, "path": {"S": final_path(row.path)}}]
    client.put_item(TableName=table, Item={**item, "version": {"N": "2"}, "path": {"S": "native"}})
    assert store.latest(row.base_uri) == VersionRow(row.base_uri, 2, "native", 1001, "ada@host")


def items_of(client: DynamoDBClient, table: str) -> list[dict[str, object]]:
    """Return the rows of a table, without the item that names the bucket of a shared one."""
    return [dict(item) for item in client.scan(TableName=table)["Items"] if item["base_uri"] != {"S": OWNER}]


def test_shared_table_is_refused_to_a_second_bucket(moto_endpoint: str) -> None:
    table = f"rows-{uuid4().hex[:12]}"
    url = table_url(moto_endpoint, table, "&shared_with_native=true")
    early, store, again = (open_commit_store(url, {}, MEMORY) for _ in range(3))
    mine, theirs = staged(1, "s3://one/lake/t.lance"), staged(1, "s3://two/lake/t.lance")
    assert early.latest(theirs.base_uri) is None  # nothing is known before the first row
    assert store.reserve(mine, first=True) == Reserved()
    assert again.latest(mine.base_uri) == mine
    for other in (early, store, open_commit_store(url, {}, MEMORY)):
        for act in every_call(other, theirs):
            with pytest.raises(Refused, match="holds the rows of s3://one"):
                act()
    assert store.latest(mine.base_uri) == mine


def test_race_of_two_buckets_for_a_shared_table_has_one_winner(moto_endpoint: str) -> None:
    url = table_url(moto_endpoint, f"rows-{uuid4().hex[:12]}", "&shared_with_native=true")
    stores = [open_commit_store(url, {}, MEMORY) for _ in range(4)]
    rows = [staged(1, f"s3://bucket-{number}/lake/t.lance") for number in range(4)]

    def reserve(number: int) -> bool:
        try:
            return stores[number].reserve(rows[number], first=True) == Reserved()
        except Refused:
            return False

    won = race(4, reserve)
    assert sum(won) == 1
    assert stores[won.index(True)].latest(rows[won.index(True)].base_uri) == rows[won.index(True)]


@contextmanager
def dynamodb_answering(status: int, code: str, operation: bytes, target: str) -> Iterator[str]:
    """Yield the URL of a DynamoDB at ``target`` that answers one operation with an error."""

    class Front(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if operation.decode() in self.headers["X-Amz-Target"]:
                self._answer(status, json.dumps({"__type": f"x#{code}", "message": "as told"}).encode())
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            try:
                with urlopen(Request(target, body, headers)) as reply:
                    self._answer(reply.status, reply.read())
            except HTTPError as error:
                self._answer(error.code, error.read())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Suppress the log of requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("status", "code", "meaning", "advice"),
    [
        (400, "AccessDeniedException", AccessDenied, "permissions that the guide"),
        (400, "ExpiredTokenException", AccessDenied, "Renew"),
        (400, "IncompleteSignatureException", AccessDenied, "Check the credentials"),
        (400, "InvalidSignatureException", AccessDenied, "Check the credentials"),
        (400, "MissingAuthenticationTokenException", AccessDenied, "Check the credentials"),
        (400, "UnrecognizedClientException", AccessDenied, "Check the credentials"),
        (400, "UnknownOperationException", Unsupported, "This server lacks the operation"),
        (400, "ValidationException", InvalidInput, "as told"),
        (400, "ThrottlingException", StoreUnavailable, "as told"),
        (400, "ProvisionedThroughputExceededException", StoreUnavailable, "as told"),
        (500, "InternalServerError", StoreUnavailable, "as told"),
    ],
)
@pytest.mark.parametrize("operation", ["PutItem", "TransactWriteItems"])
def test_dynamodb_error_codes_are_mapped(
    status: int, code: str, meaning: type[Exception], advice: str, operation: str, moto_endpoint: str
) -> None:
    table = f"rows-{uuid4().hex[:12]}"
    row = staged(1, f"s3://bucket/{uuid4()}")
    near = open_commit_store(table_url(moto_endpoint, table), {}, MEMORY)
    assert near.reserve(staged(1, f"s3://bucket/{uuid4()}"), first=True) == Reserved()  # creates the table
    with dynamodb_answering(status, code, operation.encode(), moto_endpoint) as endpoint:
        store = open_commit_store(table_url(endpoint, table), {}, MEMORY)
        claims = [Claim(row, first=True), Claim(staged(1, f"s3://bucket/{uuid4()}"), first=True)]
        with pytest.raises(meaning, match=advice) as raised:
            store.reserve(row, first=True) if operation == "PutItem" else store.reserve_all(claims)
        assert type(raised.value) is meaning
    assert near.latest(row.base_uri) is None


def test_only_tables_on_s3_are_shared_with_native_writers(moto_endpoint: str) -> None:
    store = open_commit_store(table_url(moto_endpoint, None, "&shared_with_native=true"), {}, MEMORY)
    with pytest.raises(InvalidInput, match="file:///lake/t"):
        store.latest("file:///lake/t")


def test_dynamodb_table_with_other_keys_is_refused(moto_endpoint: str) -> None:
    client, table = dynamodb(moto_endpoint), f"other-{uuid4().hex[:12]}"
    client.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    store = open_commit_store(table_url(moto_endpoint, table), {}, MEMORY)
    for act in (lambda: store.reserve(staged(1), first=True), lambda: store.get("s3://bucket/t", 1)):
        with pytest.raises(InvalidInput, match=rf"{table}.*HASH id; expected HASH base_uri"):
            act()


def test_item_without_path_is_damaged(moto_endpoint: str) -> None:
    table = f"rows-{uuid4().hex[:12]}"
    store = open_commit_store(table_url(moto_endpoint, table), {}, MEMORY)
    store.record([final(staged(1))])
    item = {"base_uri": {"S": "s3://bucket/t"}, "version": {"N": "1"}}
    dynamodb(moto_endpoint).put_item(TableName=table, Item=item)
    with pytest.raises(Damaged, match="lacks the attribute 'path'"):
        store.latest("s3://bucket/t")


# -- SQLite -------------------------------------------------------------------------------------------------------


def test_reading_creates_no_database(tmp_path: Path) -> None:
    store = SqliteCommitStore(str(tmp_path / "commits.db"))
    assert store.latest("s3://bucket/t") is None
    assert store.delete("s3://bucket/t") == 0
    assert store.finalize(final(staged(1))) is False
    assert list(tmp_path.iterdir()) == []


def test_database_in_missing_directory_is_refused(tmp_path: Path) -> None:
    store = SqliteCommitStore(str(tmp_path / "missing" / "commits.db"))
    for act in (lambda: store.latest("s3://bucket/t"), lambda: store.reserve(staged(1), first=True)):
        with pytest.raises(InvalidInput, match="missing is not a directory"):
            act()


def test_file_that_is_not_a_database_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "commits.db"
    path.write_bytes(b"no database " * 1000)
    with pytest.raises(Damaged, match=r"commits\.db: file is not a database"):
        SqliteCommitStore(str(path)).latest("s3://bucket/t")


def test_locked_database_is_unavailable(tmp_path: Path) -> None:
    path = str(tmp_path / "commits.db")
    store = SqliteCommitStore(path, timeout=0.05)
    store.record([final(staged(1))])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match=r"commits\.db: database is locked"):
            store.reserve(staged(2), first=False)
        other.execute("ROLLBACK")
    assert store.reserve(staged(2), first=False) == Reserved()


def test_recreated_database_is_reopened(tmp_path: Path) -> None:
    ours, theirs = (SqliteCommitStore(str(tmp_path / "commits.db")) for _ in range(2))
    ours.record([final(staged(5))])
    for path in tmp_path.iterdir():
        path.unlink()
    assert ours.latest(staged(1).base_uri) is None
    row = staged(1)
    assert theirs.reserve(row, first=True) == Reserved()
    assert ours.latest(row.base_uri) == row


def test_fork_uses_no_inherited_connection(tmp_path: Path) -> None:
    """A fork shares file locks with its parent: using or closing a connection would corrupt the database."""
    script = """
import os, sys
from lancekeep.adapters.commit_stores.sqlite import SqliteCommitStore
from lancekeep.domain.version_row import Reserved, VersionRow
store = SqliteCommitStore(sys.argv[1])
store.record([VersionRow("u", 1, "_versions/1.manifest", 1)])
inherited = set(os.listdir("/proc/self/fd"))
child = os.fork()
if child == 0:
    assert store.reserve(VersionRow("u", 2, "_versions/2.manifest-a", 1), first=False) == Reserved()
    store.close()
    left = set(os.listdir("/proc/self/fd"))
    os._exit(0 if inherited <= left else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert store.latest("u").version == 2
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "commits.db")], check=True)


def test_ended_threads_leave_no_open_connections(tmp_path: Path) -> None:
    """Each callback of a native writer runs in a new Python thread."""
    store = SqliteCommitStore(str(tmp_path / "commits.db"))
    store.record([final(staged(1))])
    for _ in range(50):
        thread = Thread(target=store.latest, args=(staged(1).base_uri,))
        thread.start()
        thread.join()
    files = [os.readlink(f"/proc/self/fd/{file.name}") for file in os.scandir("/proc/self/fd") if file.is_file()]
    assert files.count(str(tmp_path / "commits.db")) == 1


def test_guarantees_of_database_follow_synchronous() -> None:
    assert SqliteCommitStore("/tmp/x.db").guarantees.remembers
    assert not SqliteCommitStore("/tmp/x.db", synchronous="normal").guarantees.remembers


# -- files --------------------------------------------------------------------------------------------------------


def test_reading_creates_no_file(tmp_path: Path) -> None:
    store = FilesCommitStore(str(tmp_path / "commits"))
    assert store.latest("s3://bucket/t") is None
    assert store.list("s3://bucket/t", after=None, limit=None, descending=True) == []
    assert store.finalize(final(staged(1))) is False
    assert list(tmp_path.iterdir()) == []


def test_directory_with_missing_parent_is_refused(tmp_path: Path) -> None:
    store = FilesCommitStore(str(tmp_path / "misspelt" / "commits"))
    with pytest.raises(InvalidInput, match=r"misspelt.*create the directories above"):
        store.reserve(staged(1), first=True)


def test_history_directory_holds_base_uri_and_rows(tmp_path: Path) -> None:
    store = FilesCommitStore(str(tmp_path))
    row = staged(1, "s3://bucket/é t")
    store.reserve(row, first=True)
    store.reserve(staged(1, "s3://bucket/é t"), first=True)
    store.finalize(final(row))
    (history,) = tmp_path.iterdir()
    assert {path.name for path in history.iterdir()} == {"history", "1"}
    assert (history / "history").read_text() == "s3://bucket/é t\n"


def test_row_is_synced_before_it_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced before it gets its name, then the name is synced."""
    store = FilesCommitStore(str(tmp_path))
    store.reserve(staged(1, "u"), first=True)
    (history,) = tmp_path.iterdir()
    log: list[str] = []
    fsync, link, rename = os.fsync, os.link, os.rename

    def logged_fsync(file: int) -> None:
        synced = Path(os.readlink(f"/proc/self/fd/{file}"))
        log.append("directory" if synced == history else "file")
        fsync(file)

    def logged(naming: Callable[[str, str], None]) -> Callable[[str, str], None]:
        def name(source: str, target: str) -> None:
            log.append("name")
            naming(source, target)

        return name

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "link", logged(link))
    monkeypatch.setattr(os, "rename", logged(rename))
    one = store.get("u", 1)
    assert one is not None
    store.finalize(final(one))
    assert log == ["file", "name", "directory"]
    log.clear()
    two = staged(2, "u")
    store.reserve(two, first=False)
    assert log == ["file", "name", "directory"]
    log.clear()
    store.reserve(two, first=False)  # the first attempt may have died before the directory was synced
    assert log == ["directory"]


@pytest.mark.parametrize("call", ["rename", "link"])
def test_write_racing_with_delete_restores_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """``finalize`` or ``reserve`` pauses before its rename or link until the delete has ended or waits."""
    store = FilesCommitStore(str(tmp_path), fsync=False)
    writer = Writer(Site(""), store, MEMORY)
    base_uri = f"{MEMORY.root_uri}{uuid4().hex}/t.lance"
    writer.history(base_uri, 1)
    staged = writer.stage(base_uri, 2)
    if call == "rename":
        assert store.reserve(staged, first=False) == Reserved()
    real_call, real_flock = getattr(os, call), fcntl.flock
    ended = Event()

    def delete() -> None:
        store.delete(base_uri)
        ended.set()

    deleter = Thread(target=delete)

    def lock(file: int, operation: int) -> None:
        if current_thread() is deleter:
            ended.set()
        real_flock(file, operation)

    def held_up(*args: str) -> None:
        if current_thread() is not deleter and not deleter.is_alive():
            deleter.start()
            ended.wait()
        real_call(*args)

    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(os, call, held_up)
    if call == "rename":
        store.finalize(attrs.evolve(staged, path=final_path(staged.path)))
    else:
        store.reserve(staged, first=False)
    deleter.join()
    assert store.list(base_uri, after=None, limit=None, descending=False) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(UnsafeStore, match="a hard link was refused"):
        FilesCommitStore(str(tmp_path)).reserve(staged(1), first=True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_full_disk_is_unavailable_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FilesCommitStore(str(tmp_path))
    store.record([final(staged(1))])
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(os, "write", lambda *_: 1)
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.reserve(staged(2), first=False)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"12\x00path"])
def test_invalid_row_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    store = FilesCommitStore(str(tmp_path))
    store.record([final(staged(1, "u"))])
    (history,) = tmp_path.iterdir()
    (history / "1").write_bytes(content)
    with pytest.raises(Damaged, match=f"{history}/1: expected the row of version 1 of u"):
        store.latest("u")


# -- the object store's own condition -----------------------------------------------------------------------------


def test_object_store_without_atomic_create_is_refused() -> None:
    objects = MemoryObjectStore()
    objects.guarantees = ObjectStoreGuarantees(atomic_create=False, atomic_copy=False, durable=True)
    with pytest.raises(UnsafeStore, match=r"memory:///.*commit_store="):
        open_commit_store("conditional-put://", {}, objects)


@pytest.mark.parametrize("atomic_copy", [False, True])
def test_create_with_lost_reply_is_recognized(atomic_copy: bool) -> None:
    objects = MemoryObjectStore()
    objects.guarantees = ObjectStoreGuarantees(atomic_create=True, atomic_copy=atomic_copy, durable=False)
    method = "copy_if_absent" if atomic_copy else "put_if_absent"
    store = ConditionalPutCommitStore(Faulty(objects, lost_replies(method, 1)))
    row = VersionRow("memory:///t", 1, f"t/_versions/{NamingScheme.V2.final_name(1)}-a", 3)
    objects.put(row.path, b"one")
    with pytest.raises(StoreUnavailable):
        store.reserve(row, first=True)
    assert store.reserve(row, first=True) == Reserved()
    other = VersionRow("memory:///t", 1, f"t/_versions/{NamingScheme.V2.final_name(1)}-b", 3)
    objects.put(other.path, b"two")
    assert store.reserve(other, first=True) == Taken(VersionRow("memory:///t", 1, final_path(row.path), 3))


def test_v1_manifest_names_are_supported(tmp_path: Path) -> None:
    objects = MemoryObjectStore()
    store = ConditionalPutCommitStore(objects)
    for version in range(1, 12):
        row = VersionRow("memory:///t", version, f"t/_versions/{version}.manifest-{uuid4()}", 1)
        objects.put(row.path, b"x")
        assert store.reserve(row, first=version == 1) == Reserved()
        assert store.latest("memory:///t") == VersionRow("memory:///t", version, f"t/_versions/{version}.manifest", 1)
    objects.put(f"t/_versions/{NamingScheme.V2.final_name(12)}", b"x")
    with pytest.raises(Damaged, match="mixes the V1 and V2"):
        store.latest("memory:///t")


def test_latest_reads_only_start_of_listing() -> None:
    objects = MemoryObjectStore()
    for version in range(1, 100):
        objects.put(f"t/_versions/{NamingScheme.V2.final_name(version)}", b"x")
    objects.put(f"t/_versions/{NamingScheme.V2.final_name(100)}-staged", b"x")
    objects.put("t/_versions/.hint", b"x")
    listed: list[str] = []

    class Spy(MemoryObjectStore):
        guarantees = ObjectStoreGuarantees(atomic_create=True, atomic_copy=True, durable=False, paged=True)

        def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
            for info in objects.list(prefix, after=after):
                listed.append(info.key)
                yield info

    latest = ConditionalPutCommitStore(Spy()).latest("memory:///t")
    assert latest is not None
    assert latest.version == 99
    assert len(listed) == 3


def test_foreign_or_missing_manifest_is_refused() -> None:
    store = ConditionalPutCommitStore(MemoryObjectStore())
    with pytest.raises(InvalidInput, match="s3://bucket/t is not in memory:///"):
        store.latest("s3://bucket/t")
    row = VersionRow("memory:///t", 1, f"t/_versions/{NamingScheme.V2.final_name(1)}", 1)
    with pytest.raises(Damaged, match="cannot be recorded"):
        store.record([row])
    gone = VersionRow("memory:///t", 1, f"t/_versions/{NamingScheme.V2.final_name(1)}-gone", 1)
    with pytest.raises(ObjectNotFound, match="-gone"):
        store.reserve(gone, first=True)
