"""Limits of requests, as ASGI middleware: size, time, concurrency and rate."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable

import attrs
from lance_namespace.errors import ErrorCode
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lancekeep.adapters.rest.routes import Body, Route
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.entrypoints.rest.security.refusal import refuse

MOST_BUCKETS = 10_000
"""How many principals' rates are remembered."""


class Concurrency:
    """Refuse requests while too many are in progress (503)."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._running >= self._most:
            await refuse(_in_progress(f"The server has {self._most}"), scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


class Share:
    """Refuse what a principal asks beyond its part of the requests (503).

    Its part is three quarters, so that others are always answered.

    Args:
        app: The application.
        most: The requests in progress that the server accepts.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = math.ceil(most * 3 / 4)
        self._running: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["state"]["principal"].name
        if self._running[name] >= self._most:
            await refuse(_in_progress(f"{name} has {self._most}"), scope, receive, send)
            return
        self._running[name] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]


def _in_progress(whose: str) -> HttpError:
    message = f"{whose} requests in progress; try again later."
    return HttpError(503, message, ErrorCode.SERVICE_UNAVAILABLE, {"retry-after": "1"})


@attrs.define
class TokenBucket:
    """A token bucket.

    Attributes:
        rate: The tokens per second.
        burst: The size of the bucket.
        level: The tokens in the bucket at the time ``at``.
        at: A time in seconds.
    """

    rate: float
    burst: float
    level: float
    at: float

    def take(self, now: float) -> float:
        """Take a token; return 0, or the number of seconds until there is one."""
        self.level = min(self.burst, self.level + (now - self.at) * self.rate)
        self.at = now
        if self.level < 1:
            return (1 - self.level) / self.rate
        self.level -= 1
        return 0.0


class Rate:
    """Refuse the requests of a principal that exceed its rate (429).

    Args:
        app: The application.
        per_second: The requests per second to all workers of the server.
        burst: The requests at once to this worker.
        workers: How many workers the server has.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        per_second: float,
        burst: int,
        workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._stated = f"{per_second:g} requests per second"
        if workers > 1:
            self._stated += f", in equal parts to {workers} workers"
        self._rate = per_second / workers
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = scope.get("state", {}).get("principal")
        wait = self._bucket("" if principal is None else principal.name).take(self._clock())
        if wait:
            headers = {"retry-after": str(math.ceil(wait))}
            message = f"Each principal may send {self._stated}; try again later."
            await refuse(HttpError(429, message, ErrorCode.THROTTLING, headers), scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _bucket(self, name: str) -> TokenBucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(self._rate, self._burst, self._burst, self._clock())
            if len(self._buckets) > MOST_BUCKETS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        return bucket


class Transfer:
    """Refuse bodies that are too large (413) or too slow (408).

    A response that the client does not read in time is given up.

    The time counts only while the server waits for the client, so a slow operation does not consume it.

    Args:
        app: The application.
        largest: The maximum size of an Arrow body in bytes.
        document: The maximum size of another body in bytes.
        seconds: The maximum time that the server waits for the client, for the request and for the response.
        patience: How long it waits before the client must send or read at the least rate.
        rate: The least rate in bytes per second; 0 for any rate.
    """

    def __init__(
        self, app: ASGIApp, largest: int, document: int, seconds: float, patience: float = 0, rate: int = 0
    ) -> None:
        self._app = app
        self._largest = largest
        self._document = document
        self._seconds = seconds
        self._patience = patience
        self._rate = rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stated = Headers(scope=scope).get("content-length", "0")
        if not stated.isdecimal() or int(stated) > self._largest:
            await refuse(_too_large(self._largest), scope, receive, send)
            return

        def largest() -> int:
            route: Route | None = scope["state"].get("route")  # known before the body is read
            return self._largest if route is not None and route.body is Body.ARROW else self._document

        transfer = _Transfer(receive, send, largest, self._patience_for)
        await self._app(scope, transfer.receive, transfer.send)
        if transfer.refusal is not None and not transfer.started:
            await refuse(transfer.refusal, scope, receive, send)

    def _patience_for(self, size: int) -> float:
        """Return how long the server waits in all for a client that has sent or read so many bytes."""
        return min(self._seconds, self._patience + size / self._rate) if self._rate else self._seconds


def _too_large(largest: int) -> HttpError:
    return HttpError(413, f"The body is too large: the server accepts {largest} bytes.")


@attrs.define
class _Transfer:
    """The two directions of one request."""

    _receive: Receive
    _send: Send
    _largest: Callable[[], int]
    _patience_for: Callable[[int], float]
    size: int = 0
    sent: int = 0
    complete: bool = False
    started: bool = False
    refusal: HttpError | None = None
    _waited: float = 0.0
    _answered: float = 0.0

    async def receive(self) -> Message:
        if self.refusal is not None:
            return {"type": "http.disconnect"}  # ends the operation, whose response `send` drops
        if self.complete:  # what is left to wait for is the end of the connection
            return await self._receive()
        start, patience = time.monotonic(), self._patience_for(self.size)
        try:
            async with asyncio.timeout(patience - self._waited):  # unlike wait_for, it starts no task
                message = await self._receive()
        except TimeoutError:
            self.refusal = HttpError(
                408,
                f"Of the body, {self.size} bytes arrived within {patience:.0f} seconds; send it at once.",
                headers={"connection": "close"},
            )
            return {"type": "http.disconnect"}
        self._waited += time.monotonic() - start
        self.size += len(message.get("body", b""))
        self.complete = not message.get("more_body", False)
        if self.size > self._largest():
            self.refusal = _too_large(self._largest())
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        if self.refusal is not None and not self.started:
            return  # the refusal takes the place of the operation's own response
        self.started = True
        start = time.monotonic()
        self.sent += len(message.get("body", b""))
        await _within(self._send(message), self._patience_for(self.sent) - self._answered)
        self._answered += time.monotonic() - start


async def _within(sending: Awaitable[None], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await sending
    except TimeoutError:
        raise OSError("the client does not read the response") from None
