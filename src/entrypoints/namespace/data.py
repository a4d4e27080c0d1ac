"""The operations on the rows of tables.

A ``*_stream`` method takes or returns a ``pyarrow.RecordBatchReader`` and works in bounded memory; it also takes
`Rows` that have been validated. The method of the
interface beside it takes an Arrow IPC stream or returns an Arrow IPC file as bytes.
"""

from __future__ import annotations

import re

import lance_namespace as api
import pyarrow as pa
from lance_namespace_urllib3_client.models.fragment_stats import FragmentStats
from lance_namespace_urllib3_client.models.fragment_summary import FragmentSummary

from lancekeep.application.rows.table_data import PATIENCE
from lancekeep.domain.commit import Changed
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.entrypoints.namespace.boundary import operation
from lancekeep.entrypoints.namespace.operations import Operations, branch_of, choice, id_of
from lancekeep.entrypoints.namespace.queries import query_of
from lancekeep.entrypoints.namespace.streams import Incoming, file_of, translated
from lancekeep.ports.data_files import Rows
from lancekeep.ports.rows import MergeRule

SMALL_FRAGMENT = 1024 * 1024
"""The rows below which a fragment counts as small: the target of a compaction."""

_TIMEOUT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class DataOperations(Operations):
    """Insert, merge, update, delete, count, query and restore rows."""

    # -- changes ------------------------------------------------------------------------------------------------

    @operation
    def insert_into_table(
        self, request: api.InsertIntoTableRequest, request_data: bytes
    ) -> api.InsertIntoTableResponse:
        return self._insert(request, Incoming.of_bytes(request_data))

    @operation
    def insert_stream(
        self, request: api.InsertIntoTableRequest, rows: pa.RecordBatchReader | Rows
    ) -> api.InsertIntoTableResponse:
        """Insert a stream of batches; see `insert_into_table`."""
        return self._insert(request, Incoming(rows))

    @operation
    def merge_insert_into_table(
        self, request: api.MergeInsertIntoTableRequest, request_data: bytes
    ) -> api.MergeInsertIntoTableResponse:
        """Merge rows by key.

        As in the native namespace, every clause is off by default, and a filter implies its clause. ``timeout`` limits
        the time in which attempts begin.
        """
        return self._merge(request, Incoming.of_bytes(request_data))

    @operation
    def merge_insert_stream(
        self, request: api.MergeInsertIntoTableRequest, rows: pa.RecordBatchReader | Rows
    ) -> api.MergeInsertIntoTableResponse:
        """Merge a stream of batches; see `merge_insert_into_table`."""
        return self._merge(request, Incoming(rows))

    @operation
    def update_table(self, request: api.UpdateTableRequest) -> api.UpdateTableResponse:
        if request.properties is not None:
            raise Unsupported(
                "update_table cannot change properties together with rows in one step; nothing was updated. Leave "
                "properties out"
            )
        values = dict(request.updates)
        if len(values) != len(request.updates) or not values:
            raise InvalidInput("updates sets no column, or sets a column twice; give each column one expression")
        object_id = id_of(request)
        change, updated = self._catalog.data.update(
            object_id, values, request.predicate or None, branch=branch_of(request)
        )
        return api.UpdateTableResponse(
            transaction_id=change.transaction,
            updated_rows=updated,
            version=change.version,
            properties=dict(self._catalog.find_table(object_id).properties),
        )

    @operation
    def delete_from_table(self, request: api.DeleteFromTableRequest) -> api.DeleteFromTableResponse:
        change = self._catalog.data.delete(id_of(request), request.predicate, branch=branch_of(request))
        return api.DeleteFromTableResponse(transaction_id=change.transaction, version=change.version)

    @operation
    def restore_table(self, request: api.RestoreTableRequest) -> api.RestoreTableResponse:
        """Commit a new version with the contents of an earlier version."""
        change = self._catalog.versions.restore(id_of(request), request.version, branch=branch_of(request))
        return api.RestoreTableResponse(transaction_id=change.transaction)

    def _insert(self, request: api.InsertIntoTableRequest, data: Incoming) -> api.InsertIntoTableResponse:
        mode = choice(request.mode, "mode", "append", "overwrite")
        change = self._write(request, data, overwrite=mode == "overwrite")
        return api.InsertIntoTableResponse(
            transaction_id=change.transaction, num_inserted_rows=data.rows, version=change.version
        )

    def _write(
        self,
        request: api.InsertIntoTableRequest | api.MergeInsertIntoTableRequest,
        data: Incoming,
        *,
        overwrite: bool = False,
    ) -> Changed:
        with data.blamed() as rows:
            return self._catalog.data.insert(id_of(request), rows, overwrite=overwrite, branch=branch_of(request))

    def _merge(self, request: api.MergeInsertIntoTableRequest, data: Incoming) -> api.MergeInsertIntoTableResponse:
        if not request.on:
            raise InvalidInput("on names no column; name the key columns by which rows match")
        rule = MergeRule(
            on=request.on,
            update=request.when_matched_update_all is True or request.when_matched_update_all_filt is not None,
            update_if=request.when_matched_update_all_filt,
            insert=request.when_not_matched_insert_all is True,
            delete=request.when_not_matched_by_source_delete is True
            or request.when_not_matched_by_source_delete_filt is not None,
            delete_if=request.when_not_matched_by_source_delete_filt,
            use_index=request.use_index is not False,
        )
        patience = PATIENCE if request.timeout is None else _seconds(request.timeout)
        with data.blamed() as rows:
            change, counts = self._catalog.data.merge(
                id_of(request), rows, rule, branch=branch_of(request), patience=patience
            )
        return api.MergeInsertIntoTableResponse(
            transaction_id=change.transaction,
            num_updated_rows=counts.updated,
            num_inserted_rows=counts.inserted,
            num_deleted_rows=counts.deleted,
            version=change.version,
        )

    # -- queries ------------------------------------------------------------------------------------------------

    @operation
    def query_table(self, request: api.QueryTableRequest) -> api.QueryTableResponse:
        return api.QueryTableResponse(data=file_of(self._query(request)))

    @operation
    def query_stream(self, request: api.QueryTableRequest) -> pa.RecordBatchReader:
        """Return the rows of a query as a stream of batches; see `query_table`."""
        return translated(self._query(request))

    @operation
    def count_table_rows(self, request: api.CountTableRowsRequest) -> api.CountTableRowsResponse:
        branch = branch_of(request)
        version = self._chosen(request, request.version, branch)
        count = self._catalog.data.count(id_of(request), request.predicate or None, version=version, branch=branch)
        return api.CountTableRowsResponse(count=count)

    @operation
    def explain_table_query_plan(self, request: api.ExplainTableQueryPlanRequest) -> str:
        query = request.query
        branches = {branch for branch in (branch_of(request), branch_of(query)) if branch is not None}
        if query.id is not None and query.id != request.id:
            raise InvalidInput("the query is for another table; give the id of the request, or none")
        if len(branches) > 1:
            raise InvalidInput("the query is for another branch; give the branch of the request, or none")
        branch = next(iter(branches), None)
        return self._catalog.data.explain(
            id_of(request),
            query_of(query),
            version=self._chosen(request, query.version, branch),
            branch=branch,
            verbose=request.verbose is True,
        )

    @operation
    def analyze_table_query_plan(self, request: api.AnalyzeTableQueryPlanRequest) -> str:
        branch = branch_of(request)
        version = self._chosen(request, request.version, branch)
        return self._catalog.data.analyze(id_of(request), query_of(request), version=version, branch=branch)

    @operation
    def get_table_stats(self, request: api.GetTableStatsRequest) -> api.GetTableStatsResponse:
        """Return statistics of the rows that are not deleted.

        The native namespace also counts deleted ones.
        """
        stats = self._catalog.data.stats(id_of(request), branch=branch_of(request))
        lengths = sorted(stats.fragments)
        return api.GetTableStatsResponse(
            total_bytes=stats.size,
            num_rows=sum(lengths),
            num_indices=stats.indices,
            fragment_stats=FragmentStats(
                num_fragments=len(lengths),
                num_small_fragments=sum(length < SMALL_FRAGMENT for length in lengths),
                lengths=_summary(lengths),
            ),
        )

    def _query(self, request: api.QueryTableRequest) -> pa.RecordBatchReader:
        branch = branch_of(request)
        version = self._chosen(request, request.version, branch)
        return self._catalog.data.query(id_of(request), query_of(request), version=version, branch=branch)


def _summary(lengths: list[int]) -> FragmentSummary:
    """Return the summary of sorted lengths; a percentile is an existing length, as in the native namespace."""
    if not lengths:
        return FragmentSummary(min=0, max=0, mean=0, p25=0, p50=0, p75=0, p99=0)
    p25, p50, p75, p99 = (lengths[int((len(lengths) - 1) * share)] for share in (0.25, 0.5, 0.75, 0.99))
    mean = sum(lengths) // len(lengths)
    return FragmentSummary(min=lengths[0], max=lengths[-1], mean=mean, p25=p25, p50=p50, p75=p75, p99=p99)


def _seconds(timeout: str) -> float:
    found = _TIMEOUT.fullmatch(timeout)
    if found is None:
        raise InvalidInput(f"{timeout[:40]!r} is not a timeout; give a number with ms, s, m or h, such as '30s'")
    return float(found[1]) * _SECONDS[found[2]]
