"""Fragments of one version of a table, read by Spark's tasks.

The driver side opens the table through the catalog once; tasks get that very version, pickled, and no catalog.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.adapters.spark.arrow_types import as_spark_sees, as_spark_takes
from lancekeep.adapters.spark.daemon import freeze_imports
from lancekeep.domain.errors import InvalidInput

ROWS_OF_A_PARTITION = 100_000
"""Fragments next to each other are read by one task until they hold so many rows."""

_BATCH_ROWS, _BATCH_BYTES = 8192, 2 << 20


@attrs.frozen
class FragmentReader:
    """Reads fragments of one version as batches of exactly ``schema``, Spark's Arrow types; it pickles.

    filter: in SQL of Lance's scanner; rows for which it is not true are left out. batch_size: rows of a batch at most.
    """

    dataset: bytes = attrs.field(repr=False)  # a pickled LanceDataset, with its storage options
    schema: pa.Schema
    filter: str | None = None
    batch_size: int | None = None

    @staticmethod
    def of(dataset: Any, schema: pa.Schema, batch_size: int | None = None) -> FragmentReader:
        """Reads the columns of ``schema``. Raises `InvalidInput` where the table has none of that name and type."""
        _require_types(dataset.schema, schema)
        rows = batch_size or max(256, min(_BATCH_ROWS, _BATCH_BYTES // max(1, _vector_bytes(dataset.schema, schema))))
        return FragmentReader(pickle.dumps(dataset), schema, batch_size=rows)

    def read(self, fragments: Sequence[int], limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of the fragments in their order, ``limit`` at most."""
        freeze_imports()
        if not fragments:
            return
        dataset = pickle.loads(self.dataset)
        scanner = dataset.scanner(
            columns=self.schema.names,
            filter=self.filter,
            limit=limit,
            batch_size=self.batch_size,
            fragments=[dataset.get_fragment(number) for number in fragments],
            scan_in_order=True,
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield as_spark_takes(batch, self.schema)


def require_columns(stored: pa.Schema, names: Iterable[str]) -> None:
    """Raises `InvalidInput` unless the table has columns of these names."""
    unknown = [name for name in names if name not in stored.names]
    if unknown:
        raise InvalidInput(f"the table has no column {unknown[0]!r}; it has {', '.join(stored.names)}")


def _require_types(stored: pa.Schema, wanted: pa.Schema) -> None:
    """Nullability aside: Spark may know more, or less, about it."""
    require_columns(stored, wanted.names)
    for field in wanted:
        seen = as_spark_sees(stored.field(field.name).type)
        if seen != as_spark_sees(field.type):
            raise InvalidInput(
                f"the column {field.name!r} of the table is {seen} in Spark; it was asked for as {field.type}"
            )


def partitions(fragments: Iterable[Any]) -> list[list[int]]:
    """The ids of the fragments each task reads: neighbours together while they are small."""
    groups: list[list[int]] = []
    rows = ROWS_OF_A_PARTITION
    for fragment in fragments:
        if rows >= ROWS_OF_A_PARTITION:
            groups.append([])
            rows = 0
        groups[-1].append(fragment.fragment_id)
        rows += fragment.physical_rows
    return groups


def first_rows(fragments: Iterable[Any], limit: int) -> list[tuple[list[int], int]]:
    """Of the fragments, in their order, those that hold the first ``limit`` rows, with how many to take of each."""
    shares = []
    for fragment in fragments:
        if limit <= 0:
            break
        rows = min(limit, fragment.count_rows())
        shares.append(([fragment.fragment_id], rows))
        limit -= rows
    return [(ids, rows) for ids, rows in shares if rows]


def _vector_bytes(stored: pa.Schema, wanted: pa.Schema) -> int:
    vectors = [stored.field(name).type for name in wanted.names if pa.types.is_fixed_size_list(stored.field(name).type)]
    return sum(vector.list_size * vector.value_type.bit_width // 8 for vector in vectors)
