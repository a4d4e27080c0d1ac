"""A server of the namespace specification as a home of entries (ADR 166).

Copies of a catalog read and fill it.

A server has no compare-and-set and no properties of the root namespace. So a copy keeps its record in the storage of
the tables: numbered objects, each created once, below ``.lancekeep-servers`` in the root.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from hashlib import sha256
from math import inf
from threading import Event
from urllib.parse import unquote

import attrs

from lancekeep.adapters.rest.tables import RestNamespaces, RestTables, texts_of
from lancekeep.application.concurrency import all_alongside, at_once
from lancekeep.application.retry import Retry
from lancekeep.domain.catalog import CatalogView, Change, ManifestStoreGuarantees, Put, Remove, SetProperties, page
from lancekeep.domain.dropped import is_record
from lancekeep.domain.errors import (
    AlreadyExists,
    ConcurrentModification,
    Damaged,
    LancekeepError,
    NotFound,
    Refused,
    Retryable,
    Unsupported,
)
from lancekeep.domain.home_copy import MOVED_PROPERTY, NOT_HOME
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import VERSIONS
from lancekeep.domain.manifest_entry import FORMER_VIEW_PROPERTY, NAMESPACE, OWN_PROPERTIES, TABLE, ManifestEntry
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import SERVERS_DIRECTORY
from lancekeep.ports.catalog_server import CatalogServer
from lancekeep.ports.manifest_store import Decision, Result
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

_ATTEMPTS = 10
_OTHER_PROPERTIES = "the server has it with other properties, which the REST protocol cannot change"


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
        at, inside = self._owners
        return inside.get(location) or next(filter(None, map(at.get, _with_parents(location))), None)

    @cached_property
    def _owners(self) -> tuple[Mapping[str, ManifestEntry], Mapping[str, ManifestEntry]]:
        """The entries by their locations, and by these and all directories above."""
        located = [entry for entry in self.entries.values() if entry.location]
        above = {parent: entry for entry in located for parent in _with_parents(str(entry.location))}
        return {str(entry.location): entry for entry in located}, above


class ServedHome:
    """The entries of a server.

    The location of a table outside of the root is its URI.

    Changes are operations of the server, several at a time; each can be repeated. Only the record is changed by
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
        self._retry = Retry()
        digest = sha256(server.uri.encode()).hexdigest()[:16]
        self._records = f"{root_key}/{SERVERS_DIRECTORY}/{digest}/".lstrip("/")
        self._seen: ServedView | None = None
        self._sent: set[str] = set()  # the tables that this process asked the server to register

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
            number = self._remember(view.record, changes)
            if number is not None:
                self._make_all(changes, number)
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
                raise AlreadyExists(_OTHER_PROPERTIES)
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

    def leave(self, tables: Sequence[ManifestEntry], alone: bool) -> None:
        """Take tables out of the server, also under other names.

        Args:
            tables: The tables of the catalog.
            alone: No other process has entered any of them.

        Raises:
            Refused: The server has a version of a table that is not final in the storage.
        """
        if alone and not self._sent:
            return
        places = {entry.location for entry in tables}
        try:
            found = list(self.view().all_of(TABLE))
        except Retryable:
            raise
        except LancekeepError:  # such as of a server that shows nothing since it has one of the entries
            names = sorted(self._sent) if alone else [entry.object_id for entry in tables]
            found = list(filter(None, map(self._table, map(ObjectId.from_key, names))))
        entered = [entry for entry in found if entry.location in places]
        for entry, fault in zip(entered, all_alongside(self.fault_of, entered), strict=True):
            if fault is not None:
                raise Refused(f"{ObjectId.from_key(entry.object_id)}: {fault}")
        at_once(self._deregister, [ObjectId.from_key(entry.object_id) for entry in entered])

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
        key = self._latest_key()
        if key is None:
            return _Record()
        number = key.removeprefix(self._records).removesuffix(".json")
        if not number.isdecimal():
            raise Damaged(f"{key} is not a record of a copy; remove it")
        return _Record.parse(int(number), self._objects.get(key), key)

    def _latest_key(self) -> str | None:
        return max((info.key for info in self._objects.list(self._records)), default=None)

    def _key_of(self, number: int) -> str:
        return f"{self._records}{number:09}.json"

    def _require_latest(self, number: int) -> None:
        """Check that no other process has taken the copy over, or given it up."""
        if self._latest_key() != (self._key_of(number) if number else None):
            raise ConcurrentModification(
                f"another process continues or has ended the copy to {self.url}; this one stops. Call copy_catalog "
                "again to see the result"
            )

    def _remember(self, record: _Record, changes: Sequence[Change]) -> int | None:
        """Store the properties after some changes, and return the number of the record.

        None if another process has changed it since.
        """
        properties = record.properties
        for change in changes:
            if isinstance(change, SetProperties):
                properties = change.merged_into(properties)
        if properties == record.properties:
            return record.number
        leaves = not NOT_HOME & record.properties.keys()  # the fence of a catalog whose first home is the server
        was_home = record.was_home or not NOT_HOME & properties.keys() or (leaves and MOVED_PROPERTY in properties)
        after = _Record(record.number + 1, properties, was_home)
        return after.number if self._objects.put_if_absent(self._key_of(after.number), after.text()) else None

    # -- the entries --------------------------------------------------------------------------------------------

    def _load(self) -> Mapping[str, ManifestEntry]:
        found: list[ManifestEntry] = []
        level = [ObjectId()]
        while level:
            spaces = [parent.child(name) for parent in level for name in self._names(parent, NAMESPACE)]
            tables = [parent.child(name) for parent in level for name in self._names(parent, TABLE)]
            for entries in (all_alongside(self._namespace, spaces), all_alongside(self._listed_table, tables)):
                found += filter(None, entries)
            level = spaces
        return {entry.object_id: entry for entry in sorted(found, key=lambda entry: entry.object_id)}

    def _names(self, parent: ObjectId, object_type: str) -> list[str]:
        try:
            return self._retry.call(partial(self._namespaces.page, parent, object_type, None, None))[0]
        except NotFound:
            if self._is_listed(parent, NAMESPACE):
                raise
            return []  # it was dropped since its parent was listed

    def _namespace(self, object_id: ObjectId) -> ManifestEntry | None:
        try:
            found = self._retry.call(partial(self._namespaces.describe, object_id))
            return ManifestEntry.namespace(object_id, found.properties)
        except NotFound:
            if self._is_listed(object_id, NAMESPACE):
                raise
            return None

    def _is_listed(self, object_id: ObjectId, object_type: str) -> bool:
        """Return whether a server still lists an object that it does not find, so that nothing is overlooked."""
        return object_id.is_root or object_id.name in self._names(object_id.parent, object_type)

    def _listed_table(self, object_id: ObjectId) -> ManifestEntry | None:
        found = self._table(object_id)
        if found is None and self._is_listed(object_id, TABLE):
            return ManifestEntry.table(object_id, "", {})
        return found

    def _table(self, object_id: ObjectId) -> ManifestEntry | None:
        try:
            found = self._retry.call(partial(self._tables.fields, object_id))
        except NotFound:
            return None
        return ManifestEntry.table(object_id, self._relative(str(found["location"])), texts_of(found.get("properties")))

    def _relative(self, location: str) -> str:
        """Return a location relative to the root; outside of the root, unchanged."""
        root = self._objects.root_uri + self._root_key
        for prefix, decoded in ((f"{root.rstrip('/')}/", unquote), (f"/{self._root_key}/", str)):
            if location.startswith(prefix):
                return decoded(location.removeprefix(prefix)).rstrip("/")
        is_absolute = not location or "://" in location or location.startswith("/")
        return location if is_absolute else f"./{location}"  # relative to a root that only the server knows

    def _is_below(self, entry: ManifestEntry) -> bool:
        location = entry.location or "/"
        return "://" not in location and not location.startswith(("/", "./", "../"))

    def _make_all(self, changes: Sequence[Change], number: int) -> None:
        """Make changes, several at a time, until one fails or another process changes the record.

        Raises:
            ConcurrentModification: Another process has. If it has given the copy up, the last tables leave the server
                again.
        """
        self._require_latest(number)
        ended = Event()
        for group in _independent(changes):
            at_once(partial(self._make_unless, ended, number), group)

    def _make_unless(self, ended: Event, number: int, change: Change) -> None:
        """Make a change unless another change has failed."""
        if ended.is_set():
            return
        try:
            self._make(change)
            self._require_still(change, number)
        except BaseException:
            ended.set()
            raise

    def _require_still(self, change: Change, number: int) -> None:
        try:
            self._require_latest(number)
        except ConcurrentModification:
            if isinstance(change, Put) and MOVED_PROPERTY in self._record().properties:
                self.leave([change.entry], alone=True)
            raise

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
        except AlreadyExists as error:
            if dict(self._namespaces.describe(object_id).properties) != properties:
                raise AlreadyExists(f"{self.url} cannot hold {object_id}: {_OTHER_PROPERTIES}") from error

    def _register(self, object_id: ObjectId, location: str, properties: Mapping[str, str]) -> None:
        wanted = ManifestEntry.table(object_id, location, properties)
        present = self._table(object_id)
        if present is not None and not self._is_below(present):
            raise AlreadyExists(f"{self.url} has {object_id} at {present.location!r}, which is outside of the root")
        is_own = False
        if present is None or (present.location, present.properties) != (wanted.location, wanted.properties):
            if present is not None:
                self._deregister(object_id)
            fields = {
                "id": list(object_id.names),
                "location": self._registered_as(location),
                "properties": dict(properties) or None,
                "mode": "create",
            }
            self._sent.add(wanted.object_id)
            with suppress(AlreadyExists):  # of a request that was repeated; what the server shows counts
                self._server.call("register_table", fields)
                is_own = True
            present = self._table(object_id)
        reason = self._difference(present, wanted)
        if reason is not None:
            if is_own or (present is not None and present.location == wanted.location):
                self._deregister(object_id)
            raise Refused(f"{self.url} cannot hold {object_id}: {reason}")

    def _deregister(self, object_id: ObjectId) -> None:
        try:
            self._tables.deregister(object_id)
        except NotFound:  # of a request that was repeated
            pass
        except Unsupported as error:
            raise Refused(f"{error}. Take {object_id} out of the server by its own means") from error

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
        """Remove a table.

        No copy removes a namespace: other software may use it.
        """
        if self._table(object_id) is not None:
            self._deregister(object_id)

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


def _independent(changes: Iterable[Change]) -> list[list[Change]]:
    """Group changes: removals, the namespaces of each level, tables.

    The changes of one group do not need each other.
    """
    groups = defaultdict[float, list[Change]](list)
    for change in changes:
        match change:
            case Remove():
                groups[0].append(change)
            case Put(entry):
                level = len(ObjectId.from_key(entry.object_id).names)
                groups[level if entry.object_type == NAMESPACE else inf].append(change)
    return [groups[level] for level in sorted(groups)]


def _with_parents(location: str) -> Iterator[str]:
    """Iterate over a location and all directories above it."""
    parts = location.split("/")
    return ("/".join(parts[:count]) for count in range(len(parts), 0, -1))
