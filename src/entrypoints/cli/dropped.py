"""``lancekeep undrop``, ``purge``, ``protect`` and ``unprotect``."""

from __future__ import annotations

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import confirmed, message, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, advised, assume_yes, stores
from lancekeep.entrypoints.cli.upkeep import mode

_drop = click.option("--drop", metavar="DROP", help="Which of several drops, as `lancekeep ls --dropped` shows it.")


@command()
@click.option("--as", "target", metavar="NEW_NAME", help="The name of the table from now on. Default: NAME.")
@_drop
@mode
@stores
@click.argument("name")
@click.pass_obj
def undrop(
    functions: PublicFunctions, chosen: Stores, name: str, mode: str | None, target: str | None, drop: str | None
) -> None:
    """Bring a dropped table back.

    The table NAME has its rows, versions, tags, branches and indexes again. `lancekeep ls --dropped` lists the tables
    that can be brought back.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        table = catalog.undrop(name, target, drop=drop)
        rows = catalog.versions.describe(str(table.id)).rows
    message(f"Brought {name} back{'' if target is None else f' as {table.id}'}, with {rows:,} rows.")


@command()
@assume_yes
@_drop
@click.option("--force", is_flag=True, help="Remove the files even if shallow clones read them.")
@mode
@stores
@click.argument("name")
@click.pass_obj
def purge(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    mode: str | None,
    drop: str | None,
    force: bool,
    assume_yes: bool,
) -> None:
    """Remove the files and versions of a dropped table.

    The dropped table NAME cannot be brought back afterwards. Shows the plan and asks; scripts need --yes.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        dropped = catalog.list_dropped(name)
        chosen_drops = [each for each in dropped if drop is None or each.drop == drop]
        at = f", dropped {chosen_drops[-1].at:%Y-%m-%d %H:%M:%S} UTC" if chosen_drops else ""
        if confirmed(f"Remove the files and versions of {name}{at}", assume_yes):
            with progress("purge"):
                purged = catalog.purge(name, drop=drop, force=force)
            message(f"Removed the files of {purged.id} at {purged.location}.")


@command()
@mode
@stores
@click.argument("name")
@click.pass_obj
def protect(functions: PublicFunctions, chosen: Stores, name: str, mode: str | None) -> None:
    """Protect a table or a namespace against removal and loss.

    Until `lancekeep unprotect`, the catalog refuses to drop, rename, relocate, overwrite and restore NAME and
    everything below it, and cleanup keeps the versions up to its latest tags.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        catalog.protect(name)
    message(f"Protected {name or 'the catalog'}. End it with `{advised('unprotect', name)}`.")


@command()
@mode
@stores
@click.argument("name")
@click.pass_obj
def unprotect(functions: PublicFunctions, chosen: Stores, name: str, mode: str | None) -> None:
    """End the protection of a table or a namespace."""
    with chosen.catalog(functions, mode=mode) as catalog:
        catalog.unprotect(name)
    message(f"{name or 'The catalog'} is not protected.")


@command()
@mode
@stores
@click.pass_obj
def init(functions: PublicFunctions, chosen: Stores, mode: str | None) -> None:
    """Create a catalog.

    A new CATALOG keeps dropped tables for seven days, and remembers its commit store. Nothing changes if it exists.
    """
    with chosen.catalog(functions, new=True, mode=mode) as catalog:
        created = catalog.initialize()
        root = catalog.root_uri
    message(f"{root} is a new catalog." if created else f"{root} is a catalog already. Nothing was changed.")
