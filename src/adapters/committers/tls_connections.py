"""The connections of links: what is sent over them, and what each side waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Final

from lancekeep.adapters.committers.asked import Asked
from lancekeep.adapters.committers.askers import PART, Answering, Taken
from lancekeep.adapters.committers.frames import (
    Incoming,
    Malformed,
    acknowledgement,
    frame,
    token_frame,
)
from lancekeep.domain.commit_token import CommitToken
from lancekeep.ports.committers import LinkedTables
from lancekeep.ports.rows import MergeCounts

SILENCE: Final = 1.0
"""Seconds without a byte after which a process asks whether its committer still runs."""
PATIENCE: Final = 3
"""How often it asks before it gives up."""
ACKNOWLEDGED_WITHIN: Final = 2.0
"""Seconds in which an asker acknowledges a token; otherwise its appends are dropped."""
_HELD_BACK: Final = 1 << 20
"""The bytes of replies that an asker may leave unread."""


class TlsLink:
    """The connection to a process that commits appends of this one.

    Args:
        address: The address of the process.
        loop: The loop of the links.
        writer: The connection.
        tables: Takes counts and replies.
        ended: Is called when the connection ends, with whether the process was silent.
    """

    def __init__(
        self,
        address: str,
        loop: asyncio.AbstractEventLoop,
        writer: asyncio.StreamWriter,
        tables: LinkedTables,
        ended: Callable[[TlsLink, bool], None],
    ) -> None:
        self.address = address
        self._loop = loop
        self._writer = writer
        self._ended = ended
        self._asked = Asked(tables.counted, tables.answered, partial(tables.unlinked, address))
        self._is_given_up = False
        self.is_used = True

    def send(self, number: int, content: bytes) -> bool:
        """Send an append; return False if the connection has ended."""
        if not self._asked.add(number):
            return False
        soon(self._loop, self._writer.write, content)
        return True

    def give_up(self, number: int) -> None:
        """Give a process up that has not answered what was sent by a number."""
        if number in self._asked:
            self._is_given_up = True
            soon(self._loop, self.end)

    def end(self) -> None:
        """End the connection. What waits is answered."""
        self._writer.transport.abort()

    async def read(self, reader: asyncio.StreamReader, incoming: Incoming) -> None:
        """Take tokens and replies until the end, then answer what waits."""
        unanswered, fault = 0, ""
        try:
            while unanswered < PATIENCE:
                try:
                    async with asyncio.timeout(SILENCE):
                        part = await reader.read(PART)
                except TimeoutError:
                    if self._asked:
                        unanswered += 1
                        self._writer.write(frame({"ping": True}))
                    continue
                if not part:
                    break
                unanswered = 0
                incoming.add(part)
                while (found := incoming.next()) is not None:
                    self._take(found[0])
        except OSError:
            pass
        except Exception as error:  # whatever it is, the appends get their answers
            fault = str(error) or repr(error)
        self.is_used = False
        self._asked.stop()
        self.end()
        self._ended(self, unanswered == PATIENCE or self._is_given_up)
        self._asked.end(fault)

    def _take(self, message: Mapping[str, Any]) -> None:
        self._asked.take(message)
        number = acknowledgement(message)
        if number is not None:  # of a token, which is now known here
            self._writer.write(frame({"acknowledge": number}))


class TlsAsker(Answering):
    """The connection to a process that sends appends.

    Args:
        loop: The loop of the links.
        writer: The connection.
        taken: The appends that are not answered.
        incoming: What was received.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, writer: asyncio.StreamWriter, taken: Taken, incoming: Incoming
    ) -> None:
        super().__init__(taken)
        self._loop = loop
        self._writer = writer
        self._incoming = incoming
        self._numbers = count(1)
        self._lock = Lock()
        self._announced: dict[int, Future[bool]] = {}
        self._is_gone = False

    @property
    def unread(self) -> int:
        """The bytes of the frame that is not complete."""
        return len(self._incoming)

    async def read(
        self,
        reader: asyncio.StreamReader,
        take: Callable[[TlsAsker, int, Mapping[str, Any], bytes], None],
        has_room: Callable[[], bool],
    ) -> None:
        """Take the appends that the process sends, until its end.

        Frames that are too large end it, too.
        """
        incoming = self._incoming
        with suppress(OSError, Malformed):
            while True:
                while (found := incoming.next()) is not None:
                    message, content = found
                    acknowledged, number = acknowledgement(message), message.get("append")
                    if "ping" in message:
                        self._write(frame({"pong": True}))
                    elif acknowledged is not None:
                        self._acknowledge(acknowledged)
                    elif type(number) is int:
                        await asyncio.to_thread(take, self, number, message, content)
                    else:
                        raise Malformed("neither an append nor an answer")
                part = await reader.read(PART)
                if not part:
                    return
                incoming.add(part)
                if not has_room():
                    return

    def announce(self, numbers: Sequence[int], token: CommitToken, counts: Sequence[MergeCounts] = ()) -> bool:
        number, acknowledged = next(self._numbers), Future[bool]()
        with self._lock:
            if self._is_gone:
                return False
            self._announced[number] = acknowledged
        self._send(token_frame(numbers, token, counts, number))
        try:
            return acknowledged.result(ACKNOWLEDGED_WITHIN)
        except NotInTime:
            soon(self._loop, self.end)  # the asker takes the token for nothing from then on
            return False
        finally:
            with self._lock:
                self._announced.pop(number, None)

    def end(self) -> None:
        """End the connection.

        Appends that were not answered are dropped before their commit is attempted.
        """
        with self._lock:
            self._is_gone = True
            announced, self._announced = list(self._announced.values()), {}
        for each in announced:
            if not each.done():
                each.set_result(False)
        self._writer.transport.abort()

    def _acknowledge(self, number: int) -> None:
        with self._lock:
            announced = self._announced.pop(number, None)
        if announced is not None and not announced.done():
            announced.set_result(True)

    def _send(self, content: bytes) -> None:
        soon(self._loop, self._write, content)

    def _write(self, content: bytes) -> None:
        if self._writer.transport.get_write_buffer_size() > _HELD_BACK:
            self.end()  # it reads nothing
        elif not self._is_gone:
            self._writer.write(content)


async def received(reader: asyncio.StreamReader, incoming: Incoming) -> dict[str, Any]:
    """Return the next frame of a connection that begins.

    Raises:
        Malformed: The connection ended, or the frame has bytes after its object.
    """
    while (found := incoming.next()) is None:
        part = await reader.read(PART)
        if not part:
            raise Malformed("the connection ended")
        incoming.add(part)
    message, content = found
    if content:
        raise Malformed("rows before the welcome")
    return message


def soon(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *arguments: Any) -> None:
    """Call a function in the thread of the links, unless it has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act, *arguments)
