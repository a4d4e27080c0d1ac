"""Operations on dropped tables, protection, and descriptions of several tables.

The specification does not have them.

Their requests are models of the server's routes, or dicts; their answers are dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

import lance_namespace as api
from lance_namespace import errors as api_errors

from lancekeep.adapters.lance.callbacks import checked_limit
from lancekeep.adapters.rest.routes import (
    DescribeTablesRequest,
    ListDroppedRequest,
    ListEventsRequest,
    ListQuotasRequest,
    ProtectionRequest,
    PurgeRequest,
    UndropRequest,
)
from lancekeep.application.entries.dropped import DroppedTable
from lancekeep.application.events.cloud_events import fields_of
from lancekeep.application.upkeep.quota_usage import QuotaUsage
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.events import LATEST, MOST_ANSWERED
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.namespace.boundary import operation
from lancekeep.entrypoints.namespace.operations import id_of
from lancekeep.entrypoints.namespace.tables import TableOperations

MOST_TABLES: Final = 100
"""The most tables that one request describes."""


class ExtensionOperations(TableOperations):
    """Operations that the specification does not have."""

    @operation
    def describe_tables(self, request: DescribeTablesRequest) -> dict[str, Any]:
        """Describe up to `MOST_TABLES` tables, each as `describe_table` does.

        Returns:
            ``results`` in the order of ``ids``: each the ``id`` with the ``response``, or with the ``error``, which has
            a ``code`` and a message ``error``.
        """

        def described(single: api.DescribeTableRequest) -> dict[str, Any]:
            try:
                return {"response": self.describe_table(single).model_dump(by_alias=True, exclude_none=True)}
            except api_errors.LanceNamespaceError as error:
                return {"error": {"code": int(error.code), "error": str(error)}}

        return each_described(request, described)

    @operation
    def list_events(self, request: ListEventsRequest) -> dict[str, Any]:
        """List the events after a cursor.

        ``after`` may be ``latest``, for the latest cursor without events. ``wait`` is for servers, which wait without a
        thread; here it is ignored.

        Returns:
            ``events``, each as a CloudEvent, the ``cursor`` to continue at, and the ``source`` of the events.
        """
        limit = MOST_ANSWERED if request.limit is None else request.limit
        if not 1 <= limit <= MOST_ANSWERED:
            raise InvalidInput(f"the limit is {limit}; expected a number from 1 to {MOST_ANSWERED}")
        events = self._catalog.events
        after = events.latest() if request.after == LATEST else request.after
        found = events.read(after, limit, below=id_of(request))
        shown = [fields_of(each, found.source) for each in found.events]
        return {"events": shown, "cursor": found.cursor, "source": found.source}

    @operation
    def list_quotas(self, request: ListQuotasRequest) -> dict[str, Any]:
        """List the quotas of a catalog, which only a server with a policy has.

        Returns:
            ``quotas``, each as `QuotaUsage.document`.
        """
        return quotas_page((), id_of(request))

    @operation
    def list_dropped_tables(self, request: ListDroppedRequest) -> dict[str, Any]:
        """List the dropped tables with an identifier, or below a namespace.

        Returns:
            ``tables``, each as `DroppedTable` with times in ISO 8601, and ``page_token`` if there are more.
        """
        limit, found = checked_limit(request.limit), self._catalog.list_dropped(id_of(request))
        later = (each for each in found if request.page_token is None or _place(each) > _after(request.page_token))
        return dropped_page([_fields(each) for each in islice(later, limit and limit + 1)], limit)

    @operation
    def undrop_table(self, request: UndropRequest) -> dict[str, Any]:
        """Bring a dropped table back.

        Returns:
            The ``id`` of the table from now on, its ``location`` and its ``properties``.
        """
        table = self._catalog.undrop(id_of(request), undrop_target(request), drop=request.drop)
        uri = self._parts.places.uri(table)
        return {"id": list(table.id.names), "location": uri, "properties": dict(table.properties)}

    @operation
    def purge_table(self, request: PurgeRequest) -> dict[str, Any]:
        """Remove the files and versions of a dropped table.

        Returns:
            The removed table, as `list_dropped_tables` shows it.
        """
        return _fields(self._catalog.purge(id_of(request), drop=request.drop, force=bool(request.force)))

    @operation
    def protect_object(self, request: ProtectionRequest) -> dict[str, Any]:
        """Protect a table or a namespace. Idempotent."""
        self._catalog.protect(id_of(request))
        return {"id": list(id_of(request).names), "protected": True}

    @operation
    def unprotect_object(self, request: ProtectionRequest) -> dict[str, Any]:
        """End the protection of a table or a namespace. Idempotent."""
        self._catalog.unprotect(id_of(request))
        return {"id": list(id_of(request).names), "protected": False}


def quotas_page(usages: Iterable[QuotaUsage], below: ObjectId) -> dict[str, Any]:
    """Return the answer of `list_quotas`.

    Args:
        usages: The quotas of the catalog.
        below: Only the quotas of this object and of everything below it.
    """
    names = below.names
    return {"quotas": [each.document() for each in usages if each.subtree.names[: len(names)] == names]}


def dropped_page(tables: Sequence[dict[str, Any]], limit: int | None) -> dict[str, Any]:
    """Return the answer of `list_dropped_tables` with the first tables of a list.

    Args:
        tables: The tables after the page token, as the answer shows them: at least one more than the limit, or all.
        limit: The most tables of the answer; None for all.
    """
    checked_limit(limit)
    shown = list(tables[:limit])
    if len(shown) == len(tables):
        return {"tables": shown}
    return {"tables": shown, "page_token": ObjectId((*shown[-1]["id"], shown[-1]["drop"])).key}


def each_described(
    request: DescribeTablesRequest, describe: Callable[[api.DescribeTableRequest], dict[str, Any]]
) -> dict[str, Any]:
    """Return the answer of `describe_tables`, whose members are described one by one.

    Args:
        request: The request.
        describe: Returns the ``response`` or the ``error`` of one table.

    Raises:
        InvalidInput: As `described_ids`.
    """
    shared = {name: getattr(request, name) for name in DescribeTablesRequest.model_fields if name != "ids"}
    results = [{"id": each, **describe(api.DescribeTableRequest(id=each, **shared))} for each in described_ids(request)]
    return {"results": results}


def described_ids(request: DescribeTablesRequest) -> Sequence[Any]:
    """Return the identifiers of the tables that `describe_tables` describes.

    Raises:
        InvalidInput: The request names no table, or too many.
    """
    ids = request.ids or []
    if not 1 <= len(ids) <= MOST_TABLES:
        raise InvalidInput(f"ids has {len(ids)} tables; give 1 to {MOST_TABLES}, each as a list of names")
    return ids


def undrop_target(request: UndropRequest) -> ObjectId:
    """Return the identifier that a dropped table gets."""
    source = id_of(request)
    if request.new_table_name is None:
        if request.new_namespace_id is not None:
            raise InvalidInput("new_namespace_id needs new_table_name; leave both out to give the table its name again")
        return source
    namespace = source.parent if request.new_namespace_id is None else ObjectId.of(request.new_namespace_id)
    return namespace.child(request.new_table_name)


def _fields(table: DroppedTable) -> dict[str, Any]:
    return {
        "id": list(table.id.names),
        "drop": table.drop,
        "location": table.location,
        "properties": dict(table.properties),
        "at": table.at.isoformat(),
        "until": table.until.isoformat(),
        "by": table.by,
        "is_purging": table.is_purging,
    }


def _place(table: DroppedTable) -> tuple[ObjectId, str]:
    """Return the place of a table in the order of lists."""
    return table.id, table.drop


def _after(token: str) -> tuple[ObjectId, str]:
    names = ObjectId.from_key(token).names or ("",)
    return ObjectId(names[:-1]), names[-1]
