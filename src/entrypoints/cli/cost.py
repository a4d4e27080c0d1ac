"""``lancekeep cost``: the bytes of tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click

from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.entries.removal import DROPPED
from lancekeep.application.upkeep import costs as of
from lancekeep.application.upkeep.costs import Costs, Holder, TableCosts, VersionCost
from lancekeep.domain.dataset_files import Reference
from lancekeep.domain.partitions import published_version
from lancekeep.domain.protection import protector
from lancekeep.domain.table import Table
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import BYTES, COUNT, Column, Output, output
from lancekeep.entrypoints.cli.upkeep import mode

_SHARES = (Column("what"), Column("name"), Column("bytes", BYTES), Column("files", COUNT), Column("freed by"))
_VERSIONS = (
    Column("version", COUNT),
    Column("branch"),
    Column("bytes", BYTES),
    Column("only here", BYTES),
    Column("kept by"),
)
_TABLES = (
    Column("table"),
    Column("state"),
    Column("bytes", BYTES),
    Column("latest", BYTES),
    Column("kept", BYTES),
    Column("old", BYTES),
    Column("orphans", BYTES),
    Column("other", BYTES),
)
_ORDER = (
    *(of.LATEST, of.PUBLISHED, of.TAG, of.BRANCH, of.CLONE, of.DETACHED, of.PROTECTION, of.SEVERAL),
    *(of.OLD, of.UNFINISHED, of.ORPHANS, of.OTHER),
)
_GROUPS = {
    of.LATEST: "latest",
    of.OLD: "old",
    of.UNFINISHED: "orphans",
    of.ORPHANS: "orphans",
    of.OTHER: "other",
}
"""The column for a kind of holder; all other kinds keep versions."""

Row = dict[str, Any]


@command()
@output
@click.option("--versions", "by_version", is_flag=True, help="Show the bytes of each version of NAME.")
@mode
@stores
@click.argument("name", default="")
@click.pass_obj
def cost(
    functions: PublicFunctions, chosen: Stores, name: str, mode: str | None, by_version: bool, out: Output
) -> None:
    """Show the bytes of tables, what needs them, and what frees them.

    Of the table NAME, shows what the latest version, each tag, branch and clone alone keep, what only old versions
    need, and what no version needs. By default, sums up each table of CATALOG. Counts the files in the directories of
    tables, and changes nothing.
    """
    if by_version and not name:
        raise click.UsageError("--versions needs the NAME of a table.")
    with chosen.catalog(functions, mode=mode) as catalog, progress("cost") as report:
        own = directory_of(catalog, "cost")
        costs = Costs(own.commits.objects, own.places, own.commits.retry, report)
        if not name:
            out.rows(_TABLES, _tables(catalog, costs), "The catalog has no tables.")
            message("`lancekeep cleanup` frees old versions and orphans, `lancekeep purge` dropped tables.")
            return
        table = catalog.find_table(name)
        found = _of(catalog, costs, table, by_version)
        if by_version:
            out.rows(_VERSIONS, map(_version, found.versions), "The table has no version yet.")
        else:
            out.rows(_SHARES, _shares(str(table.id), found), "The table has no files.")


def _of(catalog: Catalog, costs: Costs, table: Table, by_version: bool = False) -> TableCosts:
    name = str(table.id)
    if catalog.describe_table(name).version is None:
        return costs.of(table.location, {}, versions=by_version)
    references = {
        Holder(of.TAG, tag): Reference(at.branch or "", at.version) for tag, at in catalog.tags.list(name).items()
    }
    for branch, start in catalog.branches.list(name).items():
        references[Holder(of.BRANCH, branch)] = Reference(start.parent or "", start.version)
    own = directory_of(catalog)
    view = own.ledger.view()
    entry, by = view.find(table.id.key), protector(view, table.id)
    if entry is not None and (published := published_version(entry)) is not None:
        references[Holder(of.PUBLISHED, str(published.version))] = published
    protection = None if by is None else Holder(of.PROTECTION, "" if by.is_root else str(by))
    clones = own.removal.located_readers(table)
    return costs.of(table.location, references, clones, protection=protection, versions=by_version)


def _shares(table: str, found: TableCosts) -> list[Row]:
    ordered = sorted(found.shares.items(), key=lambda each: (_ORDER.index(each[0].kind), each[0].name))
    return [
        {
            "what": holder.kind,
            "name": holder.name or None,
            "bytes": share.bytes,
            "files": share.files,
            "freed by": _freed_by(table, holder),
        }
        for holder, share in ordered
    ]


def _freed_by(table: str, holder: Holder) -> str | None:
    """Return the commands that free the files of a holder."""
    named, name = shlex.quote(table), shlex.quote(holder.name)
    match holder.kind:
        case of.TAG:
            return f"lancekeep tag {named} {name} -d; cleanup"
        case of.BRANCH:
            return f"lancekeep branch {named} {name} -d; cleanup"
        case of.CLONE if holder.name.endswith(DROPPED):
            return f"lancekeep purge {shlex.quote(holder.name.removesuffix(DROPPED))}; cleanup"
        case of.CLONE:
            return f"lancekeep drop {name} --keep 0s, or materialize it; cleanup"
        case of.PROTECTION:
            return f"lancekeep unprotect {name}; cleanup"
        case of.SEVERAL:
            return "removing all tags, branches and clones that need them; cleanup"
        case of.OLD | of.UNFINISHED | of.ORPHANS:
            return f"lancekeep cleanup --table {named} --older-than 7d"
    return None


def _version(cost: VersionCost) -> Row:
    return {
        "version": cost.version,
        "branch": cost.branch or None,
        "bytes": cost.needed.bytes,
        "only here": cost.own.bytes,
        "kept by": [" ".join(filter(None, (each.kind, each.name))) for each in cost.holders],
    }


def _tables(catalog: Catalog, costs: Costs) -> Iterator[Row]:
    """Yield the sums of tables, then of dropped tables, then of directories without an entry."""
    taken = set[str]()
    for object_id in catalog.list_all_tables():
        table = catalog.find_table(object_id)
        taken.add(table.location)
        yield _summed(str(object_id), _of(catalog, costs, table))
    for dropped in catalog.list_dropped():
        taken.add(dropped.location)
        yield _whole(str(dropped.id), "dropped", costs, dropped.location)
    for location in directory_of(catalog).removal.clones.unowned_datasets(taken):
        yield _whole(location, "no entry", costs, location)


def _summed(name: str, found: TableCosts) -> Row:
    row: Row = {"table": name, "state": None, "bytes": found.bytes, **dict.fromkeys(("latest", "kept", "old"), 0)}
    row |= {"orphans": 0, "other": 0}
    for holder, share in found.shares.items():
        row[_GROUPS.get(holder.kind, "kept")] += share.bytes
    return row


def _whole(name: str, state: str, costs: Costs, location: str) -> Row:
    return {**dict.fromkeys(column.name for column in _TABLES), "table": name, "state": state} | {
        "bytes": costs.size(location).bytes
    }
