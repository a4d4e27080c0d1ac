"""A hostile caller beside a well-behaved one, who is answered while each attack runs."""

from __future__ import annotations

import io
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import attrs
import httpx
import pyarrow as pa
import pytest
from served_processes import peak_memory

from lancekeep.adapters.authentication.api_keys import KeyFile

ARROW = "application/vnd.apache.arrow.stream"
THREADS = 8
MOST_MEMORY = 600
"""The memory in MB within which the server stays."""


@attrs.frozen
class Site:
    """A server with two callers; both may write everywhere below ``ml``."""

    url: str
    process: subprocess.Popen[str]
    good: dict[str, str]
    bad: dict[str, str]

    def describe(self) -> float:
        """Let the well-behaved caller describe a table; return the seconds it took."""
        start = time.perf_counter()
        answer = httpx.post(f"{self.url}/v1/table/ml$t/describe", headers=self.good, timeout=30)
        assert answer.status_code == 200, answer.text
        return time.perf_counter() - start

    def send(self, path: str, content: bytes, kind: str) -> httpx.Response:
        """Let the hostile caller send a body."""
        headers = {**self.bad, "content-type": kind}
        return httpx.post(f"{self.url}{path}", content=content, headers=headers, timeout=60)

    def memory(self) -> int:
        """Return the most memory that the server has had, in MB."""
        return peak_memory(self.process.pid)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("hostile")
    keys = KeyFile(place / "keys.json")
    good, bad = ({"x-api-key": keys.create(name)[1]} for name in ("good", "bad"))
    (place / "lancekeep.toml").write_text(
        f"root = '{place}/lake'\ncommit_store = 'conditional-put://'\n"
        f"[server]\nkeys = '{place}/keys.json'\nthreads = {THREADS}\nport = 0\nlog_level = 'error'\n"
    )
    line = [sys.executable, "-m", "lancekeep", "serve", "--config", str(place / "lancekeep.toml")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = Site(process.stdout.readline().split()[-1], process, good, bad)
            httpx.post(f"{found.url}/v1/namespace/ml/create", json={}, headers=good, timeout=60).raise_for_status()
            rows = stream(pa.table({"id": [1, 2]}))
            headers = {**good, "content-type": ARROW}
            httpx.post(
                f"{found.url}/v1/table/ml$t/create", content=rows, headers=headers, timeout=60
            ).raise_for_status()
            yield found
        finally:
            process.kill()


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


@contextmanager
def stalled(site: Site, head: str) -> Iterator[None]:
    """Send the head of a request and the first byte of its body, and no more."""
    url = urlsplit(site.url)
    with socket.create_connection((url.hostname, url.port or 80), timeout=60) as connection:
        key = site.bad["x-api-key"]
        connection.sendall(
            f"POST /v1/table/ml$t/insert HTTP/1.1\r\nhost: {url.netloc}\r\nx-api-key: {key}\r\n"
            f"content-type: {ARROW}\r\n{head}\r\n\r\n".encode()
        )
        yield


@pytest.mark.parametrize("head", ["content-length: 1000000", "transfer-encoding: chunked"])
def test_uploads_that_stall_hold_no_thread(site: Site, head: str) -> None:
    with ExitStack() as uploads:
        for _ in range(4 * THREADS):
            uploads.enter_context(stalled(site, head))
        for _ in range(20):
            site.describe()


JSON = "application/json"
CREATE, INSERT, QUERY = "/v1/namespace/ml$large/create", "/v1/table/ml$t/insert", "/v1/table/ml$t/query"


def attacks() -> Iterator[tuple[str, str, bytes]]:
    """Yield the path, the type and the content of each hostile body."""
    yield CREATE, JSON, json.dumps({"properties": {str(number): "" for number in range(1_100_000)}}).encode()
    yield CREATE, JSON, json.dumps({"properties": {str(number): "" for number in range(20_000)}}).encode()
    yield CREATE, JSON, b'{"properties": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield CREATE, JSON, b'{"properties": {"a": "' + b"x" * (15 << 20) + b'"}, "unknown": 1}'
    chain = "(" * 50_000 + "1" + ")" * 50_000
    yield QUERY, JSON, json.dumps({"k": 1, "vector": {}, "filter": chain}).encode()
    widthless = pa.FixedSizeBinaryArray.from_buffers(pa.binary(0), 10**9, [None, pa.py_buffer(b"")])
    columns = [pa.nulls(10**9), widthless, pa.DictionaryArray.from_arrays([0], pa.nulls(10**9))]
    yield from ((INSERT, ARROW, stream(pa.table({"id": column}))) for column in columns)
    zeros = pa.Array.from_buffers(pa.int64(), 1 << 26, [None, pa.py_buffer(bytes(1 << 29))])
    yield INSERT, ARROW, stream(pa.table({"id": zeros}), "zstd")


def refused() -> Iterator[tuple[str, str, bytes]]:
    """Yield the path, the type and the content of large bodies that different parts of the server refuse."""
    properties = b'{"properties": {"a": "' + b"x" * (15 << 20) + b'"}'
    yield CREATE, JSON, properties + b', "unknown": 1}'
    yield "/v1/namespace/ml/create", JSON, properties + b"}"  # it exists
    numbers = pa.table({"other": pa.array(range(2_000_000))})
    yield INSERT, ARROW, stream(numbers)  # the engine reads a part of it


@pytest.mark.parametrize("place", range(3))
def test_refused_bodies_are_released(site: Site, place: int) -> None:
    """The garbage collector counts objects, and not their sizes; and it sees no cycle through Arrow's streams."""
    path, kind, content = list(refused())[place]
    for number in range(20):
        assert 400 <= site.send(path, content, kind).status_code < 500
        if number == 3:
            before = site.memory()
    assert site.memory() < before + 100


@pytest.mark.slow
def test_well_behaved_caller_is_answered_beside_each_attack(site: Site) -> None:
    alone, beside = [site.describe() for _ in range(20)], []
    with ThreadPoolExecutor(2) as hostile:
        for path, kind, content in attacks():
            sent = [hostile.submit(site.send, path, content, kind) for _ in range(2)]
            while not all(each.done() for each in sent):
                beside.append(site.describe())
            for each in sent:
                assert 400 <= each.result().status_code < 500, (path, content[:60], each.result().text[:200])
    print(
        f"median of describe: {statistics.median(alone):.4f} s alone, {statistics.median(beside):.4f} s beside attacks"
    )
    assert site.memory() < MOST_MEMORY
