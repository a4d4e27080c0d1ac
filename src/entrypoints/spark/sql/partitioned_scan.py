"""Read the partitions that can hold rows of a query, as one scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NoReturn

import attrs
import numpy as np
import pyarrow as pa

from lancekeep.application.catalog import Catalog
from lancekeep.application.partitions.scan import Scan as PartitionScan
from lancekeep.application.partitions.values import sources_by_id
from lancekeep.domain.column_names import quoted
from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.spark.internals.classes import EXPRESSIONS, READ
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.reading import FragmentReader, Snapshot, stored_fragments
from lancekeep.entrypoints.spark.reading import partitions as neighbours
from lancekeep.entrypoints.spark.sql.columns import spark_schema
from lancekeep.entrypoints.spark.sql.form import Form
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy, struct
from lancekeep.entrypoints.spark.sql.metadata_columns import ROW_ADDRESS
from lancekeep.entrypoints.spark.sql.metadata_tables import PARTITIONS
from lancekeep.entrypoints.spark.sql.partition_changes import PARTITION
from lancekeep.entrypoints.spark.sql.predicates import Untranslatable, compared, conjunction, translated
from lancekeep.entrypoints.spark.sql.scan import DriverScan
from lancekeep.entrypoints.spark.sql.streams import refuse_options
from lancekeep.entrypoints.spark.sql.workers import partitions, reader_factory

_REFERENCE = EXPRESSIONS + "NamedReference"
_PREDICATE = EXPRESSIONS + "filter.Predicate"
Test = tuple[Any, ...]
"""A condition on a column, as `PartitionedNamespace.scan` takes it."""


class PartitionedScanBuilder(Proxy):
    """Accept the conditions and columns that Spark offers to push down."""

    class Java:
        implements = (READ + "SupportsPushDownV2Filters", READ + "SupportsPushDownRequiredColumns")

    def __init__(self, jvm: Jvm, name: str, catalog: Catalog, scan: PartitionScan, options: Mapping[str, str]) -> None:
        self._jvm = jvm
        self._name = name
        self._catalog = catalog
        self._scan = scan
        self._options = options
        self._columns = spark_schema(scan.schema)
        self._filters: list[str] = []
        self._pushed: list[Any] = []
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
        return self._jvm.array(_PREDICATE, rest)

    def pushedPredicates(self) -> Any:
        return self._jvm.array(_PREDICATE, self._pushed)

    def supportsIterativePushdown(self) -> bool:
        return False

    def pruneColumns(self, schema: Any) -> None:
        self._columns = struct(schema)

    def build(self) -> PartitionedScan:
        return PartitionedScan(
            self._jvm,
            self._name,
            self._catalog,
            self._scan,
            self._jvm.struct(self._columns),
            conjunction(self._filters),
            self._options,
            keeps=self._keeps,
        )


class PartitionedScan(DriverScan):
    """A scan of the partitions that can hold rows of a query.

    Spark uses the object as the scan and its batch.
    """

    class Java:
        implements = (READ + "SupportsRuntimeV2Filtering", READ + "Batch")

    def __init__(
        self,
        jvm: Jvm,
        name: str,
        catalog: Catalog,
        scan: PartitionScan,
        schema: Any,
        condition: str | None,
        options: Mapping[str, str],
        *,
        keeps: bool,
    ) -> None:
        super().__init__(jvm, schema, Form(jvm, struct(schema)))
        self._keeps = keeps
        self._name = name
        self._catalog = catalog
        self._condition = condition
        self._options = options
        self._scan = scan

    def description(self) -> str:
        partitions = f"{len(self._scan.partitions)} of {len(self._scan.partitions) + self._scan.skipped} partitions"
        return f"{self._name}, {partitions}{', filter ' + self._condition if self._condition else ''}"

    def filterAttributes(self) -> Any:
        expressions = self._jvm.java(EXPRESSIONS + "Expressions")
        read = [] if self._keeps else struct(self._schema).names
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

    def toMicroBatchStream(self, checkpoint: str) -> NoReturn:
        raise Unsupported(
            f"{self._name} is all partitions of the catalog, which have no common versions to stream. Read the table "
            f"of one partition as a stream; {self._name}.{PARTITIONS} shows their names."
        )

    def planInputPartitions(self) -> Any:
        tasks = []
        for partition, dataset in self._scan.datasets():
            snapshot = Snapshot.of(self._catalog, dataset, partition.branch)
            parts = neighbours(stored_fragments(dataset), dataset.count_rows())
            tasks += [(snapshot, part.runs, str(partition.table.id)) for part in parts]
        return partitions(self._jvm, tasks)

    def createReaderFactory(self) -> Any:
        wanted = arrow_of(struct(self._schema))
        read = PartitionReader(self._scan.schema, wanted, self._condition).read
        return reader_factory(self._jvm, read, self._schema, columnar=self._is_columnar)


@attrs.frozen
class PartitionReader:
    """Read fragments of one partition; can be pickled."""

    stored: pa.Schema
    wanted: pa.Schema
    condition: str | None

    def read(self, task: tuple[Snapshot, Sequence[range], str]) -> Iterator[pa.RecordBatch]:
        snapshot, runs, partition = task
        own = pa.schema([field for field in self.wanted if field.name in self.stored.names])
        reader = attrs.evolve(FragmentReader.of(snapshot, self.stored, own), filter=self.condition)
        if len(own) == len(self.wanted) and own.names:
            yield from reader.read(runs)
            return
        for batch, addresses in reader.read_with(runs, None, (ROW_ADDRESS,)):
            rows = addresses.num_rows
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns[ROW_ADDRESS] = addresses.column(0).cast(pa.int64())
            columns[PARTITION] = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int8), [partition]).cast(pa.string())
            if self.wanted.names:
                arrays = [columns[name] for name in self.wanted.names]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.wanted)
            else:
                yield pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


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
