"""The operations of callers who may read some columns and rows of tables alone.

The class has the operations of `lancekeep.domain.restrictions.RESTRICTED`. No other operation can be performed with a
restriction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import lance_namespace as api
import pyarrow as pa

from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.application.catalog import services_of
from lancekeep.application.rows.restricted_rows import UNREADABLE, RestrictedRows
from lancekeep.domain.errors import AccessDenied, Damaged
from lancekeep.domain.restrictions import RESTRICTED, Restriction
from lancekeep.entrypoints.namespace.arrow_schema import json_schema
from lancekeep.entrypoints.namespace.boundary import timestamp_of
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.namespace.operations import branch_of, id_of
from lancekeep.entrypoints.namespace.queries import query_of
from lancekeep.entrypoints.namespace.streams import translated

_SHOWN: Final = ("table", "namespace", "location", "table_uri", "version", "managed_versioning", "is_only_declared")
"""The fields of a description that say nothing of columns and rows."""


class RestrictedOperations:
    """Performs operations within restrictions.

    Args:
        namespace: The namespace.
    """

    def __init__(self, namespace: CatalogNamespace) -> None:
        self._namespace = namespace
        self._catalog = namespace.catalog
        services = services_of(self._catalog)
        self._rows = RestrictedRows(services.writes, services.engine)

    @translating
    def perform(self, operation: str, request: Any, restriction: Restriction) -> Any:
        """Perform an operation within a restriction.

        Raises:
            AccessDenied: The operation, or what the request asks for, shows more than the restriction permits.
        """
        method: Callable[[Any, Restriction], Any] | None = (
            getattr(self, f"_{operation}") if operation in RESTRICTED else None
        )
        if method is None:
            raise AccessDenied(f"{operation} shows more than columns and rows; it needs a grant without a restriction")
        try:
            return method(request, restriction)
        except Exception as error:
            if isinstance(error, Damaged) or isinstance(error.__cause__, Damaged):
                raise Damaged(UNREADABLE) from error
            raise

    def _query_table(self, request: api.QueryTableRequest, restriction: Restriction) -> pa.RecordBatchReader:
        version, branch = self._version(request), branch_of(request)
        return translated(self._rows.query(id_of(request), query_of(request), restriction, version, branch))

    def _count_table_rows(
        self, request: api.CountTableRowsRequest, restriction: Restriction
    ) -> api.CountTableRowsResponse:
        version, branch = self._version(request), branch_of(request)
        count = self._rows.count(id_of(request), request.predicate or None, restriction, version, branch)
        return api.CountTableRowsResponse(count=count)

    def _describe_table(self, request: api.DescribeTableRequest, restriction: Restriction) -> api.DescribeTableResponse:
        if request.vend_credentials:
            raise AccessDenied(
                f"you may read some columns or rows of the table {id_of(request)} alone, and credentials would read "
                "all of its files; leave vend_credentials out, and query the table through the server"
            )
        found = self._namespace.describe_table(
            request.model_copy(
                update={
                    "load_detailed_metadata": False,
                    "check_declared": request.check_declared or request.load_detailed_metadata,
                }
            )
        )
        answer = api.DescribeTableResponse(**{name: getattr(found, name) for name in _SHOWN})
        if not request.load_detailed_metadata or (found.is_only_declared and found.version is None):
            return answer
        branch = branch_of(request)
        if request.tag is not None:
            branch = self._catalog.tags.get(id_of(request), request.tag).branch
        version, schema = self._rows.schema(id_of(request), restriction, found.version, branch)
        return answer.model_copy(update={"version": version, "var_schema": json_schema(schema)})

    def _table_exists(self, request: api.TableExistsRequest, _: Restriction) -> api.TableExistsResponse:
        return self._namespace.table_exists(request)

    def _get_table_tag_version(
        self, request: api.GetTableTagVersionRequest, _: Restriction
    ) -> api.GetTableTagVersionResponse:
        return self._namespace.get_table_tag_version(request)

    def _describe_namespace(
        self, request: api.DescribeNamespaceRequest, _: Restriction
    ) -> api.DescribeNamespaceResponse:
        self._namespace.describe_namespace(request)
        return api.DescribeNamespaceResponse()

    def _namespace_exists(self, request: api.NamespaceExistsRequest, _: Restriction) -> api.NamespaceExistsResponse:
        return self._namespace.namespace_exists(request)

    def _version(self, request: Any) -> int | None:
        """Return the version that a request selects; None for the latest."""
        if timestamp_of(request) is None:
            version: int | None = request.version
            return version
        described = self._namespace.describe_table(
            api.DescribeTableRequest(
                id=request.id, version=request.version, branch=branch_of(request), context=request.context
            )
        )
        return described.version
