"""A connection to a server of a Metastore: TCP, TLS and the login."""

from __future__ import annotations

import socket
import time

from lancekeep.domain.errors import InvalidInput
from lancekeep.hive import messages
from lancekeep.hive.address import Address
from lancekeep.hive.wire import Reader, request, struct_of

_PART = 1 << 16


class Stalled(TimeoutError):
    """No answer arrived before the deadline."""


class Connection:
    """One connection. Not for use by several threads at once.

    Args:
        address: The address, with the login.
        host: Host and port of the server.
        deadline: When to give up connecting, on the clock of `time.monotonic`.
    """

    def __init__(self, address: Address, host: tuple[str, int], deadline: float) -> None:
        self.peer = f"{host[0]}:{host[1]}"
        try:
            context = address.context()
        except OSError as error:
            raise InvalidInput(
                f"{address.url}: {error}; check the paths in ssl_ca_certs, ssl_certfile and ssl_keyfile"
            ) from error
        self.socket = socket.create_connection(host, timeout=_left(deadline))
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self.socket = context.wrap_socket(self.socket, server_hostname=host[0])
            if address.user is not None:
                self._name_user(address.user, address.limit, deadline)
        except BaseException:
            self.close()
            raise

    def send(self, content: bytes, deadline: float) -> None:
        """Send all bytes, or raise an `OSError`."""
        self._bound(deadline)
        try:
            self.socket.sendall(content)
        except TimeoutError as error:
            raise Stalled("the server took no request in time") from error

    def receive(self, deadline: float) -> bytes:
        """Return at least one byte, or raise an `OSError` or `EOFError`."""
        self._bound(deadline)
        try:
            part = self.socket.recv(_PART)
        except TimeoutError as error:
            raise Stalled("no answer in time") from error
        if not part:
            raise EOFError("the server closed the connection")
        return part

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _bound(self, deadline: float) -> None:
        self.socket.settimeout(_left(deadline))

    def _name_user(self, user: str, limit: int, deadline: float) -> None:
        method = messages.SET_UGI
        self.send(request(method.name, 0, tuple(zip(method.arguments, (user, [user]), strict=True))), deadline)
        refusal = struct_of(messages.Refusal)
        Reader(lambda: self.receive(deadline), limit).reply(method.name, 0, {1: refusal})


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise Stalled("no answer in time")
    return left
