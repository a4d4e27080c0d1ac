"""The bodies of a request and of a response as files.

An operation runs in a worker thread and may hand the file on to threads of the native engine. Each read asks the
event loop for the next part of the body, and each write waits until the event loop has sent it. So the network's own
flow control bounds the memory, and nothing is buffered beside one part.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from starlette.types import Message

T = TypeVar("T")
PART = 1 << 18
"""The size of the parts of a response, and of the bodies that are read before their operation starts."""


class Disconnected(OSError):
    """The client closed the connection before the end of a body."""


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


class RequestBody(io.RawIOBase):
    """The body of a request, read part by part from any thread.

    Attributes:
        broken: Whether the client left before the end of the body.
    """

    def __init__(self, receive: Callable[[], Awaitable[Message]], loop: Loop) -> None:
        super().__init__()
        self._receive = receive
        self._loop = loop
        self._part = memoryview(b"")
        self._complete = False
        self.broken = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._part and not self._complete:
            self._part = memoryview(self._loop.call(self.receive()))
        size = min(len(buffer), len(self._part))
        buffer[:size] = self._part[:size]
        self._part = self._part[size:]
        return size

    async def receive(self) -> bytes:
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

    async def fetch(self, size: int) -> None:
        """Receive a small body now.

        Its operation then holds no thread while the body arrives.

        Args:
            size: The size that the client states.
        """
        if size <= PART:
            self._part = memoryview(await self.whole())

    async def whole(self) -> bytes:
        """Return the rest of the body, from the event loop."""
        parts = []
        while not self._complete:
            parts.append(await self.receive())
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def discard(self, most: int) -> None:
        """Drop the rest of the body, so that the client reads the response.

        Args:
            most: The number of bytes after which the client has to do without the response.
        """
        while not self._complete and most > 0:
            try:
                most -= len(await self.receive())
            except Disconnected:
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
