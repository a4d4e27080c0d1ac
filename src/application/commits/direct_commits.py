"""What the commit store records about direct commits, and what readers and writers may take for a version."""

from __future__ import annotations

from contextlib import suppress

from lancekeep.application.commits.managed_rows import ManagedRows
from lancekeep.domain.direct_commits import approval_of, mark_of, records_of
from lancekeep.domain.errors import ObjectNotFound
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.object_store import ObjectStore


class DirectCommits:
    """The direct commits of histories, of which each table adopts or holds its own.

    A final manifest above the latest row is a direct commit if the commit store remembers its rows. In a table that
    holds direct commits, it becomes a version only by an *approval*: a row that names the digest of the one content
    that the version may have. The first approval of a version decides, and stays. So a participant that stopped at any
    point can go on later, whatever others have done since.
    """

    def __init__(self, objects: ObjectStore, rows: ManagedRows) -> None:
        self._objects = objects
        self._rows = rows

    def holds(self, base_uri: str) -> bool:
        """Return whether the table of a history holds direct commits."""
        stored = self._rows.stored
        if stored.guarantees.derived:
            return False
        marks = map(mark_of, (base_uri, *self._rows.tables_of(base_uri)))
        return any(stored.get(mark.base_uri, mark.version) is not None for mark in marks)

    def hold(self, base_uri: str) -> None:
        """Hold the direct commits of a table and its branches from now on. Idempotent."""
        self._rows.stored.record([mark_of(base_uri)])

    def forget(self, base_uri: str) -> None:
        """Delete what is recorded about a history: its direct commits are adopted. Idempotent."""
        if not self._rows.stored.guarantees.derived:
            self._rows.stored.delete(records_of(base_uri))

    def approval(self, base_uri: str, version: int) -> VersionRow | None:
        """Return the approval of a version that a direct commit has taken, if it is decided."""
        return self._rows.stored.get(records_of(base_uri), version)

    def approve(self, base_uri: str, version: int, content: bytes) -> VersionRow:
        """Decide what a version may contain, unless that is decided; return the decision."""
        wanted = approval_of(base_uri, version, content)
        self._rows.stored.record([wanted])
        return self.approval(base_uri, version) or wanted

    def is_approved(self, row: VersionRow, content: bytes | None = None) -> bool:
        """Return whether a final manifest may be a version although its table holds direct commits."""
        approval = self.approval(row.base_uri, row.version)
        if approval is None:
            return False
        if content is None:
            with suppress(ObjectNotFound):
                content = self._objects.get(row.path)
        return content is not None and approval_of(row.base_uri, row.version, content).path == approval.path

    def may_be_version(self, row: VersionRow, content: bytes | None = None) -> bool:
        """Return whether a final manifest that has no row may be a version."""
        return not self.holds(row.base_uri) or self.is_approved(row, content)
