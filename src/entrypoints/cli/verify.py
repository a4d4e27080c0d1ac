"""``lancekeep verify``: check that tables are complete."""

from __future__ import annotations

from typing import Any

import attrs
import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import print_line, print_table, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode


@command()
@as_json
@click.option("--threads", type=click.IntRange(min=1), help="The number of files to read at a time.")
@click.option("--no-digests", is_flag=True, help="Do not compare recorded digests, which reads whole files.")
@click.option("--indexes", is_flag=True, help="Compare every index with the rows, and report how many values.")
@click.option("--deep", is_flag=True, help="Read every value.")
@mode
@stores
@click.argument("tables", nargs=-1)
@click.pass_context
def verify(
    context: click.Context,
    chosen: Stores,
    tables: tuple[str, ...],
    mode: str | None,
    deep: bool,
    no_digests: bool,
    indexes: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Check that the files and rows of tables are complete.

    Checks that every file of TABLES exists and that its footer can be read; by default for all tables of the catalog at
    ROOT. Compares files with the digests that `lancekeep digest` has recorded. Changes nothing. Exit code 1: a table is
    incomplete; `lancekeep repair --drop-fragments` shows what is lost.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions, mode=mode) as catalog, progress("verify") as report_progress:
        report = functions.verify(
            catalog,
            tables or None,
            deep=deep,
            digests=not no_digests,
            indexes=indexes,
            threads=threads,
            progress=report_progress,
        )
    if as_json:
        from lancekeep.entrypoints.verification import Problem  # loads pylance, which has read the files

        print_report(attrs.asdict(report), "problems", Problem)
    else:
        _print(report)
    if report.problems:
        context.exit(WRONG)


def _print(report: Any) -> None:
    columns = ("table", "version", "rows", "fragments", "files", "bytes", "digests compared")
    print_table("Tables", columns, [_row(attrs.astuple(table)[: len(columns)]) for table in report.tables])
    for table in report.tables:
        if table.undigested:
            print_line(
                f"{table.table}: {table.undigested:,} files have no recorded digest; `lancekeep digest` records them"
            )
        if table.unrecorded:
            print_line(f"{table.table}: no digests of the versions {', '.join(map(str, table.unrecorded))}")
    for table in report.tables:
        if table.index_counts is not None:
            print_line(f"{table.table}: {table.index_counts}")
        for index in table.indexes:
            if index.reason:
                print_line(f"{table.table}: the index {index.name} ({index.kind}) was not compared: {index.reason}")
    if report.problems:
        problems = [(problem.table, problem.object, problem.reason) for problem in report.problems]
        print_table("Problems", ("table", "object", "reason"), problems)
    print_line(str(report))


def _row(values: tuple[Any, ...]) -> tuple[str, ...]:
    name, *numbers = values
    return (name, *(f"{number:,}" for number in numbers))
