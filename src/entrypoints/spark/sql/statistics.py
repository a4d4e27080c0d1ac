"""Analyze columns, and offer their statistics to Spark's planner.

Statistics are table properties, one for each column. Each names the version that it describes by its number and its
identity, and no other version uses it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.scanning import row_bytes
from lancekeep.entrypoints.spark.internals.classes import READ
from lancekeep.entrypoints.spark.internals.statistics import column_statistics
from lancekeep.entrypoints.spark.reading import identity, stored_fragments
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy

_PREFIX = "statistics."
"""The prefix of the properties; the name of the column follows."""
MOST_COLUMNS = 100
"""The most columns of one analysis: each is a property, and all properties are read with the entry of the table."""

_NUMBERS = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType)
_KINDS = (BooleanType, DateType, StringType, TimestampType, *_NUMBERS)
_INSTANT = "yyyy-MM-dd HH:mm:ss.SSSSSS"


@attrs.frozen
class ColumnStatistics:
    """The statistics of a column in one version.

    Attributes:
        version: The number of the version.
        identity: Its identity, which a version of a branch or of a new table with this number does not have.
        rows: Its rows.
        distinct: An estimate of the distinct values, without NULL.
        nulls: The rows with NULL.
        least: The least value as text, instants in UTC; None for texts, and if there is none.
        greatest: The greatest value, likewise.
        average_length: The mean length of texts in bytes, rounded up; None for other types.
        longest: The greatest length of texts, likewise.
    """

    version: int
    identity: str
    rows: int
    distinct: int
    nulls: int
    least: str | None = None
    greatest: str | None = None
    average_length: int | None = None
    longest: int | None = None

    @property
    def text(self) -> str:
        """The value of the property."""
        return json.dumps({name: value for name, value in attrs.asdict(self).items() if value is not None})

    @staticmethod
    def of(text: str) -> ColumnStatistics | None:
        """Parse the value of a property; None for another text."""
        try:
            found = ColumnStatistics(**json.loads(text))
        except (TypeError, ValueError):
            return None
        given = attrs.asdict(found)
        numbers = all(
            type(given[name]) is int and given[name] >= 0 for name in ("version", "rows", "distinct", "nulls")
        )
        named = isinstance(found.identity, str)
        lengths = all(type(given[name]) in (int, type(None)) for name in ("average_length", "longest"))
        texts = all(isinstance(given[name], str | None) for name in ("least", "greatest"))
        return found if numbers and named and lengths and texts else None

    @property
    def planned(self) -> dict[str, str]:
        """What Spark's planner reads."""
        found = {
            "distinctCount": self.distinct,
            "nullCount": self.nulls,
            "avgLen": self.average_length,
            "maxLen": self.longest,
            "min": self.least,
            "max": self.greatest,
        }
        return {name: str(value) for name, value in found.items() if value is not None}


def analyzed(frame: DataFrame, dataset: Any, columns: Sequence[str] | None) -> dict[str, ColumnStatistics]:
    """Compute the statistics of columns by one query.

    Args:
        frame: The rows of a version.
        dataset: The version.
        columns: The columns; by default all whose types have statistics.

    Raises:
        InvalidInput: A column does not exist or has no statistics, or there are too many.
    """
    types = {field.name: field.dataType for field in frame.schema}
    has = [name for name, kind in types.items() if isinstance(kind, _KINDS)]
    wanted = list(dict.fromkeys(has if columns is None else columns))
    for name in wanted:
        if name not in types:
            raise InvalidInput(f"there is no column {name!r}; choose {', '.join(has) or 'another table'}")
        if name not in has:
            raise InvalidInput(
                f"the column {name} is {types[name].simpleString()}, and only numbers, texts, booleans, dates and "
                f"timestamps have statistics; choose {', '.join(has) or 'another table'}"
            )
    if len(wanted) > MOST_COLUMNS:
        raise InvalidInput(
            f"{len(wanted)} columns have statistics, and one analysis keeps at most {MOST_COLUMNS}. Name the columns "
            "of joins, groups and conditions: columns => array('a', 'b')"
        )
    (row,) = frame.agg(
        f.count(f.lit(1)),
        *(part for at, name in enumerate(wanted) for part in _parts(f.col(_quoted(name)), types[name], at)),
    ).collect()
    found, rows = {}, int(row[0])
    for at, name in enumerate(wanted):
        filled = int(row[f"filled{at}"])
        average = row[f"average{at}"]
        found[name] = ColumnStatistics(
            dataset.version,
            identity(dataset),
            rows,
            min(int(row[f"distinct{at}"]), filled),
            rows - filled,
            row[f"least{at}"],
            row[f"greatest{at}"],
            None if average is None else int(average),
            row[f"longest{at}"],
        )
    return found


def _parts(column: Column, kind: DataType, at: int) -> Iterable[Column]:
    """Return the aggregates of a column; NaN counts as a value, and is no bound."""
    is_text = isinstance(kind, StringType)
    bounded = f.when(~f.isnan(column), column) if isinstance(kind, DoubleType | FloatType) else column
    nothing = f.lit(None).cast("string")
    length = f.octet_length(column) if is_text else f.lit(None).cast("int")
    yield f.count(column).alias(f"filled{at}")
    yield f.approx_count_distinct(column).alias(f"distinct{at}")
    yield (nothing if is_text else _shown(f.min(bounded), kind)).alias(f"least{at}")
    yield (nothing if is_text else _shown(f.max(bounded), kind)).alias(f"greatest{at}")
    yield f.ceil(f.avg(length)).alias(f"average{at}")
    yield f.max(length).alias(f"longest{at}")


def _shown(value: Column, kind: DataType) -> Column:
    if isinstance(kind, TimestampType):
        return f.date_format(f.to_utc_timestamp(value, f.current_timezone()), _INSTANT)
    return value.cast("string")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def property_of(column: str) -> str:
    """Return the name of the property of a column."""
    return _PREFIX + column


def stored(properties: Mapping[str, str]) -> dict[str, ColumnStatistics]:
    """Return the statistics that the properties of a table have, by column."""
    named = {name.removeprefix(_PREFIX): text for name, text in properties.items() if name.startswith(_PREFIX)}
    found = {name: ColumnStatistics.of(text) for name, text in named.items()}
    return {name: each for name, each in found.items() if each is not None}


class Statistics(Proxy):
    """Statistics of the columns that a scan reads.

    The manifest of the scanned version states its rows and bytes: Spark broadcasts small tables in joins. All rows
    count, whatever the conditions. Columns have the statistics of an analysis of the same version.
    """

    class Java:
        implements = (READ + "Statistics",)

    def __init__(
        self,
        jvm: Jvm,
        dataset: Any,
        version: str,
        columns: StructType,
        analyzed_columns: Mapping[str, ColumnStatistics],
    ) -> None:
        self._jvm = jvm
        self._version = version
        self._rows = dataset.count_rows()
        self._size = _size_of(dataset, self._rows, columns.names)
        self._columns = columns
        self._analyzed = analyzed_columns

    def sizeInBytes(self) -> Any:
        optional = self._jvm.java("java.util.OptionalLong")
        return optional.empty() if self._size is None else optional.of(self._size)

    def numRows(self) -> Any:
        return self._jvm.java("java.util.OptionalLong").of(self._rows)

    def columnStats(self) -> Any:
        """Return the statistics of columns that were analyzed in the scanned version."""
        usable = {
            name: each.planned
            for name, each in self._analyzed.items()
            if each.identity == self._version and name in self._columns.names
        }
        return column_statistics(self._jvm, self._columns, usable) if usable else self._jvm.map({})


def _size_of(dataset: Any, rows: int, names: Sequence[str]) -> int | None:
    """Return the size of columns in bytes; None if the manifest does not record the sizes of data files."""
    sizes = [fragment.size for fragment in stored_fragments(dataset)]
    if None in sizes:
        return None
    whole = sum(filter(None, sizes))
    return min(whole, rows * max(1, row_bytes(dataset.schema, names, whole // max(1, rows))))
