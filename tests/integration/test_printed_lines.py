"""What the engine and the interpreter print, in the log of a server."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from served_processes import workers_of

from servers import free_port

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


class Served:
    """A server, and the lines that it has logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._logged = process.stderr
        self.uri = self.await_line("url")["url"]

    def await_line(self, key: str, value: Any = None) -> dict[str, Any]:
        """Return the next line with an entry. Each line is JSON, or the test fails."""
        while True:
            line: dict[str, Any] = json.loads(self._logged.readline())
            self.lines.append(line)
            if key in line and value in (None, line[key]):
                return line

    def stop(self) -> None:
        self.process.terminate()
        self.lines += map(json.loads, self._logged.read().splitlines())
        assert self.process.wait(60) == 0


@contextmanager
def serving(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[Served]:
    line = [sys.executable, "-m", "lancekeep", "serve", *arguments, "--port", "0", "--log-format", "json"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LANCE_LOG")}
    with subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**variables, **(environment or {})}
    ) as process:
        try:
            yield Served(process)
        finally:
            process.kill()


def create(uri: str, name: str, rows: pa.Table) -> httpx.Response:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return httpx.post(f"{uri}/v1/table/{name}/create", content=bytes(sink.getvalue()), headers=ARROW, timeout=60)


def let_the_engine_panic(uri: str) -> None:
    """Write a column with an option on which pylance 14 panics."""
    field = pa.field("a", pa.int64(), metadata={"lance-encoding:dict-size-ratio": "0"})
    rows = pa.table([pa.array([1, 2, 3] * 400, pa.int64())], schema=pa.schema([field]))
    assert create(uri, "panics", rows).status_code == 500


def let_the_engine_warn(uri: str) -> None:
    """Search by another distance than that of the index, which the engine says in a line of its own."""
    vectors = pa.array([[float(at), 1.0] for at in range(100)], pa.list_(pa.float32(), 2))
    create(uri, "t", pa.table({"v": vectors})).raise_for_status()
    index = {"column": "v", "index_type": "IVF_FLAT", "distance_type": "l2"}
    httpx.post(f"{uri}/v1/table/t/create_index", json=index, timeout=60).raise_for_status()
    search = {"vector": {"single_vector": [1.0, 2.0]}, "k": 2, "vector_column": "v", "distance_type": "cosine"}
    httpx.post(f"{uri}/v1/table/t/query", json=search, timeout=60).raise_for_status()


@pytest.mark.parametrize("store", ["conditional-put://", "memory://lines"])
def test_warnings_and_panics_of_the_engine_are_lines_of_the_log(tmp_path: Path, store: str) -> None:
    """Also in the process of a server without a supervisor, whose commit store is in memory."""
    with serving(str(tmp_path / "lake"), "--commit-store", store) as server:
        let_the_engine_panic(server.uri)
        let_the_engine_warn(server.uri)
        found = server.await_line("logger", "lance::dataset::scanner")
        server.stop()
    assert (found["level"], "Cosine" in found["event"]) == ("warning", True)
    assert sum("Cosine" in str(line) for line in server.lines) == 1
    assert all(line["timestamp"] and line["level"] for line in server.lines)
    printed = [line for line in server.lines if line.get("logger") == "stderr"]
    assert "panicked at" in printed[0]["event"]
    assert {line["level"] for line in printed} == {"error"}
    assert not any(line["event"].startswith("{") for line in printed)  # the log itself is not wrapped
    assert sum(line.get("operation") == "QueryTable" for line in server.lines) == 1


def test_lines_of_several_catalogs_are_not_wrapped(tmp_path: Path) -> None:
    file = tmp_path / "lancekeep.toml"
    names = ("one", "two")
    file.write_text("".join(f"[catalogs.{name}]\nroot = '{tmp_path}/{name}'\n" for name in names))
    with serving("--config", str(file)) as server:
        for name in names:
            httpx.post(f"{server.uri}/catalogs/{name}/v1/table/t/describe", json={}, timeout=60)
        server.stop()
    assert [line["event"] for line in server.lines if line.get("logger") == "stderr"] == []
    assert {line["catalog"] for line in server.lines if line["event"] == "request"} == {*names}


def test_the_last_words_of_a_worker_that_crashes_are_lines_of_the_log(tmp_path: Path) -> None:
    where = [str(tmp_path / "lake"), "--commit-store", "conditional-put://"]
    with serving(*where, environment={"PYTHONFAULTHANDLER": "1"}) as server:
        [worker] = workers_of(server.process.pid)
        os.kill(worker, signal.SIGABRT)
        server.await_line("event", "worker started")
        assert httpx.get(f"{server.uri}/healthz", timeout=60).status_code == 200
        server.stop()
    said = [line for line in server.lines if line.get("logger") == "stderr"]
    assert said[0]["event"] == "Fatal Python error: Aborted"
    assert {(line["level"], line["pid"]) for line in said} == {("error", worker)}
    assert any('File "' in line["event"] for line in said)
    ended = next(at for at, line in enumerate(server.lines) if line["event"] == "worker ended")
    assert max(map(server.lines.index, said)) < ended


PRINTING = """
import os, sys, threading

def print_long_lines():
    while True:
        os.write(2, b"x" * 60_000 + b"\\n")

if "lancekeep.entrypoints.worker" in sys.orig_argv:
    threading.Thread(target=print_long_lines, daemon=True).start()
"""


@pytest.mark.slow
def test_long_lines_of_several_processes_stay_whole(tmp_path: Path) -> None:
    """A pipe takes 4 KiB at once, and a longer line in parts."""
    (tmp_path / "sitecustomize.py").write_text(PRINTING)  # the interpreter runs it at its start
    where = [str(tmp_path / "lake"), "--commit-store", f"sqlite:///{tmp_path}/commits.db", "--workers", "2"]
    # A server that is killed first leaves no caller waiting, if the test fails.
    with ThreadPoolExecutor(4) as callers, serving(*where, environment={"PYTHONPATH": str(tmp_path)}) as server:
        asked = [callers.submit(httpx.get, f"{server.uri}/v1/table", timeout=60) for _ in range(100)]
        for _ in asked:
            server.await_line("operation", "ListAllTables")
        assert {each.result().status_code for each in asked} == {200}
        server.stop()
    printed = [line["event"] for line in server.lines if line.get("logger") == "stderr"]
    assert "x" * 60_000 in printed
    assert {*"".join(printed)} == {"x"}


LOGGING = """
import logging, sys, threading, time

def log_long_lines():
    while not logging.getLogger().handlers:
        time.sleep(0.01)
    while True:
        logging.getLogger("lancekeep").error("y" * 200_000)

if "lancekeep.entrypoints.worker" in sys.orig_argv:
    threading.Thread(target=log_long_lines, daemon=True).start()
"""


def test_line_of_a_worker_that_is_killed_tears_no_other_line(tmp_path: Path) -> None:
    """The line is longer than the pipe, so the worker is in the middle of one when the pipe is full."""
    (tmp_path / "sitecustomize.py").write_text(LOGGING)
    where = [str(tmp_path / "lake"), "--commit-store", f"sqlite:///{tmp_path}/commits.db"]
    with serving(*where, environment={"PYTHONPATH": str(tmp_path)}) as server:
        assert server.process.stderr is not None
        [worker] = workers_of(server.process.pid)
        waiting, before = array("i", [0]), 0
        while waiting[0] < 1 << 12 or waiting[0] != before:  # a pipe may take less than 64 KiB
            before = waiting[0]
            time.sleep(0.5)
            fcntl.ioctl(server.process.stderr, termios.FIONREAD, waiting)
        os.kill(worker, signal.SIGKILL)
        torn, whole = list[str](), list[str]()
        for line in server.process.stderr:
            try:
                whole.append(json.loads(line)["event"])
            except ValueError:
                torn.append(line)
            if whole[-1:] == ["worker started"]:
                break
    assert ([line[:12] for line in torn], "worker ended" in whole) == (['{"event": "y'], True)


@pytest.mark.parametrize("where", [["--workers", "2"], []])
def test_log_without_a_reader_costs_no_request(tmp_path: Path, where: list[str]) -> None:
    store = ["--commit-store", f"sqlite:///{tmp_path}/commits.db"]
    with serving(str(tmp_path / "lake"), *store, *where) as server:
        assert server.process.stderr is not None
        server.process.stderr.close()
        with httpx.Client(timeout=60) as client:  # one connection, which an error after an answer would end
            assert {client.get(f"{server.uri}/v1/table").status_code for _ in range(100)} == {200}
        server.process.terminate()
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("form", ["json", "console"])
def test_server_starts_with_closed_standard_files(tmp_path: Path, form: str) -> None:
    """Nor does a file that it opens get the number of stderr, to which native code prints."""
    port = free_port()
    where = [str(tmp_path / "lake"), "--commit-store", "conditional-put://", "--port", str(port), "--log-format", form]
    line = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "lancekeep", "serve", *where]
    with subprocess.Popen(line) as process, httpx.Client(transport=httpx.HTTPTransport(retries=7)) as client:
        try:
            assert client.get(f"http://127.0.0.1:{port}/healthz", timeout=60).status_code == 200
            let_the_engine_panic(f"http://127.0.0.1:{port}")
            assert {os.readlink(f"/proc/{process.pid}/fd/{each}") for each in range(2)} == {os.devnull}
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
