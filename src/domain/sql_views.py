"""Views of SQL, and the decisions that create, replace, rename and drop them.

The specification has no views. The definition of a view is a property of its namespace: other clients see neither a
table without versions nor an object of an unknown type.
"""

from __future__ import annotations

from collections.abc import Mapping

from lancekeep.domain.catalog import CatalogView, Change
from lancekeep.domain.errors import ViewAlreadyExists, ViewNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import SQL_VIEW
from lancekeep.domain.namespace import alter_namespace, find_namespace


def views_in(properties: Mapping[str, str]) -> list[str]:
    """Return the names of the views of a namespace, by its properties."""
    return sorted(name.removeprefix(SQL_VIEW) for name in properties if name.startswith(SQL_VIEW))


def find_view(view: CatalogView, object_id: ObjectId) -> str:
    """Return the definition of a view.

    Raises:
        ViewNotFound: the namespace or the view does not exist.
    """
    entry = view.find(object_id.parent.key)
    properties = view.properties if object_id.parent.is_root else {} if entry is None else entry.properties
    found = None if object_id.is_root else properties.get(_property(object_id))
    if found is None:
        raise ViewNotFound(f"the view {object_id} does not exist")
    return found


def create_view(view: CatalogView, object_id: ObjectId, definition: str, *, replaces: bool) -> list[Change]:
    """Create a view.

    Args:
        view: The catalog.
        object_id: The view.
        definition: Its definition; the caller chooses the form.
        replaces: Replace an existing view.

    Raises:
        NamespaceNotFound: the namespace does not exist.
        ViewAlreadyExists: an object has the name, or a view has it and ``replaces`` is false.
        Unsupported: the catalog is a V1 directory.
    """
    entry = view.find(object_id.key)
    if entry is not None:
        raise ViewAlreadyExists(f"the name {object_id} is taken by a {entry.object_type}; choose another name")
    if not replaces and _property(object_id) in find_namespace(view, object_id.parent).properties:
        raise ViewAlreadyExists(f"the view {object_id} exists; replace it, or choose another name")
    return alter_namespace(view, object_id.parent, {_property(object_id): definition})


def drop_view(view: CatalogView, object_id: ObjectId) -> list[Change]:
    """Drop a view.

    Raises:
        ViewNotFound: the view does not exist.
    """
    find_view(view, object_id)
    return alter_namespace(view, object_id.parent, {_property(object_id): None})


def rename_view(view: CatalogView, source: ObjectId, target: ObjectId) -> list[Change]:
    """Rename a view within its namespace, or move it to another namespace.

    Raises:
        ViewNotFound: the view does not exist.
        NamespaceNotFound: the namespace of the new name does not exist.
        ViewAlreadyExists: an object or a view has the new name.
    """
    definition = find_view(view, source)
    created = create_view(view, target, definition, replaces=False)
    if source.parent == target.parent:
        return alter_namespace(view, source.parent, {_property(target): definition, _property(source): None})
    return [*created, *drop_view(view, source)]


def _property(object_id: ObjectId) -> str:
    return SQL_VIEW + object_id.names[-1]
