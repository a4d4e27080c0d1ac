"""Indexes that answer replaced values, by the metadata of versions.

A segment keeps the entries of fragments that its bitmap does not name any more. They count once another segment of the
index covers the new values. `docs/adr/0098-indexes-keep-no-entries-of-replaced-values.md` lists the kinds of indexes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lancekeep.domain.indexes import RowNames
from lancekeep.domain.manifest import Fragment, IndexMetadata
from lancekeep.format.index_coverage import covered_fragments, kind_of
from lancekeep.format.replaced_values import files_of, row_ids, with_children
from lancekeep.format.table_version import TableVersion

_STABLE_ROW_IDS = 2


def outdated_indexes(version: TableVersion, built: Callable[[int], TableVersion | None], name: str) -> tuple[str, ...]:
    """Return the names of indexes with entries of replaced values that count.

    Args:
        version: the version.
        built: returns an earlier version; None if it was removed, so that nothing is known of it.
        name: the table, for messages.

    Raises:
        Damaged, Unsupported: an index or the row ids of a fragment cannot be read.
    """
    trusted = [index for index in version.indices if kind_of(index).trusted and index.fragment_bitmap]
    covered = [covered_fragments(index, name) for index in trusted]
    live = {fragment.id: fragment for fragment in version.manifest.fragments} if trusted else {}
    found = set()
    for index, own in zip(trusted, covered, strict=True):
        others = [each for other, each in zip(trusted, covered, strict=True) if other.name == index.name]
        elsewhere = set().union(*others).intersection(live) - own
        origin = built(index.dataset_version) if elsewhere and own else None
        if origin is None:
            continue
        before = {fragment.id: fragment for fragment in origin.manifest.fragments}
        fields = with_children(version.manifest.fields, index.fields)
        replaced = any(
            files_of(before[each], fields) != files_of(live[each], fields) for each in elsewhere & before.keys()
        )
        if replaced or (_by_row_ids(version, index) and _moved(before, live, own, elsewhere, name)):
            found.add(index.name)
    return tuple(sorted(found))


def _by_row_ids(version: TableVersion, index: IndexMetadata) -> bool:
    return bool(version.manifest.reader_feature_flags & _STABLE_ROW_IDS) and kind_of(index).rows is RowNames.ROW_IDS


def _moved(
    before: dict[int, Fragment], live: dict[int, Fragment], own: set[int], elsewhere: set[int], name: str
) -> bool:
    """Return whether rows that the segment covered have moved to fragments which another segment covers."""
    left = [fragment for number, fragment in before.items() if number in own or number not in live]
    new = [live[number] for number in elsewhere - before.keys()]
    return bool(len(np.intersect1d(row_ids(left, name), row_ids(new, name))))
