"""The metadata of Arrow fields, of fields within fields too."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

FIELD_ID = b"lance:field_id"
"""The metadata key of a field's number. Partition fields refer to it, and it is never reused."""


def fields_with(schema: pa.Schema, is_kept: Callable[[bytes], bool]) -> list[pa.Field]:
    """Return the fields of a schema with the metadata whose keys satisfy a condition."""
    return [_field_with(field, is_kept) for field in schema]


def without_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose fields have no numbers.

    The engine numbers the fields of a table itself. If metadata have other numbers, it cannot tell which are the
    numbers in the data files, and refuses the commit.
    """
    return pa.schema(fields_with(schema, lambda key: key != FIELD_ID), schema.metadata)


def _field_with(field: pa.Field, is_kept: Callable[[bytes], bool]) -> pa.Field:
    kept = {key: value for key, value in (field.metadata or {}).items() if is_kept(key)}
    return pa.field(field.name, _type_with(field.type, is_kept), field.nullable, kept or None)


def _type_with(kind: pa.DataType, is_kept: Callable[[bytes], bool]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_field_with(field, is_kept) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field_with(kind.key_field, is_kept), _field_with(kind.item_field, is_kept), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field_with(kind.value_field, is_kept), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_field_with(kind.value_field, is_kept))
    return pa.list_(_field_with(kind.value_field, is_kept)) if pa.types.is_list(kind) else kind
