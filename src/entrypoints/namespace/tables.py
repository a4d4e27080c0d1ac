"""The operations on tables, apart from operations on their versions."""

from __future__ import annotations

import warnings
from contextlib import suppress
from itertools import islice
from typing import Any

import lance_namespace as api
import pyarrow as pa
from lance_namespace_urllib3_client.models.table_basic_stats import TableBasicStats

from lancekeep.adapters.lance.callbacks import checked_limit
from lancekeep.domain import errors
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.table import Table
from lancekeep.entrypoints.namespace.arrow_schema import json_schema
from lancekeep.entrypoints.namespace.boundary import operation
from lancekeep.entrypoints.namespace.operations import Operations, choice, id_of, keep_of
from lancekeep.entrypoints.namespace.streams import Incoming
from lancekeep.ports.data_files import Rows
from lancekeep.ports.table_engine import VersionDetails


class TableOperations(Operations):
    """Declare, create, register, describe, list, rename and drop tables."""

    @operation
    def list_tables(self, request: api.ListTablesRequest) -> api.ListTablesResponse:
        names, token = self._parts.tables.page(
            id_of(request),
            request.page_token,
            checked_limit(request.limit),
            include_declared=request.include_declared is not False,
        )
        return api.ListTablesResponse(tables=names, page_token=token)

    @operation
    def list_all_tables(self, request: api.ListTablesRequest) -> api.ListTablesResponse:
        """List full identifiers in string form, joined by ``$``."""
        if request.id:
            raise errors.InvalidInput("list_all_tables lists the whole catalog; give no id, or use list_tables")
        limit = checked_limit(request.limit)
        tables = self._catalog.list_all_tables(
            request.page_token, include_declared=request.include_declared is not False
        )
        ids = list(islice(tables, limit and limit + 1))
        token = ids[limit - 1].key if limit and len(ids) > limit else None
        return api.ListTablesResponse(tables=[table.key for table in ids[:limit]], page_token=token)

    @operation
    def declare_table(self, request: api.DeclareTableRequest) -> api.DeclareTableResponse:
        table = self._catalog.declare_table(id_of(request), request.properties, location=request.location)
        return self._declared(table, request)

    def create_empty_table(self, request: api.CreateEmptyTableRequest) -> api.CreateEmptyTableResponse:
        """Deprecated: `declare_table` under its old name."""
        warnings.warn("create_empty_table is deprecated, use declare_table instead", DeprecationWarning, stacklevel=2)
        return self._create_empty_table(request)

    @operation
    def _create_empty_table(self, request: api.CreateEmptyTableRequest) -> api.CreateEmptyTableResponse:
        _refuse_storage_options(request)
        object_id = id_of(request)
        mode = choice(request.mode, "mode", "create", "exist_ok")
        try:
            table = self._catalog.declare_table(object_id, request.properties)
        except errors.TableAlreadyExists as error:
            table = self._existing(object_id, mode, error)
        return api.CreateEmptyTableResponse(
            location=self._parts.places.uri(table),
            storage_options=self._storage_options(None),
            properties=dict(table.properties),
        )

    @operation
    def create_table(self, request: api.CreateTableRequest, request_data: bytes) -> api.CreateTableResponse:
        """Create a table, or with ``overwrite`` commit the data as its next version.

        ``overwrite`` replaces the properties, and removes them if the request has none, as the native namespace does.
        """
        return self._create_table(request, Incoming.of_bytes(request_data))

    @operation
    def create_table_stream(
        self, request: api.CreateTableRequest, rows: pa.RecordBatchReader | Rows
    ) -> api.CreateTableResponse:
        """Create a table of a stream of batches, in bounded memory; see `create_table`."""
        return self._create_table(request, Incoming(rows))

    def _create_table(self, request: api.CreateTableRequest, data: Incoming) -> api.CreateTableResponse:
        _refuse_storage_options(request)
        mode = choice(request.mode, "mode", "create", "exist_ok", "overwrite")
        object_id = id_of(request)
        overwrites = mode == "overwrite"
        properties = request.properties or ({} if overwrites else None)
        version: int | None
        try:
            write_mode = "overwrite" if overwrites else "create"
            with data.blamed() as rows:
                version = self._catalog.write(object_id, rows, write_mode, properties=properties).version
            table = self._catalog.find_table(object_id)
        except errors.TableAlreadyExists as error:
            table = self._existing(object_id, mode, error)
            version = self._latest(table, None)
        return api.CreateTableResponse(
            location=self._parts.places.uri(table),
            version=version,
            storage_options=self._storage_options(None),
            properties=dict(table.properties),
        )

    @operation
    def describe_table(self, request: api.DescribeTableRequest) -> api.DescribeTableResponse:
        """Describe a table.

        ``load_detailed_metadata`` adds the schema and statistics of the requested version, tag or branch.
        """
        object_id = id_of(request)
        table = self._parts.tables.find_in_namespace(object_id)
        self._root(table, None)  # the caller reads at this location, so no symbolic link may lead to it
        version, tag, branch = request.version, request.tag, request.branch
        if tag is not None and (version is not None or branch is not None):
            raise errors.InvalidInput("a tag names a version: give no version or branch with it")
        version = self._chosen(request, version, branch, tag)
        response = api.DescribeTableResponse(
            table=table.id.name,
            namespace=list(table.id.parent.names),
            location=self._parts.places.uri(table),
            storage_options=self._storage_options(request.vend_credentials),
            properties=dict(table.properties),
            managed_versioning=self._parts.ledger.manages(table) or None,
        )
        if request.with_table_uri:
            response.table_uri = self._parts.places.uri(table)
        if request.check_declared or request.load_detailed_metadata:
            has_version = self._latest(table, None) is not None
            response.is_only_declared = not has_version and not self._parts.places.is_foreign(table)
        if request.load_detailed_metadata:
            if has_version or version is not None or tag is not None or branch is not None:
                _fill_in(response, self._catalog.versions.describe(object_id, version, tag=tag, branch=branch))
        elif tag is not None:
            response.version = self._catalog.open(object_id, tag=tag).version
        elif version is not None:
            response.version = self._version(table, branch, version).version
        elif branch is not None:
            response.version = self._latest(table, branch)
            if response.version is None:
                self._require_branch(table, branch)
        return response

    @operation
    def table_exists(self, request: api.TableExistsRequest) -> api.TableExistsResponse:
        table = self._parts.tables.find_in_namespace(id_of(request))
        if request.version is not None:
            self._version(table, None, request.version)
        return api.TableExistsResponse()

    @operation
    def register_table(self, request: api.RegisterTableRequest) -> api.RegisterTableResponse:
        """Register a table.

        The location of the answer is relative to the root, as in the native namespace.
        """
        overwrite = choice(request.mode, "mode", "create", "overwrite") == "overwrite"
        table = self._catalog.register_table(id_of(request), request.location, request.properties, overwrite=overwrite)
        return api.RegisterTableResponse(location=table.location, properties=dict(table.properties))

    @operation
    def deregister_table(self, request: api.DeregisterTableRequest) -> api.DeregisterTableResponse:
        return self._deregistered(self._catalog.deregister_table(id_of(request)))

    @operation
    def drop_table(self, request: api.DropTableRequest) -> api.DropTableResponse:
        """Drop a table.

        The entry ``lancekeep.keep`` of the context has the form of the property ``lancekeep.undrop``.
        """
        table = self._catalog.drop_table(id_of(request), keep=keep_of(request))
        return api.DropTableResponse(
            id=list(table.id.names), location=self._parts.places.uri(table), properties=dict(table.properties)
        )

    @operation
    def rename_table(self, request: api.RenameTableRequest) -> api.RenameTableResponse:
        """Rename a table.

        ``new_namespace_id``: an empty list is the root. Without it, the table stays in its namespace.
        """
        source = id_of(request)
        namespace = source.parent if request.new_namespace_id is None else ObjectId.of(request.new_namespace_id)
        self._catalog.rename_table(source, namespace.child(request.new_table_name))
        return api.RenameTableResponse()

    def _declared(self, table: Table, request: api.DeclareTableRequest) -> api.DeclareTableResponse:
        return api.DeclareTableResponse(
            location=self._parts.places.uri(table),
            storage_options=self._storage_options(request.vend_credentials),
            properties=dict(table.properties),
            managed_versioning=self._parts.ledger.manages(table) or None,
        )

    def _deregistered(self, table: Table) -> api.DeregisterTableResponse:
        return api.DeregisterTableResponse(
            id=list(table.id.names), location=self._parts.places.uri(table), properties=dict(table.properties)
        )

    def _existing(self, object_id: ObjectId, mode: str, error: errors.TableAlreadyExists) -> Table:
        """Return the existing table if the mode allows it; else raise ``error``."""
        if mode == "exist_ok":
            with suppress(errors.TableNotFound):
                return self._catalog.find_table(object_id)
        raise error


def _refuse_storage_options(request: Any) -> None:
    if request.storage_options:
        raise errors.InvalidInput("storage_options of one request are not supported; give them to the namespace")


def _fill_in(response: api.DescribeTableResponse, details: VersionDetails) -> None:
    response.version = details.version
    response.var_schema = json_schema(details.schema)
    response.stats = TableBasicStats(num_deleted_rows=details.deleted_rows, num_fragments=details.fragments)
    response.metadata = {"total_rows": str(details.rows)}
