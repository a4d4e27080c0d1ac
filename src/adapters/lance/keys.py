"""The keys of rows, and the rows of a dataset that have some keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lancekeep.domain.column_names import quoted
from lancekeep.domain.upserts import Key

_UNSTATED = -(2**63)
"""A number that SQL of the engine cannot state: it takes the sign for an operator."""


def keys_of(rows: pa.Table, on: Sequence[str]) -> frozenset[Key] | None:
    """Return the keys of rows; see `RowEngine.keys`.

    Only whole numbers and texts are compared: 0.0 and -0.0 are one key, and a time depends on its unit.
    """
    if any(rows.schema.names.count(name) != 1 for name in on) or len(set(on)) < len(on):
        return None  # a path to a field, or a name that is not exact
    columns = [rows.column(name) for name in on]
    if any(column.null_count or not _is_comparable(column.type) for column in columns):
        return None
    keys = frozenset(zip(*(column.to_pylist() for column in columns), strict=True))
    if len(keys) < rows.num_rows or any(_UNSTATED in key for key in keys):
        return None
    return keys


def conforms(rows: pa.Table, schema: pa.Schema) -> bool:
    """Return whether rows have exactly the columns of a schema, in its order.

    Rows with a null that the schema does not permit have not.
    """
    if rows.schema.names != schema.names or rows.schema.types != schema.types:
        return False
    return all(field.nullable or not column.null_count for field, column in zip(schema, rows.columns, strict=True))


def found_keys(dataset: Any, on: Sequence[str], keys: Collection[Key]) -> Mapping[Key, int]:
    """Return the number of rows that have each key; see `RowEngine.found`.

    With several key columns the condition selects too many rows, which are left out here.
    """
    values = [dict.fromkeys(each) for each in zip(*keys, strict=True)]
    condition = " AND ".join(
        f"{quoted(name)} IN ({', '.join(map(_literal, column))})" for name, column in zip(on, values, strict=True)
    )
    wanted, found = frozenset(keys), Counter[Key]()
    for batch in dataset.scanner(columns=list(on), filter=condition).to_reader():
        rows = zip(*(batch.column(name).to_pylist() for name in on), strict=True)
        found.update(key for key in rows if key in wanted)
    return found


def _literal(value: Any) -> str:
    return f"""'{value.replace("'", "''")}'""" if isinstance(value, str) else str(value)


def _is_comparable(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))
