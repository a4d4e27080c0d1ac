"""Align decimals as the engine needs them.

The engine panics if the values of a decimal column are not at a multiple of 16 bytes in memory. Arrow aligns buffers to
8 bytes in its streams and files, and so do other libraries.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

_BYTES: Final = 16


def aligned(rows: Any) -> Any:
    """Return a reader or table with the same rows, whose decimals are aligned."""
    if not any(map(_holds_decimals, rows.schema.types)):
        return rows
    if isinstance(rows, pa.RecordBatchReader):
        return pa.RecordBatchReader.from_batches(rows.schema, map(_aligned_batch, rows))
    columns = [
        pa.chunked_array([aligned_array(each) for each in column.chunks], column.type) for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def aligned_array(array: pa.Array) -> pa.Array:
    """Return an array whose decimals are aligned, copied if they were not."""
    if _holds_decimals(array.type) and any(buffer and buffer.address % _BYTES for buffer in array.buffers()):
        return pa.concat_arrays([array])  # copies; pyarrow aligns the copy to 64 bytes
    return array


def _aligned_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([aligned_array(each) for each in batch.columns], schema=batch.schema)


def _holds_decimals(kind: pa.DataType) -> bool:
    children = [kind.field(at).type for at in range(kind.num_fields)]
    return pa.types.is_decimal(kind) or any(map(_holds_decimals, children))
