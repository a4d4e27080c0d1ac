"""Keep PRIMARY KEY of Spark's DDL as the unenforced primary key of a Lance table.

Lance keeps it in the metadata of its fields, without a name, and never changes it. pylance's ``merge_insert`` and the
upserts of Lancekeep take it as their key if no other is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import StructField, StructType

from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.entrypoints.spark.arrow_types import key_of, spark_schema
from lancekeep.entrypoints.spark.internals.classes import CATALOG, EXPRESSIONS
from lancekeep.entrypoints.spark.sql.jvm import Jvm
from lancekeep.format.schema import PRIMARY_KEY_POSITION

NAME = "primary_key"
"""The name under which the constraint is shown."""
_NESTED = ("struct", "array", "map", "variant")


def is_key(constraint: Any) -> bool:
    """Return whether a constraint is PRIMARY KEY."""
    return bool(constraint.getClass().getSimpleName() == "PrimaryKey")


def stated_key(constraint: Any) -> list[str]:
    """Return the columns that PRIMARY KEY names.

    Raises:
        Unsupported: The key is to be enforced, or to be relied on, or it has a field of a struct.
    """
    if constraint.enforced() or constraint.rely():
        raise Unsupported(
            f"{constraint.toDDL()}: Lance does not enforce a primary key; say NOT ENFORCED NORELY, or nothing"
        )
    paths = [list(column.fieldNames()) for column in constraint.columns()]
    if any(len(path) != 1 for path in paths):
        raise Unsupported(f"{constraint.toDDL()}: a primary key consists of columns, not of fields of structs")
    return [path[0] for path in paths]


def with_key(columns: StructType, key: Sequence[str]) -> StructType:
    """Return the columns of a new table; the columns of its key are not null.

    Raises:
        InvalidInput: A column is missing or named twice, or no column of its type can be in a key.
    """
    positions = _positions(columns, key)
    return StructType(
        [
            StructField(each.name, each.dataType, False, {**each.metadata, PRIMARY_KEY_POSITION: positions[each.name]})
            if each.name in positions
            else each
            for each in columns
        ]
    )


def add_key(dataset: Any, constraints: Sequence[Any]) -> None:
    """Add a primary key to a table.

    Raises:
        InvalidInput: The table has one, or a column may be null, or as `with_key`.
    """
    [key] = [stated_key(constraint) for constraint in constraints]
    present = key_of(dataset.schema)
    if present:
        raise InvalidInput(f"the table has the primary key {', '.join(present)}, which cannot be changed")
    columns = spark_schema(dataset.schema)
    positions = _positions(columns, key)
    for name in positions:
        if columns[name].nullable:
            raise InvalidInput(
                f"the column {name} may be null, so it cannot be in a primary key. Declare the key, or NOT NULL, in "
                "CREATE TABLE"
            )
    dataset.update_field_metadata({name: {PRIMARY_KEY_POSITION: at} for name, at in positions.items()})


def require_no_key(dataset: Any, changes: Sequence[Any] | None) -> None:
    """Check that changes of columns do not affect the primary key.

    Args:
        dataset: The table.
        changes: The changes; None if the key itself is to be removed.

    Raises:
        Unsupported: They do. The engine would lose the key, or refuse.
    """
    key = key_of(dataset.schema)
    affected = key if changes is None else [name for name in key if name in {each.fieldNames()[0] for each in changes}]
    if affected:
        raise Unsupported(
            f"the primary key of the table, {', '.join(key)}, cannot be changed, and its columns can only be renamed. "
            "Use CREATE OR REPLACE TABLE"
        )


def shown_key(jvm: Jvm, key: Sequence[str]) -> Any:
    """Return the constraint that shows a primary key."""
    expressions = jvm.java(EXPRESSIONS + "Expressions")
    columns = jvm.array(EXPRESSIONS + "NamedReference", [expressions.column(name) for name in key])
    return jvm.java(CATALOG + "constraints.Constraint").primaryKey(NAME, columns).enforced(False).build()


def _positions(columns: StructType, key: Sequence[str]) -> dict[str, str]:
    """Return the position of each column in a key; letters match in either case, as in SQL."""
    found: dict[str, str] = {}
    for number, stated in enumerate(key, 1):
        alike = [name for name in columns.names if name.casefold() == stated.casefold()]
        names = [stated] if stated in alike else alike
        if len(names) != 1:
            raise InvalidInput(f"PRIMARY KEY names no column {stated!r}; the columns are {', '.join(columns.names)}")
        kind = columns[names[0]].dataType.typeName()
        if kind in _NESTED:
            raise InvalidInput(f"the column {names[0]} is {kind}, which cannot be in a primary key")
        if names[0] in found:
            raise InvalidInput(f"PRIMARY KEY names the column {names[0]} twice")
        found[names[0]] = str(number)
    return found
