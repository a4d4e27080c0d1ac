"""``lancekeep head``, ``tail``, ``sample``, ``take`` and ``count``."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from itertools import chain
from typing import Any

import click

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import Output, output
from lancekeep.entrypoints.cli.reading import chosen_version, refusing, version_option, where_option
from lancekeep.entrypoints.cli.upkeep import mode

_NONE = "The table has no such rows."


def _of_table(command: Callable[..., None]) -> Callable[..., None]:
    """Pass a command the opened dataset of NAME; translate errors of the engine about an expression or a column."""

    @version_option
    @mode
    @stores
    @click.argument("name")
    @click.pass_obj
    @wraps(command)
    def on_table(
        functions: PublicFunctions,
        chosen: Stores,
        /,
        *args: Any,
        name: str,
        mode: str | None,
        version: str | None,
        branch: str | None,
        at: datetime | None,
        **options: Any,
    ) -> None:
        with chosen.catalog(functions, mode=mode) as catalog, refusing():
            command(catalog.open(name, **chosen_version(version, branch, at)), *args, **options)

    return on_table


_MOST = (1 << 63) - 1
"""The largest number that the engine takes."""


def _number(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "-n", "--rows", "number", type=click.IntRange(0), default=10, show_default=True, help="The number of rows."
    )(command)


def _columns(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--column", "columns", multiple=True, metavar="NAME", help="Only this column; may be repeated."
    )(command)


@command()
@output
@_number
@_columns
@where_option
@_of_table
def head(dataset: Any, number: int, columns: tuple[str, ...], where: str | None, out: Output) -> None:
    """Show the first rows of a table.

    Shows rows of the table NAME in the order in which they are stored.
    """
    _print(dataset, columns, out, filter=where, limit=min(number, _MOST))


@command()
@output
@_number
@_columns
@where_option
@_of_table
def tail(dataset: Any, number: int, columns: tuple[str, ...], where: str | None, out: Output) -> None:
    """Show the last rows of a table.

    Shows rows of the table NAME in the order in which they are stored, so the rows of the latest append are last.
    """
    with progress("tail"):
        rows = dataset.count_rows(where)
    _print(dataset, columns, out, filter=where, limit=min(number, rows), offset=max(rows - number, 0))


@command()
@output
@_number
@_columns
@click.option("--seed", type=int, help="Choose the same rows in each run.")
@_of_table
def sample(dataset: Any, number: int, columns: tuple[str, ...], seed: int | None, out: Output) -> None:
    """Show random rows of a table.

    Each row of the table NAME has the same chance.
    """
    rows = dataset.count_rows()
    _print_taken(dataset, sorted(random.Random(seed).sample(range(rows), min(number, rows))), columns, out)


@command()
@output
@_columns
@_of_table
@click.argument("positions", nargs=-1, required=True, type=click.IntRange(0), metavar="POSITION...")
def take(dataset: Any, positions: tuple[int, ...], columns: tuple[str, ...], out: Output) -> None:
    """Show the rows of a table at positions.

    Shows the rows of the table NAME at each POSITION; the first row has the position 0.
    """
    rows = dataset.count_rows()
    beyond = [position for position in positions if position >= rows]
    if beyond:
        raise InvalidInput(f"the table has {rows:,} rows, and no position {beyond[0]:,}; positions begin with 0")
    _print_taken(dataset, positions, columns, out)


@command()
@output
@where_option
@_of_table
def count(dataset: Any, where: str | None, out: Output) -> None:
    """Count the rows of a table.

    Counts the rows of the table NAME. Without --where, reads no data files.
    """
    with progress("count"):
        rows = dataset.count_rows(where)
    out.number("rows", rows)


def _print(dataset: Any, columns: Sequence[str], out: Output, **chosen: Any) -> None:
    if chosen["limit"]:
        scanner = dataset.scanner(columns=list(columns) or None, scan_in_order=True, **chosen)
        batches = scanner.to_batches()
        with progress("read"):  # a filter may search the whole table for the first row
            first = next(batches, None)
        out.batches(scanner.projected_schema, chain(() if first is None else (first,), batches), _NONE)
    else:
        out.batches(dataset.scanner(columns=list(columns) or None).projected_schema, [], _NONE)


def _print_taken(dataset: Any, positions: Sequence[int], columns: Sequence[str], out: Output) -> None:
    with progress("read"):
        table = dataset.take(list(positions), columns=list(columns) or None)
    out.batches(table.schema, table.to_batches(), _NONE)
