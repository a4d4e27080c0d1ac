"""Check rows that are about to be written.

The rules of rows are evaluated with pyarrow, as Spark evaluates them in ANSI mode. Texts must be UTF-8: Spark and other
producers of Arrow do not check them, and the engine stores any bytes, but then cannot read the column.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lancekeep.application.rows.texts import holds_texts, texts_in
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.row_rules import Call, Column, Date, Expression, Literal, Rule, Rules
from lancekeep.native import compute as pc

_WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
"""The types of whole numbers, in the order of their widths."""
_ARITHMETIC = {"+": "add_checked", "-": "subtract_checked", "*": "multiply_checked"}
_COMPARISONS = {"=": "equal", "<>": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_EXACT = pa.decimal256(76, 38)
"""A type that holds every decimal and whole number of Spark."""


def check_rows(rows: Any, rules: Rules) -> None:
    """Check a ``pyarrow.RecordBatch`` or ``Table`` that is about to be written.

    Raises:
        InvalidInput: A text is not UTF-8, a row violates a rule, or the rule cannot be evaluated on these columns.
    """
    check_texts(rows)
    for rule in rules:
        passed = _passed(rows, rule)
        wrong = pc.sum(pc.fill_null(pc.invert(passed), False)).as_py() or 0
        if wrong:
            if rule.column is not None:
                broken = f"{wrong} row(s) have another value in the generated column {rule.column!r} than {rule.text}"
            else:
                broken = f"{wrong} row(s) violate the constraint {rule.name.partition('.')[2]!r}, {rule.text}"
            raise InvalidInput(f"{broken}. Nothing was written. Correct the rows, or drop the rule.")


def check_texts(rows: Any) -> None:
    """Check the texts of a batch or table that is about to be written.

    Raises:
        InvalidInput: A text is not UTF-8.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for texts in texts_in(column):
            try:
                texts.validate(full=True)
            except pa.ArrowException as error:
                raise InvalidInput(
                    f"the column {name!r} has a text that Lance could not read: {error}. Nothing was written. Replace "
                    "the text, in Spark by make_valid_utf8, or store its bytes."
                ) from error


@contextmanager
def checked(reader: Any, rules: Rules) -> Iterator[Any]:
    """Yield a stream that fails at the first batch that `check_rows` refuses.

    An engine that reads the stream may then raise another error, which is replaced by the error of the check.
    """
    if not rules and not any(map(holds_texts, reader.schema.types)):
        yield reader
        return
    require_evaluable(reader.schema, rules)
    failures: list[InvalidInput] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            try:
                check_rows(batch, rules)
            except InvalidInput as error:
                failures.append(error)
                raise
            yield batch

    try:
        yield pa.RecordBatchReader.from_batches(reader.schema, batches())
    except Exception as error:
        raise (failures[0] if failures else error) from None


def require_evaluable(schema: pa.Schema, rules: Rules) -> None:
    """Check that rules can be evaluated on rows of a schema.

    Raises:
        InvalidInput: A column is missing, or its type is not supported.
    """
    check_rows(schema.empty_table(), rules)


def check_stream(stream: Any, rules: Rules) -> None:
    """Check the rows of a stream; see `check_rows`."""
    require_evaluable(stream.schema, rules)
    for batch in stream:
        check_rows(batch, rules)


def _passed(rows: Any, rule: Rule) -> Any:
    """Return for each row whether it obeys a rule; null passes."""
    try:
        value = _value(rows, rule.expression)
        if rule.column is None:
            if not pa.types.is_boolean(value.type):
                raise _Unsupported(f"it is {value.type}, not a condition")
            return value
        return _compare("<=>", _column(rows, (rule.column,)), value)
    except (_Unsupported, pa.ArrowException) as error:
        raise InvalidInput(
            f"{rule.name} = {rule.text!r} cannot be evaluated on these rows: {error}. Nothing was written."
        ) from error


class _Unsupported(Exception):
    """A type or column that rules do not support."""


def _value(rows: Any, expression: Expression) -> Any:
    if isinstance(expression, Column):
        return _column(rows, expression.path)
    if isinstance(expression, Literal):
        return _constant(expression.value, rows.num_rows)
    operands = [_value(rows, operand) for operand in expression.operands]
    return _called(expression, operands)


def _called(call: Call, operands: list[Any]) -> Any:
    match call.name:
        case "AND" | "OR":
            conditions = [_condition(operand) for operand in operands]
            return pc.call_function(f"{call.name.lower()}_kleene", conditions)
        case "NOT":
            return pc.invert(_condition(operands[0]))
        case "IS NULL":
            return pc.is_null(operands[0])
        case "LENGTH":
            if not _is_text(operands[0].type):
                raise _Unsupported(f"length of {operands[0].type}")
            return pc.utf8_length(operands[0]).cast(pa.int32())
        case "+" | "-" | "*":
            left, right = _alike(*operands)
            if left.type not in (*_WHOLE, pa.float64()):
                raise _Unsupported(f"{call.name} of {left.type}")
            return pc.call_function(_ARITHMETIC[call.name], [left, right])
    return _compare(call.name, *operands)


def _condition(value: Any) -> Any:
    if pa.types.is_null(value.type):
        return value.cast(pa.bool_())
    if not pa.types.is_boolean(value.type):
        raise _Unsupported(f"{value.type} is not a condition")
    return value


def _compare(name: str, left: Any, right: Any) -> Any:
    """Compare values as Spark does: NaN equals itself and exceeds every number."""
    if name == "<=>":
        equal = pc.fill_null(_compare("=", left, right), False)
        return pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
    left, right = _alike(left, right)
    compared = pc.call_function(_COMPARISONS[name], [left, right])
    if not pa.types.is_floating(left.type):
        return compared
    one, other = pc.is_nan(left), pc.is_nan(right)
    both, either = pc.and_(one, other), pc.or_(one, other)
    known = {
        "=": both,
        "<>": pc.invert(both),
        "<": pc.and_(other, pc.invert(one)),
        "<=": other,
        ">": pc.and_(one, pc.invert(other)),
        ">=": one,
    }
    return pc.if_else(either, known[name], compared)


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Return two values in the type in which Spark compares or adds them."""
    kinds = {_kind(left.type), _kind(right.type)} - {"null"}
    if not kinds:
        kinds = {"whole"}
    if kinds == {"whole"}:
        given = [value.type for value in (left, right) if value.type in _WHOLE]
        wider = max(given, key=_WHOLE.index, default=pa.int32())
        return left.cast(wider), right.cast(wider)
    if kinds <= {"whole", "decimal"}:
        return _exact(left), _exact(right)
    if kinds <= {"whole", "decimal", "float"}:
        return left.cast(pa.float64()), right.cast(pa.float64())
    if kinds == {"text"}:
        return left.cast(pa.large_string()), right.cast(pa.large_string())
    if len(kinds) == 1:
        other = left.type if _kind(right.type) == "null" else right.type
        if _kind(left.type) != "null" and _kind(right.type) != "null" and left.type != right.type:
            raise _Unsupported(f"{left.type} with {right.type}")
        return left.cast(other), right.cast(other)
    raise _Unsupported(f"{left.type} with {right.type}")


def _exact(value: Any) -> Any:
    if value.type in _WHOLE:
        value = value.cast(pa.decimal128(19, 0))
    return value.cast(_EXACT)


def _kind(stored: pa.DataType) -> str:
    is_ = pa.types
    if stored in _WHOLE:
        return "whole"
    if is_.is_decimal(stored):
        return "decimal"
    if stored in (pa.float32(), pa.float64()):
        return "float"
    if _is_text(stored):
        return "text"
    for name, test in (
        ("null", is_.is_null),
        ("boolean", is_.is_boolean),
        ("date", is_.is_date32),
        ("timestamp", is_.is_timestamp),
    ):
        if test(stored):
            return name
    raise _Unsupported(f"values of the type {stored}")


def _is_text(stored: pa.DataType) -> bool:
    return bool(pa.types.is_string(stored) or pa.types.is_large_string(stored))


def _column(rows: Any, path: tuple[str, ...]) -> Any:
    if path[0] not in rows.schema.names:
        raise _Unsupported(f"they have no column {path[0]!r}")
    value = rows.column(path[0])
    for name in path[1:]:
        if not pa.types.is_struct(value.type) or value.type.get_field_index(name) < 0:
            raise _Unsupported(f"there is no field {'.'.join(path)!r}")
        value = pc.struct_field(value, name)
    return value


def _constant(value: bool | int | Decimal | str | Date | None, length: int) -> pa.Array:
    constant = _dated(value) if isinstance(value, Date) else value
    kind = None
    if isinstance(value, int) and not isinstance(value, bool):
        kind = pa.int32() if -(2**31) <= value < 2**31 else pa.int64()
    try:
        return pa.repeat(pa.scalar(constant, kind), length)
    except OverflowError as error:
        raise _Unsupported(f"{value} has more than 64 bits") from error


def _dated(value: Date) -> date:
    try:
        return date.fromisoformat(value.text)
    except ValueError as error:
        raise _Unsupported(f"DATE {value.text!r}: {error}") from error
