"""The latest version row of a history, in statements of several stores."""

from __future__ import annotations

from lancekeep.domain.version_row import VersionRow
from lancekeep.postgres.database import Row

COLUMNS = "version, path, size, committer"


def latest_of(base_uri: str, *more: str) -> str:
    """Return a join with the latest row of a history, named ``latest``.

    Args:
        base_uri: An expression for the URI of the history.
        more: Further columns.
    """
    return f"""
LEFT JOIN LATERAL (
    SELECT {", ".join([COLUMNS, *more])} FROM {{schema}}.version_row AS row
    WHERE row.base_uri = {base_uri} ORDER BY version DESC LIMIT 1
) AS latest ON true
"""


def row_of(base_uri: str, columns: Row) -> VersionRow | None:
    """Return the row that a statement has found; None if its columns are null."""
    return None if columns[0] is None else VersionRow(base_uri, *columns)
