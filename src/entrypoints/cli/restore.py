"""``lancekeep restore``: return a table to an earlier version."""

from __future__ import annotations

from datetime import datetime

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, advised, stores
from lancekeep.entrypoints.cli.reading import at_option
from lancekeep.entrypoints.cli.upkeep import mode


@command()
@at_option
@click.option("--branch", metavar="NAME", help="The branch to change. Default: the main history.")
@mode
@stores
@click.argument("name")
@click.argument("version", required=False)
@click.pass_obj
def restore(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    version: str | None,
    mode: str | None,
    branch: str | None,
    at: datetime | None,
) -> None:
    """Commit a new version of a table with the contents of an earlier one.

    VERSION is a version of the table NAME, or the name of a tag. The versions in between stay in the history.
    """
    if (version is None) == (at is None):
        raise click.UsageError("Give either VERSION or --at.")
    with chosen.catalog(functions, mode=mode) as catalog:
        if at is not None:
            number = catalog.versions.at(name, at, branch=branch)
        elif version is not None and version.isdecimal():
            number = int(version)
        else:
            number = catalog.tags.get(name, version or "").version
        before = catalog.versions.describe(name, branch=branch)
        with progress("restore"):
            restored = catalog.versions.restore(name, number, branch=branch)
        after = catalog.versions.describe(name, branch=branch)
    message(
        f"Version {restored.version} of {name} has the contents of version {number}: {after.rows:,} rows, "
        f"{after.rows - before.rows:+,}. Undo it with `{advised('restore', name, str(before.version))}`."
    )
