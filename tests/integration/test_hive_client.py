"""The client of the Hive Metastore: against a real one, against wrong servers, and against another implementation."""

from __future__ import annotations

import os
import random
import select
import socket
import ssl
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import attrs
import pytest
from contracts.test_commit_stores import self_signed
from losing_proxy import losing_proxy
from pymetastore.hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer
from unanswered import first_address_unanswered

from lancekeep.domain.errors import (
    AccessDenied,
    InvalidInput,
    LancekeepError,
    MissingExtra,
    Refused,
    StoreUnavailable,
    Unsupported,
)
from lancekeep.hive import messages
from lancekeep.hive.address import Address
from lancekeep.hive.errors import Modified, ObjectExists, ObjectMissing, ReplyLost
from lancekeep.hive.messages import Database, FieldSchema, SerDeInfo, StorageDescriptor, Table
from lancekeep.hive.metastore import Metastore, Read
from lancekeep.hive.wire import Kind, Malformed, Reader, request, struct_of
from lancekeep.store_urls import StoreUrl
from lancekeep.testing.concurrency import race
from servers import HIVE_JARS, silent_server

CODES = {
    TType.BOOL: 2,
    TType.I16: 6,
    TType.I32: 8,
    TType.I64: 10,
    TType.STRING: 11,
    TType.STRUCT: 12,
    TType.MAP: 13,
    TType.LIST: 15,
}


def metastore(address: str, **options: str) -> Metastore:
    return Metastore.of(Address.of(StoreUrl.parse(f"hive://{address.removeprefix('hive://')}", options)))


def new_view(database: str, name: str, **parameters: str) -> Table:
    """Return a view, which has no directory."""
    storage = StorageDescriptor([FieldSchema("a", "int")], serde=SerDeInfo(parameters={}), compressed=False, buckets=-1)
    return Table(name, database, "ada", 1, 1, 0, storage, [], parameters, "SELECT 1", "SELECT 1", messages.VIEW)


@pytest.fixture
def client(hive_url: str) -> Metastore:
    return metastore(hive_url)


@pytest.fixture
def database(client: Metastore) -> Iterator[str]:
    name = f"client_{uuid4().hex[:8]}"
    client.create_database(Database(name, "of a test", parameters={"straße": "日本 😀"}))
    yield name
    client.drop_database(name, cascade=True)


# -- the interface ---------------------------------------------------------------------------------------------------


def same(kind: Kind, code: int, details: Any) -> bool:
    """Return whether a type equals the one in Thrift's generated code."""
    if kind.code != CODES[code]:
        return False
    if kind.struct is not None:
        generated = details[0].thrift_spec
        if kind.struct is messages.Refusal:
            return bool(generated[1][2] == "message")
        return all(
            same(each.metadata["kind"], generated[each.metadata["number"]][1], generated[each.metadata["number"]][3])
            for each in attrs.fields(kind.struct)
            if "number" in each.metadata
        )
    if kind.code == 15:
        return same(kind.of[0], details[0], details[1])
    return kind.code != 13 or (same(kind.of[0], details[0], details[1]) and same(kind.of[1], details[2], details[3]))


@pytest.mark.parametrize(
    "method", [each for each in vars(messages).values() if isinstance(each, messages.Method)], ids=lambda m: m.name
)
def test_method_has_the_numbers_of_the_thrift_interface(method: messages.Method) -> None:
    arguments = getattr(ThriftHiveMetastore, f"{method.name}_args").thrift_spec or (None,)
    results = getattr(ThriftHiveMetastore, f"{method.name}_result").thrift_spec
    assert len(method.arguments) == len(arguments) - 1
    for kind, (_, code, _, details, _) in zip(method.arguments, arguments[1:], strict=True):
        assert same(kind, code, details)
    assert (method.result is None) == (results[0] is None)
    assert method.result is None or same(method.result, results[0][1], results[0][3])
    named = {each[0]: each[3][0].__name__ for each in results[1:] if each}
    assert dict(method.refusals) == named


def test_fields_that_this_client_does_not_know_are_kept() -> None:
    """A table of a newer server comes back as it was, also with fields of future servers."""
    order = ttypes.Order(col="a", order=1)
    skewed = ttypes.SkewedInfo(["a"], [["1"]], {})
    storage = ttypes.StorageDescriptor(
        cols=[ttypes.FieldSchema("a", "int", "c")], location="s3://b/t", sortCols=[order], skewedInfo=skewed
    )
    privileges = ttypes.PrincipalPrivilegeSet({"ada": [ttypes.PrivilegeGrantInfo("ALL", 1, "x", 1, True)]}, {}, {})
    sent = ttypes.Table("t", "d", sd=storage, privileges=privileges, rewriteEnabled=True, writeId=2**40, catName="c")
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer)
    protocol.writeMessageBegin("get_table", 2, 1)
    ThriftHiveMetastore.get_table_result(success=sent).write(protocol)
    replied = iter([buffer.getvalue()])
    table = Reader(lambda: next(replied), 1 << 20).reply("get_table", 1, {0: struct_of(Table)})
    assert table is not None
    assert table[1].storage.location == "s3://b/t"
    changed = attrs.evolve(table[1], parameters={"x": "y"})
    read = TBinaryProtocol(TMemoryBuffer(request("create_table", 1, ((struct_of(Table), changed),))))
    read.readMessageBegin()
    arguments = ThriftHiveMetastore.create_table_args()
    arguments.read(read)
    sent.parameters = {"x": "y"}
    assert arguments.tbl == sent


# -- a real Metastore ------------------------------------------------------------------------------------------------


def test_databases_are_created_altered_and_dropped(client: Metastore, database: str) -> None:
    found = client.database(database)
    assert found is not None
    assert (found.description, found.parameters) == ("of a test", {"straße": "日本 😀"})
    assert database in client.databases()
    assert client.databases(f"{database}|{uuid4().hex}") == [database]
    with pytest.raises(ObjectExists, match=r"hive://.*already exists"):
        client.create_database(Database(database))
    client.alter_database(database, attrs.evolve(found, parameters={"b": "2"}))
    altered = client.database(database)
    assert altered is not None
    assert altered.parameters == {"b": "2"}
    client.create_table(new_view(database, "v"))
    with pytest.raises(Refused, match="not empty"):
        client.drop_database(database)
    assert client.database("nowhere") is None
    with pytest.raises(ObjectMissing):
        client.drop_database("nowhere")


def test_tables_are_created_altered_by_compare_and_set_and_dropped(client: Metastore, database: str) -> None:
    client.create_table(new_view(database, "v", state="1"))
    client.create_table(new_view(database, "w", state="2"))
    with pytest.raises(ObjectExists):
        client.create_table(new_view(database, "v"))
    table = client.table(database, "v")
    assert table is not None
    assert table.parameters is not None
    changed = attrs.evolve(table, parameters={**table.parameters, "state": "3"})
    client.alter_table(database, "v", changed, expected=("state", "1"))
    with pytest.raises(Modified, match="has been modified"):
        client.alter_table(database, "v", changed, expected=("state", "1"))
    assert [each.parameters["state"] for each in client.tables(database, ["v", "x"]) if each.parameters] == ["3"]
    assert client.tables(database, []) == []
    assert client.table_names(database) == ["v", "w"]
    assert client.table_names(database, "w*|x") == ["w"]
    assert client.filter_table_names(database, 'hive_filter_field_params__state like "2"', 10) == ["w"]
    client.drop_table(database, "v")
    for act in (
        lambda: client.drop_table(database, "v"),
        lambda: client.alter_table(database, "v", changed),
        lambda: client.tables("nowhere", ["v"]),
    ):
        with pytest.raises(ObjectMissing):
            act()
    assert client.table(database, "v") is client.table("nowhere", "v") is None
    assert client.table_names("nowhere") == []
    for name in ("",) if HIVE_JARS else ("no-name", "a.b", ""):
        with pytest.raises(InvalidInput):
            client.create_table(new_view(database, name))
    with pytest.raises(InvalidInput, match="UTF-8"):
        client.table(database, "\ud800")


def test_one_of_racing_changes_is_made(client: Metastore, database: str) -> None:
    client.create_table(new_view(database, "v", state="0"))
    table = client.table(database, "v")
    assert table is not None
    before = "0"
    for turn in range(5):

        def act(number: int, turn: int = turn, before: str = before) -> bool:
            assert table is not None
            changed = attrs.evolve(table, parameters={"state": f"{turn}-{number}"})
            try:
                client.alter_table(database, "v", changed, expected=("state", before))
            except Modified:
                return False
            return True

        won = race(3, act)
        after = client.table(database, "v")
        assert after is not None
        assert after.parameters is not None
        assert won.count(True) == 1
        before = after.parameters["state"]
        assert before == f"{turn}-{won.index(True)}"


def test_metastore_before_hive_3_has_no_catalogs(client: Metastore) -> None:
    if HIVE_JARS:
        assert client.catalogs() == ["hive"]
        return
    assert client.catalogs() is None
    with pytest.raises(Unsupported, match="get_catalog"):
        client.catalog("hive")


def test_user_is_the_owner(hive_url: str, client: Metastore) -> None:
    name = f"client_{uuid4().hex[:8]}"
    metastore(hive_url, user="ada").create_database(Database(name))
    assert client.database(name) is not None
    client.drop_database(name)


# -- faults ----------------------------------------------------------------------------------------------------------


def test_reading_is_repeated_and_a_change_is_not(hive_url: str, client: Metastore, database: str) -> None:
    address = hive_url.removeprefix("hive://")
    with losing_proxy(address, b"get_database") as proxy:
        far = metastore(f"127.0.0.1:{proxy.port}")
        proxy.losses = 1
        assert far.database(database) is not None
        proxy.losses = 2
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{proxy.port}"):
            far.database(database)
        assert proxy.lost == 3
    with losing_proxy(address, b"create_table") as proxy:
        far = metastore(f"127.0.0.1:{proxy.port}")
        proxy.losses = 1
        with pytest.raises(ReplyLost):
            far.create_table(new_view(database, "v"))
        assert proxy.lost == 1
    assert client.table_names(database) == ["v"]


def test_reads_of_one_round_trip_are_answered_one_by_one(hive_url: str, client: Metastore, database: str) -> None:
    """An error of one read leaves the answers to the others, and a broken connection repeats all."""
    client.create_table(new_view(database, "v"))
    with losing_proxy(hive_url.removeprefix("hive://"), b"get_table_req") as proxy:
        far = metastore(f"127.0.0.1:{proxy.port}", **{"client.pool-size": "1"})
        reads = [
            Read.filtered(database, "no condition"),
            Read.table(database, "v"),
            Read.table(database, "w"),
            Read.catalogs(),
            Read.database(database),
        ]
        proxy.losses = 1
        refused, view, absent, catalogs, found = far.together(*reads)
        assert proxy.lost == 1
        assert len(proxy.requests) == 2
        assert isinstance(refused, LancekeepError)
        assert absent is None
        assert (view.name, found) == ("v", client.database(database))
        assert catalogs == ["hive"] if HIVE_JARS else isinstance(catalogs, Unsupported)
        proxy.losses = 2
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{proxy.port}"):
            far.together(*reads)
        assert far.table(database, "v") == view


def test_host_that_answers_is_used(hive_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    address = hive_url.removeprefix("hive://")
    assert metastore(f"127.0.0.1:{closed},{address}").databases()
    with silent_server() as (silent, _), losing_proxy(address, b"nothing") as proxy:
        both = metastore(f"127.0.0.1:{proxy.port},{address}", **{"client.pool-size": "1"})
        assert both.databases()
        proxy.close()
        both.close()
        assert both.databases()
        assert both.databases()
        alone = metastore(f"127.0.0.1:{closed},{silent}", timeout="0.5")
        with pytest.raises(StoreUnavailable, match="in time"):
            alone.databases()
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{closed}: .*refused"):
        metastore(f"127.0.0.1:{closed}").databases()


def test_host_is_reached_although_its_first_address_does_not_answer(
    hive_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(hive_url.rpartition(":")[2])
    with first_address_unanswered(monkeypatch, "metastore.test", port) as ports:
        with closing(metastore(f"metastore.test:{port}", timeout="2")) as client:
            assert client.databases()
        ports.pop()
        with pytest.raises(StoreUnavailable, match=f"metastore.test:{port}: timed out"):
            metastore(f"metastore.test:{port}", timeout="0.5").databases()


def test_connections_of_the_process_are_limited(hive_url: str) -> None:
    with silent_server() as (silent, _):
        client = metastore(silent, timeout="2", **{"client.pool-size": "1"})

        def act(_: int) -> str:
            with pytest.raises(StoreUnavailable) as caught:
                client.databases()
            return str(caught.value)

        told = sorted(race(2, act))
    assert "client.pool-size" in told[1] or "client.pool-size" in told[0]


def test_child_process_opens_connections_of_its_own(client: Metastore) -> None:
    assert client.databases()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os._exit(0 if client.databases() else 2)
        os._exit(1)
    assert client.databases()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.databases()


# -- wrong servers ---------------------------------------------------------------------------------------------------


@contextmanager
def answering(answer: Callable[[], Iterator[bytes]]) -> Iterator[str]:
    """Yield ``host:port`` of a server that answers each request with the same bytes."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection = listener.accept()[0]
                with suppress(OSError), connection:
                    connection.recv(1 << 16)
                    for part in answer():
                        connection.sendall(part)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


HEADER = struct.pack(">Ii", 0x80010002, 13) + b"get_databases" + struct.pack(">i", 1)
RESULT = HEADER + struct.pack(">bh", 15, 0)


def drip() -> Iterator[bytes]:
    yield RESULT + struct.pack(">bi", 11, 1000)
    while True:
        yield struct.pack(">i", 0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no message of Thrift"),
        (b"", "closed"),
        (HEADER[:10], "closed"),
        (HEADER.replace(b"databases", b"tables_by"), "expected call|expected 1 of|get_tables_by"),
        (HEADER[:-4] + struct.pack(">i", 7), "answer is to call 7"),
        (RESULT + struct.pack(">bi", 11, 2**31 - 1), "too many values"),
        (RESULT + struct.pack(">bi", 11, -1), "too many values"),
        (RESULT + struct.pack(">bii", 11, 1, 2**31 - 1), "more than"),
        (RESULT + struct.pack(">bii", 11, 1, -5), "more than"),
        (RESULT + struct.pack(">bii", 11, 1, 1) + b"\xff\0", "not UTF-8"),
        (RESULT + struct.pack(">bi", 12, 1) + b"\0\0", "another type"),
        (HEADER + struct.pack(">bh", 99, 5), "unknown type 99"),
        (HEADER + struct.pack(">bh", 12, 5) * 100, "too deeply"),
        (HEADER + struct.pack(">bh", 15, 5) + struct.pack(">bi", 2, 2**30), "too many values"),
        (HEADER + b"\0", "neither a value"),
        (RESULT + struct.pack(">bi", 11, 0) + b"\0more", "more than the answer"),
        (HEADER[:3] + b"\3" + HEADER[4:] + struct.pack(">bhi", 8, 2, 6) + b"\0", "TApplicationException"),
    ],
)
def test_answer_of_a_wrong_server_is_refused(answer: bytes, message: str) -> None:
    with answering(lambda: iter([answer])) as address, pytest.raises(StoreUnavailable, match=message):
        metastore(address, max_message_size="1").databases()


def test_answer_without_end_is_given_up() -> None:
    def flood() -> Iterator[bytes]:
        yield RESULT + struct.pack(">bi", 11, 30_000)
        while True:
            yield struct.pack(">i", 60_000) + bytes(60_000)

    with answering(flood) as address, pytest.raises(StoreUnavailable, match="more than 1,048,576 bytes"):
        metastore(address, max_message_size="1").databases()


def test_random_answers_are_refused_or_read() -> None:
    """Decoding any bytes ends with a value or with `Malformed`."""
    choice = random.Random(7)
    table = request("get_table", 1, ((struct_of(Table), new_view("d", "t", a="b")),))
    good = bytearray(table[:3] + b"\2" + table[4:])
    good[good.index(struct.pack(">bh", 12, 1)) + 2] = 0
    for _ in range(3000):
        content = bytearray(good)
        for _ in range(choice.randrange(4)):
            content[choice.randrange(len(content))] = choice.randrange(256)
        parts = iter([bytes(content[: choice.randrange(1, len(content) + 1)])])

        def receive(parts: Iterator[bytes] = parts) -> bytes:
            for part in parts:
                return part
            raise EOFError

        with suppress(Malformed, EOFError):
            Reader(receive, 4096).reply("get_table", 1, {0: struct_of(Table)})


# -- logins ----------------------------------------------------------------------------------------------------------


class SaslFront:
    """A server that demands a login, and forwards the messages of a client to a Metastore.

    Args:
        target: ``host:port`` of the Metastore.
        challenges: What it sends in turn; a message of the login ends with the status COMPLETE.
        protect: Protects and unprotects messages after the login.
    """

    def __init__(
        self, target: str, challenges: list[tuple[int, bytes]], protect: Callable[[bytes], bytes] = bytes
    ) -> None:
        self.told: list[tuple[int, bytes]] = []
        self._target, self._challenges, self._protect = target, challenges, protect
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                with suppress(OSError, struct.error), client:
                    self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        def take(count: int) -> bytes:
            return client.recv(count, socket.MSG_WAITALL)

        def message() -> tuple[int, bytes]:
            status, length = struct.unpack(">Bi", take(5))
            return status, take(length)

        self.told = [message()]
        for status, challenge in self._challenges:
            self.told.append(message())
            client.sendall(struct.pack(">Bi", status, len(challenge)) + challenge)
        host, _, port = self._target.rpartition(":")
        with socket.create_connection((host, int(port))) as server:
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    if ready is client:
                        if not (header := take(4)):
                            return
                        server.sendall(self._protect(take(int.from_bytes(header))))
                        continue
                    reply = self._protect(server.recv(1 << 16))
                    for part in (reply[:7], b"", reply[7:]):  # frames of any size
                        client.sendall(len(part).to_bytes(4) + part)


@pytest.fixture
def front(hive_url: str) -> Iterator[Callable[..., SaslFront]]:
    fronts: list[SaslFront] = []

    def start(*arguments: Any) -> SaslFront:
        fronts.append(SaslFront(hive_url.removeprefix("hive://"), *arguments))
        return fronts[-1]

    yield start
    for each in fronts:
        each.listener.shutdown(socket.SHUT_RDWR)
        each.listener.close()


PLAIN = {"auth": "plain", "user": "ada", "password": "hunter2"}


def test_password_logs_in(front: Callable[..., SaslFront]) -> None:
    server = front([(5, b"")])
    client = metastore(server.address, **PLAIN)
    assert "default" in client.databases()
    databases, database = client.together(Read.databases(), Read.database("default"))
    assert (databases, database.name) == (client.databases(), "default")
    assert server.told == [(1, b"PLAIN"), (5, b"\0ada\0hunter2")]


@pytest.mark.parametrize(
    ("challenges", "error", "message"),
    [
        ([(3, b"Invalid credentials")], AccessDenied, "refused the login: Invalid credentials"),
        ([(4, b"\xff")], AccessDenied, "refused the login"),
        ([(72, b"TTP")], AccessDenied, "refused the login"),
        ([], StoreUnavailable, "in time|closed"),
    ],
)
def test_refused_login_shows_no_password(
    front: Callable[..., SaslFront],
    challenges: list[tuple[int, bytes]],
    error: type[Exception],
    message: str,
) -> None:
    server = front(challenges)
    with pytest.raises(error, match=message) as caught:
        metastore(server.address, timeout="1", **PLAIN).databases()
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


class Ticket:
    """What gssapi provides, with a context that adds bits instead of a signature."""

    class NameType:
        hostbased_service = "service"

    class exceptions:  # noqa: N801 - the name in gssapi
        class GSSError(Exception):
            pass

    def __init__(self) -> None:
        self.names: list[str] = []

    def Name(self, name: str, kind: str) -> str:  # noqa: N802 - the name in gssapi
        self.names.append(name)
        return name

    def SecurityContext(self, name: str, usage: str) -> Any:  # noqa: N802 - the name in gssapi
        class Context:
            complete = False

            def step(self, token: bytes | None) -> bytes | None:
                if token == b"expired":
                    raise Ticket.exceptions.GSSError("Ticket expired")
                self.complete = token is not None
                return b"ticket" if token is None else None

            def wrap(self, content: bytes, encrypt: bool) -> Any:
                return SimpleNamespace(message=flipped(content))

            def unwrap(self, content: bytes) -> Any:
                return SimpleNamespace(message=flipped(content))

        return Context()


def flipped(content: bytes) -> bytes:
    return bytes(each ^ 255 for each in content)


@pytest.mark.parametrize("layers", [1, 3, 7])
def test_ticket_of_kerberos_logs_in_and_protects_messages(
    front: Callable[..., SaslFront], monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    ticket = Ticket()
    monkeypatch.setitem(sys.modules, "gssapi", ticket)
    chosen = {1: 1, 3: 2, 7: 4}[layers]
    server = front(
        [(2, b"proof"), (2, flipped(bytes([layers, 0, 255, 255]))), (5, b"")], bytes if layers == 1 else flipped
    )
    client = metastore(server.address, auth="kerberos", kerberos_service="metastore")
    assert all("default" in names for names in client.together(Read.databases(), Read.databases()))
    size = b"\0\0\0" if layers == 1 else b"\xff\xff\xff"
    assert server.told == [(1, b"GSSAPI"), (2, b"ticket"), (2, b""), (5, flipped(bytes([chosen]) + size))]
    assert ticket.names == ["metastore@127.0.0.1"]


def test_failures_of_kerberos_are_reported(front: Callable[..., SaslFront], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(MissingExtra, match=r"lancekeep\[kerberos\]"):
        metastore(front([]).address, auth="kerberos").databases()
    monkeypatch.setitem(sys.modules, "gssapi", Ticket())
    with pytest.raises(AccessDenied, match=r"Ticket expired\. Get a ticket with kinit"):
        metastore(front([(2, b"expired")]).address, auth="kerberos").databases()
    with pytest.raises(StoreUnavailable, match="before it proved its identity"):
        metastore(front([(5, b"proof")]).address, auth="kerberos").databases()
    with pytest.raises(StoreUnavailable, match="no protection"):
        metastore(front([(2, b"proof"), (2, flipped(b"\0abc"))]).address, auth="kerberos").databases()


def test_certificate_is_verified(hive_url: str, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    host, _, port = hive_url.removeprefix("hive://").rpartition(":")

    def serve() -> None:
        with suppress(OSError):
            while True:
                with (
                    suppress(ssl.SSLError),
                    context.wrap_socket(listener.accept()[0], server_side=True) as client,
                    socket.create_connection((host, int(port))) as server,
                ):
                    while content := client.recv(1 << 16):
                        server.sendall(content)
                        client.sendall(server.recv(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        client = metastore(address, ssl="true", ssl_ca_certs=certificate)
        assert "default" in client.databases()
        client.close()
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            metastore(address, ssl="true").databases()
        with pytest.raises(StoreUnavailable):
            metastore(address, timeout="1").databases()
        with pytest.raises(InvalidInput, match="check the paths in ssl_ca_certs"):
            metastore(address, ssl="true", ssl_ca_certs=f"{tmp_path}/none").databases()
        listener.shutdown(socket.SHUT_RDWR)


# -- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("hive:///x", {}, "expected hive://HOST"),
        ("hive://a,,b", {}, "HOST"),
        ("hive://a", {"client.pool-size": "0"}, "client.pool-size"),
        ("hive://a", {"timeout": "-1"}, "timeout"),
        ("hive://a", {"auth": "ntlm"}, "auth"),
        ("hive://a", {"auth": "plain"}, "needs a user and a password"),
        ("hive://ada:hunter2@a", {}, "auth=plain"),
        ("hive://ada@a", {"user": "bob"}, "set twice"),
        ("hive://a", {"ssl_ca_certs": "x"}, "ssl=true"),
        ("hive://a", {"ssl": "true", "ssl_keyfile": "x"}, "ssl_certfile"),
        ("hive://a", {"kerberos_service": "x"}, "auth=kerberos"),
    ],
)
def test_invalid_address_is_refused(url: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        Address.of(StoreUrl.parse(url, options))
    assert "hunter2" not in str(caught.value)


def test_url_of_an_address_has_no_secret() -> None:
    address = Address.of(StoreUrl.parse("hive://ada:hunter2@b:1,A?auth=plain", {}))
    assert address.url == "hive://a:9083,b:1"
    assert address.hosts == (("b", 1), ("a", 9083))
    assert "hunter2" not in repr(address)
