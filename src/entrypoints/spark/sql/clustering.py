"""Check the columns by which a table is to be clustered."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lancekeep.adapters.lance.sorted_rewrite import is_sortable, refused_columns
from lancekeep.domain.clustering import cluster_columns
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.stable_row_ids import wants_stable_row_ids

ALTERNATIVE = "CREATE INDEX finds rows; INSERT OVERWRITE t SELECT * FROM t ORDER BY … sorts the rows once."


def require_clusterable(schema: pa.Schema, properties: Mapping[str, str], *, stable_row_ids: bool = False) -> None:
    """Check that compaction can sort a table as its properties say.

    Args:
        schema: The stored schema.
        properties: The properties.
        stable_row_ids: Whether the table has stable row ids, or will have them by default.

    Raises:
        InvalidInput: A column does not exist, or has no order.
        Unsupported: Compaction does not sort such a table.
    """
    columns = cluster_columns(properties)
    for name in columns:
        if name not in schema.names:
            raise InvalidInput(f"CLUSTER BY: there is no column {name!r}; the columns are {', '.join(schema.names)}")
        if not is_sortable(schema.field(name)):
            raise InvalidInput(
                f"CLUSTER BY: rows cannot be sorted by {name}, which is {schema.field(name).type}; name a number, a "
                "text, a date or a timestamp"
            )
    if columns and (stable_row_ids or wants_stable_row_ids(properties)):
        raise Unsupported(
            "CLUSTER BY is not supported for a table with stable row ids: the manifest would name the row id of each "
            f"row that a compaction moves; nothing was changed. {ALTERNATIVE}"
        )
    blobs = refused_columns(schema)
    if columns and blobs:
        raise Unsupported(
            f"CLUSTER BY is not supported for a table with blobs, as in {blobs[0]}, which compaction does not read; "
            f"nothing was changed. {ALTERNATIVE}"
        )
