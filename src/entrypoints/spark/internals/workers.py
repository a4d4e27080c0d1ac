"""Recognize PySpark's workers, pickle functions for them, and report numbers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from pyspark import TaskContext, cloudpickle
from pyspark.accumulators import Accumulator, AccumulatorParam, _accumulatorRegistry
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


NUMBERS = -20_000_172
"""The accumulator of a task's numbers. It has a number that Spark gives to none, so that drivers pass it over."""


class _Sums(AccumulatorParam[dict[str, int]]):
    def zero(self, value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:
        return dict(Counter(value1) + Counter(value2))


def add_to_task(numbers: Mapping[str, int]) -> None:
    """Add to the numbers that a task reports to its JVM; do nothing elsewhere."""
    if TaskContext.get() is not None:
        found = _accumulatorRegistry.get(NUMBERS)
        sums = Accumulator(NUMBERS, {}, _Sums()) if found is None else found
        sums.add(dict(numbers))
