"""The lines in which appends wait for the committer of their table."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock
from weakref import WeakSet

import attrs

from lancekeep.application.rows.committer import WaitingLine
from lancekeep.application.rows.handover import Handover
from lancekeep.application.rows.waiting_appends import Append
from lancekeep.application.rows.waiting_writers import WaitingWriters
from lancekeep.domain.errors import Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.table import Table
from lancekeep.format.append import Appendable
from lancekeep.format.judge import Approved

_REMEMBERED = 256
"""The number of tables whose latest manifest is kept in memory."""


@attrs.frozen
class Predecessor:
    """The version that the next group follows."""

    table: Table
    root: DatasetRoot
    version: Appendable

    def has_layout_of(self, other: Predecessor) -> bool:
        """Return whether a data file for ``other`` can belong to the next version."""
        mine, theirs = self.version, other.version
        return (self.root, self.table.rules, mine.fields, mine.storage_version) == (
            other.root,
            other.table.rules,
            theirs.fields,
            theirs.storage_version,
        )


@attrs.define(eq=False)
class Line(WaitingLine[Append]):
    """The appends of one table, and its committer's memory.

    Attributes:
        others: the other writers of this process that are known.
        is_owed: whether one of these writers has lost a commit since the committer last waited.
        is_owed_elsewhere: whether a writer of another process has lost one since.
        won: set when another writer has won a commit.
        patient_from: when the committer next waits for such a writer.
        mark: what `WaitingWriters.last` has returned; None if it was not called.
        asking: the writers of this process that ask for a turn between two groups.
        handed: the writer that has the turn now.
    """

    others: int = 0
    is_owed: bool = False
    is_owed_elsewhere: bool = False
    won: Event = attrs.field(factory=Event)
    patient_from: float = float("-inf")
    mark: bytes | None = None
    base: Predecessor | None = None
    asking: list[Handover] = attrs.field(factory=list)
    handed: Handover | None = None


_OPEN: WeakSet[Lines] = WeakSet()


def _after_fork() -> None:
    for lines in _OPEN:
        lines.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Lines:
    """The lines of the tables of one catalog. ``lock`` protects them.

    Args:
        waiting: The writers of other processes that have lost a commit.
    """

    def __init__(self, waiting: WaitingWriters) -> None:
        self.lock = Lock()
        self._waiting = waiting
        self._lines: OrderedDict[ObjectId, Line] = OrderedDict()
        self._is_torn = False
        _OPEN.add(self)

    def after_fork(self) -> None:
        """Forget the threads of the parent, which a forked child does not have."""
        self.lock = Lock()
        self._is_torn = self._is_torn or any(line.is_served or line.others for line in self._lines.values())
        self._lines.clear()

    def require_whole(self) -> None:
        """Refuse to write if this process was forked during a write.

        Another thread of the parent may have held a lock.

        Raises:
            Refused: It was.
        """
        if self._is_torn:
            raise Refused(
                "this process was forked while another thread wrote through this catalog; nothing was written. Start "
                "processes with the methods 'spawn' or 'forkserver' of multiprocessing"
            )

    def of(self, table: ObjectId) -> Line:
        """Return the line of a table, or a new one. The caller has the lock."""
        line = self._lines.setdefault(table, Line(table))
        self._lines.move_to_end(table)
        if len(self._lines) > _REMEMBERED:
            idle = (each for each in self._lines.values() if not (each.is_served or each.others or each is line))
            if (oldest := next(idle, None)) is not None:
                del self._lines[oldest.table]
        return line

    def find(self, table: ObjectId) -> Line | None:
        """Return the line of a table; None if there is none."""
        with self.lock:
            return self._lines.get(table)

    # -- other writers ------------------------------------------------------------------------------------------

    @contextmanager
    def handover(self, table: ObjectId) -> Iterator[Handover]:
        """Ask for a turn of another writer of this process, between two groups."""
        with self.lock:
            line = self._lines.get(table)
            handover = Handover(lambda: line is not None and line.is_served)
            if line is not None:
                line.asking.append(handover)
        try:
            yield handover
        finally:
            handover.end()
            with self.lock:
                if line is not None and handover in line.asking:
                    line.asking.remove(handover)

    def note_version(self, line: Line, root: DatasetRoot, built: Approved) -> None:
        """Note a committed version for the writers that ask for a turn."""
        with self.lock:
            for each in line.asking:
                each.note(root, built)

    def hand_over(self, line: Line) -> None:
        """Give the next turn to the first writer that is ready for it."""
        with self.lock:
            line.handed = next((each for each in line.asking if each.is_ready), None)
            if line.handed is not None:
                line.asking.remove(line.handed)
                line.handed.give()

    def take_handed(self, line: Line) -> Handover | None:
        """Return the writer that has the turn, if any, once."""
        with self.lock:
            handed, line.handed = line.handed, None
        return handed

    @contextmanager
    def beside(self, table: ObjectId) -> Iterator[None]:
        """Let a committer pause more often while another local writer runs.

        Raises:
            Refused: As `require_whole`.
        """
        self.require_whole()
        with self.lock:
            line = self.of(table)
            line.others += 1
        try:
            yield
        finally:
            with self.lock:
                line.others -= 1

    def note_other(self, table: ObjectId, *, won: bool, for_one_turn: bool = False) -> None:
        """Note that another writer of this process has won or lost a commit.

        Args:
            table: The table.
            won: Whether it has won.
            for_one_turn: Whether it rebases its commit in memory, so it needs no pauses of committers.
        """
        with self.lock:
            line = self._lines.get(table)
            if line is not None:
                line.is_owed = not won
        if line is not None and won:
            line.won.set()
        if not won:  # perhaps to another process
            self._waiting.add(table, for_one_turn=for_one_turn)
