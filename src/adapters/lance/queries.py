"""Queries as scanners of pylance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.adapters.lance.batches import READ_AHEAD, batch_rows
from lancekeep.adapters.lance.native_errors import query_error
from lancekeep.adapters.lance.panics import panics_translated
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.expressions import require_bounded
from lancekeep.native import compute as pc
from lancekeep.native import fts
from lancekeep.ports.rows import Query, VectorSearch

_ROW_ID = "_rowid"
_RELEVANCE = "_relevance_score"
_SCORES = ("_distance", "_score")
_RANK_CONSTANT = 60
"""The constant of reciprocal rank fusion, as lancedb has it."""


def is_hybrid(query: Query) -> bool:
    """Return whether a query is both a vector search and a full-text query."""
    return query.search is not None and query.text is not None


def scanner_of(dataset: Any, query: Query) -> Any:
    """Return the scanner of a query, which is not hybrid."""
    from lance.dataset import ScannerBuilder  # a function of the name `lance.dataset` hides the module

    builder = ScannerBuilder(dataset)
    columns = query.columns.values() if isinstance(query.columns, Mapping) else ()
    require_bounded(query.condition, *columns)
    if query.columns is not None:
        builder.columns(_with_score(dataset, query))
    if query.condition is not None:
        builder.filter(query.condition)
    if query.search is not None:
        _search(builder, query.search)
    if query.text is not None:
        text = query.text if isinstance(query.text, str) else _Structured(dataset).query(query.text)
        builder.full_text_search(text, None if query.text_columns is None else list(query.text_columns))
    if query.fragments is not None:
        builder.with_fragments([dataset.get_fragment(number) for number in query.fragments])
    if not query.indexed:
        builder.use_scalar_index(False)
    builder.limit(query.limit).offset(query.offset)
    builder.blob_handling("all_binary" if query.bytes_of_blobs else None)
    return builder.prefilter(query.prefilter).fast_search(query.fast).with_row_id(query.row_ids).to_scanner()


def _with_score(dataset: Any, query: Query) -> dict[str, str] | list[str]:
    """Return the columns of a search with its score, which pylance would add with a line on the process's stderr."""
    assert query.columns is not None
    is_search = query.search is not None or query.text is not None
    score = _SCORES[query.search is None]
    is_added = is_search and score not in query.columns and score not in dataset.schema.names
    if isinstance(query.columns, Mapping):
        return {**query.columns, score: score} if is_added else dict(query.columns)
    return [*query.columns, score] if is_added else list(query.columns)


def streamed(dataset: Any, query: Query) -> pa.RecordBatchReader:
    """Return the rows of a query as a stream with the errors of the port."""
    with translated(dataset):
        reader = _fused(dataset, query) if is_hybrid(query) else scanner_of(dataset, query).to_reader()
        return pa.RecordBatchReader.from_batches(reader.schema, _translated_batches(dataset, reader))


def streamed_fragments(
    dataset: Any, ids: Sequence[int], columns: Sequence[str], metadata: Sequence[str]
) -> pa.RecordBatchReader:
    """Return the rows of fragments as a stream, with few batches in memory."""
    with translated(dataset):
        parts = [dataset.get_fragment(number) for number in ids]
        scanner = dataset.scanner(
            columns=[*columns, *(name for name in metadata if name != _ROW_ID)],
            fragments=parts,
            with_row_id=_ROW_ID in metadata,
            blob_handling="all_binary",
            batch_size=batch_rows(part.metadata for part in parts),
            **READ_AHEAD,
        )
        reader = scanner.to_reader() if parts else pa.RecordBatchReader.from_batches(scanner.projected_schema, [])
        return pa.RecordBatchReader.from_batches(reader.schema, _translated_batches(dataset, reader))


def plans(dataset: Any, query: Query) -> list[tuple[str, Any]]:
    """Return the title and scanner of each part of a query; several if it is hybrid."""
    if not is_hybrid(query):
        return [("", scanner_of(dataset, query))]
    vectors, texts = _halves(query)
    return [
        ("vector search", scanner_of(dataset, vectors)),
        ("full-text search", scanner_of(dataset, texts)),
    ]


@contextmanager
def translated(dataset: Any) -> Iterator[None]:
    """Raise errors of a native query as Lancekeep errors."""
    try:
        with panics_translated(str(dataset.uri)):
            yield
    except LancekeepError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, RuntimeError) as error:
        raise query_error(str(dataset.uri), error) from error


def _translated_batches(dataset: Any, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    with translated(dataset):
        yield from reader


def _search(builder: Any, search: VectorSearch) -> None:
    single = len(search.vectors) == 1
    builder.nearest(
        search.column,
        pa.array(search.vectors[0], pa.float32()) if single else [list(vector) for vector in search.vectors],
        k=search.k,
        metric=search.metric,
        minimum_nprobes=search.min_probes,
        maximum_nprobes=search.max_probes,
        refine_factor=search.refine_factor,
        use_index=search.use_index,
        ef=search.effort,
        distance_range=search.range,
    )


# -- full-text queries --------------------------------------------------------------------------------------------


class _Structured:
    """Structured queries of the specification, as queries of pylance.

    A query that names no column searches the indexed columns of the dataset.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._build: Mapping[str, Callable[[Mapping[str, Any]], fts.FullTextQuery]] = {
            "match": self._match,
            "phrase": self._phrase,
            "boost": self._boost,
            "multi_match": self._multi_match,
            "boolean": self._boolean,
        }

    def query(self, query: Mapping[str, Any]) -> fts.FullTextQuery:
        given = [kind for kind, value in query.items() if value is not None]
        if len(given) != 1:
            raise InvalidInput(f"a full-text query is exactly one of {', '.join(self._build)}; found {len(given)}")
        [kind] = given
        return self._build[kind](query[kind])

    def _match(self, query: Mapping[str, Any]) -> fts.FullTextQuery:
        given = {name: query[name] for name in _MATCH_OPTIONS if query.get(name) is not None}
        operator = _operator(query)
        parts = [fts.MatchQuery(query["terms"], each, operator=operator, **given) for each in self._columns(query)]
        return parts[0] if len(parts) == 1 else fts.BooleanQuery([(fts.Occur.SHOULD, part) for part in parts])

    def _phrase(self, query: Mapping[str, Any]) -> fts.FullTextQuery:
        parts = [fts.PhraseQuery(query["terms"], each, slop=query.get("slop") or 0) for each in self._columns(query)]
        return parts[0] if len(parts) == 1 else fts.BooleanQuery([(fts.Occur.SHOULD, part) for part in parts])

    def _boost(self, query: Mapping[str, Any]) -> fts.FullTextQuery:
        negative = query.get("negative_boost")
        return fts.BoostQuery(
            self.query(query["positive"]),
            self.query(query["negative"]),
            negative_boost=0.5 if negative is None else negative,
        )

    def _multi_match(self, query: Mapping[str, Any]) -> fts.FullTextQuery:
        parts = query["match_queries"]
        common = {(part["terms"], _operator(part)) for part in parts}
        others = sorted({name for part in parts for name in _MATCH_OPTIONS if part.get(name) is not None} - {"boost"})
        if len(common) != 1 or others:
            found = f"{others[0]!r} in one" if others else f"{len(common)} pairs of terms and operator"
            raise InvalidInput(
                f"the queries of multi_match differ in column and boost only; found {found}. Use boolean with should"
            )
        [(terms, operator)] = common
        fields = [
            (column, 1.0 if part.get("boost") is None else part["boost"])
            for part in parts
            for column in self._columns(part)
        ]
        columns, boosts = [column for column, _ in fields], [boost for _, boost in fields]
        return fts.MultiMatchQuery(terms, columns, boosts=boosts, operator=operator)

    def _boolean(self, query: Mapping[str, Any]) -> fts.FullTextQuery:
        occurs = (("must", fts.Occur.MUST), ("should", fts.Occur.SHOULD), ("must_not", fts.Occur.MUST_NOT))
        return fts.BooleanQuery([(occur, self.query(part)) for name, occur in occurs for part in query.get(name) or ()])

    def _columns(self, query: Mapping[str, Any]) -> list[str]:
        if query.get("column") is not None:
            return [query["column"]]
        indexes = self._dataset.describe_indices()
        columns = [name for index in indexes if index.index_type == _INVERTED for name in index.field_names]
        if not columns:
            raise InvalidInput("a full-text query needs an inverted index on a column; the table has none")
        return columns


_MATCH_OPTIONS = ("boost", "fuzziness", "max_expansions", "prefix_length")
_INVERTED = "Inverted"


def _operator(query: Mapping[str, Any]) -> fts.FullTextOperator:
    name = query.get("operator") or "or"
    try:
        return fts.FullTextOperator[name.upper()]
    except KeyError:
        raise InvalidInput(f"unknown operator {name!r} of a match query; choose And or Or") from None


# -- hybrid queries -----------------------------------------------------------------------------------------------


def _halves(query: Query) -> tuple[Query, Query]:
    """Return the vector search and the full-text search of a hybrid query, with as many rows as its answer needs."""
    assert query.search is not None
    if len(query.search.vectors) != 1:
        raise InvalidInput("a hybrid query has one query vector; send several queries")
    depth = query.search.k + (query.offset or 0)
    common = attrs.evolve(query, offset=None, row_ids=True)
    vectors = attrs.evolve(common, text=None, text_columns=None, search=attrs.evolve(query.search, k=depth))
    return vectors, attrs.evolve(common, search=None, limit=depth)


def _fused(dataset: Any, query: Query) -> pa.RecordBatchReader:
    """Answer a hybrid query: rank the rows of both searches by reciprocal rank fusion.

    A row's relevance is the sum of ``1 / (60 + rank)`` over the searches that found it, as lancedb ranks by default.
    """
    assert query.search is not None
    tables = [scanner_of(dataset, half).to_table() for half in _halves(query)]
    relevance: dict[int, float] = {}
    for table in tables:
        for rank, row in enumerate(table[_ROW_ID].to_pylist(), 1):
            relevance[row] = relevance.get(row, 0.0) + 1 / (_RANK_CONSTANT + rank)
    rows = pa.concat_tables([table.drop_columns(_scores(table)) for table in tables])
    first = pc.index_in(pa.array(list(relevance), rows.schema.field(_ROW_ID).type), rows[_ROW_ID].combine_chunks())
    rows = rows.take(first).append_column(_RELEVANCE, pa.array(relevance.values(), pa.float32()))
    rows = rows.take(pc.sort_indices(pa.array(relevance.values()), sort_keys=[("", "descending")]))
    rows = rows.slice(query.offset or 0, query.search.k)
    return (rows if query.row_ids else rows.drop_columns([_ROW_ID])).to_reader()


def _scores(table: pa.Table) -> list[str]:
    return [name for name in _SCORES if name in table.column_names]
