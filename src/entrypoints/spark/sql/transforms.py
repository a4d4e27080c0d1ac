"""Translate partition transforms between Spark and the specification.

``years``, ``months``, ``days`` and ``hours`` of Spark count from 1970. They become the levels year, month, day and
hour of the specification, which divide the rows alike. ``year``, ``month``, ``day`` and ``hour`` are one level each,
such as the month of the year.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lancekeep.application.partitions.values import sources_by_id
from lancekeep.domain.column_names import quoted
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.partitioning import DATE_PARTS, PartitionBy, PartitionField, PartitionSpec
from lancekeep.entrypoints.spark.internals.classes import EXPRESSIONS
from lancekeep.entrypoints.spark.sql.jvm import Jvm

_LEVELS: Mapping[str, Sequence[str]] = {f"{part}s": DATE_PARTS[: at + 1] for at, part in enumerate(DATE_PARTS)}
"""The levels that divide rows as a transform of Spark does."""

_CLUSTER_BY = "cluster_by"


def clustered_by(transforms: Iterable[Any]) -> list[str]:
    """Return the columns that the clause ``CLUSTER BY`` states."""
    return [_column(each) for transform in transforms if _is_clustering(transform) for each in transform.arguments()]


def shown_clustering(jvm: Jvm, columns: Sequence[str]) -> Any:
    """Return columns as the transform ``CLUSTER BY``; the inverse of `clustered_by`."""
    make = jvm.java(EXPRESSIONS + "Expressions")
    found = [jvm.clustering(make.column(quoted(name)) for name in columns)] if columns else []
    return jvm.array(EXPRESSIONS + "Transform", found)


def partition_by(transforms: Iterable[Any]) -> list[PartitionBy]:
    """Return the levels that the clause ``PARTITIONED BY`` states.

    Raises:
        Unsupported: A transform has no equivalent.
        InvalidInput: A transform has other arguments.
    """
    return [level for transform in transforms if not _is_clustering(transform) for level in _levels(transform)]


def _levels(transform: Any) -> Iterator[PartitionBy]:
    name = str(transform.name()).lower()
    arguments = list(transform.arguments())
    columns = [_column(each) for each in arguments if not _is_literal(each)]
    numbers = [each.value() for each in arguments if _is_literal(each)]
    if name in ("bucket", "truncate"):
        if not columns or len(numbers) != 1 or (name == "truncate" and len(columns) != 1):
            raise InvalidInput(
                f"{name} takes a number and a column, as in {name}(16, id); found {transform.toString()}"
            )
        [number] = numbers
        if name == "truncate":
            yield PartitionBy.truncate(columns[0], number)
        elif len(columns) == 1:
            yield PartitionBy.bucket(columns[0], number)
        else:
            yield PartitionBy.multi_bucket(columns, number)
        return
    parts = _LEVELS.get(name, [name])
    if name != "identity" and not set(parts) <= set(DATE_PARTS):
        raise Unsupported(
            f"PARTITIONED BY {transform.toString()} is not supported; use a column, years, months, days, hours, "
            "year, month, day, hour, bucket(n, column) or truncate(width, column)"
        )
    if len(columns) != 1 or numbers:
        raise InvalidInput(f"{name} takes one column; found {transform.toString()}")
    for part in parts:
        yield getattr(PartitionBy, part)(columns[0])


def shown_transforms(jvm: Jvm, spec: PartitionSpec, schema: pa.Schema) -> Any:
    """Return a specification as Spark's transforms; the inverse of `partition_by`."""
    make = jvm.java(EXPRESSIONS + "Expressions")
    sources = sources_by_id(schema)
    found, fields = [], list(spec.fields)
    while fields:
        field = fields.pop(0)
        names = [quoted(sources[number].name) for number in field.source_ids if number in sources]
        kind, parameter = _kind(field)
        if kind == "year":
            parts = 1
            while fields and parts < len(DATE_PARTS) and fields[0].source_ids == field.source_ids:
                if _kind(fields[0])[0] != DATE_PARTS[parts]:
                    break
                fields.pop(0)
                parts += 1
            found.append(getattr(make, f"{DATE_PARTS[parts - 1]}s")(*names))
        elif kind == "identity":
            found.append(make.identity(*names))
        elif kind in ("bucket", "multi_bucket"):
            found.append(make.bucket(parameter, jvm.strings(names)))
        else:
            given = [make.literal(parameter)] if parameter is not None else []
            arguments = [*given, *map(make.column, names)]
            found.append(make.apply(kind, jvm.array(EXPRESSIONS + "Expression", arguments)))
    return jvm.array(EXPRESSIONS + "Transform", found)


def _kind(field: PartitionField) -> tuple[str, Any]:
    if field.transform is None:
        return "expression", field.expression
    return field.transform.type, field.transform.parameter


def _is_clustering(transform: Any) -> bool:
    return bool(str(transform.name()).lower() == _CLUSTER_BY)


def _is_literal(argument: Any) -> bool:
    return bool(argument.getClass().getSimpleName() == "LiteralValue")


def _column(argument: Any) -> str:
    names = list(argument.fieldNames()) if argument.getClass().getSimpleName() == "FieldReference" else []
    if len(names) != 1:
        raise Unsupported(f"PARTITIONED BY and CLUSTER BY take columns of the table; {argument.toString()} is none")
    return str(names[0])
