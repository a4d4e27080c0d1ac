"""Namespaces, and the decisions that create, change and drop them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import attrs

from lancekeep.domain.catalog import (
    CatalogView,
    Change,
    Entries,
    Put,
    Remove,
    SetProperties,
    require_free,
    require_names,
    require_namespace,
)
from lancekeep.domain.errors import NamespaceNotEmpty, NamespaceNotFound, Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.identity import IDENTITY_PROPERTY
from lancekeep.domain.manifest_entry import NAMESPACE, SQL_VIEW, TABLE, ManifestEntry
from lancekeep.domain.notebook import Shown
from lancekeep.domain.partition_rules import (
    DATASET,
    require_enterable,
    require_no_spec,
    require_unpartitioned_properties,
)
from lancekeep.domain.partitioning import SCHEMA_PROPERTY, is_record, specs_of
from lancekeep.domain.protection import require_none_protected, require_unprotected
from lancekeep.domain.table import Table


@attrs.frozen
class Namespace(Shown):
    """A namespace and its properties.

    The root has the properties of the catalog, except its identity.
    """

    id: ObjectId
    properties: Mapping[str, str]


def find_namespace(view: CatalogView, object_id: ObjectId) -> Namespace:
    """Return a namespace.

    Raises:
        NamespaceNotFound: no namespace has this identifier.
    """
    if object_id.is_root:
        shown = {name: value for name, value in view.properties.items() if name != IDENTITY_PROPERTY}
        return Namespace(object_id, shown)
    entry = view.find(object_id.key)
    if entry is None or entry.object_type != NAMESPACE:
        raise NamespaceNotFound(
            f"the namespace {object_id} does not exist; "
            + ("list the namespaces with list_namespaces" if entry is None else f"the name is a {entry.object_type}")
        )
    return Namespace(object_id, entry.properties)


def create_namespace(view: CatalogView, object_id: ObjectId, properties: Mapping[str, str]) -> list[Change]:
    """Add a namespace below an existing one.

    Raises:
        NamespaceNotFound: the parent does not exist.
        NamespaceAlreadyExists: an object has the name.
        Unsupported: the manifest store has no namespaces at this level, or not this name.
        Refused: the name belongs to the partitioned namespace.
    """
    levels = view.guarantees.levels
    if levels == 0:
        raise view.guarantees.refusal(f"has only the root namespace, and cannot store {object_id}")
    if levels is not None and len(object_id.names) > levels:
        raise view.guarantees.refusal(f"has {levels} level(s) of namespaces, and cannot store {object_id}")
    require_names(view, object_id)
    require_namespace(view, object_id.parent)
    require_free(view, object_id, NAMESPACE)
    require_enterable(view, object_id)
    return [Put(ManifestEntry.namespace(object_id, properties))]


def drop_namespace(view: CatalogView, object_id: ObjectId, *, cascade: bool) -> tuple[list[Change], list[Table]]:
    """Remove a namespace and, with ``cascade``, everything below it.

    Returns:
        The changes, and the tables that lose their entries.

    Raises:
        NamespaceNotFound: the namespace does not exist.
        NamespaceNotEmpty: it is not empty, and ``cascade`` is false.
        Refused: it is the root, belongs to a partition specification, contains an object of an unknown type, or is
            protected, also by what it contains.
    """
    if object_id.is_root:
        raise Refused(
            "the root namespace cannot be dropped; it exists as long as its directory does. Drop its contents instead"
        )
    find_namespace(view, object_id)
    if object_id.key in view.guarantees.permanent:
        raise view.guarantees.refusal(f"always has the namespace {object_id}; it cannot be dropped")
    require_unprotected(view, object_id, "drop")
    require_no_spec(view, object_id)
    below = list(view.descendants(object_id) if cascade else islice(view.descendants(object_id), 1))
    if below and not cascade:
        raise NamespaceNotEmpty(
            f"the namespace {object_id} is not empty: it contains {ObjectId.from_key(below[0].object_id)}; "
            "drop its contents first, or drop it with cascade"
        )
    if not cascade and any(name.startswith(SQL_VIEW) for name in find_namespace(view, object_id).properties):
        raise NamespaceNotEmpty(
            f"the namespace {object_id} is not empty: it contains views; drop them first, or drop it with cascade"
        )
    return _drop_with(object_id, below)


def drop_partitioned(view: CatalogView) -> tuple[list[Change], list[Table]]:
    """Remove all partitions, their specifications and their schema.

    Returns:
        The changes, and the tables that lose their entries.

    Raises:
        Refused: a partition, a level above it or the root is protected, or there is an object of an unknown type.
    """
    require_unprotected(view, ObjectId((DATASET,)), "drop")
    changes: list[Change] = []
    tables: list[Table] = []
    specs = specs_of(view.properties).values()
    for namespace in (ObjectId((spec.namespace,)) for spec in specs):
        require_unprotected(view, namespace, "drop")
        removed, doomed = _drop_with(namespace, list(view.descendants(namespace)))
        changes += removed
        tables += doomed
    records = filter(is_record, view.properties)  # a stream notices that its batches are gone
    gone = [SCHEMA_PROPERTY, *(spec.property for spec in specs), *records]
    return [*changes, SetProperties(dict.fromkeys(gone))], tables


def without_partitions(view: CatalogView, changes: Sequence[Change]) -> Entries:
    """Return the view of new partitions after `drop_partitioned`.

    It has no entries: every name of a partition belongs to the partitions, as the table ``dataset`` in the root does.
    """
    return Entries(view.version, (), view.properties, view.guarantees).after(changes)


def replacing(removed: Sequence[Change], created: Sequence[Change]) -> list[Change]:
    """Return the changes that remove objects and create others as one change.

    Each entry and each property changes once, so that no store depends on the order.
    """
    entered = {change.entry.object_id for change in created if isinstance(change, Put)}
    properties: dict[str, str | None] = {}
    changes: list[Change] = []
    for change in (*removed, *created):
        match change:
            case SetProperties(given):
                properties |= given
            case Remove(object_id) if object_id in entered:
                pass
            case _:
                changes.append(change)
    return [*changes, SetProperties(properties)]


def _drop_with(object_id: ObjectId, below: list[ManifestEntry]) -> tuple[list[Change], list[Table]]:
    """Remove a namespace and everything below it; raises and returns as `drop_namespace`."""
    require_none_protected(below, f"drop the namespace {object_id}")
    strangers = [entry for entry in below if entry.object_type not in (NAMESPACE, TABLE)]
    if strangers:
        raise Refused(
            f"the namespace {object_id} contains {ObjectId.from_key(strangers[0].object_id)} of the unknown type "
            f"{strangers[0].object_type!r}; drop that object with the software that created it"
        )
    tables = [Table.from_entry(entry) for entry in below if entry.object_type == TABLE]
    return [*(Remove(entry.object_id) for entry in below), Remove(object_id.key)], tables


def replace_namespace(view: CatalogView, object_id: ObjectId, properties: Mapping[str, str]) -> list[Change]:
    """Create an empty namespace, or replace an empty one.

    Raises as `create_namespace` and `drop_namespace` do.
    """
    entry = view.find(object_id.key)
    if entry is None or entry.object_type != NAMESPACE:
        return create_namespace(view, object_id, properties)
    drop_namespace(view, object_id, cascade=False)
    require_enterable(view, object_id)
    return [Put(ManifestEntry.namespace(object_id, properties))]


def alter_namespace(view: CatalogView, object_id: ObjectId, changes: Mapping[str, str | None]) -> list[Change]:
    """Set properties of a namespace or of the root; None removes a property.

    Raises:
        NamespaceNotFound: the namespace does not exist.
        Unsupported: the manifest store has no properties.
        Refused: a property defines partitions.
    """
    if not view.guarantees.properties:
        raise view.guarantees.refusal("cannot store properties")
    require_unpartitioned_properties(view, object_id, changes)
    if object_id.is_root:
        return [SetProperties(changes)]
    find_namespace(view, object_id)
    entry = view.find(object_id.key)
    return [Put(entry.with_properties(changes))] if entry is not None else []
