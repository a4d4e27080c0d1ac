"""``lancekeep migrate-names``: rename the manifests of a table."""

from __future__ import annotations

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode


@command("migrate-names")
@as_json
@assume_yes
@click.option(
    "--interrupt-plain-readers",
    is_flag=True,
    help="Proceed if readers without the catalog refuse the latest version until the end.",
)
@click.option(
    "--reader-pause",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="The time that readers have to read a manifest by its V1 name.",
)
@mode
@stores
@click.argument("table")
@click.pass_obj
def migrate_names(
    functions: PublicFunctions,
    chosen: Stores,
    table: str,
    mode: str | None,
    reader_pause: float,
    interrupt_plain_readers: bool,
    assume_yes: bool,
    as_json: bool,
) -> None:
    """Rename the manifests of a table from V1 to V2.

    Includes the manifests of its branches. Readers and writers of the catalog continue. Without --yes, only shows the
    plan. If it is stopped, run it again to complete it.
    """
    with chosen.catalog(functions, mode=mode) as catalog, progress("migrate") as report_progress:
        renamed = catalog.upkeep.migrate_manifest_names(
            table,
            interrupt_plain_readers=interrupt_plain_readers,
            reader_pause=reader_pause,
            dry_run=not assume_yes,
            progress=report_progress,
        )
    if as_json:
        histories = [{"branch": each.branch, "switched": each.switched, "versions": each.versions} for each in renamed]
        print_report({"table": table, "histories": histories, "dry_run": not assume_yes})
        return
    done = "Renamed" if assume_yes else "Would rename"
    for each in renamed:
        name = "@".join(filter(None, (table, each.branch)))
        switch = "" if each.switched is None else f"; version {each.switched} has the first V2 name"
        print_line(f"{done} {len(each.versions)} manifests of {name}{switch}")
    if not renamed:
        print_line(f"{table} has no V1 names")
    elif not assume_yes:
        print_line("Nothing was changed. Run it again with --yes to apply.")
