"""`lancekeep serve --workers`: processes behind one socket, which are killed, replaced and stopped."""

from __future__ import annotations

import gc
import io
import itertools
import os
import pty
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid5

import httpx
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from contracts.test_commit_stores import self_signed
from served_processes import ServedProcess, workers_of

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.domain.commit import Committed, Conflict
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest import workers
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.listening import listen, url_of
from lancekeep.entrypoints.rest.server import Server
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.entrypoints.rest.task import Task
from lancekeep.entrypoints.rest.workers import Supervisor

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
METRIC = re.compile(r"^(lancekeep_\w+)(?:\{(.*)\})? (.*)$", re.MULTILINE)


FAULTS = {"worker does not start", "reload failed; the other workers go on", "Exception in ASGI application\n"}


class Running(ServedProcess):
    """A server with two workers."""

    def __init__(self, process: subprocess.Popen[str], uri: str) -> None:
        super().__init__(process, FAULTS)
        self.uri = uri

    def await_end(self) -> None:
        """Wait until the supervisor and the workers have ended."""
        self.process.wait(60)
        self.reader.join(60)  # the workers hold the pipe
        assert not self.reader.is_alive()

    def metrics(self, client: httpx.Client) -> dict[tuple[str, str | None], float]:
        found = client.get(f"{self.uri}/metrics").text
        return {(name, labels or None): float(value) for name, labels, value in METRIC.findall(found)}


@contextmanager
def serve(tmp_path: Path, *arguments: str, sqlite: bool = True, **settings: str) -> Iterator[Running]:
    line = [sys.executable, "-m", "lancekeep", "serve", f"{tmp_path}/lake", "--port", "0", "--workers", "2"]
    line += ["--commit-store", f"sqlite://{tmp_path}/commits.db"] if sqlite else []
    line += ["--storage-option", "fsync=false", *arguments]
    environment = {**os.environ, **{f"LANCEKEEP_SERVER__{name.upper()}": value for name, value in settings.items()}}
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert " with 2 workers at " in first, first
            yield Running(process, first.split()[-1])
        finally:
            process.kill()  # which ends the workers


def rows(*numbers: int) -> bytes:
    table = pa.table({"number": pa.array(numbers, pa.int64())})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def once(client: httpx.Client, url: str, number: int, body: bytes) -> dict[str, Any]:
    """Write once, however often the connection breaks, and return the answer."""
    headers = {**ARROW, "idempotency-key": str(uuid5(NAMESPACE_URL, str(number)))}
    while True:
        try:
            answer = client.post(url, content=body, headers=headers)
        except httpx.TransportError:
            continue
        if answer.status_code != 503:
            answer.raise_for_status()
            found: dict[str, Any] = answer.json()
            return found


def insert(client: httpx.Client, uri: str, number: int) -> None:
    once(client, f"{uri}/v1/table/t/insert", number, rows(number))


@contextmanager
def uploading(
    server: Running, client: httpx.Client, trusted: ssl.SSLContext | None = None, key: str = ""
) -> Iterator[None]:
    """Hold the upload of a client that stalls."""
    address = urlsplit(server.uri)
    with ExitStack() as stack:
        upload = stack.enter_context(socket.create_connection((address.hostname, address.port)))
        if trusted is not None:
            upload = stack.enter_context(trusted.wrap_socket(upload, server_hostname=address.hostname))
        head = f"POST /v1/table/u/create HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-length: 100000\r\n"
        upload.sendall(f"{head}content-type: {ARROW['content-type']}\r\n\r\n".encode() + rows(1))
        while server.metrics(client)["lancekeep_requests_in_progress", None] < 1:
            pass
        yield


def test_connections_wait_in_one_queue_until_a_worker_is_free(tmp_path: Path) -> None:
    with serve(tmp_path) as server, ExitStack() as stack:
        pids = [server.await_event("worker started")["pid"] for _ in range(2)]
        address = urlsplit(server.uri)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        place = address.hostname, address.port
        waiting = [stack.enter_context(socket.create_connection(place, timeout=30)) for _ in range(200)]
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        for connection in waiting:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert {connection.recv(12) for connection in waiting} == {b"HTTP/1.1 200"}


@pytest.mark.slow
def test_supervisor_that_is_stopped_costs_the_metrics_alone(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            answer = httpx.get(f"{server.uri}/metrics", timeout=60)
            assert (answer.status_code, "supervisor" in answer.json()["error"]) == (503, True)
            assert httpx.get(f"{server.uri}/v1/namespace/$/table/list", timeout=60).status_code == 200
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        assert httpx.get(f"{server.uri}/metrics", timeout=60).status_code == 200
        server.process.send_signal(signal.SIGHUP)
        server.await_event("reloaded")  # no error came before it


@pytest.mark.slow
def test_worker_whose_event_loop_is_silent_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor of this process, which has less patience than that of ``lancekeep serve``."""
    monkeypatch.setattr(workers, "SILENCE", 8)
    root, commits = f"{tmp_path}/lake", f"sqlite://{tmp_path}/commits.db"
    task = Task.configured(ServerSettings(shutdown_seconds=5), {"root": root, "commit_store": commits})
    logged: list[str] = []
    log = SimpleNamespace(**dict.fromkeys(("info", "error"), lambda event, **_: logged.append(event)))
    with listen("127.0.0.1", 0) as listener, ThreadPoolExecutor(1) as thread:
        uri, others = url_of(listener), {*workers_of(os.getpid())}

        def play() -> str:
            try:
                Event().wait(10)  # a worker that waits for requests is not silent
                [worker] = {*workers_of(os.getpid())} - others
                os.kill(worker, signal.SIGSTOP)
                assert httpx.get(f"{uri}/healthz", timeout=100).status_code == 200  # by the next worker
                return httpx.get(f"{uri}/metrics", timeout=100).text
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        played: list[Future[str]] = []
        Supervisor(task.of_worker, 1, listener, 5, log, 60).run(lambda served: played.append(thread.submit(play)))
        assert "lancekeep_worker_silences_total 1.0" in played[0].result()
    assert logged == ["worker silent", "worker silent; killed", "worker ended", "worker started"]


@pytest.mark.slow
def test_kills_and_reloads_lose_no_row(tmp_path: Path) -> None:
    certificate, private_key = self_signed(tmp_path)
    keys = tmp_path / "keys.json"
    _, key = KeyFile(keys).create("ada")
    options = ("--keys", str(keys), "--certificate", certificate, "--private-key", private_key)
    trusted, headers = ssl.create_default_context(cafile=certificate), {"x-api-key": key}
    with (
        serve(tmp_path, *options, shutdown_seconds="1") as server,
        httpx.Client(verify=trusted, headers=headers, timeout=60) as client,
        httpx.Client(verify=trusted, headers=headers, timeout=60) as other,
    ):
        client.post(f"{server.uri}/v1/table/t/create", content=rows(), headers=ARROW).raise_for_status()
        pids = [server.await_event("worker started")["pid"] for _ in range(2)]
        created = "lancekeep_requests_total", 'operation="CreateTable",status="200"'
        before = server.metrics(client)
        assert (before[created], before["lancekeep_workers", None]) == (1, 2)
        done = Event()

        def appended(first: int) -> list[int]:
            numbers = []
            for number in range(first, first + 100_000):
                insert(other, server.uri, number)
                numbers.append(number)
                if done.is_set():
                    break
            return numbers

        with ThreadPoolExecutor(2) as threads:
            writers = [threads.submit(appended, first) for first in (0, 100_000)]
            try:
                os.kill(pids[0], signal.SIGKILL)
                assert server.await_event("worker ended")["pid"] == pids[0]
                assert server.await_event("worker started")["number"] == 0
                server.process.send_signal(signal.SIGHUP)
                assert [server.await_event("worker started")["number"] for _ in range(2)] == [0, 1]
                assert server.await_event("reloaded")["workers"] == 2
            except BaseException:
                server.process.kill()
                other.close()  # ends the writers, which otherwise try for ever
                raise
            finally:
                done.set()
            inserted = [number for each in writers for number in each.result()]
        insert(client, server.uri, 200_000)
        after = server.metrics(client)
        assert (after[created], after["lancekeep_workers", None]) == (1, 2)
        assert after["lancekeep_worker_restarts_total", None] == 1
        assert after["lancekeep_requests_total", 'operation="InsertIntoTable",status="200"'] > 0
        with uploading(server, client, trusted, key):
            keys.write_text("no keys")
            server.process.send_signal(signal.SIGHUP)
            assert "keys.json" in server.await_event("reload failed; the other workers go on")["error"]
            assert client.get(f"{server.uri}/readyz").status_code == 200
            server.process.send_signal(signal.SIGTERM)
            server.await_end()
        assert server.process.returncode == 0
    catalog = lancekeep.connect(f"{tmp_path}/lake", commit_store=f"sqlite://{tmp_path}/commits.db")
    assert sorted(catalog.open("t").to_table()["number"].to_pylist()) == sorted([*inserted, 200_000])


LOCK = re.compile(r"/lancekeep-committers-[^/]+/[0-9a-f]{32}$")


def is_lock(file: Path) -> bool:
    """Return whether an open file of a process is the lock of a table, and the process holds it."""
    return bool(LOCK.search(os.readlink(file))) and "FLOCK" in (file.parents[1] / "fdinfo" / file.name).read_text()


def committer_of(pids: Iterable[int]) -> int:
    """Return the worker that holds the lock of the table, once one of them does."""
    while True:
        for pid in pids:
            with suppress(OSError):
                if any(map(is_lock, Path(f"/proc/{pid}/fd").iterdir())):
                    return pid
        Event().wait(0.001)


class Writes:
    """Writes of clients, each in a connection of its own, and what became of them.

    Attributes:
        done: The numbers that were acknowledged.
        refused: The numbers of which nothing was written.
        unknown: The tokens of writes whose outcome is unknown.
        open: The numbers of writes of which nothing is known.
    """

    def __init__(self, uri: str, operation: str) -> None:
        self.uri = uri
        self.client = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
        self.done: list[int] = []
        self.refused: list[int] = []
        self.unknown: dict[int, str] = {}
        self.open: list[int] = []
        self._operation = operation
        self._ended = Event()

    def numbers(self, first: int) -> Iterator[int]:
        """Yield numbers until the end."""
        return itertools.takewhile(lambda _: not self._ended.is_set(), itertools.count(first))

    def write(self, number: int, body: bytes) -> dict[str, Any] | None:
        """Write once; return the answer, or None without success."""
        try:
            answer = self.client.post(f"{self.uri}/v1/table/t/{self._operation}", content=body, headers=ARROW)
        except httpx.TransportError:  # its worker was killed
            self.open.append(number)
            return None
        found: dict[str, Any] = answer.json()
        if answer.status_code == 200:
            return found
        if "resolve_token" in found.get("context", {}):
            self.unknown[number] = found["context"]["resolve_token"]
        elif answer.status_code == 503:
            self.open.append(number)
        else:
            assert answer.status_code == 409, answer.text
            self.refused.append(number)
        return None

    def go_on(self, running: Sequence[Future[None]]) -> None:
        """Wait for some more writes of running writers."""
        enough = len(self.done) + 20
        while len(self.done) < enough:
            for each in running:
                if each.done():
                    each.result()
            Event().wait(0.001)

    def end(self) -> None:
        self._ended.set()

    def settle(self, catalog: lancekeep.Catalog) -> None:
        """Find out what became of the writes whose outcome is unknown."""
        for number, token in self.unknown.items():
            outcome = catalog.resolve(token)
            place = {Committed: self.done, Conflict: self.refused}.get(type(outcome), self.open)
            place.append(number)


class Inserts(Writes):
    """Inserts of one row each."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "insert")

    def run(self, first: int) -> None:
        for number in self.numbers(first):
            if self.write(number, rows(number)) is not None:
                self.done.append(number)

    def run_keyed(self, first: int) -> None:
        for number in self.numbers(first):
            insert(self.client, self.uri, number)
            self.done.append(number)


class Upserts(Writes):
    """Upserts of a new row, and of the client's own row, which the table has."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "merge_insert?on=id&when_matched_update_all=true&when_not_matched_insert_all=true")

    def run(self, first: int) -> None:
        for number in self.numbers(first + 1):
            answer = self.write(number, people([first, number], number))
            if answer is not None:
                counts = answer["num_inserted_rows"], answer["num_updated_rows"], answer["num_deleted_rows"]
                assert counts == (1, 1, 0)
                self.done.append(number)

    def run_keyed(self, first: int) -> None:
        for number in self.numbers(first + 1):
            url = f"{self.uri}/v1/table/t/{self._operation}"
            answer = once(self.client, url, number, people([first, number], number))
            if "num_inserted_rows" in answer:  # a log does not say what a killed attempt has counted
                assert (answer["num_inserted_rows"], answer["num_updated_rows"]) == (1, 1)
            self.done.append(number)


def people(ids: Sequence[int], by: int) -> bytes:
    table = pa.table({"id": pa.array(ids, pa.int64()), "by": pa.array([by] * len(ids), pa.int64())})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def stop_and_kill_committers(
    server: Running, writes: Writes, writers: Sequence[partial[None]], replacements: int
) -> None:
    """Let writers run, stop and kill the committer of their table, and replace it several times."""
    pids = {event["number"]: event["pid"] for event in (server.await_event("worker started") for _ in range(2))}
    with ThreadPoolExecutor(len(writers)) as threads:
        running = [threads.submit(writer) for writer in writers]
        try:
            for left in range(replacements, -1, -1):
                writes.go_on(running)
                committer = committer_of(pids.values())
                os.kill(committer, signal.SIGSTOP)
                try:
                    writes.go_on(running)  # by the other worker
                finally:
                    os.kill(committer, signal.SIGCONT)
                writes.go_on(running)
                committer = committer_of(pids.values())
                os.kill(committer, signal.SIGKILL)
                writes.go_on(running)
                for _ in range(3 if left else 0):
                    started = server.await_event("worker started")
                    if pids.get(started["number"]) == committer:
                        server.process.send_signal(signal.SIGHUP)
                    pids[started["number"]] = started["pid"]
                writes.go_on(running)
        except BaseException:
            server.process.kill()
            raise
        finally:
            writes.end()
        for each in running:
            each.result()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="committers are shared on Linux only")
@pytest.mark.parametrize("replacements", [0, 10])
def test_committer_that_is_stopped_and_killed_loses_and_doubles_no_row(tmp_path: Path, replacements: int) -> None:
    # A process that is stopped within a transaction of SQLite stops all others.
    with (
        serve(tmp_path, "--maintenance", "off", sqlite=False, shutdown_seconds="5") as server,
        httpx.Client(timeout=60) as client,
    ):
        client.post(f"{server.uri}/v1/table/t/create", content=rows(-1), headers=ARROW).raise_for_status()
        inserts = Inserts(server.uri)
        writers = [partial(inserts.run, first) for first in range(0, 600_000, 100_000)]
        writers += [partial(inserts.run_keyed, first) for first in (600_000, 700_000)]
        stop_and_kill_committers(server, inserts, writers, replacements)
    catalog = lancekeep.connect(f"{tmp_path}/lake")
    inserts.settle(catalog)
    found = Counter(lance.dataset(catalog.open("t").uri).to_table()["number"].to_pylist())
    assert found == found & Counter([-1, *inserts.done, *inserts.open])
    assert found & Counter(inserts.done) == Counter(inserts.done)
    assert not found.keys() & set(inserts.refused)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="committers are shared on Linux only")
def test_committer_that_is_stopped_and_killed_loses_and_doubles_no_upsert(tmp_path: Path) -> None:
    firsts = range(0, 800_000, 100_000)
    with (
        serve(tmp_path, "--maintenance", "off", sqlite=False, shutdown_seconds="5") as server,
        httpx.Client(timeout=60) as client,
    ):
        created = client.post(f"{server.uri}/v1/table/t/create", content=people(firsts, -1), headers=ARROW)
        created.raise_for_status()
        upserts = Upserts(server.uri)
        writers = [partial(upserts.run, first) for first in firsts[:5]]
        writers += [partial(upserts.run_keyed, first) for first in firsts[5:]]
        stop_and_kill_committers(server, upserts, writers, 4)
    catalog = lancekeep.connect(f"{tmp_path}/lake")
    upserts.settle(catalog)
    table = lance.dataset(catalog.open("t").uri).to_table().to_pydict()
    found = dict(zip(table["id"], table["by"], strict=True))
    assert len(found) == len(table["id"]), "a key is there twice"
    assert found.keys() >= {*firsts, *upserts.done}
    assert found.keys() <= {*firsts, *upserts.done, *upserts.open}
    assert all(found[number] == number for number in found.keys() - set(firsts))
    for first in firsts:  # what is open may take effect later
        own = range(first + 1, first + 100_000)
        last = max(number for number in upserts.done if number in own)
        assert found[first] in {last, *(number for number in upserts.open if number in own)}


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    with serve(tmp_path, shutdown_seconds="1") as server, httpx.Client(timeout=60) as client, uploading(server, client):
        server.process.kill()
        server.await_end()


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # the child runs another program at once
def test_server_stops_if_its_terminal_is_closed(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "lancekeep", "serve", f"{tmp_path}/lake", "--port", "0", "--log-level", "error"]
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, line)
    shown = b""
    while b"Page: " not in shown:  # the last line
        shown += os.read(terminal, 1 << 10)
    [worker] = workers_of(pid)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not Path(f"/proc/{worker}").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{0}/lake --commit-store memory://", "memory:// is in the memory of one process"),
        ("{0}/lake --keys {0}/none.json", "none.json"),
    ],
)
def test_what_workers_cannot_serve_is_refused(tmp_path: Path, arguments: str, message: str) -> None:
    line = ["serve", *arguments.format(tmp_path).split(), "--port", "0", "--workers", "2"]
    done = CliRunner().invoke(command, line, obj=lancekeep)
    assert done.exit_code != 0
    assert message in done.output


def test_signal_before_the_server_takes_connections_stops_it() -> None:
    class Early(Server):
        def run(self, sockets: list[socket.socket] | None = None) -> None:
            signal.raise_signal(signal.SIGTERM)
            super().run(sockets)

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    catalog = lancekeep.connect("memory://")
    try:
        Early(create_app(CatalogNamespace(catalog)), ServerSettings(port=0)).serve_on(lambda url: None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)
