"""Search tables in SQL: ``vector_search``, ``text_search`` and ``hybrid_search``.

They are table functions in Python. Spark analyses a call in a process of its own, which opens the catalog and pins the
version; the executors open that version without a catalog, and Lance searches it with its indexes. The arguments may be
columns of a ``LATERAL`` join, except arguments that decide the columns of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf
from pyspark.sql.types import FloatType, StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.arrow_types import as_spark_takes, spark_schema
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.reading import Snapshot, require_columns
from lancekeep.ports.rows import Query, RowEngine, VectorSearch

Openers = Mapping[str, Callable[[], Catalog]]
"""Functions that open the installed catalogs, by name in SQL."""

_COMMON = ("k", "filter", "columns", "version")
_PARAMETERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "vector_search": (
        ("table", "column", "vector"),
        (*_COMMON, "metric", "nprobes", "refine_factor", "use_index"),
        "_distance",
    ),
    "text_search": (("table", "query"), (*_COMMON, "text_columns"), "_score"),
    "hybrid_search": (
        ("table", "column", "vector", "query"),
        (*_COMMON, "text_columns", "metric", "nprobes", "refine_factor", "use_index"),
        "_relevance_score",
    ),
}
"""The required and the optional parameters of each function, and its column of scores."""

_CONSTANT = ("table", "columns", "version")
"""The parameters that decide the columns and the version of the result, so they must be constants."""


@attrs.frozen
class _Pinned:
    """What the analysis of a call has decided.

    Attributes:
        snapshot: The version to search.
        columns: The columns to return.
        schema: The Spark schema of the result, with the score at the end.
    """

    snapshot: Snapshot
    columns: tuple[str, ...]
    schema: StructType


@dataclass
class _Analysis(AnalyzeResult):
    """The result of an analysis, which Spark hands to the executors."""

    pinned: _Pinned | None = None


class Search:
    """The common part of the table functions."""

    def __init__(self, analysis: _Analysis) -> None:
        assert analysis.pinned is not None
        self._pinned = analysis.pinned
        self._dataset: Any = None

    def _rows(
        self, function: str, engine: RowEngine, positional: Sequence[Any], named: Mapping[str, Any]
    ) -> Iterator[tuple[Any, ...]]:
        given = _bound(function, positional, named)
        query = _query(function, given, self._pinned.columns)
        if self._dataset is None:
            self._dataset = self._pinned.snapshot.open()
        schema = arrow_of(self._pinned.schema)
        for batch in engine.scan(self._dataset, query):
            taken = as_spark_takes(batch.select(schema.names), schema)
            for row in taken.to_pylist(maps_as_pydicts="strict"):
                yield tuple(row[name] for name in schema.names)


def register(spark: SparkSession, openers: Openers, engine: RowEngine) -> None:
    """Register the functions in a session."""
    for function in _PARAMETERS:
        handler = udtf(_handler(function, openers, engine))
        spark.udtf.register(function, handler)  # type: ignore[arg-type]  # a function only if no class is given


def _handler(function: str, openers: Openers, engine: RowEngine) -> type:
    class Handler(Search):  # pickled by value, with the variables that it uses
        @staticmethod
        def analyze(*positional: AnalyzeArgument, **named: AnalyzeArgument) -> AnalyzeResult:
            pinned = _analyzed(function, openers, positional, named)
            return _Analysis(pinned.schema, pinned=pinned)

        def eval(self, *positional: Any, **named: Any) -> Iterator[tuple[Any, ...]]:
            return self._rows(function, engine, positional, named)

    return Handler


def _analyzed(
    function: str, openers: Openers, positional: Sequence[AnalyzeArgument], named: Mapping[str, AnalyzeArgument]
) -> _Pinned:
    given = _bound(function, positional, named)
    for name in _CONSTANT:
        if name in given and not given[name].isConstantExpression:
            raise InvalidInput(f"{function}: the argument {name} must be a constant")
    constants = {name: given[name].value for name in _CONSTANT if name in given}
    first, *rest = ObjectId.of(constants["table"]).names
    if first not in openers or not rest:
        raise InvalidInput(
            f"{function}: name the table with its catalog, as '{min(openers)}.namespace.table'; the catalogs of this "
            f"session are {', '.join(sorted(openers))}"
        )
    with openers[first]() as catalog:
        dataset = catalog.open(rest, constants.get("version"))
        columns = tuple(constants.get("columns") or dataset.schema.names)
        require_columns(dataset.schema, columns)
        schema = spark_schema(pa.schema([dataset.schema.field(name) for name in columns]))
        schema = schema.add(_PARAMETERS[function][2], FloatType())
        return _Pinned(Snapshot.of(catalog, dataset), columns, schema)


def _bound(function: str, positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name.

    Raises:
        InvalidInput: An argument is missing, unknown or given twice.
    """
    required, optional, _ = _PARAMETERS[function]
    names = (*required, *optional)
    given = dict(zip(names, positional, strict=False)) | dict(named)
    missing = [name for name in required if name not in given]
    unknown = [name for name in named if name not in names or names.index(name) < len(positional)]
    if missing or unknown or len(positional) > len(names):
        wrong = f"it lacks {missing[0]}" if missing else f"{(*unknown, 'an argument')[0]} is unknown, or given twice"
        raise InvalidInput(f"{function}({', '.join(required)}, [{', '.join(optional)}]): {wrong}")
    return given


def _query(function: str, given: Mapping[str, Any], columns: Sequence[str]) -> Query:
    k = 10 if given.get("k") is None else int(given["k"])
    if k < 1:
        raise InvalidInput(f"{function}: k is {k}; give 1 or more")
    vector = None
    if "vector" in given:
        if given["vector"] is None:
            raise InvalidInput(f"{function}: the vector is NULL")
        probes = given.get("nprobes")
        vector = VectorSearch(
            given["column"],
            [[float(value) for value in given["vector"]]],
            k,
            metric=given.get("metric"),
            min_probes=probes,
            max_probes=probes,
            refine_factor=given.get("refine_factor"),
            use_index=given.get("use_index", True) is not False,
        )
    hybrid = function == "hybrid_search"
    return Query(
        columns=list(columns) if hybrid else [*columns, _PARAMETERS[function][2]],
        condition=given.get("filter"),
        search=vector,
        text=given.get("query"),
        text_columns=given.get("text_columns"),
        limit=None if vector is not None else k,
        prefilter=True,
        bytes_of_blobs=True,
    )
