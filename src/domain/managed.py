"""Choose the manager of a table's versions: the commit store or the storage.

Of a table of the commit store, also choose what becomes of direct commits, which do not use the commit store.
Namespace specification, "Implementation Managed Table" and "Storage Managed Table".
"""

from __future__ import annotations

from collections.abc import Mapping

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.manifest_entry import OWN_PROPERTIES

MANAGED = f"{OWN_PROPERTIES}managed"
"""The property that names the manager of a table's versions; of the root namespace: the manager of new tables."""
IMPLEMENTATION = "implementation"
"""The commit store manages the versions: writers commit through the catalog."""
STORAGE = "storage"
"""The storage manages the versions: native writers may commit without the catalog."""

DIRECT_COMMITS = f"{OWN_PROPERTIES}direct_commits"
"""The property that says what becomes of direct commits; of the root namespace: of new tables."""
ADOPT = "adopt"
"""The next reader or writer enters a direct commit as a version."""
HOLD = "hold"
"""No reader sees a direct commit, and no version follows it, until an operator settles it."""


def checked_managed(value: str) -> str:
    """Return the manager that a property names.

    Raises:
        InvalidInput: the value names no manager.
    """
    return _one_of(MANAGED, value, IMPLEMENTATION, STORAGE)


def by_storage(properties: Mapping[str, str]) -> bool:
    """Return whether the properties of a table leave its versions to the storage."""
    return properties.get(MANAGED) == STORAGE


def checked_direct_commits(value: str) -> str:
    """Return what a property says about direct commits.

    Raises:
        InvalidInput: the value has no meaning.
    """
    return _one_of(DIRECT_COMMITS, value, ADOPT, HOLD)


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


def _one_of(name: str, value: str, one: str, other: str) -> str:
    if value not in (one, other):
        raise InvalidInput(f"the property {name!r} is {value!r}; expected {one!r} or {other!r}")
    return value
