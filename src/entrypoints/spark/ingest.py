"""Write a Spark DataFrame to a table.

Executors write fragments in parallel; the driver makes one commit. Executors receive the table's URI and storage
options, never a catalog, and return the metadata of the fragments (`lancekeep.entrypoints.spark.writing`).
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
    blob_columns,
    require_fit,
    require_storable,
    vector_lengths,
    with_blobs,
    with_vectors,
)
from lancekeep.entrypoints.spark.failures import translated
from lancekeep.entrypoints.spark.writing import write_batches
from lancekeep.ports.table_engine import WriteMode, WritePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that executors apply to the batches of one partition of a DataFrame."""


def ingest(
    frame: DataFrame, catalog: Catalog, table: Identifier, mode: str = "create", *, schema: pa.Schema | None = None
) -> Committed:
    """Write a DataFrame to a table as one version.

    Each non-empty partition becomes one or more fragments. Columns are matched by name.

    Args:
        frame: The rows.
        catalog: The catalog of the table.
        table: The table.
        mode: As for `Catalog.write`. An append uses the schema of the table.
        schema: The stored schema of a created or overwritten table, where it is narrower than Spark's types: vectors
            (``pa.list_(pa.float32(), 128)``), unsigned integers, half floats, non-nullable columns. By default columns
            get Spark's types, nullable, with instants in UTC; columns that were read from vectors stay vectors.

    Returns:
        The committed version.

    Raises:
        InvalidInput: The DataFrame does not fit the table, or a value does not fit its column.
        TableAlreadyExists: The table to create exists.
        TableNotFound: The table to append to does not exist.
        NamespaceNotFound: The namespace does not exist.
        Retryable: The Spark job failed; nothing was committed.
        LancekeepError: The commit failed, as for `Catalog.write`.
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
        schema = with_blobs(with_vectors(offered, vector_lengths(frame.schema)), blob_columns(frame.schema))
    require_fit(offered, schema)
    plan = catalog.begin_write(table, schema, mode)
    try:
        fragments = _write_fragments(frame, plan)
    except BaseException:
        catalog.abandon_write(plan)
        raise
    return catalog.commit_fragments(plan, fragments)


def _write_fragments(frame: DataFrame, plan: WritePlan) -> list[str]:
    """Run the tasks and return the fragments of all partitions as JSON."""

    def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fragments = write_batches(batches, plan)
        if fragments:
            yield pa.RecordBatch.from_pydict({"fragment": fragments})

    return [row.fragment for row in collected(frame, write_partition, "fragment string", str(plan.table))]


def collected(frame: DataFrame, task: Task, columns: str, table: str) -> list[Row]:
    """Apply a task to the partitions of a DataFrame and collect the results.

    Args:
        frame: The DataFrame.
        task: The function that executors apply.
        columns: The columns of the result, as Spark's DDL.
        table: The table's name, for messages.

    Raises:
        LancekeepError: A task failed, as for `ingest`.
    """
    with translated(table):
        return frame.mapInArrow(task, columns).collect()
