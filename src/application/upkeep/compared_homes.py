"""What changed in two homes of a catalog since they were compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from lancekeep.application.retry import Retry
from lancekeep.domain.change_feed import ChangeCursor
from lancekeep.domain.errors import VersionNotFound
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
        feeds = _feed_of(source), _feed_of(target)
        self._feeds = tuple(feed for feed in feeds if feed is not None) if None not in feeds else ()
        self._retry = retry
        self._positions: Sequence[ChangeCursor] = ()

    def begin(self) -> None:
        """Call this before a comparison reads the first entry."""
        self._positions = [self._retry.call(feed.latest) for feed in self._feeds]

    def changed(self) -> Sequence[str] | None:
        """Return the ids of the entries that may differ, in byte order.

        These are the entries that either home has changed since the comparison began, by this process or another. None
        if that is not known: nothing was compared, or a home does not keep its changes for so long.
        """
        if not self._positions:
            return None
        try:
            ids = {key for feed, at in zip(self._feeds, self._positions, strict=True) for key in self._after(feed, at)}
        except VersionNotFound:
            return None
        return sorted(ids)

    def _after(self, feed: ChangeFeed, position: ChangeCursor) -> Iterator[str]:
        while versions := self._retry.call(partial(feed.versions, position, _PAGE)):
            for version in versions:
                yield from (key for key in (*version.before, *version.after) if key)  # the root is no entry
            position = versions[-1].cursor
