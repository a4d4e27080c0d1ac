"""``lancekeep ls`` and ``lancekeep tree``: list namespaces and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import click

from lancekeep.application.catalog import Catalog, services_of
from lancekeep.application.entries.dropped import DroppedTable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import COUNT, TIME, Column, Output, output, print_folded
from lancekeep.entrypoints.cli.upkeep import mode

_PAGE = 1000
_SHORT = (Column("name"), Column("kind"))
_LONG = (
    *_SHORT,
    Column("version", COUNT),
    Column("rows", COUNT),
    Column("changed", TIME),
    Column("operation"),
    Column("by"),
)
_DROPPED = (
    Column("name"),
    Column("dropped", TIME),
    Column("until", TIME),
    Column("by"),
    Column("drop"),
)
_UNRESOLVED = (
    Column("name"),
    Column("branch"),
    Column("version", COUNT),
    Column("by"),
    Column("location"),
)
_READERS = 16
"""Tables whose latest version is read at the same time."""

Row = dict[str, Any]


@command()
@output
@click.option("-l", "--long", is_flag=True, help="Show the latest version of each table, its rows, time and writer.")
@click.option("--dropped", is_flag=True, help="List dropped tables that can be brought back, below NAMESPACE.")
@click.option(
    "--unresolved", is_flag=True, help="List commits of all tables that are decided and not complete; completes none."
)
@click.option("-r", "--recursive", is_flag=True, help="List the tables of all namespaces of the catalog.")
@click.option(
    "--limit", type=click.IntRange(0), default=_PAGE, show_default=True, help="The most names to list; 0 for all."
)
@mode
@stores
@click.argument("namespace", default="")
@click.pass_obj
def ls(
    functions: PublicFunctions,
    chosen: Stores,
    namespace: str,
    mode: str | None,
    long: bool,
    recursive: bool,
    dropped: bool,
    unresolved: bool,
    limit: int,
    out: Output,
) -> None:
    """List namespaces and tables.

    Lists the children of NAMESPACE, by default of the root of CATALOG: namespaces first, then tables.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        if dropped:
            rows = [_dropped(each) for each in catalog.list_dropped(namespace)]
            out.rows(_DROPPED, rows, "No dropped table can be brought back.")
            return
        if unresolved:
            if namespace or long or recursive:
                raise click.UsageError("--unresolved lists commits of all tables; leave NAMESPACE, -l and -r out")
            out.rows(_UNRESOLVED, _unresolved(catalog, limit), "Every decided commit is complete.")
            return
        if recursive and namespace:
            raise click.UsageError("--recursive lists the tables of the whole catalog; leave NAMESPACE out")
        found = _tables(catalog) if recursive else _children(catalog, namespace)
        listed = list(islice(found, limit)) if limit else found
        more = bool(limit) and next(found, None) is not None
        out.rows(_LONG if long else _SHORT, _latest(catalog, listed) if long else listed, "Nothing is here.")
        if more:
            message(f"More than {limit:,} names; --limit 0 lists all.")


def _unresolved(catalog: Catalog, limit: int) -> Iterator[Row]:
    """Yield unresolved commits, and say if there are more."""
    left, after = limit or sys.maxsize, None
    while True:
        page = catalog.unresolved_commits(min(_PAGE, left), after=after)
        for each in page.commits:
            yield {
                "name": None if each.table is None else str(each.table),
                "branch": each.branch,
                "version": each.version,
                "by": each.committer or None,
                "location": each.location,
            }
        left, after = left - len(page.commits), page.following
        if after is None or left <= 0:
            break
    if after is not None:
        message(f"More than {limit:,} commits; --limit 0 lists all.")


def _dropped(table: DroppedTable) -> Row:
    return {
        "name": str(table.id),
        "dropped": table.at,
        "until": table.until,
        "by": table.by or None,
        "drop": table.drop,
    }


def _tables(catalog: Catalog) -> Iterator[Row]:
    return ({"name": str(table), "kind": "table"} for table in catalog.list_all_tables())


def _children(catalog: Catalog, namespace: str) -> Iterator[Row]:
    services, parent = services_of(catalog), ObjectId.of(namespace)
    pages = {
        "namespace": partial(services.namespaces.page, parent, NAMESPACE),
        "table": partial(services.tables.page, parent, include_declared=True),
    }
    for kind, page in pages.items():
        after, more = None, True
        while more:
            names, after = page(after=after, limit=_PAGE)
            yield from ({"name": str(ObjectId((*parent.names, name))), "kind": kind} for name in names)
            more = after is not None


def _latest(catalog: Catalog, rows: Iterable[Row]) -> Iterator[Row]:
    """Complete rows by the latest version of each table."""

    def completed(row: Row) -> Row:
        latest = catalog.versions.history(row["name"], 1) if row["kind"] == "table" else []
        values = [(each.version, each.rows, each.timestamp, each.operation, each.committer) for each in latest]
        filled = dict(zip((column.name for column in _LONG[2:]), values[0], strict=True)) if values else {}
        return {**row, **{column.name: filled.get(column.name) for column in _LONG[2:]}}

    with ThreadPoolExecutor(_READERS) as readers:
        yield from readers.map(completed, rows)


@command()
@output
@click.option("--depth", type=click.IntRange(1), help="The levels to show; all by default.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="The most children of a namespace to show."
)
@mode
@stores
@click.argument("namespace", default="")
@click.pass_obj
def tree(
    functions: PublicFunctions,
    chosen: Stores,
    namespace: str,
    mode: str | None,
    depth: int | None,
    limit: int,
    out: Output,
) -> None:
    """Show namespaces and tables as a tree."""
    with chosen.catalog(functions, mode=mode) as catalog:
        if out.form == "table":
            click.echo(namespace or catalog.root_uri)
            _draw(catalog, namespace, "", depth, limit)
        else:
            out.rows(_SHORT, _below(catalog, namespace, depth))


def _below(catalog: Catalog, namespace: str, depth: int | None) -> Iterator[Row]:
    for row in _children(catalog, namespace):
        yield row
        if row["kind"] == "namespace" and depth != 1:
            yield from _below(catalog, row["name"], None if depth is None else depth - 1)


def _draw(catalog: Catalog, namespace: str, indent: str, depth: int | None, limit: int) -> None:
    children = list(islice(_children(catalog, namespace), limit + 1))
    for at, row in enumerate(children[:limit]):
        last = at == len(children) - 1
        is_namespace = row["kind"] == "namespace"
        name = row["name"].removeprefix(f"{namespace}.")
        below = indent + ("    " if last else "│   ")
        print_folded(f"{indent}{'└── ' if last else '├── '}", below, f"{name}{'/' if is_namespace else ''}")
        if is_namespace and depth != 1:
            _draw(catalog, row["name"], below, None if depth is None else depth - 1, limit)
    if len(children) > limit:
        print_folded(f"{indent}└── ", f"{indent}    ", f"more than {limit:,}; --limit shows more")
