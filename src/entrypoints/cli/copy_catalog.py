"""``lancekeep copy-catalog``: move a catalog to another home of its entries."""

from __future__ import annotations

import attrs
import click

from lancekeep.application.upkeep.copy_report import CatalogCopy
from lancekeep.config import REMEMBERED
from lancekeep.config_settings import MODES
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import print_line, print_table, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, as_json, assume_yes, pairs, pairs_in_file
from lancekeep.entrypoints.cli.output import print_report


@command()
@as_json
@assume_yes
@click.option("--root", help="The root, if neither FROM nor TO is one.")
@click.option("--mode", type=click.Choice(MODES), help="Mode in which the directory is opened.")
@click.option("--commit-store", metavar="URL", help="Commit store of FROM. Default: the one that it remembers.")
@click.option("--to-commit-store", metavar="URL", help="Then move the versions to this commit store.")
@click.option("--writers-stopped", is_flag=True, help="No process changes the catalog; FROM cannot refuse them itself.")
@click.option("--give-up", is_flag=True, help="End an unfinished copy; FROM permits operations again.")
@pairs("--storage-option", "An option of the storage; may be repeated. Also: LANCEKEEP_STORAGE__NAME.")
@pairs_in_file("--storage-option-file", "Read secret options of the storage from lines NAME=VALUE; '-' is stdin.")
@pairs("--commit-store-option", "An option of the commit stores; may be repeated.")
@pairs_in_file("--commit-store-option-file", "The same for secret options of the commit stores.")
@pairs("--from-option", "An option of the manifest store or server FROM; may be repeated.")
@pairs_in_file("--from-option-file", "The same for secret options.")
@pairs("--to-option", "An option of the manifest store or server TO; may be repeated.")
@pairs_in_file("--to-option-file", "The same for secret options.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.pass_context
def copy_catalog(
    context: click.Context,
    source: str,
    target: str,
    root: str | None,
    mode: str | None,
    commit_store: str | None,
    to_commit_store: str | None,
    writers_stopped: bool,
    give_up: bool,
    storage_option: dict[str, str],
    storage_option_file: dict[str, str],
    commit_store_option: dict[str, str],
    commit_store_option_file: dict[str, str],
    from_option: dict[str, str],
    from_option_file: dict[str, str],
    to_option: dict[str, str],
    to_option_file: dict[str, str],
    assume_yes: bool,
    as_json: bool,
) -> None:
    """Move a catalog to another home of its entries.

    Its tables stay where they are. FROM and TO are each the root, whose directory holds the entries, the URL of a
    manifest store, or the URI of a server. Readers and writers continue while entries are copied; afterwards FROM
    refuses every operation and names TO. A server refuses nothing: FROM a server needs --writers-stopped, and TO a
    server, FROM refuses operations during the copy. Without --yes, only shows the plan. If it is stopped, run it again
    to complete it, or give it up with --give-up. Exit code 1: TO cannot hold an entry.
    """
    functions: PublicFunctions = context.obj
    with progress("copy") as report_progress:
        report = functions.copy_catalog(
            source,
            target,
            root=root,
            mode=mode,
            commit_store=commit_store or REMEMBERED,
            to_commit_store=to_commit_store,
            storage_options=storage_option_file | storage_option,
            commit_store_options=commit_store_option_file | commit_store_option,
            source_options=from_option_file | from_option or None,
            target_options=to_option_file | to_option or None,
            writers_stopped=writers_stopped,
            give_up=give_up,
            dry_run=not assume_yes,
            progress=report_progress,
        )
    if as_json:
        print_report(attrs.asdict(report))
    else:
        _print(report)
    if report.obstacles:
        context.exit(WRONG)


def _print(report: CatalogCopy) -> None:
    if report.obstacles:
        rows = [(each.name, each.reason) for each in report.obstacles]
        print_table(f"What {report.target} cannot hold", ("entry", "reason"), rows)
    print_line(str(report).partition("\n  ")[0] if report.obstacles else str(report))
    if report.dry_run and not report.done:
        print_line(
            "Nothing was changed. Remove the obstacles first."
            if report.obstacles
            else "Nothing was changed. Run it again with --yes to apply."
        )
