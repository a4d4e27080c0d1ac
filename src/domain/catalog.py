"""The catalog as a value: its entries, and the changes that apply to them.

Decisions (in `lancekeep.domain.namespace` and `lancekeep.domain.table`) take a view and return changes, or raise. A
manifest store applies the changes by compare-and-set: if the catalog has changed since the view, it asks for a new
decision.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import attrs

from lancekeep.domain.errors import NamespaceAlreadyExists, NamespaceNotFound, TableAlreadyExists, Unsupported
from lancekeep.domain.identifiers import MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry, require_unicode


@attrs.frozen
class Put:
    """Enter an entry, or replace the entry of the same object id."""

    entry: ManifestEntry


@attrs.frozen
class Remove:
    """Remove the entry of an object id."""

    object_id: str


@attrs.frozen
class SetProperties:
    """Set properties of the root namespace; None removes a property."""

    properties: Mapping[str, str | None] = attrs.field()

    @properties.validator
    def _are_unicode(self, _: object, properties: Mapping[str, str | None]) -> None:
        require_unicode(properties)

    def merged_into(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties after the change."""
        merged = {**properties, **self.properties}
        return {name: value for name, value in merged.items() if value is not None}


@attrs.frozen
class AddColumns:
    """Add nullable columns to the manifest table.

    An existing column does not change. Each value of an entry's extension needs a column.

    Attributes:
        columns: logical types of the table format (``timestamp:us:UTC``), by name.
    """

    columns: Mapping[str, str]


Change = Put | Remove | SetProperties | AddColumns


@attrs.frozen
class ManifestStoreGuarantees:
    """State what a manifest store can hold, and how its changes become visible.

    Operations refuse what no guarantee covers, before anything is written.

    Attributes:
        atomic_changes: The changes of one ``apply`` become visible together. Otherwise each change is an atomic step,
            in the given order, and operations on several tables are refused.
        ordered: A change applies to exactly the latest state, so a property of the root can refuse all later changes.
            Otherwise a change may follow that was decided from an earlier state.
        levels: The number of levels of namespaces: a table has one name more. None: namespaces have any depth, and
            tables are at every level.
        shared: Namespaces and tables of other software are in the catalog, too. Only what Lancekeep entered is removed
            without a request of the user.
        columns: Entries have values of columns that others added.
        properties: The root, namespaces and tables have properties. Otherwise the store keeps only properties of the
            root that begin with ``lancekeep.``.
        locations: An entry states the directory of its table, so any directory can be a table, and a rename moves no
            files. Otherwise a table is the directory ``{name}.lance``.
        lists_directories: Each directory ``{name}.lance`` in the root is a table, also without an entry (directory
            namespace V1, "V1: Directory Listing").
        marks_declared: The directory of a declared table has a marker, because other readers or writers of the
            directory need it. Otherwise the entry alone declares a table in a new directory.
        names: A regular expression for the names that the store can hold. None: any name of an identifier.
        permanent: The ids of namespaces that always exist, also in an empty catalog, and cannot be dropped.
        home: What errors call the store, with an article.
        remedy: What to do for an operation that the store does not support, in errors. May be empty.
    """

    atomic_changes: bool = True
    ordered: bool = True
    shared: bool = False
    columns: bool = True
    levels: int | None = None
    properties: bool = True
    locations: bool = True
    lists_directories: bool = False
    marks_declared: bool = True
    names: str | None = None
    permanent: frozenset[str] = frozenset()
    home: str = "a catalog"
    remedy: str = ""

    def refusal(self, what: str) -> Unsupported:
        """Return the error for an operation that the store does not support.

        Args:
            what: The rest of the sentence about the store, such as ``cannot store properties``.
        """
        return Unsupported("; ".join(filter(None, (f"{self.home} {what}", self.remedy))))


@attrs.frozen
class Lookup:
    """The question whether a view has an entry: `CatalogView.find`."""

    object_id: str


@attrs.frozen
class Listing:
    """The question which names a namespace has: `CatalogView.children`."""

    parent: ObjectId
    object_type: str
    after: str | None = None
    limit: int | None = None


Question = Lookup | Listing
"""What a caller will ask a view first."""


class CatalogView(Protocol):
    """The catalog at one version: immutable and cheap to query.

    Attributes:
        version: the number of changes so far; 0 if the catalog does not exist yet.
        properties: the properties of the root namespace.
        entered: the properties that the manifest holds, which cost no request.
        guarantees: what the manifest store can hold.
        columns: the logical types of the columns outside of the specification, by name.
        unnamed: the number of stored rows without an object id or an object type. They are kept, but are not entries.
    """

    @property
    def version(self) -> int: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def entered(self) -> Mapping[str, str]: ...

    @property
    def guarantees(self) -> ManifestStoreGuarantees: ...

    @property
    def columns(self) -> Mapping[str, str]: ...

    @property
    def unnamed(self) -> int: ...

    def find(self, object_id: str) -> ManifestEntry | None:
        """Return the entry of an object id, or None."""

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        """Return a page of the names directly below a namespace, in byte order.

        Args:
            parent: the namespace.
            object_type: the type of the objects to list.
            after: the page begins after this name.
            limit: the maximum number of names; None for no limit.

        Returns:
            The names, and the ``after`` of the next page; None on the last page.
        """

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        """Iterate over the entries below a namespace, at any depth, unordered."""

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        """Iterate over entries of one type after an object id, in byte order."""

    def owner_of(self, location: str) -> ManifestEntry | None:
        """Return the table whose directory is ``location``, contains it, or lies in it.

        A dropped table that can be brought back has its directory, too: then this is its record.
        """


@runtime_checkable
class Stamped(Protocol):
    """A `CatalogView` that can be compared with other views of the same store.

    A view that reads the storage or a service at each question has no stamps.
    """

    def stamp(self, parent: ObjectId, object_type: str) -> object | None:
        """Return a stamp of the entries of one type directly below a namespace.

        Two views of one store with equal stamps give the same names and the same entries. The stamp of the tables of
        the root covers the properties of the root, too.

        Returns:
            A value that is compared by equality; None if the answers may change while the view stays.
        """


class Entries:
    """A `CatalogView` over entries in memory, for catalogs of a few thousand entries."""

    unnamed = 0

    def __init__(
        self,
        version: int,
        entries: Iterable[ManifestEntry],
        properties: Mapping[str, str],
        guarantees: ManifestStoreGuarantees = ManifestStoreGuarantees(),
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.version = version
        self.guarantees = guarantees
        self.columns: Mapping[str, str] = columns or {}
        self.properties = self.entered = properties
        self._entries = {entry.object_id: entry for entry in entries}
        self._ids = sorted(self._entries)
        located = (entry for entry in self._entries.values() if entry.location)
        self._owners = {str(entry.location): entry for entry in sorted(located, key=lambda it: it.object_type == TABLE)}
        self._locations = sorted(self._owners)

    def find(self, object_id: str) -> ManifestEntry | None:
        return self._entries.get(object_id)

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        prefix = parent.key + MANIFEST_DELIMITER if parent.names else ""
        below = (entry for entry in self.descendants(parent) if entry.object_type == object_type)
        keys = (entry.object_id[len(prefix) :] for entry in below)
        names = sorted(key for key in keys if MANIFEST_DELIMITER not in key)
        return page(names, after, limit)

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        prefix = parent.key + MANIFEST_DELIMITER if parent.names else ""
        for object_id in self._ids[bisect_left(self._ids, prefix) :]:
            if not object_id.startswith(prefix):
                break
            yield self._entries[object_id]

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        start = 0 if after is None else bisect_right(self._ids, after)
        entries = (self._entries[object_id] for object_id in self._ids[start:])
        return (entry for entry in entries if entry.object_type == object_type)

    def owner_of(self, location: str) -> ManifestEntry | None:
        for ancestor in ancestors(location):
            if ancestor in self._owners:
                return self._owners[ancestor]
        at = bisect_left(self._locations, location + "/")
        if at < len(self._locations) and self._locations[at].startswith(location + "/"):
            return self._owners[self._locations[at]]
        return None

    def after(self, changes: Sequence[Change]) -> Entries:
        """Return the next version of the catalog, with ``changes`` applied."""
        entries = dict(self._entries)
        properties, columns = dict(self.properties), dict(self.columns)
        for change in changes:
            match change:
                case Put(entry):
                    entries[entry.object_id] = entry
                case Remove(object_id):
                    entries.pop(object_id, None)
                case SetProperties():
                    properties = change.merged_into(properties)
                case AddColumns():  # entries in memory keep any extension
                    columns |= change.columns
        return Entries(self.version + 1, entries.values(), properties, self.guarantees, columns)


def page(names: Sequence[str], after: str | None, limit: int | None) -> tuple[list[str], str | None]:
    """Return a page of sorted names, and its last name if more names follow."""
    start = bisect_right(names, after) if after is not None else 0
    chosen = list(names[start:] if limit is None else names[start : start + limit])
    return chosen, chosen[-1] if chosen and start + len(chosen) < len(names) else None


def ancestors(location: str) -> Iterator[str]:
    """Iterate over a relative path and the directories above it, upwards."""
    while location:
        yield location
        location = location.rpartition("/")[0]


def require_namespace(view: CatalogView, object_id: ObjectId) -> None:
    """Check that a namespace exists; the root always does.

    Raises:
        NamespaceNotFound: it does not exist.
    """
    entry = view.find(object_id.key)
    if not object_id.is_root and (entry is None or entry.object_type != NAMESPACE):
        raise NamespaceNotFound(f"the namespace {object_id} does not exist; create it first")


def require_names(view: CatalogView, object_id: ObjectId) -> None:
    """Check that the manifest store can hold the names of an object.

    Raises:
        Unsupported: it has a rule for names, which one of them breaks.
    """
    names = view.guarantees.names
    if names is not None and not all(re.fullmatch(names, name) for name in object_id.names):
        raise view.guarantees.refusal(f"has only names of the form {names}; it cannot store {object_id}")


def require_level(view: CatalogView, table_id: ObjectId) -> None:
    """Check that the manifest store can have a table at this level, with these names.

    Raises:
        Unsupported: its tables have another number of names, or other names.
    """
    levels = view.guarantees.levels
    if levels is not None and len(table_id.names) != levels + 1:
        raise view.guarantees.refusal(f"names each table by {levels + 1} name(s); it cannot store {table_id}")
    require_names(view, table_id)


def require_free(view: CatalogView, object_id: ObjectId, wanted: str) -> None:
    """Check that no object of any type has the name of a new object.

    Raises:
        TableAlreadyExists, NamespaceAlreadyExists: an object has the name; ``wanted``, the type of the new object,
            chooses the error.
    """
    entry = view.find(object_id.key)
    if object_id.is_root or entry is not None:
        kind = NAMESPACE if entry is None else entry.object_type
        error = TableAlreadyExists if wanted == TABLE else NamespaceAlreadyExists
        raise error(f"the name {object_id} is taken by a {kind}; choose another name, or use the existing {kind}")
