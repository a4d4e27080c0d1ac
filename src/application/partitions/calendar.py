"""Prune partitions by several parts of one date.

Each part alone, such as the month of the year, selects no range of dates. A year together with the parts that follow
it does: such values are ordered as the dates are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa

from lancekeep.application.partitions.values import literals, sources_by_id, transformed
from lancekeep.domain.partitioning import DATE_PARTS, PartitionSpec, Transform
from lancekeep.domain.partitions import Values
from lancekeep.domain.pruning import Image, Predicate, by_order


def keeps_dates(spec: PartitionSpec, schema: pa.Schema, conjunction: Sequence[Predicate]) -> Callable[[Values], bool]:
    """Return a test whether a partition can hold rows that satisfy a conjunction.

    The test takes the values of all fields, and decides by the years, months, days and hours of each column. Columns in
    a time zone other than UTC are not decided: where clocks are set back, later times have earlier parts.
    """
    tests: list[tuple[list[int], Predicate, list[Image]]] = []
    for column, positions in _dates(spec, schema):
        for predicate in (predicate for predicate in conjunction if predicate.column == column.name):
            values = literals(predicate, column)
            parts = [transformed(Transform(part), [values]).to_pylist() for part in DATE_PARTS[: len(positions)]]
            tests.append((positions, predicate, [Image(image, image) for image in zip(*parts, strict=True)]))

    def keeps(values: Values) -> bool:
        return all(
            by_order(_whole([values[at] for at in positions]), predicate, images, exact=False)
            for positions, predicate, images in tests
        )

    return keeps


def _whole(parts: list[Any]) -> Values | None:
    """Return the parts of a date; None if the date is null."""
    return None if None in parts else tuple(parts)


def _dates(spec: PartitionSpec, schema: pa.Schema) -> Iterator[tuple[pa.Field, list[int]]]:
    """Yield each column with the positions of its year, month, day and hour, as far as the specification has them."""
    for number, column in sources_by_id(schema).items():
        if getattr(column.type, "tz", None) not in (None, "UTC"):
            continue
        found = [
            field.transform.type if field.transform is not None and field.source_ids == (number,) else ""
            for field in spec.fields
        ]
        positions = [found.index(part) for part in takewhile(found.__contains__, DATE_PARTS)]
        if len(positions) > 1:
            yield column, positions
