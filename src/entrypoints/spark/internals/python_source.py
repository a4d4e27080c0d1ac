"""Use parts of Spark's data source in Python.

Spark plans its Python data sources in a separate process. The SQL catalog plans them in the driver's process, and uses
the part that runs on executors, unchanged. Streams are Spark's from end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql.types import StructType
from pyspark.sql.udf import _wrap_function

from lancekeep.entrypoints.spark.internals import classes
from lancekeep.entrypoints.spark.internals.columnar import batch_reader_factory, batch_writer_factory
from lancekeep.entrypoints.spark.internals.driver import Driver
from lancekeep.entrypoints.spark.internals.workers import pickled

# -- tasks on executors --------------------------------------------------------------------------------------------


def input_partitions(driver: Driver, values: Iterable[bytes]) -> Any:
    """Return one ``InputPartition`` for each value."""
    partition = driver.java(classes.PYTHON_PARTITION)
    return driver.array(
        classes.READ + "InputPartition", [partition(index, value) for index, value in enumerate(values)]
    )


def reader_factory(driver: Driver, read: Callable[..., Any], schema: Any, *, columnar: bool, distributed: bool) -> Any:
    """Return a ``PartitionReaderFactory``.

    Args:
        driver: The driver.
        read: Takes batches, whose first value is the value of a partition, and yields batches.
        schema: The Spark schema of the batches.
        columnar: Whether the readers return columns, not rows; only ours do.
        distributed: Whether tasks can load our readers; see `is_distributed`.
    """
    source, function, artifacts = _interpreter(driver), pickled(read, StructType()), _artifacts(driver)
    if distributed:
        return batch_reader_factory(driver, source, function, schema, artifacts, columnar=columnar)
    return driver.java(classes.PYTHON_READERS)(source, function, schema, artifacts, driver.option())


def writer_factory(
    driver: Driver, write: Callable[..., Any], result: StructType, schema: Any, *, distributed: bool
) -> Any:
    """Return a ``DataWriterFactory``.

    Args:
        driver: The driver.
        write: Takes the batches of a partition, and yields one batch with a message.
        result: The schema of the message.
        schema: The Spark schema of the batches.
        distributed: Whether tasks can load our writers; see `is_distributed`.
    """
    source, function, artifacts = _interpreter(driver), pickled(write, result), _artifacts(driver)
    if distributed:
        return batch_writer_factory(driver, source, function, schema, artifacts)
    return driver.java(classes.PYTHON_WRITERS)(source, function, schema, artifacts, driver.option())


def message(answer: Any) -> bytes:
    """Return the message that the task of a `writer_factory` sent."""
    return bytes(answer.pickledMessage())


def _interpreter(driver: Driver) -> Any:
    """Return the source from which Spark takes a worker's interpreter, environment and files."""
    return driver.java(classes.PYTHON_FUNCTION)(_wrap_function(driver.spark.sparkContext, _interpreter))


def _artifacts(driver: Driver) -> Any:
    state = driver.java(classes.ARTIFACTS).getCurrentJobArtifactState()
    return driver.option(state.get().uuid() if state.isDefined() else None)


# -- streams -------------------------------------------------------------------------------------------------------


def micro_batch_stream(driver: Driver, name: str, schema: Any, options: Any, checkpoint: str) -> Any:
    """Return the ``MicroBatchStream`` of a data source.

    Args:
        driver: The driver.
        name: The name of the data source.
        schema: The Spark schema of the rows.
        options: The options of the read, as a ``CaseInsensitiveStringMap``.
        checkpoint: The location of the stream's checkpoint.
    """
    filters = driver.array(classes.SOURCE_FILTER, [])
    scan = driver.java(classes.PYTHON_SCAN)(_source(driver, name), name, schema, options, filters)
    return scan.toMicroBatchStream(checkpoint)


def streaming_write(driver: Driver, name: str, info: Any, options: Any, *, replaces: bool) -> Any:
    """Return the ``StreamingWrite`` of a data source.

    Args:
        driver: The driver.
        name: The name of the data source.
        info: The ``LogicalWriteInfo`` of the write.
        options: The options in place of the options in ``info``.
        replaces: Whether each batch replaces the rows.
    """
    nothing = driver.java("java.util.Optional").empty()
    with_options = driver.java(classes.WRITE_INFO)(info.queryId(), info.schema(), options, nothing, nothing)
    kind = driver.java(classes.PYTHON_WRITE)
    return kind(_source(driver, name), name, with_options, replaces).toStreaming()


def _source(driver: Driver, name: str) -> Any:
    source = driver.java(classes.PYTHON_SOURCE)()
    source.setShortName(name)
    return source
