"""What changed in two homes of a catalog since they were compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from lancekeep.application.retry import Retry
from lancekeep.domain.change_feed import CatalogVersion, ChangeCursor
from lancekeep.domain.errors import InvalidInput, VersionNotFound
from lancekeep.domain.home_copy import NO_POSITIONS, Positions
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.ports.change_feed import ChangeFeed
from lancekeep.ports.manifest_store import ManifestStore

_PAGE = 1000
"""Changes that are read at once."""


def _feed_of(store: ManifestStore) -> ChangeFeed | None:
    """Return the feed of all entries; a table that is only a directory is in none."""
    return None if store.guarantees.lists_directories else store.feed


class Compared:
    """The last comparison of all entries of two homes.

    Args:
        source: The home that is copied.
        target: Its copy.
        retry: Repeats requests.
    """

    def __init__(self, source: ManifestStore, target: ManifestStore, retry: Retry) -> None:
        self._feeds = _feed_of(source), _feed_of(target)
        self._retry = retry
        self.positions: Positions = NO_POSITIONS
        """Where the changes begin that the last comparison of all entries may have missed."""

    def begin(self) -> None:
        """Call this before a comparison reads the first entry."""
        source, target = (None if feed is None else str(self._retry.call(feed.latest)) for feed in self._feeds)
        self.positions = source, target

    def begin_at(self, positions: Positions) -> None:
        """Continue from positions that an earlier process has stored."""
        self.positions = positions

    def changed(self) -> Sequence[str] | None:
        """Return the ids of the entries that may differ, in byte order.

        These are the entries that either home has changed since the comparison began, by this process or another. None
        if that is not known: nothing was compared, or a home does not keep its changes for so long.
        """
        return self._since((0, 1), lambda key, _: key or None)  # the root is no entry

    def changed_locations(self) -> Sequence[str] | None:
        """Return the directories of entries that the target changed since the comparison.

        None if that is not known.
        """
        return self._since((1,), lambda _, entry: entry.location)

    def _since(self, homes: Sequence[int], chosen: Callable[[str, ManifestEntry], str | None]) -> Sequence[str] | None:
        """Return what is chosen of the entries that some homes have changed, also of the entries that ended."""
        found = set()
        try:
            for home in homes:
                feed, at = self._feeds[home], self.positions[home]
                if feed is None or at is None:
                    return None
                for version in self._after(feed, ChangeCursor.parse(at)):
                    found |= {chosen(*each) for each in (*version.before.items(), *version.after.items())}
        except (InvalidInput, VersionNotFound):  # the position may be what a home has stored
            return None
        return sorted(each for each in found if each is not None)

    def _after(self, feed: ChangeFeed, position: ChangeCursor) -> Iterator[CatalogVersion]:
        while versions := self._retry.call(partial(feed.versions, position, _PAGE)):
            yield from versions
            position = versions[-1].cursor
