"""``lancekeep migrate``: register V1 tables in the manifest table."""

from __future__ import annotations

import click

from lancekeep.application.upkeep.migration import MigrationProgress, MigrationReport
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line, print_table, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.output import print_report


@command()
@as_json
@assume_yes
@click.option("--batch", type=click.IntRange(1), default=1000, show_default=True, help="Tables per atomic change.")
@stores
@click.pass_context
def migrate(context: click.Context, chosen: Stores, batch: int, assume_yes: bool, as_json: bool) -> None:
    """Register the V1 tables of a directory in its manifest table.

    Afterwards CATALOG can be opened with mode v2. Files stay where they are; concurrent reads and writes
    are safe. Without --yes, only shows the plan. If it is stopped, run it again to complete it.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions) as catalog, progress("migrate") as report_progress:

        def registered(step: MigrationProgress) -> None:
            report_progress(step.registered + step.skipped, step.total, f"{step.registered} registered")

        report = catalog.upkeep.migrate(dry_run=not assume_yes, batch=batch, progress=registered)
    if as_json:
        print_report(_document(report))
    else:
        _print(report)


def _print(report: MigrationReport) -> None:
    done = "would be registered" if report.dry_run else "registered"
    rows = [(str(table), done, "") for table in report.registered]
    rows += [(skipped.location, "skipped", skipped.reason) for skipped in report.skipped]
    if rows:
        print_table("V1 tables", ("table", "result", "reason"), rows)
    print_line(str(report).partition("\n")[0])
    if report.dry_run and report.registered:
        print_line("Nothing was changed. Run it again with --yes to apply.")


def _document(report: MigrationReport) -> dict[str, object]:
    return {
        "registered": [str(table) for table in report.registered],
        "skipped": [{"location": skipped.location, "reason": skipped.reason} for skipped in report.skipped],
        "dry_run": report.dry_run,
    }
