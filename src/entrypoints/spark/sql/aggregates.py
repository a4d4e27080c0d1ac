"""Compute partial results of aggregates next to the rows.

Each task returns the values of the buffers in which Spark aggregates, one row for some rows of a group. Spark merges
them by its own rules. Rows whose partial result would not be Spark's are returned one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BooleanType, DataType, DecimalType, DoubleType, LongType, StructType

from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.reading import FragmentReader

_ORDERED: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_temporal,
)
_LARGEST = 2**63 - 1
_MORE_DIGITS = 10
"""So many digits more has Spark's sum of decimals, which no number of rows that a task reads can exceed."""
_MOST_DIGITS = 38 - _MORE_DIGITS
_BATCHES = 8
"""So many batches of the reader are aggregated together, at most about 16 MB."""
_FEW_PER_GROUP = 2
"""With fewer rows per group, partial results take more time than they save."""


def is_ordered(kind: pa.DataType) -> bool:
    """Return whether pyarrow orders values as Spark does, but for NaN and -0.0."""
    return any(test(kind) for test in _ORDERED)


def column_of(expression: Any, columns: pa.Schema) -> str | None:
    """Return the column that a Spark expression names, None for any other expression."""
    if expression.getClass().getSimpleName() != "FieldReference":
        return None
    names = list(expression.fieldNames())
    return names[0] if len(names) == 1 and names[0] in columns.names else None


def counts_rows(aggregation: Any) -> bool:
    """Return whether Spark's ``Aggregation`` asks for nothing but the number of rows."""
    kinds = [each.getClass().getSimpleName() for each in aggregation.aggregateExpressions()]
    return kinds == ["CountStar"] and not list(aggregation.groupByExpressions())


class Buffer(NamedTuple):
    """A value that Spark merges.

    Attributes:
        function: pyarrow's function.
        column: The column; None for the number of rows.
        kind: The type of the value.
        default: The value of no values.
        is_unscaled: Whether decimals are taken as their digits, without the point.
    """

    function: str
    column: str | None
    kind: DataType
    default: int | None = None
    is_unscaled: bool = False


@attrs.frozen
class Aggregate:
    """An aggregate of one column; of none for ``count(*)``.

    Attributes:
        kind: The name of Spark's function.
        column: The column.
        is_unscaled: Whether it takes decimals as their digits, without the point.
    """

    kind: str
    column: str | None
    is_unscaled: bool = False

    def __str__(self) -> str:
        return f"{self.kind}({'*' if self.column is None else self.column})"

    def buffers(self, columns: StructType) -> tuple[Buffer, ...]:
        """Return the buffers of Spark's aggregate; none if Spark must compute it."""
        if self.column is None:
            return (Buffer("count_all", None, LongType()),) if self.kind == "count" else ()
        kind = columns[self.column].dataType
        stored = arrow_of(StructType([columns[self.column]])).field(0).type
        is_integer = pa.types.is_integer(stored) or self.is_unscaled
        is_number = is_integer or pa.types.is_floating(stored)
        count = Buffer("count", self.column, LongType())
        match self.kind:
            case "count":
                return (count,)
            case "min" | "max" if is_ordered(stored):
                return (Buffer(self.kind, self.column, kind),)
            case "sum" if is_number:
                result = LongType() if is_integer else DoubleType()
                return (Buffer("sum", self.column, result, is_unscaled=self.is_unscaled),)
            case "avg" if is_number:
                return (Buffer("sum", self.column, DoubleType(), default=0, is_unscaled=self.is_unscaled), count)
            case "sum" | "avg" if isinstance(kind, DecimalType) and kind.precision <= _MOST_DIGITS:
                total = Buffer("sum", self.column, DecimalType(kind.precision + _MORE_DIGITS, kind.scale), default=0)
                is_empty = Buffer("all", self.column, BooleanType())
                return (total, is_empty if self.kind == "sum" else count)
        return ()


@attrs.frozen
class Aggregation:
    """The aggregates of a query.

    Attributes:
        groups: The columns that it groups by.
        aggregates: What it asks for.
        buffers: What Spark merges for that.
    """

    groups: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    buffers: tuple[Buffer, ...]

    @staticmethod
    def of(asked: str, columns: StructType) -> Aggregation | None:
        """Read what `internals.partial_aggregates` asks for.

        Args:
            asked: The JSON of the names of grouped columns, and of the attributes of each `Aggregate`.
            columns: The columns of the table.

        Returns:
            None if Spark must compute it.
        """
        groups, given = json.loads(asked)
        aggregates = tuple(Aggregate(*each) for each in given)
        read = [*groups, *(each.column for each in aggregates if each.column is not None)]
        if not set(columns.names).issuperset(read):
            return None
        are_ordered = [is_ordered(field.type) for field in arrow_of(StructType([columns[name] for name in groups]))]
        buffers = [each.buffers(columns) for each in aggregates]
        if not (all(are_ordered) and all(buffers)) or not [*groups, *buffers]:
            return None
        return Aggregation(tuple(groups), aggregates, tuple(chain.from_iterable(buffers)))

    def __str__(self) -> str:
        by = f" by [{', '.join(self.groups)}]" if self.groups else ""
        return f"aggregated [{', '.join(map(str, self.aggregates))}]{by}"

    @property
    def counts_rows(self) -> bool:
        """Whether the query asks for nothing but the number of rows."""
        return not self.groups and all(each.column is None for each in self.buffers)

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        read = [each.column for each in self.buffers if each.column is not None]
        return list(dict.fromkeys([*self.groups, *read]))

    def result(self, columns: StructType) -> StructType:
        """Return the schema of the partial results: the groups, then the buffers."""
        kinds = [columns[name].dataType for name in self.groups] + [each.kind for each in self.buffers]
        result = StructType()
        for at, kind in enumerate(kinds):  # by position, because names may repeat
            result = result.add(f"c{at}", kind)
        return result


@attrs.frozen
class Aggregator:
    """Aggregate the rows of fragments; can be pickled.

    Attributes:
        aggregation: What to compute.
        reader: Reads the columns of the aggregation.
        schema: The exact schema of the results.
    """

    aggregation: Aggregation
    reader: FragmentReader
    schema: pa.Schema

    def read(self, runs: Sequence[range]) -> Iterator[pa.RecordBatch]:
        """Yield batches of partial results."""
        saves_time = True
        for rows in _joined(self.reader.read(runs)):
            rows = self._with_equal_groups(rows)
            if saves_time and all(_is_exact(each, rows) for each in self.aggregation.buffers):
                found = self._aggregated(rows)
                saves_time = not self.aggregation.groups or _FEW_PER_GROUP * found.num_rows <= rows.num_rows
            else:
                found = self._apart(rows)
            yield from found.to_batches()

    def _with_equal_groups(self, rows: pa.Table) -> pa.Table:
        """Give numbers that Spark groups together the same bits."""
        for name in self.aggregation.groups:
            at = rows.schema.get_field_index(name)
            values = rows.column(at)
            if pa.types.is_floating(values.type):
                zero, nan = pa.scalar(0.0, values.type), pa.scalar(float("nan"), values.type)
                equal = pc.if_else(pc.is_nan(values), nan, pc.add(values, zero))  # -0.0 + 0.0 is 0.0
                rows = rows.set_column(at, rows.schema.field(at), equal)
        return rows

    def _aggregated(self, rows: pa.Table) -> pa.Table:
        columns: list[pa.ChunkedArray] = [rows.column(name) for name in self.aggregation.groups]
        functions: list[Any] = []
        for buffer in self.aggregation.buffers:
            if buffer.column is None:
                functions.append(([], buffer.function))
                continue
            options = pc.ScalarAggregateOptions(min_count=0) if buffer.default is not None else None
            functions.append((f"c{len(columns)}", buffer.function, options))
            columns.append(_operand(buffer, rows))
        named = pa.Table.from_arrays(columns, [f"c{at}" for at in range(len(columns))])
        keys = named.schema.names[: len(self.aggregation.groups)]
        found = named.group_by(keys, use_threads=False).aggregate(functions)
        return self._of(found.columns)

    def _apart(self, rows: pa.Table) -> pa.Table:
        """Return each row as a partial result of its own."""
        columns = [rows.column(name) for name in self.aggregation.groups]
        columns += [_single(each, rows) for each in self.aggregation.buffers]
        return self._of(columns)

    def _of(self, columns: Sequence[pa.ChunkedArray]) -> pa.Table:
        found = [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(found, schema=self.schema).combine_chunks()


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    remaining = iter(batches)
    while some := list(islice(remaining, _BATCHES)):
        yield pa.Table.from_batches(some)


def _operand(buffer: Buffer, rows: pa.Table) -> pa.ChunkedArray:
    values = rows.column(buffer.column)
    if buffer.function == "all":
        return values.is_null()
    if buffer.is_unscaled:
        kind = pa.decimal128(values.type.precision, 0)
        values = pa.chunked_array([chunk.view(kind).cast(pa.int64()) for chunk in values.chunks], pa.int64())
    if buffer.function in ("min", "max") and pa.types.is_duration(values.type):
        return values.cast(pa.int64())  # pyarrow has no minimum of durations
    is_summed = buffer.function == "sum" and isinstance(buffer.kind, DoubleType)
    return values.cast(pa.float64(), safe=False) if is_summed else values  # large numbers lose digits, as in Spark


def _single(buffer: Buffer, rows: pa.Table) -> pa.ChunkedArray:
    """Return the buffer of each row."""
    if buffer.column is None:
        return pa.chunked_array([pa.repeat(1, rows.num_rows)])
    if buffer.function == "count":
        return rows.column(buffer.column).is_valid()
    values = _operand(buffer, rows)
    return values if buffer.default is None else values.fill_null(pa.scalar(buffer.default).cast(values.type))


def _is_exact(buffer: Buffer, rows: pa.Table) -> bool:
    """Return whether the buffer of the rows is the one that Spark has for them."""
    if buffer.column is None:
        return True
    values = _operand(buffer, rows)
    if buffer.function == "sum" and isinstance(buffer.kind, LongType):
        return not pa.types.is_int64(values.type) or _cannot_overflow(values)
    if buffer.function in ("min", "max"):
        return not pa.types.is_floating(values.type) or _is_ordered_by_value(values)
    return True


def _cannot_overflow(values: pa.ChunkedArray) -> bool:
    """Return whether no order of the values has a sum that exceeds 64 bits."""
    bounds = pc.min_max(values).as_py()
    largest = max((abs(each) for each in bounds.values() if each is not None), default=0)
    return bool(largest * len(values) <= _LARGEST)


def _is_ordered_by_value(values: pa.ChunkedArray) -> bool:
    """Return whether the values have no NaN and no -0.0, whose order is Spark's own."""
    numbers = values.drop_null().to_numpy()
    return not np.any(np.isnan(numbers) | ((numbers == 0) & np.signbit(numbers)))
