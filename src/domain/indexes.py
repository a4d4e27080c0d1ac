"""The kinds of indexes, and where an index of each kind keeps its content.

Table format, "Index". An index names its kind by the type of its details. Everything that asks which files an index
has, or whether a table can do without it, asks this table.
"""

from __future__ import annotations

from enum import Enum

import attrs

SYSTEM_INDEX = "__lance_"
"""The names of indexes that the engine keeps for itself begin with this prefix."""

FRAGMENT_REUSE, MEM_WAL = f"{SYSTEM_INDEX}frag_reuse", f"{SYSTEM_INDEX}mem_wal"


class Content(Enum):
    """Where an index keeps its content."""

    FILES = "files in the index's own directory"
    DETAILS = "the details in the manifest"
    EITHER = "the details in the manifest, or one file if they are large"


class RowNames(Enum):
    """How an index names rows in a table with stable row ids (pylance 14)."""

    ROW_IDS = "row ids"
    ADDRESSES = "addresses"
    ZONES = "ranges of addresses"
    UNKNOWN = "unknown"


@attrs.frozen
class IndexKind:
    """A kind of index.

    Attributes:
        name: the name by which pylance creates the index, or the name of the index itself.
        details: the last part of the type of its details.
        content: where it keeps its content.
        cloned: whether a clone keeps the index. A clone leaves out an index of files that the clone lacks.
        rows: how the index names rows in a table with stable row ids.
        trusted: whether pylance returns the rows of the index without comparing their values, so that the entry of an
            old value is a wrong answer.
    """

    name: str
    details: str
    content: Content = Content.FILES
    cloned: bool = True
    rows: RowNames = RowNames.UNKNOWN
    trusted: bool = False


INDEX_KINDS = (
    IndexKind("BTREE", "BTreeIndexDetails", rows=RowNames.ADDRESSES, trusted=True),
    IndexKind("BITMAP", "BitmapIndexDetails", rows=RowNames.ROW_IDS, trusted=True),
    IndexKind("LABEL_LIST", "LabelListIndexDetails", rows=RowNames.ROW_IDS, trusted=True),
    IndexKind("INVERTED", "InvertedIndexDetails", rows=RowNames.ROW_IDS, trusted=True),
    IndexKind("NGRAM", "NGramIndexDetails", rows=RowNames.ROW_IDS),
    IndexKind("ZONEMAP", "ZoneMapIndexDetails", rows=RowNames.ZONES),
    IndexKind("BLOOMFILTER", "BloomFilterIndexDetails", rows=RowNames.ZONES),
    IndexKind("RTREE", "RTreeIndexDetails", trusted=True),
    IndexKind("MINHASHLSH", "MinHashLshIndexDetails", trusted=True),
    IndexKind("FM", "FMIndexDetails", trusted=True),
    IndexKind("JSON", "JsonIndexDetails", trusted=True),
    IndexKind("IVF", "VectorIndexDetails", rows=RowNames.ROW_IDS),
    IndexKind(FRAGMENT_REUSE, "FragmentReuseIndexDetails", Content.EITHER),
    IndexKind(MEM_WAL, "MemWalIndexDetails", Content.DETAILS, cloned=False),
)
"""The known kinds. The details of vector indexes do not tell their variants, such as ``IVF_PQ``, apart."""

_BY_DETAILS = {kind.details: kind for kind in INDEX_KINDS}
_OLDER = IndexKind("index", "", trusted=True)
_LATER = IndexKind("system index", "", Content.DETAILS)


def index_kind(name: str, type_url: str) -> IndexKind:
    """Return the kind of an index.

    An index without details, or of a kind that later releases add, has files. A system index may consist of its details
    alone.

    Args:
        name: the name of the index.
        type_url: the type of its details; empty if it has none, as the indexes of old releases.
    """
    known = _BY_DETAILS.get(type_url.rpartition(".")[2])
    return known or (_LATER if is_system_index(name) else _OLDER)


def is_system_index(name: str) -> bool:
    """Return whether the engine keeps the index for itself."""
    return name.startswith(SYSTEM_INDEX)
