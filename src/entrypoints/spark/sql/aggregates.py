"""Compute the aggregates of a query next to the rows.

Each task returns partial results, one row per batch and group. Spark merges them by its own rules, so it also unites
groups that it holds equal, such as -0.0 and 0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StructField, StructType

from lancekeep.entrypoints.spark.reading import FragmentReader

_COUNT_ROWS, _COUNT, _MIN, _MAX = "count(*)", "count", "min", "max"
_KINDS = {"CountStar": _COUNT_ROWS, "Count": _COUNT, "Min": _MIN, "Max": _MAX}
_ORDERED: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_temporal,
)


def is_ordered(kind: pa.DataType) -> bool:
    """Return whether pyarrow orders values as Spark does, but for NaN and -0.0."""
    return any(test(kind) for test in _ORDERED)


def column_of(expression: Any, columns: pa.Schema) -> str | None:
    """Return the column that a Spark expression names, None for any other expression."""
    if expression.getClass().getSimpleName() != "FieldReference":
        return None
    names = list(expression.fieldNames())
    return names[0] if len(names) == 1 and names[0] in columns.names else None


@attrs.frozen
class Aggregate:
    """An aggregate of one column; of none for ``count(*)``."""

    kind: str
    column: str | None = None

    def __str__(self) -> str:
        return self.kind if self.column is None else f"{self.kind}({self.column})"


@attrs.frozen
class Aggregation:
    """The aggregates of a query, and the columns that it groups by."""

    groups: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    @staticmethod
    def of(given: Any, columns: pa.Schema) -> Aggregation | None:
        """Translate Spark's ``Aggregation``.

        Args:
            given: The aggregation.
            columns: The columns of the table, in Spark's types.

        Returns:
            None if Spark must compute it.
        """
        groups = [column_of(each, columns) for each in given.groupByExpressions()]
        found = [_aggregate(each, columns, grouped=bool(groups)) for each in given.aggregateExpressions()]
        known_groups = [name for name in groups if name is not None and is_ordered(columns.field(name).type)]
        known = [each for each in found if each is not None]
        if len(known) < len(found) or len(known_groups) < len(groups) or not [*known, *known_groups]:
            return None
        return Aggregation(tuple(known_groups), tuple(known))

    def __str__(self) -> str:
        by = f" by [{', '.join(self.groups)}]" if self.groups else ""
        return f"aggregated [{', '.join(map(str, self.aggregates))}]{by}"

    @property
    def counts_rows(self) -> bool:
        """Whether the query asks for nothing but the number of rows."""
        return not self.groups and self.aggregates == (Aggregate(_COUNT_ROWS),)

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys([*self.groups, *(each.column for each in self.aggregates if each.column)]))

    def result(self, columns: StructType) -> StructType:
        """Return the schema of the partial results: the groups, then the aggregates."""
        results = [columns[name] for name in self.groups]
        for each in self.aggregates:
            kind = LongType() if each.column is None or each.kind == _COUNT else columns[each.column].dataType
            results.append(StructField(str(each), kind))
        return StructType(results)


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
        """Yield one batch of results for each batch of rows."""
        compute = self._grouped if self.aggregation.groups else self._whole
        yield from map(compute, self.reader.read(runs))
        if not self.aggregation.groups:  # Spark takes the count of no results as NULL
            yield self._whole(pa.RecordBatch.from_pylist([], schema=self.reader.schema))

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = [_value(each, batch) for each in self.aggregation.aggregates]
        arrays = [pa.array([value], field.type) for value, field in zip(values, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _grouped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        functions: list[Any] = [
            ([], "count_all") if each.column is None else (each.column, each.kind)
            for each in self.aggregation.aggregates
        ]
        found = pa.table(batch).group_by(list(self.aggregation.groups), use_threads=False).aggregate(functions)
        table = pa.Table.from_arrays(found.columns, schema=self.schema)  # the groups are the first columns
        return table.combine_chunks().to_batches()[0]


def _aggregate(given: Any, columns: pa.Schema, *, grouped: bool) -> Aggregate | None:
    kind = _KINDS.get(given.getClass().getSimpleName())
    if kind is None or kind == _COUNT_ROWS:
        return Aggregate(kind) if kind else None
    column = column_of(given.children()[0], columns)
    if column is None or (kind == _COUNT and given.isDistinct()):
        return None
    stored = columns.field(column).type
    if kind == _COUNT or (is_ordered(stored) and not (grouped and pa.types.is_floating(stored))):
        return Aggregate(kind, column)
    return None


def _value(aggregate: Aggregate, batch: pa.RecordBatch) -> Any:
    if aggregate.column is None:
        return batch.num_rows
    values = batch.column(aggregate.column)
    if aggregate.kind == _COUNT:
        return len(values) - values.null_count
    return _extreme(values.drop_null(), aggregate.kind)


def _extreme(values: pa.Array, kind: str) -> pa.Scalar | None:
    """Return the first of the least or greatest values, as Spark does; its NaN exceeds every number."""
    if pa.types.is_floating(values.type):
        numbers = values.filter(pc.invert(pc.is_nan(values)))
        if len(numbers) < len(values) and (kind == _MAX or not len(numbers)):
            return pa.scalar(float("nan"), values.type)
        values = numbers
    if not len(values):
        return None
    extreme = pc.min_max(values)[kind]
    if not pa.types.is_floating(values.type):
        return extreme
    return values[pc.index(values, extreme).as_py()]  # -0.0 equals 0.0
