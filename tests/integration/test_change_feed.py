"""The feed of a catalog's changes in PostgreSQL: order, exactly-once, retention, waiting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import lance_namespace
import psycopg
import pyarrow as pa
import pytest
from postgres_servers import migrated_server
from redis_servers import poll

import lancekeep
from lancekeep.adapters.manifest_stores.postgres_feed import CHANNEL, PostgresFeed
from lancekeep.application.catalog import directory_of
from lancekeep.domain.errors import InvalidInput, LancekeepError, Unsupported, VersionNotFound
from lancekeep.postgres.database import BoundedConnection
from lancekeep.postgres.listening import WATCHED

ROWS = pa.table({"a": [1, 2, 3]})


@pytest.fixture
def url(postgres_url: str) -> str:
    return f"{postgres_url}?catalog={uuid4()}"


def connect(root: Path, url: str) -> lancekeep.Catalog:
    return lancekeep.connect(str(root), impl="postgres", uri=url, storage_options={"fsync": "false"})


@pytest.fixture
def catalog(tmp_path: Path, url: str) -> Iterator[lancekeep.Catalog]:
    with connect(tmp_path / "lake", url) as catalog:
        yield catalog


def shown(page: lancekeep.ChangePage) -> list[tuple[str, str]]:
    """Return the kinds and ids of changes, without those of the catalog's own properties."""
    return [(change.kind, str(change.object_id)) for change in page.changes if change.object_id.names]


def test_each_change_is_shown_once_in_order(catalog: lancekeep.Catalog) -> None:
    start = catalog.changes.latest()
    assert catalog.changes.read(start) == lancekeep.ChangePage([], start)
    catalog.create_namespace("n", {"owner": "ada"})
    catalog.write("n.t", ROWS)
    catalog.alter_table("n.t", {"k": "v"})
    catalog.rename_table("n.t", "n.u")
    catalog.drop_table("n.u", keep=3600)
    catalog.undrop("n.u")
    catalog.alter_namespace("", {"p": "q"})
    catalog.drop_namespace("n", cascade=True)
    page = catalog.changes.read(start)
    assert shown(page) == [
        ("created", "n"),
        ("created", "n.t"),
        ("altered", "n.t"),
        ("renamed", "n.u"),
        ("dropped", "n.u"),
        ("created", "n.u"),
        ("dropped", "n"),
        ("dropped", "n.u"),
    ]
    created, *_ = (change for change in page.changes if change.object_id.names)
    assert (created.object_type, created.properties, created.former) == ("namespace", {"owner": "ada"}, None)
    (renamed,) = (change for change in page.changes if change.kind == "renamed")
    assert (str(renamed.former), renamed.properties["k"]) == ("n.t", "v")
    assert [change.properties.get("p") for change in page.changes if not change.object_id.names] == [None, "q"]
    assert len({change.id for change in page.changes}) == len(page.changes)
    versions = [change.version for change in page.changes]
    assert versions == sorted(versions)
    assert page.cursor == catalog.changes.latest()


def test_reading_continues_after_each_change(catalog: lancekeep.Catalog) -> None:
    start = catalog.changes.latest()
    with catalog.transaction() as transaction:
        for number in range(5):
            transaction.write(f"t{number}", ROWS)
    catalog.create_namespace("n")
    whole = catalog.changes.read(start).changes
    assert len(whole) >= 6
    for limit in (1, 2, 3, len(whole)):
        cursor, read = start, list[lancekeep.CatalogChange]()
        while page := catalog.changes.read(cursor, limit).changes:
            assert len(page) <= limit
            read += page
            cursor = page[-1].cursor
        assert read == list(whole)
    for number, change in enumerate(whole):
        assert catalog.changes.read(change.cursor).changes == whole[number + 1 :]


def test_feed_skips_no_change_of_racing_writers(tmp_path: Path, url: str) -> None:
    catalogs, start = [connect(tmp_path / "lake", url) for _ in range(4)], Barrier(5)

    def write(number: int) -> None:
        start.wait()
        for each in range(10):
            catalogs[number].create_namespace(f"n{number}x{each}")

    with connect(tmp_path / "lake", url) as reader, ThreadPoolExecutor(4) as threads:
        cursor, read = reader.changes.latest(), list[str]()
        writers = [threads.submit(write, number) for number in range(4)]
        start.wait()
        while len(read) < 40:
            page = reader.changes.read(cursor, 3, wait=60)
            read += [str(change.object_id) for change in page.changes if change.object_id.names]
            cursor = page.cursor
        for writer in writers:
            writer.result()
        assert sorted(read) == sorted(f"n{number}x{each}" for number in range(4) for each in range(10))
        for number in range(4):
            assert [name for name in read if name.startswith(f"n{number}x")] == [f"n{number}x{n}" for n in range(10)]
        assert reader.changes.read(cursor).changes == []
    for each in catalogs:
        each.close()


def test_watch_is_woken_by_a_change(catalog: lancekeep.Catalog, tmp_path: Path, url: str, postgres_url: str) -> None:
    catalog.create_namespace("before")
    changes = catalog.changes.watch(catalog.changes.latest(), poll=3600)
    with ThreadPoolExecutor(1) as threads, connect(tmp_path / "lake", url) as other:
        found = threads.submit(next, changes)
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            idle = "SELECT FROM pg_stat_activity WHERE query LIKE 'SELECT pg_advisory_lock_shared%' AND state = 'idle'"
            poll(lambda: admin.execute(idle).rowcount >= 1)
        other.create_namespace("after")
        assert str(found.result(60).object_id) == "after"
        found = threads.submit(next, changes)
        with psycopg.connect(postgres_url, autocommit=True) as admin:  # the session of the listener ends
            ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_advisory_lock%'"
            poll(lambda: admin.execute(ends).rowcount >= 1)
        other.create_namespace("later")
        assert str(found.result(60).object_id) == "later"


def test_change_notifies_only_if_a_reader_waits(catalog: lancekeep.Catalog, postgres_url: str) -> None:
    """A notification makes changes of all catalogs of the server wait for each other."""
    feed = directory_of(catalog).ledger.manifest.feed
    assert isinstance(feed, PostgresFeed)
    with psycopg.connect(postgres_url, autocommit=True) as other:

        def notified() -> int:
            other.execute("SELECT 1")
            return sum(note.payload == feed._topic for note in other.notifies(timeout=0))

        other.execute(f"LISTEN {CHANNEL}".encode())
        catalog.create_namespace("a")
        assert notified() == 0
        with feed.listening():
            catalog.create_namespace("b")
            assert notified() == 1


def test_reader_asks_while_a_change_keeps_its_lock(
    catalog: lancekeep.Catalog, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.create_namespace("a")
    feed = directory_of(catalog).ledger.manifest.feed
    assert isinstance(feed, PostgresFeed)
    monkeypatch.setattr(BoundedConnection, "seconds", 0.1)
    with psycopg.connect(postgres_url) as stopped:
        assert stopped.execute(f"SELECT {WATCHED}".encode(), {"topic": feed._topic}).fetchone() == (False,)
        assert [str(change.object_id) for change in catalog.changes.read(wait=0.3).changes][-1:] == ["a"]
        assert catalog.changes.read(catalog.changes.latest(), wait=0.3).changes == []


def test_wait_without_a_change_ends(catalog: lancekeep.Catalog) -> None:
    cursor = catalog.changes.latest()
    assert catalog.changes.read(cursor, wait=0.05) == lancekeep.ChangePage([], cursor)


def test_pooled_reader_asks_without_notifications(tmp_path: Path, url: str) -> None:
    with (
        connect(tmp_path / "lake", url) as catalog,
        connect(tmp_path / "lake", f"{url}&prepared_statements=false") as pooled,
    ):
        catalog.create_namespace("a")
        changes = pooled.changes.watch(pooled.changes.latest(), poll=0.01)
        catalog.create_namespace("b")
        assert str(next(changes).object_id) == "b"


def test_changes_that_are_not_kept_are_named(catalog: lancekeep.Catalog, postgres_url: str) -> None:
    start = catalog.changes.latest()
    for name in "abc":
        catalog.create_namespace(name)
    page = catalog.changes.read()
    assert catalog.changes.read(start).changes == page.changes
    with psycopg.connect(postgres_url) as admin:
        admin.execute(
            "UPDATE lancekeep.change SET at = at - interval '2 days' WHERE version < %s AND catalog = (SELECT catalog "
            "FROM lancekeep.change WHERE token = %s)",
            (page.changes[-1].version, page.cursor.split(".")[1]),
        )
    catalog.upkeep.optimize()
    for cursor in (start, page.changes[0].cursor):
        with pytest.raises(VersionNotFound, match="are not kept"):
            catalog.changes.read(cursor)
    kept = page.changes[-2]
    assert shown(catalog.changes.read(kept.cursor)) == [("created", "c")]
    assert shown(catalog.changes.read()) == [("created", "c")]
    with pytest.raises(VersionNotFound):  # within the oldest version, whose former entries are removed
        catalog.changes.read(f"{kept.cursor}.a")


def test_cursor_of_another_history_is_refused(catalog: lancekeep.Catalog, postgres_url: str) -> None:
    """As after a restored backup, or a failover that lost the last change."""
    catalog.create_namespace("a")
    cursor = catalog.changes.latest()
    version, token = cursor.split(".")
    for stale in (f"{int(version) + 5}.{token}", f"{version}.{token[::-1]}", f"{int(version) - 1}.{token}"):
        with pytest.raises(VersionNotFound, match="another catalog"):
            catalog.changes.read(stale)
    for wrong in ("", "x", "1", "-1.a", f"{10**30}.a", "1.zz"):
        with pytest.raises(InvalidInput, match="cursor"):
            catalog.changes.read(wrong)
    for limit in (0, -1, 10_001, True):
        with pytest.raises(InvalidInput, match="limit"):
            catalog.changes.read(cursor, limit)
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="seconds"):
            catalog.changes.read(cursor, wait=seconds)
        with pytest.raises(InvalidInput, match="seconds"):
            catalog.changes.watch(cursor, poll=seconds)


def test_change_of_a_release_without_feed_is_not_skipped(catalog: lancekeep.Catalog, postgres_url: str) -> None:
    catalog.create_namespace("a")
    cursor = catalog.changes.latest()
    catalog.create_namespace("b")
    version, token = catalog.changes.latest().split(".")
    with psycopg.connect(postgres_url) as admin:
        admin.execute("UPDATE lancekeep.change SET changed = NULL WHERE token = %s", (token,))
    with pytest.raises(VersionNotFound, match=f"version {version} .*no feed"):
        catalog.changes.read(cursor)
    assert catalog.changes.read().changes == []
    catalog.create_namespace("c")
    assert shown(catalog.changes.read()) == [("created", "c")]


@pytest.mark.parametrize("mode", ["compatible", "v2"])
def test_a_manifest_table_has_the_same_feed(tmp_path: Path, mode: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), mode=mode) as catalog:
        start = catalog.changes.latest()
        catalog.create_namespace("n", {"owner": "ada"})
        catalog.write("n.t", ROWS)
        catalog.rename_table("n.t", "n.u")
        catalog.drop_table("n.u", keep=3600)
        native = lance_namespace.connect("dir", {"root": str(tmp_path / "lake")})
        native.create_namespace(lance_namespace.CreateNamespaceRequest(id=["by_native"]))
        catalog.undrop("n.u")
        catalog.upkeep.optimize()  # commits a version without a change
        catalog.drop_namespace("n", cascade=True, keep=0)
        page = catalog.changes.read(start)
        assert shown(page) == [
            *(("created", "n"), ("created", "n.t"), ("renamed", "n.u"), ("dropped", "n.u"), ("created", "by_native")),
            *(("created", "n.u"), ("dropped", "n"), ("dropped", "n.u")),
        ]
        assert page.cursor == catalog.changes.latest()
        for number, change in enumerate(page.changes):
            assert catalog.changes.read(change.cursor).changes == page.changes[number + 1 :]
        with lancekeep.connect(str(tmp_path / "lake"), mode=mode) as other:
            assert other.changes.read() == page
        wrong = page.cursor[:-1] + ("0" if page.cursor[-1] != "0" else "1")
        for cursor in (wrong, f"9{page.cursor}", "0.aa"):
            with pytest.raises(VersionNotFound, match="not kept"):
                catalog.changes.read(cursor)
        (tmp_path / "lake/__manifest/_versions" / f"{2**64 - 2:020}.manifest").unlink()  # as a clean-up does
        with pytest.raises(VersionNotFound, match="not kept"):
            catalog.changes.read(start)


@pytest.mark.parametrize("mode", ["v1"])
def test_other_homes_have_no_feed(tmp_path: Path, mode: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), mode=mode) as catalog:
        for ask in (catalog.changes.latest, catalog.changes.read, catalog.changes.watch):
            with pytest.raises(Unsupported, match="no feed of its changes"):
                ask()


# -- kills -----------------------------------------------------------------------------------------------------------

WRITER = """
import contextlib, sys, lancekeep
catalog = lancekeep.connect(sys.argv[1], impl="postgres", uri=sys.argv[2], storage_options={"fsync": "false"})
number = 0
while True:
    with contextlib.suppress(lancekeep.LancekeepError):  # while the server is away, and if the outcome is unknown
        catalog.create_namespace(f"{sys.argv[3]}x{number:06}", exist_ok=True)
        number += 1
"""
READER = """
import json, os, sys, lancekeep
catalog = lancekeep.connect(sys.argv[1], impl="postgres", uri=sys.argv[2], storage_options={"fsync": "false"})
log = open(sys.argv[3], "a")
for change in catalog.changes.watch(sys.argv[4], poll=0.2):
    log.write(json.dumps([change.cursor, change.id, str(change.object_id)]) + "\\n")
    log.flush()
"""


def lines(log: Path) -> list[Any]:
    found = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in found if line.endswith("]")]


def test_kills_of_writer_reader_and_server_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with migrated_server("fsync=on") as server:
        root, url, log = tmp_path / "lake", server.url(), tmp_path / "log"
        with connect(root, url) as catalog:
            catalog.create_namespace("begin")
            start = catalog.changes.latest()

            def run(program: str, *arguments: str) -> subprocess.Popen[bytes]:
                return subprocess.Popen([sys.executable, "-c", program, str(root), url, *arguments])

            def reader() -> subprocess.Popen[bytes]:
                read = lines(log)
                if log.exists():  # a line that a kill has cut is written again
                    log.write_text("".join(json.dumps(line) + "\n" for line in read))
                return run(READER, str(log), read[-1][0] if read else start)

            writers, reading = [run(WRITER, name) for name in "ab"], reader()
            for kill in range(2):
                seen = len(lines(log))
                poll(lambda seen=seen: len(lines(log)) > seen + 20)  # type: ignore[misc]
                if kill == 1:
                    server.kill()
                    server.start()
                else:
                    os.kill(writers[0].pid, signal.SIGKILL)
                    writers[0].wait()
                    writers[0] = run(WRITER, f"c{kill}")
                reading.kill()
                reading.wait()
                reading = reader()
            for writer in writers:
                writer.kill()
                writer.wait()

            def latest() -> str:
                try:
                    return catalog.changes.latest()
                except LancekeepError:
                    return ""

            poll(lambda: bool(lines(log)) and lines(log)[-1][0] == latest())
            reading.kill()
            reading.wait()
            read = [name for _, _, name in lines(log)]
            assert len(read) == len(set(read))  # one id per change, and each name is created once
            assert sorted(read) == sorted(set(catalog.list_namespaces()) - {"begin"})
            for writer_name in ("a", "b", "c0"):
                own = [name for name in read if name.startswith(f"{writer_name}x")]
                assert own == sorted(own)
