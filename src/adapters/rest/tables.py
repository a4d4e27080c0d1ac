"""The namespaces and tables of a catalog that another process serves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from lancekeep.application.entries.dropped import microseconds
from lancekeep.application.entries.tables import Description
from lancekeep.domain.dropped import SECOND
from lancekeep.domain.errors import (
    Damaged,
    InvalidInput,
    NotFound,
    Unsupported,
)
from lancekeep.domain.identifiers import MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE
from lancekeep.domain.namespace import Namespace
from lancekeep.domain.properties import checked_properties
from lancekeep.domain.table import Table
from lancekeep.ports.catalog_server import CatalogServer

KEEP_HEADER = "header.x-lancekeep-keep"
"""The entry of a context that a Lancekeep server reads as the time for which a dropped table is kept."""


class Descriptions:
    """Describes tables of a server, with the storage options that it vends.

    A server without credentials to vend may refuse to vend any. Clients of such a server have their own.
    """

    def __init__(self, server: CatalogServer) -> None:
        self._server = server
        self._vends = True

    def __call__(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        if self._vends:
            try:
                return self._server.call("describe_table", {**fields, "vend_credentials": True})
            except Unsupported:
                self._vends = False
        return self._server.call("describe_table", fields)


class RestNamespaces:
    """The namespaces of a server."""

    def __init__(self, server: CatalogServer) -> None:
        self._server = server

    def create(
        self, object_id: ObjectId, properties: Mapping[str, str] | None, *, exist_ok: bool, overwrite: bool
    ) -> Namespace:
        if exist_ok and overwrite:
            raise InvalidInput("an existing namespace can be kept (exist_ok) or replaced (overwrite), not both")
        mode = "exist_ok" if exist_ok else "overwrite" if overwrite else "create"
        given = checked_properties(properties)
        fields = {"id": list(object_id.names), "mode": mode, "properties": given or None}
        found = self._server.call("create_namespace", fields)
        return Namespace(object_id, texts_of(found.get("properties")))

    def alter(self, object_id: ObjectId, values: Mapping[str, str] | None, remove: Iterable[str]) -> Namespace:
        raise _not_offered(self._server, "changes properties of a namespace")

    def describe(self, object_id: ObjectId) -> Namespace:
        found = self._server.call("describe_namespace", {"id": list(object_id.names)})
        return Namespace(object_id, texts_of(found.get("properties")))

    def page(
        self, object_id: ObjectId, object_type: str, after: str | None, limit: int | None
    ) -> tuple[list[str], str | None]:
        operation, names = {NAMESPACE: ("list_namespaces", "namespaces"), TABLE: ("list_tables", "tables")}[object_type]
        return _page(self._server, operation, names, {"id": list(object_id.names)}, after, limit)

    def drop(self, object_id: ObjectId, *, cascade: bool, force: bool, keep: timedelta | float | None) -> Namespace:
        if force:
            raise _not_offered(self._server, "drops a namespace with force")
        behavior = "Cascade" if cascade else "Restrict"
        fields = {
            "id": list(object_id.names),
            "mode": "Fail",
            "behavior": behavior,
            "context": keeping(self._server, keep),
        }
        found = self._server.call("drop_namespace", fields)
        return Namespace(object_id, texts_of(found.get("properties")))


class RestTables:
    """The tables of a server. The location of a table is its URI."""

    def __init__(self, server: CatalogServer) -> None:
        self._server = server
        self._described = Descriptions(server)

    def fields(self, object_id: ObjectId, **wanted: Any) -> dict[str, Any]:
        """Return what the server says about a table."""
        return self._located(object_id, self._server.call("describe_table", {"id": list(object_id.names), **wanted}))

    def reached(self, object_id: ObjectId) -> dict[str, Any]:
        """Return what the server says about a table, with vended options."""
        return self._located(object_id, self._described({"id": list(object_id.names)}))

    def _located(self, object_id: ObjectId, found: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(found.get("location"), str):
            raise Damaged(f"{self._server.uri} describes the table {object_id} without a location")
        return found

    def find(self, object_id: ObjectId) -> Table:
        return table_of(object_id, self.fields(object_id))

    def find_in_namespace(self, object_id: ObjectId) -> Table:
        return self.find(object_id)  # the server answers for the namespace, too

    def exists(self, object_id: ObjectId) -> bool:
        try:
            self._server.call("table_exists", {"id": list(object_id.names)})
        except NotFound:
            return False
        return True

    def describe(self, object_id: ObjectId) -> Description:
        found = self.fields(object_id, check_declared=True)
        table = table_of(object_id, found)
        version = None if found.get("is_only_declared") else self.latest(object_id)
        return Description(object_id, table.location, version, table.properties, bool(found.get("managed_versioning")))

    def latest(self, object_id: ObjectId) -> int | None:
        """Return the latest version of a table; None if it has none."""
        found = self._server.call("list_table_versions", {"id": list(object_id.names), "limit": 1, "descending": True})
        versions = found.get("versions") or []
        return int(versions[0]["version"]) if versions else None

    def page(
        self, object_id: ObjectId, after: str | None, limit: int | None, *, include_declared: bool
    ) -> tuple[list[str], str | None]:
        fields = {"id": list(object_id.names), "include_declared": None if include_declared else False}
        return _page(self._server, "list_tables", "tables", fields, after, limit)

    def all(self, after: str | None, *, include_declared: bool) -> Iterator[ObjectId]:
        fields = {"include_declared": None if include_declared else False}
        while True:
            found = self._server.call("list_all_tables", {**fields, "page_token": after})
            for name in found.get("tables") or []:
                yield ObjectId(tuple(str(name).split(MANIFEST_DELIMITER)))
            after = found.get("page_token")
            if not after:
                return

    def usable(self) -> Iterator[Table]:
        raise _not_offered(self._server, "checks directories")

    def declare(self, object_id: ObjectId, properties: Mapping[str, str] | None, location: str | None) -> Table:
        given = checked_properties(properties)
        fields = {"id": list(object_id.names), "properties": given or None, "location": location}
        return table_of(object_id, self._server.call("declare_table", fields), given)

    def register(
        self, object_id: ObjectId, location: str, properties: Mapping[str, str] | None, *, overwrite: bool
    ) -> Table:
        given = checked_properties(properties)
        mode = "overwrite" if overwrite else "create"
        fields = {"id": list(object_id.names), "location": location, "properties": given or None, "mode": mode}
        self._server.call("register_table", fields)  # its answer has the location relative to the server's root
        return table_of(object_id, self._server.call("describe_table", {"id": list(object_id.names)}), given)

    def require_replaceable(self, object_id: ObjectId, action: str) -> None:
        """Do nothing: the server refuses."""

    def alter(self, object_id: ObjectId, values: Mapping[str, str] | None, remove: Iterable[str]) -> Table:
        raise _not_offered(self._server, "changes properties of a table")

    def deregister(self, object_id: ObjectId) -> Table:
        return table_of(object_id, self._server.call("deregister_table", {"id": list(object_id.names)}))

    def drop(self, object_id: ObjectId, *, force: bool, keep: timedelta | float | None) -> Table:
        if force:
            raise _not_offered(self._server, "drops a table with force")
        fields = {"id": list(object_id.names), "context": keeping(self._server, keep)}
        return table_of(object_id, self._server.call("drop_table", fields))

    def rename(self, source: ObjectId, target: ObjectId) -> Table:
        fields = {
            "id": list(source.names),
            "new_table_name": target.name,
            "new_namespace_id": list(target.parent.names),
        }
        self._server.call("rename_table", fields)
        return self.find(target)


def keeping(server: CatalogServer, keep: timedelta | float | None) -> dict[str, str] | None:
    """Return the context that says how long dropped tables stay.

    None stands for the default.

    Raises:
        InvalidInput: The server understands only whole seconds.
        Unsupported: The server is not Lancekeep's, and would ignore the context.
    """
    if keep is None:
        return None
    seconds, rest = divmod(microseconds(keep), SECOND)
    if rest or not 0 <= seconds < 10**9:
        raise InvalidInput(f"keep is {keep!r}; a server keeps tables for whole seconds, at least 0 and less than 10^9")
    if "UndropTable" not in (server.call("list_operations", {}).get("operations") or []):
        raise _not_offered(server, "drops a table with keep")
    return {KEEP_HEADER: f"{seconds}s" if seconds else "0"}


def texts_of(found: Any) -> dict[str, str]:
    """Return an object of an answer as texts."""
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def table_of(object_id: ObjectId, found: Mapping[str, Any], given: Mapping[str, str] | None = None) -> Table:
    """Return the table of an answer, by default with the ``given`` properties."""
    properties = found.get("properties")
    return Table(object_id, str(found.get("location") or ""), texts_of(properties) if properties else dict(given or {}))


def _page(
    server: CatalogServer,
    operation: str,
    field: str,
    fields: Mapping[str, Any],
    after: str | None,
    limit: int | None,
) -> tuple[list[str], str | None]:
    """Return a page of names, or without a limit every page."""
    names: list[str] = []
    while True:
        found = server.call(operation, {**fields, "page_token": after, "limit": limit})
        names += [str(name) for name in found.get(field) or []]
        after = found.get("page_token") or None
        if after is None or limit is not None:
            return names, after


def _not_offered(server: CatalogServer, what: str) -> Unsupported:
    return Unsupported(f"{server.uri}: no operation of the REST protocol {what}. Nothing was changed")
