"""Appends that wait for a committer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import attrs

from lancekeep.domain.appends import Waiting
from lancekeep.domain.commit import Committed
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import LancekeepError, StoreUnavailable
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.ports.committers import Asker, Declined, Reply
from lancekeep.ports.data_files import Rows


class Dropped(LancekeepError):
    """A group must not be committed, because some of its appends are dropped."""


@attrs.frozen
class Alone:
    """The append has to commit alone, through the table engine.

    Attributes:
        reader: a stream of all its rows.
    """

    reader: Any


@attrs.define(eq=False)
class Append:
    """An append that waits for its answer: committed, failed, or to commit alone.

    Attributes:
        key: the idempotency key, which is recorded with its group.
        asker: the process that has sent the append; None if a thread of this process waits for it.
        number: its number, if another process has sent it.
        is_dropped: whether the process that waits takes the append as not committed by another process.
        is_written: whether its rows are in the file of its group.
        following: the append that is answered after this one. Hundreds of threads that continue at once would compete
            for the interpreter's lock, also with the committer.
        is_left: whether its thread waits no longer: it is answered, or was interrupted.
    """

    rows: Rows
    key: SharedKey | None = None
    asker: Asker | None = None
    number: int = 0
    is_dropped: bool = False
    committed: Committed | None = None
    error: BaseException | None = None
    is_written: bool = False
    following: Append | None = None
    is_left: bool = False
    _answered: SimpleQueue[None] = attrs.field(factory=SimpleQueue)

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.rows.schema, self.rows.size)

    @property
    def reply(self) -> Reply:
        """What became of the append."""
        return self.error or self.committed or Declined.ALONE

    def wait(self) -> None:
        """Wait for the answer."""
        try:
            self._answered.get()
        finally:
            self.is_left = True
            self._answer_following()

    def answer(self) -> None:
        """Let the thread of the append continue, then the thread of the following append."""
        self._answered.put(None)
        if self.is_left:
            self._answer_following()

    def _answer_following(self) -> None:
        if self.following is not None:
            self.following.answer()


def answer_all(appends: Sequence[Append]) -> None:
    """Answer appends.

    Other processes are answered at once, and threads of this process one after the other.
    """
    for asker, theirs in _by_asker(appends):
        replies = dict[object, tuple[Reply, list[int]]]()
        for append in theirs:
            reply = append.reply
            alike = (reply.version, reply.transaction) if isinstance(reply, Committed) else id(reply)
            replies.setdefault(alike, (reply, []))[1].append(append.number)
        for reply, numbers in replies.values():
            asker.answer(numbers, reply)
    own = [append for append in appends if append.asker is None]
    for append, following in pairwise(own):
        append.following = following
    if own:
        own[0].answer()


def announce(appends: Sequence[Append], token: Callable[[], CommitToken]) -> None:
    """Announce a commit to the processes that have sent some of its appends.

    Raises:
        Dropped: A process has given up. Its appends are dropped, and the commit must not be attempted.
    """
    is_complete = True
    for asker, theirs in _by_asker(appends):
        if not asker.announce([append.number for append in theirs], token()):
            is_complete = False
            for append in theirs:
                append.is_dropped = True
    if not is_complete:
        raise Dropped("a process that has sent appends of the group has given up")


def unknown_append() -> StoreUnavailable:
    """Return the error of a keyed append whose effect cannot be determined any more."""
    return StoreUnavailable(
        "whether an attempt of the request was committed cannot be determined: the version that shows it was removed, "
        "by a clean-up or with its table. Check the rows of the table, and send what is missing with a new key"
    )


def _by_asker(appends: Sequence[Append]) -> Iterator[tuple[Asker, list[Append]]]:
    found = dict[int, tuple[Asker, list[Append]]]()
    for append in appends:
        if append.asker is not None:
            found.setdefault(id(append.asker), (append.asker, []))[1].append(append)
    return iter(found.values())
