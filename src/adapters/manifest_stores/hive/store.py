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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar
from uuid import uuid4

import attrs

from lancekeep.adapters.manifest_stores.hive.changes import Step, decode, encode
from lancekeep.adapters.manifest_stores.hive.mapping import (
    LOCATION,
    TABLE_TYPE,
    Layout,
    in_pieces,
    is_foreign,
    joined,
)
from lancekeep.adapters.manifest_stores.hive.plan import (
    Plan,
    entered_again,
    is_needed,
)
from lancekeep.adapters.manifest_stores.hive.steps import LEFTOVERS, PAUSE, QUIET, Steps, repeated
from lancekeep.adapters.manifest_stores.hive.view import CHANGE, PROPERTIES, TOKENS, VERSION, HiveView, Pages
from lancekeep.domain.catalog import Change, ManifestStoreGuarantees, Put, Question
from lancekeep.domain.errors import (
    AlreadyExists,
    ConcurrentModification,
    InvalidInput,
    NamespaceNotEmpty,
    NamespaceNotFound,
    StoreUnavailable,
    UnsafeStore,
    Unsupported,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry
from lancekeep.hive.address import OPTIONS, Address
from lancekeep.hive.errors import Modified, ObjectMissing
from lancekeep.hive.messages import Table as HiveTable
from lancekeep.hive.metastore import Metastore
from lancekeep.ports.manifest_store import Decision, Result
from lancekeep.ports.object_store import ObjectInfo, ObjectStore
from lancekeep.store_urls import StoreUrl

CATALOGS = "catalogs"
_ATTEMPTS = 100
_REMEMBERED = 32
"""Latest changes whose tokens the control table keeps, to settle a lost reply."""


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
        self._steps = Steps(metastore, layout)
        self.url = f"{metastore.url}?{CATALOGS}=true" if layout.catalogs else metastore.url
        self._known: HiveView | None = None
        self._pages = Pages()
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

    def view_for(self, question: Question) -> HiveView:
        """Return the latest state, read together with the answer to a question (ADR 155)."""
        self._require_catalogs()
        self._known = HiveView.asked(self._metastore, self._layout, question, self._pages)
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
            time.sleep(random.uniform(0, PAUSE * min(attempt + 1, 10)))
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
                properties=QUIET,
                catalog=place.catalog,
            )
            self._steps.drop_own(gone)

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
            self.apply(partial(_enter_again, object_id))

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
        self._steps.create_own(place, root)
        found = self._control()
        if found is None:
            raise ConcurrentModification(f"{self.url}: the table {place.database}.{place.table} was dropped; try again")
        return found

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
                properties=QUIET,
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
        self._steps.prepare(steps, token, version)
        claimed = self._claimed(control, version, token, steps, properties)
        if claimed is None:
            self._steps.discard(steps, token)
            return None
        after = self._viewed(claimed)
        done = 0
        try:
            for step in steps:
                repeated(partial(self._steps.perform, step, token, after, version))
                done += 1
        except (AlreadyExists, NamespaceNotEmpty, NamespaceNotFound) as error:
            self._steps.discard(steps[done:], token)
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
                    properties=QUIET,
                    catalog=place.catalog,
                )
                return after
            except ObjectMissing:
                return None
            except Modified:
                found = self._viewed(self._control())
                # A reply may be lost after the server made the change.
                return after if token in found.parameters.get(TOKENS, "").split(",") else None

        return repeated(attempt)

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
                repeated(partial(self._steps.perform, step, token, view, view.version))
        self._completed = token

    def _own_tables(self, view: HiveView) -> Iterator[tuple[str | None, HiveTable]]:
        catalogs: Sequence[str | None] = sorted(self._metastore.catalogs() or ()) if self._layout.catalogs else [None]
        for catalog in catalogs:
            yield from ((catalog, table) for table in view.own_tables(LEFTOVERS, catalog))

    def _is_removed(self, view: HiveView, catalog: str | None, table: HiveTable) -> bool:
        """Remove one of the catalog's own tables if nothing needs it, and return whether it was removed."""
        if is_needed(view, table):
            return False
        self._steps.drop_own(self._layout.own(catalog, table.name or ""))
        return True


def _enter_again(object_id: str, view: HiveView) -> tuple[Sequence[Change], None]:
    return entered_again(view, object_id), None
