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


def shown_span(span: timedelta) -> str:
    """Return a time span in the largest unit of which it is a whole number: 7 days."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        number, rest = divmod(span, timedelta(seconds=length))
        if number and not rest:
            return f"{number} {unit}{'s' if number != 1 else ''}"
    return f"{span.total_seconds():g} seconds"
