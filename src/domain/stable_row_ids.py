"""Stable row ids: rows keep their ids when they are updated or compacted.

The first version of a table decides, for all of its versions.
"""

from __future__ import annotations

from collections.abc import Mapping

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.manifest_entry import OWN_PROPERTIES

STABLE_ROW_IDS = f"{OWN_PROPERTIES}stable_row_ids"
"""The property that gives a table stable row ids; of the root namespace: the default of new tables."""
_VALUES = {"true": True, "false": False}
_TEXTS = {value: text for text, value in _VALUES.items()}
_NAMES = {True: "stable row ids", False: "no stable row ids"}


def checked_stable_row_ids(value: str) -> None:
    """Raise `InvalidInput` unless a value of `STABLE_ROW_IDS` has a meaning."""
    if value not in _VALUES:
        raise InvalidInput(f"the property {STABLE_ROW_IDS!r} is {value!r}; its values are 'true' and 'false'")


def stated_row_ids(properties: Mapping[str, str | None] | None, argument: bool | None = None) -> bool | None:
    """Return whether a caller wants stable row ids; None if it does not say.

    Args:
        properties: The properties that the caller gave.
        argument: The caller's argument ``stable_row_ids``.

    Raises:
        InvalidInput: A value has no meaning, or the property contradicts the argument.
    """
    if argument is not None and not isinstance(argument, bool):
        raise InvalidInput(f"stable_row_ids is {argument!r}; its values are True, False and None")
    value = (properties or {}).get(STABLE_ROW_IDS)
    if value is None:
        return argument
    checked_stable_row_ids(value)
    if argument not in (None, _VALUES[value]):
        raise InvalidInput(f"stable_row_ids is {argument}, and the property {STABLE_ROW_IDS!r} is {value!r}; give one")
    return _VALUES[value]


def with_row_ids(properties: Mapping[str, str] | None, stable: bool | None) -> Mapping[str, str] | None:
    """Return properties that also state the row ids.

    They are the same object if ``stable`` is None, because the catalog has a type for properties of its own.
    """
    return properties if stable is None else {**(properties or {}), STABLE_ROW_IDS: _TEXTS[stable]}


def with_default_row_ids(properties: Mapping[str, str], catalog: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a new table.

    If they state nothing about row ids, a default of the catalog for stable row ids applies.
    """
    inherits = STABLE_ROW_IDS not in properties and wants_stable_row_ids(catalog)
    return {**properties, STABLE_ROW_IDS: _TEXTS[True]} if inherits else dict(properties)


def wants_stable_row_ids(properties: Mapping[str, str]) -> bool:
    """Return whether properties ask for stable row ids."""
    return _VALUES.get(properties.get(STABLE_ROW_IDS, ""), False)


def require_row_ids(name: str, present: bool | None, stated: bool | None) -> None:
    """Check that a table has the row ids that a caller states.

    Args:
        name: The table.
        present: Whether it has stable row ids; None if it is not decided.
        stated: Whether the caller wants them; None for either.

    Raises:
        InvalidInput: The table keeps its row ids, and the caller states others.
    """
    if None not in (present, stated) and present != stated:
        raise InvalidInput(
            f"the table {name} has {_NAMES[bool(present)]}, and keeps that for all of its versions; found "
            f"{STABLE_ROW_IDS!r} = {_TEXTS[bool(stated)]!r}. Leave it out, or copy the rows to a new table; nothing "
            "was changed"
        )
