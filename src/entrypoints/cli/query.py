"""``lancekeep query``: SQL on tables of a catalog."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click

from lancekeep.domain.errors import MissingExtra
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import Output, output
from lancekeep.entrypoints.cli.reading import refusing
from lancekeep.entrypoints.cli.upkeep import mode

_LIMIT = 1000


@command()
@output
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=_LIMIT,
    show_default=True,
    help="The most rows of -o table; 0 for all. Other forms print all rows.",
)
@mode
@stores
@click.argument("sql")
@click.pass_obj
def query(functions: PublicFunctions, chosen: Stores, sql: str, mode: str | None, limit: int, out: Output) -> None:
    """Run a SELECT on tables of a catalog.

    SQL is a SELECT of DuckDB, such as "SELECT count(*) FROM ml.t WHERE price > 10"; '-' reads it from standard input.
    It reads tables of CATALOG by their names, all as they are at one moment, and nothing else: no file, no URL, no
    extension. `ml.t AT (VERSION => 3)` reads a version; a tag or AT (TIMESTAMP => '2d') does so too. Names that SQL
    does not take, or of more than three parts, go between double quotes: "ml.my-table".
    """
    try:
        from lancekeep.entrypoints.cli.sql import answer
    except ImportError as error:
        raise MissingExtra(f"query needs DuckDB: pip install 'lancekeep[query]' ({error})") from error
    statement = sys.stdin.read() if sql == "-" else sql
    with (
        chosen.catalog(functions, mode=mode) as catalog,
        refusing(),
        answer(catalog, statement, message) as (schema, batches),
    ):
        shown = _first(batches, limit) if limit and out.form == "table" else batches
        out.batches(schema, shown, "The answer has no rows.")


def _first(batches: Iterable[Any], limit: int) -> Iterator[Any]:
    for batch in batches:
        yield batch.slice(0, limit)
        if batch.num_rows > limit:
            message("The answer has more rows; --limit 0 and the other forms print all.")
            return
        limit -= batch.num_rows
