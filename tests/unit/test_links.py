"""Links between servers of several hosts: who may link, what a committer may commit, and what an asker hears."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs
import pyarrow as pa
import pytest
from cluster_keys import cluster_in

from lancekeep.adapters.committers import askers, tls, tls_connections
from lancekeep.adapters.committers.frames import HEAD, append_frame, frame
from lancekeep.adapters.committers.tls import TlsLinks
from lancekeep.composition import Cluster
from lancekeep.domain.commit import Committed
from lancekeep.domain.commit_token import CommitToken, CommitUnknown, StagedManifest
from lancekeep.domain.errors import InvalidInput, StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.ports.committers import Declined, Received, Reply, SentUpsert
from lancekeep.ports.data_files import Rows
from lancekeep.ports.rows import MergeCounts

TABLE = ObjectId(("ml", "t"))
OTHER = ObjectId(("u",))
KEY = SharedKey(bytes(range(16)), bytes(16), "ab" * 32)
UPSERT = SentUpsert(("number",), False, 2.5)


def token(version: int = 2) -> CommitToken:
    name = f"{2**64 - 1 - version:020d}.manifest-00000000-0000-4000-8000-000000000000"
    return CommitToken(StagedManifest("file:///lake/t", version, f"lake/t/_versions/{name}", 10))


def rows(*numbers: int) -> Rows:
    table = pa.table({"number": pa.array(numbers, pa.int64())})
    return Rows(table, table.num_rows, table.nbytes)


def eventually(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


class Process:
    """A process with links: what it received, and what it was answered.

    It commits for ``TABLE``. Its storage is a set that other processes may share.
    """

    def __init__(self, cluster: Cluster, storage: set[str]) -> None:
        self.links = TlsLinks(**attrs.asdict(cluster))
        self.storage = storage
        self.taken: SimpleQueue[Received] = SimpleQueue()
        self.answers: SimpleQueue[tuple[list[int], Reply]] = SimpleQueue()
        self.counts: SimpleQueue[dict[int, MergeCounts]] = SimpleQueue()
        self.ended: SimpleQueue[str] = SimpleQueue()
        self.links.begin(self)

    def takes(self, table: ObjectId) -> bool:
        return table == TABLE

    def receive(self, received: Received) -> None:
        self.taken.put(received)

    def counted(self, numbers: Sequence[int], counts: Sequence[MergeCounts]) -> None:
        self.counts.put(dict(zip(numbers, counts, strict=True)))

    def answered(self, numbers: Sequence[int], reply: Reply) -> None:
        self.answers.put((list(numbers), reply))

    def unlinked(self, address: str) -> None:
        self.ended.put(address)

    def prove(self, challenge: str) -> None:
        self.storage.add(challenge)

    def is_proven(self, challenge: str) -> bool:
        return challenge in self.storage

    def send(self, other: Process, number: int, table: ObjectId = TABLE, **named: Any) -> bool:
        return self.links.send(other.links.address, table, number, rows(number), named.pop("key", None), **named)

    def take(self) -> Received:
        return self.taken.get(timeout=30)

    def answer(self) -> tuple[list[int], Reply]:
        return self.answers.get(timeout=30)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return cluster_in(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def pair(cluster: Cluster) -> Iterator[tuple[Process, Process]]:
    """Return a process that commits appends, and one that is linked to it."""
    storage: set[str] = set()
    one, other = Process(cluster, storage), Process(cluster, storage)
    with closing(one.links), closing(other.links):
        assert other.links.link(one.links.address)
        yield one, other


class Stranger:
    """A client that speaks the protocol by hand."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(cluster.certificate, cluster.private_key)
        where, _, self.name = process.links.address.partition("/")
        host, _, port = where.rpartition(":")
        self._socket = context.wrap_socket(socket.create_connection((host, int(port)), 30))
        self._content = b""

    def send(self, content: bytes) -> None:
        self._socket.sendall(content)

    def receive(self) -> dict[str, Any] | None:
        """Return the next frame; None at the end."""
        while True:
            if len(self._content) >= HEAD.size:
                text, rows = HEAD.unpack_from(self._content)
                end = HEAD.size + text + rows
                if len(self._content) >= end:
                    message: dict[str, Any] = json.loads(self._content[HEAD.size : HEAD.size + text])
                    self._content = self._content[end:]
                    return message
            try:
                part = self._socket.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError:
                return None
            if not part:
                return None
            self._content += part

    def enter(self, storage: set[str]) -> None:
        """Prove that it uses a storage, and be welcome."""
        self.send(frame({"hello": tls.FORMAT, "process": self.name}))
        challenge = self.receive()
        assert challenge is not None
        storage.add(challenge["challenge"])
        self.send(frame({"proven": challenge["challenge"]}))
        assert self.receive() == {"welcome": True}

    def close(self) -> None:
        self._socket.close()


# -- who may link -----------------------------------------------------------------------------------------------------


def test_processes_with_one_storage_link_in_both_directions(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.links.link(one.links.address)  # again
    assert one.links.link(other.links.address)
    assert one.links.address != other.links.address


def test_process_of_another_storage_gets_no_link(cluster: Cluster) -> None:
    one, copy = Process(cluster, set()), Process(cluster, set())
    with closing(one.links), closing(copy.links):
        assert not copy.links.link(one.links.address)
        assert not copy.send(one, 1)


def test_process_with_a_certificate_of_another_authority_gets_no_link(cluster: Cluster, tmp_path: Path) -> None:
    storage: set[str] = set()
    one, foreign = Process(cluster, storage), Process(cluster_in(tmp_path, "foreign"), storage)
    with closing(one.links), closing(foreign.links):
        assert not foreign.links.link(one.links.address)
        assert not one.links.link(foreign.links.address)
        with closing(Stranger(cluster_in(tmp_path, "foreign"), one)) as stranger, suppress(OSError):
            stranger.send(frame({"hello": tls.FORMAT, "process": stranger.name}))
            assert stranger.receive() is None


def test_successor_at_the_same_port_is_another_process(cluster: Cluster) -> None:
    storage: set[str] = set()
    one, other = Process(cluster, storage), Process(cluster, storage)
    with closing(one.links), closing(other.links):
        where, _, _ = one.links.address.partition("/")
        for address in (f"{where}/{'0' * 32}", where, f"{where}/a b", "127.0.0.1:x/aa", "", "127.0.0.1:1/aa"):
            assert not other.links.link(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:99999/aa", f"127.0.0.1:{'9' * 5000}/aa", f"{'x' * 80}:1/aa", "a\0b:1/aa", "\ud800:1/aa"]
)
def test_address_that_is_none_gets_no_link(pair: tuple[Process, Process], address: str) -> None:
    assert not pair[1].links.link(address)


@pytest.mark.parametrize(
    "content",
    [
        frame({"hello": "lancekeep-0", "process": "NAME"}),
        frame({"append": 1, "table": "t", "key": None}, b"x"),
        frame({}),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(200),
        HEAD.pack(1 << 31, 0),
    ],
)
def test_stranger_without_a_proper_greeting_is_sent_away(
    cluster: Cluster, pair: tuple[Process, Process], content: bytes
) -> None:
    with closing(Stranger(cluster, pair[0])) as stranger:
        stranger.send(content.replace(b"NAME", stranger.name.encode()))
        assert stranger.receive() is None


def test_stranger_without_the_challenge_in_the_storage_is_sent_away(
    cluster: Cluster, pair: tuple[Process, Process]
) -> None:
    with closing(Stranger(cluster, pair[0])) as stranger:
        stranger.send(frame({"hello": tls.FORMAT, "process": stranger.name}))
        assert stranger.receive() is not None
        stranger.send(frame({"proven": "something"}))
        assert stranger.receive() is None


# -- appends ----------------------------------------------------------------------------------------------------------


def test_appends_and_upserts_are_answered_with_their_counts(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(one, 1, key=KEY)
    received = one.take()
    assert (received.table, received.number, received.key) == (TABLE, 1, KEY)
    assert received.rows.table["number"].to_pylist() == [1]
    assert received.asker.announce([1], token(2))
    received.asker.answer([1], Committed(3, "p", 9))
    assert other.answer() == ([1], Committed(3, "p", 9))
    assert other.send(one, 2, upsert=UPSERT)
    received, counts = one.take(), MergeCounts(0, 2, 0)
    assert received.upsert == UPSERT
    assert received.asker.announce([2], token(3), [counts])
    assert other.counts.get(timeout=30) == {2: counts}
    received.asker.answer([2], Declined.ALONE)
    assert other.answer() == ([2], Declined.ALONE)


def test_process_declines_tables_for_which_it_does_not_commit(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(one, 1, OTHER)
    assert other.answer() == ([1], Declined.NOT_TAKEN)
    assert other.ended.get(timeout=30) == one.links.address
    assert one.links.leave(0)
    assert other.send(one, 2)
    assert other.answer() == ([2], Declined.NOT_TAKEN)


def test_process_declines_more_bytes_than_it_holds(
    pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(askers, "MOST_HELD", tls.OVERHEAD + 8)
    one, other = pair
    assert other.send(one, 1)
    assert other.send(one, 2)
    assert other.answer() == ([2], Declined.NOT_TAKEN)
    assert not one.links.leave(0)
    one.take().asker.answer([1], Declined.ALONE)
    assert one.links.leave(0)


def test_nothing_is_committed_for_an_asker_that_has_given_up(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(one, 1)
    assert other.send(one, 2)
    received = one.take()
    assert received.asker.announce([1], token(4))
    other.links.give_up(7)  # which was not sent
    assert received.asker.announce([2], token(4))
    other.links.give_up(1)
    replies = {number: reply for numbers, reply in (other.answer(), other.answer()) for number in numbers}
    assert all(isinstance(reply, CommitUnknown) and reply.token == token(4) for reply in replies.values())
    assert not received.asker.announce([1, 2], token(5))
    assert not other.send(one, 3)
    assert not other.links.link(one.links.address)  # for some seconds


def test_nothing_is_committed_for_an_asker_that_acknowledges_nothing(
    cluster: Cluster, pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_connections, "ACKNOWLEDGED_WITHIN", 0.05)
    one, _ = pair
    with closing(Stranger(cluster, one)) as stranger:
        stranger.enter(one.storage)
        content = append_frame(TABLE, 1, rows(1), None)
        assert content is not None
        stranger.send(content)
        asker = one.take().asker
        stranger.send(frame({"acknowledge": 5}) + frame({"acknowledge": True}) + frame({"ping": True}))
        assert not asker.announce([1], token())
        assert not asker.announce([1], token())
        asker.answer([1], Declined.ALONE)
        assert one.links.leave(1)


@pytest.mark.parametrize("content", [frame({"append": "1"}), frame({"x": 1}), HEAD.pack(0, 0xFFFFFFFF), b"\xff" * 99])
def test_asker_that_sends_nonsense_is_dropped(cluster: Cluster, pair: tuple[Process, Process], content: bytes) -> None:
    one, other = pair
    with closing(Stranger(cluster, one)) as stranger:
        stranger.enter(one.storage)
        stranger.send(content)
        assert stranger.receive() is None
    assert other.send(one, 1)
    one.take().asker.answer([1], Committed(3, "p", 9))
    assert other.answer() == ([1], Committed(3, "p", 9))


def test_append_without_a_token_is_free_when_its_committer_ends(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(one, 1)
    assert other.send(one, 2)
    one.take()
    assert one.take().asker.announce([2], token(6))
    one.links.close()
    replies = {number: reply for numbers, reply in (other.answer(), other.answer()) for number in numbers}
    assert replies[1] is Declined.NOT_TAKEN
    unknown = replies[2]
    assert isinstance(unknown, CommitUnknown)
    assert unknown.token == token(6)
    assert not other.send(one, 3)
    assert not other.links.link(one.links.address)


def test_committer_that_says_nothing_is_given_up(
    pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    assert other.send(one, 1)
    one.take()
    monkeypatch.setattr(tls_connections, "SILENCE", 0.05)
    stopped, permitted = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        assert permitted.wait(30)

    one.links._loop.call_soon_threadsafe(stop)
    assert stopped.wait(30)
    try:
        assert other.answer() == ([1], Declined.NOT_TAKEN)
        assert other.ended.get(timeout=30) == one.links.address
    finally:
        permitted.set()


def test_process_that_accepts_and_says_nothing_is_avoided(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LINKED_WITHIN", 0.2)
    one = Process(cluster, set())
    with closing(one.links), socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}/{'0' * 32}"
        assert not one.links.link(address)
        mute.accept()[0].close()
        mute.settimeout(0.1)
        assert not one.links.link(address)
        with pytest.raises(TimeoutError):
            mute.accept()


def test_links_that_never_began_release_their_port(cluster: Cluster) -> None:
    links = TlsLinks(**attrs.asdict(cluster))
    host, _, port = links.address.partition("/")[0].rpartition(":")
    links.close()
    links.close()
    socket.create_server((host, int(port))).close()


def test_committer_that_sends_nonsense_leaves_an_open_outcome(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(one, 1)
    asker: Any = one.take().asker
    asker._send(frame({"numbers": [1], "committed": "?"}))
    numbers, reply = other.answer()
    assert numbers == [1]
    assert isinstance(reply, StoreUnavailable)


def test_asker_that_reads_no_reply_is_dropped(pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_connections, "_HELD_BACK", -1)
    one, other = pair
    assert other.send(one, 1)
    assert not one.take().asker.announce([1], token())


# -- limits -----------------------------------------------------------------------------------------------------------


def test_asker_that_reads_no_answer_to_its_pings_is_dropped(
    cluster: Cluster, pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    with closing(Stranger(cluster, one)) as stranger:
        stranger.enter(one.storage)
        monkeypatch.setattr(tls_connections, "_HELD_BACK", -1)
        stranger.send(frame({"ping": True}))
        assert stranger.receive() is None


def test_process_that_cannot_take_an_append_ends_the_link(
    pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair

    def fail(received: Received) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(one, "receive", fail)
    assert other.send(one, 1)
    assert other.answer() == ([1], Declined.NOT_TAKEN)
    assert other.ended.get(timeout=30) == one.links.address
    assert one.links.leave(5)
    monkeypatch.setattr(tls, "MOST_LINKS", 1)  # the link that has failed is not counted
    assert other.links.link(one.links.address)
    assert not other.ended.qsize()


def test_frames_that_are_not_complete_are_bounded_together(
    cluster: Cluster, pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "MOST_UNREAD", 1000)
    one, _ = pair
    with ExitStack() as stack:
        strangers = [stack.enter_context(closing(Stranger(cluster, one))) for _ in range(2)]
        for stranger in strangers:
            stranger.enter(one.storage)
        strangers[0].send(HEAD.pack(0, 5000) + bytes(600))
        eventually(lambda: [each for each in one.links._askers if each.unread])
        strangers[1].send(HEAD.pack(0, 5000) + bytes(600))
        assert strangers[1].receive() is None


def test_silent_strangers_hold_no_more_than_their_share_of_file_numbers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "MOST_ENTERING", 5)
    storage: set[str] = set()
    one, other = Process(cluster, storage), Process(cluster, storage)
    with closing(one.links), closing(other.links), ExitStack() as stack:
        assert other.links.link(one.links.address)
        where, _, port = one.links.address.partition("/")[0].rpartition(":")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(40):
            stack.enter_context(socket.create_connection((where, int(port)), 30))
        time.sleep(0.2)
        assert len(os.listdir("/proc/self/fd")) - before - 40 <= 5
        assert other.send(one, 1)
        one.take().asker.answer([1], Declined.ALONE)
        assert other.answer() == ([1], Declined.ALONE)


def test_strangers_that_leave_make_room(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "MOST_ENTERING", 1)
    storage: set[str] = set()
    one, other = Process(cluster, storage), Process(cluster, storage)
    with closing(one.links), closing(other.links):
        where, _, port = one.links.address.partition("/")[0].rpartition(":")
        for _ in range(3):
            socket.create_connection((where, int(port)), 30).close()
        assert other.links.link(one.links.address)


def test_slow_proofs_delay_no_append(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "MOST_PROOFS", 2)
    storage: set[str] = set()
    one, other = Process(cluster, storage), Process(cluster, storage)
    stopped, is_proven = threading.Event(), one.is_proven
    with closing(one.links), closing(other.links), ExitStack() as stack:
        assert other.links.link(one.links.address)
        one.is_proven = lambda challenge: stopped.wait(30) and is_proven(challenge)  # type: ignore[method-assign]
        strangers = [stack.enter_context(closing(Stranger(cluster, one))) for _ in range(3)]
        for stranger in strangers:
            stranger.send(frame({"hello": tls.FORMAT, "process": stranger.name}))
            assert stranger.receive() is not None
            stranger.send(frame({"proven": ""}))
        begun = time.monotonic()
        assert strangers[2].receive() is None
        assert time.monotonic() - begun < tls.LINKED_WITHIN / 2
        assert other.send(one, 1)
        one.take().asker.answer([1], Declined.ALONE)
        assert other.answer() == ([1], Declined.ALONE)
        stopped.set()


def test_address_to_which_a_link_is_made_is_not_waited_for_twice(cluster: Cluster) -> None:
    one = Process(cluster, set())
    with closing(one.links), socket.create_server(("127.0.0.1", 0)) as mute, ThreadPoolExecutor(1) as pool:
        address = f"127.0.0.1:{mute.getsockname()[1]}/{'0' * 32}"
        first = pool.submit(one.links.link, address)
        connection = mute.accept()[0]
        begun = time.monotonic()
        assert not one.links.link(address)
        assert time.monotonic() - begun < tls.LINKED_WITHIN / 2
        connection.close()
        assert not first.result(30)


def test_system_ends_links_whose_other_host_has_vanished(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(one, 1)  # so both ends have begun
    one.take()
    ends: list[Any] = [*one.links._askers, *other.links._links.values()]
    assert len(ends) == 2
    for each in ends:
        connection = each._writer.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60


def test_link_that_fails_is_logged_once_and_leaves_no_proof(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, copy = Process(cluster, set()), Process(cluster, set())
    copied: set[str] = copy.storage

    def is_proven(challenge: str) -> bool:
        found = challenge in copied
        copied.discard(challenge)
        return found

    monkeypatch.setattr(copy, "is_proven", is_proven)
    with closing(one.links), closing(copy.links):
        for _ in range(3):
            assert not copy.links.link(one.links.address)
    assert not copied
    where = one.links.address.partition("/")[0]
    assert [where in record.getMessage() for record in caplog.records] == [True]


def test_process_without_a_thread_has_no_links(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(tls, "Thread", NoThread)
        one = Process(cluster, set())
    assert not one.links.link(f"127.0.0.1:1/{'0' * 32}")
    assert not one.send(one, 1)
    one.links.close()


# -- settings ---------------------------------------------------------------------------------------------------------


def test_first_free_port_of_the_range_is_taken(cluster: Cluster) -> None:
    with ExitStack() as stack:
        used = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = used.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {port} to {port}"):
            TlsLinks(**attrs.asdict(attrs.evolve(cluster, ports=range(port, port + 1))))
        free = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
    links = TlsLinks(**attrs.asdict(attrs.evolve(cluster, ports=range(free, free + 1))))
    assert f":{free}/" in links.address
    links.close()


@pytest.mark.parametrize("change", [{"certificate": "/none"}, {"authority": "/none"}, {"host": "no.such.host.invalid"}])
def test_file_or_host_that_cannot_be_used_is_named(cluster: Cluster, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(change.values()))):
        TlsLinks(**attrs.asdict(attrs.evolve(cluster, **change)))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_address_that_others_cannot_reach_is_refused(cluster: Cluster, host: str) -> None:
    with pytest.raises(InvalidInput, match="which the other servers reach"):
        TlsLinks(**attrs.asdict(attrs.evolve(cluster, host=host)))


def test_processes_link_over_ipv6_and_by_name(cluster: Cluster) -> None:
    storage: set[str] = set()
    for host in ("::1", "localhost"):
        there = attrs.evolve(cluster, host=host)
        one, other = Process(there, storage), Process(there, storage)
        with closing(one.links), closing(other.links):
            assert other.links.link(one.links.address)
            assert other.send(one, 1)
            one.take().asker.answer([1], Declined.ALONE)
            assert other.answer() == ([1], Declined.ALONE)
