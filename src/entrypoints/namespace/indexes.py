"""The operations on indexes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import lance_namespace as api
from lance_namespace_urllib3_client.models.index_content import IndexContent

from lancekeep.adapters.lance.callbacks import checked_limit
from lancekeep.domain.catalog import page
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.namespace.boundary import operation
from lancekeep.entrypoints.namespace.operations import Operations, branch_of, choice, id_of
from lancekeep.ports.table_structure import Index, NewIndex

_IVF = {"distance_type", "num_partitions", "sample_rate", "max_iterations", "target_partition_size"}
_PQ = {"num_sub_vectors", "num_bits"}
_HNSW = {"m", "ef_construction"}

VECTOR: Mapping[str, Collection[str]] = {
    "IVF_FLAT": _IVF,
    "IVF_SQ": _IVF | {"num_bits"},
    "IVF_PQ": _IVF | _PQ,
    "IVF_RQ": _IVF | {"num_bits"},
    "IVF_HNSW_FLAT": _IVF | _HNSW,
    "IVF_HNSW_SQ": _IVF | _HNSW | {"num_bits"},
    "IVF_HNSW_PQ": _IVF | _HNSW | _PQ,
}
"""The types of vector indexes, with their parameters."""

_TEXT = {
    "with_position",
    "base_tokenizer",
    "language",
    "max_token_length",
    "lower_case",
    "stem",
    "remove_stop_words",
    "ascii_folding",
}

SCALAR: Mapping[str, Collection[str]] = {
    "BTREE": (),
    "BITMAP": (),
    "LABEL_LIST": (),
    "NGRAM": (),
    "ZONEMAP": (),
    "BLOOMFILTER": (),
    "INVERTED": _TEXT,
    "FTS": _TEXT,
}
"""The types of scalar indexes, with their parameters."""

_DISTANCES = ("l2", "cosine", "dot", "hamming")
_PARAMETERS = sorted(set().union(*VECTOR.values(), *SCALAR.values()))


class IndexOperations(Operations):
    """Create, list, describe and drop indexes.

    An index is built before the operation returns, so its status is ``SUCCEEDED``. ``transaction_id`` is the id of the
    table's transaction.
    """

    @operation
    def create_table_index(self, request: api.CreateTableIndexRequest) -> api.CreateTableIndexResponse:
        """Create a vector or scalar index; refuse parameters of other types."""
        return api.CreateTableIndexResponse(transaction_id=self._create_index(request, {**VECTOR, **SCALAR}))

    @operation
    def create_table_scalar_index(self, request: api.CreateTableIndexRequest) -> api.CreateTableScalarIndexResponse:
        """Create a scalar index."""
        return api.CreateTableScalarIndexResponse(transaction_id=self._create_index(request, SCALAR))

    @operation
    def list_table_indices(self, request: api.ListTableIndicesRequest) -> api.ListTableIndicesResponse:
        """List indexes by name; the page token is the last name of a page."""
        found = self._catalog.structure.indexes(id_of(request), request.version, branch_of(request))
        indexes = {index.name: index for index in found}
        names, token = page(sorted(indexes), request.page_token or None, checked_limit(request.limit))
        return api.ListTableIndicesResponse(indexes=[_content(indexes[name]) for name in names], page_token=token)

    @operation
    def describe_table_index_stats(
        self, request: api.DescribeTableIndexStatsRequest
    ) -> api.DescribeTableIndexStatsResponse:
        found = self._catalog.structure.index_statistics(
            id_of(request), _named(request.index_name), request.version, branch_of(request)
        )
        return api.DescribeTableIndexStatsResponse(
            distance_type=found.distance,
            index_type=found.kind,
            num_indexed_rows=found.indexed_rows,
            num_unindexed_rows=found.unindexed_rows,
            num_indices=found.segments,
        )

    @operation
    def drop_table_index(self, request: api.DropTableIndexRequest) -> api.DropTableIndexResponse:
        dropped = self._catalog.structure.drop_index(id_of(request), _named(request.index_name), branch_of(request))
        return api.DropTableIndexResponse(transaction_id=dropped.transaction)

    def _create_index(self, request: api.CreateTableIndexRequest, kinds: Mapping[str, Collection[str]]) -> str | None:
        index = _new_index(request, kinds)
        return self._catalog.structure.create_index(id_of(request), index, branch_of(request)).transaction


def _new_index(request: api.CreateTableIndexRequest, kinds: Mapping[str, Collection[str]]) -> NewIndex:
    kind = request.index_type.upper()
    if kind not in kinds:
        raise InvalidInput(f"index_type is {request.index_type!r}; choose {', '.join(kinds)}")
    given = {name: value for name in _PARAMETERS if (value := getattr(request, name)) is not None}
    foreign = [name for name in given if name not in kinds[kind]]
    if foreign:
        takes = f"takes {', '.join(sorted(kinds[kind]))}" if kinds[kind] else "takes no parameters"
        raise InvalidInput(f"{foreign[0]} means nothing to an index of type {kind}, which {takes}")
    if "distance_type" in given:
        given["distance_type"] = choice(given["distance_type"], "distance_type", *_DISTANCES)
    if request.name == "":
        raise InvalidInput("the name of an index is empty; leave it out for a name after the column")
    return NewIndex(request.column, kind, request.name, given)


def _content(index: Index) -> IndexContent:
    return IndexContent(
        index_name=index.name,
        index_uuid=index.uuid,
        columns=list(index.columns),
        status="SUCCEEDED",
        index_type=index.kind,
        type_url=index.type_url,
        num_indexed_rows=index.indexed_rows,
        num_unindexed_rows=index.unindexed_rows,
        size_bytes=index.size,
        num_segments=index.segments,
        created_at=index.created,
        index_version=index.format_version,
        index_details=json.dumps(index.details, default=str),
    )


def _named(name: Any) -> str:
    if not name:
        raise InvalidInput("index_name is missing; name the index")
    return str(name)
