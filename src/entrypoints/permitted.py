"""Pages of the names that a principal sees, without the names between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from lancekeep.domain.authorization import Principal
from lancekeep.domain.identifiers import MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.rights import Right


class Hidden(Exception):
    """Why an object looks absent: the cause of the error that the caller sees."""

    def __init__(self, principal: Principal | None, right: Right, object_id: ObjectId) -> None:
        name = "a caller without a name" if principal is None else principal.name
        super().__init__(f"{name} has no right on {object_id or 'the catalog'}; {right} is needed")


CHUNK = 100
"""How many names of a listing are read at a time."""

_LAST = chr(0x10FFFF)
_AFTER_DELIMITER = chr(ord(MANIFEST_DELIMITER) + 1)

Read = Callable[[str | None, int], tuple[Sequence[str], str | None]]
"""Reads up to a number of names after a name; returns them, and the last if there are more."""


@attrs.frozen
class PermittedNames:
    """The names of a listing in permitted subtrees, or above them.

    Attributes:
        names: The names of the subtrees in the listing, in its order.
        below: Whether the listing holds names below them, too: a listing of all tables by their keys.
    """

    names: tuple[str, ...]
    below: bool = False

    @staticmethod
    def of_children(parent: ObjectId, subtrees: Sequence[ObjectId]) -> PermittedNames:
        """Return permitted names of children, from the subtrees below an object."""
        return PermittedNames(tuple(sorted({each.names[len(parent.names)] for each in subtrees})))

    @staticmethod
    def of_all(subtrees: Sequence[ObjectId]) -> PermittedNames:
        """Return the permitted keys of a whole catalog."""
        return PermittedNames(tuple(sorted(each.key for each in subtrees)), below=True)

    def page(self, read: Read, after: str | None, limit: int | None) -> tuple[list[str], str | None]:
        """Return permitted names after a name, and the last if there are more.

        The listing is read where permitted names can be, so the cost does not grow with the names of others.
        """
        shown = frozenset(self.names)
        found: list[str] = []
        position, more = after or "", after
        for name in self.names:
            last = f"{name}{_AFTER_DELIMITER}" if self.below else name
            while last > position and (limit is None or len(found) <= limit):
                names, more = read(max(position, _before(name)) or None, CHUNK)
                found += (each for each in names if not shown.isdisjoint(self._above(each)))
                if more is None:
                    return _cut(found, limit)
                position = more
        if more is after:
            read(after, 1)  # a listing of a missing namespace is an error on every page
        return _cut(found, limit)

    def _above(self, name: str) -> list[str]:
        """Return a name and, in a listing of keys, the names of the objects above it."""
        if not self.below:
            return [name]
        parts = name.split(MANIFEST_DELIMITER)
        return [MANIFEST_DELIMITER.join(parts[:length]) for length in range(1, len(parts) + 1)]


def _cut(names: list[str], limit: int | None) -> tuple[list[str], str | None]:
    return names[:limit], names[limit - 1] if limit is not None and len(names) > limit else None


def _before(name: str) -> str:
    """Return text before a name, with as few names as possible between the two."""
    code = ord(name[-1])
    if code <= 0x21 or code == 0xE000:  # no control character, and no half of a surrogate pair
        return name[:-1]
    return f"{name[:-1]}{chr(code - 1)}{_LAST}"
