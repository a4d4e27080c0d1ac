"""Clients of a server that is restarted, killed, and whose replies are lost.

Nothing is lost, doubled or misreported.

``LANCEKEEP_SERVER_MINUTES`` sets the duration; `make soak` runs ten minutes. Without it, the clients stop after a
number of acknowledged rows.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread

import lance_namespace as api
import pyarrow as pa
import pytest
from lance_namespace.errors import LanceNamespaceError
from losing_proxy import LosingProxy

import lancekeep

pytestmark = pytest.mark.slow

MINUTES = float(os.environ.get("LANCEKEEP_SERVER_MINUTES", "0"))
LOSSES = 20
"""The replies to changes that are lost between two stops."""

ROUNDS = 20
"""The acknowledged rows between two stops, unless the duration is set."""

CLIENTS = 8
STOPS = (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)
TABLE = ["soak", "t"]
LOG_END = 1 << 14
"""The bytes of the server's log that a failure prints."""


class ServedLake:
    """A server process on one port, over one catalog, that can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.root, self.store = str(directory / "lake"), f"sqlite://{directory}/commits.db"
        self._log = directory / "server.log"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "lancekeep", "serve", self.root, "--commit-store", self.store]
        command += ["--storage-option", "fsync=false", "--port", str(self.port)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait()

    def end_of_log(self) -> str:
        """Return the last lines that any of the processes logged."""
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_END))
            return log.read().decode(errors="replace")


class Client:
    """One client, and what the server has acknowledged to it."""

    def __init__(self, uri: str, number: int) -> None:
        self.number = number
        self.namespace = lancekeep.RestNamespace(uri=uri, retry_seconds="120")
        self.catalog = lancekeep.connect(impl="rest", uri=uri, properties={"rest.retry_seconds": "120"})
        self.rows: list[int] = []
        self.tables: list[str] = []
        self.errors: list[str] = []
        self._next = 0

    def run(self, stop: Event) -> None:
        while not stop.is_set():
            for act in (self.insert, self.commit, self.declare, self.rename, self.drop):
                try:
                    act()
                except lancekeep.ConcurrentModification:
                    continue  # definite: the client writes the next row
                except (LanceNamespaceError, lancekeep.LancekeepError, OSError) as error:
                    self.errors.append(f"{act.__name__}: {type(error).__name__}: {error}")

    def insert(self) -> None:
        """Let the server append a row."""
        row = self._row()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, row.schema) as writer:
            writer.write_table(row)
        self.namespace.insert_into_table(
            api.InsertIntoTableRequest(id=TABLE, mode="append"), sink.getvalue().to_pybytes()
        )
        self.rows.append(row["id"][0].as_py())

    def commit(self) -> None:
        """Append a row natively, and commit through the server."""
        row = self._row()
        self.catalog.write(".".join(TABLE), row, "append")
        self.rows.append(row["id"][0].as_py())

    def declare(self) -> None:
        name = f"c{self.number}_{self._next}"
        self.catalog.declare_table(f"soak.{name}")
        self.tables.append(name)

    def rename(self) -> None:
        """Rename the newest table, which was renamed before if the last declaration was refused."""
        if not self.tables:
            return
        renamed = f"r{self.number}_{self._next}"
        if renamed != self.tables[-1]:
            self.catalog.rename_table(f"soak.{self.tables[-1]}", f"soak.{renamed}")
            self.tables[-1] = renamed

    def drop(self) -> None:
        if len(self.tables) > 3:
            self.catalog.drop_table(f"soak.{self.tables[0]}")
            del self.tables[0]

    def _row(self) -> pa.Table:
        self._next += 1
        return pa.table({"id": pa.array([self.number * 1_000_000 + self._next], pa.int64())})


def work(clients: list[Client]) -> None:
    """Wait until the clients have done their share of the work before the next stop."""
    begin, rows = time.monotonic(), sum(len(client.rows) for client in clients)

    def is_done() -> bool:
        if MINUTES:
            return time.monotonic() - begin > MINUTES * 60 / (len(STOPS) + 1)
        return sum(len(client.rows) for client in clients) >= rows + ROUNDS

    while not is_done() and not any(client.errors for client in clients):
        time.sleep(0.05)


def test_clients_of_a_server_that_restarts_lose_and_double_nothing(tmp_path: Path) -> None:
    lake = ServedLake(tmp_path)
    proxy = LosingProxy("127.0.0.1", lake.port, b"idempotency-key: ")
    try:
        first = lancekeep.connect(impl="rest", uri=lake.uri, properties={"rest.retry_seconds": "60"})
        first.create_namespace("soak")
        first.write("soak.t", pa.table({"id": pa.array([], pa.int64())}))
        clients = [Client(f"http://127.0.0.1:{proxy.port}", number) for number in range(CLIENTS)]
        stop = Event()
        threads = [Thread(target=client.run, args=(stop,)) for client in clients]
        for thread in threads:
            thread.start()
        for how in STOPS:
            proxy.losses += LOSSES
            work(clients)
            lake.stop(how)
            lake.start()
        work(clients)
        stop.set()
        for thread in threads:
            thread.join()
    finally:
        lake.stop(signal.SIGTERM)
        proxy.close()
    assert proxy.lost
    with lancekeep.connect(lake.root, commit_store=lake.store) as catalog:
        stored = Counter(catalog.open("soak.t").to_table()["id"].to_pylist())
        tables = set(catalog.list_tables("soak")) - {"t"}
    acknowledged = Counter(row for client in clients for row in client.rows)
    errors = [error for client in clients for error in client.errors]
    assert errors == [], f"{errors}; the server's log ends with:\n{lake.end_of_log()}"
    assert stored == acknowledged
    assert tables == set().union(*(client.tables for client in clients))
    assert acknowledged
