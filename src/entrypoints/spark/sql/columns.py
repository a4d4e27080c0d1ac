"""Convert columns between Spark's DDL and a table's schema.

Covers nullability, comments and vectors. A vector column is an ``ARRAY<FLOAT>`` (or ``DOUBLE``) with the table property
``vector.<column>``, its dimension. The dimension is part of the stored type and is not stored as a property.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.row_rules import DEFAULT, GENERATED
from lancekeep.entrypoints.spark import arrow_types
from lancekeep.entrypoints.spark.arrow_types import (
    VECTOR_LENGTH,
    arrow_schema,
    require_storable,
    vector_lengths,
    with_vectors,
)

COMMENT = "comment"
"""The metadata key of a column's comment, in Arrow and Spark."""

_CURRENT_DEFAULT, _FIRST_DEFAULT, _GENERATION = "CURRENT_DEFAULT", "EXISTS_DEFAULT", "GENERATION_EXPRESSION"
"""Keys of Spark's metadata of a column: its default, that of the rows before it, and its generation expression."""

_VECTOR = "vector."
_PEERS_VECTOR = f".{VECTOR_LENGTH}"
"""The suffix after the column name by which lance-spark spells ``vector.<column>``."""


def stored_schema(columns: StructType, properties: Mapping[str, str]) -> pa.Schema:
    """Return the stored schema of a new table.

    Raises:
        InvalidInput: Lance cannot store a column, or a vector property does not fit the columns.
    """
    given = {_vector_column(name): value for name, value in properties.items() if is_vector_property(name)}
    lengths = vector_lengths(columns) | given
    unknown = lengths.keys() - set(columns.names)
    if unknown:
        raise InvalidInput(f"the property {_VECTOR}{min(unknown)} names no column of {', '.join(columns.names)}")
    schema = with_vectors(pa.schema([stored_field(column) for column in columns]), lengths)
    require_storable(schema)
    return schema


def stored_field(column: StructField) -> pa.Field:
    """Return the stored field of a column.

    Raises:
        InvalidInput: A table cannot store the type.
    """
    kind = arrow_schema(StructType([column])).field(0).type
    comment = (column.metadata or {}).get(COMMENT)
    return pa.field(column.name, kind, column.nullable, {COMMENT: comment} if comment else None)


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
    """Return columns with the expressions that the properties of a table state.

    These are defaults and generation expressions.
    """

    def described(column: StructField) -> StructField:
        metadata = dict(column.metadata or {})
        if DEFAULT + column.name in properties:
            metadata |= {_CURRENT_DEFAULT: properties[DEFAULT + column.name], _FIRST_DEFAULT: "NULL"}
        if GENERATED + column.name in properties:
            metadata[_GENERATION] = properties[GENERATED + column.name]
        return StructField(column.name, column.dataType, column.nullable, metadata)

    return StructType([described(column) for column in columns])


def stated_expressions(columns: StructType) -> dict[str, str]:
    """Return the properties for the expressions of columns.

    The inverse of `with_expressions`.
    """
    found = {}
    for column in columns:
        for key, prefix in ((_CURRENT_DEFAULT, DEFAULT), (_GENERATION, GENERATED)):
            if key in (column.metadata or {}):
                found[prefix + column.name] = str(column.metadata[key])
    return found


def is_vector_property(name: str) -> bool:
    return name.startswith(_VECTOR) or name.endswith(_PEERS_VECTOR)


def vector_properties(stored: pa.Schema) -> dict[str, str]:
    """Return the table properties that declare the vector columns of a schema."""
    return {
        f"{_VECTOR}{field.name}": str(field.type.list_size)
        for field in stored
        if pa.types.is_fixed_size_list(field.type)
    }


def _vector_column(name: str) -> str:
    return name.removeprefix(_VECTOR) if name.startswith(_VECTOR) else name.removesuffix(_PEERS_VECTOR)
