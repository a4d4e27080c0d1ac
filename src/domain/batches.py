"""Batches of streaming queries, which a table must hold exactly once."""

from __future__ import annotations

from lancekeep.domain.errors import Refused


def is_repeated(table: str, query: str, last: int, batch: int) -> bool:
    """Return whether a batch is the last one of its query that a table has.

    Spark repeats the last batch only, so an earlier one comes from a checkpoint that is older than the table. Its rows
    can differ from the rows of the batch that the table has, and no later batch has them.

    Args:
        table: The table, for errors.
        query: The id of the query.
        last: The number of the last batch that the table has.
        batch: The number of the batch.

    Raises:
        Refused: The table has a later batch.
    """
    if batch < last:
        raise Refused(
            f"{table} has batch {last} of the query {query}, which comes with batch {batch} again; nothing was "
            "committed. The checkpoint is older than the table, or two drivers run the query. End the other driver, "
            "and start the query with its latest checkpoint. If that is lost, start with a new checkpoint and a new "
            "table."
        )
    return batch == last
