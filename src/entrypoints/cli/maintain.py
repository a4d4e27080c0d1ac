"""``lancekeep maintain``: apply a maintenance policy once."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from lancekeep.application.upkeep.maintenance import MaintenanceAction
from lancekeep.domain.errors import Refused
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import print_line, print_table
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode
from lancekeep.entrypoints.maintenance import MaintenanceWorker, read_plan


@command()
@as_json
@click.option("--policy", type=click.Path(path_type=Path), required=True, help="The maintenance policy, a TOML file.")
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@mode
@stores
@click.pass_context
def maintain(
    context: click.Context, chosen: Stores, mode: str | None, policy: Path, dry_run: bool, as_json: bool
) -> None:
    """Compact, index and clean up tables by a policy, once.

    Works on CATALOG as `lancekeep serve --maintenance` does at intervals. If another worker has the lease,
    the command is refused. Exit code 1: an action failed.
    """
    functions: PublicFunctions = context.obj
    plan = read_plan(policy)
    with chosen.catalog(functions, mode=mode) as catalog:
        found = (
            catalog.upkeep.maintain(plan.policy, dry_run=True)
            if dry_run
            else MaintenanceWorker(catalog, plan).run_once()
        )
        if found is None:
            raise Refused(
                "another worker has the lease of the maintenance. Let it finish; the lease of a worker that crashed is "
                "taken over by a server with --maintenance, or remove .lancekeep-maintenance/ below the root"
            )
        actions = list(found)
    if as_json:
        print_report([attrs.asdict(each) for each in actions], of=MaintenanceAction)
    elif actions:
        rows = [(each.table, each.action, "failed" if each.failed else "", each.detail) for each in actions]
        print_table("Would be done" if dry_run else "Done", ("table", "action", "", "detail"), rows)
    else:
        print_line("Nothing to do.")
    if any(each.failed for each in actions):
        context.exit(WRONG)
