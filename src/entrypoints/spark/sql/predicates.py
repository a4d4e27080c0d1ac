"""Translate SQL conditions to filters of the engine.

A condition is translated only if the engine selects exactly the same rows: Spark does not evaluate a pushed condition
again, and DELETE removes the rows that satisfy it. The engine takes some unknown alternatives for true, such as
``c NOT IN (1) OR c NOT IN (2)`` where c is null. So no negation is around several comparisons, and each comparison of
an alternative has its column not null.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NoReturn

import pyarrow as pa

from lancekeep.adapters.lance.blobs import is_blob
from lancekeep.domain.column_names import quoted
from lancekeep.entrypoints.spark.filters import as_literal

_COMPARISONS = {"=": "=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT_FUNCTIONS = {"STARTS_WITH": "starts_with", "ENDS_WITH": "ends_with", "CONTAINS": "contains"}
_EPOCH = datetime(1970, 1, 1)


class Untranslatable(Exception):
    """Raised if Spark must evaluate a condition itself."""


def translated(predicate: Any, dataset: Any, metadata: Iterable[pa.Field] = ()) -> str | None:
    """Translate a Spark ``Predicate`` to a filter of a ``lance.LanceDataset``.

    Args:
        predicate: The predicate.
        dataset: The dataset.
        metadata: The metadata columns that the predicate may name.

    Returns:
        None if only Spark can evaluate the predicate.
    """
    try:
        comparable = [field for field in dataset.schema if not is_blob(field)]
        text = _condition(predicate, pa.schema([*comparable, *metadata]))
        dataset.scanner(filter=text).explain_plan()  # fails if the engine does not support the filter
    except (Untranslatable, ValueError, OSError):
        return None
    return text


def compared(predicate: Any, schema: pa.Schema) -> tuple[Any, ...]:
    """Return a comparison of a column with constants.

    Returns:
        The column and the operator; and the value, unless it compares with NULL.

    Raises:
        Untranslatable: The predicate has another form.
    """
    name, children = str(predicate.name()), list(predicate.children())
    if name in ("=", "<", "<=", ">", ">=") and _is(children[0], "LiteralValue"):
        children, name = [children[1], children[0]], _MIRRORED.get(name, name)
    if name not in ("=", "<", "<=", ">", ">=", "IN", "IS_NULL", "IS_NOT_NULL"):
        _refuse(name)
    if not _is(children[0], "FieldReference") or len(children[0].fieldNames()) != 1:
        _refuse(name)
    column = children[0].fieldNames()[0]
    if column not in schema.names:
        _refuse(column)
    values = []
    for child in children[1:]:
        if not _is(child, "LiteralValue"):
            _refuse(name)
        value = _held(child.value(), child.dataType().typeName())
        if value is not None or name != "IN":
            values.append(value)
    if name == "IN":
        return column, "in", values
    return (column, name, *values) if values else (column, name.lower().replace("_", " "))


def conjunction(filters: Sequence[str]) -> str | None:
    return " AND ".join(filters) or None


def _condition(predicate: Any, schema: pa.Schema, *, negated: bool = False, alternative: bool = False) -> str:
    """Return a filter that is true where a predicate is.

    Args:
        predicate: The predicate.
        schema: The columns.
        negated: The filter is true where the predicate is false.
        alternative: The filter is a part of an alternative.
    """
    name = str(predicate.name())
    children = list(predicate.children())
    if name == "NOT":
        return _condition(children[0], schema, negated=not negated, alternative=alternative)
    if name in ("AND", "OR"):
        word = {"AND": "OR", "OR": "AND"}[name] if negated else name
        alternative = alternative or word == "OR"
        parts = (_condition(child, schema, negated=negated, alternative=alternative) for child in children)
        return f"({f' {word} '.join(parts)})"
    text, compared_column = _part(name, children, schema)
    if negated:
        text = f"(NOT {text})"
    return f"({compared_column} IS NOT NULL AND {text})" if alternative and compared_column else text


def _part(name: str, children: Sequence[Any], schema: pa.Schema) -> tuple[str, str | None]:
    """Return a condition without parts, and its column if the condition is unknown where the column is null."""
    if name in _COMPARISONS:
        left, right = children
        if _is(left, "LiteralValue"):
            left, right, name = right, left, _MIRRORED.get(name, name)
        return _comparison(_COMPARISONS[name], left, right, schema), _column(left, schema)[0]
    match name:
        case "IS_NULL" | "IS_NOT_NULL":
            return f"({_column(children[0], schema)[0]} {name.replace('_', ' ')})", None
        case "<=>":  # never unknown
            column = _column(children[0], schema)[0]
            return f"({column} IS NOT NULL AND {_comparison('=', children[0], children[1], schema)})", None
        case "IN":
            column, stored = _column(children[0], schema)
            values = [_value(child, stored) for child in children[1:]]
            return (f"({column} IN ({', '.join(values)}))", column) if values else ("false", None)
        case "STARTS_WITH" | "ENDS_WITH" | "CONTAINS":
            column, stored = _column(children[0], schema)
            if pa.types.is_string(stored):
                return f"{_TEXT_FUNCTIONS[name]}({column}, {_value(children[1], stored)})", column
        case "ALWAYS_TRUE" | "ALWAYS_FALSE":
            return name.removeprefix("ALWAYS_").lower(), None
    return _refuse(name)


def _comparison(operator: str, left: Any, right: Any, schema: pa.Schema) -> str:
    column, stored = _column(left, schema)
    text = f"{column} {operator} {_value(right, stored)}"
    if not pa.types.is_floating(stored) or operator in ("=", "!="):
        return f"({text})"
    # In Spark NaN exceeds every number; in the engine a negative NaN is less than every number.
    return f"({text} OR isnan({column}))" if ">" in operator else f"({text} AND NOT isnan({column}))"


def _column(expression: Any, schema: pa.Schema) -> tuple[str, pa.DataType]:
    """Return the engine's name and the stored type of a column or a field of nested structs."""
    if not _is(expression, "FieldReference"):
        _refuse(expression.getClass().getSimpleName())
    names = list(expression.fieldNames())
    fields: Any = schema
    for name in names:
        if name not in [field.name for field in fields]:
            _refuse(name)
        stored = fields.field(name).type
        fields = stored if pa.types.is_struct(stored) else ()
    return quoted(*names), stored


def _value(expression: Any, stored: pa.DataType) -> str:
    if not _is(expression, "LiteralValue"):
        _refuse(expression.getClass().getSimpleName())
    text = as_literal(_held(expression.value(), expression.dataType().typeName()), stored)
    return _refuse(f"a value for {stored}") if text is None else text


def _held(value: Any, kind: str) -> Any:
    """Convert a Spark literal to Python; dates are days since 1970 and timestamps are microseconds in UTC."""
    if value is None:
        return None
    try:
        match kind.partition("(")[0]:
            case "decimal":
                return value.toJavaBigDecimal()
            case "string":
                return str(value.toString())
            case "date":
                return date(1970, 1, 1) + timedelta(days=value)
            case "timestamp":
                return _EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=value)
            case "timestamp_ntz":
                return _EPOCH + timedelta(microseconds=value)
    except OverflowError:  # before the year 1 or after 9999
        _refuse(kind)
    return value


def _is(expression: Any, name: str) -> bool:
    return bool(expression.getClass().getSimpleName() == name)


def _refuse(what: str) -> NoReturn:
    raise Untranslatable(what)
