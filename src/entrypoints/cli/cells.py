"""Show one value in a cell of a table, for people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from lancekeep.entrypoints.cli.commands import visible

LONGEST = 300
"""The characters of a value that a table shows; a note counts the others."""
_VECTOR = 8
"""A list of at least as many numbers is shown as a vector."""
_STEP, _UNITS = 1000, ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def size(number: int) -> str:
    """Return a number of bytes with a unit."""
    scaled, unit = float(number), 0
    while scaled >= _STEP - 0.5 and unit < len(_UNITS) - 1:
        scaled, unit = scaled / _STEP, unit + 1
    return f"{number} B" if unit == 0 else f"{scaled:.{1 if scaled < 99.95 else 0}f} {_UNITS[unit]}"


def moment(value: datetime) -> str:
    """Return a time in the time zone of this machine, in seconds."""
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def plain(text: str) -> str:
    """Return a text on one line, without characters that a terminal obeys."""
    return text if text.isprintable() else "".join(map(visible, text))


def cell(value: Any, *, exact: bool = False) -> str:
    """Return a value for a cell.

    Without ``exact``, vectors appear as their dimension and norm, binary values as their size, and long texts are
    folded.
    """
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | Decimal():
            return str(value)
        case float():
            return repr(value) if exact else f"{value:.6g}"
        case str():
            return _folded(plain(value), exact)
        case bytes():
            return value.hex() if exact else f"<{size(len(value))}>"
        case datetime() | date() | time() | timedelta():
            return str(value)
        case Mapping() | list() | tuple():
            return _nested(value, exact)
        case _:
            return _folded(plain(str(value)), exact)


def _nested(value: Any, exact: bool) -> str:
    if not exact and is_vector(value):
        return f"[{len(value)}] norm {math.hypot(*value):.4g}"
    return _folded(plain(json.dumps(value, ensure_ascii=False, default=_json_value)), exact)


def is_vector(value: Any) -> bool:
    """Return whether a value is a list of numbers that is too long to show."""
    return (
        isinstance(value, Sequence)
        and len(value) >= _VECTOR
        and all(isinstance(each, int | float) and not isinstance(each, bool) for each in value)
    )


def _folded(text: str, exact: bool) -> str:
    if exact or len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]}… ({len(text):,} characters)"


def values_of(array: Any) -> list[Any]:
    """Return the values of an Arrow array; a time that Python lacks is a text."""
    try:
        return list(array.to_pylist())
    except (OverflowError, ValueError):
        return [_value_of(array.slice(position, 1)) for position in range(len(array))]


def _value_of(array: Any) -> Any:
    """Return the only value of an array."""
    try:
        return array[0].as_py()
    except (OverflowError, ValueError):
        return " ".join(array.to_string().split()).removeprefix("[ ").removesuffix(" ]")


def json_text(value: Any) -> str:
    """Return a value as JSON on one line.

    Times are in ISO 8601, binary values in base64, NaN and infinity are texts.
    """
    return json.dumps(json_ready(value), ensure_ascii=False, default=_json_value)


def json_ready(value: Any) -> Any:
    """Return a value without numbers that JSON does not have."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {str(name): json_ready(each) for name, each in value.items()}
        case list() | tuple():
            return [json_ready(each) for each in value]
        case _:
            return value


def _json_value(value: Any) -> Any:
    match value:
        case bytes():
            from base64 import b64encode

            return b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case _:
            return str(value)
