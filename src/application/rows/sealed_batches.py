"""Batches that show nothing of other columns and rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lancekeep.domain.errors import Unsupported
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
    columns = [_own_values(column, name) for name, column in zip(table.column_names, table.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _own_values(column: pa.ChunkedArray, name: str) -> pa.Array:
    """Return a column; if it is a dictionary, with the values alone that its rows have.

    Raises:
        Unsupported: It has more values than a dictionary of its type can have.
    """
    kind = column.type
    if not pa.types.is_dictionary(kind):
        return column.combine_chunks()
    values = pa.concat_arrays([each.dictionary_decode() for each in column.chunks])  # nulls may be in dictionaries
    own = values.dictionary_encode()
    try:
        indices = own.indices.cast(kind.index_type)
    except pa.ArrowInvalid as error:
        raise Unsupported(
            f"the column {name!r} has more values in {ROWS:,} rows than its type {kind} can have in one batch; query "
            "fewer rows, or leave the column out"
        ) from error
    return pa.DictionaryArray.from_arrays(indices, own.dictionary, ordered=kind.ordered)
