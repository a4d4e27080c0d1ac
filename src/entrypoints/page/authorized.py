"""The catalog as a principal may read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import attrs

from lancekeep.application.catalog import Catalog, services_of
from lancekeep.application.commits.unresolved import UnresolvedCommit, UnresolvedCommits, position
from lancekeep.application.entries.base_paths import restricted
from lancekeep.application.entries.dropped import DroppedTable
from lancekeep.domain.authorization import EVERYONE, Decision, Principal
from lancekeep.domain.errors import AccessDenied, NamespaceNotFound, TableNotFound, Unsupported
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE
from lancekeep.domain.namespace import Namespace
from lancekeep.domain.rights import Permission, Right
from lancekeep.entrypoints.permitted import Hidden, PermittedNames
from lancekeep.ports.authorization import Authorizer

OF_TABLE: Mapping[str, frozenset[str]] = {
    "": frozenset({"commit_rows", "describe_table", "diff", "find_table", "inspect", "open", "scan"}),
    "branches": frozenset({"list"}),
    "data": frozenset({"count", "explain", "query", "stats"}),
    "structure": frozenset({"expression", "index_statistics", "indexes"}),
    "tags": frozenset({"get", "list"}),
    "versions": frozenset({"at", "describe", "history", "manifest"}),
    "views": frozenset({"definition"}),
}
"""The methods of `Catalog` and of its services that read the table of their first argument."""

NEEDED = (Permission(Right.DESCRIBE), Permission(Right.LIST), Permission(Right.READ))
"""What a principal needs on an object to see anything of it in the pages: they show names, and most show rows."""

CHUNK = 1000
"""How many unresolved commits are read at a time."""


@attrs.frozen
class Access:
    """What one principal may read.

    Attributes:
        principal: The principal; None without authentication.
        authorizer: Decides; None if every principal may read everything.
    """

    principal: Principal | None = None
    authorizer: Authorizer | None = None

    @property
    def audience(self) -> Principal | None:
        """The principal, or `EVERYONE` if it may read the whole catalog.

        All principals that may read the whole catalog see the same names.
        """
        return Principal(EVERYONE) if self.may_read(ObjectId()) else self.principal

    def may_read(self, object_id: ObjectId) -> bool:
        """Return whether the principal may read an object."""
        if self.authorizer is None:
            return True
        if self.principal is None:
            return False
        rights = self.authorizer.rights(self.principal, object_id)
        return all(each.is_in(rights) for each in NEEDED)

    def sees(self, object_id: ObjectId) -> bool:
        """Return whether a listing shows an object to the principal."""
        if self.authorizer is None:
            return True
        return bool(self.subtrees(object_id))

    def subtrees(self, object_id: ObjectId) -> Sequence[ObjectId]:
        """Return what of an object the principal may read: itself, or subtrees."""
        if self.authorizer is None:
            return [object_id]
        return [] if self.principal is None else self.authorizer.subtrees(self.principal, object_id, NEEDED)

    def hidden(self, object_id: ObjectId) -> Hidden:
        """Return why an object looks absent to the principal."""
        return Hidden(self.principal, Right.READ, object_id)

    def base_paths(self) -> AbstractContextManager[None]:
        """Refuse base paths that lead elsewhere than into readable tables."""
        return nullcontext() if self.authorizer is None else restricted(self._may_lead)

    def _may_lead(self, _: ObjectId | None, source: ObjectId | None) -> bool:
        if source is not None:
            return self.may_read(source)
        if self.authorizer is None or self.principal is None:
            return self.authorizer is None
        return self.authorizer.decide(self.principal, Permission(Right.ADMINISTER), ObjectId()) is Decision.ALLOWED


class Listing:
    """The names of a catalog that a principal sees, in pages."""

    def __init__(self, catalog: Catalog, access: Access) -> None:
        self._services = services_of(catalog)
        self._access = access

    def namespaces(self, parent: ObjectId, after: str | None, limit: int) -> tuple[list[str], str | None]:
        """Return child namespaces after a name, and the last if there are more.

        Raises:
            NamespaceNotFound: The namespace does not exist, or the principal does not see it.
            AccessDenied: The principal may read nothing.
        """
        return self._page(partial(self._services.namespaces.page, parent, NAMESPACE), parent, after, limit)

    def tables(self, parent: ObjectId, after: str | None, limit: int) -> tuple[list[str], str | None]:
        """Return names of tables as `namespaces` does."""
        page = partial(self._services.tables.page, parent, include_declared=True)
        return self._page(page, parent, after, limit)

    def _page(
        self, page: Callable[..., tuple[list[str], str | None]], parent: ObjectId, after: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        if not self._access.sees(parent):
            if parent.is_root:  # it always exists
                raise AccessDenied("you may read nothing in this catalog; ask an administrator for a role")
            raise _absent_namespace(parent) from self._access.hidden(parent)
        try:
            subtrees = self._access.subtrees(parent)
            if parent in subtrees:
                return page(after=after, limit=limit)
            return PermittedNames.of_children(parent, subtrees).page(page, after, limit)
        except NamespaceNotFound:
            raise _absent_namespace(parent) from None

    def sees(self, table: ObjectId) -> bool:
        """Return whether the principal sees a table at this moment."""
        return self._access.sees(table)

    def all_tables(self) -> Iterator[ObjectId]:
        """Yield each table that the principal sees, in the byte order of keys."""
        return filter(self._access.sees, self._services.tables.all(None, include_declared=True))


class AuthorizedCatalog:
    """The operations of a `Catalog` that read, as far as a principal may use them.

    An operation that this class does not name is refused, so a view can change nothing. An object that the principal
    may not read looks absent, with the same error.
    """

    def __init__(self, catalog: Catalog, access: Access) -> None:
        self._catalog = catalog
        self._access = access

    def __getattr__(self, name: str) -> Any:
        if name in OF_TABLE[""]:
            return self._guarded(getattr(self._catalog, name))
        if name in OF_TABLE:
            return _Service(name, partial(self._method, getattr(self._catalog, name), name))
        raise Unsupported(f"the page does not use Catalog.{name}: it has only operations that read")

    @property
    def root_uri(self) -> str:
        """The root of the catalog."""
        return self._catalog.root_uri

    def table_exists(self, identifier: Identifier) -> bool:
        object_id = ObjectId.of(identifier)
        return self._access.may_read(object_id) and self._catalog.table_exists(object_id)

    def describe_namespace(self, identifier: Identifier) -> Namespace:
        object_id = ObjectId.of(identifier)
        if not self._access.may_read(object_id):
            raise _absent_namespace(object_id) from self._access.hidden(object_id)
        try:
            return self._catalog.describe_namespace(object_id)
        except NamespaceNotFound:
            raise _absent_namespace(object_id) from None

    def list_namespaces(self, identifier: Identifier = "") -> list[str]:
        parent = ObjectId.of(identifier)
        return [name for name in self._catalog.list_namespaces(parent) if self._sees(parent, name)]

    def list_tables(self, identifier: Identifier = "", *, include_declared: bool = True) -> list[str]:
        parent = ObjectId.of(identifier)
        names = self._catalog.list_tables(parent, include_declared=include_declared)
        return [name for name in names if self._sees(parent, name)]

    def list_all_tables(self, after: str | None = None, *, include_declared: bool = True) -> Iterator[ObjectId]:
        return filter(self._access.sees, self._catalog.list_all_tables(after, include_declared=include_declared))

    def list_dropped(self, identifier: Identifier = "") -> list[DroppedTable]:
        return [each for each in self._catalog.list_dropped(identifier) if self._access.may_read(each.id)]

    def unresolved_commits(self, limit: int = 100, *, after: str | None = None) -> UnresolvedCommits:
        """Return a page of the commits of readable tables.

        Commits of no table are for principals that may read the whole catalog.
        """
        found = self._catalog.unresolved_commits(limit, after=after)
        if self._access.may_read(ObjectId()):
            return found
        readable: list[UnresolvedCommit] = []
        while True:
            readable += (each for each in found.commits if each.table and self._access.may_read(each.table))
            if len(readable) > limit:
                return attrs.evolve(found, commits=tuple(readable[:limit]), following=position(readable[limit - 1]))
            if found.following is None:
                return attrs.evolve(found, commits=tuple(readable))
            found = self._catalog.unresolved_commits(CHUNK, after=found.following)

    def clones_of(self, identifier: Identifier) -> list[str]:
        """Return the clones that the principal may read.

        A clone outside of the catalog appears as its location, for principals that may read the whole catalog.
        """
        clones: list[str] = self._guarded(self._catalog.clones_of)(identifier)
        if not clones or self._access.may_read(ObjectId()):
            return clones
        readable = {str(table) for table in self.list_all_tables() if self._access.may_read(table)}
        return [clone for clone in clones if clone in readable]

    def _sees(self, parent: ObjectId, name: str) -> bool:
        return self._access.sees(ObjectId((*parent.names, name)))

    def _method(self, service: object, of: str, name: str) -> Callable[..., Any]:
        if name not in OF_TABLE[of]:
            raise Unsupported(f"the page does not use Catalog.{of}.{name}: it has only operations that read")
        return self._guarded(getattr(service, name))

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the table of its first argument, for readable tables alone."""

        def guarded(identifier: Identifier, *arguments: Any, **options: Any) -> Any:
            object_id = ObjectId.of(identifier)
            if not self._access.may_read(object_id):
                raise _absent_table(object_id) from self._access.hidden(object_id)
            try:
                return method(object_id, *arguments, **options)
            except TableNotFound:
                raise _absent_table(object_id) from None

        return guarded


@attrs.frozen
class _Service:
    _name: str
    _method: Callable[[str], Callable[..., Any]]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._method(name)


def _absent_table(object_id: ObjectId) -> TableNotFound:
    return TableNotFound(f"the table {object_id} does not exist")


def _absent_namespace(object_id: ObjectId) -> NamespaceNotFound:
    return NamespaceNotFound(f"the namespace {object_id} does not exist")
