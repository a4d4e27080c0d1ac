"""Keyed inserts through two `lancekeep serve` processes on S3, one of which is killed in mid-group."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import NAMESPACE_URL, uuid5

import httpx
import lance
import pyarrow as pa
from deployments import bucket, s3_options
from s3_front import Answer, Asked, s3_front

import lancekeep

CLIENTS = 3
"""The clients of each server."""
AFTERWARDS = 2
"""The rows that each client inserts after its server was killed, or its neighbour's."""


@contextmanager
def serve(root: str, options: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "lancekeep", "serve", root, "--commit-store", "conditional-put://", "--port", "0"]
    command += ["--log-level", "error", "--maintenance", "off"]  # every version is that of an insert
    command += [part for key, value in options.items() for part in ("--storage-option", f"{key}={value}")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def uri_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split()[-1]


def insert(uri: str, number: int) -> int:
    """Insert a row, whose key is always the same, and return its version."""
    table = pa.table({"number": pa.array([number], pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    headers = {
        "content-type": "application/vnd.apache.arrow.stream",
        "idempotency-key": str(uuid5(NAMESPACE_URL, str(number))),
    }
    while True:
        answer = httpx.post(
            f"{uri}/v1/table/t/insert", content=sink.getvalue().to_pybytes(), headers=headers, timeout=60
        )
        if answer.status_code != 503:  # then the outcome is open, and the same request settles it
            assert answer.status_code == 200, answer.text
            version: int = answer.json()["version"]
            return version


def test_inserts_are_exact_if_one_of_two_servers_is_killed_in_mid_group(moto_endpoint: str) -> None:
    """The first server commits a group, and is killed before it answers."""
    root, options = f"s3://{bucket(moto_endpoint)}/lake", s3_options(moto_endpoint)
    catalog = lancekeep.connect(root, commit_store="conditional-put://", storage_options=options)
    catalog.write("t", pa.table({"number": pa.array([-1], pa.int64())}))
    versions: list[list[int]] = [[], []]
    killed, permits = threading.Event(), threading.Semaphore(3)

    def commits(asked: Asked) -> bool:
        return asked.method == "PUT" and asked.path.endswith(".manifest")

    def in_turn(asked: Asked) -> Answer:
        """Let the other server commit a few versions for each of the first server, which could lose all races."""
        if commits(asked) and not killed.is_set():
            permits.acquire()
        return asked.forward()

    def answer(asked: Asked) -> Answer:
        told = asked.forward()
        if not commits(asked) or told.status != 200:
            return told
        permits.release(3)
        if not versions[0] or killed.is_set():  # some client of the first server shall have had an answer before
            return told
        first.kill()
        first.wait()
        killed.set()
        permits.release(1000)
        return Answer(500, {})

    with (
        s3_front(moto_endpoint, answer) as front,
        s3_front(moto_endpoint, in_turn) as shared,
        serve(root, s3_options(front)) as first,
        serve(root, s3_options(shared)) as other,
    ):
        uris = [uri_of(first), uri_of(other)]
        repeated: list[int] = []

        def client(me: int) -> list[int]:
            """Insert until the kill, and some rows after it; return the numbers."""
            server, numbers, left = me % 2, list[int](), AFTERWARDS
            while left:
                left -= killed.is_set()
                numbers.append(me * 1000 + len(numbers))
                try:
                    versions[server].append(insert(uris[server], numbers[-1]))
                except httpx.TransportError:
                    assert killed.wait(60)
                    server = 1
                    repeated.append(insert(uris[server], numbers[-1]))
            return numbers

        with ThreadPoolExecutor(2 * CLIENTS) as pool:
            inserted = [number for numbers in pool.map(client, range(2 * CLIENTS)) for number in numbers]
    found = lance.dataset(catalog.open("t").uri, storage_options=options).to_table()["number"].to_pylist()
    assert Counter(found) == Counter([-1, *inserted])
    assert len(repeated) == CLIENTS
    assert all(versions)
    history = {entry.version for entry in catalog.versions.history("t")}
    assert history == set(range(1, max(history) + 1))
    assert {version for each in (*versions, repeated) for version in each} == history - {1}
