"""``lancekeep drop`` and ``lancekeep deregister``: remove a table."""

from __future__ import annotations

import click

from lancekeep.application.catalog import Catalog, services_of
from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import agreed, print_json, print_line
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.upkeep import mode


@command()
@as_json
@assume_yes
@click.option("--force", is_flag=True, help="Drop the table even if shallow clones read its files.")
@mode
@stores
@click.argument("table")
@click.pass_context
def drop(
    context: click.Context, chosen: Stores, table: str, mode: str | None, force: bool, assume_yes: bool, as_json: bool
) -> None:
    """Remove a table from the catalog together with its files.

    Keeps files that neither Lance nor Lancekeep wrote. Asks at a terminal; elsewhere, only shows the plan without
    --yes. Exit code 1: shallow clones read files of TABLE. With --force the table is dropped anyway, and the clones
    become unreadable.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions, mode=mode) as catalog:
        clones = _clones(catalog, table)
        described = _described(catalog, table)
        assume_yes = assume_yes or (not as_json and agreed(_plan_of_drop(described, clones)))
        document = {**described, "clones": clones, "applied": assume_yes}
        if assume_yes:
            catalog.drop_table(table, force=force)
    if as_json:
        print_json(document)
    else:
        print_line(f"{'Dropped' if assume_yes else 'Would drop'} {table} and the files at {document['location']}")
        if clones:
            print_line(f"Shallow clones that read these files: {', '.join(clones)}")
        if clones is None:
            print_line("Only the server knows which shallow clones read these files.")
        if not assume_yes:
            print_line(f"Nothing was changed. Run it again with --yes{' --force' if clones else ''} to apply.")
    if clones and not assume_yes and not force:
        context.exit(WRONG)


@command()
@as_json
@assume_yes
@mode
@stores
@click.argument("table")
@click.pass_context
def deregister(
    context: click.Context, chosen: Stores, table: str, mode: str | None, assume_yes: bool, as_json: bool
) -> None:
    """Remove a table from the catalog and keep its files.

    Asks at a terminal; elsewhere, only shows the plan without --yes. `lancekeep register` adds TABLE again.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions, mode=mode) as catalog:
        described = _described(catalog, table)
        plan = f"Deregister {table}; its files stay at {described['location']}"
        assume_yes = assume_yes or (not as_json and agreed(plan))
        document = {**described, "applied": assume_yes}
        if assume_yes:
            catalog.deregister_table(table)
    if as_json:
        print_json(document)
        return
    print_line(
        f"{'Deregistered' if assume_yes else 'Would deregister'} {table}; its files stay at {document['location']}"
    )
    if not assume_yes:
        print_line("Nothing was changed. Run it again with --yes to apply.")


def _plan_of_drop(described: dict[str, object], clones: list[str] | None) -> str:
    unreadable = f". Shallow clones read these files: {', '.join(clones)}" if clones else ""
    return f"Drop {described['table']} and the files at {described['location']}{unreadable}"


def _clones(catalog: Catalog, table: str) -> list[str] | None:
    """Return the clones that read files of a table; None for the catalog of a server."""
    catalog.find_table(table)
    try:
        return catalog.clones_of(table)
    except Unsupported:
        return None


def _described(catalog: Catalog, table: str) -> dict[str, object]:
    found = catalog.find_table(table)
    return {"table": str(found.id), "location": services_of(catalog).uri(found)}
