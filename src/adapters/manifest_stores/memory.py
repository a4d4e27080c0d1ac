"""A catalog's entries in the memory of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock

from lancekeep.domain.catalog import CatalogView, Change


class MemoryManifestStore:
    """For tests and short-lived catalogs."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._view = CatalogView(0, (), {})

    def view(self) -> CatalogView:
        return self._view

    def apply(self, decide: Callable[[CatalogView], Sequence[Change]]) -> CatalogView:
        with self._lock:
            changes = decide(self._view)
            if changes:
                entries = self._view.after(changes).values()
                self._view = CatalogView(self._view.version + 1, entries, self._view.properties)
            return self._view

    def set_properties(self, properties: Mapping[str, str | None]) -> CatalogView:
        with self._lock:
            merged = {**self._view.properties, **properties}
            kept = {key: value for key, value in merged.items() if value is not None}
            self._view = CatalogView(self._view.version + 1, self._view.entries.values(), kept)
            return self._view
