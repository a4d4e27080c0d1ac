"""``lancekeep optimize``: index the manifest table and remove its old versions."""

from __future__ import annotations

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode


@command()
@as_json
@mode
@stores
@click.pass_context
def optimize(context: click.Context, chosen: Stores, mode: str | None, as_json: bool) -> None:
    """Remove old versions of the manifest table and build its indexes.

    No entry of CATALOG changes. Other implementations use the indexes; Lancekeep does not need them.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions, mode=mode) as catalog, progress("optimize"):
        catalog.upkeep.optimize()
    if as_json:
        print_report({"optimized": chosen.root})
    else:
        print_line(f"Optimized the manifest table of {chosen.root}.")
