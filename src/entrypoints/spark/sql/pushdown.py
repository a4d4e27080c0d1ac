"""Accept the parts of a query that Spark offers to push down.

Spark offers a sample first, then filters, then aggregates, or a limit with or without an order, and columns last. When
it plans the query, `internals.partial_aggregates` offers aggregates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StructType

from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.spark.internals.classes import EXPRESSIONS, READ
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.sql.aggregates import Aggregation, counts_rows
from lancekeep.entrypoints.spark.sql.form import Form, distributes
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy, struct
from lancekeep.entrypoints.spark.sql.metrics import Metered
from lancekeep.entrypoints.spark.sql.samples import Sample
from lancekeep.entrypoints.spark.sql.top import MOST_ROWS, Order, orders_of

PUSHED = (
    READ + "SupportsPushDownV2Filters",
    READ + "SupportsPushDownAggregates",
    READ + "SupportsPushDownRequiredColumns",
    READ + "SupportsPushDownLimit",
    READ + "SupportsPushDownTopN",
    READ + "SupportsPushDownTableSample",
)
"""The interfaces of a `Pushdown`."""

AGGREGATING = "java.util.function.Function"
"""The interface by which `internals.partial_aggregates` asks a scan for another scan."""

COUNTED = StructType().add("count(*)", LongType(), nullable=False)
_BERNOULLI = "BERNOULLI"


class Pushdown(Proxy, ABC):
    """What a scan has accepted; subclasses accept the conditions.

    Args:
        jvm: The session's JVM.
        columns: The columns of the table.
        seen: The same columns in the JVM.
    """

    def __init__(self, jvm: Jvm, columns: StructType, seen: Any) -> None:
        self._jvm = jvm
        self._columns = columns
        self._whole = seen
        self._schema = columns
        self._seen = seen
        self._filters: list[str] = []
        self._pushed: list[Any] = []
        self._limit: int | None = None
        self._orders: tuple[Order, ...] = ()
        self._is_counted = False
        self._aggregation: Aggregation | None = None
        self._sample: Sample | None = None

    def pushTableSample(self, lower: float, upper: float, replaces: bool, seed: int, method: Any = _BERNOULLI) -> bool:
        """Accept a sample of single rows without replacement."""
        if replaces or str(method) != _BERNOULLI:
            return False
        self._sample = Sample(lower, upper, seed)
        return True

    def pushedPredicates(self) -> Any:
        return self._predicates(self._pushed)

    def supportsIterativePushdown(self) -> bool:
        return False

    def pushAggregation(self, aggregation: Any) -> bool:
        """Accept the number of all rows, which the manifest has."""
        self._is_counted = self._reads_all_rows and counts_rows(aggregation)
        return self._is_counted

    def supportCompletePushDown(self, aggregation: Any) -> bool:
        return self._reads_all_rows and counts_rows(aggregation)

    def pruneColumns(self, schema: Any) -> None:
        if schema.equals(self._whole):  # many columns are not sent to this process again
            self._schema, self._seen = self._columns, self._whole
        else:
            self._schema, self._seen = struct(schema), schema

    def pushLimit(self, limit: int) -> bool:
        if self._is_counted:
            return False
        self._limit = limit
        return True

    def pushTopN(self, given: Iterable[Any], limit: int) -> bool:
        orders = orders_of(given, arrow_of(self._columns))
        if orders is None or limit > MOST_ROWS or self._is_counted:
            return False
        self._limit, self._orders = limit, orders
        return True

    def isPartiallyPushed(self) -> bool:
        return True

    @abstractmethod
    def build(self) -> Any:
        """Return the scan."""

    def _of_partial_results(self, asked: str) -> Any:
        """Return a scan of partial results.

        Args:
            asked: As of `Aggregation.of`.

        Returns:
            None if Spark must aggregate the rows.
        """
        aggregation = Aggregation.of(asked, self._columns)
        if aggregation is None or self._aggregation is not None or self._limit is not None:
            return None
        builder = copy(self)
        builder._aggregation = aggregation
        return builder.build()

    @property
    def _reads_all_rows(self) -> bool:
        return not self._filters and self._sample is None

    @property
    def _result(self) -> StructType:
        """The columns of the scan."""
        return self._schema if self._aggregation is None else self._aggregation.result(self._columns)

    @property
    def _shown(self) -> Any:
        """The columns of the scan in the JVM."""
        return self._seen if self._aggregation is None else self._jvm.struct(self._result)

    @property
    def _keys(self) -> pa.Schema:
        """The columns of the order, in Spark's types."""
        return arrow_of(
            StructType([self._columns[name] for name in dict.fromkeys(each.column for each in self._orders)])
        )

    @property
    def _aggregated(self) -> pa.Schema:
        """The columns that the aggregation reads, in Spark's types."""
        read = [] if self._aggregation is None else self._aggregation.columns
        return arrow_of(StructType([self._columns[name] for name in read]))

    def _described(self, filters: str | None) -> Iterator[str]:
        """Yield what EXPLAIN shows of the accepted parts."""
        if self._aggregation is None:
            yield f"columns [{', '.join(self._schema.names)}]"
        else:
            yield "counted" if self._aggregation.counts_rows else str(self._aggregation)
        if self._sample is not None:
            yield f"sample {self._sample}"
        if filters:
            yield f"filter {filters}"
        if self._orders:
            yield f"order [{', '.join(map(str, self._orders))}]"
        if self._limit is not None:
            yield f"limit {self._limit}"

    def _predicates(self, predicates: Sequence[Any]) -> Any:
        return self._jvm.array(EXPRESSIONS + "filter.Predicate", predicates)


class DriverScan(Metered):
    """A scan that is planned in the driver; without a form, it returns rows."""

    def __init__(self, jvm: Jvm, schema: Any, form: Form | None = None) -> None:
        self._jvm = jvm
        self._schema = schema
        self._form = form

    def readSchema(self) -> Any:
        return self._schema

    def columnarSupportMode(self) -> Any:
        modes = self._jvm.java(READ + "Scan$ColumnarSupportMode")
        return modes.SUPPORTED if self._is_columnar else modes.UNSUPPORTED

    @property
    def _is_columnar(self) -> bool:
        return self._form is not None and self._form.is_columnar

    def _reports(self) -> bool:
        return self._form is not None and distributes(self._jvm)

    def toMicroBatchStream(self, checkpoint: str) -> Any:
        raise Unsupported("a count is no stream")

    def toContinuousStream(self, checkpoint: str) -> Any:
        raise Unsupported("continuous processing is not supported; use a trigger that makes micro-batches")


class AggregatingScan(DriverScan):
    """A scan whose partial results Spark's planner may ask for."""

    def __init__(self, jvm: Jvm, schema: Any, form: Form, aggregated: Callable[[str], Any]) -> None:
        super().__init__(jvm, schema, form)
        self._aggregated = aggregated

    def apply(self, asked: str) -> Any:
        """Return a scan of partial results, or None; called by the strategy."""
        return self._aggregated(asked)


class Count(DriverScan):
    """The number of rows, from the manifest; runs no task."""

    class Java:
        implements = (READ + "LocalScan",)

    def __init__(self, jvm: Jvm, name: str, rows: int) -> None:
        super().__init__(jvm, jvm.struct(COUNTED))
        self._name = name
        self._rows = rows

    def description(self) -> str:
        return f"{self._name}, number of rows from its manifest"

    def toBatch(self) -> Any:
        raise Unsupported("a local scan has no batch")

    def rows(self) -> Any:
        return self._jvm.long_row(self._rows)
