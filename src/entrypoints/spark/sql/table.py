"""Implement Spark's table interface: read one version, and write new ones."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn
from urllib.parse import unquote

import attrs
import pyarrow as pa

from lancekeep.adapters.lance.sorted_rewrite import sorting_columns
from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.domain.clustering import cluster_columns
from lancekeep.domain.column_names import require_readable
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import ConcurrentModification, TableNotFound, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import CLUSTER_BY
from lancekeep.domain.row_rules import CONSTRAINT, LENGTHS, rules_of
from lancekeep.domain.stable_row_ids import STABLE_ROW_IDS, stated_row_ids
from lancekeep.entrypoints.spark.arrow_types import key_of
from lancekeep.entrypoints.spark.internals.classes import CATALOG, INDEX
from lancekeep.entrypoints.spark.reading import Snapshot
from lancekeep.entrypoints.spark.sql.alter import require_properties
from lancekeep.entrypoints.spark.sql.answers import Relation, Unmetered
from lancekeep.entrypoints.spark.sql.branches import Branch
from lancekeep.entrypoints.spark.sql.columns import spark_schema, type_properties, with_expressions
from lancekeep.entrypoints.spark.sql.indexes import Indexed
from lancekeep.entrypoints.spark.sql.jvm import Jvm
from lancekeep.entrypoints.spark.sql.keys import shown_key
from lancekeep.entrypoints.spark.sql.metadata_columns import MetadataColumn, metadata_columns
from lancekeep.entrypoints.spark.sql.predicates import conjunction, translated
from lancekeep.entrypoints.spark.sql.row_level import (
    FragmentChanges,
    Operation,
    OperationBuilder,
    added_fragments,
    commit_changes,
    matching,
)
from lancekeep.entrypoints.spark.sql.scan import ScanBuilder
from lancekeep.entrypoints.spark.sql.statistics import stored
from lancekeep.entrypoints.spark.sql.streams import FORMAT, Streams, given_options
from lancekeep.entrypoints.spark.sql.transforms import shown_clustering
from lancekeep.entrypoints.spark.sql.write import Insert
from lancekeep.ports.table_engine import WriteMode, WritePlan

PROVIDER = FORMAT
VERSION_SHOWN, STORE_SHOWN = "lancekeep.version", "lancekeep.commit_store"
"""Properties that show a table's state in DESCRIBE; they are not part of its definition."""

_NAMED = re.compile(r"(\w+://.*/)?([0-9a-f]{8}_[^/]+|[^/]+\.lance|([^/]+/)?[^/]+\.db/[^/]+)")
"""The directories that catalogs choose, relative to the root, or as the URIs of a server. SHOW CREATE TABLE shows any
other directory as the LOCATION of the table."""


class _Table(Relation, Unmetered, ABC):
    """Common methods of existing and staged tables."""

    def __init__(self, jvm: Jvm, name: str, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        self._jvm = jvm
        self._name = name
        self._stored = schema
        self._columns = spark_schema(schema)
        self._schema = jvm.struct(with_expressions(self._columns, properties))
        self._clustering = sorting_columns(schema, cluster_columns(properties))  # Spark describes existing columns only
        # The types have the lengths, and the partitioning has the clustering.
        shown = {name: text for name, text in properties.items() if not name.startswith((*LENGTHS, CLUSTER_BY))}
        self._properties = {**shown, **type_properties(schema), "provider": PROVIDER}

    def properties(self) -> Any:
        return self._jvm.map(self._properties)

    def partitioning(self) -> Any:
        return shown_clustering(self._jvm, self._clustering)

    def constraints(self) -> Any:
        kind = self._jvm.java(CATALOG + "constraints.Constraint")
        valid = self._jvm.java(CATALOG + "constraints.Constraint$ValidationStatus").VALID
        found = []
        for name, text in self._properties.items():
            if name.startswith(CONSTRAINT):
                check = kind.check(name.removeprefix(CONSTRAINT)).predicateSql(text).validationStatus(valid)
                found.append(check.enforced(True).build())
        key = key_of(self._stored)
        if key:
            found.append(shown_key(self._jvm, key))
        return self._jvm.array(CATALOG + "constraints.Constraint", found)

    def capabilities(self) -> Any:
        kinds = self._jvm.java(CATALOG + "TableCapability")
        return self._jvm.set(
            [
                kinds.BATCH_READ,
                kinds.BATCH_WRITE,
                kinds.TRUNCATE,
                kinds.OVERWRITE_BY_FILTER,
                kinds.OVERWRITE_DYNAMIC,
                kinds.MICRO_BATCH_READ,
                kinds.STREAMING_WRITE,
                kinds.AUTOMATIC_SCHEMA_EVOLUTION,
                kinds.GENERATE_COLUMN_VALUES_ON_WRITE,
            ]
        )

    def newWriteBuilder(self, info: Any) -> Any:
        return Insert(self._jvm, self._name, self, info)

    @abstractmethod
    def _begin(self, mode: WriteMode) -> WritePlan: ...

    @abstractmethod
    def _commit(self, plan: WritePlan, fragments: list[str], after: str | None = None) -> None: ...

    def _where(self, predicates: Iterable[Any]) -> str:
        raise Unsupported(f"{self._name}: a new table has no rows to replace")

    def _replace(self, condition: str, fragments: list[str]) -> None:
        raise Unsupported(f"{self._name}: a new table has no rows to replace")

    def _stream(self, info: Any, replaces: bool) -> Any:
        raise Unsupported(f"{self._name}: a stream needs an existing table")


class SqlTable(_Table, Indexed):
    """A table at one version."""

    class Java:
        implements = (
            INDEX + "SupportsIndex",
            CATALOG + "SupportsRead",
            CATALOG + "SupportsWrite",
            CATALOG + "SupportsDeleteV2",
            CATALOG + "SupportsRowLevelOperations",
            CATALOG + "SupportsMetadataColumns",
        )

    def __init__(
        self,
        jvm: Jvm,
        name: str,
        catalog: Catalog,
        table: ObjectId,
        dataset: Any,
        streams: Streams,
        branch: Branch | None = None,
    ) -> None:
        described = catalog.describe_table(table)
        named = _NAMED.fullmatch(described.uri.removeprefix(f"{catalog.root_uri.rstrip('/')}/"))
        shown = {"location": described.uri, VERSION_SHOWN: str(dataset.version)}
        shown["is_managed_location"] = "true" if named else "false"
        if not named and described.uri.startswith("file:"):
            shown["location"] = unquote(described.uri)  # Spark reads the path of a LOCATION literally
        if described.managed:
            shown[STORE_SHOWN] = directory_of(catalog).commits.rows.url
        super().__init__(jvm, name, dataset.schema, {**described.properties, **shown})
        self._catalog = catalog
        self._table = table
        self._dataset = dataset
        self._streams = streams
        self._branch = branch

    def id(self) -> str | None:
        return self._properties["location"]

    def version(self) -> str | None:
        return str(self._dataset.version)

    def metadataColumns(self) -> Any:
        columns = [MetadataColumn(self._jvm, *column) for column in metadata_columns(self._dataset).items()]
        return self._jvm.array(CATALOG + "MetadataColumn", columns)

    def canRenameConflictingMetadataColumns(self) -> bool:
        return False

    def newScanBuilder(self, options: Any) -> Any:
        snapshot = self._snapshot(self._dataset, is_branch=self._branch is not None and self._branch.exists)
        stream = partial(self._streams.read, self._table) if snapshot.branch is None else self._no_stream
        options = given_options(options)
        statistics = stored(self._properties)
        columns = self._columns, self._schema
        return ScanBuilder(self._jvm, self._name, self._dataset, snapshot, *columns, options, stream, statistics)

    def _snapshot(self, dataset: Any, *, is_branch: bool) -> Snapshot:
        return Snapshot.of(
            self._catalog, dataset, self._branch.name if self._branch is not None and is_branch else None
        )

    def canDeleteWhere(self, predicates: Iterable[Any]) -> bool:
        return all(translated(predicate, self._dataset) is not None for predicate in predicates)

    def deleteWhere(self, predicates: Iterable[Any], options: Any = None) -> None:
        self._delete(self._where(predicates))

    def truncateTable(self, options: Any = None) -> bool:
        self._delete("true")
        return True

    def newRowLevelOperationBuilder(self, info: Any) -> OperationBuilder:
        return OperationBuilder(self._jvm, Operation(self._jvm, self, info.command()))

    def _delete(self, condition: str) -> None:
        def act(dataset: Any) -> Any:
            dataset.delete(condition)
            return dataset

        self._change(act)

    def _change(self, act: Callable[[Any], Any], *, exactly: bool = False) -> None:
        """Commit a change of rows, with ``exactly`` only as the version after this one."""
        version = self._dataset.version
        if self._branch is not None:
            self._branch.create(version)
        branch = None if self._branch is None else self._branch.name
        self._catalog.commit_change(self._table, act, after=version if exactly else None, branch=branch)

    def _changeable(self) -> tuple[Any, Snapshot]:
        """Return the version whose fragments a statement changes; a branch is created first if it is missing."""
        if self._branch is None or self._branch.exists:
            return self._dataset, self._snapshot(self._dataset, is_branch=self._branch is not None)
        version = self._dataset.version
        self._branch.create(version)
        dataset = self._catalog.open(self._table, version, branch=self._branch.name)
        return dataset, self._snapshot(dataset, is_branch=True)

    def _begin(self, mode: WriteMode) -> WritePlan:
        require_readable(self._stored.names)
        if self._branch is not None:
            return self._branch.begin(self._dataset.version, self._stored, mode)
        plan = self._catalog.begin_write(self._table, self._stored, mode.value)
        if plan.declared:  # an overwrite would create the missing table
            self._catalog.abandon_write(plan)
            raise TableNotFound(f"{self._name} was dropped during the statement; nothing was written")
        return plan

    def _commit(self, plan: WritePlan, fragments: list[str], after: str | None = None) -> None:
        if not fragments and plan.mode is WriteMode.APPEND:
            return  # no row is inserted, as by a MERGE that only inserts and finds all keys
        exactly = after is not None
        if exactly and after != str(plan.read_version):
            raise ConcurrentModification(
                f"{self._name}: the statement reads version {after}, and version {plan.read_version} was committed "
                "since; nothing was committed. Run the statement again."
            )
        if self._branch is not None:
            self._branch.commit(plan, fragments, exactly=exactly)
        else:
            self._catalog.commit_fragments(plan, fragments, exactly=exactly)

    def _where(self, predicates: Iterable[Any]) -> str:
        filters = [translated(predicate, self._dataset) for predicate in predicates]
        if None in filters:
            raise Unsupported(
                f"{self._name}: only Spark can evaluate the condition of the rows to delete or replace; nothing was "
                "changed. To replace them, run DELETE and INSERT, as two versions, or MERGE."
            )
        return conjunction([text for text in filters if text is not None]) or "true"

    def _replace(self, condition: str, fragments: list[str]) -> None:
        dataset, _ = self._changeable()
        changed, removed = matching(dataset, condition)
        commit_changes(
            self, FragmentChanges(dataset.version, added_fragments(fragments), changed, removed), exactly=True
        )

    def _no_stream(self, *_: Any) -> NoReturn:
        raise Unsupported(f"{self._name}: streams read and write the main history of a table, no branch")

    def _stream(self, info: Any, replaces: bool) -> Any:
        if self._branch is not None:
            self._no_stream()
        return self._streams.write(self._table, info, replaces=replaces)


class TagTable(SqlTable):
    """A tagged version, which cannot be written to."""

    class Java:
        implements = (CATALOG + "SupportsRead", CATALOG + "SupportsMetadataColumns")

    def capabilities(self) -> Any:
        return self._jvm.set([self._jvm.java(CATALOG + "TableCapability").BATCH_READ])


class StagedTable(_Table):
    """A table of CREATE or REPLACE … AS SELECT, invisible until its rows commit."""

    class Java:
        implements = (CATALOG + "StagedTable", CATALOG + "SupportsWrite")

    def __init__(
        self,
        jvm: Jvm,
        name: str,
        catalog: Catalog,
        table: ObjectId,
        schema: pa.Schema,
        properties: Mapping[str, str],
        location: str | None = None,
        *,
        replaces: bool,
    ) -> None:
        super().__init__(jvm, name, schema, properties)
        self._catalog = catalog
        self._table = table
        self._wanted = dict(properties)
        self._fragments: list[str] = []
        self._unknown = False
        self._replaces = replaces
        if replaces and any(self._changed_properties()):
            require_properties(catalog, table)
        mode = WriteMode.OVERWRITE if replaces else WriteMode.CREATE
        plan = catalog.begin_write(
            table,
            schema,
            mode.value,
            properties=None if replaces else properties,
            stable_row_ids=stated_row_ids(properties),
            location=location,
        )
        self._plan = attrs.evolve(plan, rules=rules_of(properties))

    def commitStagedChanges(self) -> None:
        try:
            self._catalog.commit_fragments(self._plan, self._fragments)
        except CommitUnknown:
            self._unknown = True
            raise
        if self._replaces:
            given, removed = self._changed_properties()
            if given or removed:
                self._catalog.alter_table(self._table, given, removed)

    def _changed_properties(self) -> tuple[dict[str, str], set[str]]:
        """Return the properties to set and to remove in the table that is replaced."""
        before = self._catalog.find_table(self._table).properties
        given = {name: text for name, text in self._wanted.items() if before.get(name) != text}
        return given, before.keys() - self._wanted.keys() - {STABLE_ROW_IDS}  # the table keeps its row ids

    def abortStagedChanges(self) -> None:
        """Abandon the write unless the outcome of its commit is unknown.

        Spark calls this after a failed query and after a failed commit.
        """
        if not self._unknown:
            self._catalog.abandon_write(self._plan)

    def _begin(self, mode: WriteMode) -> WritePlan:
        return self._plan

    def _commit(self, plan: WritePlan, fragments: list[str], after: str | None = None) -> None:
        self._fragments = fragments
