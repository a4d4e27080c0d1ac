"""Properties of namespaces and tables.

They are text. The names of the catalog's own properties are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lancekeep.domain.automatic_maintenance import MAINTENANCE_PROPERTIES, checked_maintenance
from lancekeep.domain.digests import DIGESTS, checked_digests
from lancekeep.domain.dropped import UNDROP, checked_undrop
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.managed import DIRECT_COMMITS, MANAGED, checked_direct_commits, checked_managed
from lancekeep.domain.manifest_entry import CLUSTER_BY, FORMER_VIEW_PROPERTY, OWN_PROPERTIES
from lancekeep.domain.mem_wal import LSM, checked_lsm
from lancekeep.domain.row_rules import rules_of
from lancekeep.domain.stable_row_ids import STABLE_ROW_IDS, checked_stable_row_ids

MOST_PROPERTIES = 10_000
"""The maximum number of properties in one request."""
MOST_CHARACTERS = 16 << 20
"""The maximum size of the names and values in one request, in characters: every read of the object returns them."""

_OF_ROOT = (DIGESTS, DIRECT_COMMITS, MANAGED, STABLE_ROW_IDS, UNDROP, *MAINTENANCE_PROPERTIES)
"""Properties of tables and of the root namespace, which is the default of its tables."""
_SETTABLE = frozenset({CLUSTER_BY, LSM, *_OF_ROOT})


class OwnProperties(dict[str, str]):
    """Properties that the catalog sets; `checked_properties` accepts their names."""


def checked_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Check properties that a user gave, and return a copy.

    Raises:
        InvalidInput: a name or value is not text, the name belongs to the catalog, the value has no meaning (a rule of
            rows, `CLUSTER_BY`, `LSM`, `DIGESTS`, `DIRECT_COMMITS`, `MANAGED`, `STABLE_ROW_IDS`, `UNDROP`, or
            `MAINTENANCE_PROPERTIES`), or there are too many.
    """
    require_bounded_texts("properties", properties or {})
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"properties are text: {key!r} has the value {value!r}")
        if not isinstance(properties, OwnProperties):
            _refuse_own(key)
        if key == CLUSTER_BY:
            from lancekeep.domain.clustering import checked_cluster_by  # few commands need it

            checked_cluster_by(value)
        if key == LSM:
            checked_lsm(value)
        if key == DIGESTS:
            checked_digests(value)
        if key == DIRECT_COMMITS:
            checked_direct_commits(value)
        if key == MANAGED:
            checked_managed(value)
        if key == STABLE_ROW_IDS:
            checked_stable_row_ids(value)
        if key == UNDROP:
            checked_undrop(value)
        if key in MAINTENANCE_PROPERTIES:
            checked_maintenance(key, value)
    rules_of(properties or {})
    return dict(properties or {})


def require_bounded_texts(name: str, *values: Mapping[str, str | None]) -> None:
    """Check the number and the size of properties or of keys of metadata.

    Args:
        name: What a caller calls them, for the message.
        values: The properties or keys of one request.

    Raises:
        InvalidInput: There are too many, or they are too large.
    """
    count = sum(map(len, values))
    if count > MOST_PROPERTIES:
        raise InvalidInput(f"{name}: {count:,} keys are too many; give at most {MOST_PROPERTIES:,}")
    size = sum(len(str(text)) for each in values for pair in each.items() for text in pair if text is not None)
    if size > MOST_CHARACTERS:
        raise InvalidInput(f"{name}: {size:,} characters are too many; give at most {MOST_CHARACTERS:,}")


def property_changes(values: Mapping[str, str] | None, removed: Iterable[str]) -> dict[str, str | None]:
    """Return the properties to set, and None for each one to remove.

    Raises:
        InvalidInput: a name or value is not valid, or a property is both set and removed.
    """
    if isinstance(removed, str):
        raise InvalidInput(f"give the properties to remove as a list of names, not as the text {removed!r}")
    names = list(removed)
    changes = checked_properties(values)
    for name in names:
        if not isinstance(name, str) or name in changes:
            raise InvalidInput(f"cannot remove the property {name!r}: its name is no text, or it is set as well")
        _refuse_own(name)
    return {**changes, **dict.fromkeys(names)}


def refuse_table_properties(names: Iterable[str], *, is_root: bool = False) -> None:
    """Raise `InvalidInput` if a property has no meaning for a namespace.

    `LSM` and `CLUSTER_BY` are properties of tables; `_OF_ROOT` are properties of tables and of the root.
    """
    for name in (LSM, CLUSTER_BY):
        if name in names:
            raise InvalidInput(f"{name!r} is a property of tables, and tables inherit none; set it for each table")
    own = next((name for name in _OF_ROOT if name in names), None)
    if own is not None and not is_root:
        raise InvalidInput(f"{own!r} is a property of the root namespace and of tables; set it for one of them")


def is_own(name: str) -> bool:
    """Return whether a property is the catalog's own."""
    return (name.startswith(OWN_PROPERTIES) and name not in _SETTABLE) or name == FORMER_VIEW_PROPERTY


def _refuse_own(name: str) -> None:
    if is_own(name):
        raise InvalidInput(
            f"the property {name!r} is the catalog's own; choose a name without {OWN_PROPERTIES!r} that is not "
            f"{FORMER_VIEW_PROPERTY!r}"
        )
