"""The routes of the server as one table (specification: "REST Routes").

The server finds operations by it, and the client builds requests from it. Nothing else names a path.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

import attrs
import lance_namespace as api
from lance_namespace_urllib3_client.models.identity import Identity
from pydantic import BaseModel

from lancekeep.adapters.rest.administration import REQUESTS
from lancekeep.domain.rights import name_of

GET, POST = "GET", "POST"
CURSOR_HEADER, SOURCE_HEADER = "x-lancekeep-cursor", "x-lancekeep-source"
"""The headers of a batch of events: where to continue, and the catalog."""


class Body(StrEnum):
    """The kind of a body."""

    NONE = "none"
    """The specification defines no body; fields are accepted as an optional JSON object."""
    JSON = "json"
    ARROW = "arrow"
    """A request holds an Arrow IPC stream, a response an Arrow IPC file."""
    EVENTS = "events"
    """A response is a batch of CloudEvents in JSON, or a stream of them."""
    METADATA = "metadata"
    """A JSON object that is the field ``metadata`` itself."""


@attrs.frozen
class Route:
    """One operation at one path.

    Attributes:
        operation: The method of `lance_namespace.LanceNamespace`.
        method: The HTTP method.
        path: The template of the path; ``{id}`` and ``{index_name}`` are fields of the request.
        query: The fields of the request that query parameters give. ``delimiter`` is always accepted.
        headers: The fields of the request that headers give, by header name.
        body: The body of the request.
        answer: The body of the response.
        value: The field of the response whose value is the whole body; empty if the body has all fields.
        status: The status of a success.
        unsupported: The status if the namespace does not support the operation.
        fixed: Fields of the request that have one value on this route.
    """

    operation: str
    method: str
    path: str
    query: tuple[str, ...] = ()
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: Body = Body.JSON
    answer: Body = Body.JSON
    value: str = ""
    status: int = 200
    unsupported: int = 501
    fixed: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def operation_id(self) -> str:
        """The name of the operation in the specification, such as ``CreateTable``."""
        return name_of(self.operation)

    @functools.cached_property
    def model(self) -> type[BaseModel]:
        """The request model."""
        name = f"{_MODELS.get(self.operation, self.operation_id)}Request"
        return typing.cast(type[BaseModel], getattr(api, name, None) or REQUESTS.get(name) or globals()[name])

    @functools.cached_property
    def kinds(self) -> Mapping[str, type]:
        """The type of each field: ``bool``, ``int``, ``list``, ``dict`` or ``str``."""
        return {name: _kind(field.annotation) for name, field in self.model.model_fields.items()}

    @property
    def kind(self) -> str:
        """The kind of object that the path names.

        ``namespace``, ``table``, ``materialized_view`` or ``transaction``.
        """
        return self.path.split("/")[2] if self.path.startswith("/v1/") else ""


class Match(NamedTuple):
    """The routes of one path, by method, and the path's parameters."""

    routes: Mapping[str, Route]
    parameters: Mapping[str, str]


class Router:
    """Finds the routes of a path in constant time.

    A literal segment has precedence over a parameter.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[tuple[str | None, ...], dict[str, Route]] = {}
        self._names: dict[tuple[str | None, ...], dict[int, str]] = {}
        for route in routes:
            segments = route.path.split("/")[1:]
            names = {place: segment[1:-1] for place, segment in enumerate(segments) if segment.startswith("{")}
            key = tuple(None if place in names else segment for place, segment in enumerate(segments))
            self._routes.setdefault(key, {})[route.method] = route
            self._names[key] = names
        self._places = sorted({tuple(names) for names in self._names.values()}, key=len)

    def find(self, segments: Sequence[str], method: str = "") -> Match | None:
        """Return the routes of a path.

        Args:
            segments: The segments of the path, each percent-decoded.
            method: Routes with this method have precedence: a table may have the name of a literal segment.
        """
        first: Match | None = None
        for places in self._places:
            key = tuple(None if place in places else segment for place, segment in enumerate(segments))
            routes = self._routes.get(key)
            if routes is not None:
                match = Match(routes, {name: segments[place] for place, name in self._names[key].items()})
                if not method or method in routes:
                    return match
                first = match if first is None else Match({**match.routes, **first.routes}, first.parameters)
        return first


class ListOperationsRequest(BaseModel):
    """The request of ``ListOperations``, which has no model in `lance_namespace`."""

    identity: Identity | None = None
    context: dict[str, str] | None = None


class AlterRequest(ListOperationsRequest):
    """The request of ``AlterNamespace`` and ``AlterTable``; null removes a property."""

    id: list[str] | None = None
    properties: dict[str, str | None] | None = None


class ListDroppedRequest(ListOperationsRequest):
    """The request of ``ListDroppedTables``, below a namespace or with a name."""

    id: list[str] | None = None
    page_token: str | None = None
    limit: int | None = None


class UndropRequest(ListOperationsRequest):
    """The request of ``UndropTable``.

    ``new_namespace_id`` and ``new_table_name`` are as in ``RenameTable``; without them, the table gets its name again.
    ``drop`` is the name of a drop; by default the latest.
    """

    id: list[str] | None = None
    new_table_name: str | None = None
    new_namespace_id: list[str] | None = None
    drop: str | None = None


class PurgeRequest(ListOperationsRequest):
    """The request of ``PurgeTable``; see `Catalog.purge`."""

    id: list[str] | None = None
    drop: str | None = None
    force: bool | None = None


class ProtectionRequest(ListOperationsRequest):
    """The request of ``ProtectObject`` and ``UnprotectObject``."""

    id: list[str] | None = None


class ListEventsRequest(ListOperationsRequest):
    """The request of ``ListEvents``; see `Events.read`. ``wait`` is in seconds."""

    id: list[str] | None = None
    after: str | None = None
    limit: int | None = None
    wait: int | None = None


class ListQuotasRequest(ListOperationsRequest):
    """The request of ``ListQuotas``: of an object and everything below it."""

    id: list[str] | None = None


class QuotaFields(BaseModel):
    """A quota in the response of ``ListQuotas``; see `QuotaUsage`."""

    quota: int
    id: list[str]
    max_tables: int | None = None
    max_bytes: int | None = None
    tables: int | None = None
    bytes: int | None = None
    share: float | None = None
    measured: datetime | None = None


class ListQuotasResponse(BaseModel):
    """The response of ``ListQuotas``."""

    quotas: list[QuotaFields]


class DescribeTablesRequest(ListOperationsRequest):
    """The request of ``DescribeTables``.

    Each other field than ``ids`` is a field of ``DescribeTable`` for all tables.
    """

    ids: list[list[str]] | None = None
    with_table_uri: bool | None = None
    load_detailed_metadata: bool | None = None
    check_declared: bool | None = None
    vend_credentials: bool | None = None


_MODELS = {
    "list_all_tables": "ListTables",
    "create_table_scalar_index": "CreateTableIndex",
    "alter_namespace": "Alter",
    "alter_table": "Alter",
    "list_dropped_tables": "ListDropped",
    "undrop_table": "Undrop",
    "purge_table": "Purge",
    "protect_object": "Protection",
    "unprotect_object": "Protection",
}
"""The operations whose request model has the name of another operation."""

_PAGE = ("page_token", "limit")
_TABLE, _NAMESPACE = "/v1/table/{id}", "/v1/namespace/{id}"


def _kind(annotation: Any) -> type:
    """Return the kind of a field; of an optional or annotated type, the kind of its first argument."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return _kind(typing.get_args(annotation)[0])
    kind = origin or annotation
    return kind if kind in (bool, int, list, dict) else str


def _post(operation: str, path: str, **fields: Any) -> Route:
    return Route(operation, POST, path, **fields)


ROUTES: tuple[Route, ...] = (
    _post("create_namespace", f"{_NAMESPACE}/create", unsupported=406),
    Route("list_namespaces", GET, f"{_NAMESPACE}/list", _PAGE, body=Body.NONE, unsupported=406),
    _post("describe_namespace", f"{_NAMESPACE}/describe"),
    _post("drop_namespace", f"{_NAMESPACE}/drop"),
    _post("namespace_exists", f"{_NAMESPACE}/exists", answer=Body.NONE),
    Route(
        "list_tables",
        GET,
        f"{_NAMESPACE}/table/list",
        (*_PAGE, "include_declared"),
        body=Body.NONE,
        unsupported=406,
    ),
    Route("list_all_tables", GET, "/v1/table", (*_PAGE, "include_declared"), body=Body.NONE),
    _post("register_table", f"{_TABLE}/register", unsupported=406),
    _post(
        "describe_table",
        f"{_TABLE}/describe",
        query=("with_table_uri", "load_detailed_metadata", "check_declared"),
    ),
    _post("table_exists", f"{_TABLE}/exists", answer=Body.NONE),
    _post("drop_table", f"{_TABLE}/drop", body=Body.NONE),
    _post("deregister_table", f"{_TABLE}/deregister"),
    _post("restore_table", f"{_TABLE}/restore"),
    _post("rename_table", f"{_TABLE}/rename"),
    _post("declare_table", f"{_TABLE}/declare"),
    _post(
        "update_table_schema_metadata",
        f"{_TABLE}/schema_metadata/update",
        query=("branch",),
        body=Body.METADATA,
        answer=Body.METADATA,
    ),
    _post(
        "list_table_versions",
        f"{_TABLE}/version/list",
        query=("branch", *_PAGE, "descending"),
        body=Body.NONE,
    ),
    _post("create_table_version", f"{_TABLE}/version/create"),
    _post("describe_table_version", f"{_TABLE}/version/describe"),
    _post("batch_delete_table_versions", f"{_TABLE}/version/delete"),
    _post("batch_create_table_versions", "/v1/table/version/batch-create"),
    _post("batch_commit_tables", "/v1/table/batch-commit"),
    _post("alter_table_add_columns", f"{_TABLE}/add_columns"),
    _post("alter_table_alter_columns", f"{_TABLE}/alter_columns"),
    _post("alter_table_drop_columns", f"{_TABLE}/drop_columns"),
    _post("alter_table_backfill_columns", f"{_TABLE}/backfill_column", status=202),
    _post("update_field_metadata", f"{_TABLE}/update_field_metadata"),
    _post("get_table_stats", f"{_TABLE}/stats"),
    _post(
        "create_table",
        f"{_TABLE}/create",
        query=("mode", "properties", "storage_options"),
        headers={"x-lance-table-location": "location", "x-lance-table-properties": "properties"},
        body=Body.ARROW,
    ),
    _post("insert_into_table", f"{_TABLE}/insert", query=("branch", "mode"), body=Body.ARROW),
    _post(
        "merge_insert_into_table",
        f"{_TABLE}/merge_insert",
        query=(
            "branch",
            "on",
            "when_matched_update_all",
            "when_matched_update_all_filt",
            "when_not_matched_insert_all",
            "when_not_matched_by_source_delete",
            "when_not_matched_by_source_delete_filt",
            "timeout",
            "use_index",
        ),
        body=Body.ARROW,
    ),
    _post("update_table", f"{_TABLE}/update"),
    _post("delete_from_table", f"{_TABLE}/delete"),
    _post("query_table", f"{_TABLE}/query", answer=Body.ARROW),
    _post("count_table_rows", f"{_TABLE}/count_rows", value="count"),
    _post("explain_table_query_plan", f"{_TABLE}/explain_plan", value="plan"),
    _post("analyze_table_query_plan", f"{_TABLE}/analyze_plan", value="analysis"),
    _post("create_table_index", f"{_TABLE}/create_index"),
    _post("create_table_scalar_index", f"{_TABLE}/create_scalar_index"),
    _post("list_table_indices", f"{_TABLE}/index/list"),
    _post("describe_table_index_stats", f"{_TABLE}/index/{{index_name}}/stats"),
    _post("drop_table_index", f"{_TABLE}/index/{{index_name}}/drop", query=("branch",), body=Body.NONE),
    _post("list_table_tags", f"{_TABLE}/tags/list", query=_PAGE, body=Body.NONE),
    _post("get_table_tag_version", f"{_TABLE}/tags/version"),
    _post("create_table_tag", f"{_TABLE}/tags/create"),
    _post("delete_table_tag", f"{_TABLE}/tags/delete"),
    _post("update_table_tag", f"{_TABLE}/tags/update"),
    _post("list_table_branches", f"{_TABLE}/branches/list", query=_PAGE, body=Body.NONE),
    _post("create_table_branch", f"{_TABLE}/branches/create"),
    _post("delete_table_branch", f"{_TABLE}/branches/delete"),
    _post("create_materialized_view", "/v1/materialized_view/{id}/create", status=201),
    _post("refresh_materialized_view", "/v1/materialized_view/{id}/refresh", status=202),
    _post("describe_transaction", "/v1/transaction/{id}/describe"),
    _post("alter_transaction", "/v1/transaction/{id}/alter"),
)
"""Every operation of the specification."""

EXTENSIONS: tuple[Route, ...] = (
    _post("describe_tables", "/lancekeep/v1/table/batch-describe"),
    Route("list_events", GET, "/v1/events", ("id", "after", "limit", "wait"), body=Body.NONE, answer=Body.EVENTS),
    Route("list_quotas", GET, "/v1/quotas", ("id",), body=Body.NONE),
    Route("list_dropped_tables", GET, "/lancekeep/v1/object/{id}/dropped", _PAGE, body=Body.NONE),
    _post("undrop_table", "/lancekeep/v1/table/{id}/undrop"),
    _post("purge_table", "/lancekeep/v1/table/{id}/purge"),
    _post("protect_object", "/lancekeep/v1/object/{id}/protect"),
    _post("unprotect_object", "/lancekeep/v1/object/{id}/unprotect"),
)
"""Operations of Lancekeep that the specification does not have. Other servers do not know their paths."""

_KEYS, _POLICY = "/lancekeep/v1/keys", "/lancekeep/v1/policy"
_IF_MATCH = {"if-match": "if_match"}
ADMINISTRATION: tuple[Route, ...] = (
    Route("list_keys", GET, _KEYS, body=Body.NONE),
    _post("create_key", f"{_KEYS}/create", status=201),
    _post("rotate_key", f"{_KEYS}/{{key_id}}/rotate", status=201),
    _post("expire_key", f"{_KEYS}/{{key_id}}/expire"),
    _post("revoke_key", f"{_KEYS}/{{key_id}}/revoke"),
    Route("describe_policy", GET, _POLICY, body=Body.NONE),
    _post("explain_decision", f"{_POLICY}/test"),
    _post("add_grant", f"{_POLICY}/grants/add", headers=_IF_MATCH, status=201),
    _post("remove_grant", f"{_POLICY}/grants/remove", headers=_IF_MATCH),
    _post("replace_policy", f"{_POLICY}/replace", headers=_IF_MATCH),
)
"""Operations of a server with keys and a policy, for its administrators. No namespace has them."""

GET_ROUTES: tuple[Route, ...] = (
    Route("describe_namespace", GET, "/lancekeep/v1/namespace/{id}", body=Body.NONE),
    Route(
        "describe_table",
        GET,
        "/lancekeep/v1/table/{id}",
        ("with_table_uri", "load_detailed_metadata", "check_declared", "version", "branch", "tag"),
        body=Body.NONE,
        fixed={"vend_credentials": False},
    ),
)
"""Operations of the specification that Lancekeep also offers with the method GET, so that answers can be validated."""

_RENAMED = {"GetNamespace": "describe_namespace", "GetTable": "describe_table"}
"""The operations that an older version of the specification calls by another name."""


def _legacy(route: Route, name: str) -> Route:
    """Return the route ``POST /<operationId>``, which has every field in the body.

    If the body is an Arrow stream, every field is a query parameter.
    """
    fields = tuple(route.kinds) if route.body is Body.ARROW else ()
    body = Body.ARROW if route.body is Body.ARROW else Body.JSON
    return attrs.evolve(route, method=POST, path=f"/{name}", query=fields, headers={}, body=body)


_BY_OPERATION = {route.operation: route for route in ROUTES}
LEGACY_ROUTES: tuple[Route, ...] = (
    *(_legacy(route, route.operation_id) for route in ROUTES),
    *(_legacy(_BY_OPERATION[operation], name) for name, operation in _RENAMED.items()),
    _post("list_operations", "/ListOperations"),
    _post("alter_namespace", "/AlterNamespace"),
    _post("alter_table", "/AlterTable"),
    _post("create_empty_table", "/CreateEmptyTable"),
)
"""``POST /<operationId>`` for every operation, as an older version of the specification has it."""

ALL: tuple[Route, ...] = (*ROUTES, *EXTENSIONS, *ADMINISTRATION, *GET_ROUTES, *LEGACY_ROUTES)
"""Every route of a server."""

READS = frozenset(
    route.operation
    for route in ALL
    if route.operation.startswith(("describe_", "list_", "get_", "query_", "count_", "explain_", "analyze_"))
    or route.operation.endswith("_exists")
)
"""The operations that change nothing."""
