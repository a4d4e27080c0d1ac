"""The port of change feeds, which give the versions of a catalog in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lancekeep.domain.change_feed import CatalogVersion, ChangeCursor


class ChangeFeed(Protocol):
    """The versions of a catalog, from a manifest store that keeps them.

    A version is in the feed exactly if its change was made, from the moment at which other readers see the change.
    """

    def versions(self, after: ChangeCursor, limit: int) -> Sequence[CatalogVersion]:
        """Return the next versions, without gaps.

        Args:
            after: The position. If it is within a version, the result begins with that version.
            limit: The result ends with the version that has the change of this number. A version is never split.

        Raises:
            VersionNotFound: The position is not kept any more, or belongs to another catalog.
        """

    def oldest(self) -> ChangeCursor:
        """Return the position before the oldest version that is kept whole."""

    def latest(self) -> ChangeCursor:
        """Return the position after the latest version."""

    def listening(self) -> AbstractContextManager[Callable[[float], None]]:
        """Provide a function that waits for a change.

        A change that is made after the context was entered ends the wait. The function waits for at most a number of
        seconds, and may return earlier without a change.
        """
