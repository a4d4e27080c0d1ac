"""Tables as the catalog knows them, and how they come and go."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import lru_cache

import attrs

from lancekeep.domain.catalog import CatalogView, Change, Put, Remove, require_free, require_namespace
from lancekeep.domain.errors import Damaged, InvalidInput, TableNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry

MANIFEST_DIRECTORY = "__manifest"
RESERVED_MARKER = ".lance-reserved"
MARKER_CONTENT = b"reserved"


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
        try:
            return Table(object_id, confined(entry.location), entry.properties)
        except InvalidInput as error:
            raise Damaged(f"the catalog's entry of the table {object_id} is not usable: {error}") from error


def find_table(view: CatalogView, object_id: ObjectId) -> Table:
    """The table of that identifier. Raises `TableNotFound`."""
    entry = None if object_id.is_root else view.find(object_id.key)
    if entry is None or entry.object_type != TABLE:
        found = "list_tables shows what there is" if entry is None else f"it is a {entry.object_type}"
        raise TableNotFound(f"there is no table {object_id}; {found}")
    return Table.from_entry(entry)


def add_table(view: CatalogView, table: Table, *, replace: bool = False) -> list[Change]:
    """Enter a table below an existing namespace, in place of one of that name only with ``replace``.

    Raises `NamespaceNotFound`, `TableAlreadyExists`, and `InvalidInput` where its directory belongs to another table.
    """
    if table.id.is_root:
        raise InvalidInput("a table needs a name; the empty identifier is the root namespace")
    require_namespace(view, table.id.parent)
    if not (replace and _is_table(view, table.id)):
        require_free(view, table.id, TABLE)
    owner = view.owner_of(table.location)
    if owner is not None and owner.object_id != table.id.key:
        raise InvalidInput(
            f"{table.location!r} overlaps the directory of the table {ObjectId.from_key(owner.object_id)}; "
            f"choose another location for {table.id}"
        )
    return [Put(ManifestEntry.table(table.id, table.location, table.properties))]


def remove_table(view: CatalogView, object_id: ObjectId) -> list[Change]:
    """Remove a table's entry. Raises `TableNotFound`."""
    find_table(view, object_id)
    return [Remove(object_id.key)]


def new_location(object_id: ObjectId, entropy: str, *, compatible: bool) -> str:
    """Where a new table goes: ``{hash}_{object_id}``, or ``{name}.lance`` in the root in compatibility mode (rule 3).

    ``entropy``: 8 hexadecimal digits, new for every attempt.
    """
    if compatible and object_id.parent.is_root:
        return f"{object_id.name}.lance"
    return f"{entropy}_{object_id.key}"


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


def _is_table(view: CatalogView, object_id: ObjectId) -> bool:
    entry = view.find(object_id.key)
    return entry is not None and entry.object_type == TABLE
