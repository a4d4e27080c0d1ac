"""Send appends and upserts to the process that commits for their table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from threading import Lock
from typing import TypeVar

from lancekeep.application.rows.waiting_writes import WaitingWrite, answer_all
from lancekeep.domain.appends import LOOK_EVERY, Pace
from lancekeep.domain.commit import Committed, Conflict, Outcome, Unknown
from lancekeep.domain.commit_token import CommitToken, CommitUnknown
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.transaction import AllCommitted
from lancekeep.ports.committers import Committers, Received, Reply
from lancekeep.ports.rows import MergeCounts

SETTLED_WITHIN = 2.0
"""Seconds in which a version that was announced may appear, by another committer or by one that was slow."""
_REMEMBERED = 256
_TRIES = 2
"""The processes to which an append is sent, one after the other: the second is the successor of one that ended."""


W = TypeVar("W", bound=WaitingWrite)


class Forwarding:
    """The appends and upserts that this process sends to others, and takes.

    What was taken is never sent on.

    Args:
        committers: The committers.
        take: Lets what was received wait for the committer of this process.
        resolve: Settles a commit of unknown outcome.
        clock: Returns monotonic seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        committers: Committers,
        take: Callable[[Received], None],
        resolve: Callable[[CommitToken], Outcome | AllCommitted],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._committers = committers
        self._take = take
        self._resolve = resolve
        self._clock = clock
        self._sleep = sleep
        self._numbers = count(1)
        self._sent: dict[int, WaitingWrite] = {}
        self._paces: dict[ObjectId, Pace] = {}
        self._settling: dict[CommitToken, Future[Outcome | AllCommitted]] = {}
        self._lock = Lock()
        self._has_begun = False

    def forward(self, table: ObjectId, make: Callable[[], W]) -> W | None:
        """Send an append or upsert to the process that commits for its table, and wait.

        Args:
            table: The table.
            make: Makes it, once for each process to which it is sent.

        Returns:
            It, answered; None if this process has to commit it, and nothing was or will be committed.
        """
        if not self._has_begun:
            with self._lock:  # not earlier: threads may make several of these objects, and use one
                if not self._has_begun:
                    self._committers.begin(self._take, self._counted, self._answered)
                    self._has_begun = True
        for _ in range(_TRIES):
            write, number = make(), next(self._numbers)
            upsert = write.sent_upsert(self._clock())
            self._sent[number] = write
            if not self._committers.send(table, number, write.rows, write.key, upsert):
                del self._sent[number]
                return None
            if upsert is None:
                if len(self._paces) == _REMEMBERED:
                    self._paces.clear()
                self._paces[table] = Pace(ended=self._clock())
            write.wait_for_reply(self._clock, partial(self._committers.give_up, number))
            if not (write.is_dropped or self._is_lost(write)):
                return write
        return None

    def note_lost(self, table: ObjectId) -> None:
        """Note that this process has lost a version of a table to another writer."""
        self._committers.lost(table)

    def move(self, table: ObjectId, writes: Iterable[WaitingWrite]) -> None:
        """Let writes go to the process that commits for their table, if it is known.

        Nothing of them was committed.
        """
        if self._committers.is_elsewhere(table):
            for write in writes:
                write.move()

    def are_recent(self, table: ObjectId) -> bool:
        """Return whether this process has sent an append to the table a moment ago."""
        pace = self._paces.get(table)
        return pace is not None and pace.is_recent(self._clock())

    def _is_lost(self, write: WaitingWrite) -> bool:
        """Settle a write whose outcome is unknown; return whether it was certainly not committed."""
        if not isinstance(write.error, CommitUnknown):
            return False
        try:
            outcome = self._settled(write.error.token)
        except StoreUnavailable:
            return False
        if isinstance(outcome, Committed):
            write.settle(outcome)
        return isinstance(outcome, Conflict)

    def _settled(self, token: CommitToken) -> Outcome | AllCommitted:
        """Settle a commit, once for all threads whose writes it has."""
        with self._lock:
            settling = self._settling.get(token)
            is_first = settling is None
            if settling is None:
                settling = self._settling[token] = Future()
        if is_first:
            try:
                settling.set_result(self._settle(token))
            except BaseException as error:
                settling.set_exception(error)
            finally:
                del self._settling[token]
        return settling.result()

    def _settle(self, token: CommitToken) -> Outcome | AllCommitted:
        """Settle a commit; give other committers time to commit its version."""
        ends = self._clock() + SETTLED_WITHIN
        while True:
            outcome = self._resolve(token)
            if not isinstance(outcome, Unknown) or self._clock() >= ends:
                return outcome
            self._sleep(LOOK_EVERY)

    def _counted(self, numbers: Sequence[int], counts: Sequence[MergeCounts]) -> None:
        for number, each in zip(numbers, counts, strict=True):
            if (write := self._sent.get(number)) is not None:
                write.count(each)

    def _answered(self, numbers: Sequence[int], reply: Reply) -> None:
        answered = [write for number in numbers if (write := self._sent.pop(number, None)) is not None]
        for write in answered:
            write.note(reply)
        answer_all(answered)
