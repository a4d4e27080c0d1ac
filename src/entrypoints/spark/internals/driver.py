"""Reach the driver's JVM through PySpark's gateway.

py4j calls back a Python object for every method of the interfaces that it names, even those with a default, on the
calling thread.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from lancekeep.domain.errors import MissingExtra
from lancekeep.entrypoints.spark.internals import classes

try:
    from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # py4j is published without types
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # py4j is published without types
    from pyspark import SparkConf, SparkContext
    from pyspark.errors.exceptions.captured import CapturedException
    from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
    from pyspark.sql import SparkSession
except ImportError as error:
    raise MissingExtra("this needs PySpark: pip install 'lancekeep[spark]'") from error

GatewayError: type[Exception] = Py4JError
"""A call to the JVM failed."""
JavaErrors: tuple[type[Exception], ...] = (Py4JJavaError, CapturedException)
"""The Python exceptions that carry one of Java: py4j's, and PySpark's wrapper of it."""

Java = Callable[[str], Any]
"""Returns the class with a name from a JVM."""


class Thrown(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    """Carries a Java exception out of a callback."""

    def __init__(self, exception: Any) -> None:
        super().__init__("thrown by Lancekeep", exception)


def java_exception(error: Exception) -> Any:
    """Return the Java exception that one of `JavaErrors` carries."""
    return error.java_exception if isinstance(error, Py4JJavaError) else cast(Any, error)._origin


class Driver:
    """The JVM of a session.

    Attributes:
        spark: The session.
        java: As of `Java`.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._gateway: Any = cast(Any, spark.sparkContext._gateway)
        self._view: Any = spark._jvm
        ensure_callback_server_started(self._gateway)  # type: ignore[no-untyped-call]  # PySpark does not type it
        # Callbacks then throw the Java exceptions that they raise, instead of the text of a traceback.
        self._gateway.callback_server_parameters.propagate_java_exceptions = True
        for name in ("py4j.clientserver", "py4j.java_gateway"):
            logging.getLogger(name).addFilter(_is_news)
        self.java: Java = cache(_named(self._view))

    def array(self, kind: str, values: Iterable[Any]) -> Any:
        """Return a Java array of objects of the class ``kind``."""
        items = list(values)
        array = self._gateway.new_array(self.java(kind), len(items))
        for position, item in enumerate(items):  # py4j cannot assign Python objects to elements; a call can
            self.java("java.lang.reflect.Array").set(array, position, item)
        return array

    def paths(self, values: Iterable[Iterable[str]]) -> Any:
        """Return a ``String[][]``."""
        items = list(values)
        array = self._gateway.new_array(self.java("java.lang.String"), len(items), 0)
        for position, item in enumerate(items):
            array[position] = self.array("java.lang.String", item)
        return array

    def seq(self, values: Iterable[Any]) -> Any:
        """Return a Scala ``Seq``."""
        return self._view.PythonUtils.toSeq(list(values))

    def scala_map(self, values: Any) -> Any:
        """Return a Scala ``Map`` with the entries of a ``java.util.Map``."""
        return self._view.PythonUtils.toScalaMap(values)

    def option(self, value: Any = None) -> Any:
        """Return a Scala ``Option``, empty for None."""
        return self.java("scala.Option").apply(value)

    def is_a(self, thing: Any, *kinds: str) -> bool:
        """Return whether an object of the JVM has one of the classes."""
        return any(is_instance_of(self._gateway, thing, kind) for kind in kinds)

    def columns(self, schema: Any) -> Any:
        """Return the ``Column[]`` of a schema of the JVM."""
        return self.java(classes.COLUMNS).structTypeToV2Columns(schema, False)

    def clustering(self, columns: Iterable[Any]) -> Any:
        """Return the ``Transform`` of ``CLUSTER BY``, of references to columns."""
        return self.java(classes.CLUSTERING)(self.seq(columns))

    def setting(self, name: str, default: str = "") -> str:
        """Return a setting of the session that runs the statement, or else the default."""
        return str(self.java(classes.SETTINGS).get().getConfString(name, default))

    def long_row(self, value: int) -> Any:
        """Return the ``InternalRow[]`` of one row with one ``LONG``."""
        row = self.java(classes.ROW)(1)
        row.setLong(0, value)
        return self.array(classes.INTERNAL_ROW, [row])


def driver_of_environment() -> SparkSession:
    """Return the default session of the driver that started this process.

    The environment names the driver's gateway.
    """
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]  # PySpark does not type it
    session = gateway.jvm.SparkSession.getDefaultSession().get()
    context = gateway.jvm.JavaSparkContext(session.sparkContext())
    conf = SparkConf(_jconf=context.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf), session)


def session_of(driver: Driver, session: Any) -> SparkSession:
    """Wrap another session of a driver."""
    return SparkSession(driver.spark.sparkContext, session)


@contextmanager
def idle_jvm() -> Iterator[Java]:
    """Start a JVM with Spark's classes, without a session, and end it."""
    gateway: Any = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})  # type: ignore[no-untyped-call]  # PySpark's
    try:
        yield cache(_named(gateway.jvm))
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _named(view: Any) -> Java:
    return lambda name: getattr(view, name)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop py4j's log records of exceptions that Lancekeep throws on purpose: Spark reports them itself."""
    return not (record.exc_info and isinstance(record.exc_info[1], Thrown))
