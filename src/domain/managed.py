"""Choose the manager of a table's versions: the commit store or the storage.

Namespace specification, "Implementation Managed Table" and "Storage Managed Table".
"""

from __future__ import annotations

from collections.abc import Mapping

from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.errors import ConcurrentModification, InvalidInput
from lancekeep.domain.manifest_entry import OWN_PROPERTIES
from lancekeep.domain.table import Table

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


def with_default(properties: Mapping[str, str], catalog: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a new table.

    The default of the catalog applies if they name no manager.
    """
    inherits = MANAGED not in properties and by_storage(catalog)
    return {**properties, MANAGED: STORAGE} if inherits else dict(properties)


def require_default(view: CatalogView, table: Table, stated: Mapping[str, str]) -> None:
    """Check that a new table still has the default of the catalog.

    ``stated`` are the properties that the caller gave.

    Raises:
        ConcurrentModification: the default was changed since the table was prepared.
    """
    if with_default(stated, view.properties) != table.properties:
        raise ConcurrentModification(
            f"the property {MANAGED!r} of the catalog was changed while {table.id} was created; nothing was created. "
            "Create the table again"
        )
