"""Show a partitioned namespace as one table.

A query reads the published versions of one moment. Its conditions, and the conditions that a join finds at run time,
select the partitions; Lance applies them to the rows. An INSERT routes its rows by one shuffle, and publishes once. A
dynamic overwrite replaces the partitions that get rows in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.application.catalog import Catalog
from lancekeep.application.partitions.namespace import PartitionedNamespace
from lancekeep.application.partitions.values import sources_by_id
from lancekeep.application.partitions.writing import APPEND, OVERWRITE
from lancekeep.domain.column_names import quoted
from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.spark.internals.classes import CATALOG, EXPRESSIONS, INSERTABLE, READ, WRITE
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.internals.sessions import frame_of
from lancekeep.entrypoints.spark.partitions import write_partitioned
from lancekeep.entrypoints.spark.reading import FragmentReader, Snapshot, stored_fragments
from lancekeep.entrypoints.spark.reading import partitions as neighbours
from lancekeep.entrypoints.spark.sql.answers import Relation, Unmetered
from lancekeep.entrypoints.spark.sql.columns import spark_schema
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy, struct
from lancekeep.entrypoints.spark.sql.predicates import Untranslatable, compared, conjunction, translated
from lancekeep.entrypoints.spark.sql.scan import DriverScan
from lancekeep.entrypoints.spark.sql.streams import given_options, refuse_options
from lancekeep.entrypoints.spark.sql.workers import partitions, reader_factory

_REFERENCE = EXPRESSIONS + "NamedReference"
_PREDICATE = EXPRESSIONS + "filter.Predicate"
Test = tuple[Any, ...]
"""A condition on a column, as `PartitionedNamespace.scan` takes it."""


class PartitionedTable(Relation):
    """All partitions of a catalog as one table."""

    class Java:
        implements = (CATALOG + "SupportsRead", CATALOG + "SupportsWrite")

    def __init__(self, jvm: Jvm, name: str, catalog: Catalog) -> None:
        self._jvm = jvm
        self._name = name
        self._catalog = catalog
        self._namespace = catalog.partitions.open()
        self._columns = spark_schema(self._namespace.schema)
        self._schema = jvm.struct(self._columns)

    def partitioning(self) -> Any:
        """Return the columns of identity fields.

        Spark's other transforms compute other values than the specification's, such as months since 1970.
        """
        expressions = self._jvm.java(EXPRESSIONS + "Expressions")
        names = map(quoted, self._identities())
        return self._jvm.array(EXPRESSIONS + "Transform", [expressions.identity(name) for name in names])

    def _identities(self) -> list[str]:
        sources, specs = sources_by_id(self._namespace.schema), self._namespace.specs
        fields = specs[max(specs)].fields if specs else ()
        whole = [field for field in fields if field.transform is not None and field.transform.type == "identity"]
        return [sources[number].name for field in whole for number in field.source_ids if number in sources]

    def properties(self) -> Any:
        return self._jvm.map({"provider": "lancekeep", "location": self._catalog.root_uri})

    def capabilities(self) -> Any:
        kinds = self._jvm.java(CATALOG + "TableCapability")
        return self._jvm.set([kinds.BATCH_READ, kinds.BATCH_WRITE, kinds.V1_BATCH_WRITE, kinds.OVERWRITE_DYNAMIC])

    def newScanBuilder(self, options: Any) -> PartitionedScanBuilder:
        refuse_options(self._name, given_options(options))
        return PartitionedScanBuilder(self._jvm, self._name, self._catalog, self._namespace)

    def newWriteBuilder(self, info: Any) -> PartitionedInsert:
        refuse_options(self._name, given_options(info.options()))
        return PartitionedInsert(self._jvm, self._name, self._namespace)


class PartitionedScanBuilder(Proxy):
    """Accept the conditions and columns that Spark offers to push down."""

    class Java:
        implements = (READ + "SupportsPushDownV2Filters", READ + "SupportsPushDownRequiredColumns")

    def __init__(self, jvm: Jvm, name: str, catalog: Catalog, namespace: PartitionedNamespace) -> None:
        self._jvm = jvm
        self._name = name
        self._catalog = catalog
        self._namespace = namespace
        self._columns = spark_schema(namespace.schema)
        self._tests: list[Test] = []
        self._filters: list[str] = []
        self._pushed: list[Any] = []

    def pushPredicates(self, predicates: Iterable[Any]) -> Any:
        given, rest = list(predicates), []
        tests = _tests(given, self._namespace.schema)
        self._tests += tests
        example = next((dataset for _, dataset in self._namespace.scan(tests or None).datasets()), None)
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
            self._namespace,
            self._jvm.struct(self._columns),
            self._tests,
            conjunction(self._filters),
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
        namespace: PartitionedNamespace,
        schema: Any,
        tests: Sequence[Test],
        condition: str | None,
    ) -> None:
        super().__init__(jvm, schema)
        self._name = name
        self._catalog = catalog
        self._schema_of_rows = namespace.schema
        self._by = _identities(namespace)
        self._condition = condition
        self._tests = list(tests)
        self._scan = namespace.scan(self._tests or None)
        self._kept = {partition.table.id for partition in self._scan.partitions}
        self._namespace = namespace

    def description(self) -> str:
        partitions = f"{len(self._kept)} of {len(self._scan.partitions) + self._scan.skipped} partitions"
        return f"{self._name}, {partitions}{', filter ' + self._condition if self._condition else ''}"

    def filterAttributes(self) -> Any:
        expressions = self._jvm.java(EXPRESSIONS + "Expressions")
        read = struct(self._schema).names
        return self._jvm.array(_REFERENCE, [expressions.column(quoted(name)) for name in self._by if name in read])

    def filter(self, predicates: Iterable[Any]) -> None:
        """Drop the partitions that cannot hold a row which a join keeps.

        The other partitions stay at the versions that the query has pinned.
        """
        tests = _tests(predicates, self._schema_of_rows)
        if tests:
            found = self._namespace.scan([*self._tests, *tests]).partitions
            self._kept &= {partition.table.id for partition in found}

    def pushedPredicates(self) -> Any:
        return self._jvm.array(_PREDICATE, [])

    def supportsIterativePushdown(self) -> bool:
        return False

    def toBatch(self) -> PartitionedScan:
        return self

    def planInputPartitions(self) -> Any:
        tasks = []
        for partition, dataset in self._scan.datasets():
            if partition.table.id in self._kept:
                snapshot = Snapshot.of(self._catalog, dataset, partition.branch)
                parts = neighbours(stored_fragments(dataset), dataset.count_rows())
                tasks += [(snapshot, part.runs) for part in parts]
        return partitions(self._jvm, tasks)

    def createReaderFactory(self) -> Any:
        wanted = arrow_of(struct(self._schema))
        read = PartitionReader(self._schema_of_rows, wanted, self._condition).read
        return reader_factory(self._jvm, read, self._schema)


@attrs.frozen
class PartitionReader:
    """Read fragments of one partition; can be pickled."""

    stored: pa.Schema
    wanted: pa.Schema
    condition: str | None

    def read(self, task: tuple[Snapshot, Sequence[range]]) -> Iterator[pa.RecordBatch]:
        snapshot, runs = task
        reader = attrs.evolve(FragmentReader.of(snapshot, self.stored, self.wanted), filter=self.condition)
        if self.wanted.names:
            yield from reader.read(runs)
            return
        for _, addresses in reader.read_with(runs, None, ("_rowaddr",)):
            yield pa.RecordBatch.from_struct_array(pa.array([{}] * addresses.num_rows, pa.struct([])))


class PartitionedInsert(Unmetered):
    """One INSERT or dynamic overwrite, which Spark hands over as a DataFrame.

    Spark uses the object as the builder, the write and the relation.
    """

    class Java:
        implements = (
            WRITE + "SupportsDynamicOverwrite",
            WRITE + "V1Write",
            INSERTABLE,
        )

    def __init__(self, jvm: Jvm, name: str, namespace: PartitionedNamespace) -> None:
        self._jvm = jvm
        self._name = name
        self._namespace = namespace
        self._mode = APPEND

    def overwriteDynamicPartitions(self) -> PartitionedInsert:
        self._mode = OVERWRITE
        return self

    def build(self) -> PartitionedInsert:
        return self

    def toInsertableRelation(self) -> PartitionedInsert:
        return self

    def insert(self, data: Any, overwrite: bool) -> None:
        write_partitioned(frame_of(data, self._jvm.spark), self._namespace, self._mode)

    def description(self) -> str:
        return f"{self._mode} {self._name}"

    def toBatch(self) -> Any:
        raise Unsupported(f"{self._name}: Spark writes partitions through a DataFrame")

    def toStreaming(self) -> Any:
        raise Unsupported(f"{self._name}: a stream cannot write to partitions")


def _identities(namespace: PartitionedNamespace) -> list[str]:
    """Return the columns by whose values all partitions are divided, for conditions at run time."""
    sources = sources_by_id(namespace.schema)
    found = [
        [sources[number].name for number in field.source_ids if number in sources]
        for spec in namespace.specs.values()
        for field in spec.fields
    ]
    return sorted({name for names in found for name in names})


def _tests(predicates: Iterable[Any], schema: pa.Schema) -> list[Test]:
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
