"""Implement SELECT.

Columns, filters, aggregates, limits and orders with a limit are evaluated next to the rows. Executors read fragments of
one pinned version. If an index names few rows, only their fragments are read, by the driver unless the rows are large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql.types import LongType, StructType

from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.scanning import is_blob
from lancekeep.entrypoints.spark.internals.classes import EXPRESSIONS, READ
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.internals.sessions import internal_rows
from lancekeep.entrypoints.spark.reading import FragmentReader, Snapshot, stored_fragments
from lancekeep.entrypoints.spark.reading import partitions as neighbours
from lancekeep.entrypoints.spark.sql.aggregates import Aggregation, Aggregator
from lancekeep.entrypoints.spark.sql.answers import Unmetered
from lancekeep.entrypoints.spark.sql.form import Form
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy, struct
from lancekeep.entrypoints.spark.sql.lookup import Found, found_by_index, is_small
from lancekeep.entrypoints.spark.sql.metadata_columns import MetadataReader, metadata_columns, stored_metadata
from lancekeep.entrypoints.spark.sql.predicates import conjunction, translated
from lancekeep.entrypoints.spark.sql.samples import Sample
from lancekeep.entrypoints.spark.sql.statistics import ColumnStatistics, Statistics
from lancekeep.entrypoints.spark.sql.streams import refuse_options
from lancekeep.entrypoints.spark.sql.top import MOST_ROWS, Order, TopRows, orders_of
from lancekeep.entrypoints.spark.sql.workers import partitions, reader_factory
from lancekeep.entrypoints.spark.worker_gc import freeze_imports

ToStream = Callable[[Any, Mapping[str, str], str], Any]
"""A function that takes a schema, options and a checkpoint location, and returns a ``MicroBatchStream``."""


_BERNOULLI = "BERNOULLI"


class ScanBuilder(Proxy):
    """Accept the parts of a query that Spark offers to push down.

    Spark offers a sample first, then filters, then aggregates, or a limit with or without an order, and columns last.
    """

    class Java:
        implements = (
            READ + "SupportsPushDownV2Filters",
            READ + "SupportsPushDownAggregates",
            READ + "SupportsPushDownRequiredColumns",
            READ + "SupportsPushDownLimit",
            READ + "SupportsPushDownTopN",
            READ + "SupportsPushDownTableSample",
        )

    def __init__(
        self,
        jvm: Jvm,
        name: str,
        dataset: Any,
        snapshot: Snapshot,
        schema: StructType,
        seen: Any,
        options: Mapping[str, str],
        stream: ToStream,
        statistics: Mapping[str, ColumnStatistics],
    ) -> None:
        self._jvm = jvm
        self._name = name
        self._dataset = dataset
        self._snapshot = snapshot
        self._columns = schema
        self._whole = seen
        self._schema = schema
        self._seen = seen
        self._options = options
        self._stream = stream
        self._statistics = statistics
        self._filters: list[str] = []
        self._pushed: list[Any] = []
        self._limit: int | None = None
        self._orders: tuple[Order, ...] = ()
        self._aggregation: Aggregation | None = None
        self._sample: Sample | None = None

    def pushTableSample(self, lower: float, upper: float, replaces: bool, seed: int, method: Any = _BERNOULLI) -> bool:
        """Accept a sample of single rows without replacement."""
        if replaces or str(method) != _BERNOULLI:
            return False
        self._sample = Sample(lower, upper, seed)
        return True

    def pushPredicates(self, predicates: Iterable[Any]) -> Any:
        rest, metadata = [], stored_metadata(self._dataset)
        for predicate in predicates:
            text = translated(predicate, self._dataset, metadata)
            if text is None:
                rest.append(predicate)
            else:
                self._filters.append(text)
                self._pushed.append(predicate)
        return self._predicates(rest)

    def pushedPredicates(self) -> Any:
        return self._predicates(self._pushed)

    def supportsIterativePushdown(self) -> bool:
        return False

    def pushAggregation(self, aggregation: Any) -> bool:
        self._aggregation = Aggregation.of(aggregation, self._types(self._columns))
        return self._aggregation is not None

    def supportCompletePushDown(self, aggregation: Any) -> bool:
        """Accept the number of all rows, which the manifest has.

        Spark merges the results of tasks for other aggregates.
        """
        asked = Aggregation.of(aggregation, self._types(self._columns))
        return asked is not None and asked.counts_rows and self._condition is None

    def pruneColumns(self, schema: Any) -> None:
        if schema.equals(self._whole):  # many columns are not sent to this process again
            self._schema, self._seen = self._columns, self._whole
        else:
            self._schema, self._seen = struct(schema), schema

    def pushLimit(self, limit: int) -> bool:
        if self._aggregation is not None:
            return False
        self._limit = limit
        return True

    def pushTopN(self, given: Iterable[Any], limit: int) -> bool:
        orders = orders_of(given, self._types(self._columns))
        if orders is None or limit > MOST_ROWS or self._aggregation is not None:
            return False
        self._limit, self._orders = limit, orders
        return True

    def isPartiallyPushed(self) -> bool:
        return True

    def build(self) -> Any:
        """Return the scan; its description in EXPLAIN lists what was pushed."""
        if self._aggregation is not None and self._aggregation.counts_rows and self._condition is None:
            refuse_options(self._name, self._options)
            return Count(self._jvm, self._name, self._dataset.count_rows())
        found = found_by_index(self._dataset, zip(self._pushed, self._filters, strict=True))
        schema, seen, aggregates = self._schema, self._seen, self._aggregation is not None
        if self._aggregation is not None:
            schema = self._aggregation.result(self._columns)
            seen = self._jvm.struct(schema)
        task = self._task(self._condition)
        form = Form(self._jvm, schema)
        batch = Batch(self._jvm, seen, form, self._dataset, task, found, aggregates)
        require_batch = partial(refuse_options, self._name, self._options)
        statistics = partial(Statistics, self._jvm, self._dataset, self._snapshot.identity, schema, self._statistics)
        arguments = self._jvm, seen, form, batch, self._description(found), require_batch, self._to_stream, statistics
        if found is not None and self._reads_stored_columns and is_small(self._dataset, found):
            return Lookup(*arguments, schema, partial(task, found.runs))
        return Scan(*arguments)

    @property
    def _reads_stored_columns(self) -> bool:
        """Whether the query reads columns as they are stored, and no blobs."""
        if self._aggregation is not None or not self._schema.names:
            return False
        stored = {field.name for field in self._dataset.schema if not is_blob(field)}
        return stored.issuperset(self._schema.names)

    @property
    def _condition(self) -> str | None:
        sampled = [] if self._sample is None else [self._sample.condition]
        return conjunction([*self._filters, *sampled])

    def _description(self, found: Found | None) -> str:
        filters = conjunction(self._filters)
        said = [f"{self._name} version {self._dataset.version}"]
        if self._aggregation is None:
            said.append(f"columns [{', '.join(self._schema.names)}]")
        else:
            said.append("counted" if self._aggregation.counts_rows else str(self._aggregation))
        said += [] if self._sample is None else [f"sample {self._sample}"]
        said += [f"filter {filters}"] if filters else []
        said += [f"order [{', '.join(map(str, self._orders))}]"] if self._orders else []
        said += [f"limit {self._limit}"] if self._limit is not None else []
        said += [f"an index names {found.rows} rows in {len(found.fragments)} fragments"] if found is not None else []
        return ", ".join(said)

    def _to_stream(self, schema: Any, checkpoint: str) -> Any:
        return self._stream(schema, self._options, checkpoint)

    def _task(self, filters: str | None) -> Callable[[Sequence[range]], Iterator[pa.RecordBatch]]:
        """Return the function that reads fragments on the executors."""
        if self._aggregation is not None and not self._aggregation.counts_rows:
            read = StructType([self._columns[name] for name in self._aggregation.columns])
            result = self._types(self._aggregation.result(self._columns))
            return Aggregator(self._aggregation, self._reader(self._types(read), filters), result).read
        if self._aggregation is not None or not self._schema.names:
            return Counter(self._snapshot, filters, self._limit, per_row=self._aggregation is None).read
        wanted = self._types(self._schema)
        offered = metadata_columns(self._dataset)
        added = tuple(name for name in wanted.names if name in offered)
        stored = pa.schema([field for field in wanted if field.name not in added])
        reader: FragmentReader | MetadataReader = self._reader(stored, filters)
        if added:
            reader = MetadataReader(self._reader(stored, filters), wanted, added)
        if self._orders:
            names = dict.fromkeys(order.column for order in self._orders)
            keys = StructType([self._columns[name] for name in names])
            return TopRows(self._orders, self._limit or 0, self._reader(self._types(keys), filters), reader).read
        return partial(reader.read, limit=self._limit)

    def _reader(self, wanted: pa.Schema, filters: str | None) -> FragmentReader:
        return attrs.evolve(FragmentReader.of(self._snapshot, self._dataset.schema, wanted), filter=filters)

    @staticmethod
    def _types(columns: StructType) -> pa.Schema:
        return arrow_of(columns)

    def _predicates(self, predicates: Sequence[Any]) -> Any:
        return self._jvm.array(EXPRESSIONS + "filter.Predicate", predicates)


_COUNT = StructType().add("count(*)", LongType(), nullable=False)


class DriverScan(Unmetered):
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

    def toMicroBatchStream(self, checkpoint: str) -> Any:
        raise Unsupported("a count is no stream")

    def toContinuousStream(self, checkpoint: str) -> Any:
        raise Unsupported("continuous processing is not supported; use a trigger that makes micro-batches")


class Scan(DriverScan):
    """A scan of a query, in a batch or as a stream."""

    class Java:
        implements = (READ + "SupportsReportStatistics",)

    def __init__(
        self,
        jvm: Jvm,
        schema: Any,
        form: Form,
        batch: Batch,
        description: str,
        require_batch: Callable[[], None],
        to_stream: Callable[[Any, str], Any],
        statistics: Callable[[], Statistics],
    ) -> None:
        super().__init__(jvm, schema, form)
        self._batch = batch
        self._description = description
        self._require_batch = require_batch
        self._to_stream = to_stream
        self._estimate = statistics

    def description(self) -> str:
        return self._description

    def toBatch(self) -> Batch:
        self._require_batch()
        return self._batch

    def toMicroBatchStream(self, checkpoint: str) -> Any:
        self._form = None  # Spark's own readers of a stream return rows
        return self._to_stream(self._schema, checkpoint)

    def estimateStatistics(self) -> Any:
        return self._statistics

    @cached_property
    def _statistics(self) -> Statistics:
        """Compute the statistics once: Spark asks several times, and they need all fragments."""
        return self._estimate()

    def estimateSizeInBytes(self) -> Any:
        return self.estimateStatistics().sizeInBytes()

    def reflectsFullyPushedDownFilters(self) -> bool:
        return False


class Lookup(Scan):
    """A scan of few rows, which the driver reads without a task."""

    class Java:
        implements = (READ + "SupportsReportStatistics", READ + "LocalScan")

    def __init__(self, *arguments: Any) -> None:
        *of_scan, schema, read = arguments
        super().__init__(*of_scan)
        self._columns: StructType = schema
        self._read: Callable[[], Iterator[pa.RecordBatch]] = read

    def rows(self) -> Any:
        self._require_batch()
        return self._rows

    @cached_property
    def _rows(self) -> Any:
        wanted = arrow_of(self._columns)
        batches = [*self._read()] or [pa.RecordBatch.from_pylist([], wanted)]  # Spark takes no table without a batch
        return internal_rows(self._jvm.spark.createDataFrame(pa.Table.from_batches(batches, wanted), self._columns))


class Batch(Proxy):
    """The tasks of a scan, which share one pinned version of the table.

    An aggregate has at least one task, because Spark takes the count of no results as NULL.
    """

    class Java:
        implements = (READ + "Batch",)

    def __init__(
        self,
        jvm: Jvm,
        schema: Any,
        form: Form,
        dataset: Any,
        read: Callable[[Sequence[range]], Iterator[pa.RecordBatch]],
        found: Found | None,
        aggregates: bool,
    ) -> None:
        self._jvm = jvm
        self._schema = schema
        self._form = form
        self._dataset = dataset
        self._read = read
        self._found = found
        self._aggregates = aggregates

    def planInputPartitions(self) -> Any:
        fragments = stored_fragments(self._dataset)
        if self._found is not None:
            fragments = (fragment for fragment in fragments if fragment.id in self._found.fragments)
        parts = [part.runs for part in neighbours(fragments, self._dataset.count_rows())]
        return partitions(self._jvm, parts or ([[]] if self._aggregates else []))

    def createReaderFactory(self) -> Any:
        return reader_factory(self._jvm, self._read, self._schema, columnar=self._form.is_columnar)


@attrs.frozen
class Counter:
    """Count the rows of fragments without reading them; can be pickled.

    Attributes:
        snapshot: The version.
        filter: The condition that counted rows satisfy.
        limit: The most rows to return.
        per_row: Whether to return as many rows without columns, instead of the count.
    """

    snapshot: Snapshot
    filter: str | None
    limit: int | None
    per_row: bool

    def read(self, runs: Sequence[range]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        dataset = self.snapshot.open()
        rows = sum(dataset.get_fragment(number).count_rows(self.filter) for run in runs for number in run)
        if not self.per_row:
            yield pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], schema=arrow_of(_COUNT))
            return
        rows = rows if self.limit is None else min(rows, self.limit)
        for start in range(0, rows, _EMPTY_ROWS):
            empty = pa.array([{}] * min(_EMPTY_ROWS, rows - start), pa.struct([]))
            yield pa.RecordBatch.from_struct_array(empty)


_EMPTY_ROWS = 65_536


class Count(DriverScan):
    """The number of rows, from the manifest; runs no task."""

    class Java:
        implements = (READ + "LocalScan",)

    def __init__(self, jvm: Jvm, name: str, rows: int) -> None:
        super().__init__(jvm, jvm.struct(_COUNT))
        self._name = name
        self._rows = rows

    def description(self) -> str:
        return f"{self._name}, number of rows from its manifest"

    def toBatch(self) -> Any:
        raise Unsupported("a local scan has no batch")

    def rows(self) -> Any:
        return self._jvm.long_row(self._rows)
