"""Calls of the engine that never end: a data file of a table is a pipe to which no process writes."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest
from served_processes import ServedProcess, workers_of

from lancekeep.adapters.authentication.api_keys import KeyFile

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
UPSERT = "merge_insert?on=id&when_matched_update_all=true&when_not_matched_insert_all=true"


class Site(ServedProcess):
    """A server with the tables ``t`` and ``stalled``.

    Attributes:
        file: The data file of ``stalled``.
        url: The URL of its tables, up to their names.
    """

    def __init__(self, place: Path, process: subprocess.Popen[str], uri: str, prefix: str) -> None:
        super().__init__(process)
        self.uri = uri
        self.url = f"{uri}{prefix}/v1/table"
        self.keys = KeyFile(place / "keys.json")
        self._headers: dict[str, dict[str, str]] = {}
        for table in ("t", "stalled"):
            self.send("good", f"{table}/create", content=stream([1]), headers=ARROW).raise_for_status()
        [self.file] = (place / "lake").glob("*stalled*/data/*.lance")

    def headers(self, caller: str) -> dict[str, str]:
        if caller not in self._headers:
            self._headers[caller] = {"x-api-key": self.keys.create(caller)[1]}
        return self._headers[caller]

    def send(self, caller: str, path: str, headers: dict[str, str] | None = None, **arguments: Any) -> httpx.Response:
        timeout = arguments.pop("timeout", 120)
        headers = {**self.headers(caller), **(headers or {})}
        return httpx.post(f"{self.url}/{path}", headers=headers, timeout=timeout, **arguments)

    def hang(self, caller: str, patience: float) -> int:
        """Query the stalled table; return the status, or 0 if the client leaves before the answer."""
        query = {"k": 1, "vector": {}}
        limit = {"x-request-timeout": "1"} if patience > 1 else {}
        try:
            return self.send(caller, "stalled/query", limit, json=query, timeout=patience).status_code
        except httpx.TimeoutException:
            return 0

    def describe(self) -> float:
        """Let the well-behaved caller describe a table, again after 503; return the seconds it took."""
        start = time.perf_counter()
        while (answer := self.send("good", "t/describe")).status_code == 503:
            assert "retry-after" in answer.headers
        assert answer.status_code == 200, answer.text
        return time.perf_counter() - start

    def describe_until(self, done: Event) -> list[float]:
        """Describe a table again and again; return the seconds of each."""
        took = []
        while not done.wait(0.05):
            took.append(self.describe())
        return took

    def abandoned(self) -> int:
        """Return the abandoned operations of the worker that answers."""
        found: int = httpx.get(f"{self.uri}/readyz", timeout=60).json()["threads"]["abandoned"]
        return found

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.uri}/metrics", timeout=60).text.splitlines()
        [value] = (line.split()[-1] for line in lines if line.startswith((f"{name} ", f"{name}{{")))
        return float(value)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let all reads of the data file hang."""
        content = self.file.read_bytes()
        self.file.unlink()
        os.mkfifo(self.file)
        try:
            yield
        finally:
            self.file.unlink()
            self.file.write_bytes(content)


def stream(ids: Sequence[int]) -> bytes:
    sink, table = io.BytesIO(), pa.table({"id": pa.array(ids, pa.int64())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@contextmanager
def serving(place: Path, *, threads: int, prefix: str = "", **settings: str) -> Iterator[Site]:
    KeyFile(place / "keys.json").create("operator")
    section = prefix.removeprefix("/").replace("/", ".")
    (place / "lancekeep.toml").write_text(
        (f"[{section}]\n" if section else "")
        + f"root = '{place}/lake'\ncommit_store = 'conditional-put://'\nstorage_options = {{fsync = 'false'}}\n"
        + f"[server]\nport = 0\nkeys = '{place}/keys.json'\nthreads = {threads}\nlog_format = 'json'\n"
        + "".join(f"{name} = {value}\n" for name, value in settings.items())
    )
    line = [sys.executable, "-m", "lancekeep", "serve", "--config", str(place / "lancekeep.toml")]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while (event := json.loads(process.stderr.readline()))["event"] != "serving":
                pass
            site = Site(place, process, event["url"], prefix)
            yield site
        finally:
            process.kill()
        site.reader.join(60)  # the worker has the pipe


class Upload:
    """An insert of a well-behaved caller, whose body arrives after ``go``."""

    def __init__(self, site: Site, pool: ThreadPoolExecutor) -> None:
        self.go = Event()
        in_progress = site.metric("lancekeep_requests_in_progress")
        self._sent = pool.submit(site.send, "good", "t/insert", content=self._body(), headers=ARROW)
        while site.metric("lancekeep_requests_in_progress") <= in_progress:
            Event().wait(0.01)

    def _body(self) -> Iterator[bytes]:
        body = stream([2])
        yield body[:100]
        self.go.wait(120)
        yield body[100:]

    def end(self) -> httpx.Response:
        self.go.set()
        return self._sent.result()


@pytest.mark.slow
def test_no_number_of_calls_that_hang_ends_the_service(tmp_path: Path) -> None:
    settings = {"shutdown_seconds": "1", "header_seconds": "100"}
    with serving(tmp_path, threads=4, **settings) as site, ThreadPoolExecutor(40) as pool, site.stalled():
        done = Event()
        took = pool.submit(site.describe_until, done)
        long, longer = Upload(site, pool), Upload(site, pool)

        def hang(*callers: str, patience: float = 60) -> set[int]:
            return {each.result() for each in [pool.submit(site.hang, caller, patience) for caller in callers * 4]}

        assert hang("bad", patience=1) == {0}  # clients that leave
        first = site.await_event("worker held; replaced")["pid"]
        time.sleep(3)
        assert long.end().status_code == 200, "requests of others take longer than a shutdown"
        assert hang("bad") == {504}
        while site.abandoned() < 3:
            time.sleep(0.1)
        time.sleep(3)  # a single principal holds its own share, and does not end the requests of others
        assert site.metric("lancekeep_worker_replacements_total") == 1
        hang("worse", "worst")
        site.await_event("worker held; replaced")
        with pytest.raises(httpx.RemoteProtocolError):
            longer.end()
        assert first not in workers_of(site.process.pid)
        done.set()
        times = sorted(took.result())
        print(f"describe took at most {times[-1]:.2f} s, half of them {times[len(times) // 2]:.4f} s")
        assert times[-1] < 30
        assert (hang("bad"), site.describe() < 30) == ({504}, True)


def test_change_that_ended_with_its_process_is_settled_by_its_key(tmp_path: Path) -> None:
    change = {**ARROW, "idempotency-key": str(uuid4())}
    # One of several catalogs; the other tests have a server of one.
    with serving(tmp_path, threads=1, prefix="/catalogs/lab", shutdown_seconds="1") as site:
        with site.stalled():  # the upsert reads the keys of the table
            asked = site.send("good", f"stalled/{UPSERT}", {**change, "x-request-timeout": "1"}, content=stream([1, 2]))
            assert asked.status_code == 504
            assert "repeat the request with the same Idempotency-Key" in asked.json()["error"]
            assert site.describe() < 30  # by the spare thread
            replaced = site.await_event("worker held; replaced")["pid"]
            while Path(f"/proc/{replaced}").exists():
                time.sleep(0.05)
        asked = site.send("good", f"stalled/{UPSERT}", change, content=stream([1, 2]))
        assert asked.status_code == 200, asked.text
        assert site.send("good", "stalled/count_rows", json={}).json() == 2


def test_held_worker_serves_on_while_its_successor_cannot_start(tmp_path: Path) -> None:
    with serving(tmp_path, threads=2) as site, site.stalled():
        headers, secrets = site.headers("good"), site.keys.path.read_text()
        site.keys.path.write_text("no keys")
        try:
            assert site.hang("good", 60) == 504
            assert "keys.json" in site.await_event("held worker cannot be replaced yet")["error"]
            ready = httpx.get(f"{site.uri}/readyz", timeout=60).json()
            assert (ready["status"], ready["threads"]["abandoned"]) == ("ok", 1)
        finally:
            site.keys.path.write_text(secrets)
        assert site.send("good", "t/describe", headers).status_code == 200
        site.await_event("worker held; replaced")
        assert site.send("good", "t/describe", headers).status_code == 200


def test_worker_whose_views_of_pages_hang_ends_after_its_replacement(tmp_path: Path) -> None:
    settings = {"shutdown_seconds": "1", "operation_seconds": "1"}
    with serving(tmp_path, threads=16, **settings) as site, ThreadPoolExecutor(8) as pool, site.stalled():
        credential = site.headers("good")["x-api-key"]
        with httpx.Client(base_url=site.uri, headers={"origin": site.uri}, timeout=60) as browser:
            assert browser.post("/sign-in", data={"credential": credential, "next": "/"}).status_code == 303
            asked = [pool.submit(browser.get, "/t/stalled") for _ in range(8)]
            assert {each.result().status_code for each in asked} == {504}
        replaced = site.await_event("worker held; replaced")["pid"]
        end = time.monotonic() + 30
        while replaced in workers_of(site.process.pid):
            assert time.monotonic() < end, "its threads outlast its last request"
            time.sleep(0.1)


def test_ctrl_c_lets_requests_of_a_replaced_worker_finish(tmp_path: Path) -> None:
    with serving(tmp_path, threads=4, header_seconds="100") as site, ThreadPoolExecutor(1) as pool:
        address = urlsplit(site.uri)
        with socket.create_connection((address.hostname, address.port), timeout=60) as idle:
            asked = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
            idle.sendall(asked)
            upload = Upload(site, pool)
            site.process.send_signal(signal.SIGHUP)
            with suppress(ConnectionError):  # once the old worker stops
                while idle.recv(1 << 10):
                    time.sleep(0.1)
                    idle.sendall(asked)
        for each in (site.process.pid, *workers_of(site.process.pid)):  # as a terminal does
            os.kill(each, signal.SIGINT)
        time.sleep(1)
        assert upload.end().status_code == 200
        assert site.process.wait(60) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let the worker finish its requests")
def test_worker_of_a_killed_server_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, threads=1, shutdown_seconds="600") as site, site.stalled(), ThreadPoolExecutor(1) as thread:
        [worker] = workers_of(site.process.pid)
        hanging = thread.submit(site.hang, "good", 60)
        while site.metric("lancekeep_requests_in_progress") < 1:
            Event().wait(0.01)
        site.process.send_signal(signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            hanging.result()
        while Path(f"/proc/{worker}").exists():
            time.sleep(0.05)
