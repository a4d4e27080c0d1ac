"""Redis servers with other settings than the shared one: replicas, Sentinels, cluster nodes."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pytest
from redis import Redis

from servers import free_port

_PORTS = 5
"""How many ports a server tries."""


@contextmanager
def own_redis(*arguments: str, ready: str = "Ready to accept connections") -> Iterator[int]:
    """Yield the port of a new Redis server; ``PORT`` in an argument stands for it."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on PATH (Debian: apt-get install redis-server)")
    with TemporaryDirectory() as directory:
        port, server = _started(binary, arguments or ("--port", "PORT"), directory, ready)
        with server:
            try:
                yield port
            finally:
                server.terminate()


def replicate(primary: int) -> None:
    """Wait until the replica has all writes of its primary."""
    with Redis(port=primary) as admin:
        admin.set("marker", "")
        admin.wait(1, 0)


def poll(condition: Callable[[], object]) -> None:
    """Wait for a state of a server that it does not announce."""
    while not condition():
        time.sleep(0.01)


def _started(binary: str, arguments: Sequence[str], directory: str, ready: str) -> tuple[int, subprocess.Popen[str]]:
    """Start a server; repeat with another port if other processes take the port, or a cluster node's bus port."""
    output: list[str] = []
    for _ in range(_PORTS):
        port = free_port()
        command = [binary, *(argument.replace("PORT", str(port)) for argument in arguments)]
        if "--sentinel" not in command:
            command += ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        server = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        for line in server.stdout:
            if ready in line:
                return port, server
            output.append(line)
        server.wait()
        if not any("bind" in line or "in use" in line for line in output):
            break
    raise AssertionError(f"{' '.join(command)} ended:\n{''.join(output)}")
