"""Partition pruning: the partitions that can contain a row of a filter.

Pruning can keep too many partitions, but never too few. A partition is kept if its value does not decide the filter,
or if engines differ: whether -0.0 equals 0.0, how NaN compares, whether numbers are truncated towards zero or down.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs

from lancekeep.domain.errors import InvalidInput

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null")
_SPELLINGS = {"==": "=", "<>": "!="}


@attrs.frozen
class Predicate:
    """A condition on a column.

    ``values`` has one element, or any number for ``in`` and ``not in``, or none for the null tests.
    """

    column: str
    operator: str
    values: tuple[Any, ...] = ()


Filter = tuple[tuple[Predicate, ...], ...]
"""A disjunction of conjunctions."""


def parse_filter(given: Any) -> Filter:
    """Parse a filter in the form of ``pyarrow.parquet``.

    Args:
        given: a list of tuples ``(column, operator, value)``, or a list of such lists of which one must hold. The
            operators ``is null`` and ``is not null`` take no value. None selects all rows.

    Raises:
        InvalidInput: the filter has another form.
    """
    if given is None:
        return ((),)
    if not isinstance(given, list):
        raise InvalidInput(f"a filter is a list of tuples (column, operator, value); found {given!r:.200}")
    alternatives = given if given and all(isinstance(item, list) for item in given) else [given]
    return tuple(tuple(map(_predicate, conjunction)) for conjunction in alternatives)


def _predicate(given: Any) -> Predicate:
    if not isinstance(given, tuple) or len(given) not in (2, 3) or not all(isinstance(text, str) for text in given[:2]):
        raise InvalidInput(f"a condition is a tuple (column, operator, value); found {given!r:.200}")
    operator = _SPELLINGS.get(given[1], given[1].lower())
    if operator not in OPERATORS:
        raise InvalidInput(f"unknown operator {given[1]!r}; choose {', '.join(OPERATORS)}")
    if operator.startswith("is "):
        if len(given) == 3:
            raise InvalidInput(f"the operator {operator!r} takes no value; found {given[2]!r:.200}")
        return Predicate(given[0], operator)
    if len(given) == 2:
        raise InvalidInput(f"the condition {given!r} needs a value")
    if operator.endswith("in"):
        if not isinstance(given[2], list | tuple | set | frozenset):
            raise InvalidInput(f"the operator {operator!r} takes a list of values; found {given[2]!r:.200}")
        values = tuple(given[2])
    else:
        values = (given[2],)
    if any(value is None or value != value for value in values):
        raise InvalidInput(f"{given!r:.200} compares with null or NaN, which equal no value; use 'is null'")
    return Predicate(given[0], operator, values)


@attrs.frozen
class Image:
    """The range of partition values that a transform can give for one value."""

    lowest: Any
    highest: Any


def by_order(value: Any, predicate: Predicate, images: Sequence[Image], *, exact: bool) -> bool:
    """Return whether a partition can match, for a transform that preserves order.

    Args:
        value: the partition value.
        predicate: the predicate on the source column.
        images: the images of the predicate's values.
        exact: the transform is identity, so every row has the partition value itself.
    """
    decided = _by_null(value, predicate)
    if decided is not None:
        return decided
    if value != value:  # NaN
        return True
    exact = exact and not isinstance(value, float)  # 0.0 is also the partition value of -0.0
    match predicate.operator:
        case "=" | "in":
            return any(image.lowest <= value <= image.highest for image in images)
        case "!=" | "not in":
            return not exact or all(image.lowest != value for image in images)
        case "<":
            return bool(value < images[0].highest if exact else value <= images[0].highest)
        case "<=":
            return bool(value <= images[0].highest)
        case ">":
            return bool(value > images[0].lowest if exact else value >= images[0].lowest)
    return bool(value >= images[0].lowest)


def by_equality(value: Any, predicate: Predicate, images: Collection[Any]) -> bool:
    """Return whether a partition can match, for a transform that preserves equality."""
    decided = _by_null(value, predicate)
    if decided is not None:
        return decided
    return predicate.operator not in ("=", "in") or value in images


def _by_null(value: Any, predicate: Predicate) -> bool | None:
    """Decide by null: a partition value is null exactly if the source is. None if the value itself decides."""
    if predicate.operator == "is null":
        return value is None
    if predicate.operator == "is not null":
        return value is not None
    return False if value is None else None


def equalities(predicates: Sequence[Predicate]) -> dict[str, Predicate]:
    """Return, by column, the predicates that list all allowed values."""
    return {predicate.column: predicate for predicate in predicates if predicate.operator in ("=", "in")}
