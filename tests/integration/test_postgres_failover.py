"""A failover of PostgreSQL that loses the last transactions: what is found again, and what fsck reports."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import attrs
import lance
import psycopg
import pyarrow as pa
import pytest
from postgres_servers import PostgresServer, migrated_server, new_server
from redis_servers import poll

import lancekeep
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.errors import TableNotFound, VersionNotFound

NAMES = ("a", "b", "c")


@attrs.frozen
class Pair:
    """A primary and a standby, to which the primary does not wait to replicate."""

    primary: PostgresServer
    standby: PostgresServer

    def connect(self, root: Path) -> lancekeep.Catalog:
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        return lancekeep.connect(str(root), impl="postgres", uri=url, storage_options={"fsync": "false"})

    def separate(self) -> None:
        """Let the standby follow up to now, then receive nothing more."""
        self.await_standby()
        self.stop_streaming()
        with psycopg.connect(self.primary.dsn, autocommit=True) as primary:
            poll(lambda: primary.execute("SELECT FROM pg_stat_replication").rowcount == 0)

    def await_standby(self) -> None:
        """Wait until the standby has all that was committed."""
        with (
            psycopg.connect(self.primary.dsn, autocommit=True) as primary,
            psycopg.connect(self.standby.dsn, autocommit=True) as standby,
        ):
            ((end,),) = primary.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
            poll(lambda: standby.execute("SELECT pg_last_wal_replay_lsn() >= %s", (end,)).fetchone() == (True,))

    def stop_streaming(self) -> None:
        """Let the standby receive nothing more."""
        self.standby.run("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.kill()
        self.standby.program("pg_ctl", "promote", "-w", "-D", str(self.standby.directory / "data"))


@contextmanager
def replicated() -> Iterator[Pair]:
    with (
        migrated_server("fsync=on", "synchronous_commit=off") as primary,
        new_server(primary=primary) as standby,
    ):
        yield Pair(primary, standby)


def rows(*values: int) -> pa.Table:
    return pa.table({"a": list(values)})


def values_of(dataset: lance.LanceDataset) -> list[int]:
    return sorted(dataset.to_table()["a"].to_pylist())


def test_failover_that_loses_transactions_hides_no_row(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    with replicated() as pair, pair.connect(root) as catalog:
        catalog.create_namespace("n")
        for name in ("appended", "native", "dropped", "former", "recreated"):
            catalog.write(f"n.{name}", rows(1))
        native = catalog.open("n.native").uri
        pair.separate()
        kept = catalog.changes.latest()
        for value in (2, 3):
            catalog.write("n.appended", rows(value), "append")
        lance.write_dataset(rows(2), native, mode="append")
        catalog.write("n.created", rows(1, 2))
        catalog.drop_table("n.dropped")
        catalog.rename_table("n.former", "n.renamed")
        catalog.write("n.renamed", rows(2), "append")
        catalog.drop_table("n.recreated")
        catalog.write("n.recreated", rows(9))
        places = {name: catalog.find_table(f"n.{name}").location for name in ("created", "recreated")}
        lost = catalog.changes.latest()

        pair.fail_over()

        expected = {"appended": [1, 2, 3], "native": [1, 2], "former": [1, 2]}
        with pair.connect(root) as other:
            for each in (catalog, other):
                assert each.list_tables("n") == ["appended", "dropped", "former", "native", "recreated"]
                assert {name: values_of(each.open(f"n.{name}")) for name in expected} == expected
            with pytest.raises(TableNotFound):
                other.open("n.created")
        for name, values in expected.items():
            uri = catalog.open(f"n.{name}").uri
            assert values_of(lance.dataset(uri)) == values
            lance.write_dataset(rows(4), uri, mode="append")
            catalog.write(f"n.{name}", rows(5), "append")
            assert values_of(lance.dataset(uri)) == values_of(catalog.open(f"n.{name}")) == [*values, 4, 5]
        assert not catalog.changes.read(kept).changes
        with pytest.raises(VersionNotFound):
            catalog.changes.read(lost)

        found = {(finding.kind, finding.object) for finding in catalog.upkeep.fsck(deep=True).findings}
        assert found == {
            *((kind, name) for kind in (Kind.DANGLING, Kind.LOST) for name in ("n.dropped", "n.recreated")),
            *((Kind.UNREGISTERED, place) for place in places.values()),
        }
        for name in ("dropped", "recreated"):
            catalog.drop_table(f"n.{name}")
        for name, place in places.items():
            catalog.register_table(f"n.{name}", place)
        assert values_of(catalog.open("n.created")) == [1, 2]
        assert values_of(catalog.open("n.recreated")) == [9]
        assert catalog.upkeep.fsck(deep=True).findings == ()


@pytest.mark.parametrize("seed", range(6))
def test_failover_during_writes_hides_no_acknowledged_row(tmp_path: Path, seed: int) -> None:
    """The standby lacks a random part of the last transactions. Tables and writers go on at the new primary."""
    chance, acknowledged, ended = random.Random(seed), defaultdict[str, list[int]](list), Event()
    with replicated() as pair, pair.connect(tmp_path / "lake") as catalog:
        for name in NAMES:
            catalog.write(name, rows(0))
        pair.await_standby()

        def write(writer: int) -> None:
            with pair.connect(tmp_path / "lake") as own:
                for number in itertools.count(1):
                    name, value = NAMES[number % len(NAMES)], 1000 * writer + number
                    own.write(name, rows(value), "append")
                    acknowledged[name].append(value)
                    if ended.is_set():
                        return

        def count() -> int:
            return sum(map(len, acknowledged.values()))

        def wait_for(more: int) -> None:
            enough = count() + more
            poll(lambda: count() >= enough or any(writer.done() for writer in writers))

        with ThreadPoolExecutor() as threads:
            writers = [threads.submit(write, writer) for writer in (1, 2)]
            try:
                wait_for(chance.randrange(2, 6))
                pair.stop_streaming()
                wait_for(chance.randrange(6))
                pair.fail_over()
                wait_for(4)
            finally:
                ended.set()
            for writer in writers:
                writer.result()
        for name in NAMES:
            dataset = catalog.open(name)
            assert values_of(dataset) == values_of(lance.dataset(dataset.uri)) == sorted([0, *acknowledged[name]])
        lost = catalog.upkeep.fsck(deep=True, repair=True).findings  # rows of earlier versions are entered again
        assert {finding.kind for finding in lost} <= {Kind.UNRECORDED}
        assert catalog.upkeep.fsck(deep=True).findings == ()
