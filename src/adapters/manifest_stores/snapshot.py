"""A snapshot of entries elsewhere, as a manifest table (ADR 127)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.domain.catalog import CatalogView, Change, Put, Remove, SetProperties
from lancekeep.domain.errors import Refused
from lancekeep.domain.home_copy import (
    COPY_PROPERTY,
    MANIFEST_STORE_PROPERTY,
    MOVED_PROPERTY,
    MOVING_PROPERTY,
    SNAPSHOT_TIME_PROPERTY,
    SNAPSHOT_VERSION_PROPERTY,
)
from lancekeep.domain.identifiers import DROPPED, ObjectId
from lancekeep.domain.table import MANIFEST_DIRECTORY
from lancekeep.ports.object_store import ObjectStore


class ManifestSnapshot:
    """Writes the entries of a catalog elsewhere into the manifest table of its root.

    The table names the manifest store as the home of the catalog, so Lancekeep refuses every operation in it, also of
    processes that opened the table when it was the home.

    Args:
        url: The canonical URL of the manifest store that has the entries.
        objects: The object store of the tables.
        root_key: The key of the catalog's root.
    """

    def __init__(self, url: str, objects: ObjectStore, root_key: str) -> None:
        self._url, self._root = url, objects.root_uri + root_key
        self._table = LanceManifestStore(objects, f"{root_key}/{MANIFEST_DIRECTORY}".lstrip("/"))

    def write(self, view: Callable[[], CatalogView], at: Callable[[], str]) -> int:
        """Make the manifest table show the entries of the catalog; return their number.

        Args:
            view: Returns the view of the catalog.
            at: Returns the time, for readers.

        Raises:
            Refused: The manifest table is neither a snapshot nor a former home of the catalog.
        """

        def decide(found: CatalogView) -> tuple[Sequence[Change], int]:
            # Read after the table, so that the table never shows an older version than before.
            source = view()
            if not source.version:
                return [], 0
            self._require_ours(found)
            # Values of columns outside of the specification stay where they are.
            entries = {
                entry.object_id: attrs.evolve(entry, extension={})
                for entry in source.descendants(ObjectId())
                if ObjectId.from_key(entry.object_id).names[0] != DROPPED
            }
            known = {entry.object_id: entry for entry in found.descendants(ObjectId())}
            properties: dict[str, str | None] = {
                **dict.fromkeys(found.properties.keys() - {MOVING_PROPERTY}),
                **source.properties,
                MANIFEST_STORE_PROPERTY: self._url,
                MOVED_PROPERTY: self._url,
                SNAPSHOT_VERSION_PROPERTY: str(source.version),
                SNAPSHOT_TIME_PROPERTY: at(),
            }
            changes: list[Change] = [Remove(key) for key in known if key not in entries]
            changes += [Put(entry) for key, entry in entries.items() if known.get(key) != entry]
            return [*changes, SetProperties(properties)], len(entries)

        return self._table.apply(decide)[1]

    def _require_ours(self, found: CatalogView) -> None:
        """Raise `Refused` unless a manifest table is a snapshot or a home that the catalog has left."""
        is_ours = SNAPSHOT_VERSION_PROPERTY in found.properties or found.properties.get(MOVED_PROPERTY) == self._url
        if found.version and (not is_ours or COPY_PROPERTY in found.properties):
            raise Refused(
                f"{self._root} has a manifest table that is no snapshot of {self._url}: another program made it, or "
                "the catalog is being copied there. Nothing was changed. Register its tables in the catalog if you "
                f"need them, then move the directory {MANIFEST_DIRECTORY} away"
            )
