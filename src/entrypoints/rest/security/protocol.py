"""The HTTP protocol of uvicorn with limits of time and size for headers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEADER_BYTES = 64 << 10
"""The size of a request line with its headers, beyond what arrives with its end."""


_WRITTEN_AT_ONCE = 64 << 10
"""The size in bytes from which a write does not wait for the next one."""


class JoinedWrites:
    """A transport that sends the small writes of one turn of the event loop together.

    uvicorn writes the head and the body of a response separately. Each write is a system call, and wakes a client that
    cannot use the head alone.

    Args:
        transport: The transport.
        loop: Its event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn of the loop.

        Large ones are sent at once, because they may pause the writer.
        """
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        if len(data) >= _WRITTEN_AT_ONCE:
            self._flush()

    def close(self) -> None:
        """Close the connection after what was written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))


class LimitedHeaders(HttpToolsProtocol):
    """Closes a connection whose next headers arrive too late or are too large.

    uvicorn limits the time between requests alone, so a client could keep a connection open by a byte now and then. A
    connection whose request is answered before its body has arrived is closed, too, as by uvicorn's protocol of h11.
    """

    header_seconds = 10.0
    _timer: asyncio.TimerHandle | None = None
    _awaits_headers = True
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(cast(asyncio.Transport, JoinedWrites(transport, self.loop)))
        self._start()

    def data_received(self, data: bytes) -> None:
        if self._awaits_headers:
            self._start()
        super().data_received(data)
        if self._awaits_headers and self._timer is not None:
            self._header_bytes += len(data)
            if self._header_bytes > MOST_HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("The headers of the request are too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start()

    def on_headers_complete(self) -> None:
        self._stop()
        self._awaits_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._awaits_headers = True
        self._header_bytes = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self._awaits_headers:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def limited_headers(seconds: float) -> type[LimitedHeaders]:
    """Return the protocol with a time limit for headers."""
    return type("LimitedHeaders", (LimitedHeaders,), {"header_seconds": seconds})
