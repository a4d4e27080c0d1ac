"""Addresses that answer no request for a connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest


@contextmanager
def first_address_unanswered(monkeypatch: pytest.MonkeyPatch, host: str, port: int) -> Iterator[list[int]]:
    """Give a host an address that does not answer, and then this machine's with a port.

    Yields:
        The ports of its addresses.
    """
    resolve = socket.getaddrinfo
    with ExitStack() as stack:
        silent = stack.enter_context(socket.socket())
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)  # a full queue drops what asks for a connection
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        ports = [silent.getsockname()[1], port]

        def resolved(name: str, *_: Any, **__: Any) -> list[Any]:
            assert name == host
            return [found for each in ports for found in resolve("127.0.0.1", each, type=socket.SOCK_STREAM)]

        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        yield ports
