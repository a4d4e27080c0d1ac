"""A manifest store in the memory of this process."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock

from lancekeep.domain.catalog import CatalogView, Entries, ManifestStoreGuarantees
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.table import v1_location
from lancekeep.ports.manifest_store import Decision, Result
from lancekeep.ports.object_store import ObjectInfo

ALL = ManifestStoreGuarantees()


class MemoryManifestStore:
    """A `ManifestStore` for tests."""

    history = None
    feed = None

    def __init__(self, guarantees: ManifestStoreGuarantees = ALL) -> None:
        self.guarantees = guarantees
        self._lock = RLock()
        self._entries = Entries(0, (), {}, guarantees)

    def location_of(self, table_id: ObjectId) -> str | None:
        return v1_location(table_id) if self.guarantees.lists_directories else None

    def view(self) -> CatalogView:
        return self._entries

    def recent(self) -> CatalogView:
        return self._entries

    def apply(self, decide: Decision[Result]) -> tuple[CatalogView, Result]:
        with self._lock:
            changes, result = decide(self._entries)
            if changes:
                self._entries = self._entries.after(changes)
            return self._entries, result

    def optimize(self) -> None:
        """Do nothing: there are no indexes."""

    def clean_up(self) -> int:
        """Return 0: earlier versions are not kept."""
        return 0

    def leftovers(self) -> Sequence[ObjectInfo]:
        """Return nothing: there are no files."""
        return ()

    def close(self) -> None:
        """Do nothing: no resource is held."""
