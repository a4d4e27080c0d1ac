"""The namespaces of a catalog; see the methods of `Catalog` with the same names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta

import attrs

from lancekeep.application.entries.dropped import DroppedTables
from lancekeep.application.entries.ledger import Ledger, once
from lancekeep.application.entries.removal import Removal
from lancekeep.domain.catalog import CatalogView, Change, Listing, Lookup, SetProperties
from lancekeep.domain.dropped import NEW_CATALOG
from lancekeep.domain.errors import Damaged, InvalidInput, NamespaceNotFound, TableNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.namespace import (
    Namespace,
    alter_namespace,
    create_namespace,
    drop_namespace,
    drop_partitioned,
    find_namespace,
    replace_namespace,
    replacing,
    without_partitions,
)
from lancekeep.domain.partitioning import specs_of
from lancekeep.domain.partitions import made_up_properties
from lancekeep.domain.properties import checked_properties, property_changes, refuse_table_properties
from lancekeep.domain.table import Table


class Namespaces:
    """Creates, alters, describes, lists and drops namespaces."""

    def __init__(self, ledger: Ledger, removal: Removal, dropped: DroppedTables) -> None:
        self._ledger = ledger
        self._dropped = dropped
        self._removal = removal

    @once(Namespace)
    def create(
        self, object_id: ObjectId, properties: Mapping[str, str] | None, *, exist_ok: bool, overwrite: bool
    ) -> Namespace:
        if exist_ok and overwrite:
            raise InvalidInput("an existing namespace can be kept (exist_ok) or replaced (overwrite), not both")
        created = Namespace(object_id, checked_properties(properties))
        refuse_table_properties(created.properties)
        make = replace_namespace if overwrite else create_namespace

        def decide(view: CatalogView) -> tuple[list[Change], Namespace]:
            if exist_ok:
                with suppress(NamespaceNotFound):
                    return [], find_namespace(view, object_id)
            return make(view, object_id, created.properties), created

        return self._ledger.apply(decide, effect=lambda made: made)

    @once(Namespace)
    def alter(self, object_id: ObjectId, values: Mapping[str, str] | None, remove: Iterable[str]) -> Namespace:
        changes = property_changes(values, remove)
        refuse_table_properties(changes, is_root=not object_id.names)
        self._ledger.require_manager(changes)

        def decide(view: CatalogView) -> tuple[list[Change], Namespace]:
            before = find_namespace(view, object_id)
            after = Namespace(object_id, SetProperties(changes).merged_into(before.properties))
            return alter_namespace(view, object_id, changes), after

        return self._ledger.apply(decide, effect=lambda altered: altered)

    def initialize(self) -> bool:
        """Set the properties of a new catalog, and return whether there was none."""
        object_id = ObjectId()

        def decide(view: CatalogView) -> tuple[list[Change], bool]:
            found = (entry.object_id for entry in view.descendants(object_id))
            is_empty = next((each for each in found if each not in view.guarantees.permanent), None) is None
            is_new = view.guarantees.properties and not view.entered and is_empty
            return ([SetProperties(NEW_CATALOG)] if is_new else []), is_new

        return self._ledger.apply(decide)

    def describe(self, object_id: ObjectId) -> Namespace:
        view = self._ledger.view(Lookup(object_id.key))
        found = find_namespace(view, object_id)
        return attrs.evolve(found, properties={**found.properties, **made_up_properties(view, object_id)})

    def page(
        self, object_id: ObjectId, object_type: str, after: str | None, limit: int | None
    ) -> tuple[list[str], str | None]:
        view = self._ledger.view(Listing(object_id, object_type, after, limit))
        found = view.children(object_id, object_type, after, limit)
        if not found[0]:  # otherwise the namespace exists, which saves a request to some stores
            find_namespace(view, object_id)
        return found

    @once(Namespace)
    def drop(self, object_id: ObjectId, *, cascade: bool, force: bool, keep: timedelta | float | None) -> Namespace:
        def decide(view: CatalogView) -> tuple[list[Change], tuple[Namespace, list[Table]]]:
            changes, doomed = drop_namespace(view, object_id, cascade=cascade)
            return changes, (find_namespace(view, object_id), doomed)

        return self._drop(decide, with_tables=cascade, force=force, keep=keep)

    def drop_partitioned(
        self,
        *,
        force: bool,
        keep: timedelta | float | None,
        creation: Callable[[CatalogView], list[Change]] | None = None,
    ) -> Namespace:
        """Drop all partitions of the catalog; see `Partitions.drop`.

        Args:
            force: As for `Partitions.drop`.
            keep: As for `Partitions.drop`.
            creation: Returns the changes that create the partitions which replace them, from a view without them.
        """

        def decide(view: CatalogView) -> tuple[list[Change], tuple[Namespace, list[Table]]]:
            if not specs_of(view.properties):
                raise TableNotFound("the catalog is not partitioned, so it has no partitions to drop")
            changes, doomed = drop_partitioned(view)
            if creation is not None:
                changes = replacing(changes, creation(without_partitions(view, changes)))
            return changes, (find_namespace(view, ObjectId()), doomed)

        return self._drop(decide, with_tables=True, force=force, keep=keep)

    def _drop(
        self,
        decide: Callable[[CatalogView], tuple[list[Change], tuple[Namespace, list[Table]]]],
        *,
        with_tables: bool,
        force: bool,
        keep: timedelta | float | None,
    ) -> Namespace:
        """Apply a decision that drops namespaces, and remove the tables that it drops unless they are kept."""
        at = self._dropped.now() if with_tables else None
        kept: Mapping[ObjectId, int] = {}

        def recorded(view: CatalogView) -> tuple[list[Change], tuple[Namespace, list[Table]]]:
            changes, (dropped, doomed) = decide(view)
            if at is not None:
                changes += self._dropped.records_of(doomed, kept, at, view)
            return changes, (dropped, doomed)

        if with_tables:
            _, (_, doomed) = decide(self._ledger.view())
            kept = self._dropped.spans(doomed, keep)
            if not force:
                self._removal.refuse_needed([table for table in doomed if table.id not in kept])
        dropped, doomed = self._ledger.apply(recorded, effect=lambda removed: removed[0])
        left: list[Damaged] = []
        for table in doomed:
            if table.id in kept:
                continue
            try:
                if not force:
                    self._removal.refuse_needed_since(table, doomed)
                self._removal.remove(table)
            except Damaged as error:
                left.append(error)
        if left:
            raise left[0]
        return dropped
