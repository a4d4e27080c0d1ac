"""Show a partitioned namespace as one table.

A query reads the published versions of one moment. Its conditions, and the conditions that a join finds at run time,
select the partitions; Lance applies them to the rows. An INSERT routes its rows by one shuffle, and publishes once. An
overwrite replaces rows in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql import DataFrame

from lancekeep.application.catalog import Catalog
from lancekeep.application.partitions.values import column_type
from lancekeep.application.partitions.writing import APPEND, PartitionWritePlan, WrittenPartition
from lancekeep.application.upkeep.directory import NoDirectory
from lancekeep.domain.errors import ConcurrentModification, NamespaceNotFound, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.partition_rules import DATASET
from lancekeep.domain.partitioning import PartitionSpec
from lancekeep.domain.partitions import Partition
from lancekeep.entrypoints.spark.arrow_types import key_of
from lancekeep.entrypoints.spark.internals.classes import CATALOG, INDEX
from lancekeep.entrypoints.spark.internals.schemas import spark_of
from lancekeep.entrypoints.spark.internals.sessions import internal_rows
from lancekeep.entrypoints.spark.partition_sink import require_append
from lancekeep.entrypoints.spark.partitions import write_partitioned, written_partitions
from lancekeep.entrypoints.spark.sql.answers import Relation, Unmetered
from lancekeep.entrypoints.spark.sql.branches import WAP_BRANCH
from lancekeep.entrypoints.spark.sql.columns import spark_schema, type_properties
from lancekeep.entrypoints.spark.sql.definitions import TableDefinition
from lancekeep.entrypoints.spark.sql.indexes import Indexed
from lancekeep.entrypoints.spark.sql.jvm import Jvm
from lancekeep.entrypoints.spark.sql.metadata_columns import ROW_ADDRESS, MetadataColumn
from lancekeep.entrypoints.spark.sql.metadata_tables import PARTITIONS
from lancekeep.entrypoints.spark.sql.partition_changes import Act, PartitionedStatement, publish_rows
from lancekeep.entrypoints.spark.sql.partition_reader import PARTITION
from lancekeep.entrypoints.spark.sql.partitioned_scan import PartitionedScanBuilder, tests_of
from lancekeep.entrypoints.spark.sql.partitioned_write import Conditions, PartitionedInsert
from lancekeep.entrypoints.spark.sql.predicates import conjunction, translated
from lancekeep.entrypoints.spark.sql.row_level import OperationBuilder
from lancekeep.entrypoints.spark.sql.streams import Streams, given_options
from lancekeep.entrypoints.spark.sql.table import PROVIDER
from lancekeep.entrypoints.spark.sql.transforms import shown_transforms

_METADATA = (
    (PARTITION, "the name of the partition's table", "string"),
    (
        ROW_ADDRESS,
        "the address of the row in its partition: its fragment * 2^32 + its position in the fragment",
        "long",
    ),
)
"""The metadata columns: name, comment and type."""


class PartitionedTable(Relation, Unmetered, Indexed):
    """All partitions of a catalog as one table."""

    class Java:
        implements = (
            INDEX + "SupportsIndex",
            CATALOG + "SupportsRead",
            CATALOG + "SupportsWrite",
            CATALOG + "SupportsDeleteV2",
            CATALOG + "SupportsRowLevelOperations",
            CATALOG + "SupportsMetadataColumns",
            CATALOG + "SupportsPartitionManagement",
        )

    def __init__(self, jvm: Jvm, name: str, catalog: Catalog, streams: Streams) -> None:
        self._jvm = jvm
        self._streams = streams
        self._name = name
        self._catalog = catalog
        self._table = ObjectId((DATASET,))
        self._namespace = catalog.partitions.open()
        self._scan = self._namespace.scan()
        self._schema = jvm.struct(spark_schema(self._scan.schema))

    def partitioning(self) -> Any:
        return shown_transforms(self._jvm, self._spec, self._scan.schema)

    def properties(self) -> Any:
        shown = {"provider": PROVIDER, "location": self._catalog.root_uri, "is_managed_location": "true"}
        return self._jvm.map({**type_properties(self._scan.schema), **shown})

    def capabilities(self) -> Any:
        kinds = self._jvm.java(CATALOG + "TableCapability")
        return self._jvm.set(
            [
                kinds.BATCH_READ,
                kinds.BATCH_WRITE,
                kinds.V1_BATCH_WRITE,
                kinds.TRUNCATE,
                kinds.OVERWRITE_BY_FILTER,
                kinds.OVERWRITE_DYNAMIC,
                kinds.MICRO_BATCH_READ,
                kinds.STREAMING_WRITE,
            ]
        )

    def newScanBuilder(self, options: Any) -> PartitionedScanBuilder:
        given = given_options(options)
        arguments = self._name, self._catalog, self._scan, self._schema, given, self._streams
        return PartitionedScanBuilder(self._jvm, *arguments)

    def newWriteBuilder(self, info: Any) -> PartitionedInsert:
        self._require_main()
        return PartitionedInsert(self._jvm, self, info)

    def _insert(self, frame: DataFrame, mode: str, after: str | None) -> None:
        """Publish new rows, with ``after`` only if the partitions are still as of this version."""
        if after is None:
            write_partitioned(frame, self._namespace, mode)
            return
        if after != self.version():
            raise ConcurrentModification(f"{self._name} was changed while the statement was planned")
        plan = self._begin()
        publish_rows(self, plan, written_partitions(frame, plan), {}, exactly=True)

    def _stream(self, info: Any, replaces: bool) -> Any:
        self._require_main()
        require_append(self._name, overwrite=replaces)
        return self._streams.write(self._table, info, replaces=replaces)

    def _replace(self, frame: DataFrame, replaced: Conditions) -> None:
        """Publish new rows instead of the rows that satisfy conditions."""
        plan = self._begin()
        publish_rows(self, plan, written_partitions(frame, plan), {}, replaced, exactly=True)

    def _conditions(self, predicates: Iterable[Any]) -> Conditions:
        """Return the conditions of the partitions that have such rows.

        Raises:
            Unsupported: Only Spark can evaluate the condition.
        """
        given = list(predicates)
        conditions = {}
        for partition, dataset in self._scan.where(tests_of(given, self._scan.schema) or None).datasets():
            texts = [translated(predicate, dataset) for predicate in given]
            if None in texts:
                raise Unsupported(
                    f"{self._name}: only Spark can evaluate the condition of the rows to delete or replace; nothing "
                    "was changed. To replace them, run DELETE and INSERT, or MERGE."
                )
            condition = conjunction([text for text in texts if text is not None]) or "true"
            if dataset.count_rows(condition):
                conditions[str(partition.table.id)] = condition
        return conditions

    def version(self) -> str | None:
        """Return a digest of the partitions and their versions."""
        found = sorted((str(each.table.id), each.version, each.table.location) for each in self._partitions)
        return blake2b(repr(found).encode(), digest_size=16).hexdigest()

    # -- SHOW PARTITIONS ------------------------------------------------------------------------------------------

    def partitionSchema(self) -> Any:
        return self._jvm.struct(spark_of(self._values))

    def listPartitionIdentifiers(self, names: Any, values: Any) -> Any:
        spec = self._spec
        if len(names) or any(partition.spec != spec for partition in self._partitions):
            what = "with values" if len(names) else "of partitions of an earlier specification"
            raise Unsupported(f"{self._name}: SHOW PARTITIONS {what} is not supported; {self._shown_by}")
        columns = [
            pa.array([partition.values[at] for partition in self._partitions], kind)
            for at, kind in enumerate(self._values.types)
        ]
        return internal_rows(self._jvm.spark.createDataFrame(pa.Table.from_arrays(columns, schema=self._values)))

    @property
    def _spec(self) -> PartitionSpec:
        """The specification of new rows."""
        specs = self._namespace.specs
        return specs[max(specs)]

    @property
    def _values(self) -> pa.Schema:
        """The values of the partitions."""
        return pa.schema([(field.field_id, column_type(field, self._scan.schema)) for field in self._spec.fields])

    @property
    def _shown_by(self) -> str:
        return f"SELECT … FROM {self._name}.{PARTITIONS} shows all partitions"

    def _refuse_partition(self, *_: Any) -> NoReturn:
        raise Unsupported(
            f"{self._name}: partitions appear with their rows, and are not added, dropped or described one by one; "
            f"nothing was changed. Use INSERT and DELETE; {self._shown_by}."
        )

    def createPartition(self, *given: Any) -> None:
        self._refuse_partition()

    def dropPartition(self, *given: Any) -> bool:
        self._refuse_partition()

    def purgePartition(self, *given: Any) -> bool:
        self._refuse_partition()

    def partitionExists(self, *given: Any) -> bool:
        self._refuse_partition()

    def replacePartitionMetadata(self, *given: Any) -> None:
        self._refuse_partition()

    def loadPartitionMetadata(self, *given: Any) -> Any:
        self._refuse_partition()

    def renamePartition(self, *given: Any) -> bool:
        self._refuse_partition()

    def truncatePartition(self, *given: Any) -> bool:
        self._refuse_partition()

    # -- changes of rows ------------------------------------------------------------------------------------------

    def metadataColumns(self) -> Any:
        stored = frozenset(self._scan.schema.names)
        columns = [MetadataColumn(self._jvm, *column) for column in _METADATA if column[0] not in stored]
        return self._jvm.array(CATALOG + "MetadataColumn", columns)

    def canRenameConflictingMetadataColumns(self) -> bool:
        return False

    def newRowLevelOperationBuilder(self, info: Any) -> OperationBuilder:
        self._require_main()
        taken = [name for name, *_ in _METADATA if name in self._scan.schema.names]
        if taken:
            raise Unsupported(
                f"{self._name}: rows cannot be changed, because the column {taken[0]!r} has the name of a metadata "
                "column; nothing was changed. Overwrite the partitions instead."
            )
        return OperationBuilder(self._jvm, PartitionedStatement(self._jvm, self, info.command()))

    def canDeleteWhere(self, predicates: Iterable[Any]) -> bool:
        example = next((dataset for _, dataset in self._scan.datasets()), None)
        return example is None or all(translated(predicate, example) is not None for predicate in predicates)

    def deleteWhere(self, predicates: Iterable[Any], options: Any = None) -> None:
        self._require_main()
        found = self._conditions(predicates)
        if found:
            acts = {name: partial(_deleted, condition=condition) for name, condition in found.items()}
            self._publish(self._begin(), acts, (), exactly=False)

    def truncateTable(self, options: Any = None) -> bool:
        self.deleteWhere([])
        return True

    def _indexed(self) -> list[ObjectId]:
        return sorted(partition.table.id for partition in self._partitions)

    @property
    def _partitions(self) -> Sequence[Partition]:
        """The partitions that the statement reads."""
        return self._scan.partitions

    def _begin(self) -> PartitionWritePlan:
        return self._namespace.begin_write(APPEND)

    def _publish(
        self,
        plan: PartitionWritePlan,
        acts: Mapping[str, Act],
        created: Sequence[WrittenPartition],
        *,
        exactly: bool,
    ) -> None:
        by_id = {ObjectId.of(name): act for name, act in acts.items()}
        self._namespace.change(plan, self._scan, by_id, created, exactly=exactly)

    def _require_main(self) -> None:
        """Check that the session writes to no branch, because partitions have no branches."""
        branch = self._jvm.setting(WAP_BRANCH)
        if branch:
            raise Unsupported(
                f"{self._name}: the session writes to the branch {branch!r}, and partitions have no branches; nothing "
                f"was changed. Unset {WAP_BRANCH}."
            )


def _deleted(dataset: Any, condition: str) -> Any:
    dataset.delete(condition)
    return dataset


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
            "PARTITIONED BY or CLUSTERED BY out, and use CREATE INDEX."
        )
    if wanted.kept or key_of(wanted.schema) or wanted.location is not None:
        what = ", ".join(wanted.kept) or ("PRIMARY KEY" if wanted.location is None else "LOCATION")
        raise Unsupported(
            f"{name}: a partitioned table has no properties, defaults, rules, keys and location of its own; found "
            f"{what}. Leave them out. ALTER NAMESPACE sets the properties of the catalog."
        )
