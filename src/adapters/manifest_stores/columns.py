"""The columns of the manifest table.

Directory namespace V2, "Manifest Table Schema" and "Schema Extensibility".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lancekeep.domain.errors import Damaged, Refused
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.format.logical_types import arrow_type, logical_type

PRIMARY_KEY = "lance-schema:unenforced-primary-key:position"
REQUIRED = ("object_id", "object_type")
OWN_COLUMNS = (*REQUIRED, "location", "metadata")
TEXT = pa.string()
SCHEMA = pa.schema(
    [
        pa.field("object_id", TEXT, nullable=False, metadata={PRIMARY_KEY: "0"}),
        pa.field("object_type", TEXT, nullable=False),
        pa.field("location", TEXT),
        pa.field("metadata", TEXT),
        pa.field("base_objects", pa.list_(pa.field("object_id", TEXT))),
    ]
)

_EXACT = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_decimal,
    pa.types.is_timestamp,
)
"""Types whose values convert to Python objects exactly or not at all."""


def in_memory(stored: pa.Schema, key: str) -> pa.Schema:
    """Return the schema of the rows in memory: own columns are plain text.

    Args:
        stored: the schema of the table.
        key: the table, for messages.

    Raises:
        Damaged: an own column is missing, or is not text.
    """
    missing = [name for name in OWN_COLUMNS if name not in stored.names]
    if missing:
        raise Damaged(f"{key} is not a manifest table: it has no column {', '.join(missing)}")
    fields = [field.with_type(TEXT) if _is_own_text(field) else field for field in stored]
    wrong = [field for field in fields if field.name in OWN_COLUMNS and field.type != TEXT]
    if wrong:
        raise Damaged(
            f"{key} is not a manifest table: the column {wrong[0].name!r} has the type {wrong[0].type}, expected "
            f"string. Change it with pylance: alter_columns"
        )
    return pa.schema(fields)


def column_of(batch: pa.RecordBatch, name: str, kind: pa.DataType = TEXT) -> pa.Array:
    """Return a column of a batch; nulls if the batch does not have it."""
    at = batch.schema.get_field_index(name)
    return pa.nulls(batch.num_rows, kind) if at < 0 else batch.column(at)


def require_values(entry: ManifestEntry, schema: pa.Schema) -> None:
    """Refuse an entry that has no value for a column that cannot hold nulls.

    Raises:
        Refused: a column lacks a value; the message names it.
    """
    for field in schema:
        if field.nullable or field.name in REQUIRED:
            continue
        value = getattr(entry, field.name) if field.name in OWN_COLUMNS else entry.extension.get(field.name)
        if value is None:
            raise Refused(
                f"the manifest table has a column {field.name!r} that cannot be null, and the entry of "
                f"{entry.object_id!r} has no value for it; nothing was written. Drop the column, or make it nullable "
                f'with pylance: alter_columns({{"path": "{field.name}", "nullable": True}})'
            )


def with_columns(schema: pa.Schema, columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema with additional nullable columns, given by logical type.

    Raises:
        Refused: a column exists with another type.
    """
    for name, logical in columns.items():
        wanted = arrow_type(logical)
        if name not in schema.names:
            schema = schema.append(pa.field(name, wanted))
        elif schema.field(name).type != wanted:
            raise Refused(
                f"the manifest table has a column {name!r} of type {schema.field(name).type}; it cannot hold {wanted}. "
                "Choose another name."
            )
    return schema


def added_columns(schema: pa.Schema) -> dict[str, str]:
    """Return the logical types of the columns outside of the specification, by name.

    Raises:
        InvalidInput: a type is nested.
    """
    return {field.name: logical_type(field.type) for field in schema if field.name not in SCHEMA.names}


def enter_columns(manifest: Any, example: Any) -> None:
    """Add the missing columns to a manifest message.

    Field ids of dropped columns are not reused, because data files still hold their values under these ids.

    Args:
        manifest: the manifest message to change.
        example: the manifest message of a table that has all columns.
    """
    known = {field.name for field in manifest.fields if field.parent_id < 0}
    used = [field.id for field in manifest.fields]
    used += [number for fragment in manifest.fragments for file in fragment.files for number in file.fields]
    following = max(used, default=-1) + 1
    ids: dict[int, int] = {}
    for field in example.fields:
        if field.parent_id in ids or (field.parent_id < 0 and field.name not in known):
            entered = manifest.fields.add()
            entered.CopyFrom(field)
            entered.id = ids[field.id] = following
            entered.parent_id = ids.get(field.parent_id, field.parent_id)
            following += 1


def value_of(column: pa.Array, position: int) -> Any:
    """Return an extension's value as a Python object.

    If Python has no such value, the result is an array of one element.
    """
    kept = column.slice(position, 1)
    try:
        value = column[position].as_py()
        exact = any(of_type(column.type) for of_type in _EXACT) or pa.array([value], column.type).equals(kept)
    except (ValueError, TypeError, OverflowError, NotImplementedError):  # pa.ArrowException is a ValueError mostly
        exact = False
    return value if exact else kept


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of values that `value_of` returned."""
    if not any(isinstance(value, pa.Array) for value in values):
        return pa.array(values, kind)
    return pa.concat_arrays([value if isinstance(value, pa.Array) else pa.array([value], kind) for value in values])


def _is_own_text(field: pa.Field) -> bool:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return field.name in OWN_COLUMNS and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
