"""The socket on which a server listens."""

from __future__ import annotations

import socket

from lancekeep.domain.errors import InvalidInput

BACKLOG = 1024
"""How many connections wait until the server accepts them."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        InvalidInput: The address cannot be used.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --host or --port"
        ) from error
    # Accepted connections inherit the option. Otherwise the client's delayed acknowledgement holds the body of each
    # response back for 40 ms, because uvicorn sends headers and body apart. asyncio sets the option on no such socket.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if listener.family is socket.AF_INET6 else f"{scheme}://{host}:{port}"
