"""What a clean-up removed, or would remove."""

from __future__ import annotations

import attrs

from lancekeep.application.entries.dropped import DroppedTable
from lancekeep.domain.notebook import Shown


@attrs.frozen
class TableCleanup(Shown):
    """What a clean-up removes of one history of a table.

    Attributes:
        table: The table.
        branch: The branch; empty for the main history.
        versions: The numbers of the removed versions: rows and manifests.
        kept: The number of versions that stay.
        rows: The number of removed rows of versions whose manifest another process has removed.
        staged: The number of removed manifests of commits that were never finished.
        files: The number of removed files: data, deletions, indices and transactions.
        bytes: The size of all removed objects.
    """

    table: str
    branch: str
    versions: tuple[int, ...]
    kept: int
    rows: int
    staged: int
    files: int
    bytes: int

    @property
    def is_empty(self) -> bool:
        return not (self.versions or self.rows or self.staged or self.files)


@attrs.frozen
class NotCleaned:
    """A table of which something was not removed, and the reason."""

    table: str
    reason: str


@attrs.frozen
class CleanupReport(Shown):
    """What a clean-up removed or, with ``dry_run``, would remove.

    Attributes:
        tables: The histories with something to remove.
        skipped: The tables that could not be cleaned, or not entirely.
        dry_run: Whether nothing was removed.
        manifest_versions: The number of old versions of the manifest table that were removed. A dry run does not count
            them.
        purged: The dropped tables whose time is over, and that were removed.
    """

    tables: tuple[TableCleanup, ...]
    skipped: tuple[NotCleaned, ...]
    dry_run: bool
    manifest_versions: int = 0
    purged: tuple[DroppedTable, ...] = ()

    @property
    def versions(self) -> int:
        return sum(len(table.versions) for table in self.tables)

    @property
    def files(self) -> int:
        return sum(table.files for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables)

    def __str__(self) -> str:
        done = "would be removed" if self.dry_run else "removed"
        lines = [f"{self.versions} versions and {self.files} files {done}, {self.bytes} bytes"]
        lines += (
            f"  {'@'.join(filter(None, (table.table, table.branch)))}: {len(table.versions)} versions, "
            f"{table.staged} unfinished commits, {table.files} files; {table.kept} versions stay"
            for table in self.tables
        )
        lines += (f"  purged: {each.id}, which was dropped at {each.at:%Y-%m-%d %H:%M}" for each in self.purged)
        lines += (f"  skipped: {skipped.table}: {skipped.reason}" for skipped in self.skipped)
        return "\n".join(lines)
