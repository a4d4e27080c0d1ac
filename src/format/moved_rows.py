"""Ids and versions of the rows that an update moves to new fragments.

Table format, "Move-Stable Row IDs". A row that moves keeps its id and the version that created it. A row that an upsert
inserts gets the next id. The new version is the last version that updated each of these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lancekeep.domain.errors import Unsupported
from lancekeep.domain.manifest import Fragment
from lancekeep.format.row_ids import Ids, decode_row_ids, decode_row_versions, encode_row_ids, encode_row_versions


class MovedRows:
    """The rows of the fragments that an update takes rows from.

    Args:
        fragments: the fragments, as the update met them.
        name: the table, for messages.

    Raises:
        Damaged: the row ids or versions of a fragment are damaged.
        Unsupported: they are not in the manifest.
    """

    def __init__(self, fragments: Sequence[Fragment], name: str) -> None:
        ids, created = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for fragment in fragments:
            at, rows = f"{name}: fragment {fragment.id}", fragment.physical_rows
            if fragment.inline_row_ids is None or fragment.inline_created_at_versions is None:
                raise Unsupported(f"{at} has no row ids or versions in the manifest; commit with the Lance engine")
            ids.append(decode_row_ids(fragment.inline_row_ids, rows, at))
            created.append(decode_row_versions(fragment.inline_created_at_versions, rows, at))
        every = np.concatenate(ids)
        order = np.argsort(every)
        self._name = name
        self._ids: Ids = every[order]
        self._created: Ids = np.concatenate(created)[order]

    def number(self, fragment: Any, first: int, version: int) -> int:
        """Complete the row ids of a new fragment, and set its versions.

        Args:
            fragment: the message of the fragment; its first rows have moved, and have ids.
            first: the next free row id.
            version: the new version.

        Returns:
            The number of rows that had no id.

        Raises:
            Unsupported: a row was not in the fragments that the update changes.
        """
        rows = int(fragment.physical_rows)
        moved = decode_row_ids(fragment.inline_row_ids, rows, f"{self._name}: a new fragment", whole=False)
        if not np.isin(moved, self._ids).all():
            raise Unsupported(f"{self._name}: the update moves rows of other fragments; commit with the Lance engine")
        at = np.searchsorted(self._ids, moved)
        inserted = rows - len(moved)
        if inserted:
            given = np.arange(first, first + inserted, dtype=np.uint64)
            fragment.inline_row_ids = encode_row_ids(np.concatenate([moved, given]))
        created = np.concatenate([self._created[at], np.full(inserted, version, np.uint64)])
        fragment.inline_created_at_versions = encode_row_versions(created)
        fragment.inline_last_updated_at_versions = encode_row_versions(np.full(rows, version, np.uint64))
        return inserted
