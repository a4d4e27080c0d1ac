"""Whether columns of two versions of a table are the same.

The engine gives a new column the number after the largest that the schema and the data files have. After a column was
dropped and its files were rewritten, a later column can get its number. As long as a data file with a number stays,
neither it nor a smaller one is given again. An overwritten table begins again from 0: a column of it is
the same as one of the version before if they have the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

from lancekeep.domain.manifest import Fragment, Manifest


def surely_same(older: Manifest, newer: Manifest) -> frozenset[int]:
    """Return the ids of fields that a data file of two versions shows to be the same."""
    ids = _names(older).keys() & _names(newer).keys()
    largest = max(ids, default=-1)
    certain = -1
    seen: tuple[set[str], set[str]] = (set(), set())
    for pair in zip_longest(older.fragments, newer.fragments, fillvalue=Fragment()):
        for fragment, own, others in zip(pair, seen, reversed(seen), strict=True):
            own.update(file.path for file in fragment.files)
            certain = max(
                certain, *(max(file.fields, default=-1) for file in fragment.files if file.path in others), -1
            )
        if certain >= largest:
            break  # most versions have their first fragment in common
    return frozenset(each for each in ids if each <= certain)


def same(older: Manifest, newer: Manifest, between: Callable[[int], Manifest | None]) -> frozenset[int]:
    """Return the ids of fields that are the same in two versions of a history.

    A field for which this cannot be known is not among them.

    Args:
        older: The older version.
        newer: The newer version.
        between: Returns a version between; None if it does not exist, or no more versions are to be read.
    """
    found = surely_same(older, newer)
    before, after = _names(older), _names(newer)
    open_ids = (before.keys() & after.keys()) - found
    if not open_ids or newer.version <= older.version:
        return found if newer.version > older.version else frozenset(before.keys() & after.keys())
    if newer.version == older.version + 1:
        return found | {each for each in open_ids if before[each] == after[each]}
    middle = between((older.version + newer.version) // 2)
    if middle is None:
        return found
    return found | (open_ids & same(older, middle, between) & same(middle, newer, between))


def _names(manifest: Manifest) -> dict[int, str]:
    return {field.id: field.name for field in manifest.fields}
