"""The committer of a table: a task that commits, in groups, what waits for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from threading import Event, Lock
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import attrs

from lancekeep.application.concurrency import in_background
from lancekeep.domain.appends import Pace
from lancekeep.domain.errors import LancekeepError, StoreUnavailable
from lancekeep.domain.identifiers import ObjectId

W = TypeVar("W")


@attrs.define(eq=False)
class WaitingLine(Generic[W]):
    """The writes that wait for the committer of a table, in order of arrival.

    Attributes:
        is_served: Whether a committer commits them.
        expected: The number of writes for which the committer waits.
        enough: Set when so many wait.
    """

    table: ObjectId
    waiting: list[W] = attrs.field(factory=list)
    is_served: bool = False
    expected: int = 0
    enough: Event = attrs.field(factory=Event)
    pace: Pace = attrs.field(factory=Pace)


L = TypeVar("L", bound=WaitingLine[Any])
L_co = TypeVar("L_co", bound=WaitingLine[Any], covariant=True)


class LinesOf(Protocol[L_co]):
    """The lines of the tables of one catalog."""

    lock: Lock

    def of(self, table: ObjectId) -> L_co: ...


class Committer(ABC, Generic[L, W]):
    """Commits the writes of one kind, by a task for each line in which some wait.

    Args:
        lines: The lines.
        clock: Returns monotonic seconds.
    """

    kind: ClassVar[str]
    """What waits, for messages."""

    def __init__(self, lines: LinesOf[L], clock: Callable[[], float]) -> None:
        self._waiting_lines = lines
        self._clock = clock

    @abstractmethod
    def _chosen(self, line: L) -> Collection[int]:
        """Return the places in the line of the writes to commit together next."""

    @abstractmethod
    def _pause(self, line: L) -> None:
        """Let other writers commit, and wait for the callers of the last group; see `_linger`."""

    @abstractmethod
    def _commit(self, line: L, group: Sequence[W]) -> None:
        """Commit a group. Each write has its result or error then, or has to commit alone."""

    @abstractmethod
    def _answer(self, group: Sequence[W], error: Exception | None = None) -> None:
        """Let the threads of the writes continue, with an error for all of them or with what `_commit` left."""

    def _may_commit_here(self, line: L) -> bool:
        """Return whether the thread of the only write that waits may commit it. The caller has the lock."""
        return False

    def _enter(self, table: ObjectId, write: W, *, here: bool = False) -> None:
        """Let a write wait, and start a committer if its line has none.

        Args:
            table: The table.
            write: The write.
            here: Whether this thread may commit the write. The write then has its outcome at the end.
        """
        with self._waiting_lines.lock:
            line = self._waiting_lines.of(table)
            line.waiting.append(write)
            if len(line.waiting) >= line.expected:
                line.enough.set()
            if line.is_served:
                return
            line.is_served = True
            here = here and self._may_commit_here(line)
            if here:
                line.waiting = []  # a line that is not served had no other write
        if here:
            self._commit_here(line, write)
        else:
            self._start(line)

    def _commit_here(self, line: L, write: W) -> None:
        """Commit a write in this thread. A committer of its own takes over if others wait then."""
        try:
            with suppress(Exception):  # a fault after the commit: the write has its outcome
                Context().run(self._commit, line, [write])  # without the caller's context, as in any other thread
        finally:
            with self._waiting_lines.lock:
                line.is_served = is_served = bool(line.waiting)
            self._answer([write])
            if is_served:
                self._start(line)

    def _start(self, line: L) -> None:
        """Start a committer of a line. If the system starts no thread, all that waits is answered."""
        try:
            in_background(partial(self._serve, line))
        except RuntimeError as error:
            failed = StoreUnavailable(f"{line.table}: the system starts no thread, and nothing was committed: {error}")
            failed.__cause__ = error
            self._end(line, failed)
        except BaseException as error:  # of a signal, or without memory: without a committer, all would wait
            self._end(
                line, StoreUnavailable(f"{line.table}: no committer was started, and nothing was committed: {error!r}")
            )
            raise

    def _end(self, line: L, error: Exception) -> None:
        """Answer all writes of a line without a committer; the next write starts one."""
        with self._waiting_lines.lock:
            waiting, line.waiting, line.is_served = line.waiting, [], False
        self._answer(waiting, error)

    def _serve(self, line: L) -> None:
        try:
            self._commit_groups(line)
        except BaseException as error:
            failed = LancekeepError(
                f"{line.table}: the committer of {self.kind} failed, and nothing was committed: {error!r}"
            )
            failed.__cause__ = error
            self._end(line, failed)
            raise

    def _commit_groups(self, line: L) -> None:
        """Commit groups until nothing waits."""
        while True:
            self._pause(line)
            with self._waiting_lines.lock:
                chosen = set(self._chosen(line))
                group = [write for at, write in enumerate(line.waiting) if at in chosen]
                line.waiting = [write for at, write in enumerate(line.waiting) if at not in chosen]
                line.expected = 0
                if not group:
                    line.is_served = False
                    return
            try:
                self._commit(line, group)
            finally:
                self._answer(group)

    def _linger(self, line: L) -> None:
        """Wait until as many writes wait as are expected, but not for long; see `Pace`."""
        expected, longest = line.pace.linger()
        with self._waiting_lines.lock:
            if len(line.waiting) >= expected:
                return
            line.expected = expected
            line.enough.clear()
        line.enough.wait(longest)
