"""Queries of callers who may read some columns and rows of tables alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Any, Final

import attrs
import pyarrow as pa

from lancekeep.application.rows.column_history import ColumnHistory
from lancekeep.application.rows.sealed_batches import bare, sealed
from lancekeep.application.rows.services import WriteService
from lancekeep.domain.column_names import plain_path, quoted
from lancekeep.domain.conditions import condition_of, expression_of, path_of, require_path
from lancekeep.domain.errors import (
    AccessDenied,
    Damaged,
    InvalidInput,
    LancekeepError,
    Retryable,
    StoreUnavailable,
    Unsupported,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.restrictions import ADDED_BY_SEARCHES, Readable, Restriction, column_types, readable
from lancekeep.format.schema import arrow_schema
from lancekeep.ports.rows import Query
from lancekeep.ports.table_engine import TableEngine

UNREADABLE: Final = "the version of the table cannot be read; ask an administrator to run `lancekeep fsck`"
"""What the caller learns of damage: errors quote sizes and bytes of files, which depend on all columns and rows."""


class RestrictedRows:
    """Reads tables within restrictions."""

    def __init__(self, writes: WriteService, engine: TableEngine) -> None:
        self._writes = writes
        self._engine = engine

    def query(
        self,
        table: ObjectId,
        query: Query,
        restriction: Restriction,
        version: int | None = None,
        branch: str | None = None,
    ) -> Any:
        """Return the rows of a query as a ``pyarrow.RecordBatchReader``.

        Raises:
            AccessDenied: The query shows more than the restriction permits, or the policy does not fit the table.
            ColumnNotFound: The query names a column that the caller may not read, or that does not exist.
            InvalidInput: The query is malformed. The message quotes nothing of the table or of the policy.
        """
        dataset, columns = self._opened(table, restriction, version, branch)
        if restriction.rows and query.text is not None:
            return self._searched(dataset, query, columns)
        query = restricted(query, columns)
        with _quiet():
            if query.search is not None or query.text is not None:
                dataset = self._engine.rows.without_columns(dataset, _in_the_way(columns, restriction))
            reader = self._engine.rows.scan(dataset, query)
        schema = bare(reader.schema)
        batches = sealed(_batches(reader), schema) if restriction.rows else _renamed(_batches(reader), schema)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def count(
        self,
        table: ObjectId,
        condition: str | None,
        restriction: Restriction,
        version: int | None = None,
        branch: str | None = None,
    ) -> int:
        """Return the number of permitted rows for which a condition is true.

        Raises the errors of `query`.
        """
        dataset, columns = self._opened(table, restriction, version, branch)
        query = restricted(Query(columns=columns.columns[:1], condition=condition), columns)
        with _quiet():
            if query.condition is None:
                return self._engine.rows.count(dataset, None)
            return sum(batch.num_rows for batch in self._engine.rows.scan(dataset, query))

    def schema(
        self, table: ObjectId, restriction: Restriction, version: int | None = None, branch: str | None = None
    ) -> tuple[int, Any]:
        """Return the number of a version, and the schema of its permitted columns.

        The ``pyarrow.Schema`` has no metadata.
        """
        dataset, columns = self._opened(table, restriction, version, branch)
        return dataset.version, bare(arrow_schema(columns.fields, {}))

    def _searched(self, dataset: Any, query: Query, columns: Readable) -> Any:
        """Return the rows of a full-text query as a ``pyarrow.RecordBatchReader``.

        The words of hidden rows change the scores of an index, and which words a fuzzy query finds. So the query runs
        over a copy of the permitted rows in memory.
        """
        found = attrs.evolve(restricted(query, columns), condition=_own_condition(query.condition, columns))
        part = Query(columns=_used(query, columns), condition=columns.condition, indexed=False)
        with _one_search():
            with _quiet():
                reader = self._engine.rows.scan(dataset, part)
            # Batches of many large texts are refused before they are put together.
            parts = sealed(_bounded(_batches(reader), 2 * _MOST_BYTES, _own_bytes), reader.schema)
            rows = pa.Table.from_batches(_bounded(parts, _MOST_BYTES, lambda batch: batch.nbytes), reader.schema)
            with _quiet():
                answer = self._engine.rows.search_apart(dataset, rows, found)
        schema = bare(answer.schema)
        return pa.RecordBatchReader.from_batches(schema, sealed(iter(answer.to_batches()), schema))

    def _opened(
        self, table: ObjectId, restriction: Restriction, version: int | None, branch: str | None
    ) -> tuple[Any, Readable]:
        history = ColumnHistory(self._writes, self._engine, table)
        dataset = self._writes.open(table, version, None, branch)
        found = history.manifest(dataset)
        if version is None and branch is None:
            return dataset, readable(found.fields, found.fields, restriction, str(table))
        latest = history.manifest(self._writes.open(table, None, None, None))
        same = history.same(found, branch, latest)
        return dataset, readable(found.fields, latest.fields, restriction, str(table), same)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the engine's messages from the caller: they quote the policy, and name all columns."""
    try:
        yield
    except Retryable as error:
        raise StoreUnavailable("the version of the table cannot be read now; send the query again later") from error
    except (Damaged, AccessDenied) as error:
        raise Damaged(UNREADABLE) from error
    except LancekeepError as error:
        raise InvalidInput(
            "the engine cannot compute the query: compare values of one type, divide by no zero, and search columns "
            "that have vectors or a full-text index"
        ) from error


def restricted(query: Query, columns: Readable) -> Query:
    """Return a query that reads permitted columns and rows alone.

    Args:
        query: The query of the caller.
        columns: The columns of the version that the caller may read, and the condition of the rows.

    Raises:
        AccessDenied, ColumnNotFound, InvalidInput: See `RestrictedRows.query`.
    """
    if columns.rows_too:
        _require_rows_alone(query)
    search = query.search
    if search is not None:
        _require(search.column, columns)
        search = attrs.evolve(search, use_index=search.use_index and not columns.rows_too)
    if query.text is not None:
        _require_text(query, columns)
    own = _own_condition(query.condition, columns)
    both = " AND ".join(f"({each})" for each in (columns.condition, own) if each is not None)
    return attrs.evolve(
        query,
        columns=_projection(query, columns),
        condition=both if columns.rows_too else own,
        search=search,
        prefilter=query.prefilter or columns.rows_too,
        indexed=not columns.rows_too,
    )


def _in_the_way(columns: Readable, restriction: Restriction) -> Set[str]:
    """Return the columns that the caller may not read, and whose presence the answer of a search would show."""
    selecting = {path[0] for condition in restriction.rows for path in condition.paths}
    return ADDED_BY_SEARCHES - {*columns.columns} - selecting


def _used(query: Query, columns: Readable) -> list[str]:
    """Return the columns that a full-text query needs, which the caller may read, in the order of the schema."""
    if query.columns is None:
        return list(columns.columns)
    named = query.columns.values() if isinstance(query.columns, Mapping) else query.columns
    paths = [(name,) if name in columns.columns else path_of(name) for name in (*named, *_text_columns(query))]
    if query.search is not None:
        paths.append(path_of(query.search.column))
    if query.condition is not None:
        paths += condition_of(query.condition).paths
    tops = {path[0] for path in paths}
    return [name for name in columns.columns if name in tops]


def _require_rows_alone(query: Query) -> None:
    """Refuse what shows something of rows that the caller may not read."""
    shown = {
        "row ids, which show how many other rows there are": query.row_ids,
        "fast_search, which depends on an index of all rows": query.fast,
        "a vector search with a filter and without prefilter=true": query.search is not None
        and query.condition is not None
        and not query.prefilter,
    }
    for what, given in shown.items():
        if given:
            raise AccessDenied(f"you may read some rows of the table alone, so the query cannot have {what}")


def _projection(query: Query, columns: Readable) -> Sequence[str] | Mapping[str, str]:
    given = query.columns
    if given is None:
        return columns.columns
    if isinstance(given, Mapping):
        return {alias: _expression(text, columns) for alias, text in given.items()}
    # A column of the table can have the name of a score, which the engine returns unless the search adds the score.
    scores = {"_distance": query.search is not None, "_score": query.text is not None}
    return [name if scores.get(name) else _listed(name, query, columns) for name in given]


def _listed(name: str, query: Query, columns: Readable) -> str:
    if name == "_rowid" and query.row_ids:
        return name
    return _require(name, columns)


def _require(name: str, columns: Readable) -> str:
    """Return the path of a column or of a field in it, as the engine takes it.

    Raises:
        ColumnNotFound: The caller may not read it, or it does not exist.
    """
    if name in columns.columns:
        return name
    path = path_of(name)
    require_path(path, columns.paths)
    return plain_path(path)


def _expression(text: str, columns: Readable) -> str:
    if not columns.rows_too:
        return expression_of(text, columns.paths)
    path = path_of(text)
    require_path(path, columns.paths)
    return quoted(*path)


def _own_condition(text: str | None, columns: Readable) -> str | None:
    """Return the condition of the caller, as the engine takes it."""
    if text is None:
        return None
    if not columns.rows_too:
        return expression_of(text, columns.paths)
    found = condition_of(text)
    for path in found.paths:
        require_path(path, columns.paths)
    types = column_types(columns.fields)
    wrong = found.unfit(types)
    if wrong is not None:
        raise InvalidInput(
            f"the condition compares {'.'.join(wrong.path)!r} with a constant that its type cannot have; give a "
            "constant of the column's type"
        )
    return found.written(types)


def _require_text(query: Query, columns: Readable) -> None:
    """Refuse a full-text query unless it names its columns, and the caller may read them."""
    named = _text_columns(query)
    if not named:
        raise InvalidInput("with rights on some columns, a full-text query names the columns that it searches")
    for name in named:
        _require(name, columns)


def _text_columns(query: Query) -> Sequence[str]:
    return list(query.text_columns or ()) if isinstance(query.text, str) else list(_searched(query.text))


def _searched(query: Any) -> Iterator[str]:
    """Yield the columns that a structured full-text query searches.

    Raises:
        InvalidInput: A part names no column, so it would search all of them.
    """
    parts = {kind: part for kind, part in query.items() if part is not None}
    for kind, part in parts.items():
        if kind in ("match", "phrase"):
            yield _column_of(part)
        elif kind == "multi_match":
            yield from map(_column_of, part["match_queries"])
        elif kind == "boost":
            yield from _searched(part["positive"])
            yield from _searched(part["negative"])
        elif kind == "boolean":
            for place in ("must", "should", "must_not"):
                for each in part.get(place) or ():
                    yield from _searched(each)
        else:
            raise InvalidInput(
                f"unknown full-text query {kind[:60]!r}; use match, phrase, multi_match, boost or boolean"
            )


def _column_of(part: Mapping[str, Any]) -> str:
    column = part.get("column")
    if not column:
        raise InvalidInput("with rights on some columns, each part of a full-text query names its column")
    return str(column)


_MOST_BYTES: Final = 64 << 20
"""The bytes of the rows that a full-text query with conditions of rows copies at most."""
_SEARCHES = BoundedSemaphore(2)
"""The full-text queries with conditions of rows that a process runs at once: each has its rows in memory."""
_PATIENCE: Final = 10.0
"""The seconds after which a query that waits for others is refused."""


@contextmanager
def _one_search() -> Iterator[None]:
    if not _SEARCHES.acquire(timeout=_PATIENCE):
        raise StoreUnavailable("other full-text queries over some rows are running; send the query again later")
    try:
        yield
    finally:
        _SEARCHES.release()


def _own_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch without its dictionaries, which have the values of all rows."""
    return sum(column.nbytes for column in batch.columns if not isinstance(column, pa.DictionaryArray))


def _bounded(
    batches: Iterator[pa.RecordBatch], most: int, size_of: Callable[[pa.RecordBatch], int]
) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in batches:
        size += size_of(batch)
        if size > most:
            raise Unsupported(
                f"the columns of the query have more than {_MOST_BYTES >> 20} MB in the rows that you may read, and a "
                "full-text search over some rows copies them; name fewer columns, or search without full_text_query"
            )
        yield batch


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    with _quiet():
        yield from reader


def _renamed(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches with a schema that has the same columns."""
    return (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)
