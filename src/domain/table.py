"""Tables as the catalog knows them, and how they come and go."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import lru_cache

import attrs

from lancekeep.domain.catalog import CatalogView, Change, Put, Remove, require_free, require_namespace
from lancekeep.domain.errors import ConcurrentModification, Damaged, InvalidInput, TableNotFound, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import RESERVED, TABLE, ManifestEntry

MANIFEST_DIRECTORY = "__manifest"
V1_SUFFIX = ".lance"
RESERVED_MARKER = ".lance-reserved"
DEREGISTERED_MARKER = ".lance-deregistered"
MOVING_MARKER = ".lancekeep-moving"
"""In a directory to which a table is being copied; it holds the location that the table comes from."""
CLONES_DIRECTORY = ".lancekeep-clones"
"""In the directory of a table: the records of the shallow clones that read its files."""
MARKER_CONTENT = b""
"""Native writers put ``reserved`` there; nobody reads it, and storage creates what is empty with the fewest steps."""


@attrs.frozen
class Table:
    """A table of the catalog: ``location`` is its directory, relative to the root of the catalog."""

    id: ObjectId
    location: str
    properties: Mapping[str, str]

    @staticmethod
    def from_entry(entry: ManifestEntry) -> Table:
        """Raises `Damaged` where the entry has no location, or one that leaves the root."""
        object_id = ObjectId.from_key(entry.object_id)
        if not entry.location:
            raise Damaged(f"the catalog has no location for the table {object_id}; register it again")
        properties = entry.properties
        properties.pop(RESERVED, None)
        try:
            return Table(object_id, confined(entry.location), properties)
        except InvalidInput as error:
            raise Damaged(f"the catalog's entry of the table {object_id} is not usable: {error}") from error


def find_table(view: CatalogView, object_id: ObjectId) -> Table:
    """The table of that identifier. Raises `TableNotFound`."""
    return Table.from_entry(_entry_of_table(view, object_id))


def add_table(
    view: CatalogView, table: Table, *, replace: bool = False, reserved: bool = False, chosen: bool = False
) -> list[Change]:
    """Enter a table below an existing namespace, in place of one of that name only with ``replace``.

    An unregistered V1 table may be entered under its own name. ``reserved``: the caller has taken the directory for
    itself, so an entry that was made of a reservation there is this very table's: a migration has found it. Raises
    `NamespaceNotFound`, `TableAlreadyExists`, `InvalidInput` where its directory belongs to another table,
    `ConcurrentModification` where that was free when it was ``chosen`` for the table, and `Unsupported` for what V1 has
    no place for.
    """
    if table.id.is_root:
        raise InvalidInput("a table needs a name; the empty identifier is the root namespace")
    require_namespace(view, table.id.parent)
    if view.flat and (table.properties or table.location != v1_location(table.id)):
        raise Unsupported(
            f"a V1 directory holds tables without properties, each in {{name}}.lance; it cannot hold {table.id} in "
            f"{table.location!r} with {len(table.properties)} properties. Open it with its manifest."
        )
    entry = view.find(table.id.key)
    is_here = entry is not None and entry.location == table.location and (entry.listed or (reserved and _waits(entry)))
    if entry is not None and not (entry.object_type == TABLE and (is_here or replace)):
        require_free(view, table.id, TABLE)
    owner = view.owner_of(table.location)
    if owner is not None and owner.object_id != table.id.key:
        other = ObjectId.from_key(owner.object_id)
        if chosen:
            raise ConcurrentModification(
                f"the directory {table.location!r} that was chosen for {table.id} has been registered as {other} "
                "meanwhile; nothing was changed. Declare it again."
            )
        raise InvalidInput(
            f"{table.location!r} overlaps the directory of the table {other}; choose another location for {table.id}"
        )
    if entry is not None and is_here:
        return [Put(entry.with_properties({**table.properties, RESERVED: None}))]
    fresh = ManifestEntry.table(table.id, table.location, table.properties)
    return [Put(fresh if entry is None else attrs.evolve(fresh, extension=entry.extension))]


def remove_table(view: CatalogView, object_id: ObjectId) -> list[Change]:
    """Remove a table's entry. Raises `TableNotFound`."""
    _entry_of_table(view, object_id)
    return [Remove(object_id.key)]


def alter_table(view: CatalogView, object_id: ObjectId, changes: Mapping[str, str | None]) -> list[Change]:
    """Set some properties of a table, and remove those given as None. Raises `TableNotFound`, `Unsupported`."""
    entry = _entry_of_table(view, object_id)
    if view.flat:
        raise Unsupported("a V1 directory has no place for properties; open it with its manifest")
    return [Put(entry.with_properties(changes))]


def rename_table(view: CatalogView, source: Table, target: ObjectId, location: str) -> list[Change]:
    """Enter ``source`` under another name, in an existing namespace, with its files at ``location``.

    ``source`` is the table as the caller knows it. Raises `TableNotFound`, `NamespaceNotFound`, `TableAlreadyExists`,
    `ConcurrentModification` where its entry has moved since, and `Unsupported` in a V1 directory.
    """
    entry = _entry_of_table(view, source.id)
    if entry.location != source.location:
        raise ConcurrentModification(
            f"the table {source.id} is no longer at {source.location!r}: its name is another's by now; nothing changed"
        )
    if view.flat:
        raise Unsupported(f"a V1 directory cannot rename {source.id}; open it with its manifest")
    require_namespace(view, target.parent)
    require_free(view, target, TABLE)
    owner = view.owner_of(location)
    if owner is not None and owner.object_id != source.id.key:
        raise ConcurrentModification(
            f"the directory {location!r} that {source.id} was moved to has been registered as "
            f"{ObjectId.from_key(owner.object_id)}; nothing was changed. Rename it again."
        )
    renamed = attrs.evolve(entry.with_properties({RESERVED: None}), object_id=target.key, location=location)
    return [Remove(source.id.key), Put(renamed)]


def is_at(view: CatalogView, location: str) -> bool:
    """Whether a table of the catalog lies in this very directory."""
    owner = view.owner_of(location)
    return owner is not None and owner.location == location


def new_location(object_id: ObjectId, entropy: str) -> str:
    """Where a new table goes: ``{hash}_{object_id}``. ``entropy``: 8 hexadecimal digits, new for every attempt."""
    return f"{entropy}_{object_id.key}"


def v1_location(object_id: ObjectId) -> str | None:
    """Where a V1 table of that name lies, ``{name}.lance``; None outside the root, where V1 has no tables."""
    return f"{object_id.name}{V1_SUFFIX}" if len(object_id.names) == 1 else None


def v1_table(location: str) -> ObjectId | None:
    """The V1 table that the directory at ``location`` is, whether it exists or not; None where none can lie there."""
    name = location.removesuffix(V1_SUFFIX)
    if name in ("", location) or "/" in location:
        return None
    try:
        return ObjectId.of([name])
    except InvalidInput:  # no table of that name can be asked for
        return None


@lru_cache(maxsize=4096)  # every native callback asks for its table anew
def confined(location: str) -> str:
    """``location`` as a relative path inside the root, with no way out of it.

    Raises `InvalidInput` where it is absolute, leaves the root, is the root, or is the catalog's own.
    """
    clean = posixpath.normpath(location) if location else ""
    unusual = "\\" in location or "\0" in location or "://" in location
    if not clean or unusual or clean in (".", "..") or clean.startswith(("/", "../")):
        raise InvalidInput(f"the location {location!r} does not lie inside the root of the catalog")
    if clean.partition("/")[0] == MANIFEST_DIRECTORY:
        raise InvalidInput(f"the location {location!r} is the catalog's own")
    return clean


def _waits(entry: ManifestEntry) -> bool:
    """Whether whoever has reserved the directory of a table may still declare it."""
    return RESERVED in entry.properties


def _entry_of_table(view: CatalogView, object_id: ObjectId) -> ManifestEntry:
    entry = None if object_id.is_root else view.find(object_id.key)
    if entry is None or entry.object_type != TABLE:
        found = "list_tables shows what there is" if entry is None else f"it is a {entry.object_type}"
        raise TableNotFound(f"there is no table {object_id}; {found}")
    return entry
