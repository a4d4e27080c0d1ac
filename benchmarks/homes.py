"""What the homes of entries cost, as catalogs grow: ``python benchmarks/homes.py [URL] [--tables 10000 1000000]``.

URL names an empty PostgreSQL database, postgresql://USER@HOST/DATABASE, in which the role may create tables. Without
it, a server with the defaults of Debian's package is started, except for its files in a temporary directory. Entries
are loaded by COPY. Each figure is the time of one call through `Catalog`, beside the manifest table of a directory with
as many tables. Every home syncs its changes to disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
from results import record

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.composition import migrate_schema
from lancekeep.domain.catalog import Put
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from postgres_servers import new_server

DEFAULTS = ("fsync=on", "full_page_writes=on", "autovacuum=on", "max_wal_size=1GB", "shared_buffers=128MB")
NAMESPACE, SECONDS, PROCESSES, PAGE = "ns", 2.0, 8, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--tables", type=int, nargs="+", default=[10_000, 1_000_000])
    arguments = parser.parse_args()
    with database(arguments.url) as server, tempfile.TemporaryDirectory() as scratch:
        migrate_schema(server)
        for tables in arguments.tables:
            url = f"{server}?catalog=bench{tables}"
            fill_postgres(url, f"{scratch}/pg{tables}", tables)
            fill_directory(f"{scratch}/dir{tables}", tables)
            compare(tables, partial(open_postgres, f"{scratch}/pg{tables}", url), f"{scratch}/dir{tables}")


@contextmanager
def database(url: str | None) -> Iterator[str]:
    """Yield the URL of a database."""
    if url is not None:
        yield url
        return
    with new_server(*DEFAULTS) as server:
        yield server.url()


def compare(tables: int, postgres: Callable[[], lancekeep.Catalog], directory: str) -> None:
    """Measure PostgreSQL beside a directory, and keep the figures."""
    ours = measure("postgres", tables, postgres)
    theirs = measure("directory", tables, partial(open_directory, directory))
    for name, milliseconds in ours.items():
        record("homes", f"{tables:,} tables: {name}", "ms", milliseconds, theirs[name], "a directory")
    together = declare_together("postgres", tables, postgres)
    record("homes", f"{tables:,} tables: declared by {PROCESSES} processes", "tables per second", together)


def open_postgres(root: str, url: str) -> lancekeep.Catalog:
    return lancekeep.connect(root, impl="postgres", uri=url)


def open_directory(root: str) -> lancekeep.Catalog:
    return lancekeep.connect(root, mode="v2")


def table_name(number: int) -> str:
    return f"t{number:09}"


def location(number: int) -> str:
    return f"{number:08x}_{NAMESPACE}${table_name(number)}"


def fill_postgres(url: str, root: str, tables: int) -> None:
    """Create a catalog, and load its tables by COPY."""
    with open_postgres(root, url) as catalog:
        catalog.create_namespace(NAMESPACE)
    with psycopg.connect(url.partition("?")[0], autocommit=True) as database:
        name = url.rpartition("=")[2]
        found = database.execute("SELECT id, version FROM lancekeep.catalog WHERE name = %s", (name,)).fetchone()
        assert found is not None
        columns = "catalog, since, object_id, parent, name, object_type, location"
        with database.cursor().copy(f"COPY lancekeep.entry ({columns}) FROM STDIN") as copy:
            for number in range(tables):
                key = f"{NAMESPACE}${table_name(number)}"
                copy.write_row((*found, key, NAMESPACE, table_name(number), "table", location(number)))
        database.execute("VACUUM ANALYZE lancekeep.entry")
        sizes = database.execute("SELECT pg_total_relation_size('lancekeep.entry') / count(*) FROM lancekeep.entry")
        print(f"postgres {tables:>9,} tables: {sizes.fetchone()} bytes per entry of all catalogs")


def fill_directory(root: str, tables: int) -> None:
    """Create a catalog in a directory, with many tables in one change."""
    with open_directory(root) as catalog:
        catalog.create_namespace(NAMESPACE)
        names = ((ObjectId.of([NAMESPACE, table_name(number)]), location(number)) for number in range(tables))
        entries = [Put(ManifestEntry.table(table, place, {})) for table, place in names]
        directory_of(catalog).ledger.manifest.apply(lambda _: (entries, None))


def measure(home: str, tables: int, connect: Callable[[], lancekeep.Catalog]) -> dict[str, float]:
    """Print the time of each operation, and return the medians in milliseconds."""
    chance, medians = random.Random(1), {}

    def some() -> str:
        return table_name(chance.randrange(tables))

    def connected() -> None:
        connect().close()

    namespace = ObjectId.of(NAMESPACE)
    with connect() as catalog:
        operations: dict[str, Callable[[], object]] = {
            "connect": connected,
            "describe": lambda: catalog.describe_table(f"{NAMESPACE}.{some()}"),
            "list page": lambda: services_of(catalog).tables.page(namespace, some(), PAGE, include_declared=True),
            "declare": lambda: catalog.declare_table(f"{NAMESPACE}.d{chance.getrandbits(64):x}"),
        }
        for name, act in operations.items():
            times = timed(act)
            medians[name], high = statistics.median(times), times[int(len(times) * 0.99)]
            print(f"{home:10} {tables:>9,} tables  {name:10} p50 {medians[name]:8.3f} ms  p99 {high:8.3f} ms")
    return medians


def declare_together(home: str, tables: int, connect: Callable[[], lancekeep.Catalog]) -> float:
    """Print and return how many tables several processes declare in a second."""
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        rate = sum(pool.map(partial(declare_for_a_while, connect), range(PROCESSES))) / SECONDS
    print(f"{home:10} {tables:>9,} tables  {rate:8.0f} declarations per second by {PROCESSES} processes")
    return rate


def declare_for_a_while(connect: Callable[[], lancekeep.Catalog], process: int) -> int:
    with connect() as catalog:
        made, end = 0, time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            catalog.declare_table(f"{NAMESPACE}.p{process}_{time.time_ns()}")
            made += 1
    return made


def timed(act: Callable[[], object]) -> list[float]:
    act()
    times, end = [], time.perf_counter() + SECONDS
    while (start := time.perf_counter()) < end:
        act()
        times.append((time.perf_counter() - start) * 1000)
    return sorted(times)


if __name__ == "__main__":
    main()
