"""Translate Spark's errors to Lancekeep errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lancekeep.domain import errors
from lancekeep.domain.errors import InvalidInput, LancekeepError, MissingExtra, Retryable

try:
    from pyspark.errors import AnalysisException, PySparkException, PySparkImportError

    from lancekeep.entrypoints.spark.internals.driver import GatewayError
except ImportError as error:
    raise MissingExtra("this needs PySpark: pip install 'lancekeep[spark]'") from error

_ERROR_LINE = re.compile(r"(?:Caused by: )?(?P<error>[\w.$]+): (?P<message>.+)")


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Translate the errors of a Spark job that commits nothing.

    Args:
        name: The table that the job writes, for messages.

    Raises:
        MissingExtra: Spark lacks a package.
        InvalidInput: Spark cannot plan the DataFrame.
        Retryable: The job failed.
        LancekeepError: A task raised it.
    """
    try:
        yield
    except PySparkImportError as error:
        raise MissingExtra(f"Spark's mapInArrow needs a package more, 'pip install pandas': {error}") from error
    except AnalysisException as error:
        raise InvalidInput(f"{name}: Spark cannot plan the DataFrame; nothing was committed: {error}") from error
    except (PySparkException, GatewayError) as error:
        raise _failure(name, str(error)) from error


def _failure(name: str, report: str) -> LancekeepError:
    """Return the error that ended a job.

    Spark's report is the traceback of a Python task or of the JVM; its last error is the cause. A Lancekeep error keeps
    its type.
    """
    found = [line for line in map(_ERROR_LINE.fullmatch, report.splitlines()) if line]
    if not found:
        first = report.partition("\n")[0]
        return Retryable(f"{name}: the Spark job failed; nothing was committed: {first}")
    error, message = found[-1]["error"], found[-1]["message"]
    module, _, kind = error.rpartition(".")
    own = getattr(errors, kind, None) if module == errors.__name__ else None
    if isinstance(own, type) and issubclass(own, LancekeepError):
        return own(f"{name}: {message}; nothing was committed")
    return Retryable(f"{name}: the Spark job failed; nothing was committed: {error}: {message}")
