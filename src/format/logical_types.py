"""Logical types: the names of column types in the table format.

A logical type is text, such as ``timestamp:us:UTC``.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lancekeep.domain.errors import InvalidInput

_PLAIN: Final = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    "time32:s": pa.time32("s"),
    "time32:ms": pa.time32("ms"),
    "time64:us": pa.time64("us"),
    "time64:ns": pa.time64("ns"),
    **{f"duration:{unit}": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
}
_NAMES: Final = {kind: name for name, kind in _PLAIN.items()}
_NO_ZONE = "-"


def logical_type(kind: pa.DataType) -> str:
    """Return the logical type of an Arrow type, or of a dictionary's values.

    Raises:
        InvalidInput: the type is nested, or no partition value can have it.
    """
    if pa.types.is_dictionary(kind):
        return logical_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return f"timestamp:{kind.unit}:{kind.tz or _NO_ZONE}"
    if pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
        return f"decimal:{kind.bit_width}:{kind.precision}:{kind.scale}"
    if pa.types.is_fixed_size_binary(kind):
        return f"fixed_size_binary:{kind.byte_width}"
    if kind not in _NAMES:
        raise InvalidInput(
            f"a column of the manifest table cannot have the type {kind}; expected a type of plain values"
        )
    return _NAMES[kind]


def arrow_type(logical: str) -> pa.DataType:
    """Return the Arrow type of a logical type.

    Raises:
        InvalidInput: the text names no logical type of plain values.
    """
    if logical in _PLAIN:
        return _PLAIN[logical]
    try:
        match logical.split(":", 2):
            case ["timestamp", unit, zone]:
                return pa.timestamp(unit, None if zone == _NO_ZONE else zone)
            case ["decimal", bits, digits]:
                precision, scale = map(int, digits.split(":"))
                return (pa.decimal128 if bits == "128" else pa.decimal256)(precision, scale)
            case ["fixed_size_binary", width]:
                return pa.binary(int(width))
    except ValueError as error:
        raise InvalidInput(f"{logical!r} is not a logical type: {error}") from error
    raise InvalidInput(f"{logical!r} is not a logical type of plain values, such as {', '.join(_PLAIN)}")
