"""The search for tables by a part of their names, among a million of them.

The names that a principal sees are a few texts in memory, which are searched as a whole. They are read again when they
are old: at most a twentieth of the time is spent on reading names. The first search of a large catalog answers with the
names that were read in a moment, while another thread reads the others.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from threading import Lock, Thread

import attrs

from lancekeep.domain.authorization import Principal
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.identifiers import DELIMITER, MANIFEST_DELIMITER, ObjectId
from lancekeep.entrypoints.page.authorized import Listing

MOST_PRINCIPALS = 16
"""For how many principals the names are kept; those that may read the whole catalog count as one."""
_SHARE = 20
"""Names are kept for this many times as long as reading them takes."""
_AT_ONCE = 0.03
"""If reading all names takes fewer seconds, a search waits for it."""
_PART = 1000
"""Names that are read at a time; a search always reads as many."""


@attrs.frozen(repr=False)
class Names:
    """The names of tables, in the byte order of their keys.

    Attributes:
        count: The number of names.
        is_complete: Whether no other names are being read.
    """

    count: int = 0
    is_complete: bool = True
    _texts: tuple[tuple[bytes, bytes], ...] = ()
    """Keys in lines, and the same in lower case with the delimiter of identifiers."""

    @classmethod
    def of(cls, tables: Iterable[ObjectId]) -> Names:
        """Return names for searches."""
        return cls().followed_by(tables)

    def followed_by(self, tables: Iterable[ObjectId]) -> Names:
        """Return these names and others after them."""
        keys = [table.key for table in tables]
        text = "".join(("\n", *(f"{key}\n" for key in keys))).encode()
        folded = text.lower().replace(MANIFEST_DELIMITER.encode(), DELIMITER.encode())  # keeps every length
        return Names(self.count + len(keys), self.is_complete, (*self._texts, (text, folded)))

    def containing(self, part: str) -> Iterator[ObjectId]:
        """Yield the tables whose identifiers contain a text, in any ASCII case."""
        wanted = part.encode(errors="surrogatepass").lower()
        for keys, folded in self._texts if wanted and b"\n" not in wanted else ():
            at = 0
            while (at := folded.find(wanted, at)) >= 0:
                start, end = keys.rfind(b"\n", 0, at + 1) + 1, keys.find(b"\n", at)
                yield ObjectId.from_key(keys[start:end].decode())
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

        Unless they are being read for the first time, they are complete as of a moment ago: a large catalog is read
        again in the background, while the names of before answer. So the caller checks permissions at the time of the
        answer.

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
                return self._begin(principal, listing) if now is None or now is kept else now.names
        if refreshes:
            Thread(target=self._refresh, args=(principal, listing, kept), daemon=True).start()
        return kept.names

    def _refresh(self, principal: Principal | None, listing: Listing, before: _Kept) -> None:
        start = self._clock()
        try:
            self._keep(principal, Names.of(listing.all_tables()), start)
        finally:
            before.is_refreshing = False

    def _begin(self, principal: Principal | None, listing: Listing) -> Names:
        """Read the first names, and leave the others to another thread."""
        start, tables = self._clock(), iter(listing.all_tables())
        names, is_complete = Names(is_complete=False), False
        while not is_complete and (not names.count or self._clock() - start < _AT_ONCE):
            part = list(islice(tables, _PART))
            names, is_complete = names.followed_by(part), len(part) < _PART
        if is_complete:
            return self._keep(principal, attrs.evolve(names, is_complete=True), start).names
        kept = self._keep(principal, names, start, is_refreshing=True)
        Thread(target=self._complete, args=(principal, tables, kept, start), daemon=True).start()
        return names

    def _complete(self, principal: Principal | None, tables: Iterator[ObjectId], kept: _Kept, start: float) -> None:
        try:
            while part := list(islice(tables, max(_PART, kept.names.count // 4))):
                kept.names = kept.names.followed_by(part)
            self._keep(principal, attrs.evolve(kept.names, is_complete=True), start)
        except LancekeepError:  # the next search reads the names again, and raises the error that remains
            with self._lock:
                if self._kept.get(principal) is kept:
                    del self._kept[principal]

    def _keep(self, principal: Principal | None, names: Names, start: float, *, is_refreshing: bool = False) -> _Kept:
        kept = _Kept(names, self._clock(), self._clock() - start, is_refreshing)
        with self._lock:
            self._kept[principal] = kept
            self._kept.move_to_end(principal)
            if len(self._kept) > MOST_PRINCIPALS:
                self._kept.popitem(last=False)
        return kept
