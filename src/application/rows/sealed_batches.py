"""Batches that show nothing of other columns and rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lancekeep.format.arrow_metadata import fields_with

ROWS = 8192
"""The rows of each batch but the last."""


def bare(schema: pa.Schema) -> pa.Schema:
    """Return a schema without the metadata that names other columns.

    pandas writes the names of all columns into the metadata of the schema, and the metadata of a field can hold the
    expression by which it is computed. The names of extension types stay.
    """
    return pa.schema(fields_with(schema, lambda key: key.startswith(b"ARROW:extension:")))


def sealed(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of one size, with dictionaries of their own values.

    The engine's batches end where its reads end, so their sizes show how many rows between them were left out. Its
    dictionaries have the values of all rows.

    Args:
        batches: The batches of the engine.
        schema: Their schema.
    """
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROWS:
            table = pa.Table.from_batches(waiting)
            whole = rows - rows % ROWS
            for start in range(0, whole, ROWS):
                yield _packed(table.slice(start, ROWS), schema)
            rest = table.slice(whole)
            waiting, rows = rest.to_batches(), rest.num_rows
    if rows:
        yield _packed(pa.Table.from_batches(waiting), schema)


def _packed(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    columns = [_own_values(column.combine_chunks()) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _own_values(column: pa.Array) -> pa.Array:
    """Return a column; if it is a dictionary, with the values alone that its rows have."""
    if not isinstance(column, pa.DictionaryArray):
        return column
    kind = column.type
    own = column.dictionary_decode().dictionary_encode()
    return pa.DictionaryArray.from_arrays(own.indices.cast(kind.index_type), own.dictionary, ordered=kind.ordered)
