"""A V1 directory as a manifest store.

Directory namespace specification, "V1: Directory Listing".
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from lancekeep.domain.catalog import AddColumns, Change, ManifestStoreGuarantees, Put, Remove, SetProperties, page
from lancekeep.domain.errors import ConcurrentModification, Damaged, ObjectNotFound, Refused, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import OWN_PROPERTIES, RESERVED, TABLE, ManifestEntry, encode_properties
from lancekeep.domain.table import (
    DEREGISTERED_MARKER,
    MANIFEST_DIRECTORY,
    MARKER_CONTENT,
    RESERVED_MARKER,
    V1_SUFFIX,
    v1_location,
    v1_table,
)
from lancekeep.ports.manifest_store import Decision, Result
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

PROPERTIES_FILE = ".lancekeep.json"
"""The file in the root that holds properties, as a JSON object of text values."""

_ATTEMPTS = 10

_GUARANTEES = ManifestStoreGuarantees(
    atomic_changes=False,
    ordered=False,
    columns=False,
    levels=0,
    properties=False,
    locations=False,
    lists_directories=True,
    home="a V1 directory",
    remedy="connect with mode='compatible'",
)


class V1Directory:
    """The `CatalogView` of a V1 directory.

    It reads the directory on demand and caches every answer. A table exists if an object lies below ``{name}.lance/``
    and none is the deregistered marker. The target of a symbolic link is not a table. Names that no identifier can have
    are ignored.
    """

    guarantees = _GUARANTEES
    columns: Mapping[str, str] = {}
    unnamed = 0

    def __init__(self, objects: ObjectStore, root_key: str) -> None:
        self._objects = objects
        self._root_key = root_key
        self._root = f"{root_key}/" if root_key else ""
        self._entries: dict[str, ManifestEntry | None] = {}
        # Not a cached_property: before Python 3.12 it locks the whole class during the request.
        self._version: int | None = None
        self._file: tuple[bytes | None] | None = None

    @property
    def version(self) -> int:
        """1 if a V1 directory or the properties file exists, else 0."""
        if self._version is None:
            directories = self._objects.directories(self._root)
            self._version = int(self.remembers or any(name.endswith(V1_SUFFIX) for name in directories))
        return self._version

    @property
    def remembers(self) -> bool:
        """Whether the properties file exists."""
        return self._stored is not None

    @property
    def entered(self) -> Mapping[str, str]:
        return {}

    @property
    def properties(self) -> Mapping[str, str]:
        return {} if self._stored is None else _decoded(self._stored, self._root + PROPERTIES_FILE)

    def find(self, object_id: str) -> ManifestEntry | None:
        if object_id not in self._entries:
            self._entries[object_id] = self._found(object_id)
        return self._entries[object_id]

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        found = self.all_of(object_type, after) if parent.is_root else iter(())
        names = [entry.object_id for entry in islice(found, None if limit is None else limit + 1)]
        return page(names, None, limit)

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        return self.all_of(TABLE) if parent.is_root else iter(())

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        names = self.names(after) if object_type == TABLE else ()
        return (entry for entry in map(self.find, names) if entry is not None)

    def owner_of(self, location: str) -> ManifestEntry | None:
        table = v1_table(location.partition("/")[0])
        return None if table is None else self.find(table.key)

    def names(self, after: str | None = None) -> list[str]:
        """Return candidate names of tables after ``after``, in byte order.

        `find` decides whether each table exists. All directories are listed first, because ``a.lance`` sorts after
        ``a-b.lance``.
        """
        tables = map(v1_table, self._objects.directories(self._root))
        names = sorted(table.key for table in tables if table is not None)
        return names if after is None else names[bisect_right(names, after) :]

    @property
    def _stored(self) -> bytes | None:
        if self._file is None:
            try:
                self._file = (self._objects.get(self._root + PROPERTIES_FILE),)
            except ObjectNotFound:
                self._file = (None,)
        return self._file[0]

    def _found(self, object_id: str) -> ManifestEntry | None:
        """Find a table by the start of one listing: engine files sort after the markers."""
        location = object_id + V1_SUFFIX
        directory = f"{self._root}{location}/"
        if v1_table(location) is None or self._objects.passes_link(directory[:-1], self._root_key):
            return None
        names = set()
        for info in self._objects.list(directory):
            name = info.key.removeprefix(directory)
            if name == DEREGISTERED_MARKER:
                return None
            names.add(name)
            if name > RESERVED_MARKER:
                break
        if not names:
            return None
        metadata = encode_properties({RESERVED: "true"}) if names == {RESERVED_MARKER} else None
        return ManifestEntry(object_id, TABLE, location, metadata, listed=True)


class DirectoryListing:
    """Tables as directories ``{name}.lance`` below ``root_key``, and nothing else.

    The objects in its directory make a table; `apply` removes a marker that hides it. The deregistered marker removes a
    table, and the writer that creates the marker has removed it. Without ``atomic_create`` of the object store, all
    writers that remove a table concurrently succeed.

    A file holds the properties, whose names start with ``lancekeep.``. Exactly one writer creates the file; later
    changes replace it as a whole.

    ``root_key`` is empty or has no trailing slash.
    """

    guarantees = _GUARANTEES
    history = None
    feed = None

    def __init__(self, objects: ObjectStore, root_key: str) -> None:
        self._objects = objects
        self._root_key = root_key
        self._root = f"{root_key}/" if root_key else ""

    def location_of(self, table_id: ObjectId) -> str | None:
        return v1_location(table_id)

    def view(self) -> V1Directory:
        return V1Directory(self._objects, self._root_key)

    def recent(self) -> V1Directory:
        return self.view()

    def apply(self, decide: Decision[Result]) -> tuple[V1Directory, Result]:
        for _ in range(_ATTEMPTS):
            view = self.view()
            changes, result = decide(view)
            if all(self._make(change, view) for change in changes):
                return self.view(), result
        raise ConcurrentModification(
            f"{self._objects.root_uri}{self._root_key}: concurrent writers changed it {_ATTEMPTS} times; try again"
        )

    def optimize(self) -> None:
        raise Unsupported("a V1 directory has no indexes; migrate it to the manifest, then open it with mode='v2'")

    def clean_up(self) -> int:
        """Return 0: a V1 directory keeps no earlier versions."""
        return 0

    def leftovers(self) -> Sequence[ObjectInfo]:
        """Return nothing: a V1 directory has no versions."""
        return ()

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def hide(self, location: str) -> bool:
        """Put the deregistered marker into a V1 directory.

        Returns:
            False if the marker exists already, or if the directory holds no other object.
        """
        marker = f"{self._root}{location}/{DEREGISTERED_MARKER}"
        if self._objects.guarantees.atomic_create:
            if not self._objects.put_if_absent(marker, MARKER_CONTENT):
                return False
        elif self._objects.head(marker) is not None:
            return False
        else:
            self._objects.put(marker, MARKER_CONTENT)
        if any(info.key != marker for info in self._objects.list(f"{self._root}{location}/")):
            return True
        self.show(location)  # The table was dropped concurrently: the marker must not keep its directory.
        self._objects.prune(self._root + location)
        return False

    def show(self, location: str) -> None:
        """Remove the deregistered marker from a V1 directory. Idempotent."""
        self._objects.delete(f"{self._root}{location}/{DEREGISTERED_MARKER}")

    def remember(self, properties: Mapping[str, str], view: V1Directory) -> bool:
        """Store properties in the properties file.

        Returns:
            False if another writer created the file after ``view``.

        Raises:
            Unsupported: a name does not start with ``lancekeep.``.
        """
        strange = [name for name in properties if not name.startswith(OWN_PROPERTIES)]
        if strange:
            raise Unsupported(
                f"a V1 directory has no place for the property {strange[0]!r}; connect with mode='compatible'"
            )
        if view.properties == properties:
            return True
        key, content = self._root + PROPERTIES_FILE, json.dumps(dict(properties), sort_keys=True).encode()
        if not view.remembers and self._objects.guarantees.atomic_create:
            return self._objects.put_if_absent(key, content)
        self._objects.put(key, content)
        return True

    def _make(self, change: Change, view: V1Directory) -> bool:
        """Make one change; False if the directory no longer is as ``view`` shows it."""
        match change:
            case Remove(object_id):
                return self.hide(object_id + V1_SUFFIX)
            case AddColumns():
                raise Unsupported("a V1 directory has no manifest table; connect with mode='compatible'")
            case SetProperties():
                self._require_alone()
                return self.remember(change.merged_into(view.properties), view)
            case Put(entry):
                # The domain gives a V1 directory no other location.
                assert entry.location == entry.object_id + V1_SUFFIX, entry
                if view.find(entry.object_id) is None:
                    self.show(entry.location)
                return self.view().find(entry.object_id) is not None

    def _require_alone(self) -> None:
        """Raise `Refused` if a manifest table exists: it would keep another commit store."""
        if next(self._objects.list(f"{self._root}{MANIFEST_DIRECTORY}/"), None) is not None:
            raise Refused(
                f"{self._objects.root_uri}{self._root_key} has a manifest table, which also records the commit "
                "store: choose or change it in compatibility mode. Then the directory can be opened as V1 with it"
            )


def _decoded(content: bytes, key: str) -> dict[str, str]:
    try:
        properties = json.loads(content)
    except (ValueError, RecursionError):
        properties = None
    if not isinstance(properties, dict) or not all(
        name.startswith(OWN_PROPERTIES) and isinstance(value, str) for name, value in properties.items()
    ):
        raise Damaged(
            f"{key} is not a JSON object of text values under names like {OWN_PROPERTIES}commit_store. It records "
            "which commit store manages the tables: restore it before any writer commits"
        )
    return properties
