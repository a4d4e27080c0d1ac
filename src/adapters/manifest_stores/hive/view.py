"""A catalog in a Hive Metastore, read on demand."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from typing import Any

from lancekeep.adapters.manifest_stores.hive.mapping import (
    ID,
    Layout,
    Place,
    entry_of_catalog,
    entry_of_database,
    is_exposed,
    is_own_database,
    joined,
    record_prefix,
)
from lancekeep.domain.catalog import Listing, Lookup, ManifestStoreGuarantees, Question, ancestors, page
from lancekeep.domain.errors import Damaged, LancekeepError, StoreUnavailable
from lancekeep.domain.identifiers import DROPPED, MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.hive.errors import ObjectMissing
from lancekeep.hive.messages import Catalog, Database
from lancekeep.hive.messages import Table as HiveTable
from lancekeep.hive.metastore import Metastore, Read

VERSION = "lancekeep.version"
"""The parameter of the control table that each change increments by compare-and-set."""
PROPERTIES, CHANGE, TOKENS = "lancekeep.properties", "lancekeep.change", "lancekeep.tokens"
BATCH = 200
"""Tables per request of a listing, which bounds its memory."""
PAGES = 64
"""Pages whose names a process keeps."""
_IS_LANCE = " or ".join(f'hive_filter_field_params__table_type like "{value}"' for value in ("lance", "LANCE", "Lance"))


class Pages:
    """The names of the pages that a process has read last, as guesses."""

    def __init__(self) -> None:
        self._names: dict[Question, list[str]] = {}
        self._slow: set[Question] = set()

    def of(self, question: Question) -> list[str]:
        """Return the names that the page of a question had."""
        return self._names.get(question, [])

    def note(self, question: Question, names: Sequence[str]) -> None:
        """Keep the names of the page of a question."""
        if len(self._names) + len(self._slow) >= PAGES:
            self._names.clear()
            self._slow.clear()
        if question not in self._slow:
            self._names[question] = list(names)

    def give_up(self, question: Question) -> None:
        """Guess no more names for a question.

        All answers together take longer than a call may.
        """
        if self._names.pop(question, None) is not None:
            self._slow.add(question)


class HiveView:
    """A `CatalogView` of what the Metastore has at each call; it keeps what it found.

    The control table has the version and the properties of the root. Other software changes tables without a new
    version, so two answers may be of different times.

    Args:
        metastore: The Metastore.
        layout: The names and locations.
        control: The control table, or None if the catalog does not exist yet.

    Attributes:
        exposed: The ids of listed tables whose files a drop by other software would remove.
    """

    unnamed = 0

    def __init__(self, metastore: Metastore, layout: Layout, control: HiveTable | None) -> None:
        self._metastore, self._layout, self.control = metastore, layout, control
        self._tables: dict[Place, HiveTable | None] = {}
        self._databases: dict[Place, Database | None] = {}
        self._catalogs: dict[str, Catalog | None] = {}
        self._foreseen: list[tuple[Read, Any]] = []
        self._note_page: Callable[[Sequence[str]], None] | None = None
        self.exposed: list[str] = []

    @staticmethod
    def asked(metastore: Metastore, layout: Layout, question: Question, pages: Pages) -> HiveView:
        """Read a view and its answer to a question in one round trip.

        Args:
            metastore: The Metastore.
            layout: The names and locations.
            question: The question.
            pages: The names of the pages that were read last. A page probably has these names again, so their tables
                are read, too. The names that the Metastore answers decide whether these tables are the page.
        """
        place, read = layout.control, _read_for(layout, question)
        reads = [Read.table(place.database, place.table, place.catalog), *([] if read is None else [read])]
        page, names = (
            layout.place_of(question.parent.key) if isinstance(question, Listing) else None,
            pages.of(question),
        )
        if names and page is not None:
            reads.append(Read.tables(page.database, names, page.catalog))
        try:
            control, *answers = metastore.together(*reads)
        except StoreUnavailable:
            pages.give_up(question)
            raise
        if isinstance(control, LancekeepError):
            raise control
        view = HiveView(metastore, layout, control)
        # After an error, the view asks again, and raises the error where the caller expects it.
        view._foreseen = [
            each for each in zip(reads[1:], answers, strict=True) if not isinstance(each[1], LancekeepError)
        ]
        view._note_page = partial(pages.note, question)
        return view

    @property
    def guarantees(self) -> ManifestStoreGuarantees:
        return self._layout.guarantees

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters of the control table."""
        return (self.control.parameters if self.control else None) or {}

    @cached_property
    def version(self) -> int:
        try:
            return int(self.parameters.get(VERSION, "0"))
        except ValueError:
            raise self.damaged() from None

    @cached_property
    def properties(self) -> Mapping[str, str]:
        try:
            found = json.loads(joined(PROPERTIES, self.parameters) or "{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise self.damaged()
        return found

    @property
    def entered(self) -> Mapping[str, str]:
        return self.properties

    @property
    def columns(self) -> Mapping[str, str]:
        return {}

    # -- one entry -------------------------------------------------------------------------------------------------

    def table(self, place: Place) -> HiveTable | None:
        """Return any table or view of the Metastore."""
        if place not in self._tables:
            self._tables[place] = self._ask(Read.table(place.database, place.table, place.catalog))
        return self._tables[place]

    def database(self, place: Place) -> Database | None:
        """Return a database of the Metastore."""
        if place not in self._databases:
            self._databases[place] = self._ask(Read.database(place.database, place.catalog))
        return self._databases[place]

    def catalog(self, name: str) -> Catalog | None:
        """Return a catalog of Hive 3."""
        if name not in self._catalogs:
            self._catalogs[name] = self._ask(Read.catalog(name))
        return self._catalogs[name]

    def find(self, object_id: str) -> ManifestEntry | None:
        place = self._layout.place_of(object_id)
        if place is None:
            name = self._layout.catalog_of(object_id)
            catalog = None if name is None else self.catalog(name)
            return None if catalog is None else entry_of_catalog(object_id, catalog)
        if not place.table:
            database = self.database(place)
            return None if database is None else entry_of_database(object_id, database)
        table = self.table(place)
        return None if table is None else self._entry(object_id, table)

    def _entry(self, object_id: str, table: HiveTable) -> ManifestEntry | None:
        if object_id.startswith(DROPPED + MANIFEST_DELIMITER):
            entry = self._layout.entry_of_record(table)
            return entry if entry is not None and entry.object_id == object_id else None
        return self._layout.entry_of_table(object_id, table)

    # -- listings --------------------------------------------------------------------------------------------------

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        if parent.names[:1] == (DROPPED,):
            below = self._records(parent.names[1:]) if object_type == NAMESPACE else ()
            names = [ObjectId.from_key(entry.object_id).names for entry in below]
            length = len(parent.names)
            return page(sorted({each[length] for each in names if len(each) == length + 1}), after, limit)
        if object_type == NAMESPACE:
            return page(self._namespaces(parent), after, limit)
        if object_type != TABLE:
            return [], None
        most = None if limit is None else limit + 1
        chosen = islice(self._tables_of(parent, after, most), most)
        return page([ObjectId.from_key(entry.object_id).name for entry in chosen], None, limit)

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        if parent.names[:1] == (DROPPED,):
            yield from self._records(parent.names[1:])
            return
        for namespace in self._below(parent):
            found = self.find(namespace.key)
            if found is not None:
                yield found
            yield from self._tables_of(namespace)
        yield from self._tables_of(parent)
        if parent.is_root:
            yield from self._records(())

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        if object_type == NAMESPACE:
            records = sorted(self._records(()), key=lambda entry: entry.object_id)  # before each name of a Metastore
            yield from (entry for entry in records if after is None or entry.object_id > after)
            for namespace in self._below(ObjectId()):
                found = self.find(namespace.key) if after is None or namespace.key > after else None
                if found is not None:
                    yield found
        elif object_type == TABLE:
            for namespace in self._below(ObjectId()):
                start = None
                if after is not None and f"{namespace.key}{MANIFEST_DELIMITER}" <= after:
                    if not after.startswith(f"{namespace.key}{MANIFEST_DELIMITER}"):
                        continue
                    start = after.rpartition(MANIFEST_DELIMITER)[2]
                yield from self._tables_of(namespace, start)

    def owner_of(self, location: str) -> ManifestEntry | None:
        """Find the table of a directory by its name, or by the rows of directories."""
        places = [location, *islice(ancestors(location), 1, None)]
        ids = [each for place in places if (each := self._layout.id_at(place)) is not None]
        prescribed = self.find(ids[0]) if self._layout.id_at(location) is not None else None
        if prescribed is not None and prescribed.location == location:
            return prescribed  # the most specific owner
        rows = self.own_tables("|".join(self._layout.owner_patterns(location)))
        ids += [id_ for row in rows if (id_ := (row.parameters or {}).get(ID)) is not None]
        owners = [entry for each in dict.fromkeys(ids) if (entry := self.find(each)) is not None and entry.location]
        ranks = {place: rank for rank, place in enumerate(places)}
        above = [entry for entry in owners if entry.location in ranks]
        if above:
            return min(above, key=lambda entry: (ranks[str(entry.location)], entry.object_type != TABLE))
        below = [entry for entry in owners if str(entry.location).startswith(f"{location}/")]
        return min(below, key=lambda entry: str(entry.location)) if below else self._prescribed_below(location)

    def _prescribed_below(self, location: str) -> ManifestEntry | None:
        """Return a table in a directory that contains the prescribed directories of tables."""
        if location.endswith(".db"):
            names = (*([] if not self._layout.catalogs else location.split("/")[:-1] or ["hive"]),)
            namespace = ObjectId((*names, location.rpartition("/")[2].removesuffix(".db")))
            found = self._tables_of(namespace) if len(namespace.names) == self._layout.levels else iter(())
            return next((entry for entry in found if str(entry.location).startswith(f"{location}/")), None)
        if self._layout.catalogs and "/" not in location:
            below = (entry for each in self._below(ObjectId((location,))) for entry in self._tables_of(each))
            return next((entry for entry in below if str(entry.location).startswith(f"{location}/")), None)
        return None

    # -- requests --------------------------------------------------------------------------------------------------

    def _ask(self, read: Read) -> Any:
        """Return the answer to a read, which was read with the view or is read now."""
        found = self._taken(read)
        return self._metastore.read(read) if found is None else found[0]

    def _taken(self, read: Read) -> tuple[Any] | None:
        """Return the answer that was read with the view, once."""
        for each in list(self._foreseen):
            if each[0] == read:
                with suppress(ValueError):  # another thread has taken it, too
                    self._foreseen.remove(each)
                return (each[1],)
        return None

    def _namespaces(self, parent: ObjectId) -> list[str]:
        """Return the sorted names of the namespaces in a namespace."""
        depth = self._layout.levels - len(parent.names)
        if depth < 1 or (parent.names and not self._layout.can_hold(parent.names)):
            return []
        if depth == 2:
            return sorted(self._ask(Read.catalogs()))
        databases = self._ask(Read.databases(catalog=parent.names[0] if self._layout.catalogs else None))
        return sorted(name for name in databases if not is_own_database(name))

    def _below(self, parent: ObjectId) -> Iterator[ObjectId]:
        """Iterate over the namespaces below a namespace, in the byte order of their ids."""
        for name in self._namespaces(parent):
            child = ObjectId((*parent.names, name))
            yield child
            yield from self._below(child)

    def _tables_of(
        self, namespace: ObjectId, after: str | None = None, most: int | None = None
    ) -> Iterator[ManifestEntry]:
        """Iterate over the tables in a namespace after a name, in byte order.

        The names are one request, and the tables one per `BATCH`. The caller takes at most ``most`` tables.
        """
        size = BATCH if most is None else min(BATCH, most)
        place = self._layout.place_of(namespace.key)
        if place is None or place.table:
            return
        try:
            names = sorted(self._ask(Read.filtered(place.database, _IS_LANCE, catalog=place.catalog)))
            start = 0 if after is None else bisect_right(names, after)
            for at in range(start, len(names), size):
                chosen = names[at : at + size]
                if at == start and self._note_page is not None:
                    self._note_page(chosen)
                foreseen = self._taken(Read.tables(place.database, chosen, place.catalog))
                tables = (
                    self._metastore.tables(place.database, chosen, place.catalog) if foreseen is None else foreseen[0]
                )
                found = {it.name: it for it in tables}
                for name in chosen:
                    table = found.get(name)
                    entry = None if table is None else self._entry(f"{namespace.key}{MANIFEST_DELIMITER}{name}", table)
                    if entry is not None:
                        if table is not None and is_exposed(table):
                            self.exposed.append(entry.object_id)
                        yield entry
        except ObjectMissing:  # the database was dropped
            return

    def _records(self, names: Sequence[str]) -> Iterator[ManifestEntry]:
        """Iterate over the records of dropped tables, of all or below a name."""
        prefix = record_prefix(tuple(names))
        for table in self.own_tables(f"{prefix}_*|{prefix}" if names else f"{prefix}*", names[0] if names else None):
            entry = self._layout.entry_of_record(table)
            if entry is not None:
                yield entry

    def names_in(self, place: Place) -> list[str]:
        """Return the names of all tables and views of a database."""
        return self._metastore.table_names(place.database, catalog=place.catalog)

    def own_tables(self, pattern: str, catalog: str | None = None) -> Iterator[HiveTable]:
        """Iterate over the catalog's own tables that match a pattern."""
        if self.control is None:
            return
        catalogs: Sequence[str | None] = [None]
        if self._layout.catalogs:
            catalogs = [catalog] if catalog is not None else sorted(self._metastore.catalogs() or ())
        for each in catalogs:
            database = self._layout.own_database
            names = sorted(self._metastore.table_names(database, pattern, each))
            for at in range(0, len(names), BATCH):
                yield from self._metastore.tables(database, names[at : at + BATCH], each)

    def damaged(self) -> Damaged:
        place = self._layout.control
        return Damaged(
            f"the parameters of the table {place.database}.{place.table} of the Hive Metastore are not a catalog; "
            "restore them from a backup of the Metastore's database"
        )


def _read_for(layout: Layout, question: Question) -> Read | None:
    """Return the first read of the view for a question; None if it needs none."""
    match question:
        case Lookup(object_id):
            place = layout.place_of(object_id)
            if place is None:
                catalog = layout.catalog_of(object_id)
                return None if catalog is None else Read.catalog(catalog)
            if not place.table:
                return Read.database(place.database, place.catalog)
            return Read.table(place.database, place.table, place.catalog)
        case Listing(parent, object_type) if object_type == TABLE:
            place = layout.place_of(parent.key)
            if place is None or place.table:
                return None
            return Read.filtered(place.database, _IS_LANCE, catalog=place.catalog)
        case Listing(parent):
            if parent.is_root:
                return Read.catalogs() if layout.catalogs else Read.databases()
            is_catalog = layout.catalog_of(parent.key) is not None
            return Read.databases(catalog=parent.key) if is_catalog else None
