"""The feed of a catalog's changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from lancekeep.application.entries.ledger import Ledger
from lancekeep.domain.change_feed import CatalogChange, ChangeCursor, ChangePage
from lancekeep.domain.errors import InvalidInput
from lancekeep.ports.change_feed import ChangeFeed

LARGEST_PAGE = 10_000
"""The maximum number of changes of a page."""
LONGEST_WAIT = 3600.0
"""The maximum number of seconds of one wait."""


class CatalogChanges:
    """The changes of a catalog's entries, in order: ``catalog.changes``.

    The feed has each change of a namespace, a table or the properties of the catalog once, in the order in which the
    changes were made. A consumer stores the cursor of the last change that it has processed, and continues there. If it
    ends between both steps, it reads that change again, with the same id.

    Catalogs in PostgreSQL and in a manifest table have a feed; the others raise `Unsupported`. A manifest table keeps
    changes for ten minutes at least. Commits of rows are not in the feed; `Events` has them, too.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def read(self, after: str | None = None, limit: int = 100, *, wait: float = 0.0) -> ChangePage:
        """Return the next changes.

        Args:
            after: The cursor; None for the oldest change that is kept.
            limit: The maximum number of changes, at most 10,000.
            wait: If there is no change, wait for one, at most this many seconds.

        Raises:
            VersionNotFound: Changes after the cursor are not kept any more, or the catalog was restored from an older
                backup. Call `latest`, list the catalog, and continue with that cursor.
            InvalidInput: An argument is invalid.
            Unsupported: The store of the entries keeps no changes.
        """
        feed, cursor = self._ledger.feed(), None if after is None else ChangeCursor.parse(after)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
            raise InvalidInput(f"the limit is {limit!r:.80}; expected a number from 1 to {LARGEST_PAGE}")
        page = self._page(feed, cursor, limit)
        if page.changes or not checked_seconds("wait", wait):
            return page
        clock = self._ledger.commits.retry.clock
        until = clock() + wait
        with feed.listening() as wait_for_change:
            while True:
                page = self._page(feed, ChangeCursor.parse(page.cursor), limit)
                left = until - clock()
                if page.changes or left <= 0:
                    return page
                wait_for_change(min(left, 1.0))

    def watch(self, after: str | None = None, *, poll: float = 1.0) -> Iterator[CatalogChange]:
        """Iterate over the changes, and wait for further ones; the iterator does not end.

        Args:
            after: As of `read`.
            poll: Seconds between two reads without changes. Changes wake the iterator earlier, unless the connection
                goes through a pooler in transaction mode, or to a standby.

        Raises:
            VersionNotFound, InvalidInput, Unsupported: As `read`.
        """
        feed, cursor = self._ledger.feed(), None if after is None else ChangeCursor.parse(after)
        if not checked_seconds("poll", poll):
            raise InvalidInput("poll is 0; expected the seconds between two reads")
        return self._watched(feed, cursor, poll)

    def latest(self) -> str:
        """Return the cursor after the latest change.

        Raises:
            Unsupported: The store of the entries keeps no changes.
        """
        return str(self._ledger.commits.retry.call(self._ledger.feed().latest))

    def _page(self, feed: ChangeFeed, after: ChangeCursor | None, limit: int) -> ChangePage:
        retry, changes = self._ledger.commits.retry, list[CatalogChange]()
        position = after or retry.call(feed.oldest)
        while not changes:  # a version may have no visible change
            versions = retry.call(partial(feed.versions, position, limit))
            for version in versions:
                changes += version.changes(position.key if position.version == version.version else None)
                position = version.cursor
            if not versions:
                break
        shown = changes[:limit]
        return ChangePage(shown, str(position) if len(shown) == len(changes) else shown[-1].cursor)

    def _watched(self, feed: ChangeFeed, cursor: ChangeCursor | None, poll: float) -> Iterator[CatalogChange]:
        with feed.listening() as wait_for_change:
            while True:
                page = self._page(feed, cursor, LARGEST_PAGE // 10)
                yield from page.changes
                cursor = ChangeCursor.parse(page.cursor)
                if not page.changes:
                    wait_for_change(poll)


def checked_seconds(name: str, seconds: float) -> float:
    """Return a time span.

    Raises:
        InvalidInput: It is no number of seconds, or too long.
    """
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or not 0 <= seconds <= LONGEST_WAIT:
        raise InvalidInput(f"{name} is {seconds!r:.80}; expected seconds from 0 to {LONGEST_WAIT:.0f}")
    return seconds
