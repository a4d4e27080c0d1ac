"""``lancekeep cleanup``: removing old versions of tables, and the files that nothing needs any more."""

from __future__ import annotations

from datetime import timedelta

import attrs
import click

from lancekeep.application.upkeep.cleanup import CleanupReport, TableCleanup
from lancekeep.entrypoints.cli.console import WRONG, print_json, print_line, print_table, progress
from lancekeep.entrypoints.cli.options import Doors, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.upkeep import mode, span


@click.command()
@as_json
@assume_yes
@click.option("--older-than", type=span, required=True, help="How long a version stays once a later one exists: 7d.")
@click.option("--keep", type=click.IntRange(1), default=1, show_default=True, help="How many stay anyway.")
@click.option("--grace", type=span, default="7d", show_default=True, help="How long a write may take.")
@click.option("--table", "tables", multiple=True, metavar="NAME", help="Clean this table alone; repeatable.")
@mode
@stores
@click.pass_context
def cleanup(
    context: click.Context,
    chosen: Stores,
    mode: str,
    older_than: timedelta,
    keep: int,
    grace: timedelta,
    tables: tuple[str, ...],
    assume_yes: bool,
    as_json: bool,
) -> None:
    """Remove old versions of the tables at ROOT, and files that no table, tag, branch or clone in it needs.

    Without --yes it only shows what would go. Stopped, it is completed by running it again. Exit code 1: a table was
    left out, since it is damaged.
    """
    doors: Doors = context.obj
    with chosen.catalog(doors, mode=mode) as catalog, progress("cleanup") as tell:
        report = catalog.cleanup(
            older_than, keep=keep, grace=grace, tables=tables or None, dry_run=not assume_yes, progress=tell
        )
    if as_json:
        print_json(attrs.asdict(report))
    else:
        _print(report)
    if report.skipped:
        context.exit(WRONG)


def _print(report: CleanupReport) -> None:
    columns = ("table", "branch", "versions", "stay", "unfinished", "files", "bytes")
    rows = [_row(table) for table in report.tables]
    if rows:
        print_table("Would be removed" if report.dry_run else "Removed", columns, rows)
    if report.skipped:
        print_table("Left out", ("table", "reason"), [(left.table, left.reason) for left in report.skipped])
    print_line(str(report).partition("\n")[0])
    if report.dry_run and rows:
        print_line("Nothing was changed: do it with --yes")


def _row(table: TableCleanup) -> tuple[str, ...]:
    numbers = (len(table.versions), table.kept, table.staged, table.files, table.bytes)
    return (table.table, table.branch, *(f"{number:,}" for number in numbers))
