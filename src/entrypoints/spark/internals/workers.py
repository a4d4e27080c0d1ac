"""Recognize PySpark's workers, and pickle functions for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StructType


def is_forked_worker() -> bool:
    """Return whether Spark's daemon of workers has forked this process."""
    return getattr(sys.modules["__main__"].__spec__, "name", None) == "pyspark.daemon"


def pickle_by_value(module: ModuleType) -> None:
    """Let functions of a module travel to workers that cannot import it."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # pyspark's copy has no types


def pickled(function: Callable[..., Any], result: StructType) -> bytes:
    """Pickle a function with the schema of its result, as Spark's workers expect it."""
    return bytes(CloudPickleSerializer().dumps((function, result)))  # type: ignore[no-untyped-call]  # PySpark does not type it
