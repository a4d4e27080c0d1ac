"""``lancekeep direct-commits``: settle versions committed without the catalog."""

from __future__ import annotations

import attrs
import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import print_line
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode


@command("direct-commits")
@as_json
@assume_yes
@mode
@stores
@click.argument("table")
@click.argument("decision", type=click.Choice(["adopt", "discard"]), required=False)
@click.pass_context
def direct_commits(
    context: click.Context,
    chosen: Stores,
    table: str,
    decision: str | None,
    mode: str | None,
    assume_yes: bool,
    as_json: bool,
) -> None:
    """Adopt or discard versions that were committed to storage without the catalog.

    A table with lancekeep.direct_commits=hold shows no reader such versions, and no version follows them. adopt makes
    them versions of the table; discard replaces each by a version that equals the version before it. Without a
    decision, or without --yes, only lists them. Exit code 1: the table holds direct commits.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions, mode=mode) as catalog:
        report = catalog.upkeep.direct_commits(table, decision if assume_yes else None)
    if as_json:
        print_report(attrs.asdict(report))
    else:
        print_line(str(report))
        if decision is not None and not assume_yes:
            print_line("Nothing was changed. Run it again with --yes to apply.")
    if report.commits and report.decision is None:
        context.exit(WRONG)
