"""``lancekeep audit``: the lines of a server's audit log."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs
import click

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.cli.cells import moment, plain
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message, print_table
from lancekeep.entrypoints.cli.options import as_json
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import span

COLUMNS = ("time", "principal", "address", "operation", "object", "decision", "status", "reason")
DECISIONS = ("allowed", "refused", "unauthenticated", "invalid")


@attrs.frozen
class Filter:
    """Which lines to show; None for any value."""

    principal: str | None
    operation: str | None
    below: tuple[str, ...] | None
    decision: str | None
    since: datetime | None
    catalog: str | None = None

    def takes(self, line: dict[str, Any]) -> bool:
        """Return whether a line is to be shown."""
        if self.since is not None and datetime.fromisoformat(line["time"]) < self.since:
            return False
        if self.decision not in (None, line.get("decision")):
            return False
        if not _matches(self.catalog, line.get("catalog")):
            return False
        if not _matches(self.principal, line.get("principal")) or not _matches(self.operation, line.get("operation")):
            return False
        if self.below is None:
            return True
        objects = [line.get("object") or [], *line.get("others", [])]
        return any(tuple(names[: len(self.below)]) == self.below for names in objects)


@command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--principal", metavar="PATTERN", help="Show requests of these callers: key:ada, or 'key:*'.")
@click.option("--operation", metavar="PATTERN", help="Show these operations: DropTable, or '*Table'.")
@click.option("--catalog", metavar="PATTERN", help="Show requests for these catalogs of a server of several.")
@click.option("--object", "object_id", metavar="NAME", help="Show requests for an object, or anything below it.")
@click.option("--decision", type=click.Choice(DECISIONS), help="Show requests with this decision.")
@click.option("--since", type=span, help="Show requests of the last time: 30m, 12h, 7d.")
@click.option("-n", "--limit", type=click.IntRange(1), default=100, show_default=True, help="How many to show.")
@as_json
def audit(
    file: Path,
    principal: str | None,
    operation: str | None,
    catalog: str | None,
    object_id: str | None,
    decision: str | None,
    since: timedelta | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show who asked a server for what, and what it decided.

    These are the last lines of its audit log FILE. `lancekeep serve --audit FILE` writes the file. Lines of a
    server that was killed in the middle of one are skipped.
    """
    start = None if since is None else datetime.now(UTC) - since
    below = None if object_id is None else ObjectId.of(object_id).names
    wanted = Filter(principal, operation, below, decision, start, catalog)
    skipped: list[int] = []
    shown = deque((line for line in _lines(file, skipped) if wanted.takes(line)), limit)
    if skipped:
        message(f"Skipped {len(skipped)} incomplete lines; the first is line {skipped[0]}.")
    if as_json:
        print_report(list(shown))
        return
    print_table("Audit log", COLUMNS, [tuple(_cell(line, column) for column in COLUMNS) for line in shown])


def _lines(file: Path, skipped: list[int]) -> Iterator[dict[str, Any]]:
    try:
        with open(file, "rb") as content:
            for number, line in enumerate(content, 1):
                try:
                    found = json.loads(line)
                    datetime.fromisoformat(found["time"])
                except (ValueError, KeyError, TypeError):
                    skipped.append(number)
                else:
                    yield found
    except OSError as error:
        raise InvalidInput(f"cannot read the audit log {file}: {error.strerror}") from error


def _matches(pattern: str | None, value: str | None) -> bool:
    return pattern is None or fnmatchcase(value or "", pattern)


def _cell(line: dict[str, Any], column: str) -> str:
    value = line.get(column)
    if column == "time":
        return moment(datetime.fromisoformat(line["time"]))
    if column == "operation" and value is None:
        return str(line.get("event"))
    if column == "object":
        return "" if value is None else plain(str(ObjectId(tuple(value))))
    if column == "reason" and value is None:
        return plain(str(line.get("changed") or line.get("file", "")))
    return "" if value is None else plain(str(value))
