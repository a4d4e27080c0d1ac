"""Properties of namespaces and tables: text under names that do not belong to the catalog itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.manifest_entry import OWN_PROPERTIES


def checked_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Return properties that a user gave. Raises `InvalidInput`."""
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"properties are text: {key!r} has the value {value!r}")
        _refuse_own(key)
    return dict(properties or {})


def property_changes(values: Mapping[str, str] | None, removed: Iterable[str]) -> dict[str, str | None]:
    """Return the properties to set, and those to remove as None. Raises `InvalidInput`."""
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
