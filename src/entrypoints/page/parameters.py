"""Parameters in the queries of URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.cli.reading import chosen_version

MOST = 1 << 62
"""The largest number of a parameter."""


def whole_number(query: Mapping[str, str], name: str, default: int) -> int:
    """Return a parameter that is a number from 1.

    Raises:
        InvalidInput: It is no such number.
    """
    given = query.get(name) or str(default)
    if not (given.isascii() and given.isdecimal() and len(given) < 20 and 0 < int(given) < MOST):
        raise InvalidInput(f"{name} is {given!r:.100}; give a whole number from 1")
    return int(given)


def version_of(query: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """Return the arguments of `Catalog.open` for ``version`` and ``branch``.

    Args:
        query: The parameters.
        prefix: The text before both names.

    Raises:
        InvalidInput: The version is no number that a version can have.
    """
    given = query.get(f"{prefix}version") or None
    if given is not None and given.isdecimal():
        given = str(whole_number(query, f"{prefix}version", 1))
    return chosen_version(given, query.get(f"{prefix}branch") or None, None)
