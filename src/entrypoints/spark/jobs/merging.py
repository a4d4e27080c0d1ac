"""Find one type for a column whose type differs among files or their parts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import pyarrow as pa


def merged(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None if only text would."""
    pair = (one, other)
    if pa.uint64() in pair and any(map(pa.types.is_signed_integer, pair)):
        return pa.decimal128(20, 0)  # Arrow would choose int64
    try:
        [field] = pa.unify_schemas([pa.schema([("", kind)]) for kind in pair], promote_options="permissive")
    except pa.ArrowException:
        return None
    return field.type


def agreed(found: Iterable[tuple[pa.Schema, int]]) -> pa.Schema:
    """Return one schema for the parts of a file.

    A column gets the type of most rows, widened by the other types that can be merged with it. Rows that do not fit are
    bad records.

    Args:
        found: The schema and the number of rows of each part.
    """
    rows: dict[str, Counter[pa.DataType]] = defaultdict(Counter)
    for schema, count in found:
        for field in schema:
            rows[field.name][field.type] += count
    return pa.schema([(name, _of_most(kinds)) for name, kinds in rows.items()])


def _of_most(kinds: Counter[pa.DataType]) -> pa.DataType:
    chosen = pa.null()
    for kind, _ in kinds.most_common():
        chosen = merged(chosen, kind) or chosen
    return chosen
