"""``lancekeep fsck``: check a catalog and its tables for inconsistencies."""

from __future__ import annotations

from typing import Any

import click

from lancekeep.application.upkeep.fsck import Finding
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import findings_document, looks, mode, print_findings


@command()
@as_json
@looks
@mode
@stores
@click.pass_context
def fsck(
    context: click.Context, chosen: Stores, /, mode: str | None, tables: tuple[str, ...], as_json: bool, **looked: Any
) -> None:
    """Check the catalog for inconsistencies; change nothing.

    Exit code 1: the check found an inconsistency. `lancekeep repair` shows which of them it can repair.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions, mode=mode) as catalog, progress("fsck") as report_progress:
        report = catalog.upkeep.fsck(tables=tables or None, progress=report_progress, **looked)
    if as_json:
        print_report(findings_document(report), "findings", Finding)
    else:
        print_findings(report)
    if report.findings:
        context.exit(WRONG)
