"""Read the changes of a table by the table function ``changes``.

It returns the rows of ``CHANGES FROM VERSION`` with bounds that are expressions, and can be joined. Spark analyses a
call in a process of its own, which opens the catalog and plans the changes; one executor reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf
from pyspark.sql.types import StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.changes import CHANGE_COLUMNS, Step, steps
from lancekeep.entrypoints.spark.internals.schemas import arrow_of, spark_of
from lancekeep.entrypoints.spark.sql.columns import spark_schema
from lancekeep.entrypoints.spark.sql.search import Openers

FUNCTION = "changes"


@dataclass
class _Analysis(AnalyzeResult):
    """The result of an analysis, which Spark hands to the executor."""

    planned: tuple[Step, ...] = ()


def register_changes(spark: SparkSession, openers: Openers) -> None:
    """Register the function in a session."""
    spark.udtf.register(FUNCTION, udtf(_handler(openers)))  # type: ignore[arg-type]  # a function only if no class is given


def _handler(openers: Openers) -> type:
    class Changes:  # pickled by value, with the variables that it uses
        def __init__(self, analysis: _Analysis) -> None:
            self._planned = analysis.planned

        @staticmethod
        def analyze(
            table: AnalyzeArgument, from_version: AnalyzeArgument, to_version: AnalyzeArgument | None = None
        ) -> AnalyzeResult:
            return _analyzed(openers, table, from_version, to_version)

        def eval(self, table: str, from_version: int, to_version: int | None = None) -> Iterator[tuple[Any, ...]]:
            for step in self._planned:
                for batch in step.read():
                    for row in batch.to_pylist(maps_as_pydicts="strict"):
                        yield tuple(row[name] for name in batch.schema.names)

    return Changes


def _analyzed(
    openers: Openers, table: AnalyzeArgument, first: AnalyzeArgument, last: AnalyzeArgument | None
) -> _Analysis:
    """Plan the changes.

    Raises:
        InvalidInput: An argument is not a constant, or a bound is no version of the table.
    """
    if not all(argument is None or argument.isConstantExpression for argument in (table, first, last)):
        raise InvalidInput(f"{FUNCTION}: the arguments must be constants")
    name, *rest = ObjectId.of(table.value).names
    if name not in openers or not rest:
        raise InvalidInput(
            f"{FUNCTION}: name the table with its catalog, as '{min(openers)}.namespace.table'; the catalogs of this "
            f"session are {', '.join(sorted(openers))}"
        )
    with openers[name]() as catalog:
        latest = catalog.open(rest).version
        start, end = first.value, latest if last is None or last.value is None else last.value
        if start is None or not 1 <= start <= latest or not 1 <= end <= latest:
            raise InvalidInput(f"{FUNCTION}: from {start} to {end}; give versions of {table.value} from 1 to {latest}")
        columns = StructType([*spark_schema(catalog.open(rest, end).schema), *spark_of(CHANGE_COLUMNS)])
        arrow = arrow_of(columns)
        planned = steps(
            catalog, str(table.value), lambda version: catalog.open(rest, version), range(start, end + 1), arrow
        )
        return _Analysis(columns, planned=tuple(planned))
