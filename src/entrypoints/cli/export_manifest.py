"""``lancekeep export-manifest``: a snapshot for native readers."""

from __future__ import annotations

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report


@command()
@as_json
@stores
@click.pass_context
def export_manifest(context: click.Context, chosen: Stores, as_json: bool) -> None:
    """Write the entries of a database for native readers.

    The entries of CATALOG become the table __manifest in its root.

    For a catalog whose entries are in a database: native readers of the root list and open the tables as of this
    call. Run it again to show later changes.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions) as catalog, progress("export-manifest"):
        entries = catalog.upkeep.export_manifest()
    if as_json:
        print_report({"exported": chosen.root, "entries": entries})
    else:
        print_line(f"Exported {entries} entries to the manifest table of {chosen.root}.")
