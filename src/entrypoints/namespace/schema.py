"""The operations on columns and on the metadata of schemas."""

from __future__ import annotations

from typing import Any

import lance_namespace as api
from lance_namespace_urllib3_client.models.add_columns_entry import AddColumnsEntry
from lance_namespace_urllib3_client.models.alter_columns_entry import AlterColumnsEntry

from lancekeep.application.partitions.arrow_json import type_of
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.entrypoints.namespace.boundary import operation
from lancekeep.entrypoints.namespace.operations import Operations, branch_of, id_of
from lancekeep.ports.table_structure import ColumnChange, FieldMetadata

_CLUSTER = (
    "concurrency",
    "intra_applier_concurrency",
    "min_checkpoint_size",
    "max_checkpoint_size",
    "batch_checkpoint_flush_interval_seconds",
    "read_version",
    "task_size",
    "num_frags",
    "checkpoint_size",
    "commit_granularity",
    "cluster",
    "manifest",
)
"""Fields of a backfill request that address a cluster of workers."""


class SchemaOperations(Operations):
    """Add, alter, drop and backfill columns; set metadata of schemas and fields.

    Every operation is one version of the table.
    """

    @operation
    def alter_table_add_columns(self, request: api.AlterTableAddColumnsRequest) -> api.AlterTableAddColumnsResponse:
        """Add columns.

        A column with ``expression`` gets its values now. A column with ``computed`` is null and keeps the expression;
        `alter_table_backfill_columns` fills a computed column. A request holds columns of one kind.
        """
        kinds = {_kind(entry) for entry in request.new_columns}
        if len(kinds) != 1:
            raise InvalidInput(
                f"new_columns holds {' and '.join(sorted(kinds)) or 'no column'}; a request adds columns of one kind, "
                "because they become one version"
            )
        [kind] = kinds
        names = [entry.name for entry in request.new_columns]
        if len(set(names)) < len(names):
            raise InvalidInput(f"new_columns names a column twice: {', '.join(names)}")
        expressions = {entry.name: str(getattr(entry, kind)) for entry in request.new_columns}
        structure = self._catalog.structure
        add = structure.add_columns if kind == "expression" else structure.declare_columns
        return api.AlterTableAddColumnsResponse(version=add(id_of(request), expressions, branch_of(request)).version)

    @operation
    def alter_table_alter_columns(
        self, request: api.AlterTableAlterColumnsRequest
    ) -> api.AlterTableAlterColumnsResponse:
        """Rename columns, or change their types or nullability."""
        if not request.alterations:
            raise InvalidInput("alterations is empty; give at least one")
        changes = [_change(entry) for entry in request.alterations]
        changed = self._catalog.structure.alter_columns(id_of(request), changes, branch_of(request))
        return api.AlterTableAlterColumnsResponse(version=changed.version)

    @operation
    def alter_table_drop_columns(self, request: api.AlterTableDropColumnsRequest) -> api.AlterTableDropColumnsResponse:
        if not request.columns:
            raise InvalidInput("columns is empty; name at least one")
        changed = self._catalog.structure.drop_columns(id_of(request), request.columns, branch_of(request))
        return api.AlterTableDropColumnsResponse(transaction_id=changed.transaction, version=changed.version)

    @operation
    def alter_table_backfill_columns(
        self, request: api.AlterTableBackfillColumnsRequest
    ) -> api.AlterTableBackfillColumnsResponse:
        """Compute a column by the expression that it was declared with.

        The rows are computed before the operation returns: by ``lancekeep.jobs.backfill`` if the namespace has a
        ``spark_master`` and the column is a whole column of the main history, otherwise in this process. ``job_id`` is
        the id of the table's transaction, or its version; `describe_transaction` describes both.
        """
        given = [name for name in _CLUSTER if getattr(request, name) is not None]
        if given:
            raise Unsupported(
                f"{given[0]} directs a cluster of workers that Lancekeep does not have; leave it out, or use "
                "lancekeep.jobs.backfill on Spark. Nothing was changed."
            )
        if self._spark_master is not None and branch_of(request) is None and "." not in request.column:
            return api.AlterTableBackfillColumnsResponse(job_id=str(self._filled_on_spark(self._spark_master, request)))
        changed = self._catalog.structure.fill_column(id_of(request), request.column, request.where, branch_of(request))
        return api.AlterTableBackfillColumnsResponse(job_id=changed.transaction or f"version {changed.version}")

    def _filled_on_spark(self, master: str, request: api.AlterTableBackfillColumnsRequest) -> int | None:
        """Compute a declared column as a Spark job, and return its version."""
        from lancekeep.jobs import backfill, session  # needs the extra [spark]

        expression = self._catalog.structure.expression(id_of(request), request.column)
        done = backfill(session(master), self._catalog, id_of(request), request.column, expression, where=request.where)
        return done.version

    @operation
    def update_table_schema_metadata(
        self, request: api.UpdateTableSchemaMetadataRequest
    ) -> api.UpdateTableSchemaMetadataResponse:
        """Set keys of the schema's metadata; other keys keep their values."""
        if not request.metadata:
            raise InvalidInput("metadata is empty; give at least one key")
        changed, metadata = self._catalog.structure.set_metadata(id_of(request), request.metadata, branch_of(request))
        return api.UpdateTableSchemaMetadataResponse(metadata=dict(metadata), transaction_id=changed.transaction)

    @operation
    def update_field_metadata(self, request: api.UpdateFieldMetadataRequest) -> api.UpdateFieldMetadataResponse:
        """Change the metadata of fields.

        Null removes a key; ``replace`` removes the keys that the request does not name.
        """
        if not request.updates:
            raise InvalidInput("updates is empty; give at least one")
        changes = [FieldMetadata(entry.path, entry.metadata, bool(entry.replace)) for entry in request.updates]
        changed, fields = self._catalog.structure.set_field_metadata(id_of(request), changes, branch_of(request))
        return api.UpdateFieldMetadataResponse(
            version=changed.version, fields={path: dict(metadata) for path, metadata in fields.items()}
        )


def _kind(entry: AddColumnsEntry) -> str:
    """Return the field that says how a column gets its values."""
    if entry.virtual_column is not None:
        raise Unsupported(
            f"the column {entry.name!r} is a virtual column: its function is a pickle in a container image, which "
            "Lancekeep does not run. Declare it as computed, or compute it with lancekeep.jobs.backfill. Nothing was "
            "changed."
        )
    given = [name for name in ("expression", "computed") if getattr(entry, name) is not None]
    if len(given) != 1:
        raise InvalidInput(f"the column {entry.name!r} needs either expression or computed; found {len(given)} of them")
    return given[0]


def _change(entry: AlterColumnsEntry) -> ColumnChange:
    if entry.virtual_column is not None:
        raise Unsupported(
            f"virtual_column of {entry.path!r}: Lancekeep has no virtual columns to alter. Nothing was changed."
        )
    if entry.rename is None and entry.data_type is None and entry.nullable is None:
        raise InvalidInput(f"the alteration of {entry.path!r} is empty; give rename, data_type or nullable")
    return ColumnChange(entry.path, entry.rename, _data_type(entry), entry.nullable)


def _data_type(entry: AlterColumnsEntry) -> Any:
    if entry.data_type is None:
        return None
    try:
        return type_of(entry.data_type)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"data_type of {entry.path!r} is no JsonArrowDataType, such as {{'type': 'int32'}}: {error}"
        ) from error
