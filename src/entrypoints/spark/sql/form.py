"""Decide whether a scan returns columns or rows.

Columns take less processor time: Spark's generated code reads the worker's Arrow batches, in place of a row for each
record.
"""

from __future__ import annotations

from functools import cached_property

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.spark.internals.columnar import is_distributed
from lancekeep.entrypoints.spark.sql.jvm import Jvm

SETTING = "spark.lancekeep.columnar"
"""The setting of a session that turns columns off."""

_LEAVES = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)
"""The types that Spark's generated code reads from an Arrow column."""


def returns_columns(columns: StructType, setting: str) -> bool:
    """Return whether a scan of columns should return them as columns.

    Args:
        columns: The columns; a scan without columns only has a number of rows.
        setting: The value of `SETTING`; empty if it is not set.

    Raises:
        InvalidInput: The setting is neither ``true`` nor ``false``.
    """
    return _is_on(setting) and bool(columns.fields) and _is_readable(columns)


def distributes(jvm: Jvm) -> bool:
    """Return whether tasks can load Lancekeep's classes, and the session permits it.

    Raises:
        InvalidInput: The setting is neither ``true`` nor ``false``.
    """
    return _is_on(jvm.setting(SETTING)) and is_distributed(jvm)


def _is_on(setting: str) -> bool:
    if setting.lower() not in ("", "true", "false"):
        raise InvalidInput(f"{SETTING} is {setting!r}; set it to true or false")
    return setting.lower() != "false"


def _is_readable(kind: DataType) -> bool:
    match kind:
        case StructType():
            return all(_is_readable(field.dataType) for field in kind)
        case ArrayType():
            return _is_readable(kind.elementType)
        case MapType():
            return _is_readable(kind.keyType) and _is_readable(kind.valueType)
        case _:
            return isinstance(kind, _LEAVES)


class Form:
    """The form of the results of one scan, which its plan and its tasks share."""

    def __init__(self, jvm: Jvm, columns: StructType) -> None:
        self._jvm = jvm
        self._columns = columns

    @cached_property
    def is_columnar(self) -> bool:
        """Decide once: Spark asks several times, and the setting may change in between."""
        return returns_columns(self._columns, self._jvm.setting(SETTING)) and is_distributed(self._jvm)
