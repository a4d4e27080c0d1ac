"""``lancekeep drop`` and ``lancekeep deregister``: remove a table."""

from __future__ import annotations

from datetime import timedelta

import click

from lancekeep.application.catalog import Catalog, services_of
from lancekeep.application.entries.dropped import microseconds
from lancekeep.domain.dropped import kept_for
from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import agreed, print_line, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, advised, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode, span
from lancekeep.entrypoints.spans import shown_span


@command()
@as_json
@assume_yes
@click.option("--force", is_flag=True, help="Drop the table even if shallow clones read its files.")
@click.option("--keep", type=span, help="How long `lancekeep undrop` can bring it back: 7d; 0s: not at all.")
@mode
@stores
@click.argument("table")
@click.pass_context
def drop(
    context: click.Context,
    chosen: Stores,
    table: str,
    mode: str | None,
    force: bool,
    keep: timedelta | None,
    assume_yes: bool,
    as_json: bool,
) -> None:
    """Remove a table from the catalog together with its files.

    With --keep, or the property lancekeep.undrop of TABLE or the catalog, the files stay for that time. Files that
    neither Lance nor Lancekeep wrote always stay. Asks at a terminal; elsewhere, only shows the plan without
    --yes. Exit code 1: shallow clones read files of TABLE. With --force the table is dropped anyway, and the clones
    become unreadable.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions, mode=mode) as catalog:
        clones = _clones(catalog, table)
        described = _described(catalog, table)
        kept = _kept(catalog, table, keep)
        files = f"keep its files for {shown_span(kept)}" if kept else f"remove the files at {described['location']}"
        plan = f"Drop {table}, and {files}{_unreadable(clones)}"
        assume_yes = assume_yes or (not as_json and agreed(plan))
        document = {**described, "clones": clones, "kept": kept.total_seconds(), "applied": assume_yes}
        if assume_yes:
            with progress("drop"):
                catalog.drop_table(table, force=force, keep=keep)
    if as_json:
        print_report(document)
    else:
        done = "Dropped" if assume_yes else "Would drop"
        if kept:
            print_line(f"{done} {table}; `{advised('undrop', table)}` brings it back for {shown_span(kept)}")
        else:
            print_line(f"{done} {table} and the files at {document['location']}")
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
        print_report(document)
        return
    print_line(
        f"{'Deregistered' if assume_yes else 'Would deregister'} {table}; its files stay at {document['location']}"
    )
    if not assume_yes:
        print_line("Nothing was changed. Run it again with --yes to apply.")


def _unreadable(clones: list[str] | None) -> str:
    return f". Shallow clones read these files: {', '.join(clones)}" if clones else ""


def _kept(catalog: Catalog, table: str, keep: timedelta | None) -> timedelta:
    """Return how long a dropped table stays; zero if it is removed at once.

    A server does not tell how long it keeps a table.
    """
    given = None if keep is None else microseconds(keep)
    properties = catalog.describe_namespace("").properties
    return timedelta(microseconds=kept_for(given, properties, catalog.find_table(table).properties))


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
