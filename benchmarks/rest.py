"""Operations through `lancekeep serve`, beside pylance's `RestAdapter` on a copy of the same directory.

    python benchmarks/rest.py [--tables 10000 100000] [--seconds 1.5] [--clients 8] [--workers 1]
                              [--lakes DIRECTORY] [--disk DIRECTORY]

Each server is a process of its own, and every client keeps one connection. The clients are threads of this process that
send prepared bytes, so most of the time is the server's; the two servers are measured alternately. One client shows the
time of a request, several show requests per second. Neither syncs files, except in the rows that say so. With
``--lakes`` the catalogs are made there once, and copied for each run.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import attrs
import pyarrow as pa
from catalog import NAMESPACE, seed
from lance.namespace import RestAdapter
from results import record

SPAWN = multiprocessing.get_context("spawn")
JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
ROUNDS = 3
CLIENTS = 8


@attrs.frozen
class Request:
    """The path, the body and the type of the body; ``tagged`` sends the entity tag of the last answer at the path."""

    path: str
    body: bytes = b"{}"
    kind: str = JSON
    method: str = "POST"
    tagged: bool = False


class Connection:
    """A keep-alive connection that sends requests and reads responses with a length."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._tags: dict[str, bytes] = {}

    def send(self, request: Request) -> bytes:
        """Return the body of the response. Raises RuntimeError unless it is a success."""
        head = (
            f"{request.method} {request.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {request.kind}\r\n"
            f"content-length: {len(request.body)}\r\n"
        ).encode()
        if request.tagged and request.path in self._tags:
            head += b"if-none-match: " + self._tags[request.path] + b"\r\n"
        self._socket.sendall(head + b"\r\n" + request.body)
        received = self._received
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._receive()
        lines = received[:end].lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if request.tagged:
            self._tags[request.path] = next(line[5:].strip() for line in lines if line.startswith(b"etag:"))
        body = received[end + 4 :]
        while len(body) < length:
            body += self._receive()
        self._received = body[length:]
        if not lines[0].split(b" ")[1].startswith((b"2", b"304")):
            raise RuntimeError(f"{request.path}: {body[:500].decode()}")
        return body[:length]

    def _receive(self) -> bytes:
        part = self._socket.recv(1 << 18)
        if not part:
            raise RuntimeError("the server closed the connection")
        return part

    def close(self) -> None:
        self._socket.close()


# -- servers ----------------------------------------------------------------------------------------------------------


@contextmanager
def own_server(root: Path, *, fsync: bool, workers: int = 1) -> Iterator[int]:
    """`lancekeep serve` with its defaults; its log goes to a file, as it would in production."""
    command = [sys.executable, "-m", "lancekeep", "serve", str(root), "--mode", "v2", "--port", "0"]
    command += ["--workers", str(workers)]
    if not fsync:
        command += ["--storage-option", "fsync=false"]
    with open(f"{root}.log", "wb") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    try:
        first = server.stdout.readline()
        yield int(first.strip().rpartition(":")[2])
    finally:
        server.terminate()
        server.wait()


def _adapt(root: str, port: Any, stop: Any) -> None:
    with RestAdapter("dir", {"root": root, "dir_listing_enabled": "false"}, port=0) as adapter:
        port.put(adapter.port)
        stop.wait()


@contextmanager
def native_server(root: Path) -> Iterator[int]:
    port, stop = SPAWN.Queue(), SPAWN.Event()
    server = SPAWN.Process(target=_adapt, args=(str(root), port, stop))
    server.start()
    try:
        yield port.get(timeout=60)
    finally:
        stop.set()
        server.join()


# -- measuring --------------------------------------------------------------------------------------------------------


def operations(tables: int, clients: int) -> dict[str, Callable[[int], Request]]:
    """The requests of each row, by the number of the request."""
    run = f"{time.time_ns():x}"
    sink = io.BytesIO()
    rows = pa.table({"number": list(range(10))})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data = sink.getvalue()

    page = f"/v1/namespace/{NAMESPACE}/table/list?limit=100&page_token=t"

    def table(name: str, operation: str, body: bytes = b"{}", kind: str = JSON) -> Request:
        return Request(f"/v1/table/{NAMESPACE}$" + f"{name}/{operation}", body, kind)

    return {
        "describe": lambda number: table(f"t{number * 7919 % tables:07d}", "describe"),
        "list 100": lambda number: Request(page + f"{number * 7919 % tables:07d}", b"", method="GET"),
        "declare": lambda number: table(f"d{run}-{number}", "declare"),
        "create, 10 rows": lambda number: table(f"c{run}-{number}", "create", data, ARROW),
        "insert 10 rows": lambda number: table(f"c{run}-{number % clients}", "insert", data, ARROW),
    }


def validated(tables: int) -> dict[str, Callable[[int], Request]]:
    """The requests of each row that pylance's server does not have: GET of 100 paths, and the same with their tags."""

    def describe(number: int) -> Request:
        return Request(f"/lancekeep/v1/table/{NAMESPACE}$t{number % 100 * 7919 % tables:07d}", b"", method="GET")

    def listed(number: int) -> Request:
        after = f"t{number % 100 * 7919 % tables:07d}"
        return Request(f"/v1/namespace/{NAMESPACE}/table/list?limit=100&page_token={after}", b"", method="GET")

    def tagged(act: Callable[[int], Request]) -> Callable[[int], Request]:
        return lambda number: attrs.evolve(act(number), tagged=True)

    return {
        "describe by GET": describe,
        "describe, 304": tagged(describe),
        "list 100 by GET": listed,
        "list 100, 304": tagged(listed),
    }


def run(port: int, request: Callable[[int], Request], clients: int, seconds: float, start: int) -> list[float]:
    """Return the seconds of each request of several clients, who take turns at the numbers from ``start``."""
    together = Barrier(clients)
    samples: list[list[float]] = [[] for _ in range(clients)]

    def client(place: int) -> None:
        connection, number = Connection(port), start + place
        together.wait()
        end = time.perf_counter() + seconds
        while True:
            begin = time.perf_counter()
            connection.send(request(number))
            done = time.perf_counter()
            samples[place].append(done - begin)
            number += clients
            if done >= end:
                break
        connection.close()

    threads = [Thread(target=client, args=(place,)) for place in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for of_client in samples for each in of_client]


def compare(tables: int, lake: Path, scratch: Path, disk: Path, seconds: float, clients: int, workers: int) -> None:
    on = f", {workers} workers" if workers > 1 else ""
    roots = {name: scratch / f"{name}-{tables}" for name in ("native", "ours")}
    roots["durable"] = disk / f"durable-{tables}"
    for root in roots.values():
        shutil.copytree(lake, root)
    with ExitStack() as stack:
        ports = {
            "native": stack.enter_context(native_server(roots["native"])),
            "ours": stack.enter_context(own_server(roots["ours"], fsync=False, workers=workers)),
            "durable": stack.enter_context(own_server(roots["durable"], fsync=True, workers=workers)),
        }
        print(
            f"\n{tables:,} tables{on}: ms p50 / p99 with one client; requests per second and p99 with {clients}",
            flush=True,
        )
        acts = operations(tables, clients)
        for port in ports.values():
            for number in range(clients):
                run(port, acts["create, 10 rows"], 1, 0, number)
        begun = dict.fromkeys(ports, clients)
        for name, act in acts.items():
            sides = ["native", "ours", *(["durable"] if name not in ("describe", "list 100") else [])]
            alone: dict[str, list[float]] = {side: [] for side in sides}
            rates: dict[str, list[float]] = {side: [] for side in sides}
            together: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(ROUNDS):
                for side in sides:
                    os.sync()
                    done = run(ports[side], act, 1, seconds / ROUNDS, begun[side])
                    alone[side] += done
                    begun[side] += len(done)
                    begin = time.perf_counter()
                    done = run(ports[side], act, clients, seconds / ROUNDS, begun[side])
                    rates[side].append(len(done) / (time.perf_counter() - begin))
                    together[side] += done
                    begun[side] += clients * (len(done) + 1)
            for side in sides:
                times = sorted(alone[side])
                p50, p99 = statistics.median(times) * 1e3, times[int(len(times) * 0.99)] * 1e3
                late = sorted(together[side])[int(len(together[side]) * 0.99)] * 1e3
                rate = statistics.median(rates[side])
                ratio = statistics.median(alone["native"]) * 1e3 / p50
                gain = rate / statistics.median(rates["native"])
                print(
                    f"  {name:16} {side:8} {p50:9.2f} / {p99:9.2f}  {ratio:6.1f}x    {rate:9.0f} /s  {gain:6.1f}x "
                    f"{late:9.2f}",
                    flush=True,
                )
                if side != "native":
                    what = f"{tables:,} tables{on}: {name}{', with fsync' if side == 'durable' else ''}"
                    peers = statistics.median(alone["native"]) * 1e3, statistics.median(rates["native"])
                    record("rest", f"{what}, one client", "ms", p50, peers[0], "pylance's server")
                    record("rest", f"{what}, {clients} clients", "per second", rate, peers[1], "pylance's server")

        for name, act in validated(tables).items():
            times = sorted(run(ports["ours"], act, 1, seconds, 0))
            p50, p99 = statistics.median(times) * 1e3, times[int(len(times) * 0.99)] * 1e3
            begin = time.perf_counter()
            done = run(ports["ours"], act, clients, seconds, 0)
            rate = len(done) / (time.perf_counter() - begin)
            print(f"  {name:16} {'ours':8} {p50:9.2f} / {p99:9.2f}             {rate:9.0f} /s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--seconds", type=float, default=1.5, help="per row and number of clients")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--workers", type=int, default=1, help="processes of `lancekeep serve`")
    parser.add_argument("--lakes", type=Path, help="where seeded catalogs are kept")
    parser.add_argument("--disk", type=Path, help="where the catalog is that syncs; left out, beside the others")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory(dir=arguments.disk) as durable:
        scratch = Path(directory)
        lakes = arguments.lakes or scratch / "lakes"
        for tables in arguments.tables:
            lake = lakes / f"lake-{tables}"
            if not lake.exists():
                seed({"root": str(lake), "dir_listing_enabled": "false", "storage.fsync": "false"}, tables)
            compare(tables, lake, scratch, Path(durable), arguments.seconds, arguments.clients, arguments.workers)


if __name__ == "__main__":
    main()
