"""``lancekeep history``, ``show`` and ``log``: the versions of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs
import click

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import VersionNotFound
from lancekeep.entrypoints.cli.cells import moment
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import COUNT, DIFFERENCE, TIME, Column, Output, output, print_folded
from lancekeep.entrypoints.cli.reading import tags_by_version, time_given
from lancekeep.entrypoints.cli.upkeep import mode

_HISTORY = (
    Column("version", COUNT),
    Column("changed", TIME),
    Column("operation"),
    Column("rows", COUNT),
    Column("difference", DIFFERENCE),
    Column("by"),
    Column("tags"),
)
_SHOWN = (
    Column("table"),
    *_HISTORY,
    Column("deleted rows", COUNT),
    Column("fragments", COUNT),
    Column("columns"),
    Column("added columns"),
    Column("removed columns"),
)


@command()
@output
@click.option(
    "-n", "--limit", type=click.IntRange(0), default=20, show_default=True, help="The most versions to list; 0 for all."
)
@click.option(
    "--since",
    metavar="TIME",
    callback=time_given,
    help="Only versions since this time: 2026-11-24, or 2d ago.",
)
@mode
@stores
@click.argument("name")
@click.pass_obj
def history(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    mode: str | None,
    limit: int,
    since: datetime | None,
    out: Output,
) -> None:
    """List the versions of a table, newest first.

    Shows what each version of the table NAME changed, when and by whom.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        found = catalog.versions.history(name, limit + 1 if limit else None)
        tags = tags_by_version(catalog, name)
    older = [*found[1:], None]
    rows = [
        _row(entry, before, tags)
        for entry, before in zip(found, older, strict=True)
        if since is None or entry.timestamp >= since
    ]
    out.rows(_HISTORY, rows[:limit] if limit else rows, "The table has no such version.")


def _row(entry: Any, before: Any, tags: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    difference = None if before is None and entry.version != 1 else entry.rows - (before.rows if before else 0)
    return {
        "version": entry.version,
        "changed": entry.timestamp,
        "operation": entry.operation,
        "rows": entry.rows,
        "difference": difference,
        "by": entry.committer or None,
        "tags": list(tags.get(entry.version, ())),
    }


@command()
@output
@mode
@stores
@click.argument("name")
@click.argument("version", metavar="VERSION")
@click.pass_obj
def show(functions: PublicFunctions, chosen: Stores, name: str, version: str, mode: str | None, out: Output) -> None:
    """Show a version of a table and what it changed.

    VERSION is a version of the table NAME, or the name of a tag.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        number = int(version) if version.isdecimal() else catalog.tags.get(name, version).version
        details = catalog.versions.describe(name, number)
        entries = {entry.version: entry for entry in catalog.versions.history(name, _depth(catalog, name, number))}
        if number not in entries:
            raise VersionNotFound(f"the table {name} has no version {number}. `lancekeep history` lists them")
        older = max((each for each in entries if each < number), default=None)
        before = None if older is None else entries[older]
        columns = _columns(details.schema)
        previous = columns if older is None else _columns(catalog.versions.describe(name, older).schema)
        found = {
            "table": name,
            **_row(entries[number], before, tags_by_version(catalog, name)),
            "deleted rows": details.deleted_rows,
            "fragments": details.fragments,
            "columns": columns,
            "added columns": [each for each in columns if each not in previous],
            "removed columns": [each for each in previous if each not in columns],
        }
    out.document(_SHOWN, found)


def _depth(catalog: Catalog, name: str, number: int) -> int:
    """Return how many versions to read to find a version and the one before it."""
    latest = catalog.describe_table(name).version or 0
    return max(latest - number, 0) + 2


def _columns(schema: Any) -> list[str]:
    return [f"{field.name} {field.type}" for field in schema]


# -- the graph -----------------------------------------------------------------------------------------------------


@attrs.frozen
class _Commit:
    """A version of one history; ``branch`` None is the main one."""

    branch: str | None
    version: int
    changed: datetime
    operation: str
    by: str
    tags: Sequence[str]

    def row(self) -> dict[str, Any]:
        return {**attrs.asdict(self, recurse=False), "tags": list(self.tags)}


@command()
@output
@click.option("--graph", is_flag=True, help="Draw the histories beside each other.")
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True, help="The most versions to show.")
@mode
@stores
@click.argument("name")
@click.pass_obj
def log(
    functions: PublicFunctions, chosen: Stores, name: str, mode: str | None, limit: int, graph: bool, out: Output
) -> None:
    """Show the versions of a table and its branches as a graph.

    Shows the main history of the table NAME and its branches in one list, newest first.
    """
    columns = (
        Column("branch"),
        Column("version", COUNT),
        Column("changed", TIME),
        Column("operation"),
        Column("by"),
        Column("tags"),
    )
    with chosen.catalog(functions, mode=mode) as catalog:
        branches = catalog.branches.list(name)
        commits = [*_of_main(catalog, name, limit)]
        for branch, start in branches.items():
            commits += _of_branch(catalog, name, branch, start.version, limit)
    commits.sort(key=lambda commit: (commit.changed, commit.version), reverse=True)
    if graph and out.form == "table":
        begins = {branch: (start.parent, start.version) for branch, start in branches.items()}
        _draw(commits[:limit], begins)
    else:
        out.rows(columns, [commit.row() for commit in commits[:limit]], "The table has no version yet.")


def _of_main(catalog: Catalog, name: str, limit: int) -> Iterator[_Commit]:
    tags = tags_by_version(catalog, name)
    for each in catalog.versions.history(name, limit):
        yield _Commit(
            None, each.version, each.timestamp, each.operation, each.committer, tuple(tags.get(each.version, ()))
        )


def _of_branch(catalog: Catalog, name: str, branch: str, start: int, limit: int) -> Iterator[_Commit]:
    tags = tags_by_version(catalog, name, branch)
    own = [each for each in catalog.open(name, branch=branch).versions() if each["version"] > start]
    for each in own[-limit:]:
        number, changed = each["version"], each["timestamp"].astimezone()
        yield _Commit(branch, number, changed, "", "", tuple(tags.get(number, ())))


def _draw(commits: Sequence[_Commit], begins: Mapping[str, tuple[str | None, int]]) -> None:
    """Print the graph: one lane for each history, which ends where the branch begins."""
    lanes: list[str | None] = [None, *(each for each in begins if any(commit.branch == each for commit in commits))]
    width = 2 * len(lanes) + 1
    drawn: set[str | None] = {None}
    for commit in commits:
        begun = [branch for branch, start in begins.items() if start == (commit.branch, commit.version)]
        for branch in drawn.intersection(begun):
            click.echo(_lanes(lanes, drawn, {branch: "/"}))
            drawn.discard(branch)
        drawn.add(commit.branch)
        names = [*filter(None, [commit.branch]), *(f"tag {tag}" for tag in commit.tags)]
        names += [f"{branch} begins" for branch in begun]
        words = (
            str(commit.version),
            f"({', '.join(names)})" if names else "",
            moment(commit.changed),
            commit.operation,
            commit.by,
        )
        marks = _lanes(lanes, drawn, {commit.branch: "*"}).ljust(width)
        print_folded(marks, _lanes(lanes, drawn, {}).ljust(width), "  ".join(filter(None, words)))


def _lanes(lanes: Sequence[str | None], drawn: set[str | None], marks: Mapping[str | None, str]) -> str:
    return " ".join(marks.get(lane, "|" if lane in drawn else " ") for lane in lanes).rstrip()
