"""Access the driver's JVM, and translate Lancekeep errors to Spark's.

Spark calls every method of an interface in Python, even those with a default. So the classes implement all methods
that the interfaces have in Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ClassVar

from pyspark.sql.types import StructType

from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import (
    AlreadyExists,
    IndexAlreadyExists,
    IndexNotFound,
    InvalidInput,
    LancekeepError,
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
from lancekeep.entrypoints.spark.internals import classes
from lancekeep.entrypoints.spark.internals.driver import Driver, JavaErrors, Thrown, java_exception
from lancekeep.entrypoints.spark.internals.schemas import struct_of_json

_CHECKED = {
    TableNotFound: classes.NO_SUCH_TABLE,
    TableAlreadyExists: classes.TABLE_EXISTS,
    NamespaceNotFound: classes.NO_SUCH_NAMESPACE,
    NamespaceAlreadyExists: classes.NAMESPACE_EXISTS,
    NamespaceNotEmpty: classes.NAMESPACE_NOT_EMPTY,
    ViewNotFound: classes.NO_SUCH_VIEW,
    ViewAlreadyExists: classes.VIEW_EXISTS,
    IndexNotFound: classes.NO_SUCH_INDEX,
    IndexAlreadyExists: classes.INDEX_EXISTS,
}
"""Checked exceptions that Spark handles, as for ``IF EXISTS``; a method throws only the exceptions that it declares."""

_UNCHECKED = {
    InvalidInput: classes.ILLEGAL_ARGUMENT,
    NotFound: classes.ILLEGAL_ARGUMENT,
    AlreadyExists: classes.ILLEGAL_ARGUMENT,
    Refused: classes.UNSUPPORTED,
}


class Jvm(Driver):
    """The JVM of a session: its classes, collections and exceptions."""

    def strings(self, values: Iterable[str]) -> Any:
        return self.array("java.lang.String", values)

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

    def struct(self, schema: StructType) -> Any:
        """Convert a Python schema of Spark to one of the JVM."""
        return self.java(classes.TYPE).fromJson(schema.json())

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
            return self.java(unchecked)(classes.FREE_TEXT, self._free_text(text))
        return self._runtime_exception(text)

    def throwable(self, exception: Any, declared: tuple[type[LancekeepError], ...] = ()) -> Any:
        """Return a Java exception that the calling method may throw.

        A proxy hides a checked exception that its method does not declare, and the message with it.

        Args:
            exception: The exception.
            declared: As in `exception`.
        """
        checked = [_CHECKED[kind] for kind in declared]
        if self.is_a(exception, "java.lang.RuntimeException", "java.lang.Error", *checked):
            return exception
        text = str(exception.getMessage() or exception.toString())
        return self._runtime_exception(text, exception)

    def _runtime_exception(self, text: str, cause: Any = None) -> Any:
        contexts = self.array(classes.QUERY_CONTEXT, [])
        kind = self.java(classes.RUNTIME_ERROR)
        return kind(classes.FREE_TEXT, self._free_text(text), cause, contexts, "")

    def _checked(self, name: str, error: BaseException, text: str) -> Any:
        if isinstance(error, NamespaceNotEmpty):
            return self.java(name)(self.strings([]), text, self.option())
        with_cause = (TableNotFound, TableAlreadyExists, IndexNotFound, IndexAlreadyExists)
        cause = [self.option()] if isinstance(error, with_cause) else []
        return self.java(name)(classes.FREE_TEXT, self._free_text(text), *cause)

    def _free_text(self, text: str) -> Any:
        return self.scala_map(self.map({"errorMessage": text}))


def _first(names: Mapping[type[LancekeepError], str], error: BaseException) -> str:
    return next((name for kind, name in names.items() if isinstance(error, kind)), "")


def struct(schema: Any) -> StructType:
    """Convert a JVM schema of Spark to one of Python; the inverse of `Jvm.struct`."""
    return struct_of_json(schema.json())


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


def _translated(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Proxy, *args: Any) -> Any:
        declared = self._declared.get(method.__name__, ())
        try:
            return method(self, *args)
        except JavaErrors as error:
            raise Thrown(self._jvm.throwable(java_exception(error), declared)) from error
        except BaseException as error:  # also a panic of native code: Spark would wait for an answer
            raise Thrown(self._jvm.exception(error, declared)) from error

    return call
