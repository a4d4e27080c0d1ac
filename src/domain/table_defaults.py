"""The properties that a new table takes from the root namespace."""

from __future__ import annotations

from collections.abc import Mapping

from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.errors import ConcurrentModification
from lancekeep.domain.managed import DIRECT_COMMITS, HOLD, MANAGED, STORAGE, by_storage, require_consistent
from lancekeep.domain.stable_row_ids import STABLE_ROW_IDS, with_default_row_ids
from lancekeep.domain.table import Table


def with_default(
    properties: Mapping[str, str], catalog: Mapping[str, str], *, has_rows: bool = False
) -> dict[str, str]:
    """Return the properties of a new entry.

    The defaults of the catalog apply to what the properties leave open.

    Args:
        properties: The properties that the caller gave.
        catalog: The properties of the root namespace.
        has_rows: The table has versions, or is a copy of a table that has: they decide its row ids.

    Raises:
        InvalidInput: The properties contradict each other.
    """
    inherits = MANAGED not in properties and by_storage(catalog)
    managed = {**properties, MANAGED: STORAGE} if inherits else dict(properties)
    if DIRECT_COMMITS not in managed and not by_storage(managed) and catalog.get(DIRECT_COMMITS) == HOLD:
        managed[DIRECT_COMMITS] = HOLD
    require_consistent(managed)
    return managed if has_rows else with_default_row_ids(managed, catalog)


def require_default(view: CatalogView, table: Table, stated: Mapping[str, str], *, has_rows: bool = False) -> None:
    """Check that a new table still has the defaults of the catalog.

    ``stated`` are the properties that the caller gave.

    Raises:
        ConcurrentModification: a default was changed since the table was prepared.
    """
    if with_default(stated, view.properties, has_rows=has_rows) != table.properties:
        raise ConcurrentModification(
            f"the property {MANAGED!r}, {DIRECT_COMMITS!r} or {STABLE_ROW_IDS!r} of the catalog was changed while "
            f"{table.id} was created; nothing was created. Create the table again"
        )
