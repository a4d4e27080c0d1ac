"""Dropped tables and protection, in the catalog of a Lancekeep server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lancekeep.adapters.rest.tables import table_of, texts_of
from lancekeep.application.entries.dropped import DroppedTable
from lancekeep.domain.errors import Damaged, TableNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.table import Table
from lancekeep.ports.catalog_server import CatalogServer

PAGE = 1000
"""How many dropped tables an answer lists at most."""


class RestDropped:
    """The dropped tables of a server."""

    def __init__(self, server: CatalogServer) -> None:
        self._server = server

    def list(self, below: ObjectId) -> Sequence[DroppedTable]:
        found: list[DroppedTable] = []
        after: str | None = None
        while True:
            fields = {"id": list(below.names), "page_token": after, "limit": PAGE}
            answer = self._server.call("list_dropped_tables", fields)
            found += (self._dropped(each) for each in answer.get("tables") or [])
            after = answer.get("page_token")
            if not after:
                return found

    def undrop(self, object_id: ObjectId, target: ObjectId, drop: str | datetime | None) -> Table:
        renamed = {"new_table_name": target.name, "new_namespace_id": list(target.parent.names)}
        fields = {"id": list(object_id.names), "drop": self._which(object_id, drop)}
        return table_of(
            target, self._server.call("undrop_table", {**fields, **({} if target == object_id else renamed)})
        )

    def purge(self, object_id: ObjectId, drop: str | datetime | None, *, force: bool) -> DroppedTable:
        fields = {"id": list(object_id.names), "drop": self._which(object_id, drop), "force": force or None}
        return self._dropped(self._server.call("purge_table", fields))

    def _which(self, object_id: ObjectId, drop: str | datetime | None) -> str | None:
        """Return the name of a drop, which a caller may know by its time."""
        if not isinstance(drop, datetime):
            return drop
        at = drop if drop.tzinfo else drop.replace(tzinfo=UTC)
        for each in self.list(object_id):
            if (each.id, each.at) == (object_id, at):
                return each.drop
        raise TableNotFound(
            f"there is no dropped table {object_id} that was dropped at {at}; list the dropped tables with list_dropped"
        )

    def _dropped(self, found: Mapping[str, Any]) -> DroppedTable:
        try:
            return DroppedTable(
                ObjectId(tuple(str(name) for name in found["id"])),
                str(found["drop"]),
                str(found["location"]),
                texts_of(found.get("properties")),
                _time(found["at"]),
                _time(found["until"]),
                str(found["by"]),
                found.get("is_purging") is True,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{self._server.uri} describes a dropped table in an unknown form: {error!r:.200}") from error


class RestProtection:
    """The protection of the objects of a server."""

    def __init__(self, server: CatalogServer) -> None:
        self._server = server

    def change(self, object_id: ObjectId, *, protected: bool) -> None:
        operation = "protect_object" if protected else "unprotect_object"
        self._server.call(operation, {"id": list(object_id.names)})


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"the time {text!r:.50} has no zone")
    return time
