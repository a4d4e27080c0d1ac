"""Run SQL streams as streams of ``format("lancekeep")``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from lancekeep.domain.errors import InvalidInput, Retryable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.internals.classes import OPTIONS
from lancekeep.entrypoints.spark.internals.driver import JavaErrors, java_exception
from lancekeep.entrypoints.spark.internals.python_source import micro_batch_stream, streaming_write
from lancekeep.entrypoints.spark.sql.jvm import Jvm

FORMAT = "lancekeep"
_TIME_TRAVEL = {"versionasof", "timestampasof"}
"""Options that Spark applies itself but still passes on."""


@attrs.frozen
class Streams:
    """Create streams whose processes open the catalog from options.

    Attributes:
        jvm: The session's JVM.
        options: The options of ``format("lancekeep")`` that open the catalog.
    """

    jvm: Jvm
    options: Mapping[str, str] = attrs.field(repr=False)

    def read(self, table: ObjectId, schema: Any, given: Mapping[str, str], checkpoint: str) -> Any:
        """Return a ``MicroBatchStream`` of a table."""
        options = self._all(table, given)

        def start() -> Any:
            return micro_batch_stream(self.jvm, FORMAT, schema, options, checkpoint)

        return _started(table, start)

    def write(self, table: ObjectId, info: Any, *, replaces: bool) -> Any:
        """Return a ``StreamingWrite`` to a table."""
        options = self._all(table, given_options(info.options()))
        return _started(table, lambda: streaming_write(self.jvm, FORMAT, info, options, replaces=replaces))

    def _all(self, table: ObjectId, given: Mapping[str, str]) -> Any:
        options = self.jvm.map({**self.options, "table": str(table), **given})
        return self.jvm.java(OPTIONS)(options)


def _started(table: ObjectId, start: Callable[[], Any]) -> Any:
    """Start a stream, for which Spark starts a Python process on the driver.

    Raises:
        Retryable: The process did not start, or cannot connect to the driver.
    """
    try:
        return start()
    except JavaErrors as error:
        thrown = java_exception(error)
        reason = str(thrown.getMessage() or thrown.toString())
        if "Python worker" not in reason:
            raise
        raise Retryable(
            f"{table}: Spark has no connection to the Python process that a stream needs on the driver: {reason} Check "
            "that the Python which PYSPARK_DRIVER_PYTHON or PYSPARK_PYTHON names starts on the driver and imports "
            "pyspark and lancekeep, and that processes may connect to 127.0.0.1; its errors are on the driver's stderr"
        ) from error


def given_options(options: Any) -> dict[str, str]:
    """Return the options of a ``CaseInsensitiveStringMap`` without Spark's own."""
    return {key: options.get(key) for key in options.keySet() if key not in _TIME_TRAVEL}


def refuse_options(name: str, given: Mapping[str, str]) -> None:
    """Check that a batch read or write of a named table has no options.

    Raises:
        InvalidInput: There are options.
    """
    if given:
        raise InvalidInput(
            f"{name}: there is no option {', '.join(sorted(given))}; tables of a SQL catalog take some in streams only"
        )
