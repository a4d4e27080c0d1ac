"""A Spark DataFrame into a table: executors write fragments in parallel, the driver makes one commit.

Executors get the table's URI and storage options, never a catalog, and answer with the metadata of the fragments they
wrote (`lancekeep.entrypoints.spark.writing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from lancekeep.application.catalog import Catalog
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import Identifier
from lancekeep.entrypoints.spark.arrow_types import (
    arrow_schema,
    require_fit,
    require_storable,
    vector_lengths,
    with_vectors,
)
from lancekeep.entrypoints.spark.failures import translated
from lancekeep.entrypoints.spark.writing import write_batches
from lancekeep.ports.table_engine import WriteMode, WritePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What executors do with the batches of one partition of a DataFrame."""


def ingest(
    frame: DataFrame, catalog: Catalog, table: Identifier, mode: str = "create", *, schema: pa.Schema | None = None
) -> Committed:
    """Write a DataFrame to a table as one version, each non-empty partition as a fragment or more.

    mode: as in `Catalog.write`. schema: what a created or overwritten table shall store, where that is narrower than
    Spark's own types: vectors (``pa.list_(pa.float32(), 128)``), unsigned integers, half floats, columns that are not
    nullable. Left out, columns get Spark's types, nullable, as Spark's own tables do; instants are stored in UTC.
    A column that is read from vectors and passes unchanged is stored as vectors again.
    Appends follow the schema of the table; columns are matched by name.

    Raises before any task runs: `InvalidInput` where the DataFrame does not fit the table, `TableAlreadyExists`,
    `TableNotFound`, `NamespaceNotFound`. From the tasks: `InvalidInput` where a value does not fit its column,
    `Retryable` where the Spark job failed otherwise. Then nothing was committed. From the commit: as `Catalog.write`.
    """
    offered = arrow_schema(frame.schema)
    require_storable(offered)
    if mode == WriteMode.APPEND.value:
        if schema is not None:
            raise InvalidInput("an append follows the schema of its table; give no schema")
        schema = catalog.open(table).schema
    elif schema is not None:
        require_storable(schema)
    else:
        schema = with_vectors(offered, vector_lengths(frame.schema))
    require_fit(offered, schema)
    plan = catalog.begin_write(table, schema, mode)
    try:
        fragments = _write_fragments(frame, plan)
    except BaseException:
        catalog.abandon_write(plan)
        raise
    return catalog.commit_fragments(plan, fragments)


def _write_fragments(frame: DataFrame, plan: WritePlan) -> list[str]:
    """Run the tasks; the fragments of every partition, as JSON."""

    def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fragments = write_batches(batches, plan)
        if fragments:
            yield pa.RecordBatch.from_pydict({"fragment": fragments})

    return [row.fragment for row in collected(frame, write_partition, "fragment string", str(plan.table))]


def collected(frame: DataFrame, task: Task, columns: str, table: str) -> list[Row]:
    """What a task makes of the partitions of a DataFrame. Raises what `ingest` raises from tasks."""
    with translated(table):
        return frame.mapInArrow(task, columns).collect()
