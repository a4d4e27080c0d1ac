"""What subtrees of the catalog hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Final

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.authorization import Quota
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.dropped import dropped_tables
from lancekeep.domain.errors import Damaged, ObjectNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.quotas import Held, tables_in
from lancekeep.domain.table import Table

_TOGETHER: Final = 4
"""How many directories are listed at a time. They have threads of their own, because a long list holds up others."""


class Usage:
    """Measures what subtrees hold.

    A table has the bytes of all objects in its directory: every version and branch, indexes, and files that no version
    needs. A dropped table that is kept has them, too, in the subtree in which it was. Files of a table that are
    elsewhere, such as those that a clone reads, are bytes of the other place.
    """

    def __init__(self, ledger: Ledger, places: Places) -> None:
        self._ledger = ledger
        self._places = places

    def measure(self, quotas: Collection[Quota], proceed: Callable[[], bool] = lambda: True) -> dict[ObjectId, Held]:
        """Return what the subtrees of quotas hold.

        Each directory is listed once, if a quota limits bytes of a subtree that contains it: one request for about
        1,000 objects. A directory that cannot be read counts as empty; `Fsck` reports it.

        Args:
            quotas: The quotas.
            proceed: Returns whether to go on. Otherwise the figures are incomplete.
        """
        view = self._ledger.view()
        subtrees = {quota.subtree for quota in quotas}
        sized = {quota.subtree for quota in quotas if quota.bytes is not None}
        within = {subtree: [*_directories(view, subtree)] for subtree in sized}
        tables = {table.location: table for each in within.values() for table in each}
        with ThreadPoolExecutor(_TOGETHER, "lancekeep-usage") as pool:
            sizes = dict(zip(tables, pool.map(partial(self._bytes, proceed), tables.values()), strict=True))
        return {
            subtree: Held(
                sum(1 for _ in tables_in(view, subtree)),
                sum(sizes[location] for location in {table.location for table in within[subtree]})
                if subtree in within
                else None,
            )
            for subtree in subtrees
        }

    def _bytes(self, proceed: Callable[[], bool], table: Table) -> int:
        objects, retry = self._places.objects, self._ledger.commits.retry
        with suppress(Damaged, ObjectNotFound):
            prefix = f"{self._places.dataset_root(table).key}/"
            return retry.call(lambda: sum(info.size for info in takewhile(lambda _: proceed(), objects.list(prefix))))
        return 0


def _directories(view: CatalogView, subtree: ObjectId) -> Iterator[Table]:
    """Yield the tables of a subtree, and its dropped tables that are kept."""
    for entry in tables_in(view, subtree):
        with suppress(Damaged):
            yield Table.from_entry(entry)
    for dropped in dropped_tables(view, subtree):
        yield dropped.table
