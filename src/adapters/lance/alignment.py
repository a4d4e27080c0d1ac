"""Give the engine only columns and values that it can store and read back.

The engine panics if the values of a decimal column are not at a multiple of 16 bytes in memory. Arrow aligns buffers to
8 bytes in its streams and files, and so do other libraries. Measured with pylance 14: the engine stores a struct
without fields, and then reads wrong values in the columns after it.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from lancekeep.domain.column_names import require_readable
from lancekeep.domain.errors import InvalidInput

_BYTES: Final = 16


def require_storable(schema: pa.Schema) -> None:
    """Check that the engine can read the columns that it would store.

    Raises:
        InvalidInput: A column has such a name, or a struct without fields.
    """
    require_readable(schema.names)
    for field in schema:
        if _has_no_field(field.type):
            raise InvalidInput(
                f"the column {field.name!r} is {field.type}: Lance cannot read a table that has a struct without "
                "fields. Give the struct a field, or leave it out."
            )


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
    return pa.types.is_decimal(kind) or any(map(_holds_decimals, _children(kind)))


def _has_no_field(kind: pa.DataType) -> bool:
    children = _children(kind)
    return (pa.types.is_struct(kind) and not children) or any(map(_has_no_field, children))


def _children(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(at).type for at in range(kind.num_fields)]
