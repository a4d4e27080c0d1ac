"""The values of a table of a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.spans import parsed_span

_EXPECTED: Mapping[type, str] = {bool: "true or false", int: "a number", str: "text", list: "a list of texts"}


def values_of(given: Mapping[str, Any], kinds: Mapping[str, type], place: str) -> dict[str, Any]:
    """Return the values of a table of a file.

    Args:
        given: The table.
        kinds: The type of each value that the table may have; ``float`` for a time span, which becomes seconds.
        place: What the table is, for messages.

    Raises:
        InvalidInput: A key is unknown, or a value has another type. A number is at least 1.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        kind = kinds.get(name)
        if kind is None:
            raise InvalidInput(f"{place} has the unknown key {name!r}; known are {', '.join(kinds)}")
        if kind is float:
            span = parsed_span(value) if isinstance(value, str) else None
            if span is None:
                raise InvalidInput(f"{place}: {name} is {value!r}; give a time span such as '30d', '12h' or '30m'")
            values[name] = span.total_seconds()
        elif not _is_valid(value, kind):
            raise InvalidInput(f"{place}: {name} is {value!r}; give {_EXPECTED[kind]}")
        else:
            values[name] = value
    return values


def _is_valid(value: Any, kind: type[Any]) -> bool:
    if type(value) is not kind:
        return False
    if kind is list:
        return all(isinstance(each, str) for each in value)
    return kind is not int or value >= 1
