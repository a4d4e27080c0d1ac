"""Run Python functions on executors through Spark's own classes.

Pickles travel only between the driver and the executors of one application, within Spark's own messages, as Spark's
pickled functions do. No pickle is stored, and none is read from storage.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructType

from lancekeep.domain.errors import Retryable
from lancekeep.entrypoints.spark.internals import python_source
from lancekeep.entrypoints.spark.sql.form import distributes
from lancekeep.entrypoints.spark.sql.jvm import Jvm

Batches = Iterable[pa.RecordBatch]


def reader_factory(jvm: Jvm, read: Callable[[Any], Iterator[pa.RecordBatch]], schema: Any, *, columnar: bool) -> Any:
    """Return a ``PartitionReaderFactory``.

    Args:
        jvm: The session's JVM.
        read: Takes a value that was passed to `partitions` and yields batches.
        schema: The Spark schema of the batches.
        columnar: Whether the scan has promised columns: see `Form`.
    """

    def read_one(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from read(pickle.loads(batch.column(0)[0].as_py()))  # from the driver, by `partitions`

    return python_source.reader_factory(
        jvm, read_one, schema, columnar=columnar, distributed=columnar or distributes(jvm)
    )


def partitions(jvm: Jvm, values: Sequence[Any]) -> Any:
    """Return one ``InputPartition`` for each value."""
    return python_source.input_partitions(jvm, map(pickle.dumps, values))


def writer_factory(jvm: Jvm, write: Callable[[Batches], Any], schema: Any) -> Any:
    """Return a ``DataWriterFactory``.

    Args:
        jvm: The session's JVM.
        write: Takes the batches of a partition; `messages` returns its results.
        schema: The Spark schema of the batches.
    """

    def write_one(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"message": [pickle.dumps(write(batches))]})

    result = StructType().add("message", BinaryType())
    return python_source.writer_factory(jvm, write_one, result, schema, distributed=distributes(jvm))


def messages(answers: Iterable[Any]) -> list[Any]:
    """Return the results of the tasks of a `writer_factory`.

    Raises:
        Retryable: A task has no result.
    """
    values = list(answers)
    if None in values:
        raise Retryable("a Spark task finished without reporting its rows; nothing was committed")
    return [pickle.loads(python_source.message(value)) for value in values]  # from tasks, by `write_one`
