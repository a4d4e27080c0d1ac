"""Manifest store in a Hive Metastore (ADR 130).

A Metastore changes one object at a time. So a control table has the version of the catalog and the steps of its latest
change. A change first claims the next version by compare-and-set, then performs its steps; another writer completes
the steps of the latest change before it decides its own. Each step on a table is a compare-and-set of the table's
revision, so a step that arrives late changes nothing.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, TypeVar
from uuid import uuid4

import attrs

from lancekeep.adapters.manifest_stores.hive.changes import Step, decode, encode
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
    in_pieces,
    is_foreign,
    joined,
    new_catalog,
    own_table,
    record_prefix,
)
from lancekeep.adapters.manifest_stores.hive.plan import (
    FOREIGN,
    Plan,
    entered_again,
    foreign,
    is_needed,
    new_revision,
    revision_of,
)
from lancekeep.adapters.manifest_stores.hive.view import CHANGE, PROPERTIES, TOKENS, VERSION, HiveView
from lancekeep.application.entries.ledger import COMMIT_STORE_PROPERTY
from lancekeep.domain.catalog import ManifestStoreGuarantees, Put
from lancekeep.domain.errors import (
    AlreadyExists,
    ConcurrentModification,
    InvalidInput,
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    Refused,
    StoreUnavailable,
    UnsafeStore,
    Unsupported,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.hive.address import OPTIONS, Address
from lancekeep.hive.errors import Modified, ObjectExists, ObjectMissing
from lancekeep.hive.messages import EXTERNAL, Database
from lancekeep.hive.messages import Table as HiveTable
from lancekeep.hive.metastore import Metastore
from lancekeep.ports.manifest_store import Decision, Result
from lancekeep.ports.object_store import ObjectInfo, ObjectStore
from lancekeep.store_urls import StoreUrl

CATALOGS = "catalogs"
_ATTEMPTS = 100
_REPEATS = 3
"""Attempts of a step, and of a claim, whose reply is lost."""
_PAUSE = 0.01
"""Seconds, at most, that a writer waits after a lost race, times the number of lost races up to 10."""
_REMEMBERED = 32
"""Latest changes whose tokens the control table keeps, to settle a lost reply."""
_QUIET = {"DO_NOT_UPDATE_STATS": "true"}
"""Without it, the Metastore lists the directory of a table."""

T = TypeVar("T")


class HiveManifestStore:
    """Keep the entries of a catalog in a Hive Metastore. The first call connects.

    Args:
        metastore: The Metastore.
        layout: The names and locations of the catalog.
    """

    options: ClassVar[frozenset[str]] = OPTIONS | {CATALOGS}
    history = None
    feed = None

    def __init__(self, metastore: Metastore, layout: Layout) -> None:
        self._metastore, self._layout = metastore, layout
        self.url = f"{metastore.url}?{CATALOGS}=true" if layout.catalogs else metastore.url
        self._known: HiveView | None = None
        self._completed = ""
        self._is_safe = self._has_catalogs = False

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore, root_key: str) -> HiveManifestStore:
        if url.parts.path.strip("/"):
            url.refuse("expected no path: the Metastore's databases are the namespaces")
        root = f"{objects.root_uri}{root_key}".rstrip("/")
        address = Address.of(url)
        return cls(Metastore.of(address), Layout(root, url.boolean(CATALOGS, False)))

    def __repr__(self) -> str:
        return f"HiveManifestStore({self.url!r})"

    @property
    def guarantees(self) -> ManifestStoreGuarantees:
        return self._layout.guarantees

    def location_of(self, table_id: ObjectId) -> str | None:
        return self._layout.location_of(table_id)

    def view(self) -> HiveView:
        self._known = self._viewed(self._control())
        return self._known

    def recent(self) -> HiveView:
        return self._known or self.view()

    def apply(self, decide: Decision[Result]) -> tuple[HiveView, Result]:
        for attempt in range(_ATTEMPTS):
            view = self.view()
            self._complete(view)
            try:
                changes, result = decide(view)
                planned, properties = Plan(view, self._layout).of(changes)
            except Exception:
                if self.view().version == view.version:
                    raise
                continue
            if not changes:
                return view, result
            after = self._changed(view, planned, properties)
            if after is not None:
                self._known = after
                return after, result
            time.sleep(random.uniform(0, _PAUSE * min(attempt + 1, 10)))
        raise ConcurrentModification(
            f"{self.url}: concurrent writers changed the catalog {_ATTEMPTS} times; nothing was changed. Try again"
        )

    def begin(self) -> None:
        self._created()

    def abandon(self) -> None:
        """Drop the control table of a catalog without a change, by compare-and-set."""
        control, place = self._control(), self._layout.control
        if control is None or self._viewed(control).version:
            return
        gone = self._layout.own(place.catalog, f"gone_0_{uuid4().hex[:16]}")
        parameters = {**(control.parameters or {}), VERSION: "abandoned"}
        with suppress(ObjectMissing, Modified):
            self._metastore.alter_table(
                place.database,
                place.table,
                attrs.evolve(control, name=gone.table, parameters=parameters),
                expected=(VERSION, "0"),
                properties=_QUIET,
                catalog=place.catalog,
            )
            self._drop_own(gone)

    def require_possible(self, entry: ManifestEntry) -> None:
        Plan(self.view(), self._layout).of([Put(entry)])

    def may_remove(self, entry: ManifestEntry) -> bool:
        place = self._layout.place_of(entry.object_id)
        table = None if place is None else self._metastore.table(place.database, place.table, place.catalog)
        return table is not None and not is_foreign(table)

    def optimize(self) -> None:
        """Remove what stopped writers have left, and make every table external.

        The Metastore has indexes of its own.
        """
        self.clean_up()
        view = self.view()
        for _ in view.all_of(TABLE):
            pass  # the view keeps the exposed tables only
        for object_id in view.exposed:
            self.apply(lambda view, object_id=object_id: (entered_again(view, object_id), None))  # type: ignore[misc]

    def clean_up(self) -> int:
        """Remove the catalog's own tables that stopped writers have left."""
        view = self.view()
        self._complete(view)
        return sum(self._is_removed(view, *each) for each in self._own_tables(view))

    def leftovers(self) -> Sequence[ObjectInfo]:
        """Return nothing: no object belongs to the store."""
        return ()

    def close(self) -> None:
        """Close the idle connections; a later call opens new ones."""
        self._metastore.close()

    # -- the control table -----------------------------------------------------------------------------------------

    def _control(self) -> HiveTable | None:
        self._require_catalogs()
        place = self._layout.control
        return self._metastore.table(place.database, place.table, place.catalog)

    def _require_catalogs(self) -> None:
        """Check that the Metastore has catalogs, if the layout needs them. Older ones ignore the catalog of a request.

        Raises:
            Unsupported: The Metastore is older than Hive 3.
        """
        if not self._layout.catalogs or self._has_catalogs:
            return
        if self._metastore.catalogs() is None:
            raise Unsupported(
                f"{self._metastore.url} is a Metastore before Hive 3, which has no catalogs. Use impl='hive', whose "
                "namespaces are databases, or a Metastore of Hive 4"
            )
        self._has_catalogs = True

    def _viewed(self, control: HiveTable | None) -> HiveView:
        return HiveView(self._metastore, self._layout, control)

    def _created(self) -> HiveTable:
        """Return the control table, created if there is none."""
        place = self._layout.control
        root = {VERSION: "0", LOCATION: self._layout.root}
        self._create_own(place, root)
        found = self._control()
        if found is None:
            raise ConcurrentModification(f"{self.url}: the table {place.database}.{place.table} was dropped; try again")
        return found

    def _create_own(self, place: Place, parameters: Mapping[str, str]) -> None:
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

    def _require_safe(self, control: HiveTable) -> None:
        """Check, by a change that must be refused, that the Metastore can make changes of this catalog.

        Raises:
            UnsafeStore: The Metastore ignores the condition of a compare-and-set.
            InvalidInput: The Metastore has no file system for the root.
        """
        if self._is_safe:
            return
        place = self._layout.control
        version = (control.parameters or {}).get(VERSION, "0")
        sample = self._layout.table_of(ManifestEntry("", TABLE, "sample"), place, control, "", False)
        changed = {**(sample.parameters or {}), VERSION: version}
        try:
            self._metastore.alter_table(
                place.database,
                place.table,
                attrs.evolve(sample, parameters=changed),
                expected=(VERSION, f"not {version}"),
                properties=_QUIET,
                catalog=place.catalog,
            )
        except Modified:
            self._is_safe = True
            return
        except StoreUnavailable as error:
            if "FileSystem" not in str(error):
                raise
            raise InvalidInput(
                f"the Hive Metastore cannot hold tables of {self._layout.root}, because it has no file system for it: "
                f"{error}. Configure it in the Metastore (for S3: the JARs of hadoop-aws and fs.s3.impl)"
            ) from error
        raise UnsafeStore(
            f"{self.url} ignores the condition of a change (HIVE-26882), so two writers could overwrite each other. "
            "Use Hive 2.3.10 or newer of 2.3, or Hive 4"
        )

    # -- a change --------------------------------------------------------------------------------------------------

    def _changed(self, view: HiveView, steps: Sequence[Step], properties: Mapping[str, str]) -> HiveView | None:
        """Claim the next version of the catalog and perform the steps.

        Returns:
            The view after the change; None if another writer has changed the catalog.
        """
        control = view.control or self._created()
        if self._viewed(control).version != view.version:
            return None
        self._require_safe(control)
        token, version = uuid4().hex[:16], view.version + 1
        steps = [attrs.evolve(step, hidden=f"{step.hidden}_{version}_{token}_{at}") if step.hidden else step
                 for at, step in enumerate(steps)]  # fmt: skip
        self._prepare(steps, token, version)
        claimed = self._claimed(control, version, token, steps, properties)
        if claimed is None:
            self._discard(steps, token)
            return None
        after = self._viewed(claimed)
        done = 0
        try:
            for step in steps:
                self._repeated(lambda step=step: self._perform(step, token, after, version))  # type: ignore[misc]
                done += 1
        except (AlreadyExists, NamespaceNotEmpty, NamespaceNotFound) as error:
            self._discard(steps[done:], token)
            if done:
                raise ConcurrentModification(
                    f"{self.url}: other software changed the Metastore during the change. The first {done} of "
                    f"{len(steps)} steps were made, and not the others: {error}"
                ) from error
            raise
        self._completed = token
        return after

    def _claimed(
        self, control: HiveTable, version: int, token: str, steps: Sequence[Step], properties: Mapping[str, str]
    ) -> HiveTable | None:
        """Enter the change in the control table, by compare-and-set of the version.

        Returns:
            The control table after the change; None if another writer has changed the catalog.
        """
        before = control.parameters or {}
        tokens = [*filter(None, before.get(TOKENS, "").split(",")), token][-_REMEMBERED:]
        parameters = {
            **{name: value for name, value in before.items() if name in (LOCATION, TABLE_TYPE)},
            **in_pieces(PROPERTIES, json.dumps(dict(properties))),
            **in_pieces(CHANGE, encode(token, steps)),
            VERSION: str(version),
            TOKENS: ",".join(tokens),
        }
        after, place = attrs.evolve(control, parameters=parameters), self._layout.control

        def attempt() -> HiveTable | None:
            try:
                self._metastore.alter_table(
                    place.database,
                    place.table,
                    after,
                    expected=(VERSION, str(version - 1)),
                    properties=_QUIET,
                    catalog=place.catalog,
                )
                return after
            except ObjectMissing:
                return None
            except Modified:
                found = self._viewed(self._control())
                # A reply may be lost after the server made the change.
                return after if token in found.parameters.get(TOKENS, "").split(",") else None

        return self._repeated(attempt)

    def _repeated(self, act: Callable[[], T]) -> T:
        """Repeat an idempotent action whose outcome is unknown."""
        for _ in range(_REPEATS - 1):
            try:
                return act()
            except StoreUnavailable:
                time.sleep(random.uniform(0, _PAUSE))
        return act()

    def _complete(self, view: HiveView) -> None:
        """Perform the steps of the latest change, whose writer may have stopped."""
        text = joined(CHANGE, view.parameters)
        if not text:
            return
        try:
            token, steps = decode(text)
        except ValueError:
            raise view.damaged() from None
        if token == self._completed:
            return
        for step in steps:
            with suppress(AlreadyExists, NamespaceNotEmpty, NamespaceNotFound):
                self._repeated(lambda step=step: self._perform(step, token, view, view.version))  # type: ignore[misc]
        self._completed = token

    # -- before a change -------------------------------------------------------------------------------------------

    def _prepare(self, steps: Sequence[Step], token: str, version: int) -> None:
        """Create the catalog's own tables that the steps need. Nothing shows them, so they may be left behind."""
        for step in steps:
            if step.entry is None or (step.entry.object_type == NAMESPACE and not step.entry.location):
                continue
            place = self._place(step.object_id)
            if step.source is None:
                self._create_own(self._layout.own(place.catalog, step.hidden), {REVISION: new_revision(token)})
            for name in self._layout.owner_rows(step.object_id, str(step.entry.location), token) if step.moves else ():
                row = {ID: step.object_id, LOCATION: str(step.entry.location), VERSION: str(version), REVISION: token}
                self._create_own(self._layout.own(place.catalog, name), row)

    def _discard(self, steps: Sequence[Step], token: str) -> None:
        """Remove what `_prepare` has created for steps that are not performed."""
        with suppress(StoreUnavailable):
            for step in steps:
                if step.entry is None or not step.entry.location:
                    continue
                place = self._place(step.object_id)
                names = self._layout.owner_rows(step.object_id, step.entry.location, token)
                for name in [*names, *([step.hidden] if step.source is None else [])]:
                    self._drop_own(self._layout.own(place.catalog, name))

    def _drop_own(self, place: Place) -> None:
        with suppress(ObjectMissing):
            self._metastore.drop_table(place.database, place.table, catalog=place.catalog)

    def _own_tables(self, view: HiveView) -> Iterator[tuple[str | None, HiveTable]]:
        catalogs: Sequence[str | None] = sorted(self._metastore.catalogs() or ()) if self._layout.catalogs else [None]
        for catalog in catalogs:
            yield from ((catalog, table) for table in view.own_tables("new_*|gone_*|at_*|in_*", catalog))

    def _is_removed(self, view: HiveView, catalog: str | None, table: HiveTable) -> bool:
        """Remove one of the catalog's own tables if nothing needs it, and return whether it was removed."""
        if is_needed(view, table):
            return False
        self._drop_own(self._layout.own(catalog, table.name or ""))
        return True

    # -- steps -----------------------------------------------------------------------------------------------------

    def _place(self, object_id: str) -> Place:
        place = self._layout.place_of(object_id)
        assert place is not None, object_id  # the plan has checked it
        return place

    def _perform(self, step: Step, token: str, view: HiveView, version: int) -> None:
        """Perform a step, unless it was performed. Idempotent, at any time.

        Raises:
            AlreadyExists, NamespaceNotEmpty, NamespaceNotFound: Other software has changed the Metastore.
        """
        place = self._layout.place_of(step.object_id)
        if place is None:
            self._perform_on_catalog(step, version)
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
        self._drop_own(hidden)
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
                self._drop_own(self._layout.own(catalog, row.name or ""))

    def _alter(self, place: Place, table: HiveTable, was: str) -> None:
        """Change or rename a table if it still has a revision."""
        expected: tuple[str, str] | None = (REVISION, was)
        if was.startswith(FOREIGN):
            seen = was.removeprefix(FOREIGN)
            expected = (LAST_CHANGE, seen) if seen else None
            if seen.isdecimal():
                table = attrs.evolve(table, parameters={**(table.parameters or {}), LAST_CHANGE: str(int(seen) + 1)})
        self._metastore.alter_table(
            place.database, place.table, table, expected=expected, properties=_QUIET, catalog=place.catalog
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

    def _perform_on_catalog(self, step: Step, version: int) -> None:
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
            self._drop_own_database(step.object_id)
            self._metastore.drop_catalog(step.object_id)
        except ObjectMissing:
            return
        except Refused as error:
            raise NamespaceNotEmpty(f"the catalog {step.object_id!r} of the Hive Metastore is not empty") from error

    def _drop_own_database(self, catalog: str) -> None:
        """Drop the database of the catalog's own tables in a catalog of Hive, unless it has dropped tables."""
        database = self._layout.own_database
        if self._metastore.table_names(database, f"{record_prefix(())}*", catalog):
            return
        with suppress(ObjectMissing):
            self._metastore.drop_database(database, cascade=True, catalog=catalog)

    def _is_over(self, version: int) -> bool:
        """Return whether another writer has completed a change: a database has no compare-and-set."""
        return self._viewed(self._control()).version > version
