"""Implement ALTER TABLE of a partitioned table.

One change of the catalog publishes the new columns of all partitions, and their common schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lance
import pyarrow as pa

from lancekeep.application.catalog import Catalog
from lancekeep.application.partitions.namespace import PartitionedNamespace
from lancekeep.application.partitions.values import sources_by_id
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.entrypoints.spark.sql.alter import COLUMN_CHANGES, PROPERTY_CHANGES, altered, changes_by_kind
from lancekeep.entrypoints.spark.sql.texts import ChangedLengths
from lancekeep.format.arrow_metadata import FIELD_ID

_OF_SOURCES = ("DeleteColumn", "UpdateColumnType")
"""The changes that a column whose values divide the rows cannot have."""


def alter_partitions(catalog: Catalog, name: str, changes: Sequence[Any]) -> None:
    """Apply the ``TableChange`` objects of one statement to all partitions.

    The columns of all partitions and the common schema change at once, in one change of the catalog.

    Raises:
        InvalidInput: Lance cannot store the altered columns, or the statement makes changes of several kinds.
        Unsupported: A partitioned table does not support a change.
        ConcurrentModification: Other writers changed partitions. Nothing was published.
    """
    namespace = catalog.partitions.open()
    by_kind = changes_by_kind(name, changes)
    has_default = any(change.defaultValue() is not None for change in by_kind.get("AddColumn", []))
    if by_kind.keys() & (PROPERTY_CHANGES | {"AddPrimaryKey"}) or has_default or ChangedLengths.of(by_kind, {}).given:
        raise Unsupported(
            f"{name}: a partitioned table has no properties, comment, defaults, rules, keys and lengths of texts of "
            "its own; nothing was changed. ALTER NAMESPACE sets properties of the catalog; COMMENT ON COLUMN describes "
            "a column."
        )
    if len(by_kind) != 1:
        raise InvalidInput(
            f"{name}: the columns of partitions take changes of one kind per statement; found {', '.join(by_kind)}. "
            "Run a statement for each. Nothing was changed."
        )
    [(kind, of_kind)] = by_kind.items()
    if kind in _OF_SOURCES:
        _require_no_source(namespace, name, [change.fieldNames()[0] for change in of_kind])
    plan, read = namespace.begin_write(), namespace.scan()
    act = partial(altered, COLUMN_CHANGES[kind], of_kind)
    try:
        schema = _altered_schema(plan.schema, act, _renamed(of_kind) if kind == "RenameColumn" else {})
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{name}: the columns cannot be altered so; nothing was changed: {error}") from error
    if kind == "UpdateColumnType":  # for which Lance drops comments
        schema = pa.schema([f.with_metadata(plan.schema.field(f.name).metadata) for f in schema], schema.metadata)
    namespace.change(plan, read, {each.table.id: act for each in read.partitions}, exactly=True, schema=schema)


def _altered_schema(schema: pa.Schema, act: Callable[[Any], Any], renamed: dict[str, str]) -> pa.Schema:
    """Return the schema that a change makes, with a number for each column; raise what Lance refuses."""
    found = act(lance.write_dataset(schema.empty_table(), "memory://altered")).schema
    numbers = {renamed.get(field.name, field.name): number for number, field in sources_by_id(schema).items()}
    fields = []
    for field in found:
        number = numbers.setdefault(field.name, max(numbers.values(), default=-1) + 1)
        fields.append(field.with_metadata({**(field.metadata or {}), FIELD_ID: str(number).encode()}))
    return pa.schema(fields, schema.metadata)


def _renamed(changes: Sequence[Any]) -> dict[str, str]:
    """Return the new names of columns, without fields of structs."""
    return {change.fieldNames()[0]: change.newName() for change in changes if len(list(change.fieldNames())) == 1}


def _require_no_source(namespace: PartitionedNamespace, name: str, columns: Sequence[str]) -> None:
    """Check that the values of columns divide no rows.

    Raises:
        Unsupported: The values of a column do.
    """
    fields = sources_by_id(namespace.schema)
    dividing = {
        fields[number].name
        for spec in namespace.specs.values()
        for field in spec.fields
        for number in field.source_ids
        if number in fields
    }
    found = [column for column in columns if column in dividing]
    if found:
        raise Unsupported(
            f"{name}: the values of the column {found[0]!r} divide the rows into partitions, so it cannot be dropped "
            "or retyped; nothing was changed. Create another table, and INSERT the rows."
        )
