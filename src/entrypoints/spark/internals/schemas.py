"""Convert schemas between Spark and Arrow, and from Spark's JSON."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructType, UserDefinedType, _parse_datatype_json_string

from lancekeep.entrypoints.spark.versions import LIMITS_BATCHES

__all__ = ["UserDefinedType", "arrow_of", "spark_of", "struct_of_json", "type_of_json"]


def spark_of(schema: pa.Schema, *, keep_zoneless: bool = False) -> StructType:
    """Return the Spark schema of Arrow columns.

    Args:
        schema: The columns.
        keep_zoneless: Read timestamps without a time zone as ``TIMESTAMP_NTZ``, not as instants.

    Raises:
        PySparkException: Spark lacks the type of a column.
    """
    return from_arrow_schema(schema, prefer_timestamp_ntz=keep_zoneless)


def arrow_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a DataFrame, with timestamps in UTC.

    PySpark before 4.2 knows no other time zone.

    Raises:
        PySparkException: Arrow lacks the type of a column.
    """
    return to_arrow_schema(schema, timezone="UTC") if LIMITS_BATCHES else to_arrow_schema(schema)


def type_of_json(text: str) -> DataType:
    """Parse the JSON of a type."""
    return _parse_datatype_json_string(text)


def struct_of_json(text: str) -> StructType:
    """Parse the JSON of a schema."""
    return cast(StructType, _parse_datatype_json_string(text))
