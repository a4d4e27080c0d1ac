"""Let another writer of a process commit between two groups of appends.

A writer that reads the latest version and then writes its transaction and its manifest takes as long as a group. It
loses most versions to a busy committer, and each version that it wins costs the group in progress further requests. So
the committer hands it the version that it has just committed. The writer commits the next one while the callers of the
last group return and the files of the next group are written. No safety depends on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Event

from lancekeep.domain.appends import HANDED_OVER_WITHIN, LONGEST_TURN, LOOK_EVERY_TURN
from lancekeep.domain.layout import DatasetRoot
from lancekeep.format.judge import Approved

_REMEMBERED = 8
"""The last versions that a writer gets. A writer that has missed more of them competes for its version."""


class Handover:
    """A writer that asks for the next turn, and what the committer hands to it.

    Args:
        is_served: Whether a committer is at work.
    """

    def __init__(self, is_served: Callable[[], bool]) -> None:
        self._is_served = is_served
        self._committed: deque[tuple[DatasetRoot, Approved]] = deque(maxlen=_REMEMBERED)
        self._given = Event()
        self._ended = Event()
        self._following: tuple[DatasetRoot, Approved] | None = None
        self.is_ready = False

    # -- the writer ---------------------------------------------------------------------------------------------

    def wait(self, root: DatasetRoot, version: int, transaction: str) -> Sequence[bytes]:
        """Wait for a turn, but not for long, and not if no committer is at work.

        Args:
            root: The root of the table.
            version: The latest version that the writer knows.
            transaction: The name of its transaction file. A table that is created again has the same root and the same
                numbers, but other names.

        Returns:
            The manifests of the versions that follow it; empty if they are not known.
        """
        self.is_ready = True
        for _ in range(round(HANDED_OVER_WITHIN / LOOK_EVERY_TURN)):
            if not self._is_served() or self._given.wait(LOOK_EVERY_TURN):
                break
        newer = list[bytes]()
        for at, built in tuple(self._committed):
            if at != root or built.number <= version:
                continue
            if built.follows != transaction:
                return []
            newer.append(built.content)
            transaction = built.transaction
        return newer

    def follow(self, root: DatasetRoot, built: Approved) -> None:
        """Note the version that the writer has committed."""
        self._following = root, built

    def end(self) -> None:
        """Let the committer continue."""
        self._committed.clear()
        self._ended.set()

    # -- the committer ------------------------------------------------------------------------------------------

    def note(self, root: DatasetRoot, built: Approved) -> None:
        """Note a version that the committer has committed."""
        self._committed.append((root, built))

    def give(self) -> None:
        """Let the writer commit now."""
        self._given.set()

    def following(self) -> tuple[DatasetRoot, Approved] | None:
        """Wait until the writer has ended; return its version.

        None if it has committed none, or has not ended soon.
        """
        self._ended.wait(LONGEST_TURN)
        return self._following if self._ended.is_set() else None
