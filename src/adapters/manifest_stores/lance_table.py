"""A catalog's entries in the ``__manifest`` Lance table (directory namespace V2, "Manifest Table Schema").

Native ``DirectoryNamespace`` processes read and write the same table. Every mutation here is an Overwrite that names
the fragments to keep and is never rebased: a compare-and-set on the version it was decided on. (An Append would be
rebased silently, and a merge insert loses its key filter where the specified BTREE exists: both write keys twice.)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any, Final, Literal

import lance
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.fragment import write_fragments

from lancekeep.domain.catalog import Change, Entries, Put, SetProperties
from lancekeep.domain.errors import ConcurrentModification, Damaged, LancekeepError, Refused, StoreUnavailable
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.naming import NamingScheme
from lancekeep.ports.manifest_store import Decision
from lancekeep.ports.object_store import ObjectStore

PRIMARY_KEY = "lance-schema:unenforced-primary-key:position"
READER_FLAGS = "lance.namespace.manifest.reader_feature_flags"
WRITER_FLAGS = "lance.namespace.manifest.writer_feature_flags"
SCHEMA = pa.schema(
    [
        pa.field("object_id", pa.string(), nullable=False, metadata={PRIMARY_KEY: "0"}),
        pa.field("object_type", pa.string(), nullable=False),
        pa.field("location", pa.string()),
        pa.field("metadata", pa.string()),
        pa.field("base_objects", pa.list_(pa.field("object_id", pa.string()))),
    ]
)
STORAGE_VERSION: Final[Literal["2.2"]] = "2.2"
_OWN_COLUMNS = frozenset({"object_id", "object_type", "location", "metadata"})
_ATTEMPTS = 50
_MOST_FRAGMENTS = 32


class LanceManifestStore:
    """``uri``: where the native engine opens the table; ``versions_key``: its ``_versions/`` in ``objects``."""

    def __init__(self, uri: str, storage_options: Mapping[str, str], objects: ObjectStore, versions_key: str) -> None:
        self._uri = uri
        self._storage_options = dict(storage_options)
        self._objects = objects
        self._versions_key = versions_key
        self._lock = RLock()
        self._view = Entries(0, (), {})
        self._next_key = ""
        self._dataset: Any = None

    def view(self) -> Entries:
        with self._lock:
            if self._is_stale():
                self._load()
            return self._view

    def close(self) -> None:
        """Nothing is held."""

    def recent(self) -> Entries:
        return self._view

    def apply(self, decide: Decision) -> Entries:
        for attempt in range(_ATTEMPTS):
            with self._lock:
                view = self.view()
                changes = decide(view)
                if not changes:
                    return view
                for change in changes:
                    if isinstance(change, SetProperties):
                        self.set_properties(change.properties)
                        view = self._view
                changes = [change for change in changes if not isinstance(change, SetProperties)]
                if not changes:
                    return view
                try:
                    self._commit(view, changes)
                    self._load()
                    return self._view
                except CommitConflictError:
                    self._load()
            time.sleep(random.random() * min(0.2, 0.005 * 2**attempt))
        raise ConcurrentModification(f"{self._uri}: other processes changed the catalog {_ATTEMPTS} times; try again")

    def set_properties(self, properties: Mapping[str, str | None]) -> Entries:
        with self._lock:
            if self.view().version == 0:
                with suppress(CommitConflictError):  # another process has just created it, which is all we need
                    self._create([])
                self._load()
            self._require_flags(WRITER_FLAGS)
            self._native(lambda: self._dataset.update_metadata(dict(properties)))
            self._load()
            return self._view

    def _is_stale(self) -> bool:
        """One look for the next version, which every writer publishes under a name that is known beforehand."""
        if self._view.version:
            return self._objects.head(self._next_key) is not None
        return next(iter(self._objects.list(self._versions_key)), None) is not None

    def _load(self) -> None:
        dataset = self._native(lambda: lance.dataset(self._uri, storage_options=self._storage_options or None))
        if dataset.version == self._view.version:
            return
        self._dataset = dataset
        self._require_flags(READER_FLAGS)
        missing = _OWN_COLUMNS - set(dataset.schema.names)
        if missing:
            raise Damaged(f"{self._uri} is not a manifest table: it has no column {', '.join(sorted(missing))}")
        rows = self._native(lambda: dataset.to_table().to_pylist())
        self._view = Entries(dataset.version, map(_entry, rows), dict(dataset.metadata))
        self._next_key = self._versions_key + NamingScheme.V2.final_name(dataset.version + 1)

    def _commit(self, view: Entries, changes: Sequence[Change]) -> None:
        """Publish the catalog after ``changes`` as the next version; CommitConflictError where that is taken."""
        if view.version == 0:
            self._create(view.after(changes)._entries.values())
            return
        self._require_flags(WRITER_FLAGS)
        kept = [fragment.metadata for fragment in self._dataset.get_fragments()]
        added = [
            change.entry for change in changes if isinstance(change, Put) and view.find(change.entry.object_id) is None
        ]
        grows = len(added) == len(changes) and len(kept) < _MOST_FRAGMENTS
        if grows and all(fragment.deletion_file is None for fragment in kept):
            fragments = kept + self._write(added, self._dataset.schema)
        else:
            fragments = self._write(view.after(changes)._entries.values(), self._dataset.schema)
        self._native(lambda: self._publish(self._dataset.schema, fragments, view.version))

    def _create(self, entries: Iterable[ManifestEntry]) -> None:
        """Version 1, by one process only. (pylance's own creation rebases, so that several can each think they did.)"""
        fragments = self._write(entries, SCHEMA)
        try:
            self._publish(SCHEMA, fragments, 0)
        except OSError as error:
            if self._is_stale():
                raise CommitConflictError(str(error)) from error
            raise StoreUnavailable(f"{self._uri}: the catalog could not be created: {error}") from error

    def _publish(self, schema: pa.Schema, fragments: list[Any], read_version: int) -> None:
        lance.LanceDataset.commit(
            self._uri,
            lance.LanceOperation.Overwrite(schema, fragments),
            read_version=read_version,
            max_retries=0,
            enable_v2_manifest_paths=True,
            storage_options=self._storage_options or None,
        )

    def _write(self, entries: Iterable[ManifestEntry], schema: pa.Schema) -> list[Any]:
        table = _table(entries, schema)
        if not table.num_rows:
            return []
        fragments: list[Any] = self._native(
            lambda: write_fragments(
                table,
                self._uri,
                schema=schema,
                mode="overwrite",
                data_storage_version=STORAGE_VERSION,
                storage_options=self._storage_options or None,
            )
        )
        return fragments

    def _require_flags(self, name: str) -> None:
        """A bit that is not known means that something is required which is not done here."""
        text = self._dataset.metadata.get(name, "0")
        if not text.isdigit() or int(text):
            raise Refused(
                f"{self._uri} requires features that this version of Lancekeep does not know ({name} = {text}); "
                "use a newer version"
            )

    def _native(self, act: Callable[[], Any]) -> Any:
        """The one boundary at which errors of the native engine become errors of ours."""
        try:
            return act()
        except (CommitConflictError, LancekeepError):
            raise
        except OSError as error:
            raise StoreUnavailable(f"{self._uri}: {error}") from error
        except ValueError as error:
            raise Damaged(f"{self._uri} cannot be read as a manifest table: {error}") from error


def _entry(row: dict[str, Any]) -> ManifestEntry:
    extension = {name: value for name, value in row.items() if name not in _OWN_COLUMNS}
    return ManifestEntry(row["object_id"], row["object_type"], row["location"], row["metadata"], extension)


def _table(entries: Iterable[ManifestEntry], schema: pa.Schema) -> pa.Table:
    rows = [
        {
            **entry.extension,
            "object_id": entry.object_id,
            "object_type": entry.object_type,
            "location": entry.location,
            "metadata": entry.metadata,
        }
        for entry in entries
    ]
    return pa.Table.from_pylist(rows, schema=schema)
