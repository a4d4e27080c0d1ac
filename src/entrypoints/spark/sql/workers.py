"""Run Python functions on executors through Spark's own classes.

Spark plans its Python data sources in a separate process. Here the driver's process plans them, next to the open
catalog. The part on the executors is Spark's, unchanged.

Pickles travel only between the driver and the executors of one application, within Spark's own messages, as Spark's
pickled functions do. No pickle is stored, and none is read from storage.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import BinaryType, StructType
from pyspark.sql.udf import _wrap_function

from lancekeep.domain.errors import Retryable
from lancekeep.entrypoints.spark.sql.jvm import PYTHON, READ, Jvm

Batches = Iterable[pa.RecordBatch]


def reader_factory(jvm: Jvm, read: Callable[[Any], Iterator[pa.RecordBatch]], schema: Any) -> Any:
    """Return a ``PartitionReaderFactory``.

    Args:
        jvm: The session's JVM.
        read: Takes a value that was passed to `partitions` and yields batches.
        schema: The Spark schema of the batches.
    """

    def read_one(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from read(pickle.loads(batch.column(0)[0].as_py()))  # from the driver, by `partitions`

    return jvm.java(PYTHON + "PythonPartitionReaderFactory")(
        _source(jvm), _pickled(read_one, StructType()), schema, _artifacts(jvm), jvm.option()
    )


def partitions(jvm: Jvm, values: Sequence[Any]) -> Any:
    """Return one ``InputPartition`` for each value."""
    partition = jvm.java(PYTHON + "PythonInputPartition")
    return jvm.array(
        READ + "InputPartition", [partition(index, pickle.dumps(value)) for index, value in enumerate(values)]
    )


def writer_factory(jvm: Jvm, write: Callable[[Batches], Any], schema: Any) -> Any:
    """Return a ``DataWriterFactory``.

    Args:
        jvm: The session's JVM.
        write: Takes the batches of a partition; `messages` returns its results.
        schema: The Spark schema of the batches.
    """

    def write_one(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"message": [pickle.dumps(write(batches))]})

    return jvm.java(PYTHON + "PythonBatchWriterFactory")(
        _source(jvm),
        _pickled(write_one, StructType().add("message", BinaryType())),
        schema,
        _artifacts(jvm),
        jvm.option(),
    )


def messages(answers: Iterable[Any]) -> list[Any]:
    """Return the results of the tasks of a `writer_factory`.

    Raises:
        Retryable: A task has no result.
    """
    values = list(answers)
    if None in values:
        raise Retryable("a Spark task finished without reporting its rows; nothing was committed")
    return [pickle.loads(bytes(value.pickledMessage())) for value in values]  # from tasks, by `write_one`


def _source(jvm: Jvm) -> Any:
    """Return the source from which Spark takes a worker's interpreter, environment and files."""
    return jvm.java(PYTHON + "UserDefinedPythonDataSource")(_wrap_function(jvm.spark.sparkContext, _source))


def _pickled(function: Callable[[Batches], Iterator[pa.RecordBatch]], result: StructType) -> bytes:
    return bytes(CloudPickleSerializer().dumps((function, result)))  # type: ignore[no-untyped-call]  # PySpark does not type it


def _artifacts(jvm: Jvm) -> Any:
    state = jvm.java("org.apache.spark.JobArtifactSet").getCurrentJobArtifactState()
    return jvm.option(state.get().uuid() if state.isDefined() else None)
