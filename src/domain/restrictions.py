"""Grants that permit reading some columns and rows of tables alone.

A restricted grant permits only the operations of `RESTRICTED` and the listings of names. Any other operation needs a
grant without a restriction, also an operation that is new: nothing here has to forbid it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import attrs

from lancekeep.domain.conditions import Condition
from lancekeep.domain.errors import AccessDenied
from lancekeep.domain.manifest import SchemaField
from lancekeep.domain.rights import Right
from lancekeep.domain.typed_constants import ColumnType

RESTRICTED: Final[Mapping[str, str]] = {
    "query_table": "answers with the permitted columns and rows; other names are absent",
    "count_table_rows": "counts the permitted rows",
    "describe_table": "shows the permitted columns, without properties, statistics and credentials",
    "table_exists": "is answered",
    "get_table_tag_version": "is answered",
    "describe_namespace": "is answered without properties",
    "namespace_exists": "is answered",
}
"""The operations that a restricted grant permits, and what each of them does."""

RIGHTS: Final = frozenset((Right.CONNECT, Right.LIST, Right.DESCRIBE, Right.READ))
"""The rights that a restricted grant may have."""

ADDED_BY_SEARCHES: Final = frozenset(("_distance", "_score", "query_index"))
"""The columns that a search adds. The engine refuses a search in a table whose own column of such a name clashes."""

NAMES: Final = frozenset(("ListNamespaces", "ListTables", "ListAllTables"))
"""The operations that show names alone, so a restriction does not change them."""


def free_of(rights: Set[str]) -> frozenset[str]:
    """Return what a restricted grant permits without its restriction: names.

    Args:
        rights: The rights and single operations of the grant.
    """
    return frozenset({Right.CONNECT, *(NAMES if Right.LIST in rights else NAMES & rights)} & {*NAMES, *rights})


@attrs.frozen
class Restriction:
    """What a grant permits of a table.

    Attributes:
        columns: The names of the permitted columns; None for all columns.
        rows: Conditions; a row is permitted if one of them is true. Without a condition, all rows are permitted.
    """

    columns: frozenset[str] | None = None
    rows: frozenset[Condition] = frozenset()

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is restricted: ``columns``, ``rows``."""
        return (*(["columns"] if self.columns is not None else []), *(["rows"] if self.rows else []))

    @property
    def ordered(self) -> Sequence[Condition]:
        """The conditions, by their texts."""
        return sorted(self.rows, key=lambda one: one.text)

    @property
    def condition(self) -> str | None:
        """The condition of the permitted rows as people read it; None for all rows."""
        return " OR ".join(f"({each.text})" for each in self.ordered) or None

    def __str__(self) -> str:
        columns = None if self.columns is None else f"columns {', '.join(sorted(self.columns))}"
        rows = None if self.condition is None else f"rows {self.condition}"
        return "; ".join(filter(None, (columns, rows)))


def united(restrictions: Iterable[Restriction]) -> Restriction | None:
    """Return the restriction that permits what several grants permit together.

    Grants of the same rows permit the columns of all of them, and grants of the same columns permit the rows of all.

    Returns:
        None if the grants differ in both, so no columns and rows describe what they permit.
    """
    found = set(restrictions)
    columns, rows = {each.columns for each in found}, {each.rows for each in found}
    if len(rows) > 1 and len(columns) > 1:
        return None
    named = frozenset[str]().union(*(each or () for each in columns))
    conditions = frozenset[Condition]().union(*rows)
    return Restriction(
        None if None in columns else named,
        frozenset() if frozenset[Condition]() in rows else conditions,
    )


def column_types(fields: Sequence[SchemaField]) -> dict[tuple[str, ...], ColumnType]:
    """Return the types of columns and of the fields of structs, by their paths.

    Args:
        fields: The fields of a version, depth first.
    """
    elements = {field.parent_id: field for field in fields}
    found: dict[tuple[str, ...], ColumnType] = {}
    blobs: set[tuple[str, ...]] = set()
    for group in _columns(fields).values():
        for path, field in _fields(group).items():
            if _is_blob(field) or path[:-1] in blobs:
                blobs.add(path)  # the engine compares what it stores of a blob, such as a position in a file
            found[path] = ColumnType("") if path in blobs else _type_of(field, elements.get(field.id))
    return found


def _type_of(field: SchemaField, inner: SchemaField | None) -> ColumnType:
    """Return the type of a field, of which ``inner`` is the last field inside."""
    base, _, rest = field.logical_type.partition(":")
    if base in ("list", "large_list") and inner is not None:
        return ColumnType("", "", "" if inner.extension_name else inner.logical_type)
    if base == "fixed_size_list" and inner is None:
        return ColumnType("", "", rest.rpartition(":")[0])
    return ColumnType(field.logical_type, field.extension_name)


@attrs.frozen
class Readable:
    """The columns of one version of a table that a restriction permits.

    Attributes:
        columns: Their names, in the order of the schema.
        fields: Their fields, depth first.
        paths: The paths of the columns and of the fields of structs in them.
        condition: The condition of the permitted rows, as the engine takes it; None for all rows.
    """

    columns: tuple[str, ...]
    fields: tuple[SchemaField, ...]
    paths: frozenset[tuple[str, ...]]
    condition: str | None

    @property
    def rows_too(self) -> bool:
        """Whether rows are restricted, too."""
        return self.condition is not None


def readable(
    fields: Sequence[SchemaField],
    latest: Sequence[SchemaField],
    restriction: Restriction,
    table: str,
    same: Set[int] | None = None,
) -> Readable:
    """Return the columns of a version of a table that a restriction permits.

    A column of an allow-list is permitted if its name is, and if the latest version has the same column with the same
    fields: an earlier column of the same name is a different column. A column is not permitted if its name differs
    from the name of another column by case alone, because the engine confuses the two. If rows are restricted, columns
    whose values show other rows are not permitted.

    Args:
        fields: The fields of the version, depth first.
        latest: The fields of the latest version.
        restriction: The restriction.
        table: The table, for messages.
        same: The ids of fields that are the same in both versions; None if the versions are the same.

    Raises:
        AccessDenied: A condition of rows names what the table lacks or is ambiguous, or no column is permitted.
    """
    groups, now = _columns(fields), _columns(latest)
    ids = {each.id for each in latest} if same is None else same
    _require_conditions(groups, now, restriction, table, ids)
    permitted: list[str] = []
    for name, group in groups.items():
        if restriction.columns is not None:
            known = {each.id for each in now.get(name, ())} & ids
            if name not in restriction.columns or not {each.id for each in group} <= known:
                continue
        if restriction.rows and any(map(_shows_other_rows, group)):
            continue
        permitted.append(name)
    taken = [name.casefold() for name in groups]
    shown = [name for name in permitted if taken.count(name.casefold()) == 1]
    if not shown:
        raise AccessDenied(
            f"no column of the table {table} is among those that you may read"
            + ("" if same is None else ", or known to be the same in the version or branch that you ask for")
            + "; ask an administrator for a column"
        )
    return Readable(
        tuple(shown),
        tuple(field for name in shown for field in groups[name]),
        frozenset(path for name in shown for path in _fields(groups[name])),
        _written(restriction, fields),
    )


def _written(restriction: Restriction, fields: Sequence[SchemaField]) -> str | None:
    types = column_types(fields) if restriction.rows else {}
    return " OR ".join(f"({each.written(types)})" for each in restriction.ordered) or None


def _require_conditions(
    groups: Mapping[str, Sequence[SchemaField]],
    now: Mapping[str, Sequence[SchemaField]],
    restriction: Restriction,
    table: str,
    same: Set[int],
) -> None:
    """Refuse a condition that means something else in this version than in the latest one."""
    taken = [name.casefold() for name in groups]
    types = column_types([field for group in groups.values() for field in group])
    for condition in restriction.rows:
        for path in condition.paths:
            top = path[0]
            then, latest = (_fields(columns.get(top, ())).get(path) for columns in (groups, now))
            missing = then is None or latest is None or then.id != latest.id or then.id not in same
            if missing or taken.count(top.casefold()) != 1:
                raise AccessDenied(
                    f"you may read some rows of the table {table}, and its version lacks a column by which the policy "
                    "selects them; ask an administrator to correct the policy. Nothing was read"
                )
        if condition.unfit(types) is not None:
            raise AccessDenied(
                f"you may read some rows of the table {table}, and the policy selects them by a constant of another "
                "type than its column; ask an administrator to correct the policy. Nothing was read"
            )


def _columns(fields: Sequence[SchemaField]) -> dict[str, list[SchemaField]]:
    """Return the fields of each column, depth first, by the name of the column."""
    found: dict[str, list[SchemaField]] = {}
    top_of: dict[int, str] = {}
    for field in fields:
        top = top_of.get(field.parent_id, field.name)
        top_of[field.id] = top
        found.setdefault(top, []).append(field)
    return found


def _fields(group: Sequence[SchemaField]) -> dict[tuple[str, ...], SchemaField]:
    """Return a column and the fields of its structs, by their paths."""
    found: dict[tuple[str, ...], SchemaField] = {}
    structs: dict[int, tuple[str, ...]] = {}
    for place, field in enumerate(group):
        above = structs.get(field.parent_id)
        if above is None and place:
            continue
        path = (*(above or ()), field.name)
        found[path] = field
        if field.logical_type == "struct":
            structs[field.id] = path
    return found


def _shows_other_rows(field: SchemaField) -> bool:
    """Return whether values of a field say something about other rows.

    The descriptions of blobs have positions in a file, and a dictionary inside of another type has the values of all
    rows.
    """
    is_dictionary = field.logical_type.startswith("dict:") and field.parent_id >= 0
    is_list_of_dictionaries = field.logical_type.startswith("fixed_size_list:dict:")
    return _is_blob(field) or is_dictionary or is_list_of_dictionaries


def _is_blob(field: SchemaField) -> bool:
    return field.extension_name.startswith("lance.blob") or any("blob" in name for name in field.metadata)
