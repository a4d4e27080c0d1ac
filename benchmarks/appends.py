"""Acknowledged appends per second on one table, beside pylance's own writers, with injected latency.

    python benchmarks/appends.py [--clients 1 16 64 256] [--seconds 8] [--latency 60] [--stores storage sqlite redis]
                                 [--redis redis://127.0.0.1:6379/0] [--native 8] [--rows 10] [--server] [--workers 2]
                                 [--servers 4] [--unlinked]
                                 [--beside compact compact-native delete update native server]

An S3 server (moto, in a process of its own) runs after a proxy that delays each request by ``--latency`` milliseconds
and counts it. Each client appends ``--rows`` rows, waits for the answer, and appends again. After each run plain
pylance reads the table: every acknowledged row is there once, and no other. ``--server`` measures the same through
`lancekeep serve` in a process of its own, with one HTTP connection per client; all clients are one thread of another
process. ``--workers`` starts that number of processes in each server. ``--servers`` starts that number of servers; the
clients are divided between them, and they send each other appends, unless they are ``--unlinked``. ``--keyed`` measures
each of these again with an idempotency key in each append, and prints the ratio.
``--beside`` lets another process change the table at the same time: compactions, compactions that pylance commits, or
native appends by a catalog of its own, or deletes or updates through the server, one after the other; or as many
appends through a second server.

Times belong to the machine. The requests per append do not.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import multiprocessing
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

import lance
import pyarrow as pa
from results import record
from s3 import bucket, s3_options, s3_server

import lancekeep

SPAWN = multiprocessing.get_context("spawn")
SCHEMA = pa.schema([("client", pa.int64()), ("number", pa.int64())])
Append = Callable[[pa.Table], Any]
DELETED = -4
"""The client whose rows are deleted one after the other."""


# -- the object store -------------------------------------------------------------------------------------------------


class Proxy:
    """Delay each request before a server, and count requests by method and status."""

    def __init__(self, target: str, latency: float) -> None:
        self._host, self._port = urlsplit(target).hostname, urlsplit(target).port
        self._latency = latency
        self.requests: Counter[str] = Counter()
        self.url = ""
        started = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._run(started)), daemon=True).start()
        started.wait()

    async def _run(self, started: threading.Event) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await server.serve_forever()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        reader = writer = None
        try:
            while head := await client.readuntil(b"\r\n\r\n"):
                method = head.split(b" ", 1)[0].decode()
                if b"100-continue" in head.lower():
                    answers.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    lines = head.split(b"\r\n")
                    head = b"\r\n".join(line for line in lines if not line.lower().startswith(b"expect:"))
                body = await _body(client, head)
                await asyncio.sleep(self._latency)
                if writer is None:
                    reader, writer = await asyncio.open_connection(self._host, self._port)
                assert reader is not None
                writer.write(head + body)
                told = await reader.readuntil(b"\r\n\r\n")
                content = b"" if method == "HEAD" else await _body(reader, told)
                self.requests[f"{method} {told.split(b' ', 2)[1].decode()}"] += 1
                answers.write(told + content)
                await answers.drain()
                if b"connection: close" in told.lower():
                    writer.close()
                    reader = writer = None
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            answers.close()
            if writer is not None:
                writer.close()


async def _body(stream: asyncio.StreamReader, head: bytes) -> bytes:
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        parts = []
        while True:
            line = await stream.readline()
            part = await stream.readexactly(int(line.split(b";")[0], 16) + 2)
            parts.append(line + part)
            if len(part) == 2:
                return b"".join(parts)
    return await stream.readexactly(int(fields.get(b"content-length", b"0")))


# -- clients ----------------------------------------------------------------------------------------------------------


def rows_of(client: int, number: int, rows: int) -> pa.Table:
    first = number * rows
    return pa.table({"client": [client] * rows, "number": range(first, first + rows)}, SCHEMA)


def run_clients(
    appends: Sequence[Append], seconds: float, rows: int
) -> tuple[list[float], list[tuple[int, int]], float]:
    """Return the latencies, the acknowledged appends and the duration."""
    latencies: list[float] = []
    acknowledged: list[tuple[int, int]] = []
    stop = time.monotonic() + seconds
    barrier = threading.Barrier(len(appends))

    def client(me: int, append: Append) -> None:
        barrier.wait()
        number = 0
        while time.monotonic() < stop:
            table = rows_of(me, number, rows)
            began = time.perf_counter()
            append(table)
            latencies.append(time.perf_counter() - began)
            acknowledged.append((me, number))
            number += 1

    threads = [threading.Thread(target=client, args=each) for each in enumerate(appends)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies, acknowledged, time.monotonic() - began


def check(uri: str, options: dict[str, str], acknowledged: Sequence[tuple[int, int]], rows: int) -> int:
    """Require every acknowledged row once and no other; return the number of fragments."""
    dataset = lance.dataset(uri, storage_options=options)
    table = dataset.to_table(filter="client >= 0")
    found = Counter(zip(table["client"].to_pylist(), table["number"].to_pylist(), strict=True))
    wanted = Counter(
        (client, row) for client, number in acknowledged for row in range(number * rows, (number + 1) * rows)
    )
    assert found == wanted, f"{len(wanted - found)} rows lost, {len(found - wanted)} rows too many"
    return len(dataset.get_fragments())


def report(name: str, clients: int, latencies: list[float], took: float, asked: Counter[str], fragments: int) -> float:
    """Print what was measured, and return the number of appends per second."""
    if not latencies:
        print(f"| {name} | {clients} | 0 |", flush=True)
        return 0.0
    latencies.sort()
    requests, rate = sum(asked.values()), len(latencies) / took
    record("appends", f"{name}: {clients} clients", "appends per second", rate)
    record("appends", f"{name}: {clients} clients, median", "ms", 1000 * statistics.median(latencies))
    print(
        f"| {name} | {clients} | {rate:.{0 if rate > 10 else 1}f} | {1000 * statistics.median(latencies):.0f} | "
        f"{1000 * latencies[min(len(latencies) - 1, int(len(latencies) * 0.99))]:.0f} | "
        f"{requests / max(1, len(latencies)):.2f} | {fragments} | {dict(asked.most_common(6))} |",
        flush=True,
    )
    return rate


# -- what is measured -------------------------------------------------------------------------------------------------


def in_process(name: str, store: str | None, clients: int, proxy: Proxy, endpoint: str, args: Any) -> float:
    options = s3_options(proxy.url)
    root = f"s3://{bucket(endpoint)}/lake"
    catalog = lancekeep.connect(root, commit_store=store, storage_options=options)
    catalog.create_namespace("ml")
    catalog.write("ml.t", rows_of(-1, 0, 1))
    catalog.write("ml.t", rows_of(-1, 1, 1), "append")

    def append(table: pa.Table) -> Any:
        return catalog.write("ml.t", table, "append")

    proxy.requests.clear()
    latencies, acknowledged, took = run_clients([append] * clients, args.seconds, args.rows)
    counted = Counter(proxy.requests)
    fragments = check(catalog.open("ml.t").uri, s3_options(endpoint), acknowledged, args.rows)
    return report(name, clients, latencies, took, counted, fragments)


def native(clients: int, proxy: Proxy, endpoint: str, args: Any) -> None:
    options = s3_options(proxy.url)
    uri = f"s3://{bucket(endpoint)}/t.lance"
    lance.write_dataset(rows_of(-1, 0, 1), uri, storage_options=options)

    def append(table: pa.Table) -> Any:
        return lance.write_dataset(table, uri, mode="append", storage_options=options)

    proxy.requests.clear()
    latencies, acknowledged, took = run_clients([append] * clients, args.seconds, args.rows)
    counted = Counter(proxy.requests)
    fragments = check(uri, s3_options(endpoint), acknowledged, args.rows)
    report("pylance", clients, latencies, took, counted, fragments)


@contextmanager
def served(
    root: str, store: str | None, options: dict[str, str], threads: int, workers: int, keys: Path | None = None
) -> Iterator[tuple[str, int]]:
    """Run `lancekeep serve` in a process of its own, or in several workers.

    ``keys`` is a folder for the certificates of servers that send each other appends.
    """
    command = [sys.executable, "-m", "lancekeep", "serve", root, "--port", "0"]
    environment = dict(os.environ)
    if keys is not None:
        from cluster_keys import cluster_in  # of the tests, whose folder `s3` adds to the path

        cluster = cluster_in(keys)
        named = ("host", "certificate", "private_key", "authority")
        environment |= {f"LANCEKEEP_SERVER__CLUSTER_{name.upper()}": getattr(cluster, name) for name in named}
    command += ["--commit-store", store] if store else []
    command += ["--threads", str(threads), "--log-level", "warning"]
    command += ["--workers", str(workers)] if workers > 1 else []
    command += [part for key, value in options.items() for part in ("--storage-option", f"{key}={value}")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            printed = []
            for line in server.stdout:
                printed.append(line)
                if "http://" in line:
                    address = urlsplit("http://" + line.partition("http://")[2].split()[0].rstrip('"'))
                    threading.Thread(target=server.stdout.read, daemon=True).start()
                    assert address.hostname is not None
                    assert address.port is not None
                    yield address.hostname, address.port
                    return
            raise RuntimeError(f"the server ended before it listened: {''.join(printed)[-2000:]}")
        finally:
            server.terminate()


def drive(
    servers: Sequence[tuple[str, int]], clients: int, seconds: float, rows: int, first: int, keyed: bool
) -> tuple[list[float], list[tuple[int, int]], float]:
    """Append through HTTP connections of one thread, because the clients share the cores with the server.

    Returns:
        As `run_clients`. The first client has the number ``first``; each one appends at least once.
    """

    def request(client: int, number: int) -> bytes:
        return insertion(rows_of(client, number, rows), keyed)

    return drive_requests(servers, clients, seconds, first, request)


def drive_requests(
    servers: Sequence[tuple[str, int]],
    clients: int,
    seconds: float,
    first: int,
    request: Callable[[int, int], bytes],
    answered: Callable[[bytes], object] = lambda body: None,
) -> tuple[list[float], list[tuple[int, int]], float]:
    """Send each client's requests one after the other; see `drive`.

    Each client uses the next server. ``request`` receives the client and the number of a request, ``answered`` the body
    of each answer.
    """
    latencies: list[float] = []
    acknowledged: list[tuple[int, int]] = []
    began = time.monotonic()
    stop = began + seconds
    with selectors.DefaultSelector() as selector:

        def send(client: int, number: int, connection: socket.socket) -> None:
            started = time.perf_counter()
            connection.sendall(request(client, number))
            selector.register(connection, selectors.EVENT_READ, (client, number, started, bytearray(), connection))

        for client in range(first, first + clients):
            connection = socket.create_connection(servers[client % len(servers)], 60)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send(client, 0, connection)
        while selector.get_map():
            for ready, _ in selector.select():
                client, number, started, answer, connection = ready.data
                part = connection.recv(1 << 16)
                if not part:
                    raise RuntimeError(f"the server closed the connection of client {client} before its answer")
                answer += part
                head, separator, body = bytes(answer).partition(b"\r\n\r\n")
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                if not separator or length is None or len(body) < int(length[1]):
                    continue
                if not head.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"{head[:200]!r} {body[:500]!r}")
                latencies.append(time.perf_counter() - started)
                answered(body)
                if client >= 0:
                    acknowledged.append((client, number))
                selector.unregister(connection)
                if time.monotonic() < stop:
                    send(client, number + 1, connection)
                else:
                    connection.close()
    return latencies, acknowledged, time.monotonic() - began


def insertion(table: pa.Table, keyed: bool) -> bytes:
    """Return the HTTP request that inserts a table."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(table)
    body = sink.getvalue()
    key = f"Idempotency-Key: {uuid4()}\r\n" if keyed else ""
    head = (
        f"POST /v1/table/ml$t/insert?mode=append HTTP/1.1\r\nHost: 127.0.0.1\r\n{key}"
        f"Content-Type: application/vnd.apache.arrow.stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def through_server(
    name: str, store: str | None, clients: int, proxy: Proxy, endpoint: str, args: Any, *, keyed: bool = False
) -> float:
    options = s3_options(proxy.url)
    root = f"s3://{bucket(endpoint)}/lake"
    catalog = lancekeep.connect(root, commit_store=store, storage_options=options)
    catalog.create_namespace("ml")
    catalog.write("ml.t", rows_of(-1, 0, 1))
    catalog.write("ml.t", pa.table({"client": [DELETED] * 10_000, "number": range(10_000)}, SCHEMA), "append")
    with ExitStack() as stack:
        keys = None
        if args.servers > 1 and not args.unlinked:
            keys = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [
            stack.enter_context(served(root, store, options, max(64, clients), args.workers, keys))
            for _ in range(args.servers)
        ]
        host, port = servers[0]
        process, other = (stack.enter_context(ProcessPoolExecutor(1, SPAWN)) for _ in range(2))
        warming = 5.0 if len(servers) > 1 else 0.0  # they find out that they share the table
        process.submit(drive, servers, len(servers), warming, args.rows, -100, keyed).result()
        beside, also = None, None
        if args.beside == "server":
            second = stack.enter_context(served(root, store, options, max(64, clients), args.workers))
            other.submit(drive, [second], 1, 0.0, args.rows, -2, keyed).result()
            also = other.submit(drive, [second], clients, args.seconds, args.rows, clients, keyed)
        elif args.beside:
            other.submit(change, args.beside, 0.0, root, store, options, f"http://{host}:{port}").result()
            beside = other.submit(change, args.beside, args.seconds, root, store, options, f"http://{host}:{port}")
        proxy.requests.clear()
        done = process.submit(drive, servers, clients, args.seconds, args.rows, 0, keyed)
        latencies, acknowledged, took = done.result()
        counted = Counter(proxy.requests)
        if also is not None:
            others, rest, seconds = also.result()
            acknowledged += rest
    fragments = check(catalog.open("ml.t").uri, s3_options(endpoint), acknowledged, args.rows)
    kind = "server" if args.workers == 1 else f"{args.workers} workers"
    if args.servers > 1:
        kind = f"{args.servers} {'unlinked' if args.unlinked else 'linked'} servers of {args.workers}"
    kind = f"{kind}, keys" if keyed else kind
    rate = report(f"{name}, {kind}", clients, latencies, took, counted, fragments)
    if also is not None:
        report(f"{name}, second {kind}", clients, others, seconds, Counter(), fragments)
    if beside is not None:
        changes, lost = beside.result()
        report(f"{name}, {args.beside} beside, {lost} lost", 1, changes, args.seconds, Counter(), fragments)
    return rate


def change(
    kind: str, seconds: float, root: str, store: str | None, options: dict[str, str], uri: str
) -> tuple[list[float], int]:
    """Change the table again and again, at least once; return the latencies, and how many changes lost every race."""
    catalog = lancekeep.connect(root, commit_store=store, storage_options=options)
    namespace = lancekeep.DirectoryNamespace(
        root=root,
        vend_input_storage_options="true",
        **({"commit_store": store} if store else {}),
        **{f"storage.{name}": value for name, value in options.items()},
    )

    def compact(number: int) -> None:
        catalog.upkeep.compact("ml.t")

    def compact_native(number: int) -> None:
        catalog.commit_change("ml.t", lambda dataset: (dataset.optimize.compact_files(), dataset)[1])

    def delete(number: int) -> None:
        body = json.dumps({"predicate": f"client = {DELETED} and number = {number}"}).encode()
        request = Request(f"{uri}/v1/table/ml$t/delete", body, {"content-type": "application/json"})
        with urlopen(request) as answer:
            assert answer.status == 200

    def update(number: int) -> None:
        fields = {"updates": [["number", "number + 1000000"]], "predicate": f"client = {DELETED} and number = {number}"}
        request = Request(
            f"{uri}/v1/table/ml$t/update", json.dumps(fields).encode(), {"content-type": "application/json"}
        )
        with urlopen(request) as answer:
            assert answer.status == 200

    def native(number: int) -> None:
        lance.write_dataset(rows_of(-3, number, 1), namespace_client=namespace, table_id=["ml", "t"], mode="append")

    act = {"compact": compact, "compact-native": compact_native, "delete": delete, "update": update, "native": native}[
        kind
    ]
    latencies, lost = list[float](), 0
    begin = time.monotonic()
    for number in count(int(begin) % 9_000 if seconds else 0):
        began = time.perf_counter()
        try:
            act(number)
            latencies.append(time.perf_counter() - began)
        except (OSError, lancekeep.LancekeepError) as error:
            print(f"{kind}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            lost += 1
        if time.monotonic() > begin + seconds:
            return latencies, lost
    raise AssertionError("the numbers end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 16, 64, 256])
    parser.add_argument("--native", type=int, nargs="*", default=[1, 8], help="numbers of pylance's own writers")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--latency", type=float, default=60, help="milliseconds added to each request")
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--stores", nargs="*", default=["storage", "conditional-put", "sqlite"])
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--server", action="store_true", help="through `lancekeep serve` instead of threads")
    parser.add_argument("--workers", type=int, default=1, help="processes of each server, with --server")
    parser.add_argument("--servers", type=int, default=1, help="servers of the catalog, with --server")
    parser.add_argument("--unlinked", action="store_true", help="servers that compete for versions, with --servers")
    others = ("compact", "compact-native", "delete", "update", "native", "server")
    parser.add_argument("--beside", choices=others, help="with --server")
    parser.add_argument("--keyed", action="store_true", help="also with a new idempotency key for each append")
    args = parser.parse_args()
    if args.keyed and not args.server:
        parser.error("--keyed needs --server: keys belong to requests")
    if args.workers > 1 and not args.server:
        parser.error("--workers needs --server: only servers have workers")
    if args.servers > 1 and (not args.server or args.beside):
        parser.error("--servers needs --server, and no --beside")
    print("| writers | clients | appends/s | p50 ms | p99 ms | requests/append | fragments | requests |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with ExitStack() as stack:
        endpoint = stack.enter_context(s3_server())
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        proxy = Proxy(endpoint, args.latency / 1000)
        for writers in args.native:
            native(writers, proxy, endpoint, args)
        for store in args.stores:
            for clients in args.clients:
                url = {
                    "storage": None,
                    "conditional-put": "conditional-put://",
                    "sqlite": f"sqlite:///{scratch}/{uuid4().hex}.db",
                    "redis": args.redis,
                }[store]
                if not args.server:
                    in_process(store, url, clients, proxy, endpoint, args)
                    continue
                plain = through_server(store, url, clients, proxy, endpoint, args)
                if args.keyed:
                    keyed = through_server(store, url, clients, proxy, endpoint, args, keyed=True)
                    record("appends", f"{store}: {clients} clients", "keyed to plain", keyed / plain)
                    print(f"| {store}, keyed to plain | {clients} | {keyed / plain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
