"""Preserve integers that a double cannot represent.

Arrow infers double for a column of CSV or JSON that contains an integer beyond 64 bits, and rounds the other values.
Such a column becomes ``decimal(20, 0)``, as Spark infers, or a wider decimal. A column that would round an integer is
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.domain.errors import InvalidInput

_UNSIGNED_64 = 20
_DECIMAL_128 = 38
_INTEGER = r"^\s*[+-]?[0-9]+\s*$"
_LONG = 16
"""The least number of digits of an integer that a double may round."""
_LONG_INTEGER = re.compile(rb"(?<![\d.eE+])\d{16,}(?![\d.eE])")


class _Fraction(float):
    """A JSON number with a fraction or an exponent."""


def integer_type(digits: int) -> pa.DataType:
    """Return the type for integers beyond 64 bits.

    Returns:
        The decimal that Spark infers, or a string type if no decimal is wide enough.
    """
    return pa.decimal128(max(_UNSIGNED_64, digits), 0) if digits <= _DECIMAL_128 else pa.string()


# -- CSV ------------------------------------------------------------------------------------------------------------


def type_of_texts(values: pa.Array) -> pa.DataType:
    """Return the type of a CSV column that Arrow infers as double.

    Returns:
        A type for wide integers if all values are integers, else double.
    """
    texts = values.drop_null()
    if not len(texts) or not pc.all(pc.match_substring_regex(texts, _INTEGER)).as_py():
        return pa.float64()
    return integer_type(max(len(str(abs(int(text)))) for text in texts.to_pylist()))


def require_exact(texts: pa.Array) -> None:
    """Check that a double represents all integers among the texts.

    Raises:
        InvalidInput: A double would round an integer.
    """
    if not pc.any(pc.greater_equal(pc.utf8_length(texts), _LONG)).as_py():
        return
    integers = texts.filter(pc.match_substring_regex(texts, _INTEGER))
    for text in integers.to_pylist():
        if text is not None:
            _require_exact(int(text))


def _require_exact(number: int) -> None:
    if abs(number) >= 1 << 1024 or int(float(number)) != number:
        raise InvalidInput(f"a double would round {number}; give the column another type, such as DECIMAL(38,0)")


# -- JSON -----------------------------------------------------------------------------------------------------------


def may_lose_digits(line: bytes) -> bool:
    """Return whether a line of JSON has an integer that a double may round."""
    return _LONG_INTEGER.search(line) is not None


def require_exact_record(line: bytes, schema: pa.Schema) -> None:
    """Check that the columns represent all integers of a record.

    Raises:
        InvalidInput: A column would round an integer.
    """
    record = json.loads(line, parse_float=_Fraction)
    for kind, value in _leaves(record, pa.struct(list(schema))):
        if type(value) is int and pa.types.is_float64(kind):
            _require_exact(value)


def inferable(line: bytes) -> bytes:
    """Replace integers beyond 64 bits in a line by a fraction.

    Arrow cannot infer a type for such integers at any depth.
    """
    if not may_lose_digits(line):
        return line
    try:
        return json.dumps(json.loads(line, parse_int=_int64_or_fraction)).encode()
    except ValueError:
        return line


def _int64_or_fraction(text: str) -> float:
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else 0.5


def with_wide_integers(schema: pa.Schema, lines: Iterable[bytes]) -> pa.Schema:
    """Replace double by a decimal, at any depth, if all its values are integers.

    Args:
        schema: The schema that Arrow inferred.
        lines: The records.
    """
    long = [line for line in lines if may_lose_digits(line)]
    if not long:
        return schema
    digits: dict[tuple[str, ...], int] = {}
    for line in lines:
        try:
            record = json.loads(line, parse_float=_Fraction)
        except ValueError:
            continue
        for path, value in _numbers(record):
            whole = 0 if isinstance(value, _Fraction) else len(str(abs(value)))
            known = digits.get(path)
            digits[path] = 0 if known == 0 or not whole else max(known or 0, whole)
    return pa.schema([field.with_type(_exact(field.type, (field.name,), digits)) for field in schema])


def _numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _numbers(child, (*path, name))
    elif isinstance(value, list):
        for child in value:
            yield from _numbers(child, (*path, ""))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def _exact(kind: pa.DataType, path: tuple[str, ...], digits: dict[tuple[str, ...], int]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_exact(field.type, (*path, field.name), digits)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_exact(kind.value_type, (*path, ""), digits)))
    if pa.types.is_float64(kind) and digits.get(path):
        return integer_type(min(digits[path], _DECIMAL_128))  # a number cannot become text: longer ones are refused
    return kind


def _leaves(value: Any, kind: pa.DataType) -> Iterator[tuple[pa.DataType, Any]]:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for field in kind:
            yield from _leaves(value.get(field.name), field.type)
    elif isinstance(value, list) and kind.num_fields == 1:
        for child in value:
            yield from _leaves(child, kind.field(0).type)
    else:
        yield kind, value
