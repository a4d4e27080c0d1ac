"""A connection to a server of a Metastore: TCP, TLS and the login."""

from __future__ import annotations

import time

from lancekeep.connecting import connected
from lancekeep.domain.errors import InvalidInput
from lancekeep.hive import messages
from lancekeep.hive.address import Address
from lancekeep.hive.sasl import Kerberos, Plain, log_in, mechanism_of
from lancekeep.hive.wire import Malformed, Reader, request, struct_of

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
        mechanism = mechanism_of(address, host[0])
        self.socket = connected(*host, deadline)
        self._limit = address.limit
        self._mechanism: Plain | Kerberos | None = None
        try:
            self.socket.settimeout(_left(deadline))
            if context is not None:
                self.socket = context.wrap_socket(self.socket, server_hostname=host[0])
            if mechanism is not None:
                log_in(
                    mechanism,
                    self.peer,
                    lambda content: self._send(content, deadline),
                    lambda count: self._take(count, deadline),
                )
                self._mechanism = mechanism
            elif address.user is not None:
                self._name_user(address.user, deadline)
        except BaseException:
            self.close()
            raise

    def send(self, content: bytes, deadline: float) -> None:
        """Send all bytes, or raise an `OSError`."""
        if self._mechanism is not None:
            content = self._mechanism.wrap(content)
            content = len(content).to_bytes(4) + content
        self._send(content, deadline)

    def receive(self, deadline: float) -> bytes:
        """Return at least one byte, or raise an `OSError` or `EOFError`."""
        if self._mechanism is None:
            return self._receive(_PART, deadline)
        while True:
            length = int.from_bytes(self._take(4, deadline))
            if length > self._limit:
                raise Malformed(f"the answer has more than {self._limit:,} bytes")
            if part := self._mechanism.unwrap(self._take(length, deadline)):
                return part

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _send(self, content: bytes, deadline: float) -> None:
        self.socket.settimeout(_left(deadline))
        try:
            self.socket.sendall(content)
        except TimeoutError as error:
            raise Stalled("the server took no request in time") from error

    def _receive(self, most: int, deadline: float) -> bytes:
        self.socket.settimeout(_left(deadline))
        try:
            part = self.socket.recv(most)
        except TimeoutError as error:
            raise Stalled("no answer in time") from error
        if not part:
            raise EOFError("the server closed the connection")
        return part

    def _take(self, count: int, deadline: float) -> bytes:
        taken = bytearray()
        while len(taken) < count:
            taken += self._receive(min(_PART, count - len(taken)), deadline)
        return bytes(taken)

    def _name_user(self, user: str, deadline: float) -> None:
        method = messages.SET_UGI
        self.send(request(method.name, 0, tuple(zip(method.arguments, (user, [user]), strict=True))), deadline)
        refusal = struct_of(messages.Refusal)
        Reader(lambda: self.receive(deadline), self._limit).reply(method.name, 0, {1: refusal})


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise Stalled("no answer in time")
    return left
