"""A server of the namespace specification as a home of entries (ADR 166).

Copies of a catalog read and fill it.

A server has no compare-and-set and no properties of the root namespace. So a copy keeps its record in the storage of
the tables: numbered objects, each created once, below ``.lancekeep-servers`` in the root.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from urllib.parse import unquote

import attrs

from lancekeep.adapters.rest.tables import RestNamespaces, RestTables, texts_of
from lancekeep.application.concurrency import all_alongside
from lancekeep.domain.catalog import CatalogView, Change, ManifestStoreGuarantees, Put, Remove, SetProperties, page
from lancekeep.domain.dropped import is_record
from lancekeep.domain.errors import (
    AlreadyExists,
    ConcurrentModification,
    Damaged,
    NotFound,
    Refused,
    Unsupported,
)
from lancekeep.domain.home_copy import NOT_HOME
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import VERSIONS
from lancekeep.domain.manifest_entry import FORMER_VIEW_PROPERTY, NAMESPACE, OWN_PROPERTIES, TABLE, ManifestEntry
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import SERVERS_DIRECTORY
from lancekeep.ports.catalog_server import CatalogServer
from lancekeep.ports.manifest_store import Decision, Result
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

_ATTEMPTS = 10


@attrs.frozen
class _Record:
    """What the storage says about copies from and to a server.

    Attributes:
        number: The number of the object; 0 if there is none.
        properties: The properties of the root namespace, as another home would hold them.
        was_home: Whether the catalog has lived on the server, so that its tables below the root are the catalog's.
    """

    number: int = 0
    properties: Mapping[str, str] = attrs.field(factory=dict)
    was_home: bool = False

    def text(self) -> bytes:
        return json.dumps({"properties": dict(self.properties), "was_home": self.was_home}, sort_keys=True).encode()

    @staticmethod
    def parse(number: int, content: bytes, key: str) -> _Record:
        with suppress(ValueError, RecursionError):
            match json.loads(content):
                case {"properties": dict(properties), "was_home": bool(was_home)}:
                    return _Record(number, texts_of(properties), was_home)
        raise Damaged(f"{key} is not the record of a copy from or to a server; restore it, or remove its directory")


class ServedView:
    """The `CatalogView` of a server.

    It lists and describes all entries when the first one is read.
    """

    columns: Mapping[str, str] = {}
    unnamed = 0

    def __init__(
        self, guarantees: ManifestStoreGuarantees, record: _Record, load: Callable[[], Mapping[str, ManifestEntry]]
    ) -> None:
        self.guarantees = guarantees
        self.record = record
        self._load = load
        self._entries: Mapping[str, ManifestEntry] | None = None

    @property
    def version(self) -> int:
        return self.record.number

    @property
    def properties(self) -> Mapping[str, str]:
        return self.record.properties

    @property
    def entered(self) -> Mapping[str, str]:
        return self.record.properties

    @property
    def entries(self) -> Mapping[str, ManifestEntry]:
        """All entries by their object ids, in byte order."""
        if self._entries is None:
            self._entries = self._load()
        return self._entries

    def find(self, object_id: str) -> ManifestEntry | None:
        return self.entries.get(object_id)

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        found = (each for each in self.all_of(object_type) if ObjectId.from_key(each.object_id).parent == parent)
        return page([ObjectId.from_key(each.object_id).name for each in found], after, limit)

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        names = parent.names
        return (
            entry
            for entry in self.entries.values()
            if (found := ObjectId.from_key(entry.object_id).names)[: len(names)] == names and len(found) > len(names)
        )

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        return (
            entry
            for entry in self.entries.values()
            if entry.object_type == object_type and (after is None or entry.object_id > after)
        )

    def owner_of(self, location: str) -> ManifestEntry | None:
        return next((entry for entry in self.entries.values() if _overlap(entry.location, location)), None)


class ServedHome:
    """The entries of a server.

    The location of a table outside of the root is its URI.

    Changes are operations of the server, one after the other; each can be repeated. Only the record is changed by
    compare-and-set.

    Args:
        server: The server.
        objects: The object store of the tables.
        root_key: The key of the root.
        registered_as: Returns how the server names a location below the root.
    """

    history = None
    feed = None

    def __init__(
        self, server: CatalogServer, objects: ObjectStore, root_key: str, registered_as: Callable[[str], str]
    ) -> None:
        self.url = server.uri
        self.guarantees = ManifestStoreGuarantees(
            atomic_changes=False,
            ordered=False,
            shared=True,
            columns=False,
            home=f"the server {server.uri}",
        )
        self._server = server
        self._namespaces, self._tables = RestNamespaces(server), RestTables(server)
        self._objects, self._root_key, self._registered_as = objects, root_key, registered_as
        digest = sha256(server.uri.encode()).hexdigest()[:16]
        self._records = f"{root_key}/{SERVERS_DIRECTORY}/{digest}/".lstrip("/")
        self._seen: ServedView | None = None

    # -- the manifest store -------------------------------------------------------------------------------------

    def location_of(self, table_id: ObjectId) -> str | None:
        return None

    def view(self) -> ServedView:
        return ServedView(self.guarantees, self._record(), self._load)

    def recent(self) -> CatalogView:
        return self.view()

    def apply(self, decide: Decision[Result]) -> tuple[ServedView, Result]:
        for _ in range(_ATTEMPTS):
            view = self.view()
            changes, result = decide(view)
            if self._remember(view.record, changes):
                for change in changes:
                    self._make(change)
                return self.view(), result
        raise ConcurrentModification(
            f"{self._objects.root_uri}{self._records}: other processes changed the record of the copy {_ATTEMPTS} "
            "times; try again"
        )

    def optimize(self) -> None:
        raise Unsupported(f"{self.url}: a server has no indexes of its entries")

    def clean_up(self) -> int:
        """Return 0: a server keeps no earlier states."""
        return 0

    def leftovers(self) -> Sequence[ObjectInfo]:
        """Return nothing: a server has no files."""
        return ()

    def close(self) -> None:
        self._server.close()

    # -- a store outside of the root ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Do nothing: the server exists."""

    def abandon(self) -> None:
        """Do nothing: nothing was created."""

    def require_possible(self, entry: ManifestEntry) -> None:
        if entry.object_type not in (NAMESPACE, TABLE):
            what = "dropped tables: bring the table back, or purge it" if is_record(entry) else "such entries"
            raise Unsupported(f"the REST protocol has no {what}")
        own = [name for name in entry.properties if name.startswith(OWN_PROPERTIES) or name == FORMER_VIEW_PROPERTY]
        if own:
            raise Unsupported(f"the property {own[0]!r} has no meaning on a server; remove it, or the view, first")
        if self._seen is None:
            self._seen = self.view()
        if entry.object_type == NAMESPACE:
            present = self._seen.find(entry.object_id)
            if present is not None and present.properties != entry.properties:
                raise AlreadyExists("the server has it with other properties, which the REST protocol cannot change")
            return
        if not entry.location or self._latest_in_storage(entry.location) is None:
            raise Unsupported("it is declared and has no version; write it, or drop it")
        if not self._seen.record.was_home:
            owner = self._seen.owner_of(entry.location)
            if owner is not None:
                raise AlreadyExists(
                    f"the server lists {ObjectId.from_key(owner.object_id)} in its directory, so a catalog over the "
                    "same files is served there. Deregister that table first"
                )

    def may_remove(self, entry: ManifestEntry) -> bool:
        return self._record().was_home and self._is_below(entry)

    def fault_of(self, entry: ManifestEntry) -> str | None:
        """Return why the storage does not hold a table as the server shows it.

        None if it does.
        """
        if not entry.location or not self._is_below(entry):
            return f"its directory {entry.location!r} is outside of the root"
        served, stored = (
            self._latest_on_server(ObjectId.from_key(entry.object_id)),
            self._latest_in_storage(entry.location),
        )
        if served not in (None, stored):
            return (
                f"the server has version {served}, and the latest final version in the storage is {stored}. Open the "
                "table through the server, which completes the version, then call copy_catalog again"
            )
        return None

    # -- the record ---------------------------------------------------------------------------------------------

    def _record(self) -> _Record:
        keys = [info.key for info in self._objects.list(self._records)]
        if not keys:
            return _Record()
        key = max(keys)
        number = key.removeprefix(self._records).removesuffix(".json")
        if not number.isdecimal():
            raise Damaged(f"{key} is not a record of a copy; remove it")
        return _Record.parse(int(number), self._objects.get(key), key)

    def _remember(self, record: _Record, changes: Sequence[Change]) -> bool:
        """Store the properties after some changes; False if another process has changed the record since."""
        properties = record.properties
        for change in changes:
            if isinstance(change, SetProperties):
                properties = change.merged_into(properties)
        if properties == record.properties:
            return True
        was_home = record.was_home or not NOT_HOME & properties.keys()
        after = _Record(record.number + 1, properties, was_home)
        return self._objects.put_if_absent(f"{self._records}{after.number:09}.json", after.text())

    # -- the entries --------------------------------------------------------------------------------------------

    def _load(self) -> Mapping[str, ManifestEntry]:
        found: list[ManifestEntry] = []
        level = [ObjectId()]
        while level:
            spaces = [parent.child(name) for parent in level for name in self._names(parent, NAMESPACE)]
            tables = [parent.child(name) for parent in level for name in self._names(parent, TABLE)]
            for entries in (all_alongside(self._namespace, spaces), all_alongside(self._table, tables)):
                found += filter(None, entries)
            level = spaces
        return {entry.object_id: entry for entry in sorted(found, key=lambda entry: entry.object_id)}

    def _names(self, parent: ObjectId, object_type: str) -> list[str]:
        try:
            return self._namespaces.page(parent, object_type, None, None)[0]
        except NotFound:  # it was dropped since its parent was listed
            return []

    def _namespace(self, object_id: ObjectId) -> ManifestEntry | None:
        try:
            return ManifestEntry.namespace(object_id, self._namespaces.describe(object_id).properties)
        except NotFound:
            return None

    def _table(self, object_id: ObjectId) -> ManifestEntry | None:
        try:
            found = self._tables.fields(object_id)
        except NotFound:
            return None
        return ManifestEntry.table(object_id, self._relative(str(found["location"])), texts_of(found.get("properties")))

    def _relative(self, location: str) -> str:
        """Return a location relative to the root; outside of the root, unchanged."""
        root = self._objects.root_uri + self._root_key
        for prefix, decoded in ((f"{root.rstrip('/')}/", unquote), (f"/{self._root_key}/", str)):
            if location.startswith(prefix):
                return decoded(location.removeprefix(prefix)).rstrip("/")
        return location

    def _is_below(self, entry: ManifestEntry) -> bool:
        return entry.location is not None and not entry.location.startswith("/") and "://" not in entry.location

    def _make(self, change: Change) -> None:
        match change:
            case Put(entry) if entry.object_type == NAMESPACE:
                self._create(ObjectId.from_key(entry.object_id), entry.properties)
            case Put(entry):
                assert entry.location is not None
                self._register(ObjectId.from_key(entry.object_id), entry.location, entry.properties)
            case Remove(object_id):
                self._remove(ObjectId.from_key(object_id))

    def _create(self, object_id: ObjectId, properties: Mapping[str, str]) -> None:
        try:
            self._namespaces.create(object_id, properties, exist_ok=False, overwrite=False)
        except AlreadyExists:
            if dict(self._namespaces.describe(object_id).properties) != properties:
                raise

    def _register(self, object_id: ObjectId, location: str, properties: Mapping[str, str]) -> None:
        wanted = ManifestEntry.table(object_id, location, properties)
        present = self._table(object_id)
        if present != wanted:
            if present is not None:
                self._tables.deregister(object_id)
            self._server.call(
                "register_table",
                {
                    "id": list(object_id.names),
                    "location": self._registered_as(location),
                    "properties": dict(properties) or None,
                    "mode": "create",
                },
            )
            present = self._table(object_id)
        reason = self._difference(present, wanted)
        if reason is not None:
            with suppress(NotFound):
                self._tables.deregister(object_id)
            raise Refused(f"{self.url} cannot hold {object_id}: {reason}")

    def _difference(self, present: ManifestEntry | None, wanted: ManifestEntry) -> str | None:
        """Return how the server shows a table otherwise than it was registered; None if it does not."""
        assert wanted.location is not None
        if present is None:
            return "the server does not show it"
        if present.location != wanted.location:
            return f"the server shows it at {present.location!r} instead of {wanted.location!r}"
        if present.properties != wanted.properties:
            return "the server does not keep its properties"
        served, stored = (
            self._latest_on_server(ObjectId.from_key(wanted.object_id)),
            self._latest_in_storage(wanted.location),
        )
        if served not in (None, stored):
            return f"the server names version {served} as the latest; the storage has version {stored}"
        return None

    def _remove(self, object_id: ObjectId) -> None:
        with suppress(NotFound):
            if self._table(object_id) is not None:
                self._tables.deregister(object_id)
            else:
                self._namespaces.drop(object_id, cascade=False, force=False, keep=None)

    def _latest_on_server(self, object_id: ObjectId) -> int | None:
        """Return the latest version that the server names; None if it names none."""
        try:
            return self._tables.latest(object_id)
        except Unsupported:
            return None

    def _latest_in_storage(self, location: str) -> int | None:
        below = f"{self._root_key}/{location}/{VERSIONS}/".lstrip("/")
        names = (ManifestName.parse(info.key.removeprefix(below)) for info in self._objects.list(below))
        return max((name.version for name in names if name is not None and not name.is_staged), default=None)


def _overlap(one: str | None, other: str) -> bool:
    """Return whether a location is, contains, or lies in another location."""
    return one is not None and (f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/"))
