"""The events of a catalog that a server has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from lancekeep.application.events.cloud_events import event_of
from lancekeep.application.events.service import Page, waited, watched
from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.directory import NoDirectory
from lancekeep.domain.events import LATEST, MOST_ANSWERED, Event, EventCursor, EventPage
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.ports.catalog_server import CatalogServer

_SERVER_WAITS = 30
"""The longest wait of one request."""


class RestEvents:
    """The events of a server's catalog, as far as the caller may see them.

    Args:
        server: The server.
    """

    def __init__(self, server: CatalogServer) -> None:
        self._server = server
        self._retry = Retry()

    def read(
        self, after: str | None = None, limit: int = 100, *, below: Identifier = "", wait: float = 0.0
    ) -> EventPage:
        return waited(self._page(below, wait), self._retry, after, limit, wait)

    def watch(self, after: str | None = None, *, below: Identifier = "", poll: float = 1.0) -> Iterator[Event]:
        return watched(self._page(below, _SERVER_WAITS), self._retry, after, poll)

    def latest(self) -> str:
        return self._ask(ObjectId(), 0, LATEST, 1).cursor

    def record(self) -> int:
        raise NoDirectory.at(self._server.uri, "events.record")

    def _page(self, below: Identifier, wait: float) -> Page:
        return partial(self._ask, ObjectId.of(below), wait)

    def _ask(self, below: ObjectId, wait: float, after: str | None, limit: int) -> EventPage:
        if after not in (None, LATEST):
            EventCursor.parse(after or "")
        answer = self._server.call(
            "list_events",
            {
                "id": list(below.names) or None,
                "after": after,
                "limit": min(limit, MOST_ANSWERED),
                "wait": min(math.ceil(wait), _SERVER_WAITS) or None,
            },
        )
        return EventPage([event_of(each) for each in answer["events"]], answer["cursor"], answer.get("source", ""))
