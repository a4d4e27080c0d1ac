"""``lancekeep relocate``: move a table to another directory."""

from __future__ import annotations

import attrs
import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import print_line, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode


@command()
@as_json
@assume_yes
@click.option("--keep", is_flag=True, help="Keep the old files.")
@mode
@stores
@click.argument("table")
@click.argument("location")
@click.pass_context
def relocate(
    context: click.Context,
    chosen: Stores,
    table: str,
    location: str,
    mode: str | None,
    keep: bool,
    assume_yes: bool,
    as_json: bool,
) -> None:
    """Move a table with its history to another directory.

    LOCATION is a directory below ROOT. Writers continue while files are copied; those that hold the old place are
    refused afterwards. Without --yes, only shows the plan. If it is stopped, run it again to complete it, or run it
    with the present location to give it up. Exit code 1: clones read the table.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions, mode=mode) as catalog, progress("relocate") as report_progress:
        report = catalog.upkeep.relocate(table, location, keep=keep, dry_run=not assume_yes, progress=report_progress)
    if as_json:
        print_report(attrs.asdict(report))
    else:
        print_line(str(report))
        if report.readers:
            print_line(f"Clones read the table, so it cannot be moved: {', '.join(report.readers)}")
        if report.dry_run:
            print_line("Nothing was changed. Run it again with --yes to apply.")
    if report.readers:
        context.exit(WRONG)
