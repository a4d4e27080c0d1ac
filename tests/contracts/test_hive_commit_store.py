"""The commit store in a Hive Metastore: its contract, its costs, and faults of the Metastore and of writers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import pyarrow as pa
import pytest
from contracts.test_commit_stores import (
    MEMORY,
    check_unavailable,
    closed_port,
    commit_a_few,
    final,
    staged,
)
from losing_proxy import LosingProxy, losing_proxy
from pages import ROOT, Reader
from postgres_servers import PostgresServer, new_server

import lancekeep
from lancekeep.adapters.commit_stores import hive as store_of_hive
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.domain.errors import Damaged, InvalidInput, StoreUnavailable, UnsafeStore, Unsupported
from lancekeep.domain.version_row import Claim, NotReady, Reserved, Taken, VersionRow
from lancekeep.hive.address import Address
from lancekeep.hive.messages import VIEW
from lancekeep.hive.metastore import Metastore
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.store_urls import StoreUrl
from lancekeep.testing.commit_site import Site
from lancekeep.testing.commit_store import SharedCommitStoreContract
from lancekeep.testing.concurrency import race
from servers import Unavailable, free_port, hive_metastore, silent_server


class TestHive(SharedCommitStoreContract):
    rows = 1100  # more than a segment holds
    races = 3

    @pytest.fixture
    def site(self, hive_url: str) -> Site:
        return Site(f"{hive_url}/contract")


@pytest.fixture
def url(hive_url: str) -> str:
    return f"{hive_url}/store_{uuid4().hex[:8]}"


@contextmanager
def opened(url: str, options: Mapping[str, str] | None = None) -> Iterator[ExternalCommitStore]:
    with closing(open_commit_store(url, options or {}, MEMORY)) as store:
        yield store


@contextmanager
def proxied(url: str, marker: bytes = b"alter_table") -> Iterator[tuple[LosingProxy, str]]:
    """Yield a proxy before the Metastore, and the URL of the store through it."""
    address, _, database = url.removeprefix("hive://").partition("/")
    with losing_proxy(address, marker) as proxy:
        yield proxy, f"hive://127.0.0.1:{proxy.port}/{database}"


def metastore_of(url: str) -> tuple[Metastore, str]:
    address, _, database = url.removeprefix("hive://").partition("/")
    return Metastore.of(Address.of(StoreUrl.parse(f"hive://{address}", {}))), database


def history(store: ExternalCommitStore, base_uri: str, count: int, start: int = 1) -> list[VersionRow]:
    rows = []
    for version in range(start, start + count):
        row = staged(version, base_uri)
        assert store.reserve(row, first=version == start == 1) == Reserved()
        assert store.finalize(final(row))
        rows.append(final(row))
    return rows


def every_row(store: ExternalCommitStore, base_uri: str) -> list[VersionRow]:
    return store.list(base_uri, after=None, limit=None, descending=False)


def asked(proxy: LosingProxy, act: Callable[[], object]) -> str:
    """Return the methods that an action calls."""
    proxy.requests.clear()
    act()
    names = re.findall(rb"\x80\x01\x00\x01\0\0\0.([a-z_]+)", b"".join(proxy.requests), re.DOTALL)
    short = (name.decode().partition("_with_")[0] for name in names)
    return ", ".join(f"{count} {name}" for name, count in sorted(Counter(short).items()))


# -- costs -----------------------------------------------------------------------------------------------------------


def test_commit_is_two_requests_and_reading_is_one(url: str) -> None:
    base_uri = f"s3://bucket/{uuid4()}"
    with proxied(url) as (proxy, far), opened(far) as store, opened(url) as other:
        history(store, base_uri, 2)
        assert asked(proxy, lambda: history(store, base_uri, 1, 3)) == "2 alter_table"
        assert asked(proxy, lambda: store.latest(base_uri)) == "1 get_table_req"
        assert asked(proxy, lambda: store.get(base_uri, 1)) == "1 get_table_req"
        assert asked(proxy, lambda: every_row(store, base_uri)) == "1 get_table_req"
        history(other, base_uri, 1, 4)
        assert asked(proxy, lambda: history(store, base_uri, 1, 5)) == "2 alter_table, 1 get_table_req"
        assert asked(proxy, lambda: store.delete(base_uri)) == "1 drop_table, 1 get_table_req"


def test_rows_beyond_the_head_lie_in_segments_that_are_swept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long history keeps a small head. Each parameter fits into the database of an old Metastore."""
    monkeypatch.setattr("lancekeep.adapters.commit_stores.hive_history.HEAD_ROWS", 6)
    monkeypatch.setattr("lancekeep.adapters.commit_stores.hive_history.SEGMENT_ROWS", 10)
    base_uri, (metastore, database) = f"s3://bucket/{uuid4()}", metastore_of(url)
    with proxied(url) as (proxy, far), opened(far) as store, opened(url) as other:
        rows = history(store, base_uri, 40)
        assert every_row(other, base_uri) == rows
        assert other.list(base_uri, after=35, limit=30, descending=True) == rows[:34][:-31:-1]
        assert [other.get(base_uri, version) for version in (1, 20, 40, 41)] == [rows[0], rows[19], rows[39], None]
        assert asked(proxy, lambda: store.latest(base_uri)) == "1 get_table_req"
        views = metastore.tables(database, metastore.table_names(database))
        assert {view.kind for view in views} == {VIEW}
        assert {view.storage.location for view in views if view.storage} == {None}
        assert len([view for view in views if (view.name or "").startswith("h_")]) <= 1 + 8
        assert max(len(value) for view in views for value in (view.parameters or {}).values()) <= 4000
        # Rows in segments are deleted, replaced and found again; the newest row stays in the head.
        assert store.delete(base_uri, [3, 4, 40, 39, 38, 37, 36, 35, 99]) == 8
        assert every_row(other, base_uri) == [*rows[:2], *rows[4:34]]
        assert store.latest(base_uri) == rows[33]
        store.record([rows[3], rows[2], attrs.evolve(rows[5], size=7)])
        assert every_row(other, base_uri) == rows[:34]
        assert other.delete(base_uri) == 34
        assert not [name for name in metastore.table_names(database) if name.startswith("h_")]
        assert store.reserve(staged(1, base_uri), first=True) == Reserved()


def test_long_history_costs_as_much_as_a_short_one(url: str) -> None:
    base_uri = f"s3://bucket/{uuid4()}"
    rows = [final(staged(version, base_uri)) for version in range(1, 3001)]
    with proxied(url) as (proxy, far), opened(far) as store:
        store.record(rows)
        assert asked(proxy, lambda: store.latest(base_uri)) == "1 get_table_req"
        assert sum(map(len, proxy.requests)) < 500
        assert asked(proxy, lambda: history(store, base_uri, 2, 3001)) == "4 alter_table"
        assert sum(map(len, proxy.requests)) < 40_000
        with opened(far) as other:
            assert asked(proxy, lambda: other.get(base_uri, 7)) == "1 get_table_objects_by_name_req, 1 get_table_req"
            assert len(every_row(other, base_uri)) == 3002


# -- lost replies, and Metastores that are away ------------------------------------------------------------------------


@pytest.mark.parametrize("losses", [1, 2, 7])
def test_reserve_with_lost_reply_is_recognized(url: str, losses: int) -> None:
    base_uri = f"s3://bucket/{uuid4()}"
    with proxied(url) as (proxy, far), opened(far) as store:
        history(store, base_uri, 1)
        proxy.losses = losses
        row = staged(2, base_uri)
        assert store.reserve(row, first=False) == Reserved()
        assert proxy.lost == 1  # the row is read before another attempt
        proxy.losses = 0
        assert store.reserve(staged(2, base_uri), first=False) == Taken(row)
        proxy.losses = 1
        assert store.finalize(final(row))
        assert every_row(store, base_uri)[1:] == [final(row)]
        proxy.losses = 1
        assert store.delete(base_uri, [1, 2]) == 2


def test_first_row_with_lost_reply_is_recognized(url: str) -> None:
    base_uri = f"s3://bucket/{uuid4()}"
    with proxied(url, b"create_table") as (proxy, far), opened(far) as store:
        commit_a_few(store)
        proxy.losses = 1
        row = staged(1, base_uri)
        assert store.reserve(row, first=True) == Reserved()
        assert proxy.lost == 1
        assert store.latest(base_uri) == row


def test_other_writer_commits_before_the_lost_reply_is_noticed(url: str) -> None:
    base_uri = f"s3://bucket/{uuid4()}"
    with proxied(url) as (proxy, far), opened(far) as store, opened(url) as other:
        history(store, base_uri, 1)
        row, later = staged(2, base_uri), staged(3, base_uri)

        def help_and_go_on() -> None:
            assert other.finalize(final(row))
            assert other.reserve(later, first=False) == Reserved()

        proxy.losses, proxy.on_loss = 1, help_and_go_on
        assert store.reserve(row, first=False) == Taken(final(row))  # as for every final row
        assert every_row(other, base_uri)[1:] == [final(row), later]


def test_metastore_that_is_away_is_unavailable() -> None:
    address = closed_port()
    with opened(f"hive://ada@{address}/rows?password=hunter2&auth=plain") as store:
        check_unavailable(store, address)


@pytest.mark.slow
def test_silent_metastore_is_unavailable_after_two_attempts() -> None:
    with silent_server() as (address, connections), opened(f"hive://{address}/rows?timeout=1") as store:
        for act in (lambda: store.latest("s3://bucket/t"), lambda: store.reserve(staged(1), first=True)):
            with pytest.raises(StoreUnavailable, match=address) as caught:
                act()
            assert "in time" in "".join(traceback.format_exception(caught.value))
        assert 1 <= len(connections) <= 4


@contextmanager
def metastore_on_postgresql(
    directory: Path,
) -> Iterator[tuple[PostgresServer, Callable[[], AbstractContextManager[str]]]]:
    """Yield a database, and what starts a Metastore over it; always at the same port."""
    port = free_port()
    try:
        with new_server("fsync=on") as database:
            jdbc = f"jdbc:postgresql://127.0.0.1:{database.port}/postgres"
            yield database, lambda: hive_metastore(directory, port, database=jdbc)
    except Unavailable as error:
        pytest.skip(str(error))


def test_killed_metastore_and_database_are_unavailable_and_keep_rows(tmp_path: Path) -> None:
    """The Metastore of a deployment: over PostgreSQL. Both servers are killed, and start again."""
    base_uri = f"s3://bucket/{uuid4()}"
    with metastore_on_postgresql(tmp_path) as (database, start):
        with start() as address, opened(f"hive://{address}/rows") as store, opened(f"hive://{address}/rows") as other:
            for version in range(1, 4):
                rivals = [staged(version, base_uri) for _ in range(3)]
                answers = race(
                    3,
                    lambda number, rivals=rivals: (store, other)[number % 2].reserve(  # type: ignore[misc]
                        rivals[number], first=rivals[number].version == 1
                    ),
                )
                (row,) = [row for row, answer in zip(rivals, answers, strict=True) if answer == Reserved()]
                assert set(map(repr, answers)) == {repr(Reserved()), repr(Taken(row))}
                assert store.finalize(final(row))
            rows, row = every_row(other, base_uri), staged(4, base_uri)
            assert store.reserve(row, first=False) == Reserved()
        check_unavailable(store, address)
        database.kill()
        database.start()
        with start():
            assert every_row(store, base_uri) == [*rows, row]
            assert store.reserve(row, first=False) == Reserved()
            assert store.finalize(final(row))
            commit_a_few(other)


# -- writers that race and die -----------------------------------------------------------------------------------------


def test_one_of_racing_first_versions_begins_a_history(url: str) -> None:
    with opened(url) as one, opened(url) as two:
        commit_a_few(one)
        for _ in range(3):
            base_uri = f"s3://bucket/{uuid4()}"
            rows = [staged(version, base_uri) for version in (1, 7, 9)]
            answers = race(3, lambda number, rows=rows: (one, two)[number % 2].reserve(rows[number], first=True))  # type: ignore[misc]
            (winner,) = [row for row, answer in zip(rows, answers, strict=True) if answer == Reserved()]
            assert every_row(one, base_uri) == [winner]
            assert sorted(map(repr, answers)) == sorted(map(repr, [Reserved(), *[NotReady(winner)] * 2]))


def test_writers_that_move_rows_to_segments_at_once_lose_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancekeep.adapters.commit_stores.hive_history.HEAD_ROWS", 3)
    monkeypatch.setattr("lancekeep.adapters.commit_stores.hive_history.SEGMENT_ROWS", 5)
    base_uri, (metastore, database) = f"s3://bucket/{uuid4()}", metastore_of(url)
    with opened(url) as one, opened(url) as two:
        history(one, base_uri, 1)

        def write(number: int) -> list[int]:
            store, won = (one, two)[number % 2], []
            for version in range(2, 14):
                row = staged(version, base_uri)
                while isinstance(told := store.reserve(row, first=False), NotReady):
                    pass
                if told == Reserved():
                    won.append(version)
                    assert store.finalize(final(row))
            return won

        won = race(2, write)
        assert sorted(won[0] + won[1]) == list(range(2, 14))
        assert [row.version for row in every_row(one, base_uri)] == list(range(1, 14))
        assert every_row(one, base_uri) == every_row(two, base_uri)
        assert one.delete(base_uri) == 13
        assert not [name for name in metastore.table_names(database) if name.startswith("h_")]


WRITER = """
import sys, lancekeep, pyarrow as pa
root, url = sys.argv[1:]
catalog = lancekeep.connect(root, commit_store=url)
print("ready", flush=True)
while True:
    version = catalog.write("t", pa.table({"a": [1]}), "append").version
    print(version, flush=True)
"""


def test_killed_writers_leave_a_history_that_others_continue(url: str, tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    with lancekeep.connect(root, commit_store=url) as catalog:
        catalog.write("t", pa.table({"a": [1]}))
        acknowledged = 1
        for kills in range(3):
            command = [sys.executable, "-c", WRITER, root, url]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as writer:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
                for _ in range(kills + 1):
                    acknowledged = int(writer.stdout.readline())
                    catalog.write("t", pa.table({"a": [1]}), "append")
                writer.send_signal(signal.SIGKILL)
                acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        table = catalog.open("t")
        assert table.version >= acknowledged
        assert table.count_rows() == table.version
        assert [entry.version for entry in catalog.versions.history("t")] == list(range(table.version, 0, -1))
        found = {finding.kind.value for finding in catalog.upkeep.fsck(deep=True).findings}
        assert found <= {"leftover staged manifest"}


# -- what the Metastore must guarantee ---------------------------------------------------------------------------------


def test_metastore_that_ignores_the_condition_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hive 3.1 ignores it."""
    alter = Metastore.alter_table

    def ignoring(self: Metastore, *args: object, expected: object = None, **more: object) -> None:
        alter(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Metastore, "alter_table", ignoring)
    with opened(url) as store, pytest.raises(UnsafeStore, match=r"Use Hive 2\.3\.10, 4\.0 or newer"):
        store.reserve(staged(1), first=True)
    with opened(url) as store:
        assert store.latest(staged(1).base_uri) is None


def test_foreign_parameters_are_damaged_and_can_be_deleted(url: str) -> None:
    base_uri, (metastore, database) = f"s3://bucket/{uuid4()}", metastore_of(url)
    with opened(url) as store:
        for parameters in (
            {"lancekeep.state.0000": "x"},
            {"lancekeep.state.0000": '{"format":2}'},
            {"lancekeep.state.0000": "[" * 30_000},
        ):
            history(store, base_uri, 2)
            (name,) = [name for name in metastore.table_names(database) if name.startswith("h_")]
            view = metastore.table(database, name)
            assert view is not None
            changed = attrs.evolve(view, parameters={**(view.parameters or {}), **parameters})
            metastore.alter_table(database, name, changed)
            with opened(url) as other:
                for act in (
                    lambda: other.latest(base_uri),
                    lambda: other.reserve(staged(3, base_uri), first=False),
                    lambda: other.delete(base_uri, [1]),
                ):
                    with pytest.raises(Damaged, match=f"{name}.*drop it|lacks its token"):
                        act()
            metastore.drop_table(database, name)
            assert store.latest(base_uri) is None


def test_missing_segment_is_damaged(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancekeep.adapters.commit_stores.hive_history.HEAD_ROWS", 3)
    base_uri, (metastore, database) = f"s3://bucket/{uuid4()}", metastore_of(url)
    with opened(url) as store, opened(url) as other:
        history(store, base_uri, 4)
        for name in metastore.table_names(database, "h_*"):
            if name.count("_") > 1:
                metastore.drop_table(database, name)
        with pytest.raises(Damaged, match="is missing, which holds rows of"):
            other.get(base_uri, 1)
        assert other.latest(base_uri) is not None
        assert other.delete(base_uri) == 4


def test_batches_of_several_tables_are_refused(url: str) -> None:
    rows = [staged(1, f"s3://bucket/{uuid4()}") for _ in range(2)]
    with opened(url) as store, pytest.raises(Unsupported, match="at most 1 table"):
        store.reserve_all([Claim(row, first=True) for row in rows])


def test_page_connects(hive_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    address, names = hive_url.removeprefix("hive://"), dict[str, Any]()
    places = {"metastore1:9083,metastore2:9083": f"{closed_port()},{address}", "s3://bucket/lake": "lake"}
    places |= {"metastore:9083": address, "s3://bucket/hive-lake": "hive-lake"}
    assert Reader(places, names).read(ROOT / "docs" / "hive.md") == 2
    with names["catalog"] as catalog:
        catalog.write("t", pa.table({"a": [1]}))
        assert catalog.open("t").count_rows() == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hive://a/Upper", "lower-case"),
        ("hive://a/b/c", "lower-case"),
        ("hive://a/b?connections=3", "unknown option 'connections'"),
        ("hive:///b", "expected hive://HOST"),
    ],
)
def test_invalid_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        open_commit_store(url, {}, MEMORY)


def test_url_names_the_rows(hive_url: str) -> None:
    one = open_commit_store("hive://B:1,a/?durable=true", {"client.pool-size": "5"}, MEMORY)
    assert one.url == "hive://a:9083,b:1/lancekeep_versions"
    assert one.guarantees.remembers
    assert not open_commit_store(hive_url, {}, MEMORY).guarantees.remembers
    assert one.url.endswith(store_of_hive.DEFAULT_DATABASE)
