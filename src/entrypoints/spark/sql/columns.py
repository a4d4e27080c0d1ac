"""Convert columns between Spark's DDL and a table's schema.

Covers nullability, comments, vectors and blobs. A vector column is an ``ARRAY<FLOAT>`` (or ``DOUBLE``) with the table
property ``vector.<column>``, its dimension. A blob column is a ``BINARY`` with the table property ``blob.<column>``,
which is ``true``. Both are parts of the stored type and are not stored as properties.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.row_rules import DEFAULT, GENERATED
from lancekeep.entrypoints.scanning import is_blob
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
    """
    kind = arrow_schema(StructType([column])).field(0).type
    metadata = {
        name: column.metadata[name] for name in (COMMENT, PRIMARY_KEY_POSITION) if (column.metadata or {}).get(name)
    }
    return pa.field(column.name, kind, column.nullable, metadata or None)


def spark_schema(stored: pa.Schema) -> StructType:
    """Return the columns of a table as Spark sees them.

    Raises:
        InvalidInput: Spark lacks the type of a column.
    """
    columns = arrow_types.spark_schema(stored)
    for field, column in zip(stored, columns, strict=True):
        comment = (field.metadata or {}).get(COMMENT.encode())
        if comment:
            column.metadata = {**column.metadata, COMMENT: comment.decode()}
    return columns


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
