"""Connections to hosts that have several addresses."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack


def connected(host: str, port: int, deadline: float) -> socket.socket:
    """Return a connection to one of the addresses of a host.

    Each of them has an equal share of the time, so an address that does not answer, such as one of IPv6 without a
    route, leaves time for the next.

    Args:
        host: The name of the host, or an address.
        port: The port.
        deadline: When to give up, on the clock of `time.monotonic`.

    Raises:
        OSError: No address could be connected.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed: OSError | None = None
    for at, (family, kind, protocol, _, address) in enumerate(addresses):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(socket.socket(family, kind, protocol))
                connection.settimeout(left / (len(addresses) - at))
                connection.connect(address)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                failed = error
            else:
                stack.pop_all()
                return connection
    raise failed or TimeoutError(f"{host} was not connected in time")
