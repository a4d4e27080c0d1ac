"""Catalog operations beside the native directory namespace, and what grows with the number of tables.

    python benchmarks/catalog.py [--tables 10000 100000 1000000] [--s3-tables 10000]

Every figure is a ratio against the native namespace on a copy of the same directory in the same run: absolute times
belong to the machine. Both are warm and in one process, unless a row says otherwise; ours sync nothing, as native does
not, save where a row says so. Before each row of either side the disk gets what is still to be written. S3 is moto in a
process of its own, which is most of what is measured there.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import attrs
import lance_namespace as api
import pyarrow as pa
from lance.namespace import DirectoryNamespace as NativeNamespace
from results import record
from s3 import bucket, s3_options, s3_server

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.domain.catalog import Put
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.table import new_location

SPAWN = multiprocessing.get_context("spawn")
NAMESPACE = "ns1"
THREADS = 8
PROCESSES = 4
PAGE = 4096
Properties = dict[str, str]


@attrs.frozen
class Side:
    """One of the two that are compared: how it is opened, and a catalog of its own."""

    name: str
    properties: Properties
    native: bool

    def open(self) -> Any:
        return NativeNamespace(**self.properties) if self.native else lancekeep.DirectoryNamespace(**self.properties)


def seed(properties: Properties, tables: int) -> None:
    """A catalog of that many tables in one namespace; only their entries, which is what is measured here."""
    catalog = lancekeep.DirectoryNamespace(**properties).catalog
    catalog.create_namespace(NAMESPACE)
    chance = random.Random(1)
    ids = [ObjectId((NAMESPACE, f"t{number:07d}")) for number in range(tables)]
    changes = [Put(ManifestEntry.table(i, new_location(i, f"{chance.getrandbits(32):08x}"), {})) for i in ids]
    directory_of(catalog).ledger.manifest.apply(lambda view: (changes, None))
    catalog.close()


def median(act: Callable[[int], Any], budget: float, least: int = 5, most: int = 300) -> float:
    """Median seconds of a call, over as many calls as fit into ``budget`` seconds."""
    os.sync()  # what was written before is not this side's
    samples: list[float] = []
    end = time.perf_counter() + budget
    while len(samples) < least or (len(samples) < most and time.perf_counter() < end):
        begin = time.perf_counter()
        act(len(samples))
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples)


def operations(namespace: Any, tables: int) -> dict[str, Callable[[int], Any]]:
    """What is measured, by name, as calls that take the number of the call."""
    run = f"{time.time_ns():x}"

    def describe(name: str) -> Any:
        return namespace.describe_table(api.DescribeTableRequest(id=[NAMESPACE, name]))

    def miss(number: int) -> None:
        with suppress(Exception):
            describe(f"x{number}")

    def page(token: str | None) -> Any:
        return namespace.list_tables(api.ListTablesRequest(id=[NAMESPACE], limit=100, page_token=token))

    def rename(number: int) -> Any:
        request = api.RenameTableRequest(id=[NAMESPACE, f"d{run}-{number}"], new_table_name=f"e{run}-{number}")
        return namespace.rename_table(request)

    return {
        "describe, hit": lambda number: describe(f"t{number * 7919 % tables:07d}"),
        "describe, miss": miss,
        "list 100, first page": lambda number: page(None),
        "list 100, deep page": lambda number: page(f"t{tables // 2:07d}"),
        "declare": lambda number: namespace.declare_table(api.DeclareTableRequest(id=[NAMESPACE, f"d{run}-{number}"])),
        "create namespace": lambda number: namespace.create_namespace(
            api.CreateNamespaceRequest(id=[NAMESPACE, f"n{run}-{number}"])
        ),
        "rename": rename,
        "deregister": lambda number: namespace.deregister_table(
            api.DeregisterTableRequest(id=[NAMESPACE, f"t{tables - 1 - number:07d}"])
        ),
    }


def by_threads(namespace: Any, budget: float) -> float:
    """Tables declared per second by threads of one process."""
    os.sync()
    together, counts = Barrier(THREADS + 1), [0] * THREADS
    run = f"{time.time_ns():x}"

    def declare(thread: int) -> None:
        together.wait()
        end = time.perf_counter() + budget
        while time.perf_counter() < end:
            namespace.declare_table(api.DeclareTableRequest(id=[NAMESPACE, f"w{run}-{thread}-{counts[thread]}"]))
            counts[thread] += 1

    threads = [Thread(target=declare, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    together.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


def declare_in_process(side: Side, process: int, budget: float, start: Any, counts: Any) -> None:
    namespace, done, run = side.open(), 0, f"{time.time_ns():x}"
    namespace.list_tables(api.ListTablesRequest(id=[NAMESPACE], limit=1))
    start.wait()
    end = time.perf_counter() + budget
    while time.perf_counter() < end:
        with suppress(Exception):  # the native one gives up after a number of lost races
            namespace.declare_table(api.DeclareTableRequest(id=[NAMESPACE, f"p{run}-{process}-{done}"]))
            done += 1
    counts.put(done)


def by_processes(side: Side, budget: float) -> float:
    """Tables of distinct names declared per second by several processes."""
    os.sync()
    start, counts = SPAWN.Barrier(PROCESSES), SPAWN.Queue()
    running = [
        SPAWN.Process(target=declare_in_process, args=(side, number, budget, start, counts))
        for number in range(PROCESSES)
    ]
    for process in running:
        process.start()
    total: int = sum(counts.get() for _ in running)
    for process in running:
        process.join()
    return total / budget


def open_and_weigh(side: Side, tables: int, answer: Any) -> None:
    """In a process of its own: seconds to open and find a table, and bytes per entry that are held from then on."""
    with tempfile.TemporaryDirectory() as warm:  # what both do once per process is not what is measured
        first = attrs.evolve(side, properties={"root": warm}).open()
        first.create_namespace(api.CreateNamespaceRequest(id=["a"]))
        before, begin = _resident(), time.perf_counter()
        namespace = side.open()
        namespace.describe_table(api.DescribeTableRequest(id=[NAMESPACE, f"t{tables // 2:07d}"]))
        seconds = time.perf_counter() - begin
        answer.put((seconds, (_resident() - before) / tables))


def _resident() -> int:
    gc.collect()
    pa.default_memory_pool().release_unused()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def opened(side: Side, tables: int) -> tuple[float, float]:
    answers = SPAWN.Queue()
    process = SPAWN.Process(target=open_and_weigh, args=(side, tables, answers))
    process.start()
    found: tuple[float, float] = answers.get()
    process.join()
    return found


def after_a_rewrite(ours: Any, native: Any, tables: int) -> float:
    """Median seconds of our first look after the native namespace has rewritten the whole table."""
    samples = []
    for number in range(3):
        native.create_namespace(api.CreateNamespaceRequest(id=[f"r{time.time_ns():x}"]))
        begin = time.perf_counter()
        ours.describe_table(api.DescribeTableRequest(id=[NAMESPACE, f"t{number:07d}"]))
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples)


def compare(ours: Side, peer: Side, tables: int, *, processes: bool) -> None:
    print(
        f"\n{tables:,} tables, {ours.name}: native, ours, and how many times better; median ms unless it says otherwise"
    )
    budget, place = 3.0, f"{tables:,} tables, {ours.name}"
    peer_namespace, own_namespace = peer.open(), ours.open()
    native, own = operations(peer_namespace, tables), operations(own_namespace, tables)
    for name, act in own.items():
        mine = median(act, budget)
        try:
            theirs = median(native[name], budget)
        except NotImplementedError:
            report(place, name, None, mine * 1e3)
        else:
            report(place, name, theirs * 1e3, mine * 1e3)
    report(
        place,
        f"per second, {THREADS} threads",
        by_threads(peer_namespace, budget),
        by_threads(own_namespace, budget),
        rate=True,
    )
    if processes:
        rates = by_processes(peer, budget), by_processes(ours, budget)
        report(place, f"per second, {PROCESSES} processes", *rates, rate=True)
    theirs, _ = opened(peer, tables)
    mine, weight = opened(ours, tables)
    report(place, "open and first describe", theirs * 1e3, mine * 1e3)
    report(place, "bytes held per entry", None, weight)
    beside = NativeNamespace(**{name: value for name, value in ours.properties.items() if name != "storage.fsync"})
    report(place, "first look after a native rewrite", None, after_a_rewrite(own_namespace, beside, tables) * 1e3)
    own_namespace.catalog.close()


def report(place: str, name: str, theirs: float | None, mine: float, *, rate: bool = False) -> None:
    unit = "per second" if rate else "bytes" if name.startswith("bytes") else "ms"
    record("catalog", f"{place}: {name}", unit, mine, theirs, "pylance's namespace")
    if theirs is None:
        print(f"  {name:34} {'':12} {mine:12.3f}", flush=True)
        return
    times = mine / theirs if rate else theirs / mine
    print(f"  {name:34} {theirs:12.3f} {mine:12.3f} {times:10.1f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--s3-tables", type=int, nargs="*", default=[10_000])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:  # removed at the end only: ext4 makes files slowly after many went
        for tables in arguments.tables:
            root, copy = Path(scratch) / f"ours-{tables}", Path(scratch) / f"native-{tables}"
            fast = {"root": str(root), "dir_listing_enabled": "false", "storage.fsync": "false"}
            seed(fast, tables)
            shutil.copytree(root, copy)
            peer = Side("native", {"root": str(copy), "dir_listing_enabled": "false"}, native=True)
            compare(Side("local files", fast, native=False), peer, tables, processes=tables < 1_000_000)
            durable = lancekeep.DirectoryNamespace(root=str(root), dir_listing_enabled="false")
            seconds = median(operations(durable, tables)["declare"], 3.0)
            report(f"{tables:,} tables, local files", "declare, with every fsync", None, seconds * 1e3)
    if arguments.s3_tables:
        with s3_server() as endpoint:
            for tables in arguments.s3_tables:
                storage = {f"storage.{key}": value for key, value in s3_options(endpoint).items()}
                properties = {"dir_listing_enabled": "false", **storage}
                ours = Side("S3 (moto)", {"root": f"s3://{bucket(endpoint)}/lake", **properties}, native=False)
                peer = Side("native", {"root": f"s3://{bucket(endpoint)}/lake", **properties}, native=True)
                seed(ours.properties, tables)
                seed(peer.properties, tables)
                compare(ours, peer, tables, processes=False)


if __name__ == "__main__":
    main()
