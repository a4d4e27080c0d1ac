"""``lancekeep backfill``: add columns that a Python function computes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark, print_summaries


@command()
@on_spark
@click.argument("table")
@click.option(
    "--function",
    "where",
    required=True,
    metavar="MODULE:NAME",
    help="Function that takes a record batch and returns the columns.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Column to add or recompute; may be repeated.",
)
@click.option(
    "--reads", multiple=True, metavar="NAME", help="Column that the function reads; may be repeated; default: all."
)
@click.option("--batch-rows", type=click.IntRange(1), help="Maximum number of rows per call.")
@click.option(
    "--checkpoint", metavar="FOLDER", help="Folder that records finished fragments, so that a stopped run can resume."
)
def backfill(
    chosen: Surroundings,
    /,
    table: str,
    where: str,
    columns: tuple[str, ...],
    reads: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Add or recompute columns with a Python function, as one version.

    Writes to TABLE of CATALOG. Python imports MODULE, also from the working directory.
    """
    module, function = _loaded(where)
    with chosen.running("backfill", [table]) as job:
        job.jobs.ship(module)
        summary = job.jobs.backfill(
            *job.given, table, columns, function, reads=reads or None, progress=job.report, **options
        )
    print_summaries([summary], as_json)


def _loaded(where: str) -> tuple[Any, Callable[..., Any]]:
    """Import a module and return it with its function.

    Raises:
        click.BadParameter: The function cannot be imported.
    """
    name, separator, attribute = where.partition(":")
    if not name or not separator or not attribute:
        raise click.BadParameter(
            f"{where!r} does not name a function; expected package.module:name", param_hint="--function"
        )
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
        function = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"{where!r} cannot be imported: {error}", param_hint="--function") from error
    finally:
        sys.path.remove(os.getcwd())
    if not callable(function):
        raise click.BadParameter(f"{where!r} is not callable; name a function", param_hint="--function")
    return module, function
