"""``lancekeep repair``: repair the inconsistencies that ``fsck`` finds."""

from __future__ import annotations

from typing import Any

import click

from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import print_json, print_line, progress
from lancekeep.entrypoints.cli.options import Doors, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.upkeep import findings_document, looks, mode, print_findings


@click.command()
@as_json
@assume_yes
@click.option("--accept-loss", is_flag=True, help="Discard latest versions that cannot be read.")
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
    """Repair the inconsistencies that fsck finds, without losing data.

    With --accept-loss, a table whose latest version cannot be read returns to an older version; only a backup can
    restore the discarded one. Without --yes, only shows the plan. Exit code 1: an inconsistency remains.
    """
    doors: Doors = context.obj
    with chosen.catalog(doors, mode=mode) as catalog, progress("repair") as report_progress:
        report = catalog.fsck(repair=assume_yes, tables=tables or None, progress=report_progress, **looked)
    if as_json:
        print_json({**findings_document(report), "applied": assume_yes})
    else:
        print_findings(report)
        repairable = sum(bool(finding.repair) for finding in report.findings)
        if repairable and not assume_yes:
            print_line(f"{repairable} can be repaired. Nothing was changed. Run it again with --yes to apply.")
    if not all(finding.repaired for finding in report.findings):
        context.exit(WRONG)
