"""What the new home of a catalog cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

import attrs

from lancekeep.application.concurrency import all_alongside
from lancekeep.application.entries.ledger import COMMIT_STORE_PROPERTY, Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.upkeep.copy_report import Obstacle
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.errors import AlreadyExists, Damaged, InvalidInput, Unsupported
from lancekeep.domain.home_copy import Copying, all_entries, duplicates, is_taken, obstacle
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import OWN_PROPERTIES, TABLE, ManifestEntry
from lancekeep.domain.table import Table
from lancekeep.ports.manifest_store import ManifestStore

T = TypeVar("T")

_BATCH = 1000
"""Directories that are checked at once."""
_IN_STORAGE = "conditional-put://"
"""The commit store without rows: the versions are the final manifests in the storage."""


@attrs.frozen(eq=False)
class Home:
    """A manifest store that is, or becomes, the home of a catalog.

    Attributes:
        name: The URL of the store, without secrets, or the URI of the root if its directory holds the entries.
        store: The store, without a check who has the root.
        occupied: Returns whether a store with this view holds a catalog, an unfinished copy or remains.
        take_root: Records the home in the root, in place of the former one. Takes the entries of the home. Idempotent.
        show_tables: Lets readers that list directories see the same tables, if the home is a directory. Takes the
            entries of the home, and the directories that may differ; None for all.
        require_possible: Raises if the store cannot hold an entry that no guarantee forbids.
        may_remove: Returns whether the entry of a table is of this catalog. Only called if other software has entries.
        fault_of: Returns why the storage does not hold a table as the home shows it; None if it does.
        leave: Takes tables out of a server, given the tables of the source, and whether only this process has entered
            any. Idempotent. Raises if the storage lacks a version that the server has.
        served: The home is a server. It cannot refuse operations, and reads versions from the
            storage only. So its tables are entered after the fence of the source.
    """

    name: str
    store: ManifestStore
    occupied: Callable[[CatalogView], bool]
    take_root: Callable[[CatalogView], None]
    show_tables: Callable[[CatalogView, Sequence[str] | None], None] = lambda view, locations: None
    require_possible: Callable[[ManifestEntry], None] = lambda _: None
    may_remove: Callable[[ManifestEntry], bool] = lambda _: True
    fault_of: Callable[[ManifestEntry], str | None] = lambda _: None
    leave: Callable[[Sequence[ManifestEntry], bool], None] = lambda tables, alone: None
    served: bool = False


class Obstacles:
    """What one home of a catalog cannot hold of another.

    Args:
        ledger: The catalog at its source.
        places: The directories of the catalog.
        source: The home that the catalog leaves.
        target: The home that it gets.
    """

    def __init__(self, ledger: Ledger, places: Places, source: Home, target: Home) -> None:
        self._ledger = ledger
        self._places = places
        self._source = source
        self._target = target
        self._retry = ledger.commits.retry

    def of(self, view: CatalogView) -> Iterator[Obstacle]:
        """Iterate over the obstacles to copying a view of the source."""
        target = self._target.store
        if not target.guarantees.properties:
            for name in sorted(view.properties):
                if not name.startswith(OWN_PROPERTIES):
                    yield Obstacle("the root", f"{target.guarantees.home} cannot store the property {name!r}")
        if self._target.served:
            yield from self._unserved(view.properties)
        if view.unnamed:
            yield Obstacle("the root", f"{view.unnamed} rows have no object id or no type; remove them with pylance")
        for entry in duplicates(all_entries(view)):
            yield Obstacle(name_of(entry), "two entries have this name; remove one with pylance")
        for entry in all_entries(view):
            reason = self.reason(entry)
            if reason is not None:
                yield Obstacle(name_of(entry), reason)
        if target.guarantees.shared and Copying.of(self._retry.call(self._target.store.view).properties) is None:
            yield from self._taken(view)
        located = (entry for entry in all_entries(view) if entry.object_type == TABLE and entry.defect is None)
        for batch in batches(located, _BATCH):
            faults = list(zip(batch, all_alongside(self._fault_of, batch), strict=True))
            later = self._retry.call(self._source.store.view) if any(fault is not None for _, fault in faults) else view
            for entry, fault in faults:
                if fault is not None and later.find(entry.object_id) == entry:  # no writer has dropped the table since
                    yield Obstacle(name_of(entry), fault)

    def _unserved(self, properties: Mapping[str, str]) -> Iterator[Obstacle]:
        """Yield what a server does not know of the root.

        A server that cannot be read raises now, not in the middle.
        """
        next(self._retry.call(self._target.store.view).descendants(ObjectId()), None)
        for name in sorted(properties):
            if not name.startswith(OWN_PROPERTIES):
                yield Obstacle("the root", f"the REST protocol cannot set the property {name!r}; remove it")
        rows = properties.get(COMMIT_STORE_PROPERTY)
        if rows not in (None, _IN_STORAGE):
            yield Obstacle(
                "the root",
                f"its versions are in the commit store {rows}, which a server does not read. Call change_commit_store "
                f"with {_IN_STORAGE!r} first",
            )

    def reason(self, entry: ManifestEntry) -> str | None:
        """Return why the target cannot hold an entry; None if it can."""
        store = self._target.store
        reason = obstacle(entry, store.guarantees, store.location_of)
        if reason is None:
            try:
                self._retry.call(partial(self._target.require_possible, entry))
            except (AlreadyExists, InvalidInput, Unsupported) as error:
                return str(error)
        return reason

    def _taken(self, view: CatalogView) -> Iterator[Obstacle]:
        """Yield the entries whose names other software has in the target.

        A home that the catalog had before has its own entries.
        """
        target = self._retry.call(self._target.store.view)
        if target.version:
            return
        for entry in all_entries(view):
            present = target.find(entry.object_id)
            if present is not None and is_taken(entry, present):
                reason = f"{self._target.name} has an object of this name with another directory or properties"
                yield Obstacle(name_of(entry), reason)

    def _fault_of(self, entry: ManifestEntry) -> str | None:
        """Return why the directory of a table is not usable; None if it is."""
        try:
            table = Table.from_entry(entry)
            root = self._places.dataset_root(table)
            fault = self._retry.call(partial(self._source.fault_of, entry))
            if fault is not None:
                return fault
            if self._retry.call(partial(self._places.is_occupied, table)) or self._ledger.may_be_empty(root):
                return None
        except Damaged as error:
            return str(error)
        return f"its directory {table.location!r} holds nothing; drop the table, or restore its directory"


def name_of(entry: ManifestEntry) -> str:
    """Return the name of an entry for people."""
    return str(ObjectId.from_key(entry.object_id))


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Iterate over lists of at most a number of items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
