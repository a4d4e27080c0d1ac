"""The search for tables by a part of their names, among a million of them.

The names that a principal sees are one text in memory, which is searched as a whole. It is read again when it is old:
at most a twentieth of the time is spent on reading names.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from threading import Lock, Thread

import attrs

from lancekeep.domain.authorization import Principal
from lancekeep.domain.identifiers import DELIMITER, MANIFEST_DELIMITER, ObjectId
from lancekeep.entrypoints.page.authorized import Listing

MOST_PRINCIPALS = 16
"""For how many principals the names are kept; those that may read the whole catalog count as one."""
_SHARE = 20
"""Names are kept for this many times as long as reading them takes."""
_AT_ONCE = 0.03
"""If reading all names takes fewer seconds, a search waits for it."""


@attrs.frozen(repr=False)
class Names:
    """The names of tables, in the byte order of their keys.

    Attributes:
        count: The number of names.
    """

    count: int
    _keys: bytes
    _folded: bytes

    @classmethod
    def of(cls, tables: Iterable[ObjectId]) -> Names:
        """Return names for searches."""
        keys = [table.key for table in tables]
        text = "".join(("\n", *(f"{key}\n" for key in keys))).encode()
        folded = text.lower().replace(MANIFEST_DELIMITER.encode(), DELIMITER.encode())  # keeps every length
        return cls(len(keys), text, folded)

    def containing(self, part: str) -> Iterator[ObjectId]:
        """Yield the tables whose identifiers contain a text, in any ASCII case."""
        wanted = part.encode(errors="surrogatepass").lower()
        at = 0 if wanted and b"\n" not in wanted else -1
        while at >= 0 and (at := self._folded.find(wanted, at)) >= 0:
            start, end = self._keys.rfind(b"\n", 0, at + 1) + 1, self._keys.find(b"\n", at)
            yield ObjectId.from_key(self._keys[start:end].decode())
            at = end


@attrs.define
class _Kept:
    names: Names
    at: float
    seconds: float
    is_refreshing: bool = False


class NameIndex:
    """Keeps the names that each principal sees.

    Args:
        clock: A clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[Principal | None, _Kept] = OrderedDict()
        self._lock = Lock()
        self._reading = Lock()

    def names(self, principal: Principal | None, listing: Listing) -> Names:
        """Return the names that a principal sees.

        They are complete as of a moment ago: a large catalog is read again in the background, while the names of before
        answer. So the caller checks permissions at the time of the answer.

        Args:
            principal: The principal.
            listing: The names of the catalog, as far as the principal sees them.
        """
        with self._lock:
            kept = self._kept.get(principal)
            is_old = kept is not None and self._clock() - kept.at > kept.seconds * _SHARE
            waits = kept is None or (is_old and kept.seconds < _AT_ONCE)
            refreshes = kept is not None and is_old and not waits and not kept.is_refreshing
            if kept is not None:
                self._kept.move_to_end(principal)
                kept.is_refreshing = kept.is_refreshing or refreshes
        if kept is None or waits:
            with self._reading:  # a search that follows while the names are read waits for them
                now = self._kept.get(principal)
                return self._read(principal, listing) if now is None or now is kept else now.names
        if refreshes:
            Thread(target=self._refresh, args=(principal, listing, kept), daemon=True).start()
        return kept.names

    def _refresh(self, principal: Principal | None, listing: Listing, before: _Kept) -> None:
        try:
            self._read(principal, listing)
        finally:
            before.is_refreshing = False

    def _read(self, principal: Principal | None, listing: Listing) -> Names:
        start = self._clock()
        names = Names.of(listing.all_tables())
        with self._lock:
            self._kept[principal] = _Kept(names, self._clock(), self._clock() - start)
            self._kept.move_to_end(principal)
            if len(self._kept) > MOST_PRINCIPALS:
                self._kept.popitem(last=False)
        return names
