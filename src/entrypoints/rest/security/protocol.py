"""The HTTP protocol of uvicorn with a time limit for headers."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedHeaders(H11Protocol):
    """Closes a connection whose next request line and headers do not arrive in time.

    uvicorn limits the time between requests alone, so a client could keep a connection open by a byte now and then.
    """

    header_seconds = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self.conn.trailing_data[0] and self._timer is None:
            self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._timer = self.loop.call_later(self.header_seconds, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def timed_headers(seconds: float) -> type[TimedHeaders]:
    """Return the protocol with a time limit for headers."""
    return type("TimedHeaders", (TimedHeaders,), {"header_seconds": seconds})
