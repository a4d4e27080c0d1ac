"""Columns of texts with a length: ``CHAR(n)`` and ``VARCHAR(n)``.

A table stores such a column as a text. Its length is the property ``char.COLUMN`` or ``varchar.COLUMN`` of the table, a
rule that each writer of Lancekeep enforces. Spark checks the rows that it writes, too, and pads ``CHAR``: it compares
padded texts when it deletes and updates, so stored texts have the whole length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from pyspark.sql.types import CharType, DataType, StringType, StructField, StructType, VarcharType

from lancekeep.domain.row_rules import CHAR, LENGTHS, VARCHAR
from lancekeep.entrypoints.spark.internals.schemas import type_of_json


def stated_lengths(columns: StructType) -> dict[str, str]:
    """Return the properties for the lengths of columns."""
    return {name: text for column in columns for name, text in _property(column.name, column.dataType).items()}


def without_lengths(columns: StructType) -> StructType:
    """Return columns with the types that a table stores."""
    return StructType(
        [StructField(column.name, as_stored(column.dataType), column.nullable, column.metadata) for column in columns]
    )


def as_stored(kind: DataType) -> DataType:
    """Return the type that a table stores for the type of a column."""
    return StringType() if isinstance(kind, CharType | VarcharType) else kind


def with_length(name: str, kind: DataType, properties: Mapping[str, str]) -> DataType:
    """Return the type of a column with the length that a table states."""
    if isinstance(kind, StringType):
        for prefix, limited in ((CHAR, CharType), (VARCHAR, VarcharType)):
            length = properties.get(prefix + name, "")
            if length.isdecimal():  # else a native writer has set the property
                return limited(int(length))
    return kind


def padded(text: str, kind: DataType) -> str:
    """Return a default in SQL as Spark stores it in a column of a type."""
    return f"rpad(CAST(({text}) AS STRING), {kind.length}, ' ')" if isinstance(kind, CharType) else text


def _property(name: str, kind: DataType) -> dict[str, str]:
    if isinstance(kind, CharType):
        return {CHAR + name: str(kind.length)}
    return {VARCHAR + name: str(kind.length)} if isinstance(kind, VarcharType) else {}


@attrs.frozen
class ChangedLengths:
    """The properties that a statement changes with its columns.

    Attributes:
        removed: The properties to remove before the columns change; no writer could check the columns afterwards.
        given: The properties to set after the columns have changed.
    """

    removed: Sequence[str]
    given: Mapping[str, str]

    @staticmethod
    def of(by_kind: dict[str, list[Any]], stored: Mapping[str, str]) -> ChangedLengths:
        """Return the changes of lengths among the changes of a statement.

        A change between types of texts leaves ``by_kind``: the stored type stays.
        """
        removed: list[str] = []
        given: dict[str, str] = {}
        for change in by_kind.get("AddColumn", []):
            given |= _property(*_retyped(change, change.dataType()))
        for change in (*by_kind.get("DeleteColumn", []), *by_kind.get("RenameColumn", [])):
            for prefix, name in _stated(change, stored):
                removed.append(name)
                if change.getClass().getSimpleName() == "RenameColumn":
                    given[prefix + change.newName()] = stored[name]
        others = []
        for change in by_kind.pop("UpdateColumnType", []):
            column, kind = _retyped(change, change.newDataType())
            before, after = [name for _, name in _stated(change, stored)], _property(column, kind)
            if not after and not (before and isinstance(kind, StringType)):
                others.append(change)
                continue
            removed += [name for name in before if name not in after]
            given |= after
        if others:
            by_kind["UpdateColumnType"] = others
        return ChangedLengths(removed, given)


def _retyped(change: Any, kind: Any) -> tuple[str, DataType]:
    """Return the column that a change adds or retypes, and its type; a field of a struct has no length."""
    [name, *fields] = change.fieldNames()
    return name, StringType() if fields else type_of_json(kind.json())


def _stated(change: Any, stored: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the kind and name of the property with the length of the column that a change names."""
    [name, *fields] = change.fieldNames()
    yield from ((prefix, prefix + name) for prefix in LENGTHS if prefix + name in stored and not fields)
