"""Choose what becomes of direct commits.

A direct commit is a version that a writer adds to the storage without the commit store.
Namespace specification, "Implementation Managed Table": "the implementation must not reflect the changes".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.managed import MANAGED, STORAGE, by_storage
from lancekeep.domain.manifest_entry import OWN_PROPERTIES
from lancekeep.domain.version_row import VersionRow

DIRECT_COMMITS = f"{OWN_PROPERTIES}direct_commits"
"""The property that says what becomes of direct commits; of the root namespace: of new tables."""
ADOPT = "adopt"
"""The next reader or writer enters a direct commit as a version."""
HOLD = "hold"
"""No reader sees a direct commit, and no version follows it, until `Decision` settles it."""

_RECORDS = "_direct_commits"
_HOLDS, _ADOPTS, _APPROVED = "holds://direct-commits", "adopts://direct-commits", "approves://sha256/"
_MARK, _LIFTED = 10**12, 10**12 + 1
"""The versions of the rows that `mark_of` and `lifted_of` return."""


class Decision(StrEnum):
    """What to do with the direct commits that a table holds."""

    ADOPT = "adopt"
    DISCARD = "discard"


def checked_direct_commits(value: str) -> str:
    """Return what a property says about direct commits.

    Raises:
        InvalidInput: the value has no meaning.
    """
    if value not in (ADOPT, HOLD):
        raise InvalidInput(f"the property {DIRECT_COMMITS!r} is {value!r}; expected {ADOPT!r} or {HOLD!r}")
    return value


def holds(properties: Mapping[str, str]) -> bool:
    """Return whether a table with these properties holds direct commits."""
    return properties.get(DIRECT_COMMITS) == HOLD and not by_storage(properties)


def require_consistent(properties: Mapping[str, str]) -> None:
    """Check that a table which the storage manages holds no direct commits.

    Raises:
        InvalidInput: it would hold them, but all its commits are direct.
    """
    if properties.get(DIRECT_COMMITS) == HOLD and by_storage(properties):
        raise InvalidInput(
            f"{DIRECT_COMMITS!r} is {HOLD!r} and {MANAGED!r} is {STORAGE!r}: every commit to a table that the storage "
            "manages is a direct one. Set one of the two properties only"
        )


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
