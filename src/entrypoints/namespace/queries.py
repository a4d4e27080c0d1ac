"""Query requests of the namespace interface as queries of the application."""

from __future__ import annotations

import lance_namespace as api
from lance_namespace_urllib3_client.models.query_table_request_columns import QueryTableRequestColumns
from lance_namespace_urllib3_client.models.query_table_request_full_text_query import QueryTableRequestFullTextQuery
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector

from lancekeep.domain.errors import InvalidInput
from lancekeep.ports.rows import Query, VectorSearch

VECTOR_COLUMN = "vector"
"""The column of a vector search that names none, as the native namespace has it."""

DEFAULT_K = 10
"""The number of rows of a vector search with ``k`` 0, as the native namespace has it."""

_METRICS = {
    "l2": "l2",
    "euclidean": "l2",
    "cosine": "cosine",
    "dot": "dot",
    "inner_product": "dot",
    "hamming": "hamming",
}


def query_of(request: api.QueryTableRequest | api.AnalyzeTableQueryPlanRequest) -> Query:
    """Return the query of a request.

    Fields that only a vector search has are refused without one. ``k`` 0 is no limit for a query that searches no
    vector.

    Raises:
        InvalidInput: A field is malformed, or would have no effect.
    """
    vectors = _vectors(request.vector)
    if not vectors:
        _refuse_without_vector(request)
    text, text_columns = _text(request.full_text_query)
    return Query(
        columns=_columns(request.columns),
        condition=request.filter or None,
        search=_search(request, vectors) if vectors else None,
        text=text,
        text_columns=text_columns,
        limit=None if vectors else request.k or None,
        offset=request.offset or None,
        prefilter=request.prefilter is True,
        fast=request.fast_search is True,
        row_ids=request.with_row_id is True,
    )


def _search(
    request: api.QueryTableRequest | api.AnalyzeTableQueryPlanRequest, vectors: list[list[float]]
) -> VectorSearch:
    least, most = request.minimum_nprobes, request.maximum_nprobes
    if least is None and most is None:
        least = most = request.nprobes
    bounds = request.lower_bound, request.upper_bound
    return VectorSearch(
        column=request.vector_column or VECTOR_COLUMN,
        vectors=vectors,
        k=request.k or DEFAULT_K,
        metric=_metric(request.distance_type),
        min_probes=least,
        max_probes=most,
        refine_factor=request.refine_factor,
        effort=request.ef,
        range=None if bounds == (None, None) else bounds,
        use_index=request.bypass_vector_index is not True,
    )


def _vectors(given: QueryTableRequestVector) -> list[list[float]]:
    single, several = given.single_vector or [], given.multi_vector or []
    if single and several:
        raise InvalidInput("vector has both single_vector and multi_vector; give only one field")
    if several and not all(several):
        raise InvalidInput("multi_vector has an empty query vector; give each a number for every dimension")
    return [[float(number) for number in vector] for vector in ([single] if single else several)]


def _refuse_without_vector(request: api.QueryTableRequest | api.AnalyzeTableQueryPlanRequest) -> None:
    given = {
        name
        for name in (
            "vector_column",
            "distance_type",
            "nprobes",
            "minimum_nprobes",
            "maximum_nprobes",
            "refine_factor",
            "ef",
            "lower_bound",
            "upper_bound",
        )
        if getattr(request, name) is not None
    }
    if given:
        raise InvalidInput(f"{min(given)} belongs to a vector search; give a query vector, or leave it out")


def _columns(given: QueryTableRequestColumns | None) -> list[str] | dict[str, str] | None:
    if given is None:
        return None
    names, aliases = given.column_names or None, given.column_aliases or None
    if names and aliases:
        raise InvalidInput("columns has both column_names and column_aliases; give only one field")
    return names or aliases


def _text(given: QueryTableRequestFullTextQuery | None) -> tuple[str | dict[str, object] | None, list[str] | None]:
    if given is None or (given.string_query is None and given.structured_query is None):
        return None, None
    if given.string_query is not None and given.structured_query is not None:
        raise InvalidInput("full_text_query has both string_query and structured_query; give only one field")
    if given.string_query is not None:
        return given.string_query.query, given.string_query.columns or None
    assert given.structured_query is not None
    return given.structured_query.query.to_dict(), None


def _metric(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        return _METRICS[name.lower()]
    except KeyError:
        raise InvalidInput(f"unknown distance_type {name!r}; choose {', '.join(sorted(set(_METRICS)))}") from None
