"""What this process has sent to another process, and waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from lancekeep.adapters.committers.frames import counts_of, numbers_of, reply_of, token_of, unknown_reply
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.ports.committers import Declined, Reply
from lancekeep.ports.rows import MergeCounts


class Asked:
    """The appends and upserts without a reply that one connection carries.

    Threads may share an instance. The thread that reads the connection calls `take` and `end`.

    Args:
        counted: Takes the counts of announced upserts.
        answered: Takes the replies.
        declined: Is called if the other process declines an append.
    """

    def __init__(
        self,
        counted: Callable[[Sequence[int], Sequence[MergeCounts]], None],
        answered: Callable[[Sequence[int], Reply], None],
        declined: Callable[[], None],
    ) -> None:
        self._counted = counted
        self._answered = answered
        self._declined = declined
        self._lock = Lock()
        self._waiting: dict[int, CommitToken | None] = {}
        self._has_ended = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, number: object) -> bool:
        return number in self._waiting

    def add(self, number: int) -> bool:
        """Add what is sent next; return False after the end."""
        with self._lock:
            if not self._has_ended:
                self._waiting[number] = None
            return not self._has_ended

    def take(self, message: Mapping[str, Any]) -> None:
        """Take a frame of the other process: a token, a reply, or an answer to a ping.

        Raises:
            Malformed: It is something else.
        """
        if "pong" in message:
            return
        numbers, token = numbers_of(message), token_of(message)
        if token is not None:
            if counts := counts_of(message, numbers):
                self._counted(numbers, counts)
            with self._lock:
                self._waiting.update({number: token for number in numbers if number in self._waiting})
            return
        with self._lock:
            tokens = {number: self._waiting[number] for number in numbers if number in self._waiting}
        replies = {token: reply_of(message, token) for token in tokens.values()}
        if Declined.NOT_TAKEN in replies.values():
            self._declined()
        with self._lock:
            for number in tokens:
                del self._waiting[number]
        for token, reply in replies.items():
            self._answered([number for number in tokens if tokens[number] is token], reply)

    def stop(self) -> None:
        """Let `add` refuse from now on."""
        with self._lock:
            self._has_ended = True

    def end(self, fault: str) -> None:
        """Answer what has no reply, when no more can arrive.

        Args:
            fault: What was wrong with the frames of the other process; empty if nothing was.
        """
        with self._lock:
            self._has_ended = True
            waiting, self._waiting = self._waiting, {}
        for number, token in waiting.items():
            reply: Reply = Declined.NOT_TAKEN
            if token is not None:
                reply = unknown_reply("the process that commits it ended, or stopped", token)
            elif fault:
                reply = StoreUnavailable(f"whether the rows were committed is not known: their committer sent {fault}")
            self._answered([number], reply)
