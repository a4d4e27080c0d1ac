"""Servers of one catalog on several hosts: they agree on the committer of a table, and lose and double nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from random import randrange
from threading import Thread
from typing import Any
from uuid import uuid4

import attrs
import httpx
import lance
import pyarrow as pa
import pytest
from appending import held_back
from cluster_keys import cluster_in
from deployments import bucket, s3_options

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep import shared_committers
from lancekeep.application.upkeep.shared_committers import SharedCommitters
from lancekeep.composition import Cluster, Sharing, open_catalog
from lancekeep.config import ConnectionConfig, given
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.rest.settings import ServerSettings

TABLE = ObjectId(("t",))


def row(number: int) -> pa.Table:
    return pa.table({"number": pa.array([number], pa.int64())})


def rows(root: str) -> Counter[int]:
    """Return the rows that plain pylance reads."""
    return Counter(lance.dataset(f"{root}/t.lance").to_table()["number"].to_pylist())


def eventually(holds: Callable[[], object], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return cluster_in(tmp_path_factory.mktemp("keys"))


class Hosts:
    """Hosts on which one process each uses a catalog; it has a table ``t`` without rows."""

    def __init__(self, root: Path, cluster: Cluster) -> None:
        self.root = str(root)
        self._cluster = cluster
        self.opened: list[lancekeep.Catalog] = []
        self.first = self.host()
        self.first.write("t", row(0).slice(0, 0))
        self.other = self.host()

    def host(self, root: str | None = None) -> lancekeep.Catalog:
        config = ConnectionConfig.resolve(given(root=root or self.root))
        catalog = open_catalog(config, Sharing(cluster=self._cluster))
        self.opened.append(catalog)
        return catalog


@pytest.fixture
def hosts(tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    for name, seconds in (("LOOK_EVERY", 0.01), ("TERM", 0.3), ("UNUSED", 300.0)):
        monkeypatch.setattr(shared_committers, name, seconds)
    hosts = Hosts(tmp_path / "lake", cluster)
    yield hosts
    for catalog in hosts.opened:
        catalog.close()


def committers(catalog: lancekeep.Catalog) -> SharedCommitters:
    found = directory_of(catalog)._committers
    assert isinstance(found, SharedCommitters)
    return found


def holds(catalog: lancekeep.Catalog) -> bool:
    """Return whether a process has the lease of the table."""
    return committers(catalog).takes(TABLE)


def sends(catalog: lancekeep.Catalog) -> bool:
    """Return whether a process sends the appends to the table to another one."""
    return committers(catalog).is_elsewhere(TABLE)


def append(catalog: lancekeep.Catalog, number: int) -> int:
    version: int = catalog.write("t", row(number), "append").version
    return version


def share(hosts: Hosts) -> None:
    """Let the first process take the lease, and the other one link to it."""
    append(hosts.first, -1)
    committers(hosts.first).lost(TABLE)
    eventually(lambda: holds(hosts.first))
    append(hosts.other, -2)
    committers(hosts.other).lost(TABLE)
    eventually(lambda: sends(hosts.other))


def test_processes_that_compete_agree_on_one(hosts: Hosts) -> None:
    numbers = iter(range(10**6))
    written: list[int] = []

    def write(catalog: lancekeep.Catalog) -> None:
        while not any(map(sends, (hosts.first, hosts.other))):
            number = next(numbers)
            append(catalog, number)
            written.append(number)

    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(write, catalog) for catalog in (hosts.first, hosts.other) * 4]:
            each.result(120)
    assert holds(hosts.first) != holds(hosts.other)
    assert rows(hosts.root) == Counter(written)


def test_process_whose_tables_no_other_one_writes_takes_no_lease(hosts: Hosts) -> None:
    for number in range(5):
        append(hosts.first, number)
    assert not holds(hosts.first)
    assert not list(Path(hosts.root).glob(".lancekeep-maintenance/committers/**/0*"))


def test_waiting_appends_go_to_the_process_that_is_found_since(hosts: Hosts) -> None:
    append(hosts.first, -1)
    committers(hosts.first).lost(TABLE)
    eventually(lambda: holds(hosts.first))
    append(hosts.other, -2)
    held_back(hosts.first, until=2)
    permitted = held_back_until(hosts.other)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(append, hosts.other, number) for number in (1, 2)]
        committers(hosts.other).lost(TABLE)
        eventually(lambda: sends(hosts.other))
        permitted()
        assert len({answer.result(60) for answer in answers}) == 1
    assert rows(hosts.root) == Counter([-1, -2, 1, 2])


def held_back_until(catalog: lancekeep.Catalog) -> Callable[[], None]:
    """Let the committer of a process wait before its next group; return what ends that."""
    committer: Any = directory_of(catalog).writes._appends
    pause, waits = committer._pause, [True]

    def wait(line: Any) -> None:
        eventually(lambda: not waits)
        pause(line)

    committer._pause = wait
    return waits.clear


def test_lease_passes_to_the_next_process_when_its_holder_ends(hosts: Hosts) -> None:
    share(hosts)
    version = append(hosts.other, 1)
    hosts.first.close()
    append(hosts.other, 2)
    eventually(lambda: holds(hosts.other))
    third = hosts.host()
    append(third, 3)
    committers(third).lost(TABLE)
    eventually(lambda: sends(third))
    assert append(third, 4) > version
    assert rows(hosts.root) == Counter([-2, -1, 1, 2, 3, 4])


def test_holder_whose_own_callers_stopped_leaves_the_table(hosts: Hosts) -> None:
    share(hosts)
    append(hosts.other, 1)
    committers(hosts.first)._tables[TABLE].used -= 2 * shared_committers.UNUSED
    eventually(lambda: not committers(hosts.first)._tables)
    append(hosts.other, 2)
    eventually(lambda: holds(hosts.other))
    append(hosts.first, 3)
    assert not holds(hosts.first)
    assert rows(hosts.root) == Counter([-2, -1, 1, 2, 3])


def test_copy_of_a_catalog_with_its_leases_is_another_catalog(hosts: Hosts, tmp_path: Path) -> None:
    share(hosts)
    copied = str(tmp_path / "copy")
    shutil.copytree(hosts.root, copied)
    copy = hosts.host(copied)
    lancekeep.connect(copied).upkeep.adopt_identity()
    append(copy, 5)
    committers(copy).lost(TABLE)
    eventually(lambda: holds(copy))
    append(copy, 6)
    append(hosts.other, 7)
    assert rows(hosts.root) == Counter([-2, -1, 7])
    assert rows(copied) == Counter([-2, -1, 5, 6])


def test_storage_without_a_create_only_write_has_no_cluster(
    moto_endpoint: str, tmp_path: Path, cluster: Cluster
) -> None:
    root, store = f"s3://{bucket(moto_endpoint)}/lake", f"sqlite://{tmp_path}/commits.db"
    options = {**s3_options(moto_endpoint), "conditional_put": "disabled"}
    config = ConnectionConfig.resolve(given(root=root, commit_store=store, storage_options=options))
    with pytest.raises(InvalidInput, match="cluster"):
        open_catalog(config, Sharing(cluster=cluster))


def test_catalog_that_does_not_open_releases_its_port(tmp_path: Path, cluster: Cluster) -> None:
    root = tmp_path / "lake"
    lancekeep.connect(str(root)).write("t", row(0))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sharing = Sharing(cluster=attrs.evolve(cluster, ports=range(port, port + 1)))
    config = ConnectionConfig.resolve(given(root=str(root)))
    moved = [(file, file.read_bytes()) for file in (root / "__manifest/_versions").iterdir()]
    for file, _ in moved:
        file.write_bytes(b"damaged")
    with pytest.raises(LancekeepError) as failed:  # which keeps the objects of the attempt
        open_catalog(config, sharing)
    for file, content in moved:
        file.write_bytes(content)
    open_catalog(config, sharing).close()
    assert "cluster" not in str(failed.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"cluster_host": "a"}, "server.cluster_certificate, server.cluster_private_key, server.cluster_authority"),
        ({"cluster_ports": "7400"}, "server.cluster_host"),
        ({"cluster_ports": "b-a"}, "server.cluster_ports"),
        ({"cluster_ports": "0-9"}, "server.cluster_ports"),
        ({"cluster_ports": "9-8"}, "lower"),
        ({"cluster_ports": "9-8-7"}, "server.cluster_ports"),
        ({"cluster_ports": "70000"}, "server.cluster_ports"),
    ],
)
def test_incomplete_settings_are_refused(given: dict[str, str], named: str) -> None:
    if len(given) == 1 and "server.cluster_host" not in named and "cluster_host" not in given:
        files = dict.fromkeys(("cluster_certificate", "cluster_private_key", "cluster_authority"), "x")
        given = {"cluster_host": "a", **files, **given}
    with pytest.raises(InvalidInput, match=re.escape(named)):
        ServerSettings.resolve(given, {})


# -- servers ----------------------------------------------------------------------------------------------------------


class Server:
    """A process of `lancekeep serve` that others reach at a port of its own."""

    def __init__(self, root: str, cluster: Cluster) -> None:
        names = ("host", "certificate", "private_key", "authority")
        self._settings = {f"LANCEKEEP_SERVER__CLUSTER_{name.upper()}": getattr(cluster, name) for name in names}
        command = [sys.executable, "-m", "lancekeep", "serve", root, "--port", "0", "--maintenance", "off"]
        self._command = [*command, "--storage-option", "fsync=false"]
        self.uri = ""
        self._start()

    def _start(self) -> None:
        self.cluster_port = unasked_port()
        self.process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **self._settings, "LANCEKEEP_SERVER__CLUSTER_PORTS": str(self.cluster_port)},
        )

    def await_ready(self) -> None:
        """Wait until the server listens. It starts again if its port was taken before it listened."""
        lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.append(line)
            if found := re.search(r"http://[\d.:]+", line):
                self.uri = found[0]
                Thread(target=self.process.stdout.read, daemon=True).start()
                return
        assert "Address already in use" in lines[-1], f"the server ended: {''.join(lines)}"
        self.process.wait()
        self._start()
        self.await_ready()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def unasked_port() -> int:
    """Return a free port below those that the system gives to processes that ask for any port."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", randrange(20_000, 32_000))) as free:
            return int(free.getsockname()[1])


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@attrs.define
class Client:
    """A client of several servers, that repeats an append by its key at the next server."""

    servers: list[Server]
    number: int
    written: list[int] = attrs.field(factory=list)

    def run(self, until: Callable[[], bool]) -> None:
        with httpx.Client(timeout=60) as http:
            for at in range(10**6):
                if until():
                    return
                time.sleep(0.02)
                number, key = self.number * 10**6 + at, str(uuid4())
                for again in range(50):
                    server = self.servers[(self.number + again) % len(self.servers)]
                    if self._answers(http, server, number, key):
                        self.written.append(number)
                        break
                else:
                    raise AssertionError("no server has answered")

    def _answers(self, http: httpx.Client, server: Server, number: int, key: str) -> bool:
        try:
            answer = http.post(
                f"{server.uri}/v1/table/t/insert",
                content=stream(row(number)),
                headers={"content-type": "application/vnd.apache.arrow.stream", "idempotency-key": key},
            )
        except httpx.TransportError:
            time.sleep(0.05)
            return False
        assert answer.is_success or answer.status_code >= 500, answer.text
        return answer.is_success


@pytest.mark.slow
def test_killed_holder_loses_and_doubles_nothing(tmp_path: Path, cluster: Cluster) -> None:
    root = str(tmp_path / "lake")
    lancekeep.connect(root).write("t", row(0).slice(0, 0))

    def holder() -> int | None:
        """Return the port of the process that has the lease."""
        found = sorted(Path(root).glob(".lancekeep-maintenance/committers/*/*/0*"))
        try:
            return int(found[-1].read_text().partition("/")[0].rpartition(":")[2]) if found else None
        except OSError:
            return None

    ended: list[bool] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(root, cluster)) for _ in range(3)]
        for server in servers:
            server.await_ready()
        by_port = {server.cluster_port: server for server in servers}
        clients = [Client(servers, number) for number in range(9)]
        pool = stack.enter_context(ThreadPoolExecutor(len(clients)))
        done = [pool.submit(client.run, lambda: bool(ended)) for client in clients]
        try:
            eventually(lambda: holder() in by_port or any(each.done() for each in done), 120)
            first = holder()
            assert first is not None
            by_port[first].process.send_signal(signal.SIGKILL)
            eventually(lambda: holder() not in (None, first) or any(each.done() for each in done), 120)
        finally:
            ended.append(True)
        for each in done:
            each.result(120)
    assert rows(root) == Counter(number for client in clients for number in client.written)
    assert sum(len(client.written) for client in clients) > 20
