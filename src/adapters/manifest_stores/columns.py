"""How columns of extensions enter the manifest table (directory namespace V2, "Schema Extensibility")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lancekeep.domain.errors import Refused


def with_columns(schema: pa.Schema, columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema with further nullable columns. Raises `Refused` where one is there with another type."""
    for name, wanted in columns.items():
        if name not in schema.names:
            schema = schema.append(pa.field(name, wanted))
        elif schema.field(name).type != wanted:
            raise _other_type(name, str(schema.field(name).type), str(wanted))
    return schema


def enter_columns(manifest: Any, schema: pa.Schema, example: Any) -> pa.Schema:
    """Give a manifest message the fields of columns that it lacks; the schema, in the manifest's order.

    A schema knows a column once it has a value, the manifest from the beginning. example: the manifest of a table of
    this schema. Raises `Refused` where the manifest knows a column with another type.
    """
    roots = {field.name: field for field in manifest.fields if field.parent_id < 0}
    number = max((field.id for field in manifest.fields), default=-1) + 1
    for field in (field for field in example.fields if field.parent_id < 0):
        known = roots.get(field.name)
        if known is None:
            entered = manifest.fields.add()
            entered.CopyFrom(field)
            entered.id, number = number, number + 1
            roots[field.name] = entered
        elif known.logical_type != field.logical_type:
            raise _other_type(field.name, known.logical_type, field.logical_type)
    return pa.schema([schema.field(name) for name in roots if name in schema.names])


def _other_type(name: str, found: str, wanted: str) -> Refused:
    return Refused(
        f"the manifest table has a column {name!r} of type {found}; it cannot hold {wanted}. Choose another name."
    )
