"""Clustered tables: compaction sorts the rows that it rewrites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.manifest_entry import CLUSTER_BY

MOST_COLUMNS = 4


def checked_cluster_by(value: str) -> None:
    """Raise `InvalidInput` unless a value of `CLUSTER_BY` names columns."""
    names = _names(value)
    if not all(names) or len(set(names)) < len(names) or len(names) > MOST_COLUMNS:
        raise InvalidInput(
            f"the property {CLUSTER_BY!r} is {value!r}; expected 1 to {MOST_COLUMNS} different columns, separated by "
            "commas"
        )


def cluster_by(columns: Sequence[str]) -> str:
    """Return the value of `CLUSTER_BY` for columns.

    Raises:
        InvalidInput: There are none or too many, or the property cannot hold a name.
    """
    value = ", ".join(columns)
    checked_cluster_by(value)
    if _names(value) != list(columns):
        raise InvalidInput(f"a table cannot be clustered by {columns!r}: a name has a comma, or a space at its end")
    return value


def cluster_columns(properties: Mapping[str, str]) -> list[str]:
    """Return the columns by which the properties of a table cluster it."""
    value = properties.get(CLUSTER_BY)
    return [] if value is None else list(filter(None, _names(value)))


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",")]
