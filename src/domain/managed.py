"""Choose the manager of a table's versions: the commit store or the storage.

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


def checked_managed(value: str) -> str:
    """Return the manager that a property names.

    Raises:
        InvalidInput: the value names no manager.
    """
    if value not in (IMPLEMENTATION, STORAGE):
        raise InvalidInput(f"the property {MANAGED!r} is {value!r}; expected {IMPLEMENTATION!r} or {STORAGE!r}")
    return value


def by_storage(properties: Mapping[str, str]) -> bool:
    """Return whether the properties of a table leave its versions to the storage."""
    return properties.get(MANAGED) == STORAGE
