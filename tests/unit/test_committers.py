"""Processes of one host that send each other appends: frames, replies, and the fence."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from lancekeep.adapters.committers import askers, frames, unix
from lancekeep.adapters.committers.frames import HEAD, Incoming, Malformed
from lancekeep.adapters.committers.unix import UnixCommitters, _Committer
from lancekeep.domain import errors
from lancekeep.domain.commit import Committed
from lancekeep.domain.commit_token import CommitToken, CommitUnknown, StagedManifest
from lancekeep.domain.errors import InvalidInput, LancekeepError, StoreUnavailable
from lancekeep.domain.idempotency import Superseded
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.format.arrow_ipc import ROWS_WITHOUT_BYTES
from lancekeep.ports.committers import Declined, Received, Reply, SentUpsert
from lancekeep.ports.data_files import Rows
from lancekeep.ports.rows import MergeCounts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fence needs Linux")

TABLE = ObjectId(("ml", "t"))
KEY = SharedKey(bytes(range(16)), bytes(16), "ab" * 32)
UPSERT = SentUpsert(("number", "k$y"), False, 2.5)


def token(version: int = 2) -> CommitToken:
    name = f"{2**64 - 1 - version:020d}.manifest-00000000-0000-4000-8000-000000000000"
    return CommitToken(StagedManifest("file:///lake/t", version, f"lake/t/_versions/{name}", 10))


def rows(*numbers: int | None, kind: pa.DataType | None = None) -> Rows:
    table = pa.table({"number": pa.array(numbers, kind or pa.int64())})
    return Rows(table, table.num_rows, table.nbytes)


# -- frames -----------------------------------------------------------------------------------------------------------


def cut(content: bytes, most: int = frames.MOST_ROWS_BYTES) -> tuple[dict[str, Any], bytes]:
    incoming = Incoming(most)
    incoming.add(content)
    found = incoming.next()
    assert found is not None
    assert incoming.next() is None
    return found


@pytest.mark.parametrize(("key", "upsert"), [(None, None), (KEY, None), (None, UPSERT)])
def test_rows_arrive_as_they_were_sent(key: SharedKey | None, upsert: SentUpsert | None) -> None:
    table = pa.table({"a": [1, None], "b": [["x"], []], "c": [{"d": 1.5}, None], "n": pa.nulls(2)}).slice(1)
    content = frames.append_frame(TABLE, 7, Rows(table, 1, table.nbytes), key, upsert)
    assert content is not None
    incoming = Incoming(frames.MOST_ROWS_BYTES)
    for at in range(len(content) - 1):  # byte by byte
        incoming.add(content[at : at + 1])
        assert incoming.next() is None
    incoming.add(content[-1:])
    found = incoming.next()
    assert found is not None
    assert found[0]["append"] == 7
    where, arrived, with_key, how = frames.append_of(*found)
    assert (where, with_key, how) == (TABLE, key, upsert)
    assert (with_key is None) or (with_key.request_name == KEY.request_name)
    assert arrived.table.equals(table)
    assert arrived.schema == table.schema


def test_append_that_is_too_large_is_not_sent() -> None:
    nulls = pa.table({"a": pa.nulls(ROWS_WITHOUT_BYTES + 1)})
    large = pa.table({"a": [bytes(frames.MOST_ROWS_BYTES)]})
    for table in (nulls, large):
        assert frames.append_frame(TABLE, 1, Rows(table, table.num_rows, table.nbytes), None) is None


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def no_text() -> bytes:
    offsets = pa.py_buffer(struct.pack("<ii", 0, 1))
    return stream(pa.table({"a": pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"\xff"))}))


GOOD = stream(pa.table({"a": [1, 2, 3]}))


@pytest.mark.parametrize(
    ("table", "key", "content"),
    [
        ("t", None, b""),
        ("t", None, stream(pa.table({"a": pa.nulls(0)}))),
        ("t", None, b"not Arrow, but a text of some length"),
        ("t", None, GOOD[:-60]),
        ("t", None, GOOD[:40]),
        ("t", None, GOOD[:8] + bytes(100) + GOOD[108:]),
        ("t", None, struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF) + GOOD),
        ("t", None, stream(pa.table({"a": pa.nulls(10**9)}))),
        ("t", None, stream(pa.table({"a": [bytes(1 << 20)]}), "zstd")),
        ("t", None, no_text()),
        ("a$..", None, GOOD),
        ("", 5, GOOD),
        (None, None, GOOD),
        ("t", ["00", "00", "x"], GOOD),
        ("t", [KEY.name.hex(), KEY.request.hex(), 5], GOOD),
    ],
)
def test_append_that_cannot_be_understood_is_refused(table: object, key: object, content: bytes) -> None:
    with pytest.raises(InvalidInput):
        frames.append_of({"append": 1, "table": table, "key": key}, content)


@pytest.mark.parametrize(
    "upsert",
    [
        5,
        [],
        [["a"], True],
        [[], True, 1],
        ["a", True, 1],
        [[1], True, 1],
        [["a"], 1, 1],
        [["a"], True, "1"],
        [["a"], True, -1],
        [["a"], True, float("inf")],
        [["a"], True, float("nan")],
    ],
)
def test_upsert_that_cannot_be_understood_is_refused(upsert: object) -> None:
    with pytest.raises(InvalidInput):
        frames.append_of({"append": 1, "table": "t", "key": None, "upsert": upsert}, GOOD)


@pytest.mark.parametrize(
    "counts", [5, [1, 2, 3], [[1, 2]], [[1, 2, 3, 4]], [[1, 2, -1]], [[1, 2, True]], [[1, 2, 3]] * 2, ["abc"]]
)
def test_counts_that_cannot_be_understood_are_refused(counts: object) -> None:
    with pytest.raises(Malformed):
        frames.counts_of({"numbers": [1], "counts": counts}, [1])


@pytest.mark.parametrize(
    "content",
    [
        HEAD.pack(frames.MOST_JSON + 1, 0),
        HEAD.pack(2, frames.MOST_ROWS_BYTES + 1),
        HEAD.pack(2, 0) + b"[]",
        HEAD.pack(3, 0) + b"\xff\xfe{",
        HEAD.pack(100_000, 0) + b"[" * 100_000,
    ],
)
def test_frame_that_cannot_be_understood_is_refused(content: bytes) -> None:
    with pytest.raises(Malformed):
        cut(content)


KINDS = [
    kind for kind in (*vars(errors).values(), Superseded) if isinstance(kind, type) and issubclass(kind, LancekeepError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_arrives_as_itself(kind: type[LancekeepError]) -> None:
    message, _ = cut(frames.reply_frame([1], kind("what, and why")))
    arrived = frames.reply_of(message, token())
    assert type(arrived) is kind
    assert str(arrived) == "what, and why"


def test_error_of_an_unknown_outcome_keeps_its_token() -> None:
    caused = StoreUnavailable("the store is silent")
    caused.__cause__ = CommitUnknown("open", token(5))
    for error in (CommitUnknown("open", token(5)), caused):
        arrived = frames.reply_of(cut(frames.reply_frame([1], error))[0], token(4))
        assert isinstance(arrived, CommitUnknown)
        assert arrived.token == token(5)


class _Special(errors.TableNotFound):
    """An error of a module that the map does not know."""


def test_unknown_error_is_an_unknown_outcome_unless_nothing_was_announced() -> None:
    message, _ = cut(frames.reply_frame([1], MemoryError("none left")))
    arrived = frames.reply_of(message, token(4))
    assert isinstance(arrived, CommitUnknown)
    assert arrived.token == token(4)
    nothing = frames.reply_of(message, None)
    assert type(nothing) is LancekeepError
    assert "none left" in str(nothing)
    assert "Nothing was committed" in str(nothing)
    assert type(frames.reply_of(cut(frames.reply_frame([1], _Special("x")))[0], None)) is errors.TableNotFound
    assert isinstance(frames.reply_of({"numbers": [1], "error": "SystemExit", "message": ""}, token()), CommitUnknown)


@pytest.mark.parametrize("reply", [Committed(3, "p", 9, "2-x.txn"), *Declined])
def test_other_replies_arrive_as_they_were_sent(reply: Reply) -> None:
    arrived = frames.reply_of(cut(frames.reply_frame([1, 2], reply))[0], None)
    assert arrived == reply
    if isinstance(reply, Committed):
        assert isinstance(arrived, Committed)
        assert arrived.transaction == reply.transaction


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"declined": "PERHAPS"},
        {"committed": [1, "p", 9]},
        {"committed": ["1", "p", 9, ""]},
        {"error": [], "message": ""},
        {"error": "Refused", "message": 5},
        {"unknown": "{}", "message": ""},
    ],
)
def test_reply_that_cannot_be_understood_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        frames.reply_of(message, token())


# -- sockets ----------------------------------------------------------------------------------------------------------


class Process:
    """What a process of the host has received, and what it was answered."""

    def __init__(self, directory: Path, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.committers = UnixCommitters(directory, clock)
        self.received: SimpleQueue[Received] = SimpleQueue()
        self.answers: SimpleQueue[tuple[list[int], Reply]] = SimpleQueue()
        self.counted: SimpleQueue[dict[int, MergeCounts]] = SimpleQueue()
        self.committers.begin(self.received.put, self._counted, self._answered)

    def _answered(self, numbers: Sequence[int], reply: Reply) -> None:
        self.answers.put((list(numbers), reply))

    def _counted(self, numbers: Sequence[int], counts: Sequence[MergeCounts]) -> None:
        self.counted.put(dict(zip(numbers, counts, strict=True)))

    def send(
        self,
        number: int,
        table: ObjectId = TABLE,
        key: SharedKey | None = None,
        upsert: SentUpsert | None = None,
    ) -> bool:
        return self.committers.send(table, number, rows(number), key, upsert)

    def take(self) -> Received:
        return self.received.get(timeout=30)

    def answer(self) -> tuple[list[int], Reply]:
        return self.answers.get(timeout=30)

    def give_up(self) -> None:
        """Fence the committers of this process."""
        for each in list(self.committers._committers.values()):
            each.end()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Process, Process]]:
    """Return a process that commits the appends of the table, and another one."""
    one, other = Process(tmp_path), Process(tmp_path)
    with closing(one.committers), closing(other.committers):
        assert not one.send(0)
        yield one, other


def test_appends_reach_the_process_that_holds_the_table(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(1, key=KEY)
    assert not one.send(2)
    assert not other.send(3, ObjectId(("u",)))
    assert one.send(4, ObjectId(("u",)))
    received = one.take()
    assert (received.table, received.number, received.key) == (TABLE, 1, KEY)
    assert received.rows.table["number"].to_pylist() == [1]
    assert received.asker.announce([1], token(2))
    assert received.asker.announce([1], token(3))
    received.asker.answer([1], Committed(3, "p", 9))
    assert other.answer() == ([1], Committed(3, "p", 9))
    other.take().asker.answer([4], Declined.ALONE)
    assert one.answer() == ([4], Declined.ALONE)


def test_upserts_arrive_and_learn_the_counts_of_each_attempt(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(1, upsert=UPSERT)
    assert other.send(2, upsert=UPSERT)
    received, also = one.take(), one.take()
    assert (received.upsert, also.upsert) == (UPSERT, UPSERT)
    first, second = MergeCounts(1, 0, 0), MergeCounts(0, 2, 0)
    assert received.asker.announce([1, 2], token(2), [first, second])
    assert received.asker.announce([2], token(3), [first])
    received.asker.answer([1, 2], Committed(3, "p", 9))
    assert other.answer()[1] == Committed(3, "p", 9)
    assert [other.counted.get(timeout=30) for _ in range(2)] == [{1: first, 2: second}, {2: first}]


def test_process_that_takes_too_long_is_given_up_and_avoided(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(1)
    received = one.take()
    other.committers.give_up(2)  # which was not sent
    assert other.send(3)
    one.take()
    other.committers.give_up(1)
    replies = {number: reply for numbers, reply in (other.answer(), other.answer()) for number in numbers}
    assert replies == {1: Declined.NOT_TAKEN, 3: Declined.NOT_TAKEN}
    assert not received.asker.announce([1], token())
    assert not other.send(4)


def test_the_next_process_takes_the_table_of_one_that_ended(pair: tuple[Process, Process]) -> None:
    one, other = pair
    one.committers.close()
    assert not other.send(1)
    assert not other.send(2)
    assert other.received.empty()


def test_a_process_leaves_a_table_to_the_only_one_that_uses_it(tmp_path: Path) -> None:
    now = 0.0
    one, other = Process(tmp_path, lambda: now), Process(tmp_path, lambda: now)
    with closing(one.committers), closing(other.committers):
        assert not one.send(0)
        assert other.send(1)
        one.take()
        now = unix.UNUSED + 1
        assert other.send(2)
        assert other.answer() == ([2], Declined.NOT_TAKEN)
        assert not other.send(3)
        assert one.send(4)


def test_a_process_that_stops_takes_no_more_and_answers_the_rest(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(1)
    received = one.take()
    assert not one.committers.leave(0)
    assert other.send(2)
    assert other.answer() == ([2], Declined.NOT_TAKEN)
    assert not other.send(3)  # it has the lock
    received.asker.answer([1], Committed(2, "p", 9))
    assert other.answer() == ([1], Committed(2, "p", 9))
    assert one.committers.leave(30)


def test_a_process_holds_a_limited_number_of_bytes(
    pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    monkeypatch.setattr(askers, "MOST_HELD", 12 + unix.OVERHEAD)
    assert other.send(1)
    assert other.send(2)
    assert other.answer() == ([2], Declined.NOT_TAKEN)
    one.take().asker.answer([1], Declined.ALONE)
    assert other.answer() == ([1], Declined.ALONE)
    assert other.send(3)
    assert one.take().number == 3


def test_without_a_token_a_fenced_append_cannot_be_committed(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(1)
    received = one.take()
    other.give_up()
    assert other.answer() == ([1], Declined.NOT_TAKEN)
    assert not received.asker.announce([1], token())
    received.asker.answer([1], Declined.ALONE)
    assert one.committers.leave(0)


@pytest.mark.parametrize("ends", ["committer", "asker"])
def test_after_a_token_the_outcome_is_unknown(pair: tuple[Process, Process], ends: str) -> None:
    one, other = pair
    assert other.send(1)
    assert other.send(2)
    received, also = one.take(), one.take()
    assert received.asker is also.asker
    assert received.asker.announce([1], token(2))
    assert received.asker.announce([1], token(3))
    if ends == "asker":
        other.give_up()
    else:
        one.committers.close()
    answers = {number: reply for numbers, reply in (other.answer(), other.answer()) for number in numbers}
    unknown = answers[1]
    assert isinstance(unknown, CommitUnknown)
    assert unknown.token == token(3)
    assert answers[2] is Declined.NOT_TAKEN
    assert not also.asker.announce([2], token(3))


def sent(connection: socket.socket, content: bytes, barrier: Barrier) -> bool:
    barrier.wait()
    try:
        return connection.send(content, socket.MSG_DONTWAIT) == len(content)
    except OSError:
        return False


def answer_into(answers: SimpleQueue[Reply], numbers: Sequence[int], reply: Reply) -> None:
    for _ in numbers:
        answers.put(reply)


def test_what_was_sent_before_the_fence_of_a_silent_committer_is_read() -> None:
    with ThreadPoolExecutor(1) as pool:
        for number in range(300):
            answers: SimpleQueue[Reply] = SimpleQueue()
            near, far = socket.socketpair()
            with far:
                answered = partial(answer_into, answers)
                committer = _Committer("1-x", near, lambda *_: None, answered, lambda _: None, lambda *_: None)
                assert committer.send(number, b"an append")
                barrier = Barrier(2)
                racing = pool.submit(sent, far, frames.token_frame([number], token()), barrier)
                barrier.wait()
                committer._fence("", is_silent=True)
                reply = answers.get(timeout=30)
                assert racing.result() == isinstance(reply, CommitUnknown)
                assert not committer.send(number, b"an append")


def announced(received: Received, barrier: Barrier) -> bool:
    barrier.wait()
    return received.asker.announce([received.number], token())


def test_each_race_of_a_token_and_the_fence_has_one_outcome(tmp_path: Path) -> None:
    one, other = Process(tmp_path), Process(tmp_path)
    with closing(one.committers), closing(other.committers), ThreadPoolExecutor(1) as pool:
        assert not one.send(0)
        for number in range(1, 301):
            assert other.send(number)
            barrier = Barrier(2)
            racing = pool.submit(announced, one.take(), barrier)
            barrier.wait()
            other.give_up()
            _, reply = other.answer()
            assert racing.result() == isinstance(reply, CommitUnknown)


def test_token_that_is_sent_in_part_is_not_announced(tmp_path: Path) -> None:
    one = Process(tmp_path)
    with closing(one.committers), socket.socket(socket.AF_UNIX) as asker:
        assert not one.send(0)
        asker.connect(one.committers._path(one.committers._name))
        content = frames.append_frame(TABLE, 1, rows(1), None)
        assert content is not None
        asker.sendall(content)  # and reads nothing
        received = one.take()
        assert not received.asker.announce([10**9] * 200_000, token())
        assert not received.asker.announce([1], token())


def holder(directory: Path, name: str = f"{unix.FORMAT}holder") -> tuple[socket.socket, int]:
    """Listen as a committer that does as the test likes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / name))
    listener.listen()
    asking = Process(directory)
    assert not asking.send(0)
    asking.committers.close()
    [lock] = [each for each in directory.iterdir() if not each.is_socket()]
    file = os.open(lock, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.write_text(name)
    return listener, file


def test_silent_committer_is_given_up_and_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix, "SILENCE", 0.01)
    listener, file = holder(tmp_path)
    other = Process(tmp_path)
    with listener, closing(other.committers):
        assert other.send(1)
        assert other.answer() == ([1], Declined.NOT_TAKEN)
        assert not other.send(2)
    os.close(file)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (HEAD.pack(2**31, 0), StoreUnavailable),
        (HEAD.pack(2, 5) + b"{}12345", StoreUnavailable),
        (frames.frame({"numbers": "all"}), StoreUnavailable),
        (frames.frame({"numbers": [1], "token": "{}"}), StoreUnavailable),
        (frames.frame({"numbers": [1], "committed": "yes"}), StoreUnavailable),
        (frames.token_frame([1], token()) + HEAD.pack(2**31, 0), CommitUnknown),
        (frames.token_frame([1], token())[:-1], Declined),
        (frames.token_frame([2], token()), Declined),
        (b"", Declined),
    ],
)
def test_hostile_committer_makes_no_append_a_success(tmp_path: Path, sent: bytes, kind: type) -> None:
    listener, file = holder(tmp_path)
    other = Process(tmp_path)
    with listener, closing(other.committers):
        assert other.send(1)
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(sent)
        numbers, reply = other.answer()
        assert numbers == [1]
        assert isinstance(reply, kind)
    os.close(file)


@pytest.mark.parametrize("name", ["", "2-other", f"{unix.FORMAT}../../escape", f"{unix.FORMAT}absent"])
def test_committer_that_cannot_be_reached_is_ignored(tmp_path: Path, name: str) -> None:
    listener, file = holder(tmp_path)
    [lock] = [each for each in tmp_path.iterdir() if not each.is_socket()]
    lock.write_text(name)
    other = Process(tmp_path)
    with listener, closing(other.committers):
        assert not other.send(1)
    os.close(file)


def test_hostile_asker_is_cut_off_and_others_go_on(pair: tuple[Process, Process]) -> None:
    one, other = pair
    append = frames.append_frame(TABLE, 1, rows(1), None)
    assert append is not None
    half = append[: len(append) // 2]
    for sent in (HEAD.pack(2**31, 2**31), half, frames.frame({"append": "1"}), frames.frame({}), b"GET / HTTP/1.1\r\n"):
        with socket.socket(socket.AF_UNIX) as hostile:
            hostile.connect(one.committers._path(one.committers._name))
            hostile.sendall(sent)
            hostile.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert hostile.recv(100) == b""
    with socket.socket(socket.AF_UNIX) as hostile:
        hostile.connect(one.committers._path(one.committers._name))
        hostile.sendall(frames.frame({"append": 5, "table": "ml$t", "key": None}, b"no Arrow"))
        declined = frames.reply_frame([5], Declined.NOT_TAKEN)
        assert hostile.recv(len(declined), socket.MSG_WAITALL) == declined
    assert other.send(2)
    assert one.take().number == 2
    assert one.received.empty()


def test_forked_child_holds_neither_locks_nor_connections(pair: tuple[Process, Process]) -> None:
    one, other = pair
    assert other.send(1)
    one.take()
    ended, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ended, 1)  # outlives its parent's locks
        os._exit(0 if not one.send(2) and not other.send(3) else 1)
    os.close(ended)
    one.committers.close()
    assert other.answer() == ([1], Declined.NOT_TAKEN)
    assert not other.send(4)
    os.close(end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
