"""``lancekeep inspect``: show the stored metadata of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from lancekeep.application.catalog import directory_of
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode
from lancekeep.entrypoints.cli.version_picture import MOST_FRAGMENTS, MOST_VERSIONS, picture

if TYPE_CHECKING:
    from lancekeep.application.catalog import Catalog

_WIDTH = 4096  # a name is never cut; the terminal breaks long lines


@command("inspect")
@as_json
@click.option("--version", help="The version, or the name of a tag; by default the latest.")
@click.option("--file", help="Describe this file, by its path below the table.")
@click.option("--fragment", type=click.IntRange(0), help="Describe this fragment.")
@click.option(
    "--fragments",
    "most",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="List at most this many fragments.",
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, writable=True), help="Write a picture of the versions and their fragments."
)
@mode
@stores
@click.argument("table")
@click.pass_obj
def inspect(
    functions: PublicFunctions,
    chosen: Stores,
    table: str,
    mode: str | None,
    version: str | None,
    file: str | None,
    fragment: int | None,
    most: int,
    svg: str | None,
    as_json: bool,
) -> None:
    """Show the stored metadata of a table.

    Describes the manifest of a version, a fragment of the version, or one file: a manifest, a transaction, the footer
    of a data file, or a deletion file. TABLE is a name, or the path or URI of a table or of one of these files. Reads
    only metadata, without the Lance engine.
    """
    number = int(version) if version is not None and version.isdecimal() else version
    if svg is not None and (version, file, fragment, as_json) != (None, None, None, False):
        raise click.UsageError("--svg draws all versions; leave --version, --file, --fragment and --json out")
    with chosen.catalog(functions, mode=mode) as catalog:
        if svg is not None:
            Path(svg).write_text(_drawn(catalog, table))
            click.echo(f"{svg} shows the versions of {table}.")
            return
        found = catalog.inspect(table, number, file=file, fragment=fragment, most_fragments=most)
    if as_json:
        print_report(found)
    else:
        title = f"{table}: {found.pop('kind')} {found.pop('file', '')}"
        Console(width=_WIDTH).print(_grown(Tree(Text(title, "bold")), found))


def _drawn(catalog: Catalog, table: str) -> str:
    own = directory_of(catalog, "inspect")
    rows = own.versions.page(own.places.dataset_root(catalog.find_table(table)), None, None, True)
    chosen = reversed(rows[:MOST_VERSIONS])
    versions = [catalog.inspect(table, row.version, most_fragments=MOST_FRAGMENTS + 1) for row in chosen]
    return picture(table, versions, max(len(rows) - MOST_VERSIONS, 0))


def _grown(tree: Tree, members: Mapping[str, Any]) -> Tree:
    """Add members to a tree, without empty ones."""
    for name, value in members.items():
        if value not in (None, "", [], {}):
            _add(tree, name, value)
    return tree


def _add(tree: Tree, name: str, value: Any) -> None:
    label = name.replace("_", " ")
    if isinstance(value, Mapping):
        line = _line(value)
        if line is None:
            _grown(tree.add(Text(label)), value)
        else:
            tree.add(Text(f"{label}: {line}"))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(each, Mapping) for each in value):
            branch = tree.add(Text(f"{label} ({len(value)})"))
            for at, each in enumerate(value):
                _add(branch, str(each.get("name", each.get("id", at))), each)
        else:
            tree.add(Text(f"{label}: {', '.join(map(str, value))}"))
    else:
        tree.add(Text(f"{label}: {value}"))


def _line(members: Mapping[str, Any]) -> str | None:
    """Return members as one line; None if one of them has members itself, or the line is long."""
    if any(isinstance(value, Mapping | list) and value for value in members.values()):
        return None
    line = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in members.items() if value not in (None, ""))
    return line if len(line) <= 100 else None
