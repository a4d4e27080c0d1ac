"""A snapshot of entries elsewhere, as a manifest table (ADR 127)."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.domain.catalog import CatalogView, Change, Put, Remove, SetProperties
from lancekeep.domain.home_copy import MANIFEST_STORE_PROPERTY, SNAPSHOT_TIME_PROPERTY, SNAPSHOT_VERSION_PROPERTY
from lancekeep.domain.identifiers import DROPPED, ObjectId
from lancekeep.domain.table import MANIFEST_DIRECTORY
from lancekeep.ports.object_store import ObjectStore


class ManifestSnapshot:
    """Writes the entries of a catalog elsewhere into the manifest table of its root.

    The table names the manifest store of the catalog, so Lancekeep refuses to open it as a catalog.

    Args:
        url: The canonical URL of the manifest store that has the entries.
        objects: The object store of the tables.
        root_key: The key of the catalog's root.
    """

    def __init__(self, url: str, objects: ObjectStore, root_key: str) -> None:
        self._url = url
        self._table = LanceManifestStore(objects, f"{root_key}/{MANIFEST_DIRECTORY}".lstrip("/"))

    def write(self, source: CatalogView, at: str) -> int:
        """Make the manifest table show the entries of a view; return their number.

        Args:
            source: The view.
            at: The time, for readers.
        """

        def decide(found: CatalogView) -> tuple[Sequence[Change], int]:
            # Values of columns outside of the specification stay where they are.
            entries = {
                entry.object_id: attrs.evolve(entry, extension={})
                for entry in source.descendants(ObjectId())
                if ObjectId.from_key(entry.object_id).names[0] != DROPPED
            }
            known = {entry.object_id: entry for entry in found.descendants(ObjectId())}
            properties: dict[str, str | None] = {
                **dict.fromkeys(found.properties),
                **source.properties,
                MANIFEST_STORE_PROPERTY: self._url,
                SNAPSHOT_VERSION_PROPERTY: str(source.version),
                SNAPSHOT_TIME_PROPERTY: at,
            }
            changes: list[Change] = [Remove(key) for key in known if key not in entries]
            changes += [Put(entry) for key, entry in entries.items() if known.get(key) != entry]
            return [*changes, SetProperties(properties)], len(entries)

        return self._table.apply(decide)[1]
