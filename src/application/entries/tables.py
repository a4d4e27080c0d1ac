"""The entries of tables and their directories.

The methods of `Catalog` with similar names document these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import attrs

from lancekeep.application.commits.keyed_requests import performing
from lancekeep.application.commits.protocol_runner import moved
from lancekeep.application.concurrency import collect, is_remote
from lancekeep.application.entries.dropped import DroppedTables
from lancekeep.application.entries.ledger import Ledger, once
from lancekeep.application.entries.limits import limited
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.removal import Removal
from lancekeep.domain.catalog import CatalogView, Change, Listing, Lookup, SetProperties, page
from lancekeep.domain.dropped import is_held
from lancekeep.domain.errors import (
    AlreadyExists,
    CommitStoreMismatch,
    ConcurrentModification,
    Damaged,
    InvalidInput,
    LancekeepError,
    NotFound,
    Refused,
    TableAlreadyExists,
    TableNotFound,
)
from lancekeep.domain.features import Feature
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.managed import DIRECT_COMMITS, MANAGED, by_storage, holds, require_consistent
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry
from lancekeep.domain.namespace import find_namespace
from lancekeep.domain.notebook import Shown
from lancekeep.domain.properties import checked_properties, is_own, property_changes
from lancekeep.domain.protection import protector, require_unprotected
from lancekeep.domain.stable_row_ids import STABLE_ROW_IDS, require_row_ids, stated_row_ids
from lancekeep.domain.table import (
    MARKER_CONTENT,
    Table,
    add_table,
    alter_table,
    find_table,
    is_at,
    remove_table,
    require_apart,
    require_distinct,
    v1_location,
    withdraw_table,
)
from lancekeep.domain.table_defaults import require_default, with_default

if TYPE_CHECKING:  # few commands need it
    from lancekeep.format.begun_clone import BegunClone

DEFINITE = (AlreadyExists, NotFound, Refused, InvalidInput, ConcurrentModification)
"""Errors of a change after which it is certain that nothing was changed."""


@attrs.frozen
class Description(Shown):
    """A table with its URI and its latest version, None if it is only declared.

    A commit store manages its versions, or the storage alone if ``managed`` is False.
    """

    id: ObjectId
    uri: str
    version: int | None
    properties: Mapping[str, str]
    managed: bool


@attrs.frozen
class Declaration:
    """A table to declare; see `Catalog.declare_table`.

    If its directory has a marker, ``marker`` is the content of the marker. A clone has the rows, and the row ids, of
    another table.
    """

    id: ObjectId
    properties: Mapping[str, str] | None = None
    location: str | None = None
    marker: bytes = MARKER_CONTENT
    is_clone: bool = False


class Tables:
    """Declares, registers, alters, lists and drops tables."""

    def __init__(self, ledger: Ledger, places: Places, removal: Removal, dropped: DroppedTables) -> None:
        self._ledger = ledger
        self._places = places
        self._removal = removal
        self._dropped = dropped

    # -- reading ------------------------------------------------------------------------------------------------

    def find(self, object_id: ObjectId) -> Table:
        """Return a table's entry.

        Raises:
            TableNotFound: The table does not exist.
        """
        return find_table(self._ledger.view(Lookup(object_id.key)), object_id)

    def find_in_namespace(self, object_id: ObjectId) -> Table:
        """Return a table's entry, or the error of its namespace. One read of the catalog.

        Raises:
            NamespaceNotFound: Its namespace does not exist.
            TableNotFound: The table does not exist.
        """
        view = self._ledger.view(Lookup(object_id.key))
        try:
            return find_table(view, object_id)
        except TableNotFound:
            if not object_id.is_root:
                find_namespace(view, object_id.parent)
            raise

    def exists(self, object_id: ObjectId) -> bool:
        try:
            self.find(object_id)
        except TableNotFound:
            return False
        return True

    def describe(self, object_id: ObjectId) -> Description:
        view, read = self._ledger.view_with_latest(object_id, self._places.base_uri)
        table = find_table(view, object_id)
        latest = self._ledger.commits.latest(self._places.dataset_root(table), read)
        version = None if latest is None else latest.version
        return Description(table.id, self._places.uri(table), version, table.properties, self._ledger.manages(table))

    def page(
        self, object_id: ObjectId, after: str | None, limit: int | None, *, include_declared: bool
    ) -> tuple[list[str], str | None]:
        view = self._ledger.view(Listing(object_id, TABLE, after, limit))
        if include_declared:
            found = view.children(object_id, TABLE, after, limit)
            if not found[0]:  # otherwise the namespace exists, which saves a request to some stores
                find_namespace(view, object_id)
            return found
        parent = find_namespace(view, object_id).id
        created: list[str] = []
        more = True
        while more and (limit is None or len(created) <= limit):
            names, after = view.children(parent, TABLE, after, limit)
            created += [name for name in names if self._is_created(view, ObjectId((*parent.names, name)))]
            more = after is not None
        return page(created, None, limit)

    def all(self, after: str | None, *, include_declared: bool) -> Iterator[ObjectId]:
        view = self._ledger.view()
        ids = (ObjectId.from_key(entry.object_id) for entry in view.all_of(TABLE, after))
        return (object_id for object_id in ids if include_declared or self._is_created(view, object_id))

    def usable(self) -> Iterator[Table]:
        """Yield the tables with a usable directory; `Fsck` reports the others."""
        for entry in self._ledger.view().all_of(TABLE):
            with suppress(Damaged):
                table = Table.from_entry(entry)
                self._places.dataset_root(table)
                yield table

    def _is_created(self, view: CatalogView, object_id: ObjectId) -> bool:
        """Return whether a table has a version.

        A table that is being dropped has none. A damaged table counts as having a version, and so does a table whose
        versions another commit store manages: neither hides the other tables of a list.
        """
        try:
            return self._ledger.commits.has_versions(self._places.dataset_root(find_table(view, object_id)))
        except TableNotFound:
            return False
        except (CommitStoreMismatch, Damaged):
            return True

    # -- entering -----------------------------------------------------------------------------------------------

    @once(Table)
    def declare(self, object_id: ObjectId, properties: Mapping[str, str] | None, location: str | None) -> Table:
        (table,), _ = self.declare_and_deregister([Declaration(object_id, properties, location)], [])
        return table

    @once(Table)
    def declare_clone(self, object_id: ObjectId, clone: BegunClone | None = None) -> Table:
        """Declare the target of a clone; the marker of a deep clone describes it."""
        marker = MARKER_CONTENT if clone is None else clone.encode()
        (table,), _ = self.declare_and_deregister([Declaration(object_id, marker=marker, is_clone=True)], [])
        return table

    def declare_and_deregister(
        self, declarations: Sequence[Declaration], removed: Sequence[ObjectId]
    ) -> tuple[list[Table], list[Table]]:
        """Declare tables and deregister others, in one atomic change.

        Everything that can be refused is refused before a directory is reserved.

        Returns:
            The declared and the removed tables.

        Raises:
            InvalidInput: A name or a directory occurs twice.
            Unsupported: The manifest store changes one table at a time.
        """
        require_distinct([*(each.id for each in declarations), *removed])
        if any(each.id.is_root for each in declarations):
            raise InvalidInput("a table needs a name; the empty identifier is the root namespace")
        given = [None if each.location is None else self._places.relative(each.location) for each in declarations]
        stated = [self.checked(each.properties) for each in declarations]
        new = [self._places.new_location(each.id) for each in declarations]  # once, so that its owner is asked for once

        def placed(view: CatalogView) -> list[Table]:
            return [
                Table(
                    each.id,
                    location or self._prescribed_location(each.id, view) or fresh,
                    with_default(properties, view.properties, has_rows=each.is_clone),
                )
                for each, location, fresh, properties in zip(declarations, given, new, stated, strict=True)
            ]

        def accept(view: CatalogView) -> list[Change]:
            if not view.guarantees.atomic_changes and len(declarations) + len(removed) > 1:
                raise view.guarantees.refusal("changes one table at a time")
            added = [
                change
                for table, location in zip(placed(view), given, strict=True)
                for change in add_table(view, table, chosen=location is None)
            ]
            return added + [change for each in removed for change in remove_table(view, each, "deregister")]

        tables = placed(self._ledger.refuse_early(accept))
        require_apart([table.location for table in tables])
        for object_id in removed:
            self._removal.record_listed(object_id)
        return self._enter_reserved(tables, given, removed, declarations, stated)

    def _enter_reserved(
        self,
        tables: Sequence[Table],
        given: Sequence[str | None],
        removed: Sequence[ObjectId],
        declarations: Sequence[Declaration],
        stated: Sequence[Mapping[str, str]],
    ) -> tuple[list[Table], list[Table]]:
        """Reserve the directories of tables, then enter these tables and remove others."""
        for table, location in zip(tables, given, strict=True):
            if location is not None or self._ledger.manifest.location_of(table.id):  # else the directory is new
                self._places.chosen_root(table)
        if tables and self._ledger.guarantees.lists_directories:
            self._ledger.record_store()  # first, because V1 readers see the directory as a table at once
        declared: list[Table] = []
        certain = self._places.objects.guarantees.atomic_create
        try:
            chosen, markers = [each is None for each in given], [each.marker for each in declarations]
            collect(self.reserve, declared, tables, chosen, markers, together=is_remote(self._places.objects))
            seen = [table for table in declared if self._is_listed(table)]

            def decide(view: CatalogView) -> tuple[list[Change], list[Table]]:
                gone = next((table for table in seen if view.find(table.id.key) is None), None)
                if gone is not None:
                    raise ConcurrentModification(
                        f"{gone.location!r} was a table for V1 readers as soon as it was reserved for {gone.id}, and "
                        "another writer has dropped or renamed it since; nothing was declared"
                    )
                for table, properties, declaration in zip(declared, stated, declarations, strict=True):
                    require_default(view, table, properties, has_rows=declaration.is_clone)
                changes = [change for table in declared for change in add_table(view, table, reserved=certain)]
                changes += [change for object_id in removed for change in remove_table(view, object_id, "deregister")]
                return changes, [find_table(view, object_id) for object_id in removed]

            # A batch is no effect that the record of a keyed request can hold.
            effect = None if removed or len(declared) != 1 else lambda _: declared[0]
            return declared, self._ledger.apply(decide, effect=effect)
        except DEFINITE:
            for table in declared:
                self._release(table)
            raise

    def _release(self, table: Table) -> None:
        """Remove the reservation of a directory whose table was not entered."""
        owner = self._ledger.view().owner_of(table.location) if self._is_listed(table) else None
        if owner is None or owner.listed:  # else another writer has dropped the table, and declared its own there
            if by_storage(table.properties):
                self._ledger.commits.reclaim(self._places.dataset_root(table))
            if self._ledger.holds(table):
                self._ledger.commits.holding.forget(self._places.dataset_root(table))
            self._places.objects.delete(self._places.reserved_marker(table))
            self._places.objects.prune(self._places.key(table))

    def _is_listed(self, table: Table) -> bool:
        """Return whether readers that list directories see a reservation as a table."""
        return self._ledger.guarantees.lists_directories and table.location == v1_location(table.id)

    def reserve(self, table: Table, chosen: bool, content: bytes = MARKER_CONTENT) -> Table:
        """Reserve an empty directory for a table.

        The writer that creates the marker in the directory owns it. A new directory may need no marker (ADR 138): its
        name is random, and the entry owns it.

        Args:
            table: The table, at the location to reserve.
            chosen: The catalog chose the location and may choose another.
            content: The content of the marker.

        Returns:
            The table at the reserved location.

        Raises:
            TableAlreadyExists: The directory holds files, or another writer reserved it first.
        """
        hashed = table.location.endswith(f"_{table.id.key}")
        if not (chosen and hashed) and self._places.is_occupied(table):
            guarantees = self._ledger.guarantees
            is_free = self._places.is_deregistered(table) or not guarantees.lists_directories
            if not (chosen and is_free and guarantees.locations):
                raise TableAlreadyExists(
                    f"{table.id}: files lie in {table.location!r} already. If they are a table, enter it with "
                    f"register_table({str(table.id)!r}, {table.location!r}); otherwise move the files away. "
                    "`lancekeep fsck` says what they are."
                )
            table = attrs.evolve(table, location=self._places.new_location(table.id))
        if not content and self._is_listed(table):  # an id tells this table from a later one of the same name
            content = self._ledger.new_id().encode()
        is_new = chosen and table.location.endswith(f"_{table.id.key}")
        if content or not is_new or self._ledger.marks(table):
            self._mark(table, content)
        if self._ledger.managed:
            root = self._places.dataset_root(table)
            if not hashed:
                self._ledger.commits.forget_predecessor(root)
            if by_storage(table.properties):
                self._ledger.commits.release(root)
            if self._ledger.holds(table):
                self._ledger.commits.holding.hold(root)
        return table

    def _mark(self, table: Table, content: bytes) -> None:
        objects, marker = self._places.objects, self._places.reserved_marker(table)
        if not objects.guarantees.atomic_create:
            objects.put(marker, content)
        elif not objects.put_if_absent(marker, content):
            raise TableAlreadyExists(f"{table.id}: another writer has just taken the directory {table.location!r}")

    @once(Table)
    def register(
        self, object_id: ObjectId, location: str, properties: Mapping[str, str] | None, *, overwrite: bool
    ) -> Table:
        stated = with_default(self.checked(properties), self._ledger.view().properties, has_rows=True)
        table = Table(object_id, self._places.relative(location), stated)
        root = self._places.chosen_root(table)
        source = self._places.moves_from(table)
        if source is not None and is_at(self._ledger.view(), source):
            raise Refused(
                f"{root.base_uri} is the copy that a rename makes, or made when it was stopped; wait for the rename, "
                "or have fsck remove the copy"
            )
        try:
            latest = self._ledger.commits.latest(root)
        except CommitStoreMismatch:
            rows = self._ledger.commits.rows
            raise moved(
                rows.latest(root.base_uri),
                "The table was deregistered from the catalog while that commit store managed it, and did not move back "
                f"with the others. Call change_commit_store with that store, register the table, then call "
                f"change_commit_store with {rows.url!r} again. Nothing was registered.",
            ) from None
        if latest is None:
            raise TableNotFound(f"no Lance table lies at {root.base_uri}: it has no version; nothing was registered")
        self._require_row_ids(table, stated)
        before = self._ledger.view()
        former = before.find(object_id.key) if overwrite else None
        read = self._removal.clones.record_dataset(table.location)
        sources = [location for location in read if is_held(before, location)]

        def decide(view: CatalogView) -> tuple[list[Change], Table]:
            dropped = next((location for location in sources if not is_held(view, location)), None)
            if dropped is not None:
                raise ConcurrentModification(
                    f"{table.location!r} is a clone that reads files of {dropped!r}, which is no longer a table of the "
                    "catalog: it was dropped or renamed while the clone was registered. Nothing was changed."
                )
            return add_table(view, table, replace=overwrite), table

        self._ledger.apply(decide, effect=lambda registered: registered)
        self.follow_entry(object_id)
        if source is not None:
            self._places.objects.delete(self._places.moving_marker(table))  # a completed rename left it
        if former is not None:
            self._leave(former)
        return table

    def _leave(self, former: ManifestEntry) -> None:
        """Remove the directory of a declared table whose name has another directory now.

        The directory holds the marker alone. Once a first write has begun there, the directory stays, and `Fsck`
        reports it.
        """
        with suppress(LancekeepError):
            table = Table.from_entry(former)
            root, marker = self._places.dataset_root(table), self._places.reserved_marker(table)
            if self._ledger.view().owner_of(table.location) is not None or self._places.contents(root) != [marker]:
                return
            is_bare = self._places.objects.get(marker) == MARKER_CONTENT  # else a deep clone is being made
            if is_bare and self._ledger.commits.latest(root) is None:
                self._release(table)

    def _prescribed_location(self, object_id: ObjectId, view: CatalogView) -> str | None:
        """Return the directory that the manifest store prescribes for a new table, unless another table has it."""
        prescribed = self._ledger.manifest.location_of(object_id)
        owner = None if prescribed is None else view.owner_of(prescribed)
        return prescribed if owner is None or owner.object_id == object_id.key else None

    def stable_row_ids(self, table: Table) -> bool | None:
        """Return whether a table has stable row ids; None if it has no version."""
        latest = self._ledger.commits.latest(self._places.dataset_root(table))
        if latest is None:
            return None
        from lancekeep.format.table_version import TableVersion  # a listing needs none of its classes

        content = self._ledger.commits.retry.call(partial(self._places.objects.get, latest.path))
        return bool(TableVersion.parse(content, latest.path).manifest.reader_feature_flags & Feature.STABLE_ROW_IDS)

    def _require_row_ids(self, table: Table, properties: Mapping[str, str | None]) -> None:
        """Check that a table has the row ids that properties state."""
        stated = stated_row_ids(properties)
        if stated is not None:
            require_row_ids(str(table.id), self.stable_row_ids(table), stated)

    def require_replaceable(self, object_id: ObjectId, action: str) -> None:
        """Raise `Refused` if the rows of a table must not be replaced.

        Its first version replaces none.
        """
        view = self._ledger.view()
        if protector(view, object_id) is not None:
            latest = self._ledger.commits.latest(self._places.dataset_root(find_table(view, object_id)))
            if latest is not None:
                require_unprotected(view, object_id, action)

    # -- changing -----------------------------------------------------------------------------------------------

    @once(Table)
    def alter(self, object_id: ObjectId, values: Mapping[str, str] | None, remove: Iterable[str]) -> Table:
        changes = property_changes(values, remove)
        self._ledger.require_manager(changes)
        if changes.get(STABLE_ROW_IDS) is not None:
            self._require_row_ids(self.find(object_id), changes)
        released: Table | None = None

        def decide(view: CatalogView) -> tuple[list[Change], Table]:
            before = find_table(view, object_id)
            if released is not None and before.location != released.location:
                raise ConcurrentModification(f"{object_id} was dropped or moved since; nothing was changed")
            after = attrs.evolve(before, properties=SetProperties(changes).merged_into(before.properties))
            require_consistent(after.properties)
            return alter_table(view, object_id, changes), after

        self._removal.record_listed(object_id)
        if MANAGED not in changes and DIRECT_COMMITS not in changes:
            return self._ledger.apply(decide, effect=lambda altered: altered)
        if by_storage({MANAGED: changes.get(MANAGED) or ""}):
            self._ledger.refuse_early(lambda view: decide(view)[0])
            released = self.find(object_id)
            self._let_manage(released, storage=True)
        try:
            altered = self._ledger.apply(decide, effect=lambda altered: altered)
        except DEFINITE:
            if released is not None:
                self.follow_entry(object_id)
            raise
        self.follow_entry(object_id)
        return altered

    def follow_entry(self, object_id: ObjectId) -> None:
        """Let the manager that a table's entry names manage its versions. Idempotent.

        Its direct commits are held or adopted as the entry says. Another writer may change the entry, or drop the
        table, at the same time.
        """
        followed: tuple[str, bool, bool] | None = None
        with suppress(TableNotFound):
            while True:
                table = self.find(object_id)
                wanted = table.location, by_storage(table.properties), holds(table.properties)
                if wanted == followed:
                    return
                self._let_manage(table, storage=wanted[1])
                self._let_hold(table, wanted[2])
                followed = wanted

    def _let_manage(self, table: Table, *, storage: bool) -> None:
        commits, root = self._ledger.commits, self._places.dataset_root(table)
        if self._ledger.managed and commits.is_managed_otherwise(root, storage=storage):
            commits.release(root) if storage else commits.reclaim(root)

    def _let_hold(self, table: Table, wanted: bool) -> None:
        commits, root = self._ledger.commits, self._places.dataset_root(table)
        if self._ledger.managed and commits.holding.holds(root) is not wanted:
            commits.holding.hold(root) if wanted else commits.holding.adopt(root)

    def checked(self, properties: Mapping[str, str] | None) -> dict[str, str]:
        """Check the properties of a new table, and return a copy.

        Raises:
            InvalidInput: As `checked_properties`, or the catalog has no commit store that could manage the table.
            Unsupported: The storage cannot manage the table.
        """
        checked = checked_properties(properties)
        self._ledger.require_manager(checked)
        return checked

    def replace_properties(self, object_id: ObjectId, properties: Mapping[str, str]) -> None:
        """Replace all properties of a table, except the catalog's own.

        The manager of its versions stays, unless ``properties`` name another. So does what is stated about its row ids.
        """
        present = self.find(object_id).properties
        kept = {name: value for name, value in present.items() if name in (DIRECT_COMMITS, MANAGED, STABLE_ROW_IDS)}
        properties = {**kept, **properties}
        users = {name: value for name, value in present.items() if not is_own(name)}
        if users != properties:
            with performing(None):  # the rows are the effect of a request
                self.alter(object_id, properties, users.keys() - properties.keys())

    # -- removing -----------------------------------------------------------------------------------------------

    @once(Table)
    def deregister(self, object_id: ObjectId) -> Table:
        self._removal.record_listed(object_id)
        return self.remove_entry(object_id, "deregister")

    @once(Table)
    def drop(self, object_id: ObjectId, *, force: bool, keep: timedelta | float | None) -> Table:
        found = self.find(object_id)
        self._places.dataset_root(found)
        kept = self._dropped.spans([found], keep)
        if kept:
            return self._dropped.drop(found, kept[object_id])
        require_unprotected(self._ledger.view(), object_id, "drop")
        if not force:
            self._removal.refuse_needed([found])
        table = self.remove_entry(object_id, "drop")
        if not force and (clones := self._removal.recorded_readers(table)):
            with limited(None):  # the table was there
                self._ledger.apply(lambda view: (add_table(view, table), None), withdraws=True)
            raise self._removal.needed(table, clones)
        self._removal.remove(table)
        return table

    def take_back(self, object_id: ObjectId) -> None:
        """Remove a declared table and the remains of its write.

        A table with a version stays.
        """
        table = self.find(object_id)
        if self._ledger.commits.latest(self._places.dataset_root(table)) is None:
            self.remove_unwritten(table)

    def remove_unwritten(self, table: Table, is_still: Callable[[], bool] = lambda: True) -> bool:
        """Remove the entry and files of a table without a version.

        If a version appeared during the removal, the table is entered again. Other writers can commit the first version
        until the entry is removed; in a V1 directory, also afterwards.

        Args:
            table: The table.
            is_still: Called once no writer finds the table; false if another table has its directory now.

        Returns:
            Whether the table was removed.
        """
        root = self._places.dataset_root(table)
        removed = self._ledger.apply(
            lambda view: (withdraw_table(view, table.id), find_table(view, table.id)), withdraws=True
        )
        keys = self._places.contents(root)
        if removed.location == table.location and is_still():
            # A call that completes a deep clone commits its version before it looks for the marker.
            self._places.objects.delete(self._places.reserved_marker(table))
            if self._ledger.commits.latest(root) is None:
                self._removal.remove_leftovers(table, keys)
                return True
        with limited(None):  # the table was there
            self._ledger.apply(lambda view: (add_table(view, removed), None))
        return False

    def remove_entry(self, object_id: ObjectId, action: str) -> Table:
        """Remove only a table's entry, and return the table as it was.

        Raises:
            TableNotFound: The table does not exist.
            Refused: The table is protected; the message names the ``action``.
        """

        def decide(view: CatalogView) -> tuple[list[Change], Table]:
            return remove_table(view, object_id, action), find_table(view, object_id)

        return self._ledger.apply(decide, effect=lambda removed: removed)
