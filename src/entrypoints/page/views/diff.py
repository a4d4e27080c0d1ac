"""What differs between two versions of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import attrs
from starlette.responses import Response

from lancekeep.application.catalog import Catalog
from lancekeep.application.rows.described_versions import HistoryEntry
from lancekeep.application.rows.differences import At
from lancekeep.application.rows.matching import CHANGE_TYPE
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.page.cells import Cell, cell_of
from lancekeep.entrypoints.page.drawing import sparkline
from lancekeep.entrypoints.page.formats import text
from lancekeep.entrypoints.page.parameters import version_of
from lancekeep.entrypoints.page.request import PageRequest
from lancekeep.entrypoints.page.rows import COLUMNS
from lancekeep.entrypoints.page.views.table import ColumnShown, column_shown

ROWS = 50
"""The most changed rows of a page."""
LISTED = 100
"""The most columns and files of each kind, and the most operations."""
COMPARED = 200_000
"""The rows of a version up to which rows are compared: a page has to be quick."""
_MEMORY = 64 << 20


@attrs.frozen
class ChangedRow:
    """A row, and what happened to it.

    ``change`` is ``insert``, ``delete``, ``update_preimage`` or ``update_postimage``.
    """

    change: str
    cells: tuple[Cell, ...]


@attrs.frozen
class DiffView:
    """What the page about two versions shows.

    Attributes:
        id: The table.
        before: The first version.
        after: The second version.
        branch: The branch of both; None for the main history.
        rows_before: The number of rows of the first version.
        rows_after: The number of rows of the second version.
        added: The new columns.
        removed: The columns that are gone.
        changed: Columns before and after a change.
        files_added: New files.
        files_removed: Files that are gone.
        more_files: How many other files were added and removed.
        operations: The versions between; empty if they are too many.
        keys: The columns that identify rows.
        columns: The columns of the changed rows.
        rows: The first changed rows.
        has_more: Whether more rows changed.
        problem: Why no rows are compared, as a sentence.
    """

    id: ObjectId
    before: int
    after: int
    branch: str | None
    rows_before: int
    rows_after: int
    added: tuple[ColumnShown, ...]
    removed: tuple[ColumnShown, ...]
    changed: tuple[tuple[ColumnShown, ColumnShown], ...]
    files_added: tuple[str, ...]
    files_removed: tuple[str, ...]
    more_files: int
    operations: tuple[HistoryEntry, ...]
    keys: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[ChangedRow, ...] = ()
    has_more: bool = False
    problem: str = ""


def build(catalog: Catalog, table: ObjectId, parameters: Mapping[str, str]) -> DiffView:
    """Compare two versions of a table.

    Args:
        catalog: The catalog.
        table: The table.
        parameters: ``from`` and ``to``, each a number or a tag; ``branch``; and ``keys``, names of columns with commas.

    Raises:
        TableNotFound, VersionNotFound, TagNotFound, BranchNotFound: There is no such object.
        InvalidInput: A version is missing.
    """
    branch = parameters.get("branch") or None
    keys = tuple(filter(None, map(str.strip, parameters.get("keys", "").split(","))))
    found = catalog.diff(table, _at(parameters, "from"), _at(parameters, "to"))
    schema = found.schema
    shown = DiffView(
        table,
        found.before,
        found.after,
        branch,
        found.rows_before,
        found.rows_after,
        tuple(map(column_shown, schema.added[:LISTED])),
        tuple(map(column_shown, schema.removed[:LISTED])),
        tuple((column_shown(old), column_shown(new)) for old, new in schema.changed[:LISTED]),
        found.files_added[:LISTED],
        found.files_removed[:LISTED],
        sum(max(len(files) - LISTED, 0) for files in (found.files_added, found.files_removed)),
        _operations(found),
        keys,
    )
    if max(found.rows_before, found.rows_after) > COMPARED:
        problem = f"A page compares the rows of versions of up to {COMPARED:,} rows. Run the command in a terminal."
        return attrs.evolve(shown, problem=problem)
    try:
        return _with_rows(shown, found, keys)
    except LancekeepError as error:
        return attrs.evolve(shown, problem=text(error, 500))


def _at(parameters: Mapping[str, str], name: str) -> At:
    if not parameters.get(name):
        raise InvalidInput(f"the address lacks {name}, a version or the name of a tag")
    chosen = version_of({"version": parameters[name], "branch": parameters.get("branch", "")})
    if chosen.get("tag") is not None:  # a tag names its branch itself
        return At(tag=chosen["tag"])
    return At(chosen["version"], branch=chosen["branch"])


def _operations(found: Any) -> tuple[HistoryEntry, ...]:
    if abs(found.after - found.before) > LISTED:
        return ()
    try:
        return tuple(found.operations())
    except LancekeepError:  # the versions belong to different branches
        return ()


def _with_rows(shown: DiffView, found: Any, keys: Sequence[str]) -> DiffView:
    with found.rows(list(keys) or None, memory=_MEMORY) as reader:
        names = [name for name in reader.schema.names if name != CHANGE_TYPE][:COLUMNS]
        changed = (
            ChangedRow(str(kind), tuple(cell_of(batch.column(name)[at]) for name in names))
            for batch in reader
            for at, kind in enumerate(batch.column(CHANGE_TYPE))
        )
        rows = list(islice(changed, ROWS + 1))
    return attrs.evolve(shown, columns=tuple(names), rows=tuple(rows[:ROWS]), has_more=len(rows) > ROWS)


def diff(request: PageRequest) -> Response:
    """Answer with the differences of two versions."""
    view = build(request.catalog, request.object_id, request.query)
    return request.render("diff.html", view=view, sparkline=sparkline, tab="history")


ROUTES = (("/t/{id}/diff", diff),)
