"""The steps of a change, and what forbids it, found before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lancekeep.adapters.manifest_stores.hive.changes import Step
from lancekeep.adapters.manifest_stores.hive.mapping import (
    ID,
    LAST_CHANGE,
    LOCATION,
    REVISION,
    TABLE_TYPE,
    Layout,
    Place,
    database_of,
    is_foreign,
    new_catalog,
    own_table,
)
from lancekeep.adapters.manifest_stores.hive.view import VERSION, HiveView
from lancekeep.application.entries.ledger import COMMIT_STORE_PROPERTY
from lancekeep.domain.catalog import AddColumns, Change, Put, Remove, SetProperties
from lancekeep.domain.errors import LancekeepError, NamespaceNotEmpty, TableAlreadyExists, Unsupported
from lancekeep.domain.identifiers import DROPPED, ObjectId
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry
from lancekeep.hive.messages import Database
from lancekeep.hive.messages import Table as HiveTable

FOREIGN = "at "
"""The beginning of the revision of an object that other software created."""


def entered_again(view: HiveView, object_id: str) -> Sequence[Change]:
    """Enter a table again, which makes it external."""
    entry = view.find(object_id)
    return [] if entry is None else [Put(entry)]


def is_needed(view: HiveView, own: HiveTable) -> bool:
    """Return whether one of the catalog's own tables is needed.

    A table that was prepared for a version is not needed once this version has another change.
    """
    parameters = own.parameters or {}
    kind, version, *_ = (*(own.name or "").split("_"), "", "")
    if kind in ("at", "in"):
        version = parameters.get(VERSION, "")
        entry = view.find(parameters.get(ID, ""))
        if entry is not None and entry.location == parameters.get(LOCATION):
            return True
    return not version.isdecimal() or int(version) > view.version


def new_revision(token: str) -> str:
    """Return the revision of an object that the change with a token creates."""
    return f"new {token}"


class Plan:
    """Makes steps of changes."""

    def __init__(self, view: HiveView, layout: Layout) -> None:
        self._view, self._layout = view, layout

    def of(self, changes: Sequence[Change]) -> tuple[list[Step], dict[str, str]]:
        """Return the steps, and the properties of the root after them.

        A table that is removed and entered again with its directory is renamed in one step.

        Raises:
            AlreadyExists: A table of other software has the name.
            NamespaceNotEmpty: A database holds tables of other software.
            Unsupported, InvalidInput: The Metastore cannot hold an entry.
        """
        properties = dict(self._view.properties)
        entries: dict[str, ManifestEntry | None] = {}
        for change in changes:
            match change:
                case Put(entry):
                    entries[entry.object_id] = entry
                case Remove(object_id):
                    entries[object_id] = None
                case SetProperties():
                    properties = change.merged_into(properties)
                case AddColumns():
                    raise self._layout.guarantees.refusal("has no columns for values of extensions")
        moved = self._moved(entries)
        managed = COMMIT_STORE_PROPERTY in properties
        steps = []
        for object_id, after in entries.items():
            if object_id in moved.values():
                continue
            target = moved.get(object_id)
            if target is not None:
                steps.append(self._entered(target, entries[target], object_id, managed))
            elif after is not None:
                steps.append(self._entered(object_id, after, None, managed))
            else:
                steps += self._removed(object_id, entries)
        return sorted(steps, key=self._rank), properties

    def _rank(self, step: Step) -> int:
        """Return the place of a step in the order: namespaces are removed after what is in them."""
        place = self._layout.place_of(step.object_id)
        if step.entry is not None or (place is not None and place.table):
            return 0
        return 1 if place is not None else 2

    def _moved(self, entries: Mapping[str, ManifestEntry | None]) -> dict[str, str]:
        """Return the new ids of renamed tables by their old ones."""
        new = {entry.location: each for each, entry in entries.items() if entry is not None and entry.location
               and self._view.find(each) is None}  # fmt: skip
        moved = {}
        for object_id, entry in entries.items():
            before = self._view.find(object_id) if entry is None else None
            if before is not None and before.location in new:
                moved[object_id] = new.pop(before.location)
        return {
            old: target
            for old, target in moved.items()
            if not self._layout.catalogs or self._catalog(old) == self._catalog(target)
        }

    def _catalog(self, object_id: str) -> str | None:
        place = self._layout.place_of(object_id)
        return None if place is None else place.catalog

    def _entered(self, object_id: str, entry: ManifestEntry | None, source: str | None, managed: bool) -> Step:
        assert entry is not None
        place, guarantees = self._layout.place_of(object_id), self._layout.guarantees
        is_record = object_id.startswith(f"{DROPPED}$")
        if place is None and self._layout.catalog_of(object_id):
            return self._entered_catalog(object_id, entry)
        if place is None or (entry.object_type == TABLE) is not (bool(place.table) and not is_record):
            raise guarantees.refusal(f"cannot hold {ObjectId.from_key(object_id)} as a {entry.object_type}")
        if not place.table:
            database = self._view.database(place)
            database_of(entry, place, database, "")
            found = None if database is None else revision_of(database)
            return Step(object_id, entry, None if database is None else object_id, found)
        if entry.location is None:
            raise guarantees.refusal(f"needs a directory for {ObjectId.from_key(object_id)}")
        present = self._view.table(place)
        if present is not None and self._view.find(object_id) is None:
            raise foreign(object_id, place, present)
        if source is not None:
            before = self._view.table(self._place(source))
        else:
            before, source = present, None if present is None else object_id
        self._layout.table_of(entry, place, before or own_table(place, {}), "", managed)
        if before is None:
            return Step(object_id, entry, hidden="new")
        location = before.storage.location if before.storage else None
        moves = source != object_id or self._layout.relative(location) != entry.location
        return Step(object_id, entry, source, revision_of(before), moves=moves)

    def _entered_catalog(self, object_id: str, entry: ManifestEntry) -> Step:
        catalog, present = new_catalog(entry, self._layout.root), self._view.catalog(object_id)
        if present is None:
            return Step(object_id, entry)
        if present.description and not catalog.description:
            raise Unsupported(
                f"a Hive Metastore does not remove the description of the catalog {object_id!r}; nothing was changed. "
                "Give another description"
            )
        return Step(object_id, entry, object_id)

    def _removed(self, object_id: str, entries: Mapping[str, ManifestEntry | None]) -> Iterator[Step]:
        if self._view.find(object_id) is None:
            return
        place = self._layout.place_of(object_id)
        if place is None:
            self._require_no_records(object_id, entries)
            yield Step(object_id, source=object_id)
        elif not place.table:
            database = self._view.database(place)
            present = self._view.names_in(place)
            others = [name for name in present if entries.get(f"{object_id}${name}", name) is not None]
            if others:
                raise NamespaceNotEmpty(
                    f"the namespace {ObjectId.from_key(object_id)} is not empty: its database in the Hive Metastore "
                    f"holds the table {others[0]!r} of other software, which Lancekeep does not drop. Drop it "
                    "there first"
                )
            yield Step(object_id, source=object_id, was=None if database is None else revision_of(database))
        else:
            table = self._view.table(place)
            yield Step(object_id, source=object_id, was=None if table is None else revision_of(table), hidden="gone")

    def _require_no_records(self, catalog: str, entries: Mapping[str, ManifestEntry | None]) -> None:
        """Check that a catalog of Hive holds no dropped table: a table stays in its catalog."""
        below = ObjectId((DROPPED, catalog))
        before = {entry.object_id: entry for entry in self._view.descendants(below)}
        after = {**before, **{each: it for each, it in entries.items() if each.startswith(f"{below.key}$")}}
        kept = [each for each, entry in after.items() if entry is not None]
        if kept:
            table = ObjectId(ObjectId.from_key(kept[0]).names[1:-1])
            raise NamespaceNotEmpty(
                f"the catalog {catalog!r} of Hive has to keep the dropped table {table}, which undrop can "
                "bring back; nothing was changed. Drop the tables with keep=0, or purge them, and then drop the catalog"
            )

    def _place(self, object_id: str) -> Place:
        place = self._layout.place_of(object_id)
        assert place is not None, object_id
        return place


def foreign(object_id: str, place: Place, table: HiveTable) -> LancekeepError:
    """Return the error for a name that a table of other software has."""
    parameters = table.parameters or {}
    where = table.storage.location if table.storage else None
    found = f"a {table.kind} with table_type={parameters.get(TABLE_TYPE)!r}" + (f" at {where}" if where else "")
    return TableAlreadyExists(
        f"the name {ObjectId.from_key(object_id)} is taken in the Hive Metastore by {place.database}.{place.table}, "
        f"{found}, which is no Lance table of this catalog. Lancekeep neither shows nor changes it; choose another name"
    )


def revision_of(found: HiveTable | Database) -> str:
    """Return the revision of a table or database."""
    parameters = found.parameters or {}
    if isinstance(found, HiveTable) and is_foreign(found):
        return FOREIGN + parameters.get(LAST_CHANGE, "")
    return parameters.get(REVISION, FOREIGN)
