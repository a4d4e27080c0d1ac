"""Acknowledged upserts per second on one table with an index on the key, beside pylance's own `merge_insert`.

    python benchmarks/upserts.py [--clients 1 16 64] [--native 1 8 64] [--seconds 8] [--rows 10] [--table-rows 1000000]
                                 [--stores storage sqlite] [--latency 60] [--stable] [--server] [--workers 2]
                                 [--keyed]

Each client merges ``--rows`` rows by key, of which half replace random rows of the table, waits for the answer, and
merges again. The key has a B-tree, which covers the first ``--table-rows`` rows. After each run plain pylance reads the
table: each key is there once, with the value of its last upsert, and the counts of all answers add up. The table
is on the local disk, or with ``--latency`` on an S3 server as for `appends.py`. ``--server`` measures the same through
`lancekeep serve`, with one HTTP connection per client. ``--keyed`` measures each of these again with an idempotency
key in each upsert, and prints the ratio.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
from appends import SPAWN, Proxy, drive_requests, served
from results import record
from s3 import bucket, s3_options, s3_server

import lancekeep
from lancekeep.ports.rows import MergeRule

RULE = MergeRule(["id"], update=True, insert=True)
Counts = tuple[int, int]
Merge = Callable[[pa.Table], Counts]
NEW = 1 << 40
"""The first key of new rows."""


def table_of(keys: Sequence[int], value: int) -> pa.Table:
    texts = [f"text {key}" for key in keys]
    return pa.table(
        {"id": pa.array(keys, pa.int64()), "value": pa.array([value] * len(keys), pa.int64()), "text": texts}
    )


def rows_of(client: int, number: int, rows: int, size: int) -> pa.Table:
    """Return the rows of an upsert: random ones of the table, and rows that no other upsert has."""
    keys = random.Random(f"{client} {number}").sample(range(size), rows - rows // 2)
    first = NEW + ((client << 20) + number) * rows
    return table_of([*keys, *range(first, first + rows // 2)], (client << 20) + number + 1)


def run_clients(merge: Merge, clients: int, seconds: float, rows: int, size: int) -> tuple[list[float], Counts, float]:
    """Return the latencies, the sums of inserted and updated rows, and the duration."""
    latencies: list[float] = []
    counts: list[Counts] = []
    stop = time.monotonic() + seconds
    barrier = threading.Barrier(clients)

    def client(me: int) -> None:
        barrier.wait()
        number = 0
        while time.monotonic() < stop:
            table = rows_of(me, number, rows, size)
            began = time.perf_counter()
            counts.append(merge(table))
            latencies.append(time.perf_counter() - began)
            number += 1

    threads = [threading.Thread(target=client, args=(me,)) for me in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies, (sum(each for each, _ in counts), sum(each for _, each in counts)), time.monotonic() - began


def request_of(rows: int, size: int, keyed: bool, client: int, number: int) -> bytes:
    """Return the HTTP request of an upsert."""
    sink = io.BytesIO()
    table = rows_of(client, number, rows, size)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue()
    clauses = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
    key = f"Idempotency-Key: {uuid4()}\r\n" if keyed else ""
    head = (
        f"POST /v1/table/ml$t/merge_insert?{clauses} HTTP/1.1\r\nHost: 127.0.0.1\r\n{key}"
        f"Content-Type: application/vnd.apache.arrow.stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def drive(
    host: str, port: int, clients: int, seconds: float, rows: int, size: int, first: int, keyed: bool
) -> tuple[list[float], Counts, float]:
    """Upsert through HTTP connections of one thread; return as `run_clients`.

    The first client has the number ``first``; each one upserts at least once.
    """
    bodies: list[bytes] = []
    latencies, _, took = drive_requests(
        [(host, port)], clients, seconds, first, partial(request_of, rows, size, keyed), bodies.append
    )
    answers = [json.loads(body) for body in bodies]
    sums = (sum(each["num_inserted_rows"] for each in answers), sum(each["num_updated_rows"] for each in answers))
    return latencies, sums, took


def check(uri: str, options: dict[str, str], size: int, upserts: int, rows: int, counts: Counts) -> int:
    """Require each key once and exact counts; return the number of versions."""
    dataset = lance.dataset(uri, storage_options=options)
    keys = Counter(dataset.to_table(columns=["id"])["id"].to_pylist())
    inserted, updated = counts
    assert max(keys.values()) == 1, "a key is there twice"
    assert inserted == upserts * (rows // 2), "new rows are counted as updated"
    assert updated == upserts * (rows - rows // 2), "rows of the table are counted as inserted"
    assert len(keys) == size + inserted, "rows are lost, or too many"
    return int(dataset.version)


def report(name: str, clients: int, latencies: list[float], took: float, versions: int, asked: int) -> float:
    latencies.sort()
    rate, median = len(latencies) / took, 1000 * statistics.median(latencies)
    record("upserts", f"{name}: {clients} clients", "upserts per second", rate)
    record("upserts", f"{name}: {clients} clients, median", "ms", median)
    p99 = 1000 * latencies[min(len(latencies) - 1, int(len(latencies) * 0.99))]
    print(
        f"| {name} | {clients} | {rate:.{0 if rate > 10 else 1}f} | {median:.0f} | {p99:.0f} | "
        f"{len(latencies) / max(1, versions):.1f} | {asked / len(latencies):.2f} |",
        flush=True,
    )
    return rate


class Place:
    """Makes roots of catalogs, on the local disk or on S3."""

    def __init__(self, stack: ExitStack, latency: float | None) -> None:
        self._scratch = stack.enter_context(tempfile.TemporaryDirectory())
        self.proxy: Proxy | None = None
        self._endpoint = ""
        if latency is not None:
            self._endpoint = stack.enter_context(s3_server())
            self.proxy = Proxy(self._endpoint, latency / 1000)

    def root(self) -> str:
        return f"s3://{bucket(self._endpoint)}/lake" if self.proxy else f"{self._scratch}/{uuid4().hex}"

    def store(self, kind: str) -> str | None:
        return {"storage": None, "sqlite": f"sqlite:///{self._scratch}/{uuid4().hex}.db"}[kind]

    @property
    def options(self) -> dict[str, str]:
        return s3_options(self.proxy.url) if self.proxy else {}

    @property
    def direct(self) -> dict[str, str]:
        return s3_options(self._endpoint) if self.proxy else {}


def ours(place: Place, kind: str, clients: int, args: Any, *, keyed: bool = False) -> float:
    root, store, size = place.root(), place.store(kind), args.table_rows
    with lancekeep.connect(root, commit_store=store, storage_options=place.direct) as catalog:
        catalog.create_namespace("ml")
        catalog.write("ml.t", table_of(range(size), 0), stable_row_ids=args.stable)
        catalog.open("ml.t").create_scalar_index("id", "BTREE")
        before, uri = catalog.open("ml.t").version, catalog.open("ml.t").uri
    catalog = lancekeep.connect(root, commit_store=store, storage_options=place.options)

    def merge(table: pa.Table) -> Counts:
        _, counts = catalog.data.merge("ml.t", table.to_reader(), RULE)
        return counts.inserted, counts.updated

    name, others = kind, 0
    with ExitStack() as stack:
        if args.server:
            name = f"{kind}, server" if args.workers == 1 else f"{kind}, {args.workers} workers"
            address = stack.enter_context(served(root, store, place.options, max(64, clients), args.workers))
            process = stack.enter_context(ProcessPoolExecutor(1, SPAWN))
            warm = process.submit(drive, *address, 1, 0.0, args.rows, size, clients, keyed).result()
            asked = place.proxy.requests.total() if place.proxy else 0
            done = process.submit(drive, *address, clients, args.seconds, args.rows, size, 0, keyed)
            latencies, counts, took = done.result()
            counts, others = (counts[0] + warm[1][0], counts[1] + warm[1][1]), len(warm[0])
        else:
            asked = place.proxy.requests.total() if place.proxy else 0
            latencies, counts, took = run_clients(merge, clients, args.seconds, args.rows, size)
    asked = place.proxy.requests.total() - asked if place.proxy else 0
    upserts = len(latencies) + others
    versions = check(uri, place.direct, size, upserts, args.rows, counts) - before - others
    name = f"{name}, keys" if keyed else name
    return report(f"{name}, stable row ids" if args.stable else name, clients, latencies, took, versions, asked)


def native(place: Place, clients: int, args: Any) -> None:
    uri, size = f"{place.root()}/t.lance", args.table_rows
    dataset = lance.write_dataset(
        table_of(range(size), 0), uri, storage_options=place.direct, enable_stable_row_ids=args.stable
    )
    dataset.create_scalar_index("id", "BTREE")
    before = dataset.version

    def merge(table: pa.Table) -> Counts:
        while True:
            opened = lance.dataset(uri, storage_options=place.options)
            builder = opened.merge_insert(["id"]).when_matched_update_all().when_not_matched_insert_all()
            try:
                counts = builder.conflict_retries(20).execute(table)
            except OSError as error:
                if "conflict" not in str(error).lower() and "too many" not in str(error).lower():
                    raise
                continue
            return counts["num_inserted_rows"], counts["num_updated_rows"]

    asked = place.proxy.requests.total() if place.proxy else 0
    latencies, counts, took = run_clients(merge, clients, args.seconds, args.rows, size)
    asked = place.proxy.requests.total() - asked if place.proxy else 0
    versions = check(uri, place.direct, size, len(latencies), args.rows, counts) - before
    report("pylance, stable row ids" if args.stable else "pylance", clients, latencies, took, versions, asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--native", type=int, nargs="*", default=[1, 8, 64], help="numbers of pylance's own writers")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--table-rows", type=int, default=1_000_000)
    parser.add_argument("--stores", nargs="*", choices=("storage", "sqlite"), default=["storage", "sqlite"])
    parser.add_argument("--latency", type=float, help="milliseconds added to each request to an S3 server")
    parser.add_argument("--stable", action="store_true", help="tables with stable row ids")
    parser.add_argument("--server", action="store_true", help="through `lancekeep serve` instead of threads")
    parser.add_argument("--workers", type=int, default=1, help="processes of the server, with --server")
    parser.add_argument("--keyed", action="store_true", help="also with a new idempotency key for each upsert")
    args = parser.parse_args()
    if args.workers > 1 and not args.server:
        parser.error("--workers needs --server: only servers have workers")
    if args.keyed and not args.server:
        parser.error("--keyed needs --server: keys belong to requests")
    print("| writers | clients | upserts/s | p50 ms | p99 ms | upserts/version | requests/upsert |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with ExitStack() as stack:
        place = Place(stack, args.latency)
        for clients in args.native:
            native(place, clients, args)
        for kind in args.stores:
            for clients in args.clients:
                plain = ours(place, kind, clients, args)
                if args.keyed:
                    keyed = ours(place, kind, clients, args, keyed=True)
                    record("upserts", f"{kind}: {clients} clients", "keyed to plain", keyed / plain)
                    print(f"| {kind}, keyed to plain | {clients} | {keyed / plain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
