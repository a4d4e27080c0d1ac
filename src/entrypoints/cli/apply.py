"""``lancekeep export-catalog`` and ``lancekeep apply``: a catalog as a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import (
    BranchNotFound,
    ConcurrentModification,
    InvalidInput,
    Refused,
    Unsupported,
    VersionNotFound,
)
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import agreed, message, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import Column, Output, output
from lancekeep.entrypoints.cli.upkeep import mode

if TYPE_CHECKING:
    from lancekeep.entrypoints.cli.catalog_file import Step

_COLUMNS = (Column("action"), Column("object"), Column("detail", None))


@command("export-catalog")
@mode
@stores
@click.pass_obj
def export_catalog(functions: PublicFunctions, chosen: Stores, mode: str | None) -> None:
    """Print a catalog as a file: namespaces, tables and properties.

    The file has the schemas, properties, tags and protection of tables, and no rows. `lancekeep apply` makes a catalog
    like it. Partitions and views are left out.
    """
    from lancekeep.entrypoints.cli.catalog_file import encoded, read_catalog

    with chosen.catalog(functions, mode=mode) as catalog:
        click.echo(encoded(read_catalog(catalog, message)), nl=False)


@command()
@output
@click.option("--prune", is_flag=True, help="Also remove what FILE lacks: tables, properties, tags, protection.")
@click.option("--plan", "reviewed", metavar="ID", help="Apply only the plan with this ID; else refuse.")
@click.option("--yes", "assume_yes", is_flag=True, help="Apply the plan. Without --yes, ask, or only show it.")
@mode
@stores
@click.argument("file")
@click.pass_context
def apply(
    context: click.Context,
    chosen: Stores,
    file: str,
    mode: str | None,
    prune: bool,
    reviewed: str | None,
    assume_yes: bool,
    out: Output,
) -> None:
    """Make a catalog like a file, after showing the plan.

    FILE is a file of `lancekeep export-catalog`; '-' is standard input. Creates what CATALOG lacks, and sets properties
    and tags. Removes nothing without --prune. A dropped table can be brought back as after `lancekeep drop`. Exit code
    1: CATALOG still differs from FILE, or has changed since the plan.
    """
    from lancekeep.entrypoints.cli.catalog_file import decoded, plan_of, read_catalog

    functions: PublicFunctions = context.obj
    wanted = decoded(_text(file), file)
    with chosen.catalog(functions, new=True, mode=mode) as catalog:
        plan = plan_of(read_catalog(catalog, message), wanted, prune=prune)
        if reviewed is not None and reviewed != plan.id:
            raise Refused(f"the plan is {plan.id}, not {reviewed}. Nothing was changed. Review the plan again")
        rows = [{"action": step.action, "object": step.name, "detail": step.detail} for step in plan.steps]
        out.rows(_COLUMNS, rows, "The catalog has all that the file has.")
        for difference in plan.differences:
            message(f"Stays different: {difference}.")
        failed = False
        if plan.steps:
            changes = f"{len(plan.steps):,} change{'s' if len(plan.steps) > 1 else ''}"
            if assume_yes or agreed(f"Plan {plan.id}: make {changes}"):
                if plan_of(read_catalog(catalog, lambda _: None), wanted, prune=prune).id != plan.id:
                    raise ConcurrentModification(
                        "the catalog has changed since the plan. Nothing was done. Run apply again"
                    )
                failed = _made(catalog, plan.steps)
            else:
                message(f"Plan {plan.id}: {changes}. Nothing was changed. To apply it, add --yes --plan {plan.id}.")
    if failed or plan.differences:
        context.exit(WRONG)


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is no text in UTF-8: {error}") from error


def _made(catalog: Catalog, steps: Sequence[Step]) -> bool:
    """Make changes in their order; return whether the catalog cannot make some of them."""
    failed = 0
    with progress("apply") as report:
        for number, step in enumerate(steps):
            report(number, len(steps), step.name)
            try:
                step.act(catalog)
            except (Unsupported, VersionNotFound, BranchNotFound) as error:
                failed += 1
                message(f"Left out: {step.action} {step.name} {step.detail}: {error}")
            except BaseException as error:
                if made := number - failed:
                    error.add_note(f"Before, {made:,} of {len(steps):,} changes were made; apply can be run again.")
                raise
    message(f"Made {len(steps) - failed:,} changes.")
    return failed > 0
