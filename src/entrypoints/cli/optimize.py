"""``lancekeep optimize``: the manifest table in the shape in which others find things fast."""

from __future__ import annotations

import click

from lancekeep.entrypoints.cli.console import print_json, print_line, progress
from lancekeep.entrypoints.cli.options import Doors, Stores, as_json, stores
from lancekeep.entrypoints.cli.upkeep import mode


@click.command()
@as_json
@mode
@stores
@click.pass_context
def optimize(context: click.Context, chosen: Stores, mode: str, as_json: bool) -> None:
    """Remove old versions of the manifest table at ROOT, and build the indexes that the specification names.

    No entry changes. Lancekeep itself does not need the indexes; other implementations look things up by them.
    """
    doors: Doors = context.obj
    with chosen.catalog(doors, mode=mode) as catalog, progress("optimize"):
        catalog.optimize()
    if as_json:
        print_json({"optimized": chosen.root})
    else:
        print_line(f"The manifest table of {chosen.root} is in shape.")
