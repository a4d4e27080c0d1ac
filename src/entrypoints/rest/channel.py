"""The body of a request as it arrives, and the body of a response as a file.

An operation runs in a worker thread and may hand the file on to threads of the native engine. Each write waits until
the event loop has sent it. So the network's own flow control bounds the memory, and nothing is buffered beside one
part. The body of a request has arrived before its operation takes a thread (`lancekeep.entrypoints.rest.bodies`).
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Message, Receive

T = TypeVar("T")
PART = 1 << 18
"""The size of the parts of a response."""


class Disconnected(OSError):
    """The client closed the connection before the end of a body."""


async def disconnected(receive: Receive) -> None:
    """Wait until the client of a request that has arrived closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Loop:
    """Calls coroutines of an event loop from any other thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine. Raises `Disconnected` if the server stops."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except CancelledError as error:
            raise Disconnected("the server stopped before the end of the body") from error


class RequestBody:
    """The body of a request, as it arrives.

    Attributes:
        broken: Whether the client left before the end of the body.
    """

    def __init__(self, receive: Callable[[], Awaitable[Message]]) -> None:
        self._receive = receive
        self._complete = False
        self.broken = False

    async def part(self) -> bytes:
        """Return the next part; empty after the last one.

        Raises:
            Disconnected: The client has disconnected, so the body stays incomplete.
        """
        if self._complete:
            return b""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.broken = True
            raise Disconnected("the client closed the connection before the end of the request")
        self._complete = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    async def parts(self) -> AsyncIterator[bytes]:
        """Return the parts up to the end. Raises `Disconnected` as `part` does."""
        while not self._complete:
            yield await self.part()

    async def discard(self, most: int) -> None:
        """Drop the rest of the body, so that the client reads the response.

        Args:
            most: The number of bytes after which the client has to do without the response.
        """
        with suppress(Disconnected):
            async for part in self.parts():
                most -= len(part)
                if most <= 0:
                    return


class ResponseBody(io.RawIOBase):
    """The body of a response, written part by part from any thread.

    The response starts with the first full part, so an operation that fails before it can still answer with an error.

    Attributes:
        started: Whether the client has a part of the response.
        abandoned: Whether the client has disconnected, so that the next write fails.
    """

    def __init__(self, start: Callable[[], Awaitable[None]], send: Callable[[Message], Awaitable[None]], loop: Loop):
        super().__init__()
        self._start = start
        self._send = send
        self._loop = loop
        self._part = bytearray()
        self.started = False
        self.abandoned = False

    def abandon(self) -> None:
        """Let the next write fail: the client is gone."""
        self.abandoned = True

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._part += data
        if len(self._part) >= PART:
            part, self._part = bytes(self._part), bytearray()
            self._loop.call(self._push(part, more=True))
        return len(data)

    async def finish(self) -> None:
        """Send the last part and end the body."""
        await self._push(bytes(self._part), more=False)

    async def _push(self, part: bytes, *, more: bool) -> None:
        if self.abandoned:
            raise Disconnected("the client closed the connection before the end of the response")
        if not self.started:
            self.started = True
            await self._start()
        await self._send({"type": "http.response.body", "body": part, "more_body": more})
