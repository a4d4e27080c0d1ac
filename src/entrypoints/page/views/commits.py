"""The rows of the commit store for a table, and commits that are not complete."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import attrs
from starlette.responses import Response

from lancekeep.application.catalog import Catalog
from lancekeep.application.commits.commit_rows import CommitRow, CommitRows, StagedCommit
from lancekeep.application.commits.unresolved import UnresolvedCommit
from lancekeep.domain.errors import Damaged, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.page.formats import command
from lancekeep.entrypoints.page.parameters import whole_number
from lancekeep.entrypoints.page.request import PageRequest

PAGE = 50
"""The most rows of a page."""


@attrs.frozen
class CommitsView:
    """A page of the rows of a history.

    Attributes:
        id: The table.
        branch: The branch; None is the main history.
        found: The rows; None if they are unknown.
        complete: The command that completes decided commits.
        settle: The command that settles an open commit by its token.
        remove: The command that removes what lost and crashed commits left.
        check: The command that finds such commits in the whole catalog.
        problem: Why the rows are unknown; empty if they are known.
    """

    id: ObjectId
    branch: str | None
    found: CommitRows | None
    complete: str
    settle: str
    remove: str
    check: str
    problem: str = ""

    @property
    def since(self) -> timedelta:
        """The time in which the conflicts were counted."""
        return timedelta(seconds=int(self.found.conflicts.seconds)) if self.found else timedelta()

    @property
    def rows(self) -> tuple[CommitRow, ...]:
        """The rows of the page, newest first."""
        return self.found.rows if self.found else ()

    @property
    def staged(self) -> tuple[StagedCommit, ...]:
        """The staged manifests."""
        return self.found.staged if self.found else ()


def build(catalog: Catalog, table: ObjectId, parameters: Mapping[str, str]) -> CommitsView:
    """Return a page of rows, without completing a commit.

    Args:
        catalog: The catalog.
        table: The table.
        parameters: ``before`` is the version before which the page begins, ``branch`` a branch.

    Raises:
        TableNotFound, InvalidInput: The table does not exist, or a parameter is invalid.
    """
    branch = parameters.get("branch") or None
    before = whole_number(parameters, "before", 1) if parameters.get("before") else None
    found, problem = None, ""
    try:
        found = catalog.commit_rows(table, before=before, limit=PAGE, branch=branch)
    except (Unsupported, Damaged) as error:
        problem = str(error)
    root, name = catalog.root_uri, str(table)
    return CommitsView(
        table,
        branch,
        found,
        command("history", root, name, limit="1"),
        command("resolve", root, "TOKEN"),
        command("repair", root, table=name, yes=True),
        command("fsck", root),
        problem,
    )


def commits(request: PageRequest) -> Response:
    """Answer with a page of rows."""
    return request.render("commits.html", view=build(request.catalog, request.object_id, request.query), tab="commits")


@attrs.frozen
class UnresolvedView:
    """A page of the unresolved commits of the catalog.

    Attributes:
        found: The commits, each with the command that completes it; None if they are unknown.
        following: The ``after`` of the next page; None on the last page.
        store: The URL of the commit store.
        check: The command that finds every kind of incomplete commit.
        problem: Why they are unknown; empty if they are known.
    """

    found: tuple[tuple[UnresolvedCommit, str], ...] | None
    following: str | None
    store: str
    check: str
    problem: str = ""


def build_unresolved(catalog: Catalog, parameters: Mapping[str, str]) -> UnresolvedView:
    """Return a page of the unresolved commits of the catalog.

    Args:
        catalog: The catalog.
        parameters: ``after`` is the ``following`` of the page before.

    Raises:
        InvalidInput: ``after`` is of no page.
    """
    root = catalog.root_uri
    check = command("fsck", root)
    try:
        found = catalog.unresolved_commits(PAGE, after=parameters.get("after") or None)
    except (Unsupported, Damaged) as error:
        return UnresolvedView(None, None, "", check, str(error))
    shown = tuple((each, _completing(root, each)) for each in found.commits)
    return UnresolvedView(shown, found.following, found.store, check)


def _completing(root: str, commit: UnresolvedCommit) -> str:
    """Return the command that completes a commit: any that reads the history."""
    if commit.table is None:
        return command("repair", root)
    branch = {} if commit.branch is None else {"branch": commit.branch}
    return command("history", root, str(commit.table), limit="1", **branch)


def unresolved(request: PageRequest) -> Response:
    """Answer with a page of the unresolved commits of the catalog."""
    return request.render("unresolved.html", view=build_unresolved(request.catalog, request.query))


ROUTES = (("/t/{id}/commits", commits), ("/commits", unresolved))
