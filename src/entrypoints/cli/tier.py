"""``lancekeep tier``: move old data files of a table to another prefix or bucket."""

from __future__ import annotations

from datetime import timedelta

import attrs
import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode, span


@command()
@as_json
@assume_yes
@click.option("--older-than", type=span, help="Move the files of versions of at least this age: 90d.")
@click.option("--before-version", type=click.IntRange(1), help="Move the files of versions before this one.")
@mode
@stores
@click.argument("table")
@click.argument("base")
@click.pass_obj
def tier(
    functions: PublicFunctions,
    chosen: Stores,
    table: str,
    base: str,
    mode: str | None,
    older_than: timedelta | None,
    before_version: int | None,
    assume_yes: bool,
    as_json: bool,
) -> None:
    """Move old data files of a table to another prefix or bucket.

    BASE is an absolute path or a URI outside of ROOT. The files are copied, and one version of TABLE names the copies;
    cleanup removes the old files with the versions that name them. Without --yes, only shows the plan.
    """
    limit = before_version if older_than is None else older_than
    if limit is None or None not in (older_than, before_version):
        raise click.UsageError("give either --older-than or --before-version")
    with chosen.catalog(functions, mode=mode) as catalog, progress("tier") as report_progress:
        report = catalog.upkeep.move_fragments(table, limit, base, dry_run=not assume_yes, progress=report_progress)
    if as_json:
        print_report(attrs.asdict(report))
        return
    print_line(str(report))
    if report.dry_run and report.files:
        print_line("Nothing was changed. Run it again with --yes to apply.")
