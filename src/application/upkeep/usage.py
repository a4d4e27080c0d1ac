"""The bytes of subtrees of the catalog."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial

from lancekeep.application.concurrency import at_once
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.dataset_files import DATA
from lancekeep.domain.errors import CommitStoreMismatch, Damaged, ObjectNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import TABLE
from lancekeep.domain.table import Table
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.file_references import own_bytes


class Usage:
    """Measures the bytes of subtrees.

    A table has the bytes of the data files and indexes that its latest version names in its own directory. Its
    branches, older versions and dropped tables do not count. A version is read once: later measurements only look up
    which version of a table is the latest.
    """

    def __init__(self, ledger: Ledger, places: Places) -> None:
        self._ledger = ledger
        self._places = places
        self._known: dict[str, tuple[object, int]] = {}

    def measure(self, subtrees: Collection[ObjectId]) -> dict[ObjectId, int]:
        """Return the bytes of subtrees. One thread at a time may call this.

        A table that cannot be read counts as empty; `Fsck` reports it.
        """
        view = self._ledger.view()
        tables = {table.location: table for subtree in subtrees for table in _tables(view, subtree)}
        sizes = dict(zip(tables, at_once(self._bytes, [*tables.values()]) if tables else (), strict=True))
        self._known = {location: each for location, each in self._known.items() if location in sizes}
        return {
            subtree: sum(sizes[table.location] for table in tables.values() if _is_below(table.id, subtree))
            for subtree in subtrees
        }

    def _bytes(self, table: Table) -> int:
        with suppress(CommitStoreMismatch, Damaged, ObjectNotFound):  # a clean-up may have removed the version since
            latest = self._ledger.commits.latest(self._places.dataset_root(table))
            if latest is None:
                return 0
            version = (latest.version, latest.path, latest.size)
            known, size = self._known.get(table.location, (None, 0))
            if known != version:
                size = self._read(table, latest)
                self._known[table.location] = version, size
            return size
        return 0

    def _read(self, table: Table, latest: VersionRow) -> int:
        objects, retry = self._places.objects, self._ledger.commits.retry
        own = own_bytes(retry.call(partial(objects.get, latest.path)), latest.path)
        if not own.unsized:
            return own.size
        above = f"{self._places.key(table)}/"
        infos = retry.call(lambda: list(objects.list(f"{above}{DATA}/")))
        return own.size + sum(info.size for info in infos if info.key.removeprefix(above) in own.unsized)


def _tables(view: CatalogView, subtree: ObjectId) -> Iterator[Table]:
    """Yield the tables of a subtree, which may be one table."""
    itself = None if subtree.is_root else view.find(subtree.key)
    for entry in (*(() if itself is None else (itself,)), *view.descendants(subtree)):
        if entry.object_type == TABLE:
            with suppress(Damaged):
                yield Table.from_entry(entry)


def _is_below(table: ObjectId, subtree: ObjectId) -> bool:
    return table.names[: len(subtree.names)] == subtree.names
