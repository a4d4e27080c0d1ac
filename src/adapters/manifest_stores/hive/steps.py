"""The steps of a change, performed in a Metastore (ADR 130)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import attrs

from lancekeep.adapters.manifest_stores.hive.changes import Step
from lancekeep.adapters.manifest_stores.hive.mapping import (
    DEFAULT_DATABASE,
    ID,
    LAST_CHANGE,
    LOCATION,
    OWN_TYPE,
    REVISION,
    TABLE_TYPE,
    Layout,
    Place,
    database_of,
    new_catalog,
    own_table,
)
from lancekeep.adapters.manifest_stores.hive.plan import (
    FOREIGN,
    foreign,
    is_needed,
    new_revision,
    revision_of,
)
from lancekeep.adapters.manifest_stores.hive.view import VERSION, HiveView
from lancekeep.application.entries.ledger import COMMIT_STORE_PROPERTY
from lancekeep.domain.errors import (
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    Refused,
    StoreUnavailable,
)
from lancekeep.domain.manifest_entry import NAMESPACE, ManifestEntry
from lancekeep.hive.errors import Modified, ObjectExists, ObjectMissing
from lancekeep.hive.messages import EXTERNAL, Database
from lancekeep.hive.messages import Table as HiveTable
from lancekeep.hive.metastore import Metastore

LEFTOVERS = "new_*|gone_*|at_*|in_*"
"""The catalog's own tables that changes prepare or leave behind."""
QUIET = {"DO_NOT_UPDATE_STATS": "true"}
"""Without it, the Metastore lists the directory of a table."""
_REPEATS = 3
"""Attempts of a step, and of a claim, whose reply is lost."""
PAUSE = 0.01
"""Seconds, at most, that a writer waits after a lost race, times the number of lost races up to 10."""

T = TypeVar("T")


def repeated(act: Callable[[], T]) -> T:
    """Repeat an idempotent action whose outcome is unknown."""
    for _ in range(_REPEATS - 1):
        try:
            return act()
        except StoreUnavailable:
            time.sleep(random.uniform(0, PAUSE))
    return act()


class Steps:
    """Performs the steps of changes, and creates and drops the catalog's own tables.

    Args:
        metastore: The Metastore.
        layout: The names and locations of the catalog.
    """

    def __init__(self, metastore: Metastore, layout: Layout) -> None:
        self._metastore, self._layout = metastore, layout

    def create_own(self, place: Place, parameters: Mapping[str, str]) -> None:
        """Create one of the catalog's own tables, and its database. Idempotent."""
        table = own_table(place, parameters)
        with suppress(ObjectExists):
            try:
                self._metastore.create_table(table)
            except (ObjectMissing, Refused, ValueError):
                description = f"Internal to the Lancekeep catalog of {self._layout.root}. Do not change or drop it."
                with suppress(ObjectExists):
                    self._metastore.create_database(
                        Database(place.database, description, parameters={}, catalog=place.catalog)
                    )
                self._metastore.create_table(table)

    # -- before a change -------------------------------------------------------------------------------------------

    def prepare(self, steps: Sequence[Step], token: str, version: int) -> None:
        """Create the catalog's own tables that the steps need.

        Nothing shows them, so they may be left behind.
        """
        for step in steps:
            if step.entry is None or (step.entry.object_type == NAMESPACE and not step.entry.location):
                continue
            place = self._place(step.object_id)
            if step.source is None:
                self.create_own(self._layout.own(place.catalog, step.hidden), {REVISION: new_revision(token)})
            for name in self._layout.owner_rows(step.object_id, str(step.entry.location), token) if step.moves else ():
                row = {ID: step.object_id, LOCATION: str(step.entry.location), VERSION: str(version), REVISION: token}
                self.create_own(self._layout.own(place.catalog, name), row)

    def discard(self, steps: Sequence[Step], token: str) -> None:
        """Remove what `_prepare` has created for steps that are not performed."""
        with suppress(StoreUnavailable):
            for step in steps:
                if step.entry is None or not step.entry.location:
                    continue
                place = self._place(step.object_id)
                names = self._layout.owner_rows(step.object_id, step.entry.location, token)
                for name in [*names, *([step.hidden] if step.source is None else [])]:
                    self.drop_own(self._layout.own(place.catalog, name))

    def drop_own(self, place: Place) -> None:
        with suppress(ObjectMissing):
            self._metastore.drop_table(place.database, place.table, catalog=place.catalog)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _place(self, object_id: str) -> Place:
        place = self._layout.place_of(object_id)
        assert place is not None, object_id  # the plan has checked it
        return place

    def perform(self, step: Step, token: str, view: HiveView, version: int) -> None:
        """Perform a step, unless it was performed. Idempotent, at any time.

        Raises:
            AlreadyExists, NamespaceNotEmpty, NamespaceNotFound: Other software has changed the Metastore.
        """
        place = self._layout.place_of(step.object_id)
        if place is None:
            self._perform_on_catalog(step, view, version)
        elif not place.table:
            self._perform_on_database(step, place, token, version)
        elif step.entry is None:
            self._remove_table(step, place, token, view, version)
        else:
            self._enter_table(step, step.entry, place, token, COMMIT_STORE_PROPERTY in view.properties)
            if step.source is not None and step.moves:
                self._drop_rows(step.source, view, version)

    def _enter_table(self, step: Step, entry: ManifestEntry, place: Place, token: str, managed: bool) -> None:
        """Create a table from one of the catalog's own tables, or change or rename it."""
        if step.source is None:
            source, was = self._layout.own(place.catalog, step.hidden), new_revision(token)
            present: HiveTable | None = own_table(source, {REVISION: was})
        else:
            source, was = self._place(step.source), str(step.was)
            present = self._metastore.table(source.database, source.table, source.catalog)
            if present is None or revision_of(present) != was:
                return
        assert present is not None
        table = self._layout.table_of(entry, place, present, token, managed)
        try:
            self._alter(source, table, was)
        except (ObjectMissing, ObjectExists, Modified, Refused) as error:
            found = self._metastore.table(source.database, source.table, source.catalog)
            if found is None or revision_of(found) != was:
                return  # the step was performed
            if self._metastore.database(place.database, place.catalog) is None:
                raise NamespaceNotFound(
                    f"the database {place.database!r} was dropped from the Hive Metastore; nothing was changed"
                ) from error
            taken = self._metastore.table(place.database, place.table, place.catalog)
            if place != source and taken is not None:
                raise foreign(step.object_id, place, taken) from error
            raise

    def _remove_table(self, step: Step, place: Place, token: str, view: HiveView, version: int) -> None:
        """Remove a table: rename it to one of the catalog's own, by compare-and-set, then drop that."""
        hidden = self._layout.own(place.catalog, step.hidden)
        present = self._metastore.table(place.database, place.table, place.catalog)
        if present is not None and revision_of(present) == step.was:
            parameters = {**(present.parameters or {}), REVISION: token, TABLE_TYPE: OWN_TYPE, "EXTERNAL": "TRUE"}
            gone = attrs.evolve(
                present, database=hidden.database, name=hidden.table, kind=EXTERNAL, parameters=parameters
            )
            with suppress(ObjectMissing, Modified):
                self._alter(place, gone, str(step.was))
        self.drop_own(hidden)
        location = self._layout.relative(present.storage.location) if present and present.storage else None
        if location is None or self._layout.id_at(location) != step.object_id:
            self._drop_rows(step.object_id, view, version)

    def _drop_rows(self, object_id: str, view: HiveView, version: int) -> None:
        """Drop the rows that earlier changes made for the directory of an entry."""
        catalog = self._place(object_id).catalog
        for row in list(view.own_tables(f"*_{self._layout.row_key(object_id)}_*", catalog)):
            parameters = row.parameters or {}
            prepared = parameters.get(VERSION, "")
            if parameters.get(ID) == object_id and prepared.isdecimal() and int(prepared) < version:
                self.drop_own(self._layout.own(catalog, row.name or ""))

    def _alter(self, place: Place, table: HiveTable, was: str) -> None:
        """Change or rename a table if it still has a revision."""
        expected: tuple[str, str] | None = (REVISION, was)
        if was.startswith(FOREIGN):
            seen = was.removeprefix(FOREIGN)
            expected = (LAST_CHANGE, seen) if seen else None
            if seen.isdecimal():
                table = attrs.evolve(table, parameters={**(table.parameters or {}), LAST_CHANGE: str(int(seen) + 1)})
        self._metastore.alter_table(
            place.database, place.table, table, expected=expected, properties=QUIET, catalog=place.catalog
        )

    def _perform_on_database(self, step: Step, place: Place, token: str, version: int) -> None:
        present = self._metastore.database(place.database, place.catalog)
        if step.source is None and step.entry is not None:
            if present is None and not self._is_over(version):
                with suppress(ObjectExists):
                    self._metastore.create_database(database_of(step.entry, place, None, token))
                present = self._metastore.database(place.database, place.catalog)
            if present is not None and (present.parameters or {}).get(REVISION) != token and not self._is_over(version):
                raise NamespaceAlreadyExists(
                    f"other software has created the database {place.database!r} in the Hive Metastore; nothing was "
                    "changed"
                )
            return
        if present is None or revision_of(present) != step.was or self._is_over(version):
            return
        if step.entry is not None:
            database = database_of(step.entry, place, present, token)
            with suppress(ObjectMissing):
                self._metastore.alter_database(place.database, database, place.catalog)
            return
        try:
            self._metastore.drop_database(place.database, catalog=place.catalog)
        except (ObjectMissing, StoreUnavailable):
            if self._metastore.database(place.database, place.catalog) is not None:
                raise
        except Refused as error:
            raise NamespaceNotEmpty(
                f"the database {place.database!r} of the Hive Metastore holds tables of other software; drop them first"
            ) from error

    def _perform_on_catalog(self, step: Step, view: HiveView, version: int) -> None:
        """Create, change or drop a catalog of Hive 3."""
        if self._is_over(version):
            return
        if step.entry is not None:
            catalog = new_catalog(step.entry, self._layout.root)
            with suppress(ObjectExists, ObjectMissing):
                if step.source is not None:
                    self._metastore.alter_catalog(step.object_id, catalog)
                    return
                self._metastore.create_catalog(catalog)
                # A new namespace is empty, and the Metastore adds this database.
                with suppress(Refused, StoreUnavailable):
                    self._metastore.drop_database(DEFAULT_DATABASE, catalog=step.object_id)
            return
        try:
            self._drop_own_database(step.object_id, view)
            self._metastore.drop_catalog(step.object_id)
        except ObjectMissing:
            return
        except Refused as error:
            raise NamespaceNotEmpty(f"the catalog {step.object_id!r} of the Hive Metastore is not empty") from error

    def _drop_own_database(self, catalog: str, view: HiveView) -> None:
        """Drop the database of the catalog's own tables in a catalog of Hive.

        The database stays if another change needs a table in it, so this writer may be late.
        """
        for table in list(view.own_tables(LEFTOVERS, catalog)):
            if not is_needed(view, table):
                self.drop_own(self._layout.own(catalog, table.name or ""))
        with suppress(ObjectMissing, Refused, StoreUnavailable):
            self._metastore.drop_database(self._layout.own_database, catalog=catalog)

    def _is_over(self, version: int) -> bool:
        """Return whether another writer has completed a change: a database has no compare-and-set."""
        place = self._layout.control
        control = self._metastore.table(place.database, place.table, place.catalog)
        return HiveView(self._metastore, self._layout, control).version > version
