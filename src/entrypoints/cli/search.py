"""``lancekeep search``: the nearest vectors, or the rows of a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import click

from lancekeep.application.catalog import services_of
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import Output, output
from lancekeep.entrypoints.cli.reading import chosen_version, refusing, version_option, where_option
from lancekeep.entrypoints.cli.upkeep import mode
from lancekeep.ports.rows import Query, VectorSearch

_MOST = 1_000_000
_LARGEST = (2 - 2**-23) * 2.0**127
"""The largest number of 32 bits, which the numbers of a searched vector have."""


@command()
@output
@click.option("--like", type=click.IntRange(0), metavar="POSITION", help="Search the vector of the row at a position.")
@click.option("--vector", metavar="JSON", help="Search a vector: '[0.1, 0.9]'.")
@click.option("--vector-file", metavar="FILE", help="Search the vector of a file: .npy, or a list of numbers as JSON.")
@click.option("--text", metavar="TEXT", help="Search the words of a text by a full-text index.")
@click.option("--column", metavar="NAME", help="The column to search. Default: the only one that fits.")
@click.option("-k", "number", type=click.IntRange(1, _MOST), default=10, show_default=True, help="The number of rows.")
@where_option
@click.option("--select", "columns", multiple=True, metavar="NAME", help="Show only this column; may be repeated.")
@click.option(
    "--metric", type=click.Choice(("l2", "cosine", "dot", "hamming")), help="Default: the metric of the index."
)
@version_option
@mode
@stores
@click.argument("name")
@click.pass_obj
def search(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    mode: str | None,
    version: str | None,
    branch: str | None,
    at: datetime | None,
    like: int | None,
    vector: str | None,
    vector_file: str | None,
    text: str | None,
    column: str | None,
    number: int,
    where: str | None,
    columns: tuple[str, ...],
    metric: str | None,
    out: Output,
) -> None:
    """Find the rows of a table that are nearest to a vector, or match a text.

    Shows rows of the table NAME, the best first, with their _distance to a vector or their _score for a text. --where
    applies before the search. Without an index, compares all rows.
    """
    if sum(each is not None for each in (like, vector, vector_file, text)) != 1:
        raise click.UsageError("Give one of --like, --vector, --vector-file and --text.")
    if text is not None and metric is not None:
        raise click.UsageError("--metric is for vectors.")
    with chosen.catalog(functions, mode=mode) as catalog, refusing():
        dataset = catalog.open(name, **chosen_version(version, branch, at))
        engine = services_of(catalog).engine.rows
        rank = "_distance" if text is None else "_score"
        query = Query(
            columns=list(dict.fromkeys((*columns, rank))) if columns else None, condition=where, prefilter=True
        )
        if text is not None:
            searched = column or _only_text(dataset.schema)
            query = attrs.evolve(query, text=text, text_columns=[searched] if searched else None, limit=number)
        else:
            field = _vector_field(dataset.schema, name, column)
            numbers = _of_row(dataset, field, like) if like is not None else _given(vector, vector_file)
            _check(numbers, field)
            query = attrs.evolve(query, search=VectorSearch(field.name, [numbers], number, metric))
        message(_how(engine.explain(dataset, query, verbose=False)))
        reader = engine.scan(dataset, query)
        out.batches(reader.schema, reader, "No row matches.")


def _vector_field(schema: Any, name: str, column: str | None) -> Any:
    """Return the field of the vectors to search."""
    fitting = [field for field in schema if _is_vector(field.type)]
    if column is not None:
        chosen = [field for field in fitting if field.name == column]
        if not chosen:
            raise InvalidInput(f"the table {name} has no vectors in a column {column!r}. {_named(fitting)}")
        return chosen[0]
    if len(fitting) != 1:
        raise InvalidInput(f"name the column of {name} to search with --column. {_named(fitting)}")
    return fitting[0]


def _named(fields: Sequence[Any]) -> str:
    return f"Its columns of vectors: {', '.join(field.name for field in fields) or 'none'}"


def _is_vector(arrow_type: Any) -> bool:
    import pyarrow.types as types

    if types.is_list(arrow_type) or types.is_large_list(arrow_type):  # several vectors in a row
        return bool(types.is_fixed_size_list(arrow_type.value_type))
    return bool(types.is_fixed_size_list(arrow_type))


def _of_row(dataset: Any, field: Any, position: int) -> list[float]:
    rows = dataset.count_rows()
    if position >= rows:
        raise InvalidInput(f"the table has {rows:,} rows, and no position {position:,}; positions begin with 0")
    [found] = dataset.take([position], columns=[field.name])[field.name].to_pylist()
    if found is None:
        raise InvalidInput(f"the row at position {position:,} has no vector in {field.name}; choose another row")
    return _numbers(found, f"the vector at position {position:,}")


def _given(text: str | None, file: str | None) -> list[float]:
    """Return the vector of an option or a file."""
    if text is not None:
        return _parsed(text, "--vector")
    path = Path(file or "")
    if path.suffix.lower() != ".npy":
        return _parsed(path.read_bytes(), str(path))
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidInput(f"{path} is no array of numbers in the format of NumPy") from error
    return _numbers(array.squeeze().tolist(), str(path))


def _parsed(text: str | bytes, source: str) -> list[float]:
    try:
        return _numbers(json.loads(text), source)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{source} is no JSON: {error}") from error


def _numbers(value: Any, source: str) -> list[float]:
    is_list = isinstance(value, list) and value
    if not is_list or not all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
        raise InvalidInput(f"{source} holds no vector; write one list of numbers, such as [0.1, 0.9]")
    if not all(abs(each) <= _LARGEST for each in value):
        raise InvalidInput(
            f"{source} holds NaN, infinity or a number above {_LARGEST:.2g}, of which no distance is known"
        )
    return [float(each) for each in value]


def _check(numbers: Sequence[float], field: Any) -> None:
    vectors = field.type if hasattr(field.type, "list_size") else field.type.value_type
    if len(numbers) != vectors.list_size:
        raise InvalidInput(
            f"the vector has {len(numbers):,} numbers, and the vectors of {field.name} have {vectors.list_size:,}"
        )


def _only_text(schema: Any) -> str | None:
    """Return the column of texts; None if there are several, of which Lance searches those with an index."""
    import pyarrow.types as types

    texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
    return texts[0] if len(texts) == 1 else None


def _how(plan: str) -> str:
    """Return whether the engine uses an index, by its plan."""
    is_flat = "KNN" in plan or "FlatMatchQuery" in plan
    if not ("ANN" in plan or "MatchQuery" in plan.replace("FlatMatchQuery", "")):
        return "No index was used: all rows are compared. `lancekeep index` builds one."
    return f"The index was used{', and rows that it does not have are compared' if is_flat else ''}."
