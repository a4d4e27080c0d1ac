"""Tables of the catalog, and the decisions that enter, change and remove them."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

import attrs

from lancekeep.domain.catalog import (
    CatalogView,
    Change,
    Put,
    Remove,
    ancestors,
    require_free,
    require_level,
    require_namespace,
)
from lancekeep.domain.errors import ConcurrentModification, Damaged, InvalidInput, TableNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import MOVING_TO, RESERVED, TABLE, ManifestEntry
from lancekeep.domain.notebook import Shown
from lancekeep.domain.partition_rules import require_enterable
from lancekeep.domain.protection import require_unprotected
from lancekeep.domain.row_rules import Rules, rules_of

MANIFEST_DIRECTORY = "__manifest"
MAINTENANCE_DIRECTORY = ".lancekeep-maintenance"
WAITING_DIRECTORY = ".lancekeep-waiting"
EVENTS_DIRECTORY = ".lancekeep-events"
SERVERS_DIRECTORY = ".lancekeep-servers"
OWN_DIRECTORIES = (
    MANIFEST_DIRECTORY,
    MAINTENANCE_DIRECTORY,
    WAITING_DIRECTORY,
    EVENTS_DIRECTORY,
    SERVERS_DIRECTORY,
)
"""The directories of the root that are the catalog's own and hold no table."""
V1_SUFFIX = ".lance"
RESERVED_MARKER = ".lance-reserved"
DEREGISTERED_MARKER = ".lance-deregistered"
MOVING_MARKER = ".lancekeep-moving"
"""A file in a directory that a table is copied to; it contains the previous location of the table."""
MOVED_MARKER = ".lancekeep-moved"
"""A file in a directory that a table has left; it contains the next location of the table."""
CLONES_DIRECTORY = ".lancekeep-clones"
"""A directory in the directory of a table, with a record for each shallow clone that reads the table's files."""
DIGESTS_DIRECTORY = ".lancekeep-digests"
"""A directory in the directory of a table or branch, with records of the digests of its files."""
REQUESTS_DIRECTORY = "_requests"
"""A directory in the directory of the manifest table, with the records of keyed requests."""
INGESTED_DIRECTORY = "_ingested"
"""A directory in the directory of a table, with the record of the files that `ingest` has read (ADR 25)."""
MARKER_CONTENT = b""
"""Native writers write ``reserved``. No reader uses the content, and an empty file takes the fewest storage calls."""

_NEW_LOCATION = re.compile(r"[0-9a-f]{8}_[^/]+")
_HIDDEN = {RESERVED: None, MOVING_TO: None}
"""The hidden properties of entries, as a change that removes them."""


@attrs.frozen
class Table(Shown):
    """A table of the catalog; ``location`` is its directory, relative to the root."""

    id: ObjectId
    location: str
    properties: Mapping[str, str]

    @property
    def rules(self) -> Rules:
        """The rules for the rows of the table."""
        return rules_of(self.properties)

    @staticmethod
    def from_entry(entry: ManifestEntry) -> Table:
        """Return the table of an entry.

        Raises:
            Damaged: the entry has no location, or one outside the root.
        """
        object_id = ObjectId.from_key(entry.object_id)
        if not entry.location:
            raise Damaged(f"the catalog's entry of the table {object_id} has no location; register the table again")
        properties = entry.properties
        for hidden in _HIDDEN:
            properties.pop(hidden, None)
        try:
            return Table(object_id, confined(entry.location), properties)
        except InvalidInput as error:
            raise Damaged(f"the catalog's entry of the table {object_id} is not usable: {error}") from error


def find_table(view: CatalogView, object_id: ObjectId) -> Table:
    """Return a table.

    Raises:
        TableNotFound: no table has this identifier.
    """
    return Table.from_entry(entry_of_table(view, object_id))


def add_table(
    view: CatalogView, table: Table, *, replace: bool = False, reserved: bool = False, chosen: bool = False
) -> list[Change]:
    """Enter a table below an existing namespace.

    An unregistered V1 table can be entered under its own name.

    Args:
        view: the catalog.
        table: the table to enter.
        replace: replace a table of the same name.
        reserved: the caller has reserved the directory. An entry that a migration made of this reservation is then
            the caller's own.
        chosen: the caller chose the directory because it was free.

    Raises:
        NamespaceNotFound: the parent does not exist.
        TableAlreadyExists: an object has the name.
        InvalidInput: the directory belongs to another table.
        ConcurrentModification: the directory was free when it was ``chosen``, and now belongs to another table.
        Unsupported: the manifest store cannot hold the table.
        Refused: the name belongs to the partitioned namespace, or the table to replace is protected.
    """
    if table.id.is_root:
        raise InvalidInput("the empty identifier is the root namespace; give the table a name")
    require_namespace(view, table.id.parent)
    require_level(view, table.id)
    if table.properties and not view.guarantees.properties:
        raise view.guarantees.refusal(f"cannot store the properties of {table.id}")
    if table.location != v1_location(table.id) and not view.guarantees.locations:
        raise view.guarantees.refusal(
            f"stores each table in {{name}}.lance; it cannot store {table.id} in {table.location!r}"
        )
    entry = view.find(table.id.key)
    if replace and entry is not None:
        require_unprotected(view, table.id, "replace")
    is_here = entry is not None and entry.location == table.location and (entry.listed or (reserved and _waits(entry)))
    if entry is not None and not (entry.object_type == TABLE and (is_here or replace)):
        require_free(view, table.id, TABLE)
    if not is_here:
        require_enterable(view, table.id)
    owner = view.owner_of(table.location)
    if owner is not None and owner.object_id != table.id.key:
        other = _described(owner)
        if chosen:
            raise ConcurrentModification(
                f"the directory {table.location!r}, which was chosen for {table.id}, belongs to {other} "
                "now; nothing was changed. Declare the table again."
            )
        raise InvalidInput(
            f"{table.location!r} overlaps the directory of {other}; choose another location for {table.id}"
        )
    if entry is not None and is_here:
        return [Put(entry.with_properties({**table.properties, **_HIDDEN}))]
    fresh = ManifestEntry.table(table.id, table.location, table.properties)
    return [Put(fresh if entry is None else attrs.evolve(fresh, extension=entry.extension))]


def remove_table(view: CatalogView, object_id: ObjectId, action: str = "remove") -> list[Change]:
    """Remove the entry of a table.

    Args:
        view: the catalog.
        object_id: the table.
        action: what the caller does, as a verb.

    Raises:
        TableNotFound: the table does not exist.
        Refused: the table is protected.
    """
    entry_of_table(view, object_id)
    require_unprotected(view, object_id, action)
    return [Remove(object_id.key)]


def withdraw_table(view: CatalogView, object_id: ObjectId) -> list[Change]:
    """Remove the entry of a table that was never written.

    Raises:
        TableNotFound: the table does not exist.
    """
    entry_of_table(view, object_id)
    return [Remove(object_id.key)]


def alter_table(view: CatalogView, object_id: ObjectId, changes: Mapping[str, str | None]) -> list[Change]:
    """Set properties of a table; None removes a property.

    Raises:
        TableNotFound: the table does not exist.
        Unsupported: the manifest store has no properties.
    """
    entry = entry_of_table(view, object_id)
    if not view.guarantees.properties:
        raise view.guarantees.refusal("cannot store properties")
    return [Put(entry.with_properties(changes))]


def rename_table(view: CatalogView, source: Table, target: ObjectId, location: str) -> list[Change]:
    """Enter a table under another name, in an existing namespace.

    Args:
        view: the catalog.
        source: the table as the caller read it.
        target: the new name.
        location: the directory of the table after the rename.

    Raises:
        TableNotFound: the table does not exist.
        NamespaceNotFound: the namespace of the new name does not exist.
        TableAlreadyExists: an object has the new name.
        ConcurrentModification: the entry has another location than ``source``, or ``location`` has another table.
        Unsupported: the manifest store cannot rename tables, or has no tables at the level of the new name.
        Refused: a name belongs to the partitioned namespace, or the table is protected.
    """
    entry = entry_of_table(view, source.id)
    if entry.location != source.location:
        raise ConcurrentModification(
            f"the table {source.id} is no longer at {source.location!r}: another table has its name; nothing changed"
        )
    if not view.guarantees.locations:
        raise view.guarantees.refusal(f"cannot rename {source.id}")
    require_unprotected(view, source.id, "rename")
    require_namespace(view, target.parent)
    require_level(view, target)
    require_free(view, target, TABLE)
    for name in (source.id, target):
        require_enterable(view, name)
    owner = view.owner_of(location)
    if owner is not None and owner.object_id != source.id.key:
        raise ConcurrentModification(
            f"another writer registered the directory {location!r}, which {source.id} was moved to, for "
            f"{_described(owner)}; nothing was changed. Rename the table again."
        )
    renamed = attrs.evolve(entry.with_properties(_HIDDEN), object_id=target.key, location=location)
    return [Remove(source.id.key), Put(renamed)]


def announce_move(view: CatalogView, source: Table, target: ObjectId, location: str) -> list[Change]:
    """Record in the entry of a table that a rename is moving its files.

    Takes the arguments of `rename_table`, and raises its errors. A record of another rename is replaced.
    """
    rename_table(view, source, target, location)
    return [Put(entry_of_table(view, source.id).with_properties({MOVING_TO: location}))]


def moving_to(view: CatalogView, table: Table) -> str | None:
    """Return the directory to which a rename is moving the files of a table.

    Returns:
        The directory; None if there is no such rename. Catalogs without properties rename no table.
    """
    if not view.guarantees.properties:
        return None
    entry = view.find(table.id.key)
    if entry is None or entry.location != table.location or not entry.metadata:
        return None
    return entry.properties.get(MOVING_TO)


def stop_move(view: CatalogView, table: Table, location: str | None) -> list[Change]:
    """Remove the record that a rename is moving a table to a directory.

    Nothing changes if there is no such record.
    """
    if location is None or moving_to(view, table) != location:
        return []
    return [Put(entry_of_table(view, table.id).with_properties({MOVING_TO: None}))]


def relocate_table(view: CatalogView, source: Table, location: str) -> list[Change]:
    """Enter another directory for a table.

    Args:
        view: the catalog.
        source: the table as the caller read it.
        location: the directory of the table from now on.

    Raises:
        TableNotFound: the table does not exist.
        InvalidInput: ``location`` belongs to another table, or overlaps the present directory.
        ConcurrentModification: the entry has another location than ``source``.
        Refused: the table is protected.
        Unsupported: an entry states no directory.
    """
    entry = entry_of_table(view, source.id)
    require_unprotected(view, source.id, "relocate")
    if not view.guarantees.locations:
        raise view.guarantees.refusal(
            f"stores {source.id} in the directory of its name, and has no entry that could name another directory"
        )
    if entry.location != source.location:
        raise ConcurrentModification(
            f"the table {source.id} is no longer at {source.location!r}: it was moved, or recreated; nothing changed"
        )
    owner = view.owner_of(location)
    if owner is not None:
        raise InvalidInput(f"{location!r} overlaps the directory of {_described(owner)}; choose another location")
    return [Put(attrs.evolve(entry.with_properties(_HIDDEN), location=location, listed=False))]


def is_at(view: CatalogView, location: str) -> bool:
    """Return whether a table of the catalog has exactly this directory."""
    owner = view.owner_of(location)
    return owner is not None and owner.object_type == TABLE and owner.location == location


def new_location(object_id: ObjectId, entropy: str) -> str:
    """Return the directory of a new table, ``{hash}_{object_id}``.

    Args:
        object_id: the table.
        entropy: the hash: 8 hexadecimal digits, new for every attempt.
    """
    return f"{entropy}_{object_id.key}"


def is_reusable(location: str) -> bool:
    """Return whether another table may get a directory after a drop.

    Callers may choose any directory; no table gets one of `new_location` again.
    """
    return _NEW_LOCATION.fullmatch(location) is None


def v1_location(object_id: ObjectId) -> str | None:
    """Return the directory of a V1 table, ``{name}.lance``; None outside the root."""
    return f"{object_id.name}{V1_SUFFIX}" if len(object_id.names) == 1 else None


def v1_table(location: str) -> ObjectId | None:
    """Return the V1 table whose directory is ``location``; None if none can be."""
    name = location.removesuffix(V1_SUFFIX)
    if name in ("", location) or "/" in location:
        return None
    try:
        return ObjectId.of([name])
    except InvalidInput:  # the name is not valid, so no request can name the table
        return None


@lru_cache(maxsize=4096)  # each native callback confines the location of its table
def confined(location: str) -> str:
    """Return ``location`` as a normalized relative path inside the root.

    Raises:
        InvalidInput: it is absolute, outside the root, the root itself, or a directory of the catalog.
    """
    clean = posixpath.normpath(location) if location else ""
    unusual = "\\" in location or "\0" in location or "://" in location
    if not clean or unusual or clean in (".", "..") or clean.startswith(("/", "../")):
        raise InvalidInput(
            f"{_refusal(location)}the location {location!r} is not a relative path inside the root of the catalog"
        )
    if clean.partition("/")[0] in OWN_DIRECTORIES:
        raise InvalidInput(f"the location {location!r} is reserved for the catalog; choose another location")
    return clean


def _refusal(location: str) -> str:
    """Return the beginning of the native message about a location."""
    if "://" in location:
        return "Absolute URIs are not allowed: "
    if location.startswith("/"):
        return "Absolute paths are not allowed: "
    return "Path traversal is not allowed: " if ".." in location.split("/") else ""


def _described(owner: ManifestEntry) -> str:
    """Return how a message names the table that owns a directory."""
    names = ObjectId.from_key(owner.object_id).names
    if owner.object_type == TABLE:
        return f"the table {ObjectId(names)}"
    return f"the dropped table {ObjectId(names[1:-1])}, which undrop brings back and purge removes"


def _waits(entry: ManifestEntry) -> bool:
    """Return whether the writer that reserved the table's directory can still declare the table."""
    return RESERVED in entry.properties


def entry_of_table(view: CatalogView, object_id: ObjectId) -> ManifestEntry:
    """Return the entry of a table. Raises as `find_table` does."""
    entry = None if object_id.is_root else view.find(object_id.key)
    if entry is None or entry.object_type != TABLE:
        advice = f"the name is a {entry.object_type}" if entry else "list the tables with list_tables or `lancekeep ls`"
        raise TableNotFound(f"the table {object_id} does not exist; {advice}")
    return entry


def require_distinct(ids: Sequence[ObjectId]) -> None:
    """Raise `InvalidInput` if one change names a table twice."""
    for object_id, times in Counter(ids).items():
        if times > 1:
            raise InvalidInput(f"{object_id} is named twice; one change declares or removes a table once")


def require_apart(locations: Sequence[str]) -> None:
    """Raise `InvalidInput` if a directory is, or contains, another directory."""
    above = {part for location in locations for part in ancestors(location.rpartition("/")[0])}
    for location, times in Counter(locations).items():
        if location in above or times > 1:
            raise InvalidInput(f"the location {location!r} overlaps the location of another table of the same change")
