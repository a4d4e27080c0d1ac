"""Columns of Spark's DDL as the schema of a table, and back: nullability, comments, and vectors.

A vector column is ``ARRAY<FLOAT>`` (or ``DOUBLE``) together with the table property ``vector.<column>``, its dimension.
The dimension is part of the type that is stored, not kept as a property.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.spark import arrow_types
from lancekeep.entrypoints.spark.arrow_types import (
    VECTOR_LENGTH,
    arrow_schema,
    require_storable,
    vector_lengths,
    with_vectors,
)

COMMENT = "comment"
"""The key of a column's comment, in the metadata of its field in Arrow and in Spark alike."""

_VECTOR = "vector."
_PEERS_VECTOR = f".{VECTOR_LENGTH}"
"""How lance-spark spells ``vector.<column>``, behind the column's name."""


def stored_schema(columns: StructType, properties: Mapping[str, str]) -> pa.Schema:
    """What a new table with these columns and table properties stores. Raises `InvalidInput`."""
    given = {_vector_column(name): value for name, value in properties.items() if is_vector_property(name)}
    lengths = vector_lengths(columns) | given
    unknown = lengths.keys() - set(columns.names)
    if unknown:
        raise InvalidInput(f"the property {_VECTOR}{min(unknown)} names no column of {', '.join(columns.names)}")
    schema = with_vectors(pa.schema([stored_field(column) for column in columns]), lengths)
    require_storable(schema)
    return schema


def stored_field(column: StructField) -> pa.Field:
    """One column as it is stored. Raises `InvalidInput`."""
    kind = arrow_schema(StructType([column])).field(0).type
    comment = (column.metadata or {}).get(COMMENT)
    return pa.field(column.name, kind, column.nullable, {COMMENT: comment} if comment else None)


def spark_schema(stored: pa.Schema) -> StructType:
    """The columns of a table as Spark sees them. Raises `InvalidInput` for types that Spark has not."""
    columns = arrow_types.spark_schema(stored)
    for field, column in zip(stored, columns, strict=True):
        comment = (field.metadata or {}).get(COMMENT.encode())
        if comment:
            column.metadata = {**column.metadata, COMMENT: comment.decode()}
    return columns


def is_vector_property(name: str) -> bool:
    return name.startswith(_VECTOR) or name.endswith(_PEERS_VECTOR)


def vector_properties(stored: pa.Schema) -> dict[str, str]:
    """The table properties that make such vectors."""
    return {
        f"{_VECTOR}{field.name}": str(field.type.list_size)
        for field in stored
        if pa.types.is_fixed_size_list(field.type)
    }


def _vector_column(name: str) -> str:
    return name.removeprefix(_VECTOR) if name.startswith(_VECTOR) else name.removesuffix(_PEERS_VECTOR)
