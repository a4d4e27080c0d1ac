"""Dropped tables, and the decisions about them (ADR 109).

The record of a dropped table is an entry below the namespace `DROPPED`, which does not exist: no list of Lancekeep or
of a native reader shows it. Its last name tells drops of one name apart, and sorts by time. Times and spans are whole
microseconds; times are since 1970, in UTC.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping

import attrs

from lancekeep.domain.catalog import CatalogView, Change, Put, Remove, require_free, require_namespace
from lancekeep.domain.errors import ConcurrentModification, Damaged, InvalidInput, Refused, TableNotFound
from lancekeep.domain.identifiers import DROPPED, MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, OWN_PROPERTIES, TABLE, ManifestEntry, encode_properties
from lancekeep.domain.partition_rules import require_enterable
from lancekeep.domain.partitions import without_partition
from lancekeep.domain.protection import require_unprotected
from lancekeep.domain.table import Table, confined, entry_of_table

UNDROP = f"{OWN_PROPERTIES}undrop"
"""The property by which dropped tables are kept: of the root namespace for all tables, or of one table."""
NEW_CATALOG = {UNDROP: "7d"}
"""The properties of the root of a new catalog."""

_RECORD = f"{OWN_PROPERTIES}dropped"
_SPAN = re.compile(r"([0-9]{1,9})([smhd])|0")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SECOND = 1_000_000
_LAST = 253_402_300_799_999_999
"""The end of the year 9999, after which no date follows."""


@attrs.frozen
class DropRecord:
    """The record of a dropped table; see `DroppedTable`."""

    id: ObjectId
    drop: str
    location: str
    properties: Mapping[str, str]
    at: int
    until: int
    by: str
    is_purging: bool = False

    @staticmethod
    def from_entry(entry: ManifestEntry) -> DropRecord:
        """Return the dropped table of a record.

        Raises:
            Damaged: The record cannot be read, or names a directory outside of the root.
        """
        names = ObjectId.from_key(entry.object_id).names
        try:
            properties = entry.properties
            record = json.loads(properties.pop(_RECORD))
            at, until = record["at"], record["until"]
            if not (isinstance(at, int) and isinstance(until, int) and 0 <= at <= until <= _LAST):
                raise ValueError(f"it was dropped at {at!r:.40}, to stay until {until!r:.40}")
            return DropRecord(
                ObjectId(names[1:-1]),
                names[-1],
                confined(entry.location or ""),
                properties,
                at,
                until,
                str(record["by"]),
                record.get("purging") is True,
            )
        except (Damaged, InvalidInput, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(
                f"the record of the dropped table {'.'.join(names[1:-1])} is not usable ({error!r:.200}). If its "
                f"directory {entry.location!r:.200} holds the table, enter the table with register_table after "
                "`lancekeep repair` has removed the record"
            ) from error

    @property
    def table(self) -> Table:
        """The table as it was."""
        return Table(self.id, self.location, self.properties)

    @property
    def key(self) -> str:
        """The object id of the record."""
        return ObjectId((DROPPED, *self.id.names, self.drop)).key

    def is_over(self, now: int) -> bool:
        """Return whether the table may be purged: from ``until`` on."""
        return now >= self.until

    def entry(self, extension: Mapping[str, object]) -> ManifestEntry:
        """Return the record as an entry."""
        record = {"at": self.at, "until": self.until, "by": self.by}
        text = json.dumps(record | ({"purging": True} if self.is_purging else {}))
        metadata = encode_properties({**self.properties, _RECORD: text})
        return ManifestEntry(self.key, NAMESPACE, self.location, metadata, extension)


def kept_for(keep: int | None, catalog: Mapping[str, str], table: Mapping[str, str]) -> int:
    """Return how long a table stays after its drop; 0 if it is removed at once.

    Args:
        keep: The time of the call; None for the property of the table, or else of the catalog.
        catalog: The properties of the root namespace.
        table: The properties of the table.

    Raises:
        InvalidInput: ``keep`` is negative.
        Damaged: The stored property is no time.
    """
    if keep is not None:
        if keep < 0:
            raise InvalidInput(f"keep is {keep / SECOND} seconds; it is a time span, at least 0")
        return keep
    try:
        return checked_undrop(table.get(UNDROP, catalog.get(UNDROP, "0")))
    except InvalidInput as error:
        raise Damaged(f"a stored property is not usable: {error}. Nothing was dropped; pass keep, or set it") from error


def checked_undrop(value: str) -> int:
    """Return the time that a property states.

    Raises:
        InvalidInput: It is no number of seconds, minutes, hours or days.
    """
    found = _SPAN.fullmatch(value)
    if found is None:
        raise InvalidInput(f"the property {UNDROP!r} is {value!r}; expected a time such as '7d', '12h', '30m' or '0'")
    return 0 if found[1] is None else int(found[1]) * _SECONDS[found[2]] * SECOND


# -- reading -------------------------------------------------------------------------------------------------------


def is_record(entry: ManifestEntry) -> bool:
    """Return whether an entry is the record of a dropped table."""
    return entry.object_type != TABLE and entry.object_id.startswith(f"{DROPPED}{MANIFEST_DELIMITER}")


def records(view: CatalogView) -> Iterator[ManifestEntry]:
    """Iterate over the records of all dropped tables, unordered."""
    return filter(is_record, view.descendants(ObjectId((DROPPED,))))


def dropped_tables(view: CatalogView, below: ObjectId) -> list[DropRecord]:
    """Return the dropped tables with an identifier, or below a namespace.

    They are in the order of identifiers and times. Records that cannot be read are left out; `fsck` reports them.
    """
    found = []
    for entry in filter(is_record, view.descendants(ObjectId((DROPPED, *below.names)))):
        try:
            found.append(DropRecord.from_entry(entry))
        except Damaged:
            continue
    return sorted(found, key=lambda each: (each.id, each.drop))


def find_dropped(view: CatalogView, object_id: ObjectId, drop: str | int | None) -> DropRecord:
    """Return a dropped table.

    Args:
        view: The catalog.
        object_id: The identifier that the table had.
        drop: The name or the time of the drop; None for the latest.

    Raises:
        TableNotFound: No dropped table has this identifier, or none was dropped then.
        Damaged: Its record cannot be read.
    """
    parent = ObjectId((DROPPED, *object_id.names))
    names, _ = view.children(parent, NAMESPACE) if object_id.names else ([], None)
    found = [entry for name in names if (entry := view.find(ObjectId((*parent.names, name)).key)) is not None]
    for entry in reversed(found):
        if drop is None or ObjectId.from_key(entry.object_id).name == drop:
            return DropRecord.from_entry(entry)
        if isinstance(drop, int) and (dropped := DropRecord.from_entry(entry)).at == drop:
            return dropped
    which = "" if drop is None else f" that was dropped as {drop!r:.100}"
    raise TableNotFound(
        f"there is no dropped table {object_id}{which} to bring back; list the dropped tables with list_dropped"
    )


def owner_id(entry: ManifestEntry) -> ObjectId:
    """Return the identifier of the table, or dropped table, that owns a directory."""
    names = ObjectId.from_key(entry.object_id).names
    return ObjectId(names[1:-1] if is_record(entry) else names)


def is_held(view: CatalogView, location: str) -> bool:
    """Return whether a table, or a dropped one, has exactly this directory."""
    owner = view.owner_of(location)
    if owner is None or owner.location != location:
        return False
    return owner.object_type == TABLE or not DropRecord.from_entry(owner).is_purging


# -- decisions -----------------------------------------------------------------------------------------------------


def drop_table(view: CatalogView, table: Table, at: int, keep: int, by: str) -> list[Change]:
    """Remove the entry of a table, and record it as dropped.

    Args:
        view: The catalog.
        table: The table as the caller read it.
        at: The time of the drop.
        keep: How long the table can be brought back.
        by: Who drops it.

    Raises:
        TableNotFound: The table does not exist.
        ConcurrentModification: Another table has the name now.
        Refused: The table is protected.
        Unsupported: The catalog is a V1 directory.
        InvalidInput: ``keep`` ends after the last date.
    """
    entry = entry_of_table(view, table.id)
    require_unprotected(view, table.id, "drop")
    if entry.location != table.location:
        raise ConcurrentModification(
            f"the table {table.id} is no longer at {table.location!r}: it was moved, or recreated; nothing was dropped"
        )
    return [Remove(table.id.key), record_drop(view, table, at, keep, by)]


def record_drop(view: CatalogView, table: Table, at: int, keep: int, by: str) -> Put:
    """Return the record of a table whose entry the same change removes.

    Raises as `drop_table` does.
    """
    if not view.guarantees.properties:
        raise view.guarantees.refusal(
            f"has no place for the record by which {table.id} could be brought back, so nothing was dropped. keep=0 "
            "removes a table at once"
        )
    if at + keep > _LAST:
        raise InvalidInput(f"keep is {keep // SECOND} seconds, which ends after the year 9999; nothing was dropped")
    # The time keeps the names in order. A directory is dropped only once, so its digest tells drops at one time apart.
    digest = hashlib.sha256(table.location.encode()).hexdigest()[:8]
    dropped = DropRecord(table.id, f"{at:016d}-{digest}", table.location, table.properties, at, at + keep, by)
    return Put(dropped.entry(entry_of_table(view, table.id).extension))


def undrop_table(view: CatalogView, dropped: DropRecord, target: ObjectId) -> tuple[Remove, Put]:
    """Enter a dropped table again.

    A partition that gets another name is a plain table from then on.

    Args:
        view: The catalog.
        dropped: The dropped table.
        target: The identifier of the table from now on.

    Raises:
        NamespaceNotFound: The namespace of ``target`` does not exist.
        TableAlreadyExists: An object has the name.
        TableNotFound: The table was brought back or purged since.
        Refused: The removal of its files has begun, or the name belongs to the partitioned namespace.
    """
    entry = view.find(dropped.key)
    if entry is None:
        raise TableNotFound(f"the dropped table {dropped.id} ({dropped.drop}) was brought back or purged since")
    if DropRecord.from_entry(entry).is_purging:
        raise Refused(
            f"the dropped table {dropped.id} ({dropped.drop}) cannot be brought back: the removal of its files has "
            "begun. Purge it again to complete that"
        )
    if target.is_root:
        raise InvalidInput("the empty identifier is the root namespace; give the table a name")
    require_namespace(view, target.parent)
    require_free(view, target, TABLE)
    table = attrs.evolve(ManifestEntry.table(target, dropped.location, dropped.properties), extension=entry.extension)
    if target != dropped.id:  # a partition may return to its own name only
        require_enterable(view, target)
        table = without_partition(table)
    return Remove(dropped.key), Put(table)


def purge_table(view: CatalogView, dropped: DropRecord, *, begins: bool) -> list[Change]:
    """Mark a dropped table whose files will be removed, or take the mark away.

    A marked table cannot be brought back.

    Raises:
        TableNotFound: The table was brought back or purged since.
        Refused: Its name is protected.
    """
    entry = view.find(dropped.key)
    if entry is None:
        raise TableNotFound(f"the dropped table {dropped.id} ({dropped.drop}) was brought back or purged since")
    if begins:
        require_unprotected(view, dropped.id, "purge")
    return [Put(attrs.evolve(dropped, is_purging=begins).entry(entry.extension))]
