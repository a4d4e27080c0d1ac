"""Answers of ``ListEvents``: a batch of CloudEvents, or a stream of them.

A caller that waits takes no thread: the event loop reads the log again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

import attrs
from starlette.responses import Response
from starlette.types import Receive, Send

from lancekeep.adapters.rest.routes import CURSOR_HEADER, SOURCE_HEADER
from lancekeep.entrypoints.rest.channel import disconnected
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.entrypoints.rest.requests import Call

BATCH: Final = "application/cloudevents-batch+json"
STREAM: Final = "text/event-stream"
LONGEST_WAIT: Final = 60
"""The most seconds for which a request waits for an event."""
_PAUSE: Final = 0.25
"""Seconds between two reads for one caller that waits."""
_PAUSE_OF_EACH: Final = 0.01
"""Seconds by which each caller that waits makes the pause of all of them longer."""
_KEEP_ALIVE: Final = 15.0
"""Seconds after which a stream without events shows that it is alive."""
_FORMAT: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}

Perform = Callable[[Call], Awaitable[Mapping[str, Any]]]
"""Performs ``ListEvents`` without a wait."""


class EventAnswers:
    """Answers ``ListEvents``.

    Args:
        longest: The seconds after which a stream ends; its client continues with a new stream.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._waiting = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End the waits and the streams."""
        self._stopping.set()

    async def answer(self, call: Call, perform: Perform, receive: Receive, send: Send) -> Response | None:
        """Return the answer of a request; None if it was sent as a stream.

        Raises:
            HttpError: The wait is too long.
        """
        request: Any = call.request
        wait = 0 if request.wait is None else request.wait
        if not 0 <= wait <= LONGEST_WAIT:
            raise HttpError(400, f"The wait is {wait} seconds; give a number from 0 to {LONGEST_WAIT}.")
        streams = STREAM in map(str.strip, call.headers.get("accept", "").split(","))
        if streams:
            call = _after(call, call.headers.get("last-event-id") or request.after)
        found = await perform(call)
        gone = asyncio.create_task(disconnected(receive))
        try:
            if streams:
                await self._stream(call, perform, found, gone, send)
                return None
            loop = asyncio.get_running_loop()
            until = loop.time() + wait
            while not found["events"] and not gone.done():
                left = until - loop.time()
                if left <= 0 or not await self._paused(left, gone):
                    break
                call = _after(call, found["cursor"])
                found = await perform(call)
            return batch_of(found)
        finally:
            gone.cancel()

    async def _stream(
        self, call: Call, perform: Perform, found: Mapping[str, Any], gone: asyncio.Task[None], send: Send
    ) -> None:
        headers = {"content-type": f"{STREAM}; charset=utf-8", **_FORMAT}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        loop = asyncio.get_running_loop()
        end, alive, cursor = loop.time() + self._longest, loop.time(), getattr(call.request, "after", None)
        while not gone.done():
            text = "".join(f"id: {each['cursor']}\ndata: {written(each).decode()}\n\n" for each in found["events"])
            last = found["events"][-1]["cursor"] if found["events"] else cursor
            if found["cursor"] != last:
                text += f"id: {found['cursor']}\n\n"  # events that the caller may not see
            cursor = found["cursor"]
            if not text and loop.time() - alive >= _KEEP_ALIVE:
                text = ": alive\n\n"
            if text:
                alive = loop.time()
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            left = end - loop.time()
            if left <= 0 or not await self._paused(left, gone, at_once=bool(found["events"])):
                break
            call = _after(call, cursor)
            try:
                found = await perform(call)
            except Exception:  # the client connects again, and gets the error as an answer
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _paused(self, most: float, gone: asyncio.Task[None], *, at_once: bool = False) -> bool:
        """Pause; return whether to go on."""
        if self._stopping.is_set():
            return False
        if at_once:
            return True
        self._waiting += 1
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            pause = min(most, max(_PAUSE, _PAUSE_OF_EACH * self._waiting))
            await asyncio.wait((gone, stopping), timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            stopping.cancel()
        return not self._stopping.is_set() and not gone.done()


def batch_of(answer: Mapping[str, Any]) -> Response:
    """Return events as one batch of CloudEvents."""
    content = b"[" + b",".join(map(written, answer["events"])) + b"]"
    headers = {CURSOR_HEADER: answer["cursor"], SOURCE_HEADER: answer["source"], "cache-control": "no-store"}
    return Response(content, headers=headers, media_type=BATCH)


def written(fields: Mapping[str, Any]) -> bytes:
    """Return an event in the JSON format of CloudEvents."""
    from cloudevents.core.formats.json import JSONFormat  # only servers with events need it
    from cloudevents.core.v1.event import CloudEvent

    attributes = {name: value for name, value in fields.items() if name != "data"}
    if "time" in attributes:
        attributes["time"] = datetime.fromisoformat(attributes["time"])
    return JSONFormat().write(CloudEvent(attributes, fields["data"]))


def _after(call: Call, cursor: str | None) -> Call:
    return attrs.evolve(call, request=call.request.model_copy(update={"after": cursor}))
