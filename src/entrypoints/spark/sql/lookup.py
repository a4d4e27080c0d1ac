"""Find the few rows of a query when it is planned.

An index names them, or they are the first ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from lancekeep.domain.indexes import index_kind
from lancekeep.entrypoints.spark.reading import Fragment
from lancekeep.entrypoints.spark.sql.predicates import Untranslatable, compared

MOST_ROWS = 100
"""The most rows that the driver reads itself."""
MOST_BYTES = 1 << 20
"""The most bytes that these rows may have, by the average row of their fragments."""
_EXACT = ("BTREE", "BITMAP")


@attrs.frozen
class Found:
    """Where the rows of a query are.

    Attributes:
        rows: The most rows; further conditions of the query may select fewer.
        fragments: The ids of their fragments, in order.
    """

    rows: int
    fragments: tuple[int, ...]

    @property
    def runs(self) -> list[range]:
        return [range(number, number + 1) for number in self.fragments]


def found_by_index(dataset: Any, conditions: Iterable[tuple[Any, str]]) -> Found | None:
    """Ask an index for the rows of a condition, without reading a row.

    Args:
        dataset: The version.
        conditions: Predicates of Spark, of which all must hold, each with its translation.

    Returns:
        The rows of the first condition that an index answers for all fragments and that few rows satisfy; None if there
        is none.
    """
    by_value = [(column, text) for predicate, text in conditions if (column := _compared_by_value(predicate, dataset))]
    indexed = set(_indexed(dataset)) if by_value else set()
    for column, text in by_value:
        if column in indexed:
            rows = dataset.scanner(columns=[], with_row_address=True, filter=text, limit=MOST_ROWS + 1).to_table()
            if rows.num_rows <= MOST_ROWS:
                fragments = {address >> 32 for address in rows["_rowaddr"].to_pylist()}
                return Found(rows.num_rows, tuple(sorted(fragments)))
    return None


def first_rows(fragments: Iterable[Fragment], limit: int) -> Found | None:
    """Find the first rows of a table; None if they are many, or in many fragments."""
    if limit > MOST_ROWS:
        return None
    left, ids = limit, list[int]()
    for fragment in fragments:
        if left <= 0:
            break
        if len(ids) == MOST_ROWS:
            return None
        left -= fragment.rows
        ids.append(fragment.id)
    return Found(limit, tuple(ids))


def _compared_by_value(predicate: Any, dataset: Any) -> str | None:
    """Return the column that a predicate compares with values for equality."""
    try:
        column, operator, *_ = compared(predicate, dataset.schema)
    except Untranslatable:
        return None
    return str(column) if operator in ("=", "in") else None


def _indexed(dataset: Any) -> Iterator[str]:
    """Yield the columns whose index answers for every fragment."""
    columns = {field.id(): field.name() for field in dataset.lance_schema.fields()}
    fragments = dataset.fragment_ids()
    for index in dataset.describe_indices():
        if index_kind(index.name, index.type_url).name in _EXACT and len(index.fields) == 1:
            [field], covered = index.fields, [segment.fragment_ids for segment in index.segments]
            if field in columns and all(any(number in ids for ids in covered) for number in fragments):
                yield columns[field]


def is_small(dataset: Any, found: Found) -> bool:
    """Return whether the driver may read the rows itself."""
    fragments = [dataset.get_fragment(number) for number in found.fragments]
    sizes = [file.file_size_bytes for fragment in fragments for file in fragment.metadata.files]
    if None in sizes:
        return False
    average = sum(sizes) // max(1, sum(fragment.physical_rows for fragment in fragments))
    return bool(found.rows * average <= MOST_BYTES)
