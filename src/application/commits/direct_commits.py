"""What the commit store records about direct commits.

Readers and writers ask here what they may take for a version.
"""

from __future__ import annotations

from contextlib import suppress

from lancekeep.application.commits.managed_rows import ManagedRows
from lancekeep.domain.direct_commits import approval_of, is_approval, lifted_of, mark_of, records_of
from lancekeep.domain.errors import AccessDenied, ObjectNotFound, Unsupported
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.object_store import ObjectStore


class DirectCommits:
    """The direct commits of histories, of which each table adopts or holds its own.

    A final manifest above the latest row is a direct commit if the commit store remembers its rows. A table that has
    ever held direct commits is *marked*: a manifest becomes a version only by an *approval*, which is a row that names
    the digest of the one content that the version may have. The first approval of a version decides, and stays until
    the table is dropped. So a participant that stopped at any point can go on later, whatever others have done since.
    While the mark is *lifted*, readers and writers approve the direct commits that they meet.
    """

    def __init__(self, objects: ObjectStore, rows: ManagedRows) -> None:
        self._objects = objects
        self._rows = rows

    @property
    def can_hold(self) -> bool:
        """Whether the commit store can tell direct commits from its own."""
        return self._rows.guarantees.remembers and not self._rows.guarantees.derived

    def is_marked(self, base_uri: str) -> bool:
        """Return whether the versions of a history need approvals."""
        return self._mark(base_uri) is not None

    def holds(self, base_uri: str) -> bool:
        """Return whether the table of a history holds direct commits."""
        mark = self._mark(base_uri)
        return mark is not None and not self._is_lifted(mark)

    def mark(self, base_uri: str) -> None:
        """Let versions of a table and its branches need approvals. Idempotent."""
        self._rows.stored.record([mark_of(base_uri)])

    def hold(self, base_uri: str) -> None:
        """Hold direct commits of a table and its branches. Idempotent."""
        self.mark(base_uri)
        self._rows.stored.delete(records_of(base_uri), [lifted_of(base_uri).version])

    def lift(self, base_uri: str) -> None:
        """Adopt direct commits of a table and its branches, by approvals.

        Idempotent.
        """
        self._rows.stored.record([lifted_of(base_uri)])

    def forget(self, base_uri: str) -> None:
        """Delete what is recorded about a history without versions. Idempotent."""
        if not self._rows.stored.guarantees.derived:
            self._rows.stored.delete(records_of(base_uri))

    def approval(self, base_uri: str, version: int) -> VersionRow | None:
        """Return the approval of a version that a direct commit has taken."""
        return self._rows.stored.get(records_of(base_uri), version)

    def approvals(self, base_uri: str) -> list[VersionRow]:
        """Return all approvals of a history."""
        rows = self._rows.stored.list(records_of(base_uri), after=None, limit=None, descending=False)
        return [row for row in rows if is_approval(row)]

    def keep(self, approvals: list[VersionRow]) -> None:
        """Record approvals that another commit store keeps. Idempotent."""
        self._rows.stored.record(approvals)

    def approve(self, base_uri: str, version: int, content: bytes) -> VersionRow:
        """Decide what a version may contain, unless that is decided.

        Returns:
            The decision.
        """
        wanted = approval_of(base_uri, version, content)
        self._rows.stored.record([wanted])
        return self.approval(base_uri, version) or wanted

    def is_approved(self, row: VersionRow, content: bytes | None = None) -> bool:
        """Return whether a final manifest has the approved content."""
        approval = self.approval(row.base_uri, row.version)
        if approval is None:
            return False
        content = self._content(row) if content is None else content
        return content is not None and approval_of(row.base_uri, row.version, content) == approval

    def may_be_version(self, row: VersionRow, content: bytes | None = None) -> bool:
        """Return whether a final manifest that has no row may be a version.

        The direct commit of a table whose mark is lifted is approved. A participant that cannot write to the commit
        store does not take it for a version.
        """
        mark = self._mark(row.base_uri)
        if mark is None:
            return True
        if self.approval(row.base_uri, row.version) is not None:
            return self.is_approved(row, content)
        if not self._is_lifted(mark) or (content := self._content(row) if content is None else content) is None:
            return False
        with suppress(AccessDenied, Unsupported):
            approved = self.approve(row.base_uri, row.version, content)
            return approved == approval_of(row.base_uri, row.version, content)
        return False

    def _mark(self, base_uri: str) -> VersionRow | None:
        """Return the mark of the table of a history."""
        if not self.can_hold:
            return None
        marks = map(mark_of, (base_uri, *self._rows.tables_of(base_uri)))
        return next((mark for mark in marks if self._rows.stored.get(mark.base_uri, mark.version) is not None), None)

    def _is_lifted(self, mark: VersionRow) -> bool:
        lifted = lifted_of(mark.base_uri.removesuffix(records_of("")))
        return self._rows.stored.get(lifted.base_uri, lifted.version) is not None

    def _content(self, row: VersionRow) -> bytes | None:
        with suppress(ObjectNotFound):
            return self._objects.get(row.path)
        return None
