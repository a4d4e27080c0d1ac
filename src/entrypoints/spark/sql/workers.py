"""Spark's own classes that run a Python function on the executors, fed from here.

What Spark's Python data sources plan in a process of their own is planned in the driver's process, beside the live
catalog; the executors' part is Spark's, unchanged.
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
    """A ``PartitionReaderFactory``: ``read`` gets one of `partitions` and gives batches of the Spark ``schema``."""

    def read_one(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from read(pickle.loads(batch.column(0)[0].as_py()))

    return jvm.java(PYTHON + "PythonPartitionReaderFactory")(
        _source(jvm), _pickled(read_one, StructType()), schema, _artifacts(jvm), jvm.option()
    )


def partitions(jvm: Jvm, values: Sequence[Any]) -> Any:
    """One ``InputPartition`` for each value."""
    partition = jvm.java(PYTHON + "PythonInputPartition")
    return jvm.array(
        READ + "InputPartition", [partition(index, pickle.dumps(value)) for index, value in enumerate(values)]
    )


def writer_factory(jvm: Jvm, write: Callable[[Batches], Any], schema: Any) -> Any:
    """A ``DataWriterFactory``: ``write`` gets the batches of a partition and answers with what `messages` gives."""

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
    """What the tasks of a `writer_factory` answered. Raises `Retryable` where one did not."""
    values = list(answers)
    if None in values:
        raise Retryable("a task of Spark finished without saying what it had written; nothing was committed")
    return [pickle.loads(bytes(value.pickledMessage())) for value in values]


def _source(jvm: Jvm) -> Any:
    """Spark takes from it with which interpreter, environment and files a worker starts."""
    return jvm.java(PYTHON + "UserDefinedPythonDataSource")(_wrap_function(jvm.spark.sparkContext, _source))


def _pickled(function: Callable[[Batches], Iterator[pa.RecordBatch]], result: StructType) -> bytes:
    return bytes(CloudPickleSerializer().dumps((function, result)))  # type: ignore[no-untyped-call]  # of PySpark


def _artifacts(jvm: Jvm) -> Any:
    state = jvm.java("org.apache.spark.JobArtifactSet").getCurrentJobArtifactState()
    return jvm.option(state.get().uuid() if state.isDefined() else None)
