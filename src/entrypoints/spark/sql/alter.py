"""Translate ALTER TABLE to changes of the catalog and of Lance tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructField, _parse_datatype_json_string

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.arrow_types import require_quotable, require_storable
from lancekeep.entrypoints.spark.sql.columns import COMMENT, is_vector_property, stored_field


def alter(catalog: Catalog, table: ObjectId, changes: Sequence[Any]) -> None:
    """Apply the ``TableChange`` objects of one statement.

    All property changes are one change of the catalog. All column changes of one kind are one version of the table.
    Unsupported kinds and properties are refused before anything changes.

    Raises:
        TableNotFound: The table does not exist.
        InvalidInput: Lance cannot store the altered columns.
        Unsupported: Lance tables do not support a change.
    """
    by_kind: dict[str, list[Any]] = {}
    for change in changes:
        by_kind.setdefault(change.getClass().getSimpleName(), []).append(change)
    unknown = by_kind.keys() - _COLUMN_CHANGES.keys() - {"SetProperty", "RemoveProperty"}
    if unknown:
        raise Unsupported(f"{table}: a Lance table cannot be altered by {_WORDS.get(min(unknown), min(unknown))}")
    given = {change.property(): change.value() for change in by_kind.pop("SetProperty", [])}
    removed = [change.property() for change in by_kind.pop("RemoveProperty", [])]
    for name in (*given, *removed):
        if is_vector_property(name):
            raise Unsupported(f"{table}: {name} is the type of a column, which is decided when the table is created")
        if name in ("provider", "location", "owner"):
            raise Unsupported(f"{table}: {name} is not a property that can be changed")
    if given or removed:
        catalog.alter_table(table, given, removed)
    for kind, of_kind in by_kind.items():
        catalog.commit_change(table, partial(_altered, _COLUMN_CHANGES[kind], of_kind))


def _altered(alteration: Callable[[Any, Sequence[Any]], None], changes: Sequence[Any], dataset: Any) -> Any:
    alteration(dataset, changes)
    return dataset


def _add(dataset: Any, changes: Sequence[Any]) -> None:
    fields = []
    for change in changes:
        names = list(change.fieldNames())
        if len(names) > 1:
            raise Unsupported(f"the field {'.'.join(names)} cannot be added: a struct keeps the fields it has")
        if change.position() is not None:
            raise Unsupported(f"the column {names[0]} cannot be added FIRST or AFTER another; new columns are the last")
        if not change.isNullable() or change.defaultValue() is not None:
            raise Unsupported(
                f"the column {names[0]} cannot be added with NOT NULL or a DEFAULT: the rows that are there get NULL"
            )
        metadata = {"comment": change.comment()} if change.comment() else None
        kind = _parse_datatype_json_string(change.dataType().json())
        fields.append(stored_field(StructField(names[0], kind, True, metadata)))
    schema = pa.schema(fields)
    require_storable(schema)
    dataset.add_columns(schema)


def _drop(dataset: Any, changes: Sequence[Any]) -> None:
    require_quotable(name for change in changes for name in change.fieldNames())  # Lance would drop nothing
    dataset.drop_columns([_path(change) for change in changes])


def _rename(dataset: Any, changes: Sequence[Any]) -> None:
    require_quotable(change.newName() for change in changes)
    dataset.alter_columns(*({"path": _path(change), "name": change.newName()} for change in changes))


def _retype(dataset: Any, changes: Sequence[Any]) -> None:
    wanted = [
        stored_field(StructField(_path(change), _parse_datatype_json_string(change.newDataType().json())))
        for change in changes
    ]
    dataset.alter_columns(*({"path": field.name, "data_type": field.type} for field in wanted))


def _nullability(dataset: Any, changes: Sequence[Any]) -> None:
    dataset.alter_columns(*({"path": _path(change), "nullable": change.nullable()} for change in changes))


def _comment(dataset: Any, changes: Sequence[Any]) -> None:
    for change in changes:
        metadata = {key.decode(): value.decode() for key, value in (_field(dataset, change).metadata or {}).items()}
        metadata.pop(COMMENT, None)
        if change.newComment():
            metadata[COMMENT] = change.newComment()
        dataset.replace_field_metadata(_path(change), metadata)


def _field(dataset: Any, change: Any) -> pa.Field:
    first, *rest = change.fieldNames()
    field = dataset.schema.field(first)
    for name in rest:
        field = field.type.field(name)
    return field


def _path(change: Any) -> str:
    """Return the path as Lance parses it; plain names stay unquoted, so errors show them as the user wrote them."""
    return ".".join(f"`{name.replace('`', '``')}`" if "`" in name else name for name in change.fieldNames())


_COLUMN_CHANGES = {
    "AddColumn": _add,
    "DeleteColumn": _drop,
    "RenameColumn": _rename,
    "UpdateColumnType": _retype,
    "UpdateColumnNullability": _nullability,
    "UpdateColumnComment": _comment,
}

_WORDS = {
    "UpdateColumnPosition": "moving a column",
    "UpdateColumnDefaultValue": "a default value",
    "ClusterBy": "CLUSTER BY",
    "AddConstraint": "a constraint",
    "DropConstraint": "a constraint",
}
