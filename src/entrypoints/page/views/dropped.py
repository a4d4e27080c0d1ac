"""Dropped tables, which can be brought back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import attrs
from starlette.responses import Response

from lancekeep.application.catalog import Catalog
from lancekeep.application.entries.dropped import DroppedTable
from lancekeep.domain.errors import Damaged, Unsupported
from lancekeep.entrypoints.page.formats import command
from lancekeep.entrypoints.page.parameters import whole_number
from lancekeep.entrypoints.page.request import PageRequest

PAGE = 50
"""The most dropped tables of a page."""


@attrs.frozen
class DroppedRow:
    """A dropped table.

    Attributes:
        table: The table.
        left: The time until cleanup may remove its files; None if that time is over.
        command: The command that brings it back; empty if the removal of its files has begun.
    """

    table: DroppedTable
    left: timedelta | None
    command: str


@attrs.frozen
class DroppedView:
    """A page of dropped tables.

    Attributes:
        rows: The tables.
        count: The number of all dropped tables.
        page: The number of this page, from 1.
        more: Whether another page follows.
        problem: Why they are unknown; empty if they are known.
    """

    rows: tuple[DroppedRow, ...] = ()
    count: int = 0
    page: int = 1
    more: bool = False
    problem: str = ""


def build(catalog: Catalog, parameters: Mapping[str, str], now: datetime) -> DroppedView:
    """Return a page of dropped tables, by name and time.

    Args:
        catalog: The catalog.
        parameters: ``page`` is the number of the page.
        now: The time from which the rest is counted.

    Raises:
        InvalidInput: The number of the page is invalid.
    """
    page = whole_number(parameters, "page", 1)
    try:
        found = catalog.list_dropped()
    except (Unsupported, Damaged) as error:
        return DroppedView(problem=str(error))
    shown = found[(page - 1) * PAGE : page * PAGE]
    return DroppedView(
        tuple(_row(catalog.root_uri, each, now) for each in shown), len(found), page, len(found) > page * PAGE
    )


def _row(root: str, table: DroppedTable, now: datetime) -> DroppedRow:
    left = table.until - now if table.until > now else None
    undrop = command("undrop", root, str(table.id), drop=table.drop)
    return DroppedRow(table, left, "" if table.is_purging else undrop)


def dropped(request: PageRequest) -> Response:
    """Answer with a page of dropped tables."""
    return request.render("dropped.html", view=build(request.catalog, request.query, datetime.now(UTC)))


ROUTES = (("/dropped", dropped),)
