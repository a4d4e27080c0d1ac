"""``lancekeep verify``: check that tables are complete."""

from __future__ import annotations

from typing import Any

import attrs
import click

from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import print_json, print_line, print_table
from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark


@click.command()
@on_spark
@click.argument("tables", nargs=-1)
@click.option("--deep", is_flag=True, help="Read every value.")
@click.option(
    "--digests", metavar="FILE", help="Compare contents with the digests in this file, and add missing digests."
)
@click.pass_context
def verify(
    context: click.Context,
    chosen: Surroundings,
    tables: tuple[str, ...],
    deep: bool,
    digests: str | None,
    as_json: bool,
) -> None:
    """Check that the files and rows of tables are complete.

    Checks that every file of TABLES exists and every row is counted; by default for all tables of the catalog at ROOT.
    Changes nothing. Exit code 1: a table is incomplete.
    """
    with chosen.running("verify", tables) as job:
        report = job.jobs.verify(*job.given, tables or None, deep=deep, digests=digests, progress=job.report)
    if as_json:
        print_json(attrs.asdict(report))
    else:
        _print(report)
    if report.problems:
        context.exit(WRONG)


def _print(report: Any) -> None:
    columns = ("table", "version", "rows", "fragments", "files", "bytes", "digests compared")
    print_table("Tables", columns, [_row(attrs.astuple(table)) for table in report.tables])
    if report.problems:
        print_table("Problems", ("table", "object", "reason"), map(attrs.astuple, report.problems))
    print_line(str(report))


def _row(values: tuple[Any, ...]) -> tuple[str, ...]:
    name, *numbers = values
    return (name, *(f"{number:,}" for number in numbers))
