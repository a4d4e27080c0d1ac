"""Properties of namespaces and tables.

They are text. Names with the catalog's own prefix are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.manifest_entry import OWN_PROPERTIES


def checked_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Check properties that a user gave, and return a copy.

    Raises:
        InvalidInput: a name or value is not text, or the name belongs to the catalog.
    """
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"properties are text: {key!r} has the value {value!r}")
        _refuse_own(key)
    return dict(properties or {})


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


def _refuse_own(name: str) -> None:
    if name.startswith(OWN_PROPERTIES):
        raise InvalidInput(f"the property {name!r} is the catalog's own; choose a name without {OWN_PROPERTIES!r}")
