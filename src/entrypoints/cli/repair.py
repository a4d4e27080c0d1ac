"""``lancekeep repair``: repair the inconsistencies that ``fsck`` finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from lancekeep.application.upkeep.fsck import Finding
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import print_line, print_table, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import findings_document, looks, mode, print_findings

if TYPE_CHECKING:  # pylance loads only when a command reads files
    from lancekeep.entrypoints.lost_rows import LostRows


@command()
@as_json
@assume_yes
@click.option("--drop-fragments", is_flag=True, help="Remove the fragments whose files cannot be read.")
@click.option("--accept-loss", is_flag=True, help="Discard latest versions that cannot be read.")
@looks
@mode
@stores
@click.pass_context
def repair(
    context: click.Context,
    chosen: Stores,
    /,
    mode: str | None,
    tables: tuple[str, ...],
    assume_yes: bool,
    drop_fragments: bool,
    as_json: bool,
    **looked: Any,
) -> None:
    """Repair the inconsistencies that fsck finds, without losing data.

    This removes deep clones that were stopped: to keep one, repeat its clone command first.
    With --accept-loss, a table whose latest version cannot be read returns to an older version; only a backup can
    restore the discarded one. With --drop-fragments, a new version of a table lacks the fragments whose files cannot be
    read; older versions stay. Without --yes, only shows the plan. Exit code 1: an inconsistency remains.
    """
    functions: PublicFunctions = context.obj
    lost: list[LostRows] = []
    with chosen.catalog(functions, mode=mode) as catalog, progress("repair") as report_progress:
        report = catalog.upkeep.fsck(repair=assume_yes, tables=tables or None, progress=report_progress, **looked)
        if drop_fragments:
            verified = functions.verify(catalog, tables or None, progress=report_progress)
            lost = (functions.drop_fragments if assume_yes else functions.lost_rows)(catalog, verified)
    if as_json:
        dropped = {"lost": [attrs.asdict(each) for each in lost]} if drop_fragments else {}
        print_report({**findings_document(report), **dropped, "applied": assume_yes}, "findings", Finding)
    else:
        print_findings(report)
        _print_lost(lost)
        repairable = sum(bool(finding.repair) for finding in report.findings) + len(lost)
        if repairable and not assume_yes:
            print_line(f"{repairable} can be repaired. Nothing was changed. Run it again with --yes to apply.")
    if not all(finding.repaired for finding in report.findings) or (lost and not assume_yes):
        context.exit(WRONG)


def _print_lost(lost: list[LostRows]) -> None:
    if lost:
        rows = [
            (each.table, str(each.fragment), f"{each.first:,}", f"{each.rows:,}", "; ".join(each.reasons))
            for each in lost
        ]
        print_table("Fragments that cannot be read", ("table", "fragment", "first row", "rows", "reason"), rows)
