"""Writes that wait for a committer, of this process and of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, starmap
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX
from typing import TypeVar

import attrs

from lancekeep.application.concurrency import all_alongside
from lancekeep.domain.commit import Committed
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.ports.committers import Asker, Declined, Reply, SentUpsert
from lancekeep.ports.data_files import Rows
from lancekeep.ports.rows import MergeCounts


@attrs.define(eq=False)
class WaitingWrite(ABC):
    """An append or upsert that waits for its answer.

    It waits for the committer of this process, or was sent to another process.

    Attributes:
        rows: its rows.
        key: its idempotency key, which is recorded with its group; None without one.
        asker: the process that has sent the write; None if a thread of this process waits for it.
        number: its number, if another process has sent it.
        may_move: whether the write may go to another process instead of a further attempt of this one.
        is_dropped: whether the process or the thread that waits takes the write as not committed by its group.
        is_moved: whether that is because the write has to go to another process.
        error: why nothing, or nothing known, was committed.
        following: the write that is answered after this one. Hundreds of threads that continue at once would compete
            for the interpreter's lock, also with the committer.
        is_left: whether its thread waits no longer: it is answered, or was interrupted.
    """

    rows: Rows
    key: SharedKey | None = attrs.field(default=None, kw_only=True)
    asker: Asker | None = attrs.field(default=None, kw_only=True)
    number: int = attrs.field(default=0, kw_only=True)
    may_move: bool = attrs.field(default=True, kw_only=True)
    is_dropped: bool = attrs.field(default=False, init=False)
    is_moved: bool = attrs.field(default=False, init=False)
    error: BaseException | None = attrs.field(default=None, init=False)
    following: WaitingWrite | None = attrs.field(default=None, init=False)
    is_left: bool = attrs.field(default=False, init=False)
    _answered: SimpleQueue[None] = attrs.field(factory=SimpleQueue, init=False)

    @property
    @abstractmethod
    def reply(self) -> Reply:
        """What became of the write."""

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the answer, or for some seconds; return whether it has arrived."""
        try:
            self._answered.get(timeout=None if seconds is None else min(max(0.0, seconds), TIMEOUT_MAX))
        except Empty:
            return False
        except BaseException:  # of a signal
            self.stop_waiting()
            raise
        self.stop_waiting()
        return True

    def stop_waiting(self) -> None:
        """Note that the thread of the write waits no longer."""
        self.is_left = True
        self._answer_following()

    def answer(self) -> None:
        """Let the thread of the write continue, then the thread of the following write."""
        self._answered.put(None)
        if self.is_left:
            self._answer_following()

    def drop(self) -> None:
        """Note that the write must not be committed any more."""
        self.is_dropped = True

    def move(self) -> None:
        """Let another process commit the write.

        The attempts so far have certainly committed nothing.
        """
        if self.may_move:
            self.is_moved = True
            self.drop()

    def _answer_following(self) -> None:
        if self.following is not None:
            self.following.answer()

    # -- sent to another process --------------------------------------------------------------------------------

    @abstractmethod
    def sent_upsert(self, now: float) -> SentUpsert | None:
        """Return how to upsert the rows; None for an append."""

    @abstractmethod
    def wait_for_reply(self, clock: Callable[[], float], give_up: Callable[[], None]) -> None:
        """Wait for the reply of the other process; call ``give_up`` if it takes too long."""

    @abstractmethod
    def count(self, counts: MergeCounts) -> None:
        """Note what an announced attempt inserts, updates and deletes."""

    @abstractmethod
    def settle(self, committed: Committed) -> None:
        """Note the version that the other process has committed."""

    def note(self, reply: Reply) -> None:
        """Note the reply of the other process."""
        if isinstance(reply, Committed):
            self.settle(reply)
        elif isinstance(reply, BaseException):
            self.error = reply
        self.is_dropped = reply is Declined.NOT_TAKEN


W = TypeVar("W", bound=WaitingWrite)


def by_asker(writes: Sequence[W]) -> Iterator[tuple[Asker, list[W]]]:
    """Return the writes that other processes have sent, by process."""
    found = dict[int, tuple[Asker, list[W]]]()
    for write in writes:
        if write.asker is not None:
            found.setdefault(id(write.asker), (write.asker, []))[1].append(write)
    return iter(found.values())


def all_announced(writes: Sequence[W], announce: Callable[[Asker, Sequence[W]], bool]) -> bool:
    """Announce a commit to the processes that have sent its writes.

    The writes of a process that has given up are dropped. The processes are asked at the same time, because each
    process may be silent for seconds.

    Args:
        writes: The writes of the commit.
        announce: Announces the commit to a process with its writes; as `Asker.announce`.

    Returns:
        Whether no write was dropped.
    """
    asked = list(by_asker(writes))
    answers = all_alongside(lambda each: announce(*each), asked) if len(asked) > 1 else starmap(announce, asked)
    is_complete = True
    for (_, theirs), is_known in zip(asked, answers, strict=True):
        if not is_known:
            is_complete = False
            for write in theirs:
                write.drop()
    return is_complete


def answer_all(writes: Sequence[WaitingWrite]) -> None:
    """Answer writes.

    Other processes are answered at once, and threads of this process one after the other.
    """
    for asker, theirs in by_asker(writes):
        replies = dict[object, tuple[Reply, list[int]]]()
        for write in theirs:
            reply = write.reply
            alike = (reply.version, reply.transaction) if isinstance(reply, Committed) else id(reply)
            replies.setdefault(alike, (reply, []))[1].append(write.number)
        for reply, numbers in replies.values():
            asker.answer(numbers, reply)
    own = [write for write in writes if write.asker is None]
    for write, following in pairwise(own):
        write.following = following
    if own:
        own[0].answer()
