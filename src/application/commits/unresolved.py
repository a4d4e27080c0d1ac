"""Commits of a whole catalog that a row decides, and that are not complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import attrs

from lancekeep.application.commits.protocol_runner import ProtocolRunner
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.dropped import owner_id
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES


@attrs.frozen
class UnresolvedCommit:
    """A version that is reserved and not final.

    The next reader or writer of the table completes it.

    Attributes:
        table: The table, or dropped table; None if the catalog has no such table.
        branch: The branch; None is the main history.
        version: The version.
        location: The directory of the table, relative to the root.
        committer: The writer that reserved the version; empty if the commit store does not know.
    """

    table: ObjectId | None
    branch: str | None
    version: int
    location: str
    committer: str


@attrs.frozen
class UnresolvedCommits:
    """A page of unresolved commits.

    Attributes:
        store: The URL of the commit store.
        commits: The commits, by the location of the table.
        following: The ``after`` of the next page; None on the last page.
    """

    store: str
    commits: tuple[UnresolvedCommit, ...]
    following: str | None


def unresolved_commits(
    commits: ProtocolRunner, root_uri: str, view: Callable[[], CatalogView], after: str | None, limit: int
) -> UnresolvedCommits:
    """Return a page of commits; `Catalog.unresolved_commits` documents the arguments."""
    prefix = f"{root_uri}/"
    place = None if after is None else _place(after, prefix)
    find = partial(commits.rows.unfinished, prefix, after=place, limit=limit + 1)
    found = commits.retry.call(find)
    entries = view() if found else None
    shown = []
    for row in found[:limit]:
        location, _, branch = row.base_uri.removeprefix(prefix).partition(f"/{BRANCHES}/")
        owner = None if entries is None else entries.owner_of(location)
        table = None if owner is None else owner_id(owner)
        shown.append(UnresolvedCommit(table, branch or None, row.version, location, row.committer))
    return UnresolvedCommits(commits.rows.url, tuple(shown), position(shown[-1]) if len(found) > limit else None)


def position(commit: UnresolvedCommit) -> str:
    """Return the ``after`` of the commits that follow one."""
    branch = "" if commit.branch is None else f"/{BRANCHES}/{commit.branch}"
    return json.dumps([f"{commit.location}{branch}", commit.version])


def _place(after: str, prefix: str) -> tuple[str, int]:
    try:
        location, version = json.loads(after)
        if not (isinstance(location, str) and type(version) is int and 0 <= version < 2**63):
            raise ValueError("it is no location and version")
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"after is {after!r:.100}; give the value of the page before") from error
    return f"{prefix}{location}", version
