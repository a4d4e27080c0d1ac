"""Implement Spark's catalog interface: namespaces, tables and DDL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import unquote

import attrs

from lancekeep.application.catalog import Catalog
from lancekeep.domain.clustering import cluster_columns
from lancekeep.domain.errors import (
    BranchNotFound,
    InvalidInput,
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    TableAlreadyExists,
    TableNotFound,
    TagNotFound,
    Unsupported,
    VersionNotFound,
    ViewNotFound,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import SQL_VIEW
from lancekeep.domain.partition_rules import DATASET
from lancekeep.domain.stable_row_ids import wants_stable_row_ids
from lancekeep.entrypoints.spark.internals.classes import CATALOG, METRIC
from lancekeep.entrypoints.spark.sql.alter import alter
from lancekeep.entrypoints.spark.sql.branches import PREFIX, TAG_PREFIX, WAP_BRANCH, Branch
from lancekeep.entrypoints.spark.sql.changelog import Changelog
from lancekeep.entrypoints.spark.sql.clustering import require_clusterable
from lancekeep.entrypoints.spark.sql.columns import is_type_property
from lancekeep.entrypoints.spark.sql.definitions import TableDefinition, stated
from lancekeep.entrypoints.spark.sql.functions import FunctionCatalog
from lancekeep.entrypoints.spark.sql.jvm import Jvm
from lancekeep.entrypoints.spark.sql.metadata_tables import KINDS, PARTITIONS, MetadataTable, require_version_allowed
from lancekeep.entrypoints.spark.sql.partitioned import (
    PartitionedTable,
    is_partitioned,
    require_partitioned,
)
from lancekeep.entrypoints.spark.sql.partitioned_alter import alter_partitions
from lancekeep.entrypoints.spark.sql.partitioned_write import StagedPartitions
from lancekeep.entrypoints.spark.sql.procedures import NAMESPACE as SYSTEM
from lancekeep.entrypoints.spark.sql.procedures import PROCEDURES, Procedure
from lancekeep.entrypoints.spark.sql.streams import Streams
from lancekeep.entrypoints.spark.sql.table import SqlTable, StagedTable, TagTable
from lancekeep.entrypoints.spark.sql.views import ViewCatalog, object_id

_PARTS = {(kind,) for kind in KINDS}


class SqlCatalog(ViewCatalog, FunctionCatalog):
    """The catalog that SQL refers to as ``name``."""

    class Java:
        implements = (
            CATALOG + "StagingTableCatalog",
            CATALOG + "SupportsNamespaces",
            CATALOG + "ProcedureCatalog",
            CATALOG + "RelationCatalog",
            CATALOG + "FunctionCatalog",
        )

    _declared: ClassVar = {
        "listNamespaces": (NamespaceNotFound,),
        "loadNamespaceMetadata": (NamespaceNotFound,),
        "createNamespace": (NamespaceAlreadyExists,),
        "alterNamespace": (NamespaceNotFound,),
        "dropNamespace": (NamespaceNotFound, NamespaceNotEmpty),
        "listTables": (NamespaceNotFound,),
        "listTableSummaries": (NamespaceNotFound,),
        "loadTable": (TableNotFound,),
        "createTable": (TableAlreadyExists, NamespaceNotFound),
        "createTableLike": (TableAlreadyExists, NamespaceNotFound),
        "alterTable": (TableNotFound,),
        "renameTable": (TableNotFound, TableAlreadyExists),
        "loadRelation": (TableNotFound,),
        "listRelationSummaries": (NamespaceNotFound,),
        **ViewCatalog._declared,
        **FunctionCatalog._declared,
        "stageCreate": (TableAlreadyExists, NamespaceNotFound),
        "stageReplace": (TableNotFound, NamespaceNotFound),
        "stageCreateOrReplace": (NamespaceNotFound,),
    }

    def __init__(self, jvm: Jvm, name: str, catalog: Catalog, streams: Streams) -> None:
        self._jvm = jvm
        self._name = name
        self._catalog = catalog
        self._streams = streams

    def __repr__(self) -> str:
        return f"{self._name}: {self._catalog!r}"

    def initialize(self, name: str, options: Any) -> None:
        pass

    def name(self) -> str:
        return self._name

    def defaultNamespace(self) -> Any:
        return self._jvm.strings([])

    def capabilities(self) -> Any:
        kinds = self._jvm.java(CATALOG + "TableCatalogCapability")
        return self._jvm.set(
            [
                kinds.SUPPORT_COLUMN_DEFAULT_VALUE,
                kinds.SUPPORT_TABLE_CONSTRAINT,
                kinds.SUPPORTS_CREATE_TABLE_WITH_GENERATED_COLUMNS,
            ]
        )

    def tableStateOptionKeys(self) -> Any:
        return self._jvm.set([])

    def changelogStateOptionKeys(self) -> Any:
        return self._jvm.set([])

    def supportedCustomMetrics(self) -> Any:
        return self._jvm.array(METRIC + "CustomMetric", [])

    def useNullableQuerySchema(self) -> bool:
        return True

    # -- namespaces ---------------------------------------------------------------------------------------------

    def listNamespaces(self, namespace: Any = ()) -> Any:
        parent = ObjectId.of(list(namespace))
        return self._jvm.paths((*parent.names, name) for name in self._catalog.list_namespaces(parent))

    def namespaceExists(self, namespace: Any) -> bool:
        return self._catalog.namespace_exists(list(namespace))

    def loadNamespaceMetadata(self, namespace: Any) -> Any:
        properties = self._catalog.describe_namespace(list(namespace)).properties
        return self._jvm.map({name: text for name, text in properties.items() if not name.startswith(SQL_VIEW)})

    def createNamespace(self, namespace: Any, metadata: Any) -> None:
        self._catalog.create_namespace(list(namespace), stated(metadata, "a namespace"))

    def alterNamespace(self, namespace: Any, changes: Iterable[Any]) -> None:
        properties: dict[str, str | None] = {}
        for change in changes:
            kind = change.getClass().getSimpleName()
            if kind not in ("SetProperty", "RemoveProperty"):
                raise Unsupported(f"a namespace cannot be altered by {kind}")
            properties[change.property()] = change.value() if kind == "SetProperty" else None
        given = stated({key: value for key, value in properties.items() if value is not None}, "a namespace")
        removed = [key for key, value in properties.items() if value is None]
        self._catalog.alter_namespace(list(namespace), given, removed)

    def dropNamespace(self, namespace: Any, cascade: bool) -> bool:
        self._catalog.drop_namespace(list(namespace), cascade=cascade)
        return True

    # -- tables -------------------------------------------------------------------------------------------------

    def listTables(self, namespace: Any) -> Any:
        kind = self._jvm.java(CATALOG + "Identifier")
        return self._jvm.array(CATALOG + "Identifier", [kind.of(namespace, name) for name in self._tables(namespace)])

    def listTableSummaries(self, namespace: Any) -> Any:
        kind = self._jvm.java(CATALOG + "TableSummary").MANAGED_TABLE_TYPE
        return self._summaries(namespace, dict.fromkeys(self._tables(namespace), kind))

    def tableExists(self, identifier: Any) -> bool:
        table = object_id(identifier)
        if self._catalog.table_exists(table) or self._is_partitioned(table):
            return True
        with suppress(BranchNotFound, TagNotFound):
            return self._part(table, None, None) is not None
        return False

    def loadTable(
        self, identifier: Any, context: Any = None, options: Any = None
    ) -> SqlTable | MetadataTable | PartitionedTable:
        """Load a table, by default its latest version, or a part of a table.

        Args:
            identifier: The table.
            context: A version, a timestamp, a set of privileges, or a ``TableContext`` that combines them.
            options: Ignored.
        """
        return self._loaded(object_id(identifier), *_time_travel(context))

    def _loaded(
        self, table: ObjectId, version: str | None, moment: datetime | None
    ) -> SqlTable | MetadataTable | PartitionedTable:
        try:
            return self._table(table, version, moment)
        except TableNotFound:
            if self._is_partitioned(table):
                if version is not None or moment is not None:
                    raise self._no_version(table) from None
                return PartitionedTable(self._jvm, self._shown(table), self._catalog, self._streams)
            part = self._part(table, version, moment)
            if part is None:
                raise
            return part

    def _no_version(self, table: ObjectId) -> InvalidInput:
        return InvalidInput(
            f"{self._shown(table)} is all partitions of the catalog, and has no versions; each partition has its own. "
            f"Read the table of a partition; {self._shown(table)}.{PARTITIONS} shows their names"
        )

    def _is_partitioned(self, table: ObjectId) -> bool:
        """Return whether a name means all partitions of the catalog."""
        return table.names == (DATASET,) and is_partitioned(self._catalog)

    def _table(self, table: ObjectId, version: str | None, moment: datetime | None) -> SqlTable:
        """Load a table, or the branch of it that the session writes to."""
        branch = self._wap_branch() if version is None and moment is None else None
        dataset = self._opened(table, version, moment)
        if branch is None:
            return self._shown_as(table, table, dataset, None)
        try:
            dataset = self._catalog.open(table, branch=branch)
        except BranchNotFound:
            return self._shown_as(table, table, dataset, Branch(self._catalog, table, branch, exists=False))
        return self._shown_as(table, table, dataset, Branch(self._catalog, table, branch))

    def _shown_as(self, name: ObjectId, table: ObjectId, dataset: Any, branch: Branch | None) -> SqlTable:
        return SqlTable(self._jvm, self._shown(name), self._catalog, table, dataset, self._streams, branch)

    def _part(self, name: ObjectId, version: str | None, moment: datetime | None) -> SqlTable | MetadataTable | None:
        """Load a metadata table, a branch or a tag by the name ``table.part``; None if it names none."""
        if name.names[:1] == (DATASET,) and name.names[1:] in _PARTS and is_partitioned(self._catalog):
            if version is not None or moment is not None:
                raise self._no_version(name.parent)
            return MetadataTable(self._jvm, self._shown(name), name.name, self._catalog, name.parent, None)
        found = self._whole(name)
        if found is None:
            return None
        table, part = found
        if part in KINDS:
            require_version_allowed(part, version is not None or moment is not None)
            dataset = self._opened(table, version, moment)
            return MetadataTable(self._jvm, self._shown(name), part, self._catalog, table, dataset)
        if version is not None or moment is not None:
            raise InvalidInput(f"{self._shown(name)} names a version; read it without VERSION or TIMESTAMP AS OF")
        if part.startswith(TAG_PREFIX):
            dataset = self._catalog.open(table, tag=part.removeprefix(TAG_PREFIX))
            return TagTable(self._jvm, self._shown(name), self._catalog, table, dataset, self._streams)
        branch = part.removeprefix(PREFIX)
        return self._shown_as(
            name, table, self._catalog.open(table, branch=branch), Branch(self._catalog, table, branch)
        )

    def _whole(self, name: ObjectId) -> tuple[ObjectId, str] | None:
        """Return the table and the part that a name consists of; None if there is no such table."""
        *names, part = name.names
        if not names or not ((part in KINDS and part != PARTITIONS) or part.startswith((PREFIX, TAG_PREFIX))):
            return None
        table = ObjectId(tuple(names))
        return (table, part) if self._catalog.table_exists(table) else None

    def _require_whole(self, name: ObjectId) -> None:
        """Check that a name to define, change or drop can be the name of a single table.

        Raises: Unsupported: The name stands for a metadata table, a branch or a tag, or all partitions of the catalog.
        """
        if self._catalog.table_exists(name):
            return
        found = self._whole(name)
        if found is not None:
            raise Unsupported(
                f"{self._shown(name)} is a part of the table {self._shown(found[0])}: it cannot be created, replaced, "
                "altered, renamed or dropped. Alter the table itself; change its tags and branches by CALL."
            )
        if self._is_partitioned(name):
            raise Unsupported(
                f"{self._shown(name)} is all partitions of the catalog: it cannot be renamed, or replaced by a table "
                "without PARTITIONED BY. Drop it and create it; INSERT OVERWRITE replaces its rows, and "
                "catalog.partitions.open().evolve changes how later rows are divided."
            )

    def _opened(self, table: ObjectId, version: str | None, moment: datetime | None) -> Any:
        try:
            if moment is not None:
                return self._catalog.open(table, timestamp=moment)
            if version is None or version.isdecimal():
                return self._catalog.open(table, None if version is None else int(version))
            try:
                return self._catalog.open(table, tag=version)
            except TagNotFound:
                if version not in self._catalog.branches.list(table):
                    raise
                return self._catalog.open(table, branch=version)
        except VersionNotFound as error:
            if version is None and moment is None:
                raise TableNotFound(str(error)) from error
            raise InvalidInput(str(error)) from error

    def _wap_branch(self) -> str | None:
        """Return the branch that the session which runs the statement writes to."""
        return self._jvm.setting(WAP_BRANCH) or None

    def loadChangelog(self, identifier: Any, context: Any, options: Any) -> Changelog:
        table = object_id(identifier)
        return Changelog(self._jvm, self._shown(table), self._catalog, table, context)

    def invalidateTable(self, identifier: Any) -> None:
        pass

    def createTable(self, identifier: Any, *definition: Any) -> SqlTable | PartitionedTable:
        return self._create(identifier, TableDefinition.of(*definition))

    def createTableLike(self, identifier: Any, info: Any, source: Any) -> SqlTable | PartitionedTable:
        """Create a table with the source's columns and comments.

        Vectors and blobs keep their types if the source is a table of a Lancekeep catalog.
        """
        definition = TableDefinition.of(info)
        types = {key: value for key, value in dict(source.properties()).items() if is_type_property(key)}
        return self._create(identifier, attrs.evolve(definition, properties={**types, **definition.properties}))

    def alterTable(self, identifier: Any, changes: Iterable[Any]) -> SqlTable | PartitionedTable:
        table = object_id(identifier)
        if self._is_partitioned(table) and not self._catalog.table_exists(table):
            alter_partitions(self._catalog, self._shown(table), list(changes))
            return PartitionedTable(self._jvm, self._shown(table), self._catalog, self._streams)
        self._require_whole(table)
        alter(self._catalog, table, list(changes))
        return self._table(table, None, None)

    def dropTable(self, identifier: Any) -> bool:
        return self._drop(identifier, None)

    def purgeTable(self, identifier: Any) -> bool:
        """Remove a table at once: ``DROP TABLE … PURGE``."""
        return self._drop(identifier, 0)

    def _drop(self, identifier: Any, keep: float | None) -> bool:
        table = object_id(identifier)
        try:
            if self._is_partitioned(table):
                self._catalog.partitions.drop(keep=keep)
                return True
            self._require_whole(table)
            self._catalog.drop_table(table, keep=keep)
        except TableNotFound:
            return False
        return True

    def renameTable(self, source: Any, target: Any) -> None:
        wanted = self._without_own_name(object_id(target))
        self._require_whole(object_id(source))
        self._require_definable(wanted)
        self._catalog.rename_table(object_id(source), wanted)

    # -- views --------------------------------------------------------------------------------------------------

    def loadRelation(self, identifier: Any) -> Any:
        """Load a table, or else a view."""
        try:
            return self._loaded(object_id(identifier), None, None)
        except TableNotFound:
            with suppress(ViewNotFound):
                return self._view(object_id(identifier))
            raise

    def listRelationSummaries(self, namespace: Any) -> Any:
        kinds = self._jvm.java(CATALOG + "TableSummary")
        tables = dict.fromkeys(self._tables(namespace), kinds.MANAGED_TABLE_TYPE)
        return self._summaries(namespace, dict.fromkeys(self._views(namespace), kinds.VIEW_TABLE_TYPE) | tables)

    # -- procedures ---------------------------------------------------------------------------------------------

    def listProcedures(self, namespace: Any) -> Any:
        kind = self._jvm.java(CATALOG + "Identifier")
        names = PROCEDURES if list(namespace) == [SYSTEM] else ()
        return self._jvm.array(CATALOG + "Identifier", [kind.of(namespace, name) for name in names])

    def loadProcedure(self, identifier: Any) -> Procedure:
        procedure = identifier.name()
        if list(identifier.namespace()) != [SYSTEM] or procedure not in PROCEDURES:
            raise InvalidInput(
                f"there is no procedure {self._shown(object_id(identifier))}; the procedures of {self._name}.{SYSTEM} "
                f"are {', '.join(PROCEDURES)}"
            )
        return Procedure(self._jvm, self._name, procedure, self._catalog)

    # -- tables with their first rows -----------------------------------------------------------------------------

    def stageCreate(self, identifier: Any, *definition: Any) -> StagedTable | StagedPartitions:
        return self._stage(identifier, definition, replaces=False)

    def stageReplace(self, identifier: Any, *definition: Any) -> StagedTable | StagedPartitions:
        return self._stage(identifier, definition, replaces=True)

    def stageCreateOrReplace(self, identifier: Any, *definition: Any) -> StagedTable | StagedPartitions:
        table = object_id(identifier)
        replaces = self._catalog.table_exists(table) or self._is_partitioned(table)
        return self._stage(identifier, definition, replaces=replaces)

    def _stage(self, identifier: Any, definition: tuple[Any, ...], *, replaces: bool) -> StagedTable | StagedPartitions:
        table = object_id(identifier)
        wanted = TableDefinition.of(*definition)
        replaces_partitions = replaces and bool(wanted.by) and self._is_partitioned(table)
        if not replaces_partitions:
            self._require_definable(table)
            if replaces:
                self._catalog.find_table(table)
        branch = self._wap_branch()
        if replaces and branch is not None:
            raise Unsupported(
                f"{self._shown(table)}: REPLACE TABLE replaces the main history, and the session writes to the branch "
                f"{branch!r}. Use INSERT OVERWRITE, or unset {WAP_BRANCH}."
            )
        name = self._shown(table)
        if wanted.by:
            require_partitioned(name, table, wanted, replaces=replaces and not replaces_partitions)
            return StagedPartitions(self._jvm, name, self._catalog, wanted, replaces=replaces_partitions)
        if replaces and wanted.location is not None:
            self._require_there(table, wanted.location)
            wanted = attrs.evolve(wanted, location=None)
        self._require_clusterable(table, wanted, replaces=replaces)
        return self._staged(table, wanted, replaces=replaces)

    def _require_there(self, table: ObjectId, location: str) -> None:
        """Check that a table to replace is at a location."""
        uri = self._catalog.describe_table(table).uri
        wanted = {location, f"file://{location}", f"{unquote(self._catalog.root_uri).rstrip('/')}/{location}"}
        if wanted.isdisjoint((uri, unquote(uri))):
            raise Unsupported(
                f"{self._shown(table)} is at {uri}, and REPLACE TABLE keeps the directory of a table; found the "
                f"LOCATION {location!r}. Leave LOCATION out; `lancekeep relocate` moves a table."
            )

    def _staged(self, table: ObjectId, wanted: TableDefinition, *, replaces: bool) -> StagedTable:
        name, location = self._shown(table), wanted.location
        try:
            return StagedTable(
                self._jvm, name, self._catalog, table, wanted.schema, wanted.kept, location, replaces=replaces
            )
        except (InvalidInput, TableAlreadyExists) as error:
            if location is None or self._catalog.table_exists(table):
                raise
            raise InvalidInput(
                f"{name} cannot be at the LOCATION {location!r}: {str(error).rstrip('.')}. Name an empty directory "
                f"below the root {self._catalog.root_uri}, or leave LOCATION out"
            ) from error

    def _create(self, identifier: Any, wanted: TableDefinition) -> SqlTable | PartitionedTable:
        table = object_id(identifier)
        if self._is_partitioned(table):
            raise TableAlreadyExists(f"{self._shown(table)} exists already")
        self._require_definable(table)
        if wanted.by:
            require_partitioned(self._shown(table), table, wanted, replaces=False)
            self._catalog.partitions.create(wanted.schema, wanted.by)
            return PartitionedTable(self._jvm, self._shown(table), self._catalog, self._streams)
        self._require_clusterable(table, wanted, replaces=False)
        if wanted.location is None:
            self._catalog.write(table, wanted.schema.empty_table(), properties=wanted.kept)
        else:
            staged = self._staged(table, wanted, replaces=False)
            try:
                staged.commitStagedChanges()
            except Exception:
                staged.abortStagedChanges()
                raise
        return self._table(table, None, None)

    # -- inside -------------------------------------------------------------------------------------------------

    def _require_clusterable(self, table: ObjectId, wanted: TableDefinition, *, replaces: bool) -> None:
        """Check that compaction can sort a table, which may have stable row ids already or by default."""
        if cluster_columns(wanted.kept):
            if replaces:
                stable = bool(self._catalog.open(table).has_stable_row_ids)
            else:
                stable = wants_stable_row_ids(self._catalog.describe_namespace([]).properties)
            require_clusterable(wanted.schema, wanted.kept, stable_row_ids=stable)

    def _require_definable(self, table: ObjectId) -> None:
        """Check that nothing but a table has a name that is to be defined."""
        self._require_no_view(table)
        self._require_whole(table)

    def _summaries(self, namespace: Any, kinds: Mapping[str, str]) -> Any:
        identifier, summary = self._jvm.java(CATALOG + "Identifier"), self._jvm.java(CATALOG + "TableSummary")
        found = [summary.of(identifier.of(namespace, name), kinds[name]) for name in sorted(kinds)]
        return self._jvm.array(CATALOG + "TableSummary", found)

    def _tables(self, namespace: Any) -> list[str]:
        found = self._catalog.list_tables(list(namespace), include_declared=False)
        return sorted([*found, DATASET]) if not len(namespace) and is_partitioned(self._catalog) else found


def _time_travel(context: Any) -> tuple[str | None, datetime | None]:
    """Return the version or tag, and the time, from any form of ``loadTable``'s context."""
    if isinstance(context, str):
        return context, None
    if isinstance(context, int):
        return None, datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=context)
    if context is None or context.getClass().getSimpleName() != "TableContext":
        return None, None  # a set of privileges; Lancekeep has none
    travel = context.timeTravel()
    if not travel.isPresent():
        return None, None
    if travel.get().getClass().getSimpleName() == "AsOfVersion":
        return _time_travel(travel.get().version())
    return _time_travel(travel.get().micros())
