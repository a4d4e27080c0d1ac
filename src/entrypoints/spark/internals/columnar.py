"""Move batches between the JVM and Python's workers with less work per row.

Spark's reader for Python sources runs the worker, and turns each Arrow batch into rows. The readers of this module,
compiled with Spark's own compiler, run the same worker by the same classes and pass the batches on, so that generated
code reads the Arrow memory. Spark's writer measures the whole Arrow batch after each row, to end it at a number of
bytes; the writers of this module add up the sizes of the rows. Executors fetch the classes from the driver, as a jar
that is added to the application.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from lancekeep.entrypoints.spark.internals.batch_classes import SOURCE
from lancekeep.entrypoints.spark.internals.compiler import cooked
from lancekeep.entrypoints.spark.internals.driver import Driver, GatewayError, JavaErrors
from lancekeep.entrypoints.spark.internals.workers import NUMBERS

_Errors = (GatewayError, *JavaErrors)

_DIGEST = blake2b(SOURCE.encode(), digest_size=8).hexdigest()
_PACKAGE = f"lancekeep.columnar{_DIGEST}"
"""The package names the source, so that executors never mix the classes of two releases."""

_doors: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""What `_opened` returned, by the gateway of the JVM."""
_lock = Lock()
_log = logging.getLogger(__name__)


def is_distributed(driver: Driver) -> bool:
    """Return whether tasks can load readers and writers; compile them on first use."""
    door = _door(driver)
    if door is None:
        return False
    try:
        door.distribute(driver.spark._jsparkSession)
    except _Errors as error:
        _log.warning("executors get no readers and writers of batches; Spark's own take longer: %s", error)
        return False
    return True


def batch_reader_factory(
    driver: Driver, source: Any, function: bytes, schema: Any, artifacts: Any, *, columnar: bool
) -> Any:
    """Return a ``PartitionReaderFactory`` whose readers report what tasks have read.

    Args:
        driver: A driver of which `is_distributed` holds.
        source: The source from which Spark takes a worker's interpreter, environment and files.
        function: The pickled function that reads.
        schema: The Spark schema of the batches.
        artifacts: The identity of the job's artifacts, as an ``Option``.
        columnar: Whether the readers return columns, not rows.
    """
    return _door(driver).readers(driver.spark._jsparkSession, source, function, schema, columnar, artifacts)


def batch_writer_factory(driver: Driver, source: Any, function: bytes, schema: Any, artifacts: Any) -> Any:
    """Return a ``DataWriterFactory``.

    Args:
        driver: A driver of which `is_distributed` holds.
        source: As for `batch_reader_factory`.
        function: The pickled function that writes; it yields one batch with a message.
        schema: The Spark schema of the batches.
        artifacts: As for `batch_reader_factory`.
    """
    return _door(driver).writers(driver.spark._jsparkSession, source, function, schema, artifacts)


def _door(driver: Driver) -> Any:
    """Return the part of the readers in the driver; None if this Spark cannot have them."""
    gateway: Any = driver.spark.sparkContext._gateway
    with _lock:
        if gateway not in _doors:
            _doors[gateway] = _opened(driver)
        return _doors[gateway]


def _opened(driver: Driver) -> Any:
    source = SOURCE.replace("@PACKAGE@", _PACKAGE).replace("@DIGEST@", _DIGEST).replace("@NUMBERS@", str(NUMBERS))
    try:
        compiler = cooked(driver.java, source)
        kind = compiler.getClassLoader().loadClass(f"{_PACKAGE}.Readers$Door")
        return kind.getConstructors()[0].newInstance(driver.array("java.lang.Object", [compiler.getBytecodes()]))
    except _Errors as error:
        _log.warning("this Spark has no readers and writers of batches; its own take longer: %s", error)
        return None
