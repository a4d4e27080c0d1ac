"""Appends of many clients to one table, without and with automatic maintenance.

    python benchmarks/maintenance.py [--appends 20000] [--clients 64] [--rows 10] [--older-than 30s] [--keep 100]
                                     [--rate 0] [--settle 90] [--watch 0] [--directory DIR]

Each client appends ``--rows`` rows, waits for the answer, and appends again, until ``--appends`` are acknowledged;
``--rate`` bounds the appends per second of all clients, so that both runs have the same load. After the run the table
may settle for some seconds: versions expire ``--older-than`` after their successor. Then plain pylance reads the table:
every acknowledged row is there once. The last line compares the figures with the goals of issue 31: at most 50
fragments and 200 versions, files of at most twice the live bytes, and a p99 of at most 1.5 times the p99 without.

``--appends 100000`` is the goal; the default is shorter. ``--watch 5`` prints the state every 5 seconds, and what
maintenance does. Times belong to the machine.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

import lance
import pyarrow as pa

import lancekeep

FRAGMENTS, VERSIONS, BYTES, P99 = 50, 200, 2.0, 1.5
OLDER_THAN, KEEP = "lancekeep.maintenance.older_than", "lancekeep.maintenance.keep"


class Run(NamedTuple):
    """The figures of one run."""

    p99: float
    fragments: int
    versions: int
    ratio: float


def state(directory: Path) -> tuple[int, int, float]:
    """Return the fragments, the versions, and the bytes of all files in relation to the live ones."""
    dataset = lance.dataset(str(directory))
    fragments = dataset.get_fragments()
    live = sum((directory / "data" / file.path).stat().st_size for each in fragments for file in each.data_files())
    manifests = list((directory / "_versions").glob("*.manifest"))
    return len(fragments), len(manifests), sum(stored(directory).values()) / live


def stored(directory: Path) -> Counter[str]:
    """Return the bytes of the files of a table, by the directory that holds them."""
    found = Counter[str]()
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # a clean-up has removed it
            found[path.relative_to(directory).parts[0]] += path.stat().st_size if path.is_file() else 0
    return found


@contextmanager
def watched(directory: Path, every: float) -> Iterator[None]:
    """Print the state of a table at intervals, unless they are 0."""
    ended, began = threading.Event(), time.monotonic()

    def watch() -> None:
        while not ended.wait(every):
            fragments, versions, ratio = state(directory)
            parts = ", ".join(f"{size // 1000} kB in {name}" for name, size in stored(directory).items())
            seconds = time.monotonic() - began
            print(f"{seconds:5.0f} s: {fragments} fragments, {versions} versions, {ratio:.1f} times live: {parts}")

    if not every:
        yield
        return
    logging.basicConfig(format="         %(message)s")
    logging.getLogger("lancekeep").setLevel(logging.INFO)
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run(maintenance: str, args: argparse.Namespace) -> Run:
    with tempfile.TemporaryDirectory(dir=args.directory) as scratch:
        store = f"sqlite://{scratch}/commits.db"
        with lancekeep.connect(f"{scratch}/lake", commit_store=store, maintenance=maintenance) as catalog:
            catalog.create_namespace("ml")
            catalog.write("ml.t", pa.table({"client": [-1], "number": [0]}))
            catalog.alter_table("ml.t", {OLDER_THAN: args.older_than, KEEP: str(args.keep)})
            numbers, latencies = count(), list[float]()
            begins = time.monotonic()
            barrier = threading.Barrier(args.clients)

            def client(me: int) -> None:
                barrier.wait()
                while (number := next(numbers)) < args.appends:
                    if args.rate:
                        time.sleep(max(0.0, begins + number / args.rate - time.monotonic()))
                    first = number * args.rows
                    rows = pa.table({"client": [me] * args.rows, "number": range(first, first + args.rows)})
                    began = time.perf_counter()
                    catalog.write("ml.t", rows, "append")
                    latencies.append(time.perf_counter() - began)

            directory = Path(catalog.describe_table("ml.t").uri.removeprefix("file://"))
            clients = [threading.Thread(target=client, args=(me,)) for me in range(args.clients)]
            with watched(directory, args.watch if maintenance == "auto" else 0):
                for each in clients:
                    each.start()
                for each in clients:
                    each.join()
                took = time.monotonic() - begins
                fragments, versions, ratio = at_end = state(directory)
                settled = time.monotonic()
                while maintenance == "auto" and time.monotonic() < settled + args.settle:
                    if fragments <= FRAGMENTS and versions <= VERSIONS and ratio <= BYTES:
                        break
                    time.sleep(1)
                    fragments, versions, ratio = state(directory)
                settled = time.monotonic() - settled
        found = Counter(lance.dataset(str(directory)).to_table(["number"], filter="client >= 0")["number"].to_pylist())
        assert found == Counter(range(args.appends * args.rows)), "a row is missing or doubled"
    cuts = statistics.quantiles(latencies, n=100)
    p50, p99 = cuts[49] * 1000, cuts[98] * 1000
    print(
        f"| {maintenance} | {len(latencies) / took:.0f} | {p50:.0f} | {p99:.0f} | {max(latencies) * 1000:.0f} | "
        f"{at_end[0]} | {at_end[1]} | {at_end[2]:.1f} | {settled:.0f} | {fragments} | {versions} | {ratio:.1f} |",
        flush=True,
    )
    return Run(p99, fragments, versions, ratio)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--older-than", default="30s", help="the age of versions that are removed; an hour by default")
    parser.add_argument("--keep", type=int, default=100, help="the latest versions that stay, whatever their age")
    parser.add_argument("--rate", type=float, default=0, help="the most appends per second; 0 for no bound")
    parser.add_argument("--settle", type=float, default=90, help="the most seconds after the appends")
    parser.add_argument("--watch", type=float, default=0, help="print the state after so many seconds; 0: never")
    parser.add_argument("--directory", help="where the catalog is; by default the directory of temporary files")
    args = parser.parse_args()
    columns = "maintenance", "appends/s", "p50 ms", "p99 ms", "longest ms"
    states = (*("fragments", "versions", "files / live") * 2,)
    print("| " + " | ".join((*columns, *states[:3], "settled s", *states[3:])) + " |")
    print("| --- " * 12 + "|")
    without, maintained = (run(each, args) for each in ("off", "auto"))
    ratio = maintained.p99 / without.p99
    met = {
        f"{maintained.fragments} fragments (≤ {FRAGMENTS})": maintained.fragments <= FRAGMENTS,
        f"{maintained.versions} versions (≤ {VERSIONS})": maintained.versions <= VERSIONS,
        f"files {maintained.ratio:.1f} times live (≤ {BYTES})": maintained.ratio <= BYTES,
        f"p99 {ratio:.2f} times without (≤ {P99})": ratio <= P99,
    }
    print("; ".join(f"{'met' if is_met else 'MISSED'}: {name}" for name, is_met in met.items()))


if __name__ == "__main__":
    main()
