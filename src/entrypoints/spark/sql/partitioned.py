"""Show a partitioned namespace as one table.

A query reads the published versions of one moment. Its conditions, and the conditions that a join finds at run time,
select the partitions; Lance applies them to the rows. An INSERT routes its rows by one shuffle, and publishes once. A
dynamic overwrite replaces the partitions that get rows in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame

from lancekeep.application.catalog import Catalog
from lancekeep.application.partitions.scan import Scan as PartitionScan
from lancekeep.application.partitions.values import sources_by_id
from lancekeep.application.partitions.writing import APPEND, OVERWRITE, WrittenPartition
from lancekeep.application.upkeep.directory import NoDirectory
from lancekeep.domain.column_names import quoted
from lancekeep.domain.errors import NamespaceNotFound, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.partition_rules import DATASET
from lancekeep.entrypoints.spark.arrow_types import key_of
from lancekeep.entrypoints.spark.internals.classes import CATALOG, EXPRESSIONS, INSERTABLE, READ, WRITE
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.internals.sessions import frame_of
from lancekeep.entrypoints.spark.partitions import write_partitioned, written_partitions
from lancekeep.entrypoints.spark.reading import FragmentReader, Snapshot, stored_fragments
from lancekeep.entrypoints.spark.reading import partitions as neighbours
from lancekeep.entrypoints.spark.sql.answers import Relation, Unmetered
from lancekeep.entrypoints.spark.sql.branches import WAP_BRANCH
from lancekeep.entrypoints.spark.sql.columns import spark_schema, type_properties
from lancekeep.entrypoints.spark.sql.definitions import TableDefinition
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy, struct
from lancekeep.entrypoints.spark.sql.predicates import Untranslatable, compared, conjunction, translated
from lancekeep.entrypoints.spark.sql.scan import DriverScan
from lancekeep.entrypoints.spark.sql.streams import given_options, refuse_options
from lancekeep.entrypoints.spark.sql.table import PROVIDER
from lancekeep.entrypoints.spark.sql.transforms import shown_transforms
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
        self._scan = self._namespace.scan()
        self._schema = jvm.struct(spark_schema(self._scan.schema))

    def partitioning(self) -> Any:
        specs = self._namespace.specs
        return shown_transforms(self._jvm, specs[max(specs)], self._scan.schema)

    def properties(self) -> Any:
        shown = {"provider": PROVIDER, "location": self._catalog.root_uri, "is_managed_location": "true"}
        return self._jvm.map({**type_properties(self._scan.schema), **shown})

    def capabilities(self) -> Any:
        kinds = self._jvm.java(CATALOG + "TableCapability")
        return self._jvm.set([kinds.BATCH_READ, kinds.BATCH_WRITE, kinds.V1_BATCH_WRITE, kinds.OVERWRITE_DYNAMIC])

    def newScanBuilder(self, options: Any) -> PartitionedScanBuilder:
        refuse_options(self._name, given_options(options))
        return PartitionedScanBuilder(self._jvm, self._name, self._catalog, self._scan)

    def newWriteBuilder(self, info: Any) -> PartitionedInsert:
        refuse_options(self._name, given_options(info.options()))
        self._require_main()
        return PartitionedInsert(self._jvm, self._name, partial(write_partitioned, namespace=self._namespace))

    def _require_main(self) -> None:
        """Check that the session writes to no branch, because partitions have no branches."""
        branch = self._jvm.setting(WAP_BRANCH)
        if branch:
            raise Unsupported(
                f"{self._name}: the session writes to the branch {branch!r}, and partitions have no branches; nothing "
                f"was changed. Unset {WAP_BRANCH}."
            )


class PartitionedScanBuilder(Proxy):
    """Accept the conditions and columns that Spark offers to push down."""

    class Java:
        implements = (READ + "SupportsPushDownV2Filters", READ + "SupportsPushDownRequiredColumns")

    def __init__(self, jvm: Jvm, name: str, catalog: Catalog, scan: PartitionScan) -> None:
        self._jvm = jvm
        self._name = name
        self._catalog = catalog
        self._scan = scan
        self._columns = spark_schema(scan.schema)
        self._filters: list[str] = []
        self._pushed: list[Any] = []

    def pushPredicates(self, predicates: Iterable[Any]) -> Any:
        given, rest = list(predicates), []
        self._scan = self._scan.where(_tests(given, self._scan.schema) or None)
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
    ) -> None:
        super().__init__(jvm, schema)
        self._name = name
        self._catalog = catalog
        self._condition = condition
        self._scan = scan

    def description(self) -> str:
        partitions = f"{len(self._scan.partitions)} of {len(self._scan.partitions) + self._scan.skipped} partitions"
        return f"{self._name}, {partitions}{', filter ' + self._condition if self._condition else ''}"

    def filterAttributes(self) -> Any:
        expressions = self._jvm.java(EXPRESSIONS + "Expressions")
        read = struct(self._schema).names
        return self._jvm.array(
            _REFERENCE, [expressions.column(quoted(name)) for name in _sources(self._scan) if name in read]
        )

    def filter(self, predicates: Iterable[Any]) -> None:
        """Drop the partitions that cannot hold a row which a join keeps.

        The other partitions stay at the versions that the query has pinned.
        """
        self._scan = self._scan.where(_tests(predicates, self._scan.schema) or None)

    def pushedPredicates(self) -> Any:
        return self._jvm.array(_PREDICATE, [])

    def supportsIterativePushdown(self) -> bool:
        return False

    def toBatch(self) -> PartitionedScan:
        return self

    def planInputPartitions(self) -> Any:
        tasks = []
        for partition, dataset in self._scan.datasets():
            snapshot = Snapshot.of(self._catalog, dataset, partition.branch)
            parts = neighbours(stored_fragments(dataset), dataset.count_rows())
            tasks += [(snapshot, part.runs) for part in parts]
        return partitions(self._jvm, tasks)

    def createReaderFactory(self) -> Any:
        wanted = arrow_of(struct(self._schema))
        read = PartitionReader(self._scan.schema, wanted, self._condition).read
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

    def __init__(self, jvm: Jvm, name: str, write: Callable[..., Any]) -> None:
        """Create it; ``write`` takes the rows, and the mode as a keyword."""
        self._jvm = jvm
        self._name = name
        self._write = write
        self._mode = APPEND

    def overwriteDynamicPartitions(self) -> PartitionedInsert:
        self._mode = OVERWRITE
        return self

    def build(self) -> PartitionedInsert:
        return self

    def toInsertableRelation(self) -> PartitionedInsert:
        return self

    def insert(self, data: Any, overwrite: bool) -> None:
        self._write(frame_of(data, self._jvm.spark), mode=self._mode)

    def description(self) -> str:
        return f"{self._mode} {self._name}"

    def toBatch(self) -> Any:
        raise Unsupported(f"{self._name}: Spark writes partitions through a DataFrame")

    def toStreaming(self) -> Any:
        raise Unsupported(f"{self._name}: a stream cannot write to partitions")


class StagedPartitions(Relation, Unmetered):
    """A partitioned table that is invisible until its first rows commit."""

    class Java:
        implements = (CATALOG + "StagedTable", CATALOG + "SupportsWrite")

    def __init__(self, jvm: Jvm, name: str, catalog: Catalog, wanted: TableDefinition) -> None:
        self._jvm = jvm
        self._name = name
        self._catalog = catalog
        self._wanted = wanted
        self._plan = catalog.partitions.begin_create(wanted.schema, wanted.by)
        self._schema = jvm.struct(spark_schema(self._plan.schema))
        self._written: list[WrittenPartition] = []

    def partitioning(self) -> Any:
        return shown_transforms(self._jvm, self._plan.spec, self._plan.schema)

    def properties(self) -> Any:
        return self._jvm.map({**type_properties(self._plan.schema), "provider": PROVIDER})

    def capabilities(self) -> Any:
        kinds = self._jvm.java(CATALOG + "TableCapability")
        return self._jvm.set([kinds.BATCH_WRITE, kinds.V1_BATCH_WRITE])

    def newWriteBuilder(self, info: Any) -> PartitionedInsert:
        refuse_options(self._name, given_options(info.options()))
        return PartitionedInsert(self._jvm, self._name, self._write)

    def _write(self, frame: DataFrame, mode: str) -> None:
        self._written = written_partitions(frame, self._plan)

    def commitStagedChanges(self) -> None:
        namespace = self._catalog.partitions.create(self._wanted.schema, self._wanted.by)
        namespace.publish(self._plan, self._written)

    def abortStagedChanges(self) -> None:
        """Do nothing: the files are unreachable, and clean-up removes them."""


def is_partitioned(catalog: Catalog) -> bool:
    """Return whether a catalog has the table of all partitions."""
    try:
        catalog.partitions.open()
    except (NamespaceNotFound, NoDirectory):
        return False
    return True


def require_partitioned(name: str, table: ObjectId, wanted: TableDefinition, *, replaces: bool) -> None:
    """Check that a table can be partitioned as it is defined.

    Raises:
        Unsupported: It has another name, replaces a table, or has what the specification cannot keep for partitions.
    """
    if table.names != (DATASET,) or replaces:
        raise Unsupported(
            f"{name} cannot be partitioned: a catalog has one partitioned table, which has the name {DATASET!r} in the "
            "root. Create it with PARTITIONED BY in a catalog of its own. To find rows of other tables, leave "
            "PARTITIONED BY out, and use CREATE INDEX."
        )
    if wanted.kept or key_of(wanted.schema):
        what = ", ".join(wanted.kept) or "PRIMARY KEY"
        raise Unsupported(
            f"{name}: a partitioned table has no properties, defaults, rules and keys of its own; found {what}. Leave "
            "them out. ALTER NAMESPACE sets the properties of the catalog."
        )


def _sources(scan: PartitionScan) -> list[str]:
    """Return the columns whose values divide the partitions."""
    sources = sources_by_id(scan.schema)
    specs = {partition.spec.id: partition.spec for partition in scan.partitions}
    numbers = {number for spec in specs.values() for field in spec.fields for number in field.source_ids}
    return sorted(sources[number].name for number in numbers if number in sources)


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
