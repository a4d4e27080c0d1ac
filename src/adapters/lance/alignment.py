"""Give the engine only columns and values that it can store and read back.

Measured with pylance 14: the engine lacks some types of Arrow. It panics on texts in lists of a fixed size. It stores
binary values of no bytes, and cannot read them; it stores a struct without fields, and then reads wrong values in the
columns after it. It stores a struct with two fields of one name, and cannot read the table.

The engine panics if decimals or views are not at a multiple of 16 bytes in memory. Arrow aligns buffers to 8 bytes in
its streams and files, and so do other libraries. The engine refuses bytes that are not UTF-8 where a text is null,
although they mean nothing. It panics if a struct in a struct is a slice of a longer one.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from lancekeep.application.rows.texts import holds_texts, texts_in
from lancekeep.domain.bounds import LONGEST_NAME, require_short
from lancekeep.domain.column_names import require_readable
from lancekeep.domain.errors import InvalidInput

_BYTES: Final = 16

_MISSING: Final = frozenset(
    kind.id
    for kind in (
        pa.dense_union([]),
        pa.sparse_union([]),
        pa.month_day_nano_interval(),
        pa.run_end_encoded(pa.int32(), pa.null()),
        pa.list_view(pa.null()),
        pa.large_list_view(pa.null()),
        pa.decimal32(1),
        pa.decimal64(1),
    )
)
"""Types that the engine does not have."""

_OF_ANY_SIZE: Final = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_map, pa.types.is_dictionary),
)
"""Types that the engine does not store in lists of a fixed size."""


_IN_NO_DICTIONARY: Final = (pa.types.is_null, pa.types.is_dictionary, pa.types.is_string_view, pa.types.is_binary_view)
"""Types that the engine does not store in dictionaries."""


def require_storable(schema: pa.Schema) -> None:
    """Check that the engine can store columns, and read them.

    Raises:
        InvalidInput: A column has such a name, or such a type.
    """
    for field in schema:
        require_short("the column name", field.name, LONGEST_NAME)
    require_readable(schema.names)
    for field in schema:
        obstacle = _obstacle(field.type)
        if obstacle is not None:
            raise InvalidInput(f"the column {field.name!r} is {field.type!s:.200}: {obstacle}")


def _obstacle(kind: pa.DataType) -> str | None:
    """Return why the engine cannot store values of a type; None if it can."""
    if kind.id in _MISSING or (pa.types.is_map(kind) and kind.keys_sorted):
        return f"Lance does not have the type {kind!s:.200}. Store the values in columns of other types."
    if pa.types.is_fixed_size_binary(kind) and not kind.byte_width:
        return f"Lance cannot read values of the type {kind}, which have no bytes. Leave the column out."
    if pa.types.is_fixed_size_list(kind):
        if not kind.list_size:
            return f"Lance cannot store lists of the type {kind!s:.200}, which have no values. Leave the column out."
        if any(is_kind(kind.value_type) for is_kind in _OF_ANY_SIZE):
            return f"Lance cannot store {kind.value_type!s:.200} in lists of a fixed size. Use lists of any size."
    if pa.types.is_dictionary(kind):
        if any(is_kind(kind.value_type) for is_kind in _IN_NO_DICTIONARY):
            return (
                f"Lance cannot store dictionaries of {kind.value_type!s:.200}. Use strings or numbers as their values."
            )
        return _obstacle(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _obstacle(kind.storage_type)
    children = _children(kind)
    if pa.types.is_struct(kind) and not children:
        return "Lance cannot read a table that has a struct without fields. Give the struct a field, or leave it out."
    names = _names(kind)
    if len(set(names)) < len(names):
        return "Lance cannot read a table that has a struct with two fields of one name. Rename a field."
    if any(len(name.encode()) > LONGEST_NAME for name in names):
        return f"Lance keeps the names of fields in each version; they may have {LONGEST_NAME:,} bytes. Rename a field."
    return next(filter(None, map(_obstacle, children)), None)


def aligned(rows: Any) -> Any:
    """Return a reader or table with the same rows, which the engine takes."""
    if not any(_is_wide(kind) or holds_texts(kind) or _is_deep(kind) for kind in rows.schema.types):
        return rows
    if isinstance(rows, pa.RecordBatchReader):
        return pa.RecordBatchReader.from_batches(rows.schema, map(_aligned_batch, rows))
    columns = [
        pa.chunked_array([aligned_array(each) for each in column.chunks], column.type) for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def aligned_array(array: pa.Array) -> pa.Array:
    """Return an array as the engine takes it.

    It is aligned, has no bytes where texts are null, and no slices of structs in structs.
    """
    if any(map(_has_bytes_of_nulls, texts_in(array))):
        array = _without_bytes_of_nulls(array)
    is_misaligned = _is_wide(array.type) and any(buffer and buffer.address % _BYTES for buffer in array.buffers())
    if is_misaligned or (_is_deep(array.type) and _is_slice(array)):
        return pa.concat_arrays([array])  # copies; pyarrow aligns the copy to 64 bytes
    return array


def _aligned_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([aligned_array(each) for each in batch.columns], schema=batch.schema)


def _has_bytes_of_nulls(texts: pa.Array) -> bool:
    if not texts.null_count:
        return False
    _, *buffers = texts.buffers()
    try:
        pa.Array.from_buffers(texts.type, len(texts), [None, *buffers], offset=texts.offset).validate(full=True)
    except pa.ArrowException:
        return True
    return False


def _without_bytes_of_nulls(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.StructArray):
        inner = [_without_bytes_of_nulls(each) for each in array.flatten()]  # null where the struct is
        return pa.StructArray.from_arrays(inner, fields=list(array.type), mask=array.is_null())
    if any(map(_has_bytes_of_nulls, texts_in(array))):
        return array.take(pa.array(range(len(array)), pa.int64()))
    return array


def _names(kind: pa.DataType) -> list[str]:
    """Return the names of the fields of a struct or a map."""
    if pa.types.is_map(kind):
        return [kind.key_field.name, kind.item_field.name]
    return [field.name for field in kind] if pa.types.is_struct(kind) else []


def _is_wide(kind: pa.DataType) -> bool:
    """Return whether the engine reads values of a type from memory as numbers of 16 bytes."""
    is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return pa.types.is_decimal(kind) or is_view or any(map(_is_wide, _children(kind)))


def _is_deep(kind: pa.DataType) -> bool:
    """Return whether a type has a struct as a field of a struct."""
    children = _children(kind)
    return (pa.types.is_struct(kind) and any(map(pa.types.is_struct, children))) or any(map(_is_deep, children))


def _is_slice(array: Any) -> bool:
    """Return whether an array, or one inside of it, begins after the first value of its buffers."""
    if isinstance(array, pa.ExtensionArray):
        return _is_slice(array.storage)
    if isinstance(array, pa.StructArray):  # its fields begin where it begins, or later
        return any(_is_slice(array.field(at)) for at in range(array.type.num_fields))
    if isinstance(array, pa.MapArray):
        return bool(array.offset) or _is_slice(array.keys) or _is_slice(array.items)
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return bool(array.offset) or _is_slice(array.values)
    return bool(array.offset)


def _children(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(at).type for at in range(kind.num_fields)]
