"""Translate Spark's filters to filters of Lance's scanner.

A filter is translated only if both sides are certain to select the same rows. Spark keeps all other filters: on columns
that the table stores in another type than Spark sees, and literals out of the range of the stored type. Filters on
floating-point columns run on both sides: the scanner orders NaNs by their sign, so it selects a superset and Spark
filters again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from lancekeep.adapters.lance.blobs import is_blob
from lancekeep.domain.column_names import quoted


@attrs.frozen
class Pushed:
    """A filter for the scanner.

    Attributes:
        sql: The condition in the scanner's SQL.
        exact: Whether it selects the same rows as Spark's filter; otherwise it selects a superset.
    """

    sql: str
    exact: bool


def pushed(condition: Filter, schema: pa.Schema) -> Pushed | None:
    """Translate a filter on a table; None if only Spark can evaluate it."""
    negated = isinstance(condition, Not)
    inner: Any = condition.child if isinstance(condition, Not) else condition  # each class has an attribute of its own
    field = _field(inner.attribute, schema)
    if field is None:
        return None
    column = quoted(*inner.attribute)
    sql = _condition(inner, column, field.type, negated)
    if sql is None:
        return None
    return Pushed(sql, not pa.types.is_floating(field.type) or isinstance(inner, IsNull | IsNotNull))


def _field(path: Sequence[str], schema: pa.Schema) -> pa.Field | None:
    """Return a column or a field of nested structs.

    Returns:
        None for blobs, and if a column has a backtick in its name: the scanner cannot filter such a table.
    """
    if "`" in "".join(schema.names) or path[0] not in schema.names:
        return None
    field = schema.field(path[0])
    if is_blob(field):
        return None
    for name in path[1:]:
        if not pa.types.is_struct(field.type) or field.type.get_field_index(name) < 0:
            return None
        field = field.type.field(name)
    return field


_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_TEXT: dict[type[Filter], str] = {
    StringStartsWith: "starts_with",
    StringEndsWith: "ends_with",
    StringContains: "contains",
}


def _condition(condition: Any, column: str, stored: pa.DataType, negated: bool) -> str | None:
    no = "NOT " if negated else ""
    match condition:
        case IsNull():
            return f"({column} IS {'NOT ' if negated else ''}NULL)"
        case IsNotNull():
            return f"({column} IS {'' if negated else 'NOT '}NULL)"
        case EqualNullSafe(value=None):
            return f"({column} IS {'NOT ' if negated else ''}NULL)"
        case EqualNullSafe(value=value):
            literal = as_literal(value, stored)
            if literal is None:
                return None
            return f"({column} IS NULL OR {column} != {literal})" if negated else f"({column} = {literal})"
        case In(value=values):
            if negated and None in values:
                return None  # selects no row; Spark needs no help
            literals = [as_literal(value, stored) for value in values if value is not None]
            if not literals or None in literals:
                return None
            return f"({no}({column} IN ({', '.join(map(str, literals))})))"
        case StringStartsWith(value=value) | StringEndsWith(value=value) | StringContains(value=value):
            if not pa.types.is_string(stored):
                return None
            return f"({no}{_TEXT[type(condition)]}({column}, {_quoted(value)}))"
    operator = _COMPARISONS.get(type(condition))
    literal = None if operator is None else as_literal(condition.value, stored)
    if literal is None or (negated and operator != "="):
        return None
    if operator in (">", ">=") and pa.types.is_floating(stored):
        return f"({column} {operator} {literal} OR isnan({column}))"
    return f"({no}({column} {operator} {literal}))"


def as_literal(value: Any, stored: pa.DataType) -> str | None:
    """Return a value as a literal of the stored type.

    Returns:
        None if no literal compares as in Spark.
    """
    say = next((say for is_of, say in _LITERALS if is_of(stored)), None)
    return None if say is None or value is None else say(value, stored)


def _boolean(value: Any, _: pa.DataType) -> str | None:
    return ("true" if value else "false") if isinstance(value, bool) else None


def _integer(value: Any, stored: pa.DataType) -> str | None:
    if isinstance(value, Decimal) and value == value.to_integral_value():  # Spark reads unsigned 64 bits as DECIMAL
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    unsigned = pa.types.is_unsigned_integer(stored)
    low, high = (0, 2**stored.bit_width) if unsigned else (-(2 ** (stored.bit_width - 1)), 2 ** (stored.bit_width - 1))
    return str(value) if max(low, 1 - 2**63) <= value < high else None  # the scanner cannot parse -2^63


def _floating(value: Any, _: pa.DataType) -> str | None:
    usable = isinstance(value, float) and math.isfinite(value) and value != 0  # zero has two signs
    return repr(value) if usable else None


def _decimal(value: Any, stored: pa.DataType) -> str | None:
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    shifted = value.scaleb(stored.scale)
    if shifted != shifted.to_integral_value() or len(shifted.to_integral_value().as_tuple().digits) > stored.precision:
        return None
    return f"CAST('{value:f}' AS DECIMAL({stored.precision}, {stored.scale}))"


def _text(value: Any, _: pa.DataType) -> str | None:
    return _quoted(value) if isinstance(value, str) else None


def _binary(value: Any, _: pa.DataType) -> str | None:
    return f"X'{bytes(value).hex()}'" if isinstance(value, bytes | bytearray) else None


def _date(value: Any, _: pa.DataType) -> str | None:
    return f"date '{value.isoformat()}'" if isinstance(value, date) and not isinstance(value, datetime) else None


def _timestamp(value: Any, stored: pa.DataType) -> str | None:
    if not isinstance(value, datetime) or (value.tzinfo is None) != (stored.tz is None):
        return None
    moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return f"CAST('{moment.isoformat(sep=' ', timespec='microseconds')}' AS TIMESTAMP(6))"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_LITERALS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], str | None]], ...] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, _integer),
    (lambda stored: pa.types.is_float32(stored) or pa.types.is_float64(stored), _floating),
    (pa.types.is_decimal128, _decimal),
    (pa.types.is_string, _text),
    (pa.types.is_binary, _binary),
    (pa.types.is_date32, _date),
    (lambda stored: stored in (pa.timestamp("us"), pa.timestamp("us", "UTC")), _timestamp),
)
"""Columns of other stored types are excluded: Spark compares other values than the table stores."""
