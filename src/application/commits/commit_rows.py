"""The rows of a history as the commit store has them, and its staged manifests.

Nothing is rolled forward or adopted, so commits that are not complete are visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import islice

import attrs

from lancekeep.application.commits.conflict_count import Conflicts
from lancekeep.application.commits.protocol_runner import ProtocolRunner
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.object_store import ObjectInfo

MOST_LISTED = 10_000
"""The most files of a history that are searched for staged manifests."""
MOST_STAGED = 100
"""The most staged manifests that are described."""


class Stage(StrEnum):
    """What is known of a staged manifest."""

    DECIDED = "decided"
    """A row reserves the version for it. The next reader or writer completes the commit."""
    LOST = "lost"
    """Its version is another manifest, or a copy of it was published. It can be removed."""
    OPEN = "open"
    """No row reserves its version: its writer is still running, or has stopped."""


@attrs.frozen
class StagedCommit:
    """A staged manifest.

    Attributes:
        version: The version for which it was staged.
        file: Its path below the table.
        size: Its bytes.
        staged: When it was written.
        stage: What is known of it.
    """

    version: int
    file: str
    size: int
    staged: datetime | None
    stage: Stage


@attrs.frozen
class CommitRow:
    """A row of the commit store.

    Attributes:
        version: The version.
        file: The path of its manifest below the table.
        size: The bytes of the manifest.
        committer: The writer that reserved the version; empty if the commit store does not know.
        is_final: Whether the commit is complete.
        moved_to: The URL of the commit store that has the later versions; None except in a row that ends the history.
    """

    version: int
    file: str
    size: int
    committer: str
    is_final: bool
    moved_to: str | None


@attrs.frozen
class CommitRows:
    """A page of the rows of a history.

    Attributes:
        store: The URL of the commit store.
        derived: Whether the rows follow from the manifests, so that creating a manifest commits a version.
        rows: The rows, newest first.
        following: The ``before`` of the next page; None on the last page.
        staged: Staged manifests, on the first page.
        searched_all: Whether all files were searched for staged manifests.
        conflicts: The commits of this process to the history that lost their version to another writer.
    """

    store: str
    derived: bool
    rows: tuple[CommitRow, ...]
    following: int | None
    staged: tuple[StagedCommit, ...]
    searched_all: bool
    conflicts: Conflicts


def commit_rows(commits: ProtocolRunner, root: DatasetRoot, before: int | None, limit: int) -> CommitRows:
    """Return a page of rows; `Catalog.commit_rows` documents the arguments."""
    store = commits.rows.of(root.base_uri)
    found = commits.retry.call(lambda: store.list(root.base_uri, after=before, limit=limit + 1, descending=True))
    shown = found[:limit]
    staged: tuple[StagedCommit, ...] = ()
    searched_all = True
    if before is None:
        listed = commits.retry.call(lambda: list(islice(commits.objects.list(root.versions_key), MOST_LISTED + 1)))
        searched_all = len(listed) <= MOST_LISTED
        latest = found[0].version if found else 0
        waiting = islice(_staged(listed[:MOST_LISTED]), MOST_STAGED)
        staged = tuple(_described(commits, root, info, name, latest) for info, name in waiting)
    return CommitRows(
        store.url,
        store.guarantees.derived,
        tuple(_shown(row, root) for row in shown),
        shown[-1].version if len(found) > limit else None,
        staged,
        searched_all,
        commits.conflicts.last_hour(root.base_uri),
    )


def _staged(infos: list[ObjectInfo]) -> Iterator[tuple[ObjectInfo, ManifestName]]:
    for info in infos:
        name = ManifestName.parse(info.key.rpartition("/")[2])
        if name is not None and name.is_staged:
            yield info, name


def _described(
    commits: ProtocolRunner, root: DatasetRoot, info: ObjectInfo, name: ManifestName, latest: int
) -> StagedCommit:
    row = commits.retry.call(partial(commits.rows.get, root.base_uri, name.version))
    if row is not None and row.path == info.key:
        stage = Stage.DECIDED
    else:
        stage = Stage.LOST if row is not None or name.version <= latest else Stage.OPEN
    return StagedCommit(name.version, _below(info.key, root), info.size, info.modified, stage)


def _shown(row: VersionRow, root: DatasetRoot) -> CommitRow:
    file = "" if row.moved_to is not None else _below(row.path, root)
    return CommitRow(row.version, file, row.size, row.committer, row.is_final, row.moved_to)


def _below(key: str, root: DatasetRoot) -> str:
    return key.removeprefix(f"{root.key}/")
