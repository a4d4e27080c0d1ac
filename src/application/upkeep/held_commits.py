"""Settle the direct commits that a table holds.

`Upkeep.direct_commits` documents the operation, ADR 165 why each step may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from uuid import uuid4

import attrs

from lancekeep.application.commits.table_commits import Check, TableCommits
from lancekeep.domain.commit_token import StagedManifest
from lancekeep.domain.direct_commits import Decision, approval_of
from lancekeep.domain.errors import ConcurrentModification, Damaged, ObjectNotFound, Refused
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.notebook import Shown
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.fence import unchanged
from lancekeep.format.whole_version import decode_whole


@attrs.frozen
class DirectCommit:
    """A version that a writer committed to the storage without the catalog.

    Attributes:
        branch: The branch; empty for the main history.
        version: Its number.
        path: The key of its manifest.
        size: The size of its manifest, in bytes.
    """

    branch: str
    version: int
    path: str
    size: int


@attrs.frozen
class DirectCommitsReport(Shown):
    """The direct commits that a table holds, or held.

    Attributes:
        table: The table.
        commits: The direct commits, by branch and version.
        decision: What was done with them; None if they were only listed.
    """

    table: str
    commits: tuple[DirectCommit, ...]
    decision: Decision | None

    def __str__(self) -> str:
        done = {None: "holds", Decision.ADOPT: "adopted", Decision.DISCARD: "discarded"}[self.decision]
        found = ", ".join(f"version {each.version}{f' of {each.branch}' * bool(each.branch)}" for each in self.commits)
        return f"{self.table}: {done} {found or 'no direct commit'}"


class HeldCommits:
    """Finds, adopts and discards the direct commits of one table.

    Args:
        commits: The commits of the catalog.
        check: Checks each manifest to adopt, as it checks the manifest of every commit.
        name: The table, for messages.
        root: Its root.
        now: Returns the time in nanoseconds since 1970, for manifests.
    """

    def __init__(
        self, commits: TableCommits, check: Check, name: str, root: DatasetRoot, now: Callable[[], int] = time.time_ns
    ) -> None:
        self._commits = commits
        self._check = check
        self._name = name
        self._root = root
        self._now = now

    def settle(self, decision: Decision | None) -> DirectCommitsReport:
        """Adopt or discard all direct commits that there are now.

        Without a decision, list them.
        """
        found = [(history, row) for history in self._commits.histories(self._root) for row in self._held(history)]
        if decision is not None and not self._commits.holding.is_marked(self._root):
            found = []  # readers adopt the direct commits of this table
        for history, row in found if decision is not None else ():
            self._adopt(history, row) if decision is Decision.ADOPT else self._discard(history, row)
        told = tuple(DirectCommit(self._branch(root), row.version, row.path, row.size) for root, row in found)
        return DirectCommitsReport(self._name, told, decision)

    def _branch(self, history: DatasetRoot) -> str:
        return history.key.removeprefix(self._root.key).removeprefix(f"/{BRANCHES}/")

    def _held(self, history: DatasetRoot) -> list[VersionRow]:
        """Return the final manifests above the latest version."""
        latest = self._commits.latest(history)
        newest = 0 if latest is None else latest.version
        rows = {}
        for key, info in self._listed(history):
            name = ManifestName.parse(key)
            if name is not None and not name.is_staged and name.version > newest:
                rows[name.version] = VersionRow(history.base_uri, name.version, info, self._size(info))
        return [rows[version] for version in sorted(rows)]

    # -- adopting -----------------------------------------------------------------------------------------------

    def _adopt(self, history: DatasetRoot, row: VersionRow) -> None:
        """Approve a direct commit that may follow the latest version, and enter its row."""
        content = self._get(row.path)
        latest = self._commits.latest(history)
        if latest is not None and latest.version >= row.version:
            raise self._decided(row)
        if latest is not None and latest.version != row.version - 1:
            raise Refused(
                f"{history.base_uri}: version {row.version} cannot be adopted, because version {latest.version + 1} "
                "is missing. Move its manifest away; nothing was changed"
            )
        self._require_legal(history, row, content)
        self._decide(history, row, content)

    def _require_legal(self, history: DatasetRoot, row: VersionRow, content: bytes) -> None:
        decode_whole(content, row.path, row.version)
        self._check(history, content)
        staged = StagedManifest(history.base_uri, row.version, row.path, len(content), row.version == 1, "")
        lineage = self._commits.lineage
        lineage.require(history, staged, lineage.decode(history, staged, content), None)

    # -- discarding ---------------------------------------------------------------------------------------------

    def _discard(self, history: DatasetRoot, row: VersionRow) -> None:
        """Replace a direct commit by a version that holds the same as the version before it.

        The replacement is approved before it is written. So every participant that writes it, now or later, writes the
        same bytes, and no other bytes become the version.
        """
        latest = self._commits.latest(history)
        if latest is None:
            raise Refused(
                f"{history.base_uri}: version {row.version} cannot be discarded, because the catalog has no version "
                "before it. Adopt it, or drop the table or branch; nothing was changed"
            )
        if latest.version >= row.version:
            raise self._decided(row)
        if latest.version != row.version - 1:
            raise Refused(
                f"{history.base_uri}: version {row.version} cannot be discarded, because version "
                f"{latest.version + 1} is missing. Move its manifest away; nothing was changed"
            )
        approval = self._commits.direct.approval(history.base_uri, row.version)
        if approval is None:
            staged = self._stage(history, row, latest)
            approval = self._commits.direct.approve(history.base_uri, row.version, staged)
        self._replace(history, row, approval)

    def _stage(self, history: DatasetRoot, row: VersionRow, latest: VersionRow) -> bytes:
        """Stage a version that holds the same as the latest one; return its manifest."""
        before = self._get(latest.path)
        built = unchanged(before, self._name, str(uuid4()), self._now())
        self._commits.record_transaction(history, built)
        key = f"{row.path}-{uuid4()}"
        self._commits.retry.call(partial(self._commits.objects.put, key, built.content))
        with suppress(ObjectNotFound):
            if self._get(latest.path) == before:
                return built.content
        self._commits.retry.call(partial(self._commits.objects.delete, key))
        raise ConcurrentModification(
            f"{history.base_uri}: the table was dropped while its direct commit of version {row.version} was "
            "discarded; nothing was changed"
        )

    def _replace(self, history: DatasetRoot, row: VersionRow, approval: VersionRow) -> None:
        """Copy the approved replacement to the final name, and enter its row.

        A drop of the table removes the staged replacement, so the copy cannot reach another table at this place.
        """
        staged = dict(self._staged(history, row.version))
        fitting = [key for key, each in staged.items() if approval_of(history.base_uri, row.version, each) == approval]
        is_approved = self._commits.direct.is_approved(row)
        if not fitting and is_approved:
            raise self._decided(row)
        if not fitting:
            raise Damaged(
                f"{history.base_uri}: the manifest that replaces the direct commit of version {row.version} is decided "
                f"and no longer exists. Put it back from a backup as {row.path}-UUID: {approval.path}"
            )
        if not is_approved:
            entered = self._commits.retry.call(partial(self._commits.rows.get, history.base_uri, row.version))
            if entered is not None and (entered.is_final or entered.moved_to is not None):
                raise self._decided(row)
            try:
                self._commits.retry.call(partial(self._commits.objects.copy, fitting[0], row.path))
            except ObjectNotFound:  # another process has completed the decision, or dropped the table
                if not self._commits.direct.is_approved(row):
                    raise self._decided(row) from None
        self._decide(history, row, staged[fitting[0]])
        for key in fitting:
            self._commits.retry.call(partial(self._commits.objects.delete, key))

    def _decide(self, history: DatasetRoot, row: VersionRow, content: bytes) -> None:
        """Approve a content, and enter the row of its version."""
        approval = self._commits.direct.approve(history.base_uri, row.version, content)
        if approval != approval_of(history.base_uri, row.version, content):
            raise self._decided(row)
        self._commits.forget()
        self._commits.latest(history)

    def _decided(self, row: VersionRow) -> ConcurrentModification:
        return ConcurrentModification(
            f"{row.base_uri}: version {row.version} was settled by another process, perhaps otherwise; list the "
            "direct commits again"
        )

    # -- objects ------------------------------------------------------------------------------------------------

    def _listed(self, history: DatasetRoot) -> Iterator[tuple[str, str]]:
        for info in self._commits.retry.call(lambda: list(self._commits.objects.list(history.versions_key))):
            yield info.key.removeprefix(history.versions_key), info.key

    def _staged(self, history: DatasetRoot, version: int) -> Iterator[tuple[str, bytes]]:
        for name, key in self._listed(history):
            parsed = ManifestName.parse(name)
            if parsed is not None and parsed.is_staged and parsed.version == version:
                with suppress(ObjectNotFound):
                    yield key, self._get(key)

    def _size(self, key: str) -> int:
        info = self._commits.retry.call(partial(self._commits.objects.head, key))
        return 0 if info is None else info.size

    def _get(self, key: str) -> bytes:
        return self._commits.retry.call(partial(self._commits.objects.get, key))
