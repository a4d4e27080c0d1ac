"""Select the first rows of an order next to the rows: ``ORDER BY … LIMIT n``.

Each task reads the sorted columns, and takes only its first rows whole. Spark merges the rows of the tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.entrypoints.spark.reading import FragmentReader
from lancekeep.entrypoints.spark.sql.aggregates import column_of, is_ordered
from lancekeep.entrypoints.spark.sql.metadata_columns import POSITION_BITS, ROW_ADDRESS

MOST_ROWS = 10_000
"""The most rows that a task selects: it finds them by a list of addresses."""


@attrs.frozen
class Order:
    """One column of an order."""

    column: str
    descending: bool
    nulls_first: bool

    def __str__(self) -> str:
        return f"{self.column} {'DESC' if self.descending else 'ASC'} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


def orders_of(given: Iterable[Any], columns: pa.Schema) -> tuple[Order, ...] | None:
    """Translate Spark's ``SortOrder[]``.

    Args:
        given: The order.
        columns: The columns of the table, in Spark's types.

    Returns:
        None if only Spark can sort by it.
    """
    orders = []
    for each in given:
        column = column_of(each.expression(), columns)
        if column is None or not is_ordered(columns.field(column).type):
            return None
        orders.append(Order(column, str(each.direction()) == "DESC", str(each.nullOrdering()) == "NULLS FIRST"))
    return tuple(orders)


class Rows(Protocol):
    """Reads fragments."""

    def read(self, runs: Sequence[range], limit: int | None = None) -> Iterator[pa.RecordBatch]: ...

    def restricted(self, condition: str) -> Rows:
        """Return a reader of the rows that satisfy one condition alone."""


@attrs.frozen
class TopRows:
    """Read the first rows of fragments; can be pickled.

    Attributes:
        orders: The order.
        limit: The number of rows.
        keys: Reads the sorted columns of the rows that satisfy the condition of the query.
        rows: Reads whole rows.
    """

    orders: tuple[Order, ...]
    limit: int
    keys: FragmentReader
    rows: Rows

    def read(self, runs: Sequence[range]) -> Iterator[pa.RecordBatch]:
        """Yield the first rows of the fragments, in any order."""
        first: pa.Table | None = None
        for keys, addresses in self.keys.read_with(runs, None, (ROW_ADDRESS,)):
            found = pa.table([*self._ranks(keys), addresses.column(0)], names=[*self._names, ROW_ADDRESS])
            first = self._first(found if first is None else pa.concat_tables([first, found]))
        if first is None:
            return
        chosen = first[ROW_ADDRESS].to_pylist()
        fragments = sorted({address >> POSITION_BITS for address in chosen})
        condition = f"{ROW_ADDRESS} IN ({', '.join(map(str, chosen))})"
        yield from self.rows.restricted(condition).read([range(number, number + 1) for number in fragments])

    @property
    def _names(self) -> list[str]:
        return [f"{part}{at}" for at in range(len(self.orders)) for part in ("rank", "value")]

    def _ranks(self, keys: pa.RecordBatch) -> Iterator[pa.Array]:
        """Yield for each column the rank of NULL, NaN and values, and the values."""
        for order in self.orders:
            values = keys.column(order.column)
            ranks = pc.if_else(values.is_null(), 0 if order.nulls_first else 3, 1)
            if pa.types.is_floating(values.type):
                number, nan = (2, 1) if order.descending else (1, 2)
                is_nan = pc.is_nan(values)
                ranks = pc.coalesce(pc.if_else(is_nan, nan, number), ranks)
                values = pc.if_else(is_nan, None, values)
            yield ranks
            yield values

    def _first(self, rows: pa.Table) -> pa.Table:
        keys = []
        for at, order in enumerate(self.orders):
            keys += [(f"rank{at}", "ascending"), (f"value{at}", "descending" if order.descending else "ascending")]
        return rows.take(pc.sort_indices(rows, sort_keys=keys)[: self.limit])
