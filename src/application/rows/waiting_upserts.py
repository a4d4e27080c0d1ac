"""Upserts that wait for a committer."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any
from weakref import WeakSet

import attrs
import pyarrow as pa

from lancekeep.application.rows.committer import WaitingLine
from lancekeep.domain.appends import Waiting
from lancekeep.domain.commit import Changed
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.upserts import Key, WaitingUpsert
from lancekeep.ports.data_files import Rows
from lancekeep.ports.rows import MergeCounts, MergeRule

_REMEMBERED = 256
"""The number of tables whose pace is kept in memory."""
LONGEST_MERGE = 30.0
"""Seconds after which a merge may be stuck. Its upserts then commit alone, and later ones do not wait for it."""


@attrs.define(eq=False)
class Upsert:
    """An upsert that waits for its answer: committed, failed, or to commit alone.

    Attributes:
        rows: its rows.
        rule: its key columns.
        keys: the keys of its rows, each once.
        deadline: the time, on the committer's clock, after which no attempt begins.
        began: when it began to wait, or the last attempt to merge its group began.
        done: its version, and what it inserted and updated.
        error: why nothing, or nothing known, was committed. Without this and `done`, it has to commit alone.
        is_left: whether its thread waits no longer.
        is_committing: whether the last attempt may have committed it.
        token: the token of that attempt; None if the engine commits without one.
    """

    rows: Rows
    rule: MergeRule
    keys: frozenset[Key]
    deadline: float
    began: float
    done: tuple[Changed, MergeCounts] | None = None
    error: BaseException | None = None
    is_left: bool = False
    is_committing: bool = False
    token: CommitToken | None = None
    _answered: SimpleQueue[None] = attrs.field(factory=SimpleQueue)
    _lock: Lock = attrs.field(factory=Lock)

    @property
    def waiting(self) -> WaitingUpsert:
        shape = (self.rows.schema.serialize().to_pybytes(), tuple(self.rule.on), self.rule.use_index)
        return WaitingUpsert(Waiting(shape, self.rows.size), self.keys)

    @property
    def patient_until(self) -> float:
        """When its thread stops waiting for the group."""
        return max(self.deadline, self.began + LONGEST_MERGE)

    def wait(self, seconds: float) -> bool:
        """Wait for the answer, but not for long; return whether it has arrived."""
        try:
            self._answered.get(timeout=max(0.0, min(seconds, LONGEST_MERGE)))
        except Empty:
            return False
        return True

    def leave(self) -> bool:
        """Stop waiting; return whether its group will certainly not commit it."""
        with self._lock:
            self.is_left = True
            return not self.is_committing

    def begin(self, now: float) -> None:
        """Begin an attempt. The one before it has certainly committed nothing."""
        with self._lock:
            self.began, self.is_committing, self.token = now, False, None

    def announce(self, token: CommitToken | None) -> None:
        """Note that an attempt is about to commit. If the upsert is left, it must not."""
        with self._lock:
            if not self.is_left:
                self.is_committing, self.token = True, token

    def answer(self) -> None:
        """Let the thread of the upsert continue."""
        self._answered.put(None)


def rows_of(upserts: Sequence[Upsert]) -> Any:
    """Return the rows of a group as a ``pyarrow.RecordBatchReader``."""
    return pa.concat_tables([each.rows.table for each in upserts]).combine_chunks().to_reader()


@attrs.define(eq=False)
class UpsertLine(WaitingLine[Upsert]):
    """The upserts of one table.

    Attributes:
        began: when the merge of a group began that has not ended; None without one.
    """

    began: float | None = None

    def is_stuck(self, now: float) -> bool:
        """Return whether a merge takes so long that later upserts must not wait for it."""
        return self.began is not None and now - self.began > LONGEST_MERGE

    def begin(self, now: float) -> None:
        """Note that a merge begins."""
        self.began = now

    def end(self) -> None:
        """Note that a group has ended."""
        self.began = None

    def successor(self) -> UpsertLine:
        """Return a line that takes what waits."""
        waiting, self.waiting = self.waiting, []
        return UpsertLine(self.table, waiting)


_OPEN: WeakSet[UpsertLines] = WeakSet()


def _after_fork() -> None:
    for lines in _OPEN:
        lines.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class UpsertLines:
    """The lines of the tables of one catalog. ``lock`` protects them.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.lock = Lock()
        self._clock = clock
        self._lines: OrderedDict[ObjectId, UpsertLine] = OrderedDict()
        _OPEN.add(self)

    def after_fork(self) -> None:
        """Forget the threads of the parent, which a forked child does not have."""
        self.lock = Lock()
        self._lines.clear()

    def of(self, table: ObjectId) -> UpsertLine:
        """Return the line of a table, or a new one. The caller has the lock.

        A line whose committer is stuck gets a successor, which takes what waits. If the committer continues, it finds
        nothing to commit, and ends.
        """
        stuck = self._lines.get(table)
        if stuck is not None and stuck.is_stuck(self._clock()):
            self._lines[table] = stuck.successor()
        line = self._lines.setdefault(table, UpsertLine(table))
        self._lines.move_to_end(table)
        if len(self._lines) > _REMEMBERED:
            idle = self._idle(line)
            if (oldest := next(idle, None)) is not None:
                del self._lines[oldest.table]
        return line

    def _idle(self, line: UpsertLine) -> Iterator[UpsertLine]:
        return (each for each in self._lines.values() if not each.is_served and each is not line)
