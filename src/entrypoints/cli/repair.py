"""``lancekeep repair``: putting right what ``fsck`` finds, where nothing is lost by it."""

from __future__ import annotations

from typing import Any

import click

from lancekeep.entrypoints.cli.console import WRONG, print_json, print_line, progress
from lancekeep.entrypoints.cli.options import Doors, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.upkeep import findings_document, looks, mode, print_findings


@click.command()
@as_json
@assume_yes
@click.option("--accept-loss", is_flag=True, help="Give up latest versions that cannot be read.")
@looks
@mode
@stores
@click.pass_context
def repair(
    context: click.Context,
    chosen: Stores,
    /,
    mode: str,
    tables: tuple[str, ...],
    assume_yes: bool,
    as_json: bool,
    **looked: Any,
) -> None:
    """Put right what does not fit together in the catalog at ROOT, where nothing is lost by it.

    --accept-loss goes back to an older version if the latest one cannot be read: without a backup nothing brings it
    back. Without --yes it only shows what it would do. Exit code 1: something is left that was not put right.
    """
    doors: Doors = context.obj
    with chosen.catalog(doors, mode=mode) as catalog, progress("repair") as tell:
        report = catalog.fsck(repair=assume_yes, tables=tables or None, progress=tell, **looked)
    if as_json:
        print_json({**findings_document(report), "applied": assume_yes})
    else:
        print_findings(report)
        repairable = sum(bool(finding.repair) for finding in report.findings)
        if repairable and not assume_yes:
            print_line(f"{repairable} can be put right; nothing was changed: do it with --yes")
    if not all(finding.repaired for finding in report.findings):
        context.exit(WRONG)
