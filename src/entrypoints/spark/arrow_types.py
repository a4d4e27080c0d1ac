"""Map Arrow types between Spark and Lance tables, and convert values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import lance.fragment
import pyarrow as pa
import pyarrow.compute as pc
from lance.blob import BlobType

from lancekeep.adapters.lance import alignment
from lancekeep.adapters.lance.alignment import aligned_array
from lancekeep.adapters.lance.blobs import BLOB_ENCODING, is_blob
from lancekeep.domain.errors import InvalidInput, MissingExtra
from lancekeep.format.schema import PRIMARY_KEY, primary_key, schema_fields

try:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        CharType,
        DataType,
        MapType,
        StringType,
        StructField,
        StructType,
        VarcharType,
    )

    from lancekeep.entrypoints.spark.internals.schemas import UserDefinedType, arrow_of, spark_of
except ImportError as error:
    raise MissingExtra("this needs PySpark: pip install 'lancekeep[spark]'") from error

VECTOR_LENGTH = "arrow.fixed-size-list.size"
"""The key of Spark's column metadata that holds the length of stored vectors; lance-spark uses the same name."""


# -- schemas --------------------------------------------------------------------------------------------------------


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the nullable Arrow schema of a DataFrame's columns.

    Raises:
        InvalidInput: A table cannot store the type of a column.
    """
    leaves = list(_leaves(schema))
    limited = [
        f"{path!r} is {kind.simpleString()}" for path, kind in leaves if isinstance(kind, CharType | VarcharType)
    ]
    if limited:
        raise InvalidInput(
            f"columns of SQL tables keep the length of a text, fields and DataFrames do not: {'; '.join(limited)}. "
            "Declare STRING instead."
        )
    lost = [f"{path!r} is {data_type.simpleString()}" for path, data_type in leaves if _is_unkept(data_type)]
    if lost:
        raise InvalidInput(
            f"a table cannot keep these types: {'; '.join(lost)}. Cast these columns to types that a table can keep."
        )
    try:
        arrow = arrow_of(schema)
    except PySparkException as error:
        raise InvalidInput(f"the DataFrame has a column that Arrow cannot hold: {error}") from error
    return pa.schema([pa.field(field.name, as_spark_sees(field.type)) for field in arrow])


def _leaves(data_type: DataType, path: str = "") -> Iterator[tuple[str, DataType]]:
    match data_type:
        case StructType():
            for field in data_type:
                yield from _leaves(field.dataType, f"{path}.{field.name}" if path else field.name)
        case ArrayType():
            yield from _leaves(data_type.elementType, f"{path}.element")
        case MapType():
            yield from _leaves(data_type.keyType, f"{path}.key")
            yield from _leaves(data_type.valueType, f"{path}.value")
        case _:
            yield path, data_type


_UNKEPT = {"geography", "geometry", "interval", "variant", "yearmonthinterval"}
"""Names of types that Arrow lacks or replaces, so that Spark would read a different type than it wrote.

By name, since PySpark 4.0 lacks some of the classes.
"""


def _is_unkept(data_type: DataType) -> bool:
    if isinstance(data_type, StringType):
        return not data_type.isUTF8BinaryCollation()
    return isinstance(data_type, UserDefinedType) or data_type.typeName() in _UNKEPT


def key_of(stored: pa.Schema) -> list[str]:
    """Return the columns of the unenforced primary key of a table; none without one."""
    if PRIMARY_KEY.encode() not in stored.serialize().to_pybytes():
        return []  # a wide table is not described field by field for this
    return [field.name for field in primary_key(schema_fields(stored))]


def spark_schema(stored: pa.Schema) -> StructType:
    """Return the schema in which Spark reads a table.

    The metadata of a vector column holds the length of its vectors, the metadata of a blob column its encoding.

    Raises:
        InvalidInput: Spark has no type for a column; the message names all such columns.
    """
    columns, unreadable, known = [], [], dict[pa.DataType, DataType | None]()
    for field in stored:
        kind = field.type
        if isinstance(kind, pa.ExtensionType):  # has no hash
            seen = _spark_type(kind)
        else:
            if kind not in known:
                known[kind] = _spark_type(kind)
            seen = known[kind]
        if seen is None:
            unreadable.append(f"{field.name!r} is {kind}")
        else:
            columns.append(_described(StructField(field.name, seen, field.nullable), field))
    if unreadable:
        raise InvalidInput(
            f"Spark has no type for these columns: {'; '.join(unreadable)}. Choose other columns with `columns`."
        )
    return StructType(columns)


def _spark_type(stored: pa.DataType) -> DataType | None:
    """Return the type in which Spark reads a stored type; None if it has none."""
    try:
        seen = spark_of(pa.schema([("column", as_spark_sees(stored))]), keep_zoneless=True)
        arrow_of(seen)  # refuses decimals of more digits than Spark has
    except (PySparkException, ValueError):
        return None
    return seen[0].dataType


def _described(column: StructField, stored: pa.Field) -> StructField:
    if pa.types.is_fixed_size_list(stored.type):
        column.metadata = {VECTOR_LENGTH: stored.type.list_size}
    if is_blob(stored):
        column.metadata = {BLOB_ENCODING: "true"}
    return column


def vector_lengths(schema: StructType) -> dict[str, str]:
    """Return the vector lengths of columns that were read from vectors.

    Spark keeps the metadata of a column that passes unchanged.
    """
    return {
        column.name: str(column.metadata[VECTOR_LENGTH])
        for column in schema
        if VECTOR_LENGTH in (column.metadata or {}) and isinstance(column.dataType, ArrayType)
    }


def with_vectors(offered: pa.Schema, lengths: dict[str, Any]) -> pa.Schema:
    """Replace list columns by vector columns of the given lengths.

    Raises:
        InvalidInput: A column is not a list, or its length is not a positive number.
    """
    for name, length in lengths.items():
        field = offered.field(name)
        if not pa.types.is_list(field.type) or not (str(length).isdecimal() and int(length) > 0):
            raise InvalidInput(f"the column {name!r}, {field.type}, cannot be vectors of length {length!r}")
        vectors = pa.list_(pa.field("item", field.type.value_type), int(length))
        offered = offered.set(offered.names.index(name), field.with_type(vectors))
    return offered


def blob_columns(schema: StructType) -> list[str]:
    """Return the columns that were read from blobs, or whose metadata asks for them."""
    return [
        column.name
        for column in schema
        if (column.metadata or {}).get(BLOB_ENCODING) == "true" and isinstance(column.dataType, BinaryType)
    ]


def with_blobs(offered: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Replace binary columns by blob columns.

    Raises:
        InvalidInput: A column is not binary.
    """
    for name in names:
        field = offered.field(name)
        if not pa.types.is_binary(field.type):
            raise InvalidInput(f"the column {name!r} is {field.type}; only BINARY can be stored as blobs")
        offered = offered.set(offered.names.index(name), field.with_type(BlobType()))
    return offered


def require_storable(schema: pa.Schema) -> None:
    """Check that Lance can store a schema, by writing an empty table.

    Raises:
        InvalidInput: Lance refuses the schema, for example because of repeated names, dots in names or intervals.
    """
    if not schema.names:
        raise InvalidInput("the DataFrame has no columns; a table needs at least one")
    alignment.require_storable(schema)
    try:
        lance.fragment.write_fragments(schema.empty_table(), "memory://schema-check", schema=schema, mode="create")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"Lance cannot store these columns: {error}") from error


def require_fit(offered: pa.Schema, wanted: pa.Schema) -> None:
    known, given = dict.fromkeys(wanted.names), dict.fromkeys(offered.names)  # Arrow lists the names on each access
    problems = [f"{name!r} is missing" for name in known if name not in given]
    problems += [f"{name!r} is not a column of the table" for name in given if name not in known]
    problems += [
        f"{field.name!r} is {offered.field(field.name).type}, the table has {field.type}"
        for field in wanted
        if field.name in given and offered.field(field.name).type != as_spark_sees(field.type)
    ]
    if problems:
        raise InvalidInput(
            f"the DataFrame does not fit the table; nothing was written: {'; '.join(problems)}. "
            "Select and cast its columns to the columns of the table."
        )


def as_spark_sees(stored: pa.DataType) -> pa.DataType:
    """Return the Spark type for a stored type, with nullable nested values."""
    is_ = pa.types
    if isinstance(stored, pa.ExtensionType):
        return pa.binary() if isinstance(stored, BlobType) else stored
    if is_.is_list(stored) or is_.is_large_list(stored) or is_.is_fixed_size_list(stored):
        return pa.list_(pa.field("element", as_spark_sees(stored.value_type)))
    if is_.is_struct(stored):
        return pa.struct([pa.field(child.name, as_spark_sees(child.type)) for child in stored])
    if is_.is_map(stored):
        return pa.map_(as_spark_sees(stored.key_type), as_spark_sees(stored.item_type))
    if is_.is_dictionary(stored):
        return as_spark_sees(stored.value_type)
    if is_.is_timestamp(stored):
        return pa.timestamp("us", tz="UTC" if stored.tz else None)
    if is_.is_time(stored):
        return pa.time64("ns")
    if is_.is_duration(stored):
        return pa.duration("us")
    if is_.is_fixed_size_binary(stored):
        return pa.binary()
    if is_.is_decimal(stored) and stored.precision <= _SPARK_PRECISION:
        return pa.decimal128(stored.precision, stored.scale)
    return _SPARK_TYPES.get(stored, stored)


_SPARK_PRECISION = 38
_SPARK_TYPES = {
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


# -- values ---------------------------------------------------------------------------------------------------------


def as_spark_takes(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of a table to exactly the types that Spark expects.

    Times are truncated to microseconds.

    Raises:
        InvalidInput: A value is out of range for Spark's type.
    """
    columns = []
    for field in schema:
        column = batch.column(field.name)
        try:
            if not column.type.equals(field.type, check_metadata=True):
                column = _widened(column, field.type)
        except pa.ArrowException as error:
            raise InvalidInput(
                f"a value of the column {field.name!r} does not fit Spark's {field.type}: {error}"
            ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _widened(column: pa.Array, target: pa.DataType) -> pa.Array:
    return pc.cast(column, options=pc.CastOptions(target, allow_time_truncate=True))


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_fit_column(batch.column(field.name), field) for field in schema], schema=schema)


def _fit_column(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.null_count and not field.nullable:
        raise InvalidInput(f"the column {field.name!r} of the table takes no nulls, and the DataFrame holds some")
    if column.type == field.type:
        return aligned_array(column)
    try:
        if pa.types.is_fixed_size_list(field.type):
            return _vectors(column, field)
        if isinstance(field.type, BlobType):
            return _blobs(column, field.type)
        if pa.types.is_struct(field.type):
            children = [_fit_column(column.field(child.name), child) for child in field.type]
            return pa.StructArray.from_arrays(children, fields=list(field.type), mask=column.is_null())
        return aligned_array(column.cast(field.type))
    except pa.ArrowException as error:
        raise InvalidInput(f"a value of the column {field.name!r} does not fit {field.type}: {error}") from error


def _vectors(lists: pa.Array, field: pa.Field) -> pa.Array:
    """Build vectors without pyarrow's cast, which crashes if all lists are null and their buffer is empty."""
    size = field.type.list_size
    lengths = pc.unique(pc.list_value_length(lists).drop_null()).to_pylist()
    if lengths not in ([], [size]):
        raise InvalidInput(f"the column {field.name!r} holds vectors of {size} values; found lengths {sorted(lengths)}")
    mask = lists.is_null()
    if lists.null_count:
        lists = pc.coalesce(lists, pa.scalar([0] * size, lists.type))
    return pa.FixedSizeListArray.from_arrays(lists.flatten().cast(field.type.value_type), type=field.type, mask=mask)


def _blobs(values: pa.Array, kind: BlobType) -> pa.Array:
    """Build blobs from bytes; a table may have been created with fewer fields than `BlobType` has now."""
    [data, *rest] = kind.storage_type
    children = [values.cast(data.type), *(pa.nulls(len(values), field.type) for field in rest)]
    stored = pa.StructArray.from_arrays(children, fields=[data, *rest], mask=values.is_null())
    return pa.ExtensionArray.from_storage(kind, stored)
