"""Columns that are stored as blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancekeep.native import lance

if TYPE_CHECKING:
    import pyarrow as pa

BLOB_ENCODING = "lance-encoding:blob"
"""The metadata key of a column that is stored as blobs."""


def is_blob(field: pa.Field) -> bool:
    """Return whether a column is stored as blobs, in this or in the older encoding."""
    return isinstance(field.type, lance.blob.BlobType) or (field.metadata or {}).get(BLOB_ENCODING.encode()) == b"true"


def holds_blobs(field: pa.Field) -> bool:
    """Return whether a column, or a field in it, is stored as blobs."""
    kind = field.type
    return is_blob(field) or any(holds_blobs(kind.field(at)) for at in range(kind.num_fields))
