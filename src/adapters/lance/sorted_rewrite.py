"""Sort the rows that a compaction rewrites.

The engine copies rows in their order. For a clustered table, Lancekeep reads the rows of a task of the engine's plan,
sorts them, and describes the new fragments as the engine does (docs/adr/0181).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from lancekeep.adapters.lance.batches import BATCH_BYTES, MOST_ROWS, READ_AHEAD, batch_rows
from lancekeep.adapters.lance.blobs import holds_blobs
from lancekeep.native import compute, lance

SORTED_BYTES = 256 << 20
"""The most bytes of rows that are sorted together; a larger task has several sorted runs."""


def execute(dataset: Any, task: Any, columns: Sequence[str], target_rows: int) -> Any:
    """Rewrite the fragments of a task with few batches in memory, and commit nothing.

    The rows are sorted by columns unless an index names the rows, or the table has stable row ids or blobs.
    """
    fragments = [fragment.id for fragment in task.fragments]
    chosen = sorting_columns(dataset.schema, columns)
    if not chosen or dataset.has_stable_row_ids or refused_columns(dataset.schema) or _is_indexed(dataset, fragments):
        return _bounded(task).execute(dataset)
    scanner = dataset.scanner(
        fragments=[dataset.get_fragment(number) for number in fragments],
        batch_size=batch_rows(task.fragments),
        **READ_AHEAD,
    )
    schema = dataset.schema
    described = json.loads(task.json())
    reader = pa.RecordBatchReader.from_batches(schema, _sorted(scanner.to_batches(), schema, chosen))
    written = lance.fragment.write_fragments(
        reader,
        dataset,
        mode="append",
        max_rows_per_file=_rows_per_file(task.fragments, target_rows),
        data_storage_version=dataset.data_storage_version,
    )
    old = described["task"]["fragments"]
    result = {
        "metrics": {
            "fragments_removed": len(old),
            "fragments_added": len(written),
            "files_removed": sum(len(each["files"]) + bool(each.get("deletion_file")) for each in old),
            "files_added": len(written),
        },
        "new_fragments": [{**fragment.to_json(), "id": 0} for fragment in written],
        "read_version": described["read_version"],
        "original_fragments": old,
        "row_addrs": None,
    }
    return _described(json.dumps(result))


def _rows_per_file(fragments: Iterable[Any], target_rows: int) -> int:
    """Return the rows of each new fragment: as few as possible, but even the last has the target, if there are so many.

    A smaller fragment would be compacted again.
    """
    rows = sum(int(fragment.num_rows) for fragment in fragments)
    files = max(1, rows // target_rows)
    while files > 1 and rows - (files - 1) * -(-rows // files) < target_rows:
        files -= 1
    return max(1, -(-rows // files))


def _bounded(task: Any) -> Any:
    """Return the task with batches of a few MB.

    The engine takes one number of rows for all tasks of a plan. A table can have a few fragments of large rows, by
    which the other tasks would be slow.
    """
    described = json.loads(task.json())
    described["options"] |= {"batch_size": batch_rows(task.fragments), "io_buffer_size": READ_AHEAD["io_buffer_size"]}
    made: Any = lance.optimize.CompactionTask  # pylance types neither `json` nor `from_json`
    return made.from_json(json.dumps(described))


def _described(result: str) -> Any:
    made: Any = lance.optimize.RewriteResult  # pylance types neither `json` nor `from_json`
    return made.from_json(result)


def refused_columns(schema: Any) -> list[str]:
    """Return the columns with blobs, which compaction does not read.

    A table with blobs is not sorted.
    """
    return [field.name for field in schema if holds_blobs(field)]


def sorting_columns(schema: Any, columns: Iterable[str]) -> list[str]:
    """Return the columns that exist and have an order; others do not count."""
    return [name for name in columns if name in schema.names and is_sortable(schema.field(name))]


def is_sortable(field: Any) -> bool:
    """Return whether rows can be sorted by a column."""
    kind, types = field.type, pa.types
    tests = (
        *(types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_temporal),
        *(types.is_string, types.is_large_string, types.is_binary, types.is_large_binary),
    )
    return any(test(kind) for test in tests) and not types.is_float16(kind)


def _is_indexed(dataset: Any, fragments: Collection[int]) -> bool:
    """Return whether an index names rows of the fragments by their addresses."""
    indexes = dataset.list_indices()
    return any(
        index["name"].startswith("__") or not set(index["fragment_ids"]).isdisjoint(fragments) for index in indexes
    )


def _sorted(batches: Iterator[Any], schema: Any, columns: Sequence[str]) -> Iterator[Any]:
    held: list[Any] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= SORTED_BYTES:
            yield from _run(held, schema, columns)
            size = 0
    if held:
        yield from _run(held, schema, columns)


def _run(batches: list[Any], schema: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the rows of the batches in order, and empty the list of batches: the rows are in memory twice."""
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    batches.clear()
    keys = [(name, "ascending") for name in columns]
    order = compute.sort_indices(table.select(columns), sort_keys=keys)
    rows = max(1, min(MOST_ROWS, BATCH_BYTES * len(order) // max(1, table.nbytes)))
    for start in range(0, len(order), rows):
        yield from table.take(order[start : start + rows]).combine_chunks().to_batches()
