"""Records of direct commits, of tables that hold them.

A direct commit is a version that a writer adds to the storage without the commit store.
Namespace specification, "Implementation Managed Table": "the implementation must not reflect the changes".
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256

from lancekeep.domain.version_row import VersionRow

_RECORDS = "_direct_commits"
_HOLDS, _ADOPTS, _APPROVED = "holds://direct-commits", "adopts://direct-commits", "approves://sha256/"
_MARK, _LIFTED = 10**12, 10**12 + 1
"""The versions of the rows that `mark_of` and `lifted_of` return."""


class Decision(StrEnum):
    """What to do with the direct commits that a table holds."""

    ADOPT = "adopt"
    DISCARD = "discard"


def records_of(base_uri: str) -> str:
    """Return the history of what is decided about the direct commits of a history."""
    return f"{base_uri}/{_RECORDS}"


def mark_of(base_uri: str) -> VersionRow:
    """Return the row that says that the versions of a table need approvals.

    It stays until the table is dropped.
    """
    return VersionRow.fence(records_of(base_uri), _MARK, _HOLDS)


def lifted_of(base_uri: str) -> VersionRow:
    """Return the row that says that readers of a marked table approve."""
    return VersionRow.fence(records_of(base_uri), _LIFTED, _ADOPTS)


def is_approval(row: VersionRow) -> bool:
    """Return whether a row is the approval of a version."""
    return row.version < _MARK


def approval_of(base_uri: str, version: int, content: bytes) -> VersionRow:
    """Return the row that permits one content of a version, whatever wrote it."""
    return VersionRow.fence(records_of(base_uri), version, f"{_APPROVED}{sha256(content).hexdigest()}")
