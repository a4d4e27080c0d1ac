"""Conditional requests (RFC 9110, "ETag" and "If-None-Match").

Every answer to GET has a strong entity tag, the digest of its body. If ``If-None-Match`` has the tag, the answer is 304
without a body.

Answers that follow from the catalog's entries alone are not even made again: the server remembers the stamp of the
entries that an answer was made of, what the wrappers decided by, and the tag. While all are the same, so is the answer.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from threading import Lock
from typing import Any, Final

import attrs
import lance_namespace as api
from pydantic import BaseModel
from starlette.responses import Response

from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.ledger import seen_views
from lancekeep.domain.catalog import CatalogView, Stamped
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE
from lancekeep.domain.table import Table, find_table
from lancekeep.entrypoints.namespace.boundary import timestamp_of
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.entrypoints.rest.responses import response_of

HEADERS: Final = {"cache-control": "private, no-cache", "vary": "Authorization, X-Api-Key, X-Lancekeep-Timestamp"}
"""The headers of every answer with a tag: a cache of one caller may keep it, and asks before each use."""

REMEMBERED: Final = 4096
"""The number of answers of which a server remembers the tag."""

_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')


@attrs.frozen
class _Question:
    """A request whose answer follows from entries alone.

    Attributes:
        key: A digest of everything in the request that the answer depends on.
        parent: The namespace whose entries the answer is made of.
        object_type: The type of these entries.
    """

    key: bytes
    parent: ObjectId
    object_type: str

    def stamp_of(self, views: Iterable[CatalogView]) -> object | None:
        """Return the one stamp that views have; None if the views differ, or have none."""
        found: object | None = None
        for view in views:
            stamp = view.stamp(self.parent, self.object_type) if isinstance(view, Stamped) else None
            if stamp is None or (found is not None and stamp != found):
                return None
            found = stamp
        return found


@attrs.frozen
class _Known:
    """What the server remembers of an answer.

    Attributes:
        tag: Its entity tag.
        stamp: The stamp of the entries that it was made of.
        table: The table that it describes; None if it is a list or describes a namespace.
    """

    tag: str
    stamp: object
    table: Table | None


class Conditional:
    """Performs calls of GET routes.

    Args:
        namespace: The namespace of the server.
        decisions: Returns what the wrappers of calls decide by, next to the request and its principal.
    """

    def __init__(self, namespace: api.LanceNamespace, decisions: Callable[[], object]) -> None:
        own = namespace.catalog if isinstance(namespace, CatalogNamespace) else None
        self._parts = None if own is None else directory_of(own, "entity tags")
        self._decisions = decisions
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._decided: object = None
        self._lock = Lock()

    def __call__(self, call: Call, perform: Callable[[Call], Any]) -> tuple[Any, Response]:
        """Perform a call, unless the caller has its answer.

        Returns:
            The answer, None if it was not made; and the response.
        """
        asked = call.headers.getlist("if-none-match")
        question = None if self._parts is None else _question(call)
        if question is not None and asked:
            tag = self._current(question, asked)
            if tag is not None:
                return None, _not_modified(tag)
        decided = self._decisions()
        with seen_views() as views:
            answer = _without_credentials(call, perform(call))
        response = response_of(call, answer)
        tag = tag_of(bytes(response.body))
        if question is not None and self._decisions() is decided:
            self._remember(question, tag, views, decided, call)
        if _has(asked, tag):
            return answer, _not_modified(tag)
        response.headers.update({"etag": tag, **HEADERS})
        return answer, response

    def _current(self, question: _Question, asked: Sequence[str]) -> str | None:
        """Return the tag of the present answer if the caller asked with it and the server can tell; else None."""
        assert self._parts is not None
        decided = self._decisions()
        with self._lock:
            known = self._known.get(question.key) if decided is self._decided else None
            if known is None or not _has(asked, known.tag):
                return None
            self._known.move_to_end(question.key)
        ledger = self._parts.ledger
        with suppress(LancekeepError):  # the operation raises it again, in its words
            if question.stamp_of([ledger.recent()]) == known.stamp == question.stamp_of([ledger.view()]):
                if known.table is not None:
                    self._parts.places.dataset_root(known.table)  # no symbolic link may lead to it
                return known.tag
        return None

    def _remember(
        self, question: _Question, tag: str, views: Sequence[CatalogView], decided: object, call: Call
    ) -> None:
        stamp = question.stamp_of(views)
        if stamp is None:
            return
        table = find_table(views[-1], ObjectId.of(call.object_id)) if call.operation == "describe_table" else None
        with self._lock:
            if decided is not self._decided:
                self._known.clear()
                self._decided = decided
            self._known[question.key] = _Known(tag, stamp, table)
            self._known.move_to_end(question.key)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


def _question(call: Call) -> _Question | None:
    """Return the question of a call; None if its answer depends on more than entries."""
    request: Any = call.request
    try:
        object_id = ObjectId.of(call.object_id)
        if timestamp_of(request) is not None:
            return None
    except InvalidInput:
        return None
    operation = call.operation
    if operation == "list_namespaces":
        parent, object_type = object_id, NAMESPACE
    elif operation in ("list_tables", "list_all_tables") and request.include_declared is not False:
        parent, object_type = object_id, TABLE
    elif operation == "describe_namespace":
        parent, object_type = (object_id, TABLE) if object_id.is_root else (object_id.parent, NAMESPACE)
    elif operation == "describe_table" and not object_id.is_root and _shows_no_version(request):
        parent, object_type = object_id.parent, TABLE
    else:
        return None
    asked = request.model_dump_json(exclude={"identity", "context"})
    principal = call.principal
    groups = sorted(getattr(principal, "groups", ()))
    key = repr((call.route.path, asked, call.delimiter, getattr(principal, "name", principal), groups))
    return _Question(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest(), parent, object_type)


def _shows_no_version(request: Any) -> bool:
    fields = ("version", "branch", "tag", "load_detailed_metadata", "check_declared")
    return not any(getattr(request, field) not in (None, False) for field in fields)


def _without_credentials(call: Call, answer: Any) -> Any:
    """Take the storage options out of the answer of a route that vends none, whatever the namespace answers."""
    if call.route.fixed.get("vend_credentials") is not False:
        return answer
    if isinstance(answer, BaseModel):
        return answer.model_copy(update={"storage_options": None})
    return {name: value for name, value in (answer or {}).items() if name != "storage_options"}


def tag_of(body: bytes) -> str:
    """Return the tag of a response's body.

    The headers may have the time, or the id of a request.
    """
    return f'"{blake2b(body, digest_size=16).hexdigest()}"'


def matches(condition: str, tag: str) -> bool:
    """Return whether ``If-Match`` has a tag.

    RFC 9110 asks for the strong comparison.
    """
    return condition.strip() == "*" or tag in map(str.strip, condition.split(","))


def _has(asked: Sequence[str], tag: str) -> bool:
    """Return whether ``If-None-Match`` has a tag, by the weak comparison that RFC 9110 asks for."""
    given = ", ".join(asked)
    return given.strip() == "*" or tag in _TAG.findall(given)


def _not_modified(tag: str) -> Response:
    return Response(status_code=304, headers={"etag": tag, **HEADERS})
