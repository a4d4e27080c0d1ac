"""The versions of a table in pages, with their tags and branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import attrs
from starlette.responses import Response

from lancekeep.application.catalog import Catalog
from lancekeep.application.rows.described_versions import HistoryEntry, VersionChange
from lancekeep.domain.errors import VersionNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.cli.reading import tags_by_version
from lancekeep.entrypoints.page.drawing import Node, version_graph
from lancekeep.entrypoints.page.parameters import whole_number
from lancekeep.entrypoints.page.request import PageRequest
from lancekeep.entrypoints.page.views.table import noted

PAGE = 25
"""The most versions of a page."""
BRANCHES, LANES = 50, 8
"""The most branches, and tags of a version, that a page lists; and the most that have a line of their own."""


@attrs.frozen
class VersionShown:
    """A version.

    Attributes:
        version: Its number.
        changed: Its time.
        operation: The operation that made it.
        committer: Who committed it; empty if that is not known.
        rows: The number of rows.
        difference: The rows more or fewer than the version before had; None if that version is gone.
        change: The rows and bytes that it added and removed; None if that is not known.
        tags: Its tags.
        branches: The branches that begin at it.
    """

    version: int
    changed: datetime
    operation: str
    committer: str
    rows: int
    difference: int | None
    change: VersionChange | None
    tags: tuple[str, ...]
    branches: tuple[str, ...]


@attrs.frozen
class HistoryView:
    """A page of the history of a table.

    Attributes:
        id: The table.
        branch: The branch; None for the main history.
        versions: The versions, newest first.
        before: The parameter of the next page; None on the last page.
        branches: The names of the branches.
        more_branches: The number of other branches.
        notes: Why parts of the page are unknown.
    """

    id: ObjectId
    branch: str | None
    versions: tuple[VersionShown, ...]
    before: int | None
    branches: tuple[str, ...]
    more_branches: int
    notes: tuple[str, ...] = ()


def build(catalog: Catalog, table: ObjectId, parameters: Mapping[str, str]) -> HistoryView:
    """Return a page of versions, newest first.

    Args:
        catalog: The catalog.
        table: The table.
        parameters: ``branch``; and ``before``, the last version of the page before.

    Raises:
        TableNotFound, BranchNotFound: There is no such object.
        InvalidInput: A parameter is no number.
    """
    branch = parameters.get("branch") or None
    before = whole_number(parameters, "before", 1) if parameters.get("before") else None
    notes: list[str] = []
    try:
        found = catalog.versions.history(table, PAGE, before=before, branch=branch, changes=True)
        branches = noted(notes, lambda: catalog.branches.list(table)) or {}
    except VersionNotFound:
        if branch is not None:
            raise
        return HistoryView(table, None, (), None, (), 0)
    begins: dict[int, list[str]] = {}
    for name, start in sorted(branches.items()):
        if start.parent == branch:
            begins.setdefault(start.version, []).append(name)
    tags = noted(notes, lambda: tags_by_version(catalog, table, branch)) or {}
    versions = tuple(
        VersionShown(
            entry.version,
            entry.timestamp,
            entry.operation,
            entry.committer,
            entry.rows,
            _difference(entry, older),
            entry.change,
            tuple(tags.get(entry.version, ()))[:BRANCHES],
            tuple(begins.get(entry.version, ()))[:BRANCHES],
        )
        for entry, older in zip(found, [*found[1:], None], strict=False)  # none may be found
    )
    return HistoryView(
        table,
        branch,
        versions,
        versions[-1].version if len(versions) == PAGE and versions[-1].version > 1 else None,
        tuple(sorted(branches))[:BRANCHES],
        max(len(branches) - BRANCHES, 0),
        tuple(notes),
    )


def _difference(entry: HistoryEntry, older: HistoryEntry | None) -> int | None:
    """Return how many rows a version has more than the version before; None if that is not known."""
    if entry.change is not None:
        return entry.change.rows_added - entry.change.rows_removed
    if entry.version == 1:
        return entry.rows
    return entry.rows - older.rows if older is not None and older.version == entry.version - 1 else None


def _nodes(versions: Sequence[VersionShown]) -> list[Node]:
    """Return the versions, with the branches that begin at each above it."""
    nodes: list[Node] = []
    lanes = 0
    for each in versions:
        for branch in each.branches:
            lanes += 1
            nodes.append(Node(f"branch {branch}", f"branch {branch}", str(each.version), min(lanes, LANES)))
        label = ", ".join([str(each.version), *(f"tag {tag}" for tag in each.tags)])
        nodes.append(Node(str(each.version), label, str(each.version - 1) if each.version > 1 else None))
    return nodes


def history(request: PageRequest) -> Response:
    """Answer with a page of the history of a table."""
    view = build(request.catalog, request.object_id, request.query)
    graph = version_graph(_nodes(view.versions), "Versions, newest first, with their tags and branches")
    return request.render("history.html", view=view, graph=graph, tab="history")


ROUTES = (("/t/{id}/history", history),)
