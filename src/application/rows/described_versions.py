"""Describe versions of tables by their manifests, without the table engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

import attrs

from lancekeep.application.commits.rebase import CommittedVersions
from lancekeep.application.concurrency import all_alongside, is_remote
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.rows.version_times import Times, time_of_manifest
from lancekeep.domain.errors import ObjectNotFound
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.notebook import Shown
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.manifest import committed_at, summary_of
from lancekeep.format.table_version import TableVersion


@attrs.frozen
class HistoryEntry(Shown):
    """One version of a table.

    Attributes:
        version: The version number.
        timestamp: The commit time, in UTC.
        operation: The operation of its transaction.
        rows: The number of rows of the table at this version.
        committer: The writer that committed it; empty if the commit store does not know.
    """

    version: int
    timestamp: datetime
    operation: str
    rows: int
    committer: str


class DescribedVersions:
    """Reads the manifests of histories.

    Versions that garbage collection has removed are left out.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def latest(self, root: DatasetRoot, limit: int | None) -> list[HistoryEntry]:
        """Describe the latest versions of a history, newest first."""
        return self._entries(root, self._ledger.commits.page(root, None, limit, True))

    def of(self, root: DatasetRoot, versions: Sequence[int]) -> list[HistoryEntry]:
        """Describe versions of a history, in the given order."""
        rows = (self._ledger.commits.get(root, version) for version in versions)
        return self._entries(root, [row for row in rows if row is not None])

    def times(self, root: DatasetRoot, name: str) -> Times:
        """Return the times of the versions of a history, which has some."""
        commits = self._ledger.commits
        latest = commits.latest(root)

        def time(version: int) -> datetime | None:
            row = commits.get(root, version)
            if row is None or (content := self._content(row)) is None:
                return None
            return time_of_manifest(committed_at(content, row.path), row.path)

        def kept(until: int) -> list[int]:
            return [row.version for row in reversed(commits.page(root, until + 1, None, True))]

        return Times(name, 0 if latest is None else latest.version, time, kept)

    def _entries(self, root: DatasetRoot, rows: Sequence[VersionRow]) -> list[HistoryEntry]:
        commits = self._ledger.commits
        describe = partial(self._entry, CommittedVersions(commits, root))
        found = all_alongside(describe, rows) if is_remote(commits.objects) else map(describe, rows)
        return [entry for entry in found if entry is not None]

    def _entry(self, versions: CommittedVersions, row: VersionRow) -> HistoryEntry | None:
        content = self._content(row)
        if content is None:
            return None
        summary = summary_of(content, row.path)
        transaction = versions.transaction(TableVersion.parse(content, row.path))
        operation = "unknown" if transaction is None else type(transaction.operation).__name__
        time = time_of_manifest(summary.committed, row.path)
        return HistoryEntry(row.version, time, operation, summary.rows, row.committer)

    def _content(self, row: VersionRow) -> bytes | None:
        """Return a manifest; None if garbage collection has removed it."""
        commits = self._ledger.commits
        try:
            return commits.retry.call(partial(commits.objects.get, row.path))
        except ObjectNotFound:
            return None
