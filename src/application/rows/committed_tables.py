"""Count the committed versions of tables, for automatic maintenance."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock

from lancekeep.domain.identifiers import ObjectId


class CommittedTables:
    """The tables to which this process has committed. Threads may share an instance.

    Args:
        begin: Is called by the first commit; None if nothing takes the counts, and nothing is counted.

    Attributes:
        changed: Is set by each commit.
    """

    def __init__(self, begin: Callable[[], None] | None) -> None:
        self._begin = begin
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the counts of the parent."""
        self.changed = Event()
        self._lock = Lock()
        self._counts: dict[ObjectId, int] = {}
        self._has_begun = False

    def add(self, table: ObjectId) -> None:
        """Count a committed version of a table."""
        if self._begin is None:
            return
        with self._lock:
            self._counts[table] = self._counts.get(table, 0) + 1
            begins, self._has_begun = not self._has_begun, True
        self.changed.set()
        if begins:
            self._begin()

    def take(self) -> dict[ObjectId, int]:
        """Return the number of versions for each table since the last call."""
        self.changed.clear()
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts
