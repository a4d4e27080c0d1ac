"""``lancekeep cleanup``: remove old versions of tables and unreferenced files."""

from __future__ import annotations

from datetime import timedelta

import attrs
import click

from lancekeep.application.upkeep.cleanup_report import CleanupReport, TableCleanup
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import print_line, print_table, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode, span


@command()
@as_json
@assume_yes
@click.option(
    "--older-than", type=span, required=True, help="Remove a version once its successor is older than this: 7d."
)
@click.option("--keep", type=click.IntRange(1), default=1, show_default=True, help="Latest versions that always stay.")
@click.option(
    "--grace",
    type=span,
    default="7d",
    show_default=True,
    help="Keep files younger than this: a running write may need them.",
)
@click.option("--table", "tables", multiple=True, metavar="NAME", help="Clean only this table; may be repeated.")
@mode
@stores
@click.pass_context
def cleanup(
    context: click.Context,
    chosen: Stores,
    mode: str | None,
    older_than: timedelta,
    keep: int,
    grace: timedelta,
    tables: tuple[str, ...],
    assume_yes: bool,
    as_json: bool,
) -> None:
    """Remove old versions of tables and the files that only they need.

    Keeps what any table, tag, branch or clone of CATALOG needs. Without --yes, only shows the plan. If it
    is stopped, run it again to complete it. Exit code 1: a damaged table was skipped.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions, mode=mode) as catalog, progress("cleanup") as report_progress:
        report = catalog.upkeep.cleanup(
            older_than, keep=keep, grace=grace, tables=tables or None, dry_run=not assume_yes, progress=report_progress
        )
    if as_json:
        print_report(attrs.asdict(report), "tables", TableCleanup)
    else:
        _print(report)
    if report.skipped:
        context.exit(WRONG)


def _print(report: CleanupReport) -> None:
    columns = ("table", "branch", "versions", "kept", "unfinished", "files", "bytes")
    rows = [_row(table) for table in report.tables]
    if rows:
        print_table("Would be removed" if report.dry_run else "Removed", columns, rows)
    if report.skipped:
        print_table("Skipped", ("table", "reason"), [(left.table, left.reason) for left in report.skipped])
    print_line(str(report).partition("\n")[0])
    if report.dry_run and rows:
        print_line("Nothing was changed. Run it again with --yes to apply.")


def _row(table: TableCleanup) -> tuple[str, ...]:
    numbers = (len(table.versions), table.kept, table.staged, table.files, table.bytes)
    return (table.table, table.branch, *(f"{number:,}" for number in numbers))
