"""``lancekeep events``: the changes of a catalog and the commits of its tables."""

from __future__ import annotations

import json
from collections.abc import Iterable

import click

from lancekeep.application.events.cloud_events import fields_of
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.events import LATEST, Event
from lancekeep.entrypoints.cli.cells import plain
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message, print_line, print_table
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.upkeep import mode

COLUMNS = ("time", "object", "event", "details", "cursor")
_PAUSE = 1.0
_HIDDEN = frozenset(("id", "catalog_version", "transaction"))


@command()
@click.option("--after", metavar="CURSOR", help="Continue after a cursor; 'latest' for what happens from now on.")
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many to show.")
@click.option("-f", "--follow", is_flag=True, help="Wait for further events, until Ctrl-C.")
@click.option("--record", is_flag=True, help="First record events, as a server with --events does.")
@as_json
@mode
@stores
@click.argument("name", default="")
@click.pass_obj
def events(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    mode: str | None,
    after: str | None,
    limit: int,
    follow: bool,
    record: bool,
    as_json: bool,
) -> None:
    """Show the changes of a catalog and the commits of its tables, in order.

    These are the events of NAME and everything below it, or of the whole catalog. --json prints each event as a
    CloudEvent on a line of its own. A server with --events records the events, and so does --record.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        service = catalog.events
        if record and follow:
            raise InvalidInput("--follow does not record; leave out --record, and run a server with --events")
        while record and service.record():
            pass
        cursor = service.latest() if after == LATEST else after
        if follow:
            source = service.read(cursor, 1).source
            for event in service.watch(cursor, below=name, poll=_PAUSE):
                _print_line(event, source, as_json=as_json)
            return
        page = service.read(cursor, limit, below=name)
        if as_json:
            for event in page.events:
                _print_line(event, page.source, as_json=True)
            return
        print_table("Events", COLUMNS, _rows(page.events))
        message(f"Continue with --after {page.cursor}")


def _print_line(event: Event, source: str, *, as_json: bool) -> None:
    if as_json:
        print_line(json.dumps(fields_of(event, source)))
    else:
        print_line("  ".join(_row(event)))


def _rows(events: Iterable[Event]) -> list[tuple[str, ...]]:
    return [_row(event) for event in events]


def _row(event: Event) -> tuple[str, ...]:
    details = ", ".join(
        f"{name} {'.'.join(value) if isinstance(value, list) else value}"
        for name, value in event.data.items()
        if name not in _HIDDEN
    )
    time = fields_of(event, "").get("time", "")[:19].replace("T", " ")
    return time, plain(str(event.object_id)), event.type.removeprefix("lancekeep."), plain(details), event.cursor
