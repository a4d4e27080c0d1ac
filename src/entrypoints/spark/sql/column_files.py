"""Write new data files of some columns of a fragment.

The engine's own ``update_columns`` joins the new values with all rows of the fragment by a hash table, which takes
thirty times as long as to write them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import lance.fragment
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.schema import LanceSchema

from lancekeep.adapters.lance.alignment import aligned
from lancekeep.adapters.lance.batches import READ_AHEAD
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.scanning import batch_rows
from lancekeep.entrypoints.spark.projection import field_ids
from lancekeep.format.deletions import encode_bitmap
from lancekeep.ports.table_engine import WritePlan

Addresses = npt.NDArray[np.uint64]

ADDRESS = "_rowaddr"
OFFSETS = np.uint64(0xFFFFFFFF)
_TOMBSTONE = -2
"""Stands in a data file's list of fields for one whose values are in another file (table format, "Data Files")."""


class Rewritten(NamedTuple):
    """A fragment with new data files of some columns.

    Attributes:
        number: Its id.
        fragment: Its metadata as JSON.
        offsets: The changed rows, as the engine encodes them.
    """

    number: int
    fragment: str
    offsets: bytes


def rewrite(dataset: Any, fragment: Any, addresses: Addresses, values: pa.RecordBatch, plan: WritePlan) -> Rewritten:
    """Write columns of the whole fragment; other rows keep their values.

    If it fails, it leaves no files.

    Args:
        dataset: The version of the fragment.
        fragment: The fragment, which has a data file with each of the columns.
        addresses: The addresses of the changed rows.
        values: Their new values, in the types of the table.
        plan: The table to write to.

    Raises:
        InvalidInput: Two values have the same address.
    """
    order = np.argsort(addresses, kind="stable")
    offsets = addresses[order] & OFFSETS
    if (offsets[1:] == offsets[:-1]).any():
        raise InvalidInput(f"a row of {plan.table} would be changed twice; nothing was committed")
    if (order[1:] < order[:-1]).any():
        values = values.take(pa.array(order))
    [written] = lance.fragment.write_fragments(
        aligned(pa.RecordBatchReader.from_batches(values.schema, _of_all_rows(dataset, fragment, offsets, values))),
        plan.uri,
        schema=values.schema,
        mode="overwrite",
        max_rows_per_file=fragment.physical_rows,
        data_storage_version=dataset.data_storage_version,
        **plan.access,
    )
    metadata = fragment.metadata.to_json()
    replaced = set(field_ids(dataset, values.schema.names))
    for file in metadata["files"]:
        file["fields"] = [_TOMBSTONE if field in replaced else field for field in file["fields"]]
    kept = [file for file in metadata["files"] if any(field != _TOMBSTONE for field in file["fields"])]
    [new] = written.to_json()["files"]
    ids = dict(_paired(LanceSchema.from_pyarrow(values.schema).fields(), dataset.lance_schema.fields()))
    new["fields"] = [ids[field] for field in new["fields"]]
    changed = json.dumps({**metadata, "files": [*kept, new]})
    return Rewritten(fragment.fragment_id, changed, encode_bitmap(offsets))


def _paired(written: Sequence[Any], stored: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yield the ids of written fields, each with the id of the same field of the table."""
    by_name = {field.name(): field for field in stored}
    for field in written:
        yield field.id(), by_name[field.name()].id()
        yield from _paired(field.children(), by_name[field.name()].children())


def _of_all_rows(dataset: Any, fragment: Any, offsets: Addresses, values: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the columns of every row of the fragment.

    A deleted row has the values of another row.
    """
    rows = fragment.physical_rows
    if len(offsets) == rows:
        yield values
        return
    names, done, last = values.schema.names, 0, values.slice(0, 1)
    size = batch_rows(dataset.schema, names, [fragment])
    scanner = fragment.scanner(columns=names, with_row_address=True, batch_size=size, **READ_AHEAD)
    for batch in scanner.to_batches():
        if not batch.num_rows:
            continue
        at = batch.column(ADDRESS).to_numpy() & OFFSETS
        end = int(at[-1]) + 1
        first, beyond = np.searchsorted(offsets, [done, end])
        chosen = np.zeros(end - done, np.int64)
        chosen[at - done] = np.arange(batch.num_rows)
        chosen[offsets[first:beyond] - done] = np.arange(batch.num_rows, batch.num_rows + beyond - first)
        stored = pa.RecordBatch.from_arrays([batch.column(name) for name in names], schema=values.schema)
        merged = pa.Table.from_batches([stored, values.slice(first, beyond - first)]).take(chosen)
        [last] = merged.combine_chunks().to_batches()
        yield last
        done = end
    if done < rows:
        yield last.take(pa.array(np.full(rows - done, last.num_rows - 1)))
