"""Implement INSERT and CREATE TABLE … AS SELECT of a partitioned table.

Spark hands the rows over as a DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, Protocol

from pyspark.sql import DataFrame

from lancekeep.application.catalog import Catalog
from lancekeep.application.partitions.writing import APPEND, OVERWRITE, WrittenPartition
from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.spark.internals.classes import CATALOG, INSERTABLE, WRITE
from lancekeep.entrypoints.spark.internals.sessions import frame_of
from lancekeep.entrypoints.spark.partitions import written_partitions
from lancekeep.entrypoints.spark.sql.answers import Relation, Unmetered
from lancekeep.entrypoints.spark.sql.columns import spark_schema, type_properties
from lancekeep.entrypoints.spark.sql.definitions import TableDefinition
from lancekeep.entrypoints.spark.sql.jvm import Jvm
from lancekeep.entrypoints.spark.sql.streams import given_options, refuse_options
from lancekeep.entrypoints.spark.sql.table import PROVIDER
from lancekeep.entrypoints.spark.sql.transforms import shown_transforms

Conditions = Mapping[str, str]
"""Conditions that Lance evaluates, by the name of a partition's table."""


class Target(Protocol):
    """The table that receives the rows."""

    _name: str

    def _insert(self, frame: DataFrame, mode: str, after: str | None) -> None: ...

    def _conditions(self, predicates: Iterable[Any]) -> Conditions: ...

    def _replace(self, frame: DataFrame, replaced: Conditions) -> None: ...

    def _stream(self, info: Any, replaces: bool) -> Any: ...


class PartitionedInsert(Unmetered):
    """One INSERT, which may replace rows.

    It replaces the partitions that get rows, or the rows that satisfy a condition. Spark uses the object as the
    builder, the write and the relation.
    """

    class Java:
        implements = (
            WRITE + "SupportsOverwriteV2",
            WRITE + "SupportsDynamicOverwrite",
            WRITE + "V1Write",
            INSERTABLE,
            "java.util.function.Consumer",
        )

    def __init__(self, jvm: Jvm, target: Target, info: Any) -> None:
        self._jvm = jvm
        self._target = target
        self._name = target._name
        self._info = info
        self._options = given_options(info.options())
        self._mode = APPEND
        self._truncates = False
        self._replaced: Conditions | None = None
        self._after: str | None = None

    def accept(self, read: Iterable[Any]) -> None:
        """Publish only if no partition changes; see `write.Insert.accept`."""
        self._after = next((table.version() for table in read if table.name() == self._name), None)

    def andThen(self, after: Any) -> Any:
        raise Unsupported("the planner strategy calls accept alone")

    def canOverwrite(self, predicates: Iterable[Any]) -> bool:
        return True

    def overwrite(self, predicates: Iterable[Any]) -> PartitionedInsert:
        """Replace the rows that satisfy a condition."""
        self._replaced = self._target._conditions(predicates)
        return self

    def truncate(self) -> PartitionedInsert:
        self._truncates = True
        return self.overwrite([])

    def overwriteDynamicPartitions(self) -> PartitionedInsert:
        self._mode = OVERWRITE
        return self

    def build(self) -> PartitionedInsert:
        return self

    def toInsertableRelation(self) -> PartitionedInsert:
        refuse_options(self._name, self._options)
        return self

    def insert(self, data: Any, overwrite: bool) -> None:
        frame = frame_of(data, self._jvm.spark)
        if self._replaced is None:
            self._target._insert(frame, self._mode, self._after)
        else:
            self._target._replace(frame, self._replaced)

    def description(self) -> str:
        return f"{self._mode if self._replaced is None else 'replace'} {self._name}"

    def toBatch(self) -> Any:
        raise Unsupported(f"{self._name}: Spark writes partitions through a DataFrame")

    def toStreaming(self) -> Any:
        return self._target._stream(self._info, self._truncates)


class StagedPartitions(Relation, Unmetered):
    """A partitioned table that does not exist until its first rows are published.

    If it replaces another, readers see the other until then.
    """

    class Java:
        implements = (CATALOG + "StagedTable", CATALOG + "SupportsWrite")

    def __init__(self, jvm: Jvm, name: str, catalog: Catalog, wanted: TableDefinition, *, replaces: bool) -> None:
        self._jvm = jvm
        self._name = name
        self._catalog = catalog
        self._replaces = replaces
        self._plan = catalog.partitions.begin_create(wanted.schema, wanted.by, replace=replaces)
        self._schema = jvm.struct(spark_schema(self._plan.schema))
        self._written: list[WrittenPartition] = []

    def partitioning(self) -> Any:
        return shown_transforms(self._jvm, self._plan.spec, self._plan.schema)

    def properties(self) -> Any:
        return self._jvm.map({**type_properties(self._plan.schema), "provider": PROVIDER})

    def capabilities(self) -> Any:
        kinds = self._jvm.java(CATALOG + "TableCapability")
        return self._jvm.set([kinds.BATCH_WRITE, kinds.V1_BATCH_WRITE, kinds.TRUNCATE])

    def newWriteBuilder(self, info: Any) -> PartitionedInsert:
        return PartitionedInsert(self._jvm, self, info)

    def _insert(self, frame: DataFrame, mode: str, after: str | None) -> None:
        self._written = written_partitions(frame, self._plan)

    def _conditions(self, predicates: Iterable[Any]) -> Conditions:
        return {}  # a new table has no rows to replace

    def _replace(self, frame: DataFrame, replaced: Conditions) -> None:
        self._insert(frame, APPEND, None)

    def _stream(self, info: Any, replaces: bool) -> NoReturn:
        raise Unsupported(f"{self._name}: a stream needs an existing table")

    def commitStagedChanges(self) -> None:
        self._catalog.partitions.finish_create(self._plan, self._written, replace=self._replaces)

    def abortStagedChanges(self) -> None:
        """Do nothing: the files are unreachable, and clean-up removes them."""
