"""``lancekeep digest``: record the digests of the files of tables."""

from __future__ import annotations

import attrs
import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode


@command()
@as_json
@click.option("--threads", type=click.IntRange(min=1), help="The number of files to read at a time.")
@mode
@stores
@click.argument("tables", nargs=-1)
@click.pass_obj
def digest(
    functions: PublicFunctions,
    chosen: Stores,
    tables: tuple[str, ...],
    mode: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Record the digests of the files of tables.

    Reads every file of TABLES that has no recorded digest, by default of all tables of CATALOG, and records
    its size and BLAKE2b digest beside it. `lancekeep verify` compares the digests. Run `lancekeep verify --deep` first.
    """
    with chosen.catalog(functions, mode=mode) as catalog, progress("digest") as report_progress:
        report = functions.digest(catalog, tables or None, threads=threads, progress=report_progress)
    if as_json:
        print_report(attrs.asdict(report))
    else:
        print_line(str(report))
