"""Redis servers with other settings than the shared one: replicas, Sentinels, cluster nodes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pytest

from servers import free_port


@contextmanager
def own_redis(*arguments: str, ready: str = "Ready to accept connections") -> Iterator[int]:
    """Yield the port of a new Redis server; ``PORT`` in an argument stands for it."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on PATH (Debian: apt-get install redis-server)")
    port = free_port()
    command = [argument.replace("PORT", str(port)) for argument in arguments or ("--port", "PORT")]
    if "--sentinel" not in command:
        command += ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with (
        TemporaryDirectory() as directory,
        subprocess.Popen([binary, *command], cwd=directory, stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            assert any(ready in line for line in server.stdout), command
            yield port
        finally:
            server.terminate()
