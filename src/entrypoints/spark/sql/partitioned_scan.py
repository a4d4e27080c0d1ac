"""Read the partitions that can hold rows of a query, as one scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lancekeep.application.catalog import Catalog
from lancekeep.application.partitions.scan import Scan as PartitionScan
from lancekeep.application.partitions.values import sources_by_id
from lancekeep.domain.column_names import quoted
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.partition_rules import DATASET
from lancekeep.entrypoints.spark.internals.classes import EXPRESSIONS, READ
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.reading import Snapshot, stored_fragments
from lancekeep.entrypoints.spark.reading import partitions as neighbours
from lancekeep.entrypoints.spark.sql.columns import spark_schema
from lancekeep.entrypoints.spark.sql.form import Form
from lancekeep.entrypoints.spark.sql.jvm import Jvm, struct
from lancekeep.entrypoints.spark.sql.metrics import FRAGMENTS, PARTITIONS, PRUNED_PARTITIONS
from lancekeep.entrypoints.spark.sql.partition_reader import PartitionReader
from lancekeep.entrypoints.spark.sql.predicates import Untranslatable, compared, conjunction, translated
from lancekeep.entrypoints.spark.sql.pushdown import AGGREGATING, PUSHED, AggregatingScan, Count, Pushdown
from lancekeep.entrypoints.spark.sql.streams import Streams, refuse_options
from lancekeep.entrypoints.spark.sql.workers import partitions, reader_factory

_REFERENCE = EXPRESSIONS + "NamedReference"
_PREDICATE = EXPRESSIONS + "filter.Predicate"
Test = tuple[Any, ...]
"""A condition on a column, as `PartitionedNamespace.scan` takes it."""


class PartitionedScanBuilder(Pushdown):
    """Accept the parts of a query on all partitions that Spark offers to push down."""

    class Java:
        implements = PUSHED

    def __init__(
        self,
        jvm: Jvm,
        name: str,
        catalog: Catalog,
        scan: PartitionScan,
        seen: Any,
        options: Mapping[str, str],
        streams: Streams,
    ) -> None:
        super().__init__(jvm, spark_schema(scan.schema), seen)
        self._streams = streams
        self._name = name
        self._catalog = catalog
        self._scan = scan
        self._options = options
        self._keeps = False

    def _keep_partitions(self) -> None:
        """Let no condition at run time drop partitions.

        Spark drops rows that a statement changes by ``IN`` over their values, which NULL never satisfies.
        """
        self._keeps = True

    def pushPredicates(self, predicates: Iterable[Any]) -> Any:
        given, rest = list(predicates), []
        self._scan = self._scan.where(tests_of(given, self._scan.schema) or None)
        example = next((dataset for _, dataset in self._scan.datasets()), None)
        for predicate in given:
            text = None if example is None else translated(predicate, example)
            if text is None:
                rest.append(predicate)
            else:
                self._filters.append(text)
                self._pushed.append(predicate)
        return self._predicates(rest)

    def build(self) -> Any:
        if self._is_counted:
            refuse_options(self._name, self._options)
            return Count(self._jvm, self._name, sum(dataset.count_rows() for _, dataset in self._scan.datasets()))
        condition = conjunction(self._filters)
        reader = PartitionReader(
            self._scan.schema,
            arrow_of(self._result),
            condition,
            self._sample,
            self._limit,
            self._orders,
            self._keys,
            self._aggregation,
            self._aggregated,
        )
        computed = self._described(condition)
        keeps = self._keeps or self._aggregation is not None or self._limit is not None
        arguments = self._jvm, self._name, self._catalog, self._scan, self._shown, reader, computed, self._options
        return PartitionedScan(*arguments, self._streams, self._of_partial_results, keeps=keeps)


class PartitionedScan(AggregatingScan):
    """A scan of the partitions that can hold rows of a query.

    Spark uses the object as the scan and its batch.
    """

    class Java:
        implements = (READ + "SupportsRuntimeV2Filtering", READ + "Batch", AGGREGATING)

    def __init__(
        self,
        jvm: Jvm,
        name: str,
        catalog: Catalog,
        scan: PartitionScan,
        schema: Any,
        reader: PartitionReader,
        computed: Iterable[str],
        options: Mapping[str, str],
        streams: Streams,
        aggregated: Callable[[str], Any],
        *,
        keeps: bool,
    ) -> None:
        columns = struct(schema)
        super().__init__(jvm, schema, Form(jvm, columns), aggregated)
        self._keeps = keeps
        self._name = name
        self._catalog = catalog
        self._reader = reader
        self._columns = columns
        self._computed = ", ".join(computed)
        self._options = options
        self._streams = streams
        self._scan = scan
        self._fragments = 0

    def description(self) -> str:
        partitions = f"{len(self._scan.partitions)} of {len(self._scan.partitions) + self._scan.skipped} partitions"
        return f"{self._name}, {partitions}, {self._computed}"

    def filterAttributes(self) -> Any:
        expressions = self._jvm.java(EXPRESSIONS + "Expressions")
        read = [] if self._keeps else self._columns.names
        return self._jvm.array(
            _REFERENCE, [expressions.column(quoted(name)) for name in _sources(self._scan) if name in read]
        )

    def filter(self, predicates: Iterable[Any]) -> None:
        """Drop the partitions that cannot hold a row which a join keeps.

        The other partitions stay at the versions that the query has pinned.
        """
        self._scan = self._scan.where(tests_of(predicates, self._scan.schema) or None)

    def pushedPredicates(self) -> Any:
        return self._jvm.array(_PREDICATE, [])

    def supportsIterativePushdown(self) -> bool:
        return False

    def toBatch(self) -> PartitionedScan:
        refuse_options(self._name, self._options)
        return self

    def toMicroBatchStream(self, checkpoint: str) -> Any:
        self._form, self._of_plan = None, ()  # Spark's own readers of a stream return rows, and no metrics
        return self._streams.read(ObjectId((DATASET,)), self._schema, self._options, checkpoint)

    def planInputPartitions(self) -> Any:
        tasks, fragments = [], 0
        for partition, dataset in self._scan.datasets():
            snapshot = Snapshot.of(self._catalog, dataset, partition.branch)
            stored = [*stored_fragments(dataset)]
            fragments += len(stored)
            parts = neighbours(stored, dataset.count_rows())
            tasks += [(snapshot, part.runs, str(partition.table.id)) for part in parts]
        self._fragments = fragments
        return partitions(self._jvm, tasks)

    _of_plan: tuple[str, ...] = (PARTITIONS, PRUNED_PARTITIONS, FRAGMENTS)

    def _planned(self) -> dict[str, int]:
        read = {PARTITIONS: len(self._scan.partitions), PRUNED_PARTITIONS: self._scan.skipped}
        return {**read, FRAGMENTS: self._fragments}

    def createReaderFactory(self) -> Any:
        return reader_factory(self._jvm, self._reader.read, self._schema, columnar=self._is_columnar)


def _sources(scan: PartitionScan) -> list[str]:
    """Return the columns whose values divide the partitions."""
    sources = sources_by_id(scan.schema)
    specs = {partition.spec.id: partition.spec for partition in scan.partitions}
    numbers = {number for spec in specs.values() for field in spec.fields for number in field.source_ids}
    return sorted(sources[number].name for number in numbers if number in sources)


def tests_of(predicates: Iterable[Any], schema: pa.Schema) -> list[Test]:
    """Return the conditions that can select partitions; all of them must hold.

    Floating-point columns are left out, because Spark orders NaN otherwise.
    """
    found = []
    for predicate in predicates:
        try:
            test = compared(predicate, schema)
        except Untranslatable:
            continue
        if not pa.types.is_floating(schema.field(test[0]).type) and all(map(_is_plain, test[2:])):
            found.append(test)
    return found


def _is_plain(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    plain = bool | int | str | bytes | date | datetime | Decimal
    return bool(values) and all(isinstance(each, plain) for each in values)
