"""Parse time spans of commands and procedures."""

from __future__ import annotations

import re
from datetime import timedelta

SPANS = "a number with a unit: 90s, 30m, 12h, 7d or 2w"
"""The form of a time span, for messages."""

_SPAN = re.compile(r"(\d{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parsed_span(value: str) -> timedelta | None:
    """Parse a whole number with a unit, such as 7d.

    Returns:
        None if the value is no such number.
    """
    found = _SPAN.fullmatch(value)
    return None if found is None else timedelta(**{_UNITS[found[2]]: int(found[1])})
