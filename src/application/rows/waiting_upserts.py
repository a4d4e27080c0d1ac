"""Upserts that wait for a committer."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Lock
from typing import Any
from weakref import WeakSet

import attrs
import pyarrow as pa

from lancekeep.application.rows.committer import WaitingLine
from lancekeep.domain.appends import Waiting
from lancekeep.domain.commit import Changed
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.upserts import Key, WaitingUpsert
from lancekeep.ports.data_files import Rows
from lancekeep.ports.rows import MergeCounts, MergeRule

_REMEMBERED = 256
"""The number of tables whose pace is kept in memory."""


@attrs.define(eq=False)
class Upsert:
    """An upsert that waits for its answer: committed, failed, or to commit alone.

    Attributes:
        rows: its rows.
        rule: its key columns.
        keys: the keys of its rows, each once.
        deadline: the time, on the committer's clock, after which no attempt begins.
        done: its version, and what it inserted and updated.
        error: why nothing, or nothing known, was committed. Without this and `done`, it has to commit alone.
    """

    rows: Rows
    rule: MergeRule
    keys: frozenset[Key]
    deadline: float
    done: tuple[Changed, MergeCounts] | None = None
    error: BaseException | None = None
    _answered: SimpleQueue[None] = attrs.field(factory=SimpleQueue)

    @property
    def waiting(self) -> WaitingUpsert:
        shape = (self.rows.schema.serialize().to_pybytes(), tuple(self.rule.on), self.rule.use_index)
        return WaitingUpsert(Waiting(shape, self.rows.size), self.keys)

    def wait(self) -> None:
        """Wait for the answer."""
        self._answered.get()

    def answer(self) -> None:
        """Let the thread of the upsert continue."""
        self._answered.put(None)


def rows_of(upserts: Sequence[Upsert]) -> Any:
    """Return the rows of a group as a ``pyarrow.RecordBatchReader``."""
    return pa.concat_tables([each.rows.table for each in upserts]).combine_chunks().to_reader()


UpsertLine = WaitingLine[Upsert]

_OPEN: WeakSet[UpsertLines] = WeakSet()


def _after_fork() -> None:
    for lines in _OPEN:
        lines.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class UpsertLines:
    """The lines of the tables of one catalog. ``lock`` protects them."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._lines: OrderedDict[ObjectId, UpsertLine] = OrderedDict()
        _OPEN.add(self)

    def after_fork(self) -> None:
        """Forget the threads of the parent, which a forked child does not have."""
        self.lock = Lock()
        self._lines.clear()

    def of(self, table: ObjectId) -> UpsertLine:
        """Return the line of a table, or a new one. The caller has the lock."""
        line = self._lines.setdefault(table, UpsertLine(table))
        self._lines.move_to_end(table)
        if len(self._lines) > _REMEMBERED:
            idle = self._idle(line)
            if (oldest := next(idle, None)) is not None:
                del self._lines[oldest.table]
        return line

    def _idle(self, line: UpsertLine) -> Iterator[UpsertLine]:
        return (each for each in self._lines.values() if not each.is_served and each is not line)
