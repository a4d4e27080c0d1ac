"""Access the driver's JVM, and translate Lancekeep errors to Spark's.

py4j calls back a Python object for every method of the interfaces that it names, even those with a default, on the
calling thread. So these classes implement all methods that the interfaces have in Spark 4.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from typing import Any, ClassVar, cast

from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import (
    AlreadyExists,
    InvalidInput,
    LancekeepError,
    MissingExtra,
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NotFound,
    Refused,
    Retryable,
    TableAlreadyExists,
    TableNotFound,
    ViewAlreadyExists,
    ViewNotFound,
)

try:
    from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # py4j is published without types
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j is published without types
    from pyspark.errors.exceptions.captured import CapturedException
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType, _parse_datatype_json_string
except ImportError as error:
    raise MissingExtra("this needs PySpark: pip install 'lancekeep[spark]'") from error

CATALOG = "org.apache.spark.sql.connector.catalog."
READ = "org.apache.spark.sql.connector.read."
WRITE = "org.apache.spark.sql.connector.write."
PYTHON = "org.apache.spark.sql.execution.datasources.v2.python."
_ANALYSIS = "org.apache.spark.sql.catalyst.analysis."

_CHECKED = {
    TableNotFound: _ANALYSIS + "NoSuchTableException",
    TableAlreadyExists: _ANALYSIS + "TableAlreadyExistsException",
    NamespaceNotFound: _ANALYSIS + "NoSuchNamespaceException",
    NamespaceAlreadyExists: _ANALYSIS + "NamespaceAlreadyExistsException",
    NamespaceNotEmpty: _ANALYSIS + "NonEmptyNamespaceException",
    ViewNotFound: _ANALYSIS + "NoSuchViewException",
    ViewAlreadyExists: _ANALYSIS + "ViewAlreadyExistsException",
}
"""Checked exceptions that Spark handles, as for ``IF EXISTS``; a method throws only those that it declares."""

_UNCHECKED = {
    InvalidInput: "org.apache.spark.SparkIllegalArgumentException",
    NotFound: "org.apache.spark.SparkIllegalArgumentException",
    AlreadyExists: "org.apache.spark.SparkIllegalArgumentException",
    Refused: "org.apache.spark.SparkUnsupportedOperationException",
}

_FREE_TEXT = "_LEGACY_ERROR_USER_RAISED_EXCEPTION"
"""The error condition of Spark whose only parameter is the message."""


class Jvm:
    """The JVM of a session: its classes, collections and exceptions."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._gateway: Any = cast(Any, spark.sparkContext._gateway)
        self._view: Any = spark._jvm
        ensure_callback_server_started(self._gateway)  # type: ignore[no-untyped-call]  # PySpark does not type it
        # Callbacks then throw the Java exceptions that they raise, instead of the text of a traceback.
        self._gateway.callback_server_parameters.propagate_java_exceptions = True
        for name in ("py4j.clientserver", "py4j.java_gateway"):
            logging.getLogger(name).addFilter(_is_news)
        self.java = cache(self._java)

    def _java(self, name: str) -> Any:
        return getattr(self._view, name)

    def array(self, kind: str, values: Iterable[Any]) -> Any:
        """Return a Java array of objects of the class ``kind``."""
        items = list(values)
        array = self._gateway.new_array(self.java(kind), len(items))
        for position, item in enumerate(items):  # py4j cannot assign Python objects to elements; a call can
            self.java("java.lang.reflect.Array").set(array, position, item)
        return array

    def strings(self, values: Iterable[str]) -> Any:
        return self.array("java.lang.String", values)

    def paths(self, values: Iterable[Iterable[str]]) -> Any:
        """Return a ``String[][]``."""
        items = list(values)
        array = self._gateway.new_array(self.java("java.lang.String"), len(items), 0)
        for position, item in enumerate(items):
            array[position] = self.strings(item)
        return array

    def list(self, values: Iterable[Any]) -> Any:
        result = self.java("java.util.ArrayList")()
        for value in values:
            result.add(value)
        return result

    def set(self, values: Iterable[Any]) -> Any:
        result = self.java("java.util.HashSet")()
        for value in values:
            result.add(value)
        return result

    def map(self, values: Mapping[str, str]) -> Any:
        result = self.java("java.util.HashMap")()
        for key, value in values.items():
            result.put(key, value)
        return result

    def seq(self, values: Iterable[Any]) -> Any:
        """Return a Scala ``Seq``."""
        return self._view.PythonUtils.toSeq(list(values))

    def option(self, value: Any = None) -> Any:
        """Return a Scala ``Option``, empty for None."""
        return self.java("scala.Option").apply(value)

    def struct(self, schema: StructType) -> Any:
        """Convert a Python schema of Spark to one of the JVM."""
        return self.java("org.apache.spark.sql.types.DataType").fromJson(schema.json())

    def exception(self, error: BaseException, declared: tuple[type[LancekeepError], ...] = ()) -> Any:
        """Return a Java exception with the message of an error.

        Args:
            error: The error.
            declared: The errors that the calling method declares; their exceptions are checked.
        """
        text = str(error) if isinstance(error, LancekeepError) else f"{type(error).__name__}: {error}"
        if isinstance(error, CommitUnknown):
            text += f" The token: {error.token}"
        if isinstance(error, Retryable):
            text = f"{text.rstrip('.')}. Run the statement again."
        if isinstance(error, declared):
            return self._checked(_first(_CHECKED, error), error, text)
        unchecked = _first(_UNCHECKED, error)
        if unchecked:
            return self.java(unchecked)(_FREE_TEXT, self._free_text(text))
        return self._runtime_exception(text)

    def throwable(self, exception: Any) -> Any:
        """Return a Java exception that every method may throw.

        A proxy hides a checked exception that its method does not declare, and the message with it. The methods of
        Spark's interfaces declare analysis errors only.
        """
        kinds = ("java.lang.RuntimeException", "java.lang.Error", "org.apache.spark.sql.AnalysisException")
        if any(is_instance_of(self._gateway, exception, kind) for kind in kinds):
            return exception
        text = str(exception.getMessage() or exception.toString())
        return self._runtime_exception(text, exception)

    def _runtime_exception(self, text: str, cause: Any = None) -> Any:
        contexts = self.array("org.apache.spark.QueryContext", [])
        kind = self.java("org.apache.spark.SparkRuntimeException")
        return kind(_FREE_TEXT, self._free_text(text), cause, contexts, "")

    def _checked(self, name: str, error: BaseException, text: str) -> Any:
        if isinstance(error, NamespaceNotEmpty):
            return self.java(name)(self.strings([]), text, self.option())
        cause = [self.option()] if isinstance(error, (TableNotFound, TableAlreadyExists)) else []
        return self.java(name)(_FREE_TEXT, self._free_text(text), *cause)

    def _free_text(self, text: str) -> Any:
        return self._view.PythonUtils.toScalaMap(self.map({"errorMessage": text}))


def _first(names: Mapping[type[LancekeepError], str], error: BaseException) -> str:
    return next((name for kind, name in names.items() if isinstance(error, kind)), "")


def struct(schema: Any) -> StructType:
    """Convert a JVM schema of Spark to one of Python; the inverse of `Jvm.struct`."""
    return cast(StructType, _parse_datatype_json_string(schema.json()))


class Proxy:
    """A Python object that Spark calls; ``Java.implements`` names its interfaces.

    Errors of its methods reach Spark as Java exceptions: see `Jvm.exception`.

    Attributes:
        _declared: The Lancekeep errors that a method may throw as checked exceptions, by name of the method.
    """

    _jvm: Jvm
    _declared: ClassVar[Mapping[str, tuple[type[LancekeepError], ...]]] = {}

    def __init_subclass__(cls) -> None:
        for name, method in list(vars(cls).items()):
            if callable(method) and not name.startswith("_") and name != "Java":
                setattr(cls, name, _translated(method))

    def toString(self) -> str:
        return repr(self)

    def hashCode(self) -> int:
        return id(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        return other is self


class Thrown(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    """Carries a Java exception out of a callback."""

    def __init__(self, exception: Any) -> None:
        super().__init__("thrown by Lancekeep", exception)


def _translated(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Proxy, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Py4JJavaError as error:
            raise Thrown(self._jvm.throwable(error.java_exception)) from error
        except CapturedException as error:  # PySpark's wrapper of a Java exception
            raise Thrown(self._jvm.throwable(error._origin)) from error
        except BaseException as error:  # also a panic of native code: Spark would wait for an answer
            raise Thrown(self._jvm.exception(error, self._declared.get(method.__name__, ()))) from error

    return call


def _is_news(record: logging.LogRecord) -> bool:
    """Drop py4j's log records of exceptions that Lancekeep throws on purpose: Spark reports them itself."""
    return not (record.exc_info and isinstance(record.exc_info[1], Thrown))
