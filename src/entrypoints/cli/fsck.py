"""``lancekeep fsck``: what does not fit together in a catalog and its tables."""

from __future__ import annotations

from typing import Any

import click

from lancekeep.entrypoints.cli.console import WRONG, print_json, progress
from lancekeep.entrypoints.cli.options import Doors, Stores, as_json, stores
from lancekeep.entrypoints.cli.upkeep import findings_document, looks, mode, print_findings


@click.command()
@as_json
@looks
@mode
@stores
@click.pass_context
def fsck(
    context: click.Context, chosen: Stores, /, mode: str, tables: tuple[str, ...], as_json: bool, **looked: Any
) -> None:
    """Look over the catalog at ROOT and tell what does not fit together; nothing is written.

    Exit code 1: something was found. Show what can be put right: lancekeep repair.
    """
    doors: Doors = context.obj
    with chosen.catalog(doors, mode=mode) as catalog, progress("fsck") as tell:
        report = catalog.fsck(tables=tables or None, progress=tell, **looked)
    if as_json:
        print_json(findings_document(report))
    else:
        print_findings(report)
    if report.findings:
        context.exit(WRONG)
