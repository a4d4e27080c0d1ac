"""Mutate the stored rows of commit stores: a Redis member, a DynamoDB item, a SQLite row, a file."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import boto3
import pytest
import redis
from fuzz.foreign import FUZZ, SLOW, SLOWEST, read, texts
from hypothesis import example, given
from hypothesis import strategies as st

from lancekeep import Damaged, InvalidInput
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.commit_stores.files import FilesCommitStore
from lancekeep.adapters.commit_stores.sqlite import SqliteCommitStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.commits.checked_rows import CheckedRows
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.version_row import NotReady, Reservation, Taken, VersionRow
from lancekeep.ports.commit_store import ExternalCommitStore

BASE = "s3://bucket/t"
NEXT = VersionRow(BASE, 8, "t/_versions/8.manifest-x", 1, "me")

CHECKED = range(4, 10)
"""The calls of `look` that go through `CheckedRows`."""


def obstacle(reservation: Reservation) -> VersionRow | None:
    """The row that is in the way of a claim."""
    match reservation:
        case Taken(row) | NotReady(row):
            return row
    return None


def look(store: ExternalCommitStore) -> None:
    """Every call that reads a row answers or raises `Damaged`; checked rows name only their own manifests."""
    checked = CheckedRows(store, "s3://bucket/")
    calls: tuple[Callable[[], Any], ...] = (
        lambda: store.latest(BASE),
        lambda: store.get(BASE, 7),
        lambda: store.list(BASE, after=None, limit=None, descending=False),
        lambda: store.list(BASE, after=9, limit=2, descending=True),
        lambda: checked.latest(BASE),
        lambda: checked.get(BASE, 7),
        lambda: checked.list(BASE, after=None, limit=None, descending=False),
        lambda: checked.latest_all([BASE])[0],
        lambda: checked.sort_out(BASE)[0],
        lambda: obstacle(checked.reserve(NEXT, first=False)),
        lambda: store.finalize(VersionRow(BASE, 7, "t/_versions/7.manifest", 1)),
        lambda: store.delete(BASE),
    )
    for at, call in enumerate(calls):
        found = read(call, Damaged)
        for row in found if isinstance(found, list) else [found]:
            if isinstance(row, VersionRow):
                if at in CHECKED and row.moved_to is None:
                    directory, _, name = row.path.rpartition("/")
                    parsed = ManifestName.parse(name)
                    assert (directory, parsed and parsed.version) == ("t/_versions", row.version)
                    assert row.size >= 0
                assert row.is_final in (True, False)
                assert isinstance(row.version, int)
                assert isinstance(row.size, int)
                assert isinstance(row.committer, str)


# -- SQLite ------------------------------------------------------------------------------------------------------

CELLS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    st.binary(max_size=10),
    st.sampled_from(("moved-to:x", "t/_versions/7.manifest", "moved-to:", "u/_versions/7.manifest")),
)


@SLOW
@given(st.one_of(st.just(7), CELLS), CELLS, CELLS, CELLS, st.booleans())
@example(7, b"\xff", 1, "", False)
@example(7, "p", "much", "", True)
@example(7, "p", 1, b"me", True)
def test_rows_in_sqlite(version: Any, path: Any, size: Any, committer: Any, invalid_text: bool) -> None:
    with TemporaryDirectory() as directory:
        place = f"{directory}/commits.db"
        store = SqliteCommitStore(place)
        store.record([VersionRow(BASE, 1, "t/_versions/1.manifest", 1)])
        with closing(sqlite3.connect(place)) as connection, connection:
            columns = "?, ?, CAST(? AS TEXT), ?, ?, 1" if invalid_text else "?, ?, ?, ?, ?, 1"
            values = (BASE, version, path, size, committer)
            connection.execute(f"INSERT OR REPLACE INTO version_rows VALUES ({columns})", values)
        look(store)
        store.close()


@SLOW
@given(st.binary(max_size=200), st.booleans())
def test_file_that_is_not_a_database(content: bytes, header: bool) -> None:
    with TemporaryDirectory() as directory:
        Path(directory, "commits.db").write_bytes(b"SQLite format 3\0" * header + content or b"x")
        look(SqliteCommitStore(f"{directory}/commits.db"))


# -- files -------------------------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.sampled_from(("7", "007", "٣", "²", "7.manifest", "-1", "99999999999999999999999")),
    st.text("0123456789", min_size=1),
)


@SLOW
@given(st.dictionaries(NAMES, st.one_of(st.binary(max_size=30), st.just(b"5\0t/_versions/7.manifest\0me")), min_size=1))
@example({"٣": b"5\0p\0me"})
@example({"007": b"5\0p\0me"})
@example({"7": b"5\0\xff\0me"})
@example({"7": b"5\0home/x/secret.txt\0me"})
@example({"7": b"-5\0t/_versions/7.manifest\0me"})
def test_rows_in_files(files: dict[str, bytes]) -> None:
    with TemporaryDirectory() as directory:
        history = Path(directory, sha256(BASE.encode()).hexdigest())
        history.mkdir()
        (history / "history").write_bytes(b"x\n")
        for name, content in files.items():
            (history / name[:200]).write_bytes(content)
        look(FilesCommitStore(directory, fsync=False))


# -- Redis -------------------------------------------------------------------------------------------------------

MEMBERS = st.one_of(
    st.binary(max_size=40),
    texts("0123456789\0FSM").map(lambda text: text.encode("utf-8", "replace")),
    st.tuples(
        st.sampled_from((b"7", b"-7", b"x", b"9")), st.sampled_from((b"F", b"S", b"M")), st.binary(max_size=5)
    ).map(b"\0".join),
    st.sampled_from((b"7\0F\x005\0t/_versions/7.manifest\0me", b"7\0S\x005\0t/7.manifest-x\0\xff", b"9\0F\x005\0p\0")),
)


@pytest.fixture
def server(redis_url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_url)
    yield client
    client.close()


@SLOW
@given(st.one_of(st.just(7.0), st.floats(allow_nan=False)), MEMBERS, st.booleans())
@example(7.0, b"7\0S\x005\0t/7.manifest-x\0\xff", False)
@example(7.5, b"7\0F\x005\0p\0me", False)
@example(9.0, b"7\0F\x005\0t/_versions/7.manifest\0me", False)
@example(7.0, b"7\0S\x005\0t/_versions/7.manifest\0me", False)
@example(7.0, b"7\0S\x005\0home/x/7.manifest-x\0me", False)
def test_members_in_redis(redis_url: str, server: Any, score: float, member: bytes, other_type: bool) -> None:
    store = open_commit_store(redis_url, {}, MemoryObjectStore())
    key = f"lancekeep:{{{BASE}}}"
    server.delete(key)
    if other_type and len(member) % 5 == 0:
        server.set(key, member)
    else:
        server.zadd(key, {member: score})
    look(store)
    store.close()
    server.delete(key)


# -- DynamoDB ----------------------------------------------------------------------------------------------------

ATTRIBUTES = st.one_of(
    st.fixed_dictionaries({"S": st.text(st.characters(exclude_categories=["Cs"]), max_size=10)}),
    st.fixed_dictionaries({"N": st.sampled_from(("5", "-1", "1.5", "1E+20", "0"))}),
    st.fixed_dictionaries({"B": st.binary(min_size=1, max_size=5)}),
    st.just({"NULL": True}),
    st.just({"L": []}),
    st.just({"S": "t/_versions/7.manifest"}),
)


@pytest.fixture(scope="module")
def items(moto_endpoint: str) -> tuple[Any, str, str]:
    """A client, the name of a table, and the URL of the commit store in it."""
    name = f"fuzz-{uuid4().hex[:8]}"
    url = f"dynamodb://{name}?region=us-east-1&endpoint_url={moto_endpoint}"
    open_commit_store(url, {}, MemoryObjectStore()).record([VersionRow(BASE, 1, "t/_versions/1.manifest", 1)])
    return boto3.client("dynamodb", endpoint_url=moto_endpoint), name, url


@SLOWEST
@given(
    st.sampled_from(("7", "7.5", "-3", "9")),
    st.dictionaries(st.sampled_from(("path", "size", "committer")), ATTRIBUTES),
)
@example("7", {"path": {"S": "p"}, "size": {"S": "5"}})
@example("7", {"path": {"S": "p"}, "size": {"N": "1.5"}})
@example("7.5", {"path": {"S": "p"}, "size": {"N": "5"}})
@example("7", {"path": {"S": "home/_versions/7.manifest"}, "size": {"N": "5"}})
@example("7", {"path": {"S": "p"}, "size": {"N": "5"}, "committer": {"L": []}})
def test_items_in_dynamodb(items: tuple[Any, str, str], version: str, attributes: dict[str, Any]) -> None:
    client, table, url = items
    store = open_commit_store(url, {}, MemoryObjectStore())
    key = {"base_uri": {"S": BASE}, "version": {"N": version}}
    client.put_item(TableName=table, Item={**key, **attributes})
    look(store)
    client.delete_item(TableName=table, Key=key)
    client.delete_item(TableName=table, Key={"base_uri": {"S": BASE}, "version": {"N": "8"}})
    store.close()


# -- what a row says ---------------------------------------------------------------------------------------------


@FUZZ
@given(texts(":/.-moved"))
@example("moved-to:")
@example("moved-to:x.manifest")
def test_mutated_path_of_row(path: str) -> None:
    row = VersionRow(BASE, 1, path, 1)
    assert not (row.is_final and row.moved_to is not None)
    if row.moved_to is not None:
        read(lambda: open_commit_store(row.moved_to or "", {}, MemoryObjectStore()), InvalidInput)


def test_fuzz_check_detects_row_of_wrong_type() -> None:
    class Lying(FilesCommitStore):
        def latest(self, base_uri: str) -> VersionRow | None:
            return VersionRow(base_uri, struct.pack, "p", 1)  # type: ignore[arg-type] # the point of the test

    with TemporaryDirectory() as directory, pytest.raises(AssertionError):
        look(Lying(directory))
