"""A TCP proxy that forwards requests and loses replies, so that the outcome is unknown."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread


class LosingProxy:
    """Listens on ``port``. The next ``losses`` replies to requests that contain ``marker`` are lost.

    ``on_loss`` is called after the request had its effect, before the client learns that the connection is gone. With
    ``early``, it is called as soon as the server has the request. ``requests`` holds what the clients sent.
    """

    def __init__(self, host: str, port: int, marker: bytes) -> None:
        self.losses = 0
        self.lost = 0
        self.early = False
        self.requests: list[bytes] = []
        self.on_loss: Callable[[], object] = lambda: None
        self._target = host, port
        self._marker = marker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        # shutdown wakes accept(), which close() alone would leave sleeping
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._target) as server:
            losing = False
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(1 << 20)
                    if not data or (ready is server and losing):
                        self.lost += losing
                        if losing:
                            self.on_loss()
                        return
                    if ready is client:
                        self.requests.append(data)
                    if ready is client and self._marker in data and self.losses > 0:
                        self.losses -= 1
                        losing = True
                    (server if ready is client else client).sendall(data)
                    if losing and self.early:
                        self.lost += 1
                        self.on_loss()
                        return


@contextmanager
def losing_proxy(address: str, marker: bytes) -> Iterator[LosingProxy]:
    """Run a proxy before the server at ``address`` (``host:port``)."""
    host, _, port = address.rpartition(":")
    proxy = LosingProxy(host, int(port), marker)
    try:
        yield proxy
    finally:
        proxy.close()
