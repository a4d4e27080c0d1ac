"""The processes that send appends and upserts to this one."""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Condition, Lock
from typing import Any, Final

from lancekeep.adapters.committers.frames import (
    MOST_ROWS_BYTES,
    Incoming,
    Malformed,
    frame,
    reply_frame,
    token_frame,
)
from lancekeep.domain.commit_token import CommitToken
from lancekeep.ports.committers import Asker, Declined, Reply
from lancekeep.ports.rows import MergeCounts

MOST_HELD: Final = 64 << 20
"""The bytes of appends of other processes that a process holds."""
PART: Final = 1 << 18
"""The bytes that are received at once."""


class Taken:
    """The appends of other processes that are not answered."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._sizes: dict[tuple[int, int], int] = {}
        self._size = 0

    def add(self, asker: Asker, number: int, size: int) -> bool:
        """Add an append.

        Returns False if too many bytes are held, or the number is in use.
        """
        with self._changed:
            if self._size + size > MOST_HELD or (id(asker), number) in self._sizes:
                return False
            self._sizes[id(asker), number] = size
            self._size += size
            return True

    def remove(self, asker: Asker, numbers: Sequence[int]) -> None:
        """Remove answered appends."""
        with self._changed:
            self._size -= sum(self._sizes.pop((id(asker), number), 0) for number in numbers)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all are answered, or for some seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sizes, seconds)


class Answering(Asker):
    """Answers what a process has sent.

    Args:
        taken: The appends that are not answered.
    """

    def __init__(self, taken: Taken) -> None:
        self._taken = taken

    def answer(self, numbers: Sequence[int], reply: Reply) -> None:
        self._send(reply_frame(numbers, reply))
        self._taken.remove(self, numbers)

    def decline(self, number: int) -> None:
        """Answer that an append was not taken."""
        self._send(reply_frame([number], Declined.NOT_TAKEN))

    @abstractmethod
    def _send(self, content: bytes) -> object:
        """Send a frame, unless the connection has ended."""


class AskerConnection(Answering):
    """The connection to a process that sends appends."""

    def __init__(
        self,
        connection: socket.socket,
        take: Callable[[AskerConnection, int, Mapping[str, Any], bytes], None],
        taken: Taken,
    ) -> None:
        super().__init__(taken)
        self._connection = connection
        self._take = take
        self._sending = Lock()
        self.is_gone = False

    def read(self) -> None:
        """Take the appends that the process sends, until its end."""
        incoming = Incoming(MOST_ROWS_BYTES)
        try:
            while part := self._connection.recv(PART):
                incoming.add(part)
                while (found := incoming.next()) is not None:
                    message, content = found
                    if "ping" in message:
                        self._send(frame({"pong": True}))
                        continue
                    number = message.get("append")
                    if type(number) is not int:
                        raise Malformed("neither an append nor a ping")
                    self._take(self, number, message, content)
        except (OSError, Malformed):
            pass
        finally:
            self.end()

    def announce(self, numbers: Sequence[int], token: CommitToken, counts: Sequence[MergeCounts] = ()) -> bool:
        return self._send(token_frame(numbers, token, counts))

    def end(self) -> None:
        """End the connection.

        Appends that were not answered are dropped before their commit is attempted.
        """
        with self._sending:
            self.is_gone = True
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # a thread that reads would keep it open
            self._connection.close()

    def forget(self) -> None:
        """Close a connection of the parent process."""
        self.is_gone, self._sending = True, Lock()
        self._connection.close()

    def _send(self, content: bytes) -> bool:
        """Send a frame whole, without waiting; return whether it was sent."""
        with self._sending:
            if self.is_gone:
                return False
            try:
                if self._connection.send(content, socket.MSG_DONTWAIT) == len(content):
                    return True
            except OSError:
                pass
            self.is_gone = True
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # the thread that reads closes it
            return False
