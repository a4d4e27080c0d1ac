"""Constants of conditions, as SQL of the type with which they are compared.

The engine converts a constant to the type of its column while it plans. It rounds some constants: a timestamp loses the
fraction of a second that its column cannot have, so a comparison with it selects other rows. It cannot write others: it
has no literal of a time, a duration or a decimal. So a constant that its type cannot represent is refused, and the
others are written with their types.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final

import attrs

_UNITS: Final = {"s": ("Second", 0), "ms": ("Millisecond", 3), "us": ("Microsecond", 6), "ns": ("Nanosecond", 9)}
"""The names of units, and the digits of a second that each can have."""
_SECONDS: Final = {
    **{name: Fraction(1, 10**digits) for name, digits in _UNITS.values()},
    "Minute": Fraction(60),
    "Hour": Fraction(3600),
    "Day": Fraction(86400),
}
_FLOATS: Final = {"halffloat": "e", "float": "f", "double": "d"}
_INTEGER = re.compile(r"(u?)int(8|16|32|64)")
_INTERVAL = re.compile(r"'(-?[0-9]{1,25}(?:\.[0-9]{1,9})?) +([a-z]+?)s?'", re.IGNORECASE)
_TIME = r"([0-9]{2}:[0-9]{2})(?:(:[0-9]{2})(?:\.([0-9]{1,9}))?)?"
_MOMENT = re.compile(rf"'([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})(?:[ T]{_TIME}(Z|[+-][0-9]{{2}}:[0-9]{{2}})?)?'")
_OF_DAY = re.compile(rf"'{_TIME}'")
_DAY = re.compile(r"'([0-9]{4}-[0-9]{2}-[0-9]{2})'")
_BYTES = re.compile(r"[xX]'((?:[0-9a-fA-F]{2})*)'")
_UUID = re.compile(r"'([0-9a-fA-F]{8})-([0-9a-fA-F]{4})-([0-9a-fA-F]{4})-([0-9a-fA-F]{4})-([0-9a-fA-F]{12})'")
_ZONE = re.compile(r"[\w+\-/:]+", re.ASCII)
_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_UTC: Final = ("UTC", "Etc/UTC", "Z", "+00:00")
_NANOSECONDS: Final = range(1678, 2262)
"""The years that nanoseconds since 1970 can count."""
_MOST_DIGITS: Final = 76
"""The digits of the widest decimal."""


@attrs.frozen
class ColumnType:
    """What decides how the values of a column are compared.

    Attributes:
        logical: The logical type; empty for values that cannot be compared, such as blobs.
        extension: The name of the extension type; empty for none.
        element: The logical type of the elements of a list; None for other columns.
    """

    logical: str
    extension: str = ""
    element: str | None = None


@attrs.frozen(order=True)
class Constant:
    """A constant with which a condition compares a column.

    Attributes:
        path: The column.
        kind: ``text``, ``pattern`` of ``LIKE``, ``number``, ``boolean``, ``date``, ``timestamp``, ``time``,
            ``interval`` or ``binary``.
        text: The constant without its keyword; empty if the column itself is a condition.
        of_element: Whether it is compared with the elements of a list.
    """

    path: tuple[str, ...]
    kind: str
    text: str
    of_element: bool = False


def typed(constant: Constant, column: ColumnType) -> str | None:
    """Return a constant as SQL of the type of its column.

    Returns:
        None if the type cannot represent it exactly, or its values cannot be compared. Only numbers that are compared
        with floats are rounded.
    """
    if not constant.of_element:
        return _typed(constant.kind, constant.text, column.logical, column.extension)
    if column.element is None:
        return None
    element = column.element
    if element in _FLOATS or element.startswith("dict:"):
        return None
    found = _typed(constant.kind, constant.text, element, "")
    if found is None or found.startswith("arrow_cast("):
        return found
    if _INTEGER.fullmatch(element):
        return f"arrow_cast('{found}', '{element.replace('ui', 'UI').replace('i', 'I', 1)}')"
    # The engine compares elements with constants of their very type.
    base, _, width = element.partition(":")
    exact = {"large_binary": "LargeBinary", "fixed_size_binary": f"FixedSizeBinary({width})", "date64": "Date64"}
    return f"arrow_cast({found}, '{exact[base]}')" if base in exact else found


def _typed(kind: str, text: str, logical: str, extension: str) -> str | None:
    if logical.startswith("dict:"):
        values = logical.removeprefix("dict:").rsplit(":", 2)[0]
        return _typed(kind, text, values, extension) if ":" not in values else None
    if kind == "number":
        return _number(text, logical)
    base, _, parameters = logical.partition(":")
    if base in ("string", "large_string"):
        return text if kind in ("text", "pattern") else None
    if base == "bool":
        return (text or "TRUE") if kind == "boolean" else None
    convert = _CONVERSIONS.get((base, kind))
    if convert is None or (extension and (base, extension) != ("fixed_size_binary", "arrow.uuid")):
        return None
    return convert(text, parameters)


def _number(text: str, logical: str) -> str | None:
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    if logical in _FLOATS:
        return text if _is_finite(float(text), _FLOATS[logical]) else None
    if value and not -_MOST_DIGITS <= value.adjusted() <= _MOST_DIGITS:
        return None
    integer, base = _INTEGER.fullmatch(logical), logical.split(":")
    if integer is not None:
        bits = int(integer[2])
        least, most = (0, 2**bits - 1) if integer[1] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if value != int(value) or not least <= value <= most:
            return None
        # The engine reads the least number as the negative of one that is no Int64.
        return f"arrow_cast('{int(value)}', 'Int64')" if value == -(2**63) else str(int(value))
    if base[0] == "decimal":
        bits, precision, scale = map(int, base[1:])
        scaled = Fraction(value) * 10**scale
        if scale < 0 or scaled.denominator != 1 or abs(scaled) >= 10**precision:
            return None
        return f"arrow_cast('{value:f}', 'Decimal{bits}({precision}, {scale})')"
    return None


def _is_finite(value: float, code: str) -> bool:
    try:
        return math.isfinite(value) and math.isfinite(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:
        return False


def _date(text: str, _: str) -> str | None:
    found = _DAY.fullmatch(text)
    return f"DATE {text}" if found is not None and _is_day(found[1]) else None


def _is_day(text: str) -> bool:
    year, month, day = map(int, text.split("-"))
    if not (year and 1 <= month <= 12):
        return False
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 1 <= day <= (29 if month == 2 and is_leap else _DAYS[month - 1])


def _is_time(minute: str, second: str) -> bool:
    hours, minutes = map(int, minute.split(":"))
    return hours < 24 and minutes < 60 and int(second.removeprefix(":")) < 60


def _midnight(text: str, parameters: str) -> str | None:
    """Return a date as a timestamp; in other zones than UTC, the day of a date is not known."""
    zone = parameters.partition(":")[2]
    return _timestamp(text, parameters) if _DAY.fullmatch(text) and zone in ("-", *_UTC) else None


def _timestamp(text: str, parameters: str) -> str | None:
    unit, _, zone = parameters.partition(":")
    found = _MOMENT.fullmatch(text)
    if found is None or (zone != "-" and not _ZONE.fullmatch(zone)):
        return None
    day, minute, second, fraction, offset = found.groups()
    minute, second = minute or "00:00", second or ":00"
    if not (_is_day(day) and _is_time(minute, second) and _is_offset(offset)):
        return None
    name, digits = _UNITS[unit]
    shown = _fraction(fraction, digits)
    if shown is None or (offset and zone == "-") or (unit == "ns" and int(day[:4]) not in _NANOSECONDS):
        return None
    kind = "None" if zone == "-" else f'Some("{zone}")'
    return f"arrow_cast('{day}T{minute}{second}{shown}{offset or ''}', 'Timestamp({name}, {kind})')"


def _time(text: str, unit: str, bits: int) -> str | None:
    found = _OF_DAY.fullmatch(text)
    if found is None:
        return None
    minute, second, fraction = found[1], found[2] or ":00", found[3]
    name, digits = _UNITS[unit]
    shown = _fraction(fraction, digits)
    if shown is None or not _is_time(minute, second):
        return None
    return f"arrow_cast('{minute}{second}{shown}', 'Time{bits}({name})')"


def _is_offset(text: str | None) -> bool:
    return text in (None, "Z") or (_is_time(text[1:], ":00") and text[1:] <= "14:00")


def _fraction(fraction: str | None, digits: int) -> str | None:
    """Return a fraction without zeros at its end; None if it is too fine."""
    shown = (fraction or "").rstrip("0")
    if len(shown) > digits:
        return None
    return f".{shown}" if shown else ""


def _duration(text: str, unit: str) -> str | None:
    found = _INTERVAL.fullmatch(text)
    seconds = None if found is None else _SECONDS.get(found[2].capitalize())
    if found is None or seconds is None:
        return None
    name, digits = _UNITS[unit]
    count = Fraction(found[1]) * seconds * 10**digits
    if count.denominator != 1 or not -(2**63) < count < 2**63:
        return None
    return f"arrow_cast({count.numerator}, 'Duration({name})')"


def _binary(text: str, width: str) -> str | None:
    found = _BYTES.fullmatch(text)
    if found is None or (width and len(found[1]) != 2 * int(width)):
        return None
    return f"X'{found[1]}'"


def _uuid(text: str, width: str) -> str | None:
    found = _UUID.fullmatch(text)
    return None if found is None else _binary(f"X'{''.join(found.groups())}'", width)


_CONVERSIONS: Final[dict[tuple[str, str], Callable[[str, str], str | None]]] = {
    **{(base, kind): _date for base in ("date32", "date64") for kind in ("date", "text")},
    **{("timestamp", kind): _timestamp for kind in ("timestamp", "text")},
    ("timestamp", "date"): _midnight,
    **{("time32", kind): lambda text, unit: _time(text, unit, 32) for kind in ("time", "text")},
    **{("time64", kind): lambda text, unit: _time(text, unit, 64) for kind in ("time", "text")},
    ("duration", "interval"): _duration,
    **{(base, "binary"): _binary for base in ("binary", "large_binary", "fixed_size_binary")},
    ("fixed_size_binary", "text"): _uuid,
}
