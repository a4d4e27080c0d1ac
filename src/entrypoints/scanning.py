"""How much a scan reads at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.adapters.lance.batches import BATCH_BYTES, MOST_ROWS
from lancekeep.adapters.lance.blobs import is_blob


def batch_rows(stored: pa.Schema, names: Iterable[str], fragments: Iterable[Any]) -> int:
    """Return the number of rows in a batch of about 2 MB, at most 8,192.

    Values of variable size, such as images, count as the average row of the fragments: the engine decodes several
    whole batches at a time, regardless of ``batch_size_bytes``. Blobs count as the average blob, since they may lie
    beside the data files.
    """
    columns, parts = [stored.field(name) for name in names], list(fragments)
    blobs = dict.fromkeys(column.name for column in columns if is_blob(column))
    bits = [_bits(column.type) for column in columns if column.name not in blobs]
    width = sum(filter(None, bits)) // 8
    if None in bits:
        width = max([width, *map(average_row, parts)])
    if blobs:
        width += _average_blobs(parts, list(blobs))
    return max(1, min(MOST_ROWS, BATCH_BYTES // max(1, width)))


def row_bytes(stored: pa.Schema, names: Iterable[str], average: int) -> int:
    """Estimate the size of columns in a row, in bytes.

    Columns of variable size share the rest that columns of fixed size leave of the average row.

    Args:
        stored: All columns.
        names: The columns to measure. Columns that are not stored, such as ``_rowid``, are numbers of 64 bits.
        average: The size of the average row.
    """
    bits = {field.name: _bits(field.type) for field in stored}
    fixed = sum(filter(None, bits.values())) // 8
    varying = sum(size is None for size in bits.values())
    share = max(_LEAST_VARYING, (average - fixed) // max(1, varying))
    chosen = [bits.get(name, 64) for name in names]
    return sum(share if size is None else -(-size // 8) for size in chosen)


_LEAST_VARYING = 8


def _bits(kind: pa.DataType) -> int | None:
    """Return the size of a value in bits; None if it varies."""
    if pa.types.is_fixed_size_list(kind):
        bits = _bits(kind.value_type)
        return None if bits is None else bits * kind.list_size
    if pa.types.is_struct(kind):
        inner = [_bits(field.type) for field in kind]
        return None if None in inner else sum(filter(None, inner))
    if pa.types.is_dictionary(kind):
        return None
    try:
        return int(kind.bit_width)
    except ValueError:
        return None


def average_row(fragment: Any) -> int:
    """Return the size of the average row of a fragment in its data files, in bytes."""
    metadata = fragment.metadata
    size = sum(file.file_size_bytes or 0 for file in metadata.files)
    return int(size // max(1, metadata.physical_rows))


def _average_blobs(fragments: Sequence[Any], names: Sequence[str]) -> int:
    """Return the average size of a row's blobs, by their descriptions."""
    size, rows = 0, 1
    for fragment in fragments:
        described = fragment.to_table(columns=list(names), blob_handling="blobs_descriptions")
        rows += described.num_rows
        size += sum(pc.sum(pc.struct_field(described[name], "size")).as_py() or 0 for name in names)
    return int(size // rows)
