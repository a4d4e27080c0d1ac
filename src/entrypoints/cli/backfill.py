"""``lancekeep backfill``: columns computed by a Python function."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark, print_summaries


@click.command()
@on_spark
@click.argument("table")
@click.option(
    "--function", "where", required=True, metavar="MODULE:NAME", help="It gets a record batch, and returns the columns."
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    required=True,
    metavar="NAME",
    help="To add or compute again; may be repeated.",
)
@click.option(
    "--reads", multiple=True, metavar="NAME", help="A column the function gets; may be repeated; all, if left out."
)
@click.option("--batch-rows", type=click.IntRange(1), help="Rows that the function gets at once, at most.")
@click.option(
    "--checkpoint", metavar="FOLDER", help="Where finished fragments are remembered, for a run that is stopped."
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
    """Add columns to TABLE of the catalog at ROOT, or compute them again, as one version.

    MODULE is found as Python finds it, in the working directory too.
    """
    module, function = _loaded(where)
    with chosen.running("backfill", [table]) as job:
        job.jobs.ship(module)
        summary = job.jobs.backfill(
            *job.given, table, columns, function, reads=reads or None, progress=job.told, **options
        )
    print_summaries([summary], as_json)


def _loaded(where: str) -> tuple[Any, Callable[..., Any]]:
    """A module and the function of it. Raises `click.BadParameter`."""
    name, separator, attribute = where.partition(":")
    if not name or not separator or not attribute:
        raise click.BadParameter(f"{where!r} is no function; give it as package.module:name", param_hint="--function")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
        function = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"{where!r} cannot be loaded: {error}", param_hint="--function") from error
    finally:
        sys.path.remove(os.getcwd())
    if not callable(function):
        raise click.BadParameter(f"{where!r} is no function", param_hint="--function")
    return module, function
