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
from pyspark.sql.types import StructType

from lancekeep.adapters.lance.blobs import is_blob
from lancekeep.entrypoints.spark.internals.classes import READ
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.internals.sessions import internal_rows
from lancekeep.entrypoints.spark.reading import FragmentReader, Snapshot, report, stored_fragments
from lancekeep.entrypoints.spark.reading import partitions as neighbours
from lancekeep.entrypoints.spark.sql.aggregates import Aggregator
from lancekeep.entrypoints.spark.sql.form import Form
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy
from lancekeep.entrypoints.spark.sql.lookup import Found, first_rows, found_by_index, is_small
from lancekeep.entrypoints.spark.sql.metadata_columns import MetadataReader, metadata_columns, stored_metadata
from lancekeep.entrypoints.spark.sql.metrics import FRAGMENTS, NAMED, PRUNED
from lancekeep.entrypoints.spark.sql.predicates import conjunction, translated
from lancekeep.entrypoints.spark.sql.pushdown import AGGREGATING, PUSHED, AggregatingScan, Count, Pushdown
from lancekeep.entrypoints.spark.sql.statistics import ColumnStatistics, Statistics
from lancekeep.entrypoints.spark.sql.streams import refuse_options
from lancekeep.entrypoints.spark.sql.top import Rows, TopRows
from lancekeep.entrypoints.spark.sql.workers import partitions, reader_factory
from lancekeep.entrypoints.spark.worker_gc import freeze_imports

ToStream = Callable[[Any, Mapping[str, str], str], Any]
"""A function that takes a schema, options and a checkpoint location, and returns a ``MicroBatchStream``."""


class ScanBuilder(Pushdown):
    """Accept the parts of a query on a table that Spark offers to push down."""

    class Java:
        implements = PUSHED

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
        super().__init__(jvm, schema, seen)
        self._name = name
        self._dataset = dataset
        self._snapshot = snapshot
        self._options = options
        self._stream = stream
        self._statistics = statistics

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

    def build(self) -> Any:
        """Return the scan; its description in EXPLAIN lists what was pushed."""
        if self._is_counted:
            refuse_options(self._name, self._options)
            return Count(self._jvm, self._name, self._dataset.count_rows())
        found = found_by_index(self._dataset, zip(self._pushed, self._filters, strict=True))
        schema, seen = self._result, self._shown
        task = self._task(self._condition)
        form = Form(self._jvm, schema)
        batch = Batch(self._jvm, seen, form, self._dataset, task, found)
        require_batch = partial(refuse_options, self._name, self._options)
        statistics = partial(Statistics, self._jvm, self._dataset, self._snapshot.identity, schema, self._statistics)
        described = self._description(found)
        aggregated = self._of_partial_results
        of_table = require_batch, self._to_stream, statistics, self._pushed, aggregated
        arguments = self._jvm, seen, form, batch, described, *of_table
        few = self._first if found is None else found
        if few is not None and self._reads_stored_columns and is_small(self._dataset, few):
            return Lookup(*arguments, schema, partial(task, few.runs))
        return Scan(*arguments)

    @property
    def _first(self) -> Found | None:
        """The fragments of the rows of a limit alone."""
        if self._limit is None or self._orders or not self._reads_all_rows:
            return None
        return first_rows(stored_fragments(self._dataset), self._limit)

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
        said = [f"{self._name} version {self._dataset.version}", *self._described(conjunction(self._filters))]
        said += [f"an index names {found.rows} rows in {len(found.fragments)} fragments"] if found is not None else []
        return ", ".join(said)

    def _to_stream(self, schema: Any, checkpoint: str) -> Any:
        return self._stream(schema, self._options, checkpoint)

    def _task(self, filters: str | None) -> Callable[[Sequence[range]], Iterator[pa.RecordBatch]]:
        """Return the function that reads fragments on the executors."""
        if self._aggregation is not None and not self._aggregation.counts_rows:
            reads = self._reader(self._aggregated, filters)
            return Aggregator(self._aggregation, reads, arrow_of(self._result)).read
        if self._aggregation is not None or not self._schema.names:
            return Counter(self._snapshot, filters, self._limit, per_row=self._aggregation is None).read
        wanted = arrow_of(self._schema)
        offered = metadata_columns(self._dataset)
        added = tuple(name for name in wanted.names if name in offered)
        stored = pa.schema([field for field in wanted if field.name not in added])
        reader: Rows = self._reader(stored, filters)
        if added:
            reader = MetadataReader(self._reader(stored, filters), wanted, added)
        if self._orders:
            return TopRows(self._orders, self._limit or 0, self._reader(self._keys, filters), reader).read
        return partial(reader.read, limit=self._limit)

    def _reader(self, wanted: pa.Schema, filters: str | None) -> FragmentReader:
        return attrs.evolve(FragmentReader.of(self._snapshot, self._dataset.schema, wanted), filter=filters)


_ESTIMATES = "spark.sql.cbo.enabled"


class Scan(AggregatingScan):
    """A scan of a query, in a batch or as a stream."""

    class Java:
        implements = (READ + "SupportsReportStatistics", AGGREGATING)

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
        pushed: Sequence[Any],
        aggregated: Callable[[str], Any],
    ) -> None:
        super().__init__(jvm, schema, form, aggregated)
        self._batch = batch
        self._of_plan = batch.numbers
        self._description = description
        self._require_batch = require_batch
        self._to_stream = to_stream
        self._estimate = statistics
        self._pushed = pushed

    def description(self) -> str:
        return self._description

    def toBatch(self) -> Batch:
        self._require_batch()
        return self._batch

    def toMicroBatchStream(self, checkpoint: str) -> Any:
        self._form, self._of_plan = None, ()  # Spark's own readers of a stream return rows, and no metrics
        return self._to_stream(self._schema, checkpoint)

    def _planned(self) -> dict[str, int]:
        return self._batch.planned()

    def estimateStatistics(self) -> Any:
        return self._statistics

    @cached_property
    def _statistics(self) -> Statistics:
        """Compute the statistics once: Spark asks several times, and they need all fragments."""
        return self._estimate()

    def estimateSizeInBytes(self) -> Any:
        return self.estimateStatistics().sizeInBytes()

    def reflectsFullyPushedDownFilters(self) -> bool:
        """Return whether Spark's planner needs no condition above the scan.

        It evaluates conditions there again, but learns from them which side of a join is selective. It learns nothing
        from ``IS NOT NULL``, which it adds for each key of a join, unless it estimates rows by statistics of columns.
        """
        estimates = self._jvm.setting(_ESTIMATES, "false").lower() == "true"
        return not estimates and all(each.name() == "IS_NOT_NULL" for each in self._pushed)


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
    """The tasks of a scan, which share one pinned version of the table."""

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
    ) -> None:
        self._jvm = jvm
        self._schema = schema
        self._form = form
        self._dataset = dataset
        self._read = read
        self._found = found
        self._fragments: tuple[int, int] | None = None

    def planInputPartitions(self) -> Any:
        stored = [*stored_fragments(self._dataset)]
        read = stored
        if self._found is not None:
            read = [fragment for fragment in stored if fragment.id in self._found.fragments]
        self._fragments = len(read), len(stored)
        parts = [part.runs for part in neighbours(read, self._dataset.count_rows())]
        return partitions(self._jvm, parts)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers of the plan."""
        return (FRAGMENTS, PRUNED) if self._found is None else (FRAGMENTS, PRUNED, NAMED)

    def planned(self) -> dict[str, int]:
        """Return the numbers of the plan; empty before `planInputPartitions`."""
        if self._fragments is None:
            return {}
        read, stored = self._fragments
        named = 0 if self._found is None else self._found.rows
        return dict(zip(self.numbers, (read, stored - read, named), strict=False))

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
        fragments = [dataset.get_fragment(number) for run in runs for number in run]
        if self.filter is None:
            rows = sum(fragment.count_rows() for fragment in fragments)
        else:
            of_rows = dataset.scanner(
                columns=[], with_row_id=True, filter=self.filter, fragments=fragments, scan_stats_callback=report
            )
            rows = sum(batch.num_rows for batch in of_rows.to_batches())
        if not self.per_row:
            yield pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], ["c0"])
            return
        rows = rows if self.limit is None else min(rows, self.limit)
        for start in range(0, rows, _EMPTY_ROWS):
            empty = pa.array([{}] * min(_EMPTY_ROWS, rows - start), pa.struct([]))
            yield pa.RecordBatch.from_struct_array(empty)


_EMPTY_ROWS = 65_536
