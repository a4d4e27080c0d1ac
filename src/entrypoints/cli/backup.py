"""``lancekeep backup``: copy a catalog to another place."""

from __future__ import annotations

import attrs
import click

from lancekeep.domain.errors import Refused
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import message, print_line, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, pairs, pairs_in_file, stores
from lancekeep.entrypoints.cli.output import print_report


@command()
@as_json
@pairs("--target-option", "An option of the storage of TARGET; may be repeated. Default: as of CATALOG.")
@pairs_in_file("--target-option-file", "The same for secret options.")
@click.option("--accept-loss", is_flag=True, help="Copy what is left of a backup that has lost files.")
@stores
@click.argument("target")
@click.pass_context
def backup(
    context: click.Context,
    chosen: Stores,
    target: str,
    target_option: dict[str, str],
    target_option_file: dict[str, str],
    accept_loss: bool,
    as_json: bool,
) -> None:
    """Copy a catalog to another place while its writers continue.

    TARGET is an empty place, or an earlier backup of CATALOG, which becomes the present one. The copy is a catalog of
    its own: restore it by the same command with an empty root as TARGET. Databases that hold entries or version rows
    are not part of it: back them up first. If it is stopped, run it again. Exit code 1: tables were dropped or moved in
    the meantime, so run it again, or check TARGET with fsck; or CATALOG is a backup that has lost files.
    """
    if chosen.served:
        raise Refused(
            f"{chosen.root} is a server, which does not copy its files. Run it where the catalog's storage and commit "
            "store are configured. Nothing was copied"
        )
    functions: PublicFunctions = context.obj
    if chosen.manifest_store is not None:
        message("The entries are in a database, which is not part of the backup.")
    with progress("backup") as report_progress:
        report = functions.backup(
            chosen.root,
            target,
            storage_options=chosen.storage_options,
            target_storage_options=target_option_file | target_option or None,
            accept_loss=accept_loss,
            progress=report_progress,
        )
    if as_json:
        print_report(attrs.asdict(report))
    else:
        print_line(str(report))
    if report.changed:
        context.exit(WRONG)
