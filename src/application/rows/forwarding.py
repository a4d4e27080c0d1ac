"""Send appends to the process of this host that commits for their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from threading import Lock

import attrs

from lancekeep.application.rows.waiting_appends import Append, answer_all
from lancekeep.domain.appends import LOOK_EVERY, Pace
from lancekeep.domain.commit import Committed, Conflict, Outcome, Unknown
from lancekeep.domain.commit_token import CommitToken, CommitUnknown
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.domain.transaction import AllCommitted
from lancekeep.ports.committers import Committers, Declined, Received, Reply
from lancekeep.ports.data_files import Rows

SETTLED_WITHIN = 2.0
"""Seconds in which a version that was announced may appear, by another committer or by one that was slow."""
_REMEMBERED = 256
_TRIES = 2
"""The processes to which an append is sent, one after the other: the second is the successor of one that ended."""


class Forwarding:
    """The appends that this process sends to other processes, and takes from them.

    An append that was taken is never sent on.

    Args:
        committers: The committers of this host.
        enter: Lets an append wait for the committer of this process.
        resolve: Settles a commit of unknown outcome.
        clock: Returns monotonic seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        committers: Committers,
        enter: Callable[[ObjectId, Append], None],
        resolve: Callable[[CommitToken], Outcome | AllCommitted],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._committers = committers
        self._enter = enter
        self._resolve = resolve
        self._clock = clock
        self._sleep = sleep
        self._numbers = count(1)
        self._sent: dict[int, Append] = {}
        self._paces: dict[ObjectId, Pace] = {}
        self._settling: dict[CommitToken, Future[Outcome | AllCommitted]] = {}
        self._lock = Lock()
        self._has_begun = False

    def forward(self, table: ObjectId, rows: Rows, key: SharedKey | None) -> Append | None:
        """Send an append to the process that commits for its table, and wait.

        Returns:
            The append, answered; None if this process has to commit it, and nothing was or will be committed.
        """
        if not self._has_begun:
            with self._lock:  # not earlier: threads may make several of these objects, and use one
                if not self._has_begun:
                    self._committers.begin(self._received, self._answered)
                    self._has_begun = True
        for _ in range(_TRIES):
            append, number = Append(rows, key), next(self._numbers)
            self._sent[number] = append
            if not self._committers.send(table, number, rows, key):
                del self._sent[number]
                return None
            if len(self._paces) == _REMEMBERED:
                self._paces.clear()
            self._paces[table] = Pace(ended=self._clock())
            append.wait()
            if not (append.is_dropped or self._is_lost(append)):
                return append
        return None

    def are_recent(self, table: ObjectId) -> bool:
        """Return whether this process has sent an append to the table a moment ago."""
        pace = self._paces.get(table)
        return pace is not None and pace.is_recent(self._clock())

    def _is_lost(self, append: Append) -> bool:
        """Settle an append whose outcome is unknown; return whether it was certainly not committed."""
        if not isinstance(append.error, CommitUnknown):
            return False
        try:
            outcome = self._settled(append.error.token)
        except StoreUnavailable:
            return False
        if isinstance(outcome, Committed):
            append.committed, append.error = attrs.evolve(outcome, rows=append.rows.count), None
        return isinstance(outcome, Conflict)

    def _settled(self, token: CommitToken) -> Outcome | AllCommitted:
        """Settle a commit, once for all threads whose appends it has."""
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

    def _received(self, received: Received) -> None:
        append = Append(received.rows, received.key, received.asker, received.number)
        self._enter(received.table, append)

    def _answered(self, numbers: Sequence[int], reply: Reply) -> None:
        answered = [append for number in numbers if (append := self._sent.pop(number, None)) is not None]
        for append in answered:
            if isinstance(reply, Committed):
                append.committed = attrs.evolve(reply, rows=append.rows.count)
            elif isinstance(reply, BaseException):
                append.error = reply
            append.is_dropped = reply is Declined.NOT_TAKEN
        answer_all(answered)
