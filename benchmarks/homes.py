"""What the homes of entries cost, as catalogs grow: ``python benchmarks/homes.py [URL] [--tables 10000 1000000]``.

``--processes 1 8`` names how many processes declare tables at once, ``--threads 64`` how many threads of one process.
``--alone`` leaves out the directory, whose entries do not fit into memory at ten million tables.

URL names an empty PostgreSQL database, postgresql://USER@HOST/DATABASE, in which the role may create tables. Without
it, a server with the defaults of Debian's package is started, except for its files in a temporary directory. The
database generates the entries. Each figure is the time of one call through `Catalog`, beside the manifest table of a
directory with as many tables, and beside one statement by key through the driver alone, which is what the machine
allows. Every home syncs its changes to disk.
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
from concurrent.futures import ThreadPoolExecutor
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
NAMESPACE, SECONDS, PAGE = "ns", 2.0, 100

GENERATE = """
INSERT INTO lancekeep.entry (catalog, since, object_id, parent, name, object_type, location)
SELECT catalog.id, catalog.version, %(namespace)s || '$' || made.name, %(namespace)s, made.name, 'table',
    lpad(to_hex(number), 8, '0') || '_' || %(namespace)s || '$' || made.name
FROM lancekeep.catalog, generate_series(0, %(tables)s - 1) AS number,
    LATERAL (SELECT 't' || lpad(number::text, 9, '0') AS name) AS made
WHERE catalog.name = %(name)s
"""

BY_KEY = "SELECT location FROM lancekeep.entry WHERE catalog = %s AND object_id = %s AND since >= 0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--tables", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--processes", type=int, nargs="+", default=[8])
    parser.add_argument("--threads", type=int, nargs="+", default=[64])
    parser.add_argument("--alone", action="store_true")
    arguments = parser.parse_args()
    with database(arguments.url) as server, tempfile.TemporaryDirectory() as scratch:
        migrate_schema(server)
        for tables in arguments.tables:
            url = f"{server}?catalog=bench{tables}"
            fill_postgres(url, f"{scratch}/pg{tables}", tables)
            directory = None if arguments.alone else f"{scratch}/dir{tables}"
            if directory is not None:
                fill_directory(directory, tables)
            postgres = partial(open_postgres, f"{scratch}/pg{tables}", url)
            statement_alone(tables, url)
            compare(tables, postgres, directory)
            for processes in arguments.processes:
                rate = declare_together(tables, postgres, processes)
                record("homes", f"{tables:,} tables: declared by {processes} processes", "tables per second", rate)
            for threads in arguments.threads:
                rate = declare_in_threads(tables, postgres, threads)
                record("homes", f"{tables:,} tables: declared by {threads} threads", "tables per second", rate)


@contextmanager
def database(url: str | None) -> Iterator[str]:
    """Yield the URL of a database."""
    if url is not None:
        yield url
        return
    with new_server(*DEFAULTS) as server:
        yield server.url()


def compare(tables: int, postgres: Callable[[], lancekeep.Catalog], directory: str | None) -> None:
    """Measure PostgreSQL, beside a directory if there is one, and keep the figures."""
    ours = measure("postgres", tables, postgres)
    theirs = {} if directory is None else measure("directory", tables, partial(open_directory, directory))
    for name, milliseconds in ours.items():
        record("homes", f"{tables:,} tables: {name}", "ms", milliseconds, theirs.get(name), "a directory")


def open_postgres(root: str, url: str) -> lancekeep.Catalog:
    return lancekeep.connect(root, impl="postgres", uri=url)


def open_directory(root: str) -> lancekeep.Catalog:
    return lancekeep.connect(root, mode="v2")


def table_name(number: int) -> str:
    return f"t{number:09}"


def location(number: int) -> str:
    return f"{number:08x}_{NAMESPACE}${table_name(number)}"


def fill_postgres(url: str, root: str, tables: int) -> None:
    """Create a catalog, and let the database generate its tables."""
    with open_postgres(root, url) as catalog:
        catalog.create_namespace(NAMESPACE)
    with psycopg.connect(url.partition("?")[0], autocommit=True) as database:
        values = {"name": url.rpartition("=")[2], "namespace": NAMESPACE, "tables": tables}
        database.execute(GENERATE, values)
        database.execute("VACUUM ANALYZE lancekeep.entry")
        sizes = database.execute("SELECT pg_total_relation_size('lancekeep.entry') / count(*) FROM lancekeep.entry")
        print(f"postgres {tables:>9,} tables: {sizes.fetchone()} bytes per entry of all catalogs", flush=True)


def fill_directory(root: str, tables: int) -> None:
    """Create a catalog in a directory, with many tables in one change."""
    with open_directory(root) as catalog:
        catalog.create_namespace(NAMESPACE)
        names = ((ObjectId.of([NAMESPACE, table_name(number)]), location(number)) for number in range(tables))
        entries = [Put(ManifestEntry.table(table, place, {})) for table, place in names]
        directory_of(catalog).ledger.manifest.apply(lambda _: (entries, None))


def statement_alone(tables: int, url: str) -> None:
    """Print how long the driver takes for a prepared statement that reads one entry."""
    chance = random.Random(1)
    with psycopg.connect(url.partition("?")[0], autocommit=True, prepare_threshold=0) as database:
        catalog = database.execute("SELECT id FROM lancekeep.catalog WHERE name = %s", (url.rpartition("=")[2],))
        (number,) = catalog.fetchone() or ()

        def read() -> None:
            key = f"{NAMESPACE}${table_name(chance.randrange(tables))}"
            found = database.execute(BY_KEY, (number, key)).fetchall()
            assert len(found) == 1

        times = timed(read)
    report("driver", tables, "statement", times)


def report(home: str, tables: int, name: str, times: list[float]) -> float:
    """Print the times of an operation, and return their median in milliseconds."""
    median, high = statistics.median(times), times[int(len(times) * 0.99)]
    print(f"{home:10} {tables:>9,} tables  {name:10} p50 {median:8.3f} ms  p99 {high:8.3f} ms", flush=True)
    return median


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
            medians[name] = report(home, tables, name, timed(act))
    return medians


def declare_together(tables: int, connect: Callable[[], lancekeep.Catalog], processes: int) -> float:
    """Print and return how many tables several processes declare in a second."""
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        rate = sum(pool.map(partial(declare_for_a_while, connect), range(processes))) / SECONDS
    print(f"{'postgres':10} {tables:>9,} tables  {rate:8.0f} declarations per second by {processes} processes")
    return rate


def declare_in_threads(tables: int, connect: Callable[[], lancekeep.Catalog], threads: int) -> float:
    """Print and return how many tables several threads of one process declare in a second."""
    with connect() as catalog, ThreadPoolExecutor(threads) as pool:
        rate = sum(pool.map(partial(declare_until_the_end, catalog), range(threads))) / SECONDS
    print(f"{'postgres':10} {tables:>9,} tables  {rate:8.0f} declarations per second by {threads} threads")
    return rate


def declare_for_a_while(connect: Callable[[], lancekeep.Catalog], process: int) -> int:
    with connect() as catalog:
        return declare_until_the_end(catalog, process)


def declare_until_the_end(catalog: lancekeep.Catalog, writer: int) -> int:
    made, end = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        catalog.declare_table(f"{NAMESPACE}.p{writer}_{time.time_ns()}")
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
