"""What a Hive Metastore costs as a home: ``python benchmarks/hive.py [URL] [--seconds 3] [--redis URL]``.

URL names a database of a Metastore, hive://HOST:9083/DATABASE. Without it, a Metastore is started from the jars in
pyspark, over Derby in memory. The first table counts the calls of the Metastore per operation. The second table is
commits per second beside SQLite and Redis: a commit is a reserved and finalized version, without a manifest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from results import record

import lancekeep
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.naming import NamingScheme, final_path
from lancekeep.domain.version_row import Reserved, VersionRow

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from losing_proxy import LosingProxy, losing_proxy

from servers import Unavailable, hive_metastore, redis_process

SPAWN = multiprocessing.get_context("spawn")
ROW = pa.table({"a": [1]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--redis")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, metastore(arguments.url, scratch) as url:
        count_calls(url, f"{scratch}/lake")
        with redis(arguments.redis) as other:
            stores = {"hive": url, "sqlite": f"sqlite://{scratch}/commits.db?timeout=60", "redis": other}
            compare({name: store for name, store in stores.items() if store}, arguments.seconds)


@contextmanager
def metastore(url: str | None, scratch: str) -> Iterator[str]:
    """Yield the URL of a commit store."""
    if url is not None:
        yield url
        return
    with hive_metastore(Path(scratch)) as address:
        yield f"hive://{address}/benchmark"


@contextmanager
def redis(url: str | None) -> Iterator[str | None]:
    """Yield the URL of Redis, or None if this machine has none."""
    if url is not None:
        yield url
        return
    try:
        with redis_process() as started:
            yield started
    except Unavailable:
        yield None


def count_calls(url: str, root: str) -> None:
    """Print the calls per operation of a catalog and of the store."""
    address, _, database = url.removeprefix("hive://").partition("/")
    with losing_proxy(address, b"none") as proxy:
        far = f"hive://127.0.0.1:{proxy.port}/{database}"
        with lancekeep.connect(root, commit_store=far) as catalog, closing(opened(far)) as store:
            catalog.write("t", ROW)
            catalog.write("t", ROW, "append")
            base_uri = catalog.describe_table("t").uri
            print("calls of the Metastore per operation")
            for name, act in {
                "append": lambda: catalog.write("t", ROW, "append"),
                "open the latest version": lambda: catalog.open("t"),
                "read the latest row": lambda: store.latest(base_uri),
                "list a page of 100 rows": lambda: store.list(base_uri, after=None, limit=100, descending=True),
            }.items():
                show(name, calls(proxy, act), len(proxy.requests))
        with lancekeep.connect(f"{root}-home", impl="hive", uri=f"hive://127.0.0.1:{proxy.port}") as home:
            space = f"n_{uuid4().hex[:8]}"
            home.create_namespace(space)
            home.write(f"{space}.t", ROW)
            home.write(f"{space}.t", ROW, "append")
            print("\ncalls of the Metastore per operation, with the entries in it")
            for name, act in {
                "describe a table": lambda: home.describe_table(f"{space}.t"),
                "list a page of tables": lambda: home.list_tables(space),
                "list namespaces": home.list_namespaces,
                "append, entries only": lambda: home.write(f"{space}.t", ROW, "append"),
                "declare a table": lambda: home.declare_table(f"{space}.u"),
                "change its properties": lambda: home.alter_table(f"{space}.u", {"k": "v"}),
                "rename it": lambda: home.rename_table(f"{space}.u", f"{space}.v"),
                "drop it": lambda: home.drop_table(f"{space}.v", keep=0),
            }.items():
                show(name, calls(proxy, act), len(proxy.requests))
            home.drop_namespace(space, cascade=True)


def show(name: str, called: Counter[str], round_trips: int) -> None:
    shown = ", ".join(f"{count} {each}" for each, count in sorted(called.items()))
    print(f"{name:26}{round_trips} round trips: {shown}")
    record("hive", f"calls: {name}", "calls", sum(called.values()))


def calls(proxy: LosingProxy, act: Callable[[], object]) -> Counter[str]:
    proxy.requests.clear()
    act()
    sent = b"".join(proxy.requests)
    return Counter(name.decode() for name in re.findall(rb"\x80\x01\x00\x01\0\0\0.([a-z_]+)", sent, re.DOTALL))


def opened(url: str) -> Any:
    return open_commit_store(url, {}, MemoryObjectStore())


def compare(stores: dict[str, str], seconds: float) -> None:
    """Print the commits per second of each store."""
    columns = (1, 4)
    print(f"\ncommits per second, {seconds:g} s each, a table per process")
    rates: dict[tuple[str, int], float] = {}
    for name, url in stores.items():
        for writers in columns:
            rates[name, writers] = rate(url, writers, seconds)
            against = rates["hive", writers]
            record("hive", f"{name}: {writers} writers", "commits per second", rates[name, writers], against, "hive")
        print(f"{name:10}" + "".join(f"{rates[name, each]:8.0f} ({each} writers)" for each in columns), flush=True)


def rate(url: str, writers: int, seconds: float) -> float:
    start, counts = SPAWN.Barrier(writers), SPAWN.Queue()
    running = [SPAWN.Process(target=commit, args=(url, seconds, start, counts)) for _ in range(writers)]
    for process in running:
        process.start()
    total: int = sum(counts.get() for _ in running)
    for process in running:
        process.join()
    return total / seconds


def commit(url: str, seconds: float, start: Any, counts: Any) -> None:
    base_uri, version = f"s3://bucket/{uuid4().hex}/t.lance", 0
    with closing(opened(url)) as store:
        assert store.latest(base_uri) is None
        start.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            version += 1
            path = f"t.lance/_versions/{NamingScheme.V2.final_name(version)}-{uuid4()}"
            row = VersionRow(base_uri, version, path, 1000, "ada@host")
            assert store.reserve(row, first=version == 1) == Reserved()
            assert store.finalize(VersionRow(base_uri, version, final_path(path), 1000))
        store.delete(base_uri)
    counts.put(version)


if __name__ == "__main__":
    main()
