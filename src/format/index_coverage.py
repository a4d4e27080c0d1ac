"""What indexes cover.

Table format, "Index". Readers search other fragments themselves.
"""

from __future__ import annotations

from lancekeep.domain.errors import Damaged, Unsupported
from lancekeep.domain.indexes import IndexKind, index_kind
from lancekeep.domain.manifest import IndexMetadata
from lancekeep.format.deletions import decode_bitmap
from lancekeep.format.effects import MOST_FRAGMENTS


def kind_of(index: IndexMetadata) -> IndexKind:
    """Return the kind of an index."""
    return index_kind(index.name, index.index_details.type_url if index.index_details else "")


def covered_fragments(index: IndexMetadata, name: str) -> set[int]:
    """Return the ids of the fragments that an index covers.

    Args:
        index: the index.
        name: the table, for messages.

    Raises:
        Damaged: the bitmap of the fragments is damaged.
        Unsupported: the index has no such bitmap.
    """
    if not index.fragment_bitmap:
        raise Unsupported(f"{name}: the index {index.name} does not say what it covers; commit with the Lance engine")
    try:
        return set(decode_bitmap(index.fragment_bitmap, MOST_FRAGMENTS).tolist())
    except ValueError as error:
        raise Damaged(f"{name}: the fragment bitmap of the index {index.name} is damaged: {error}") from error
