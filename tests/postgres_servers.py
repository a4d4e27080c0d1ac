"""PostgreSQL servers from Debian's package: the shared one, and servers that a test stops, kills or replicates."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import IO, Any

import attrs
import psycopg
from redis_servers import poll
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from lancekeep.composition import migrate_schema
from servers import Unavailable, address_of, container_of, free_port

POSTGRES_IMAGE = os.environ.get("LANCEKEEP_POSTGRES_IMAGE", "postgres:17")
_FAST = (
    "fsync=off",
    "log_min_messages=log",
    "log_checkpoints=off",
    "full_page_writes=off",
    "autovacuum=off",
    "max_wal_size=256MB",
    "shared_buffers=16MB",
)


@cache
def binaries() -> Path:
    """Return the directory of the server's programs, of the newest version that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise Unavailable("no PostgreSQL server (Debian: apt-get install postgresql)")
    return found[-1].parent if found else Path(os.path.realpath(on_path or "")).parent


@attrs.define
class PostgresServer:
    """A server with a directory and a port, which outlive its process. Connections need no password."""

    directory: Path
    port: int
    settings: Sequence[str] = ()
    process: subprocess.Popen[str] | None = None

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        arguments = [f"-c{setting}" for setting in (*_FAST, "listen_addresses=127.0.0.1", *self.settings)]
        arguments += [f"-p{self.port}", f"-cunix_socket_directories={self.directory}"]
        command = [str(binaries() / "postgres"), "-D", str(self.directory / "data"), *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **_user())
        assert self.process.stderr is not None
        output = []
        for line in self.process.stderr:
            output.append(line)
            if "ready to accept" in line:
                break
        else:
            raise AssertionError(f"{' '.join(command)} ended:\n{''.join(output)}")
        # A server that cannot write its log stops.
        Thread(target=drain, args=(self.process.stderr,), daemon=True).start()

    def kill(self) -> None:
        """End every process of the server at once, as a crash does."""
        assert self.process is not None
        pid = self.process.pid
        os.kill(pid, signal.SIGSTOP)  # a process that it started now would keep the shared memory
        poll(lambda: _state(pid) == "T")
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        for each in (pid, *children):
            os.kill(each, signal.SIGKILL)
        self._wait()
        poll(lambda: all(_state(child) in "ZX" for child in children))

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server and its sessions: in order, or without a checkpoint (SIGQUIT)."""
        if self.process is not None:
            self.process.send_signal(how)
            self._wait()

    def run(self, *statements: str) -> None:
        """Run statements as the superuser."""
        with psycopg.connect(self.dsn, autocommit=True) as admin:
            for statement in statements:
                admin.execute(statement.encode())

    def program(self, name: str, *arguments: str) -> None:
        """Run one of the server's programs as its user."""
        subprocess.run([str(binaries() / name), *arguments], check=True, capture_output=True, **_user())

    def _wait(self) -> None:
        assert self.process is not None
        self.process.wait()
        self.process = None


@contextmanager
def new_server(*settings: str, primary: PostgresServer | None = None) -> Iterator[PostgresServer]:
    """Yield a server that runs: empty, or a standby that streams from a primary."""
    with TemporaryDirectory(prefix="lancekeep-postgres-") as name:
        directory = Path(name)
        if os.getuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
        server = PostgresServer(directory, free_port(), settings)
        if primary is None:
            server.program("initdb", "-D", f"{name}/data", "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8")
        else:
            server.program("pg_basebackup", "-D", f"{name}/data", "-R", "--no-sync", "-c", "fast", "-d", primary.dsn)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)


@contextmanager
def migrated_server(*settings: str) -> Iterator[PostgresServer]:
    """Yield a server that runs, with the schema of Lancekeep."""
    with new_server(*settings) as server:
        migrate_schema(server.url())
        yield server


@contextmanager
def postgres_process() -> Iterator[str]:
    with migrated_server("max_connections=300") as server:
        yield server.url()


@contextmanager
def run_as_server(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program as the user of the servers, with its log as ``stderr``."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **_user()) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def postgres_container() -> Iterator[str]:
    container = container_of(POSTGRES_IMAGE).with_env("POSTGRES_HOST_AUTH_METHOD", "trust").with_exposed_ports(5432)
    # The image starts the server twice: first to create the database, then for connections from outside.
    container.waiting_for(LogMessageWaitStrategy("ready to accept connections", times=2))
    with container:
        url = f"postgresql://postgres@{address_of(container, 5432)}/postgres"
        migrate_schema(url)
        yield url


def drain(log: IO[str]) -> None:
    """Read a log until its last writer ends."""
    with log:
        for _ in log:
            pass


def _state(pid: int) -> str:
    """Return the state of a process as in ``ps``; X if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _user() -> dict[str, Any]:
    """Return the user that runs the server, which refuses root."""
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid}
