"""What Spark raises, as errors of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lancekeep.domain.errors import InvalidInput, MissingExtra, Retryable

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j is published without types
    from pyspark.errors import AnalysisException, PySparkException, PySparkImportError
except ImportError as error:
    raise MissingExtra("this needs PySpark: pip install 'lancekeep[spark]'") from error

_ERROR_LINE = re.compile(r"(?:Caused by: )?(?P<error>[\w.$]+): (?P<message>.+)")


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Around a Spark job that writes for the table ``name``, and commits nothing."""
    try:
        yield
    except PySparkImportError as error:
        raise MissingExtra(f"Spark's mapInArrow needs a package more, 'pip install pandas': {error}") from error
    except AnalysisException as error:
        raise InvalidInput(f"{name}: Spark cannot plan the DataFrame; nothing was committed: {error}") from error
    except (PySparkException, Py4JError) as error:
        raise _failure(name, str(error)) from error


def _failure(name: str, report: str) -> InvalidInput | Retryable:
    """What a failed job reports is the traceback of a Python task or of the JVM: the last error in it is the cause."""
    errors = [found for found in map(_ERROR_LINE.fullmatch, report.splitlines()) if found]
    reason = f"{errors[-1]['error']}: {errors[-1]['message']}" if errors else report.partition("\n")[0]
    own = f"{InvalidInput.__module__}.{InvalidInput.__qualname__}: "
    if reason.startswith(own):
        return InvalidInput(f"{name}: {reason.removeprefix(own)}; nothing was committed")
    return Retryable(f"{name}: the Spark job failed; nothing was committed: {reason}")
