"""The views of SQL in a catalog."""

from __future__ import annotations

from collections.abc import Callable

from lancekeep.application.entries.ledger import Ledger
from lancekeep.domain.catalog import CatalogView, Change
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.namespace import find_namespace
from lancekeep.domain.sql_views import create_view, drop_view, find_view, rename_view, views_in


class SqlViews:
    """Keeps the definitions of views; the SQL engine chooses their form.

    Every method raises as the function of `lancekeep.domain.sql_views` does.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def names(self, namespace: ObjectId) -> list[str]:
        """Return the names of the views of a namespace, in order."""
        return views_in(find_namespace(self._ledger.view(), namespace).properties)

    def definition(self, object_id: ObjectId) -> str:
        """Return the definition of a view."""
        return find_view(self._ledger.view(), object_id)

    def create(self, object_id: ObjectId, definition: str, *, replaces: bool) -> None:
        """Create a view, or replace an existing one."""
        self._change(lambda view: create_view(view, object_id, definition, replaces=replaces))

    def replace(self, object_id: ObjectId, definition: str) -> None:
        """Replace an existing view."""

        def changes(view: CatalogView) -> list[Change]:
            find_view(view, object_id)
            return create_view(view, object_id, definition, replaces=True)

        self._change(changes)

    def drop(self, object_id: ObjectId) -> None:
        """Drop a view."""
        self._change(lambda view: drop_view(view, object_id))

    def rename(self, source: ObjectId, target: ObjectId) -> None:
        """Rename a view, also to another namespace."""
        self._change(lambda view: rename_view(view, source, target))

    def _change(self, changes: Callable[[CatalogView], list[Change]]) -> None:
        self._ledger.apply(lambda view: (changes(view), None))
