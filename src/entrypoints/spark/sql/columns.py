"""Convert columns between Spark's DDL and a table's schema.

Covers nullability, comments, vectors and blobs. A vector column is an ``ARRAY<FLOAT>`` (or ``DOUBLE``) with the table
property ``vector.<column>``, its dimension. A blob column is a ``BINARY`` with the table property ``blob.<column>``,
which is ``true``. Both are parts of the stored type and are not stored as properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from lancekeep.adapters.lance.blobs import is_blob
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.row_rules import DEFAULT, GENERATED
from lancekeep.entrypoints.spark import arrow_types
from lancekeep.entrypoints.spark.arrow_types import (
    VECTOR_LENGTH,
    arrow_schema,
    blob_columns,
    require_storable,
    vector_lengths,
    with_blobs,
    with_vectors,
)
from lancekeep.entrypoints.spark.sql.texts import stated_lengths, with_length
from lancekeep.format.schema import PRIMARY_KEY_POSITION

COMMENT = "comment"
"""The metadata key of a column's comment, in Arrow and Spark."""

_CURRENT_DEFAULT, _FIRST_DEFAULT, _GENERATION = "CURRENT_DEFAULT", "EXISTS_DEFAULT", "GENERATION_EXPRESSION"
"""Keys of Spark's metadata of a column: its default, the default for older rows, and its generation expression."""

_VECTOR = "vector."
_PEERS_VECTOR = f".{VECTOR_LENGTH}"
"""The suffix after the column name by which lance-spark spells ``vector.<column>``."""

_BLOB = "blob."
_PEERS_BLOB = ".lance.encoding"
"""The suffix by which lance-spark spells ``blob.<column>``, with the value ``blob``."""


def stored_schema(columns: StructType, properties: Mapping[str, str]) -> pa.Schema:
    """Return the stored schema of a new table.

    Raises:
        InvalidInput: Lance cannot store a column, or a vector or blob property does not fit the columns.
    """
    lengths: dict[str, str] = vector_lengths(columns)
    blobs = set(blob_columns(columns))
    for name, value in properties.items():
        column = _column_of(name)
        if column is None:
            continue
        if column not in columns.names:
            raise InvalidInput(f"the property {name} names no column of {', '.join(columns.names)}")
        if name.startswith(_VECTOR) or name.endswith(_PEERS_VECTOR):
            lengths[column] = value
        elif value.lower() in ("true", "blob"):
            blobs.add(column)
        else:
            raise InvalidInput(f"the property {name} is {value!r}; a column that is stored as blobs has 'true'")
    schema = pa.schema([stored_field(column) for column in columns])
    schema = with_blobs(with_vectors(schema, lengths), sorted(blobs))
    require_storable(schema)
    return schema


def stored_field(column: StructField) -> pa.Field:
    """Return the stored field of a column.

    Raises:
        InvalidInput: A table cannot store the type.
        Unsupported: A field of a struct is NOT NULL.
    """
    if (path := _strict_field(column.dataType, column.name)) is not None:
        raise Unsupported(
            f"{path} is NOT NULL: fields of structs take nulls. Leave it out; a CHECK constraint can require the field "
            "of a column that is a struct"
        )
    kind = _commented(arrow_schema(StructType([column])).field(0).type, column.dataType)
    metadata = {
        name: column.metadata[name] for name in (COMMENT, PRIMARY_KEY_POSITION) if (column.metadata or {}).get(name)
    }
    return pa.field(column.name, kind, column.nullable, metadata or None)


def _strict_field(kind: DataType, path: str) -> str | None:
    """Return the path of a field that is NOT NULL in a type; None if it has none."""
    match kind:
        case StructType():
            for field in kind:
                inner = f"{path}.{field.name}"
                found = _strict_field(field.dataType, inner) if field.nullable else inner
                if found is not None:
                    return found
            return None
        case ArrayType():
            return _strict_field(kind.elementType, f"{path}.element")
        case MapType():
            return _strict_field(kind.keyType, f"{path}.key") or _strict_field(kind.valueType, f"{path}.value")
        case _:
            return None


def _commented(stored: pa.DataType, kind: DataType) -> pa.DataType:
    """Return a stored type with the comments on fields of Spark's type."""
    match kind:
        case StructType():
            fields = zip(stored, kind, strict=True)
            return pa.struct(
                [
                    field.with_type(_commented(field.type, column.dataType)).with_metadata(_comment(column))
                    for field, column in fields
                ]
            )
        case ArrayType():
            field = stored.value_field
            return pa.list_(field.with_type(_commented(field.type, kind.elementType)))
        case MapType():
            key, item = stored.key_field, stored.item_field
            return pa.map_(
                key.with_type(_commented(key.type, kind.keyType)),
                item.with_type(_commented(item.type, kind.valueType)),
            )
        case _:
            return stored


def _comment(column: StructField) -> dict[str, str]:
    comment = (column.metadata or {}).get(COMMENT)
    return {COMMENT: comment} if comment else {}


def _with_comments(kind: DataType, stored: pa.DataType) -> DataType:
    """Return Spark's type with the comments on fields of a stored type; the inverse of `_commented`."""
    if not pa.types.is_nested(stored):
        return kind
    match kind:
        case StructType():
            return StructType(_commented_fields(kind, stored))
        case ArrayType():
            return ArrayType(_with_comments(kind.elementType, stored.value_type), kind.containsNull)
        case MapType():
            key, value = _with_comments(kind.keyType, stored.key_type), _with_comments(kind.valueType, stored.item_type)
            return MapType(key, value, kind.valueContainsNull)
        case _:
            return kind


def _commented_fields(columns: StructType, stored: Iterable[pa.Field]) -> list[StructField]:
    return [
        StructField(
            column.name,
            _with_comments(column.dataType, field.type),
            column.nullable,
            {**column.metadata, **_stored_comment(field)},
        )
        for column, field in zip(columns, stored, strict=True)
    ]


def _stored_comment(field: pa.Field) -> dict[str, str]:
    comment = (field.metadata or {}).get(COMMENT.encode())
    return {COMMENT: comment.decode()} if comment else {}


def spark_schema(stored: pa.Schema) -> StructType:
    """Return the columns of a table as Spark sees them.

    Raises:
        InvalidInput: Spark lacks the type of a column.
    """
    return StructType(_commented_fields(arrow_types.spark_schema(stored), stored))


def with_expressions(columns: StructType, properties: Mapping[str, str]) -> StructType:
    """Return columns with what the properties of a table state.

    These are defaults, generation expressions and lengths of texts.
    """

    def described(column: StructField) -> StructField:
        metadata = dict(column.metadata or {})
        if DEFAULT + column.name in properties:
            metadata |= {_CURRENT_DEFAULT: properties[DEFAULT + column.name], _FIRST_DEFAULT: "NULL"}
        if GENERATED + column.name in properties:
            metadata[_GENERATION] = properties[GENERATED + column.name]
        return StructField(
            column.name, with_length(column.name, column.dataType, properties), column.nullable, metadata
        )

    return StructType([described(column) for column in columns])


def stated_expressions(columns: StructType) -> dict[str, str]:
    """Return the properties for the expressions and lengths of columns.

    The inverse of `with_expressions`.
    """
    found = stated_lengths(columns)
    for column in columns:
        for key, prefix in ((_CURRENT_DEFAULT, DEFAULT), (_GENERATION, GENERATED)):
            if key in (column.metadata or {}):
                found[prefix + column.name] = str(column.metadata[key])
    return found


def is_type_property(name: str) -> bool:
    """Return whether a table property declares a column of vectors or blobs."""
    return _column_of(name) is not None


def type_properties(stored: pa.Schema) -> dict[str, str]:
    """Return the table properties that declare a schema's vectors and blobs."""
    vectors = {
        f"{_VECTOR}{field.name}": str(field.type.list_size)
        for field in stored
        if pa.types.is_fixed_size_list(field.type)
    }
    return vectors | {f"{_BLOB}{field.name}": "true" for field in stored if is_blob(field)}


def _column_of(name: str) -> str | None:
    """Return the column whose type a table property declares."""
    for prefix in (_VECTOR, _BLOB):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    for suffix in (_PEERS_VECTOR, _PEERS_BLOB):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return None
