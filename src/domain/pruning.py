"""Which partitions can hold a row that a filter wants (partitioning specification, "Partition Pruning").

Pruning may keep too much and never too little: what cannot be told from a partition value is kept. Where engines differ
it is kept, too: whether -0.0 equals 0.0, how NaN compares, whether numbers were truncated towards zero or downwards.
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
    """One condition on a column. values: what it is compared with; one, or any number for ``in`` and ``not in``."""

    column: str
    operator: str
    values: tuple[Any, ...] = ()


Filter = tuple[tuple[Predicate, ...], ...]
"""Any of these has to hold, each of which is a conjunction."""


def parse_filter(given: Any) -> Filter:
    """A filter as ``pyarrow.parquet`` takes it: tuples ``(column, operator, value)``, or lists of them, one to hold.

    ``is null`` and ``is not null`` need no value. None: everything. Raises `InvalidInput`.
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
        raise InvalidInput(f"{given!r:.200} compares with null or NaN, which no value equals; use 'is null'")
    return Predicate(given[0], operator, values)


@attrs.frozen
class Image:
    """What a transform may make of one value: a partition value from ``lowest`` to ``highest``."""

    lowest: Any
    highest: Any


def by_order(value: Any, predicate: Predicate, images: Sequence[Image], *, exact: bool) -> bool:
    """Whether rows of the partition ``value`` can satisfy a predicate, for a transform that keeps the order of values.

    images: of the predicate's values. exact: the transform is identity, so that all rows have the partition's value.
    """
    decided = _by_null(value, predicate)
    if decided is not None:
        return decided
    if value != value:  # NaN
        return True
    exact = exact and not isinstance(value, float)  # 0.0 stands for -0.0, too
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
    """The same for a transform that only keeps equality: buckets, and parts of dates that come again."""
    decided = _by_null(value, predicate)
    if decided is not None:
        return decided
    return predicate.operator not in ("=", "in") or value in images


def _by_null(value: Any, predicate: Predicate) -> bool | None:
    """A partition value is null where, and only where, the source is; None: the value has to be looked at."""
    if predicate.operator == "is null":
        return value is None
    if predicate.operator == "is not null":
        return value is not None
    return False if value is None else None


def equalities(predicates: Sequence[Predicate]) -> dict[str, Predicate]:
    """The columns that a conjunction allows only some values, with a predicate that says which."""
    return {predicate.column: predicate for predicate in predicates if predicate.operator in ("=", "in")}
