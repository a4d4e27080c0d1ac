"""Upserts that wait for a committer."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any
from weakref import WeakSet

import attrs
import pyarrow as pa

from lancekeep.application.rows.committer import WaitingLine
from lancekeep.application.rows.waiting_writes import WaitingWrite, all_announced
from lancekeep.domain.appends import Waiting
from lancekeep.domain.commit import Changed, Committed
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.upserts import Key, WaitingUpsert
from lancekeep.ports.committers import Declined, Reply, SentUpsert
from lancekeep.ports.rows import MergeCounts, MergeRule

_REMEMBERED = 256
"""The number of tables whose pace is kept in memory."""
LONGEST_MERGE = 30.0
"""Seconds after which a merge may be stuck. Its upserts then commit alone, and later ones do not wait for it."""


@attrs.define(eq=False)
class Upsert(WaitingWrite):
    """An upsert that waits for its answer: committed, failed, or to commit alone.

    Attributes:
        rule: its key columns.
        keys: the keys of its rows, each once.
        deadline: the time, on the committer's clock, after which no attempt begins.
        began: when it began to wait, or the last attempt to merge its group began.
        done: its version, and what it inserted and updated.
        is_committing: whether the last attempt may have committed it.
        token: the token of that attempt; None if the engine commits without one.
        counts: what that attempt inserts and updates; None if it was not announced.
    """

    rule: MergeRule
    keys: frozenset[Key]
    deadline: float
    began: float
    done: tuple[Changed, MergeCounts] | None = attrs.field(default=None, init=False)
    is_committing: bool = attrs.field(default=False, init=False)
    token: CommitToken | None = attrs.field(default=None, init=False)
    counts: MergeCounts | None = attrs.field(default=None, init=False)
    _lock: Lock = attrs.field(factory=Lock, init=False)

    @property
    def waiting(self) -> WaitingUpsert:
        shape = (self.rows.schema.serialize().to_pybytes(), tuple(self.rule.on), self.rule.use_index)
        return WaitingUpsert(Waiting(shape, self.rows.size), self.keys)

    @property
    def reply(self) -> Reply:
        if self.done is None:
            return Declined.NOT_TAKEN if self.is_moved else self.error or Declined.ALONE
        change, _ = self.done
        return Committed(change.version, "", 0, change.transaction or "")

    @property
    def patient_until(self) -> float:
        """When its thread stops waiting for the group."""
        return max(self.deadline, self.began + LONGEST_MERGE)

    def again(self, now: float, *, may_move: bool = True) -> Upsert:
        """Return an upsert of the same rows that begins to wait now."""
        return Upsert(self.rows, self.rule, self.keys, self.deadline, now, key=self.key, may_move=may_move)

    def leave(self) -> bool:
        """Stop waiting; return whether its group will certainly not commit it."""
        with self._lock:
            self.is_dropped = True
        self.stop_waiting()
        return not self.is_committing

    def begin(self, now: float) -> None:
        """Begin an attempt. The one before it has certainly committed nothing."""
        with self._lock:
            self.began, self.is_committing, self.token = now, False, None

    def announce(self, token: CommitToken | None) -> None:
        """Note that an attempt is about to commit. If the upsert is dropped, it must not."""
        with self._lock:
            if not self.is_dropped:
                self.is_committing, self.token = True, token

    # -- sent to another process --------------------------------------------------------------------------------

    def sent_upsert(self, now: float) -> SentUpsert | None:
        return SentUpsert(tuple(self.rule.on), self.rule.use_index, max(0.0, self.deadline - now))

    def wait_for_reply(self, clock: Callable[[], float], give_up: Callable[[], None]) -> None:
        """Wait for longer than the other process lets its own upserts wait, then give up."""
        while not self.wait(self.patient_until + LONGEST_MERGE - clock()):
            if clock() >= self.patient_until + LONGEST_MERGE:
                give_up()
                self.wait()
                return

    def count(self, counts: MergeCounts) -> None:
        self.counts = counts

    def settle(self, committed: Committed) -> None:
        self.error = None
        if self.counts is None:
            self.error = StoreUnavailable(
                f"the upsert was committed as version {committed.version}, but its committer has not sent its counts"
            )
        else:
            self.done = Changed(committed.version, committed.transaction or None), self.counts


def announce(group: Sequence[Upsert], counts: Sequence[MergeCounts], token: CommitToken | None) -> None:
    """Let the upserts of a group learn that an attempt is about to commit.

    Upserts of other processes are dropped if their process has given up.

    Args:
        group: The upserts.
        counts: What each of them inserts and updates.
        token: The token of the attempt; None if the engine commits without one.
    """
    if token is not None:
        counted = dict(zip(group, counts, strict=True))
        all_announced(
            group,
            lambda asker, theirs: asker.announce(
                [upsert.number for upsert in theirs], token, [counted[upsert] for upsert in theirs]
            ),
        )
    for upsert in group:
        upsert.announce(token)


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
