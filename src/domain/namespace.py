"""Namespaces: what they are, and how they come and go."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import attrs

from lancekeep.domain.catalog import (
    CatalogView,
    Change,
    Put,
    Remove,
    SetProperties,
    require_free,
    require_namespace,
)
from lancekeep.domain.errors import NamespaceNotEmpty, NamespaceNotFound, Refused, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.table import Table


@attrs.frozen
class Namespace:
    """A namespace and its properties; the root has those of the catalog."""

    id: ObjectId
    properties: Mapping[str, str]


def find_namespace(view: CatalogView, object_id: ObjectId) -> Namespace:
    """The namespace of that identifier. Raises `NamespaceNotFound`."""
    if object_id.is_root:
        return Namespace(object_id, dict(view.properties))
    entry = view.find(object_id.key)
    if entry is None or entry.object_type != NAMESPACE:
        raise NamespaceNotFound(
            f"there is no namespace {object_id}; "
            + ("list_namespaces shows what there is" if entry is None else f"it is a {entry.object_type}")
        )
    return Namespace(object_id, entry.properties)


def create_namespace(view: CatalogView, object_id: ObjectId, properties: Mapping[str, str]) -> list[Change]:
    """Add a namespace below an existing one.

    Raises `NamespaceNotFound`, `NamespaceAlreadyExists`, and `Unsupported` in a V1 directory.
    """
    if view.flat:
        raise Unsupported(f"a V1 directory has no namespaces but the root; open it with its manifest for {object_id}")
    require_namespace(view, object_id.parent)
    require_free(view, object_id, NAMESPACE)
    return [Put(ManifestEntry.namespace(object_id, properties))]


def drop_namespace(view: CatalogView, object_id: ObjectId, *, cascade: bool) -> tuple[list[Change], list[Table]]:
    """Remove a namespace and, with ``cascade``, all below it; also the tables that lose their entry by it.

    Raises `NamespaceNotFound`, `NamespaceNotEmpty`, and `Refused` for the root or an object of an unknown type.
    """
    if object_id.is_root:
        raise Refused(
            "the root namespace cannot be dropped; it exists as long as its directory does. Drop what it holds"
        )
    find_namespace(view, object_id)
    below = list(view.descendants(object_id) if cascade else islice(view.descendants(object_id), 1))
    if below and not cascade:
        raise NamespaceNotEmpty(
            f"the namespace {object_id} is not empty: it holds {ObjectId.from_key(below[0].object_id)}, for one; "
            "drop what it holds first, or drop it with cascade"
        )
    strangers = [entry for entry in below if entry.object_type not in (NAMESPACE, TABLE)]
    if strangers:
        raise Refused(
            f"the namespace {object_id} holds {ObjectId.from_key(strangers[0].object_id)}, of the unknown type "
            f"{strangers[0].object_type!r}; drop it with the software that made it"
        )
    tables = [Table.from_entry(entry) for entry in below if entry.object_type == TABLE]
    return [*(Remove(entry.object_id) for entry in below), Remove(object_id.key)], tables


def replace_namespace(view: CatalogView, object_id: ObjectId, properties: Mapping[str, str]) -> list[Change]:
    """Put a new, empty namespace in the place of an empty one, or of none. Raises as creating and dropping do."""
    entry = view.find(object_id.key)
    if entry is None or entry.object_type != NAMESPACE:
        return create_namespace(view, object_id, properties)
    drop_namespace(view, object_id, cascade=False)
    return [Put(ManifestEntry.namespace(object_id, properties))]


def alter_namespace(view: CatalogView, object_id: ObjectId, changes: Mapping[str, str | None]) -> list[Change]:
    """Set some properties of a namespace, the root too, and remove those given as None.

    Raises `NamespaceNotFound`, and `Unsupported` in a V1 directory.
    """
    if view.flat:
        raise Unsupported("a V1 directory has no place for properties; open it with its manifest")
    if object_id.is_root:
        return [SetProperties(changes)]
    find_namespace(view, object_id)
    entry = view.find(object_id.key)
    return [Put(entry.with_properties(changes))] if entry is not None else []
