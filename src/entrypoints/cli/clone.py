"""``lancekeep clone`` and ``lancekeep materialize``: copy tables."""

from __future__ import annotations

import click

from lancekeep.application.catalog import Catalog
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode


@command()
@as_json
@click.option("--deep", is_flag=True, help="Copy all files, so that TARGET does not depend on SOURCE.")
@click.option("--version", help="The version, or the name of a tag; by default the latest.")
@mode
@stores
@click.argument("source")
@click.argument("target")
@click.pass_obj
def clone(
    functions: PublicFunctions,
    chosen: Stores,
    source: str,
    target: str,
    mode: str | None,
    version: str | None,
    deep: bool,
    as_json: bool,
) -> None:
    """Clone a version of a table, without copying its files unless asked to.

    The table TARGET reads the files of SOURCE, which cannot be dropped until TARGET is dropped or materialized. With
    --deep, the same command completes a clone that was stopped; `lancekeep repair` removes the clone.
    """
    number = int(version) if version is not None and version.isdecimal() else version
    with chosen.catalog(functions, mode=mode) as catalog:
        with progress("clone"):
            table = catalog.clone(source, target, number, deep=deep)
        described = catalog.describe_table(target)
    if as_json:
        print_report({"table": str(table.id), "location": table.location, "version": described.version, "deep": deep})
    else:
        print_line(f"Cloned {source} to {target}, version {described.version}")


@command()
@as_json
@mode
@stores
@click.argument("table")
@click.pass_obj
def materialize(functions: PublicFunctions, chosen: Stores, table: str, mode: str | None, as_json: bool) -> None:
    """Copy the files that a clone reads from other tables into its directory.

    Commits one version of TABLE. Older versions of TABLE keep reading those files until they are cleaned up.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        with progress("materialize"):
            committed = catalog.upkeep.materialize(table)
        sources = _older_sources(catalog, table)
    version = None if committed is None else committed.version
    if as_json:
        print_report({"table": table, "version": version})
    elif version is None:
        print_line(f"{table} reads no files of other tables")
    else:
        print_line(f"Materialized {table} as version {version}{sources}")


def _older_sources(catalog: Catalog, table: str) -> str:
    older = len(catalog.versions.history(table)) - 1
    return f"; {older} older versions may read files of other tables until they are cleaned up" if older else ""
