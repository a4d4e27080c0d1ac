"""The `lance_namespace.LanceNamespace` interface over a catalog, native callbacks included.

Native writers call `CatalogNamespace.create_table_version`, `describe_table_version` and `list_table_versions` from
threads of their own, with a ``dict``; people call every operation with the models of ``lance_namespace``. Both are
taken. Errors are those of ``lance_namespace.errors``, with ours as ``__cause__``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import lance_namespace as api
import pyarrow as pa
from lance_namespace import errors as api_errors

from lancekeep.application.catalog import Catalog, raise_unless_committed
from lancekeep.domain import errors
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE
from lancekeep.domain.table import Table
from lancekeep.domain.version_row import VersionRow

P = ParamSpec("P")
R = TypeVar("R")

ERRORS: Mapping[type[errors.LancekeepError], type[api_errors.LanceNamespaceError]] = {
    errors.InvalidInput: api_errors.InvalidInputError,
    errors.NamespaceNotFound: api_errors.NamespaceNotFoundError,
    errors.TableNotFound: api_errors.TableNotFoundError,
    errors.VersionNotFound: api_errors.TableVersionNotFoundError,
    errors.NamespaceAlreadyExists: api_errors.NamespaceAlreadyExistsError,
    errors.TableAlreadyExists: api_errors.TableAlreadyExistsError,
    errors.NamespaceNotEmpty: api_errors.NamespaceNotEmptyError,
    errors.VersionTaken: api_errors.ConcurrentModificationError,
    errors.ConcurrentModification: api_errors.ConcurrentModificationError,
    errors.AccessDenied: api_errors.PermissionDeniedError,
    errors.StoreUnavailable: api_errors.ServiceUnavailableError,
    errors.CommitUnknown: api_errors.ServiceUnavailableError,
    errors.Refused: api_errors.InvalidTableStateError,
    errors.Damaged: api_errors.InternalError,
    errors.LancekeepError: api_errors.InternalError,
}
"""Which error of the interface one of ours becomes: that of the nearest class."""


def operation(method: Callable[P, R]) -> Callable[P, R]:
    """An operation of the interface: errors of ours leave it as errors of the interface."""

    @functools.wraps(method)
    def translated(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except errors.LancekeepError as error:
            kind = next(ERRORS[base] for base in type(error).__mro__ if base in ERRORS)
            raise kind(str(error)) from error

    return translated


class CatalogNamespace(api.LanceNamespace):
    """Any catalog as a Lance namespace.

    With a commit store the catalog answers ``managed_versioning=True``, and every native commit goes through
    `create_table_version`. Storage options, which may hold credentials, are in answers only with
    ``vend_storage_options``.
    """

    def __init__(self, catalog: Catalog, *, vend_storage_options: bool = False) -> None:
        self._catalog = catalog
        self._vend = vend_storage_options

    def namespace_id(self) -> str:
        return f"lancekeep {self._catalog!r}"

    # -- namespaces ---------------------------------------------------------------------------------------------

    @operation
    def create_namespace(self, request: api.CreateNamespaceRequest) -> api.CreateNamespaceResponse:
        mode = _choice(request.mode, "mode", "create", "exist_ok")
        namespace = self._catalog.create_namespace(_id(request), request.properties, exist_ok=mode == "exist_ok")
        return api.CreateNamespaceResponse(properties=dict(namespace.properties))

    @operation
    def describe_namespace(self, request: api.DescribeNamespaceRequest) -> api.DescribeNamespaceResponse:
        return api.DescribeNamespaceResponse(properties=dict(self._catalog.describe_namespace(_id(request)).properties))

    @operation
    def namespace_exists(self, request: api.NamespaceExistsRequest) -> api.NamespaceExistsResponse:
        self._catalog.describe_namespace(_id(request))
        return api.NamespaceExistsResponse()

    @operation
    def list_namespaces(self, request: api.ListNamespacesRequest) -> api.ListNamespacesResponse:
        names, token = self._catalog.page_of(_id(request), NAMESPACE, request.page_token, _limit(request))
        return api.ListNamespacesResponse(namespaces=names, page_token=token)

    @operation
    def drop_namespace(self, request: api.DropNamespaceRequest) -> api.DropNamespaceResponse:
        skip = _choice(request.mode, "mode", "fail", "skip") == "skip"
        cascade = _choice(request.behavior, "behavior", "restrict", "cascade") == "cascade"
        try:
            properties = self._catalog.describe_namespace(_id(request)).properties
            self._catalog.drop_namespace(_id(request), cascade=cascade)
        except errors.NamespaceNotFound:
            if not skip:
                raise
            return api.DropNamespaceResponse()
        return api.DropNamespaceResponse(properties=dict(properties))

    # -- tables -------------------------------------------------------------------------------------------------

    @operation
    def list_tables(self, request: api.ListTablesRequest) -> api.ListTablesResponse:
        """With ``include_declared=False`` a page may be shorter than its limit although others follow."""
        parent = _id(request)
        names, token = self._catalog.page_of(parent, TABLE, request.page_token, _limit(request))
        if request.include_declared is False:
            names = [name for name in names if self._catalog.describe_table(parent.child(name)).version is not None]
        return api.ListTablesResponse(tables=names, page_token=token)

    @operation
    def declare_table(self, request: api.DeclareTableRequest) -> api.DeclareTableResponse:
        table = self._catalog.declare_table(_id(request), request.properties, location=request.location)
        return api.DeclareTableResponse(
            location=self._catalog.uri(table),
            storage_options=self._storage_options(request.vend_credentials),
            properties=dict(table.properties),
            managed_versioning=self._catalog.managed or None,
        )

    @operation
    def create_table(self, request: api.CreateTableRequest, request_data: bytes) -> api.CreateTableResponse:
        if request.storage_options:
            raise errors.InvalidInput("storage_options of one request are not supported; give them to the namespace")
        mode = _choice(request.mode, "mode", "create", "exist_ok", "overwrite")
        object_id = _id(request)
        data = _arrow(request_data)
        if mode == "exist_ok" and self._catalog.table_exists(object_id):
            description = self._catalog.describe_table(object_id)
            return api.CreateTableResponse(location=description.uri, version=description.version)
        write_mode = "overwrite" if mode == "overwrite" else "create"
        committed = self._catalog.write(object_id, data, write_mode, properties=request.properties)
        table = self._catalog.find_table(object_id)
        return api.CreateTableResponse(
            location=self._catalog.uri(table),
            version=committed.version,
            storage_options=self._storage_options(None),
            properties=dict(table.properties),
        )

    @operation
    def describe_table(self, request: Any) -> api.DescribeTableResponse:
        field = _fields(request)
        if field("load_detailed_metadata"):
            raise errors.InvalidInput("load_detailed_metadata is not supported; open the table for its schema")
        object_id = _id(request)
        table = self._catalog.find_table(object_id)
        response = api.DescribeTableResponse(
            location=self._catalog.uri(table),
            storage_options=self._storage_options(field("vend_credentials")),
            properties=dict(table.properties),
            managed_versioning=self._catalog.managed or None,
        )
        if field("with_table_uri"):
            response.table_uri = self._catalog.uri(table)
        version, tag, branch = field("version"), field("tag"), field("branch")
        if tag is not None:
            response.version = self._catalog.open(object_id, version, tag=tag, branch=branch).version
        elif version is not None:
            response.version = self._version(table, branch, version).version
        if field("check_declared"):
            response.is_only_declared = self._catalog.commits.latest(self._root(table, branch)) is None
        return response

    @operation
    def table_exists(self, request: api.TableExistsRequest) -> api.TableExistsResponse:
        table = self._catalog.find_table(_id(request))
        if request.version is not None:
            self._version(table, None, request.version)
        return api.TableExistsResponse()

    @operation
    def register_table(self, request: api.RegisterTableRequest) -> api.RegisterTableResponse:
        overwrite = _choice(request.mode, "mode", "create", "overwrite") == "overwrite"
        table = self._catalog.register_table(_id(request), request.location, request.properties, overwrite=overwrite)
        return api.RegisterTableResponse(location=self._catalog.uri(table), properties=dict(table.properties))

    @operation
    def deregister_table(self, request: api.DeregisterTableRequest) -> api.DeregisterTableResponse:
        table = self._catalog.deregister_table(_id(request))
        return api.DeregisterTableResponse(
            id=list(table.id.names), location=self._catalog.uri(table), properties=dict(table.properties)
        )

    @operation
    def drop_table(self, request: api.DropTableRequest) -> api.DropTableResponse:
        table = self._catalog.drop_table(_id(request))
        return api.DropTableResponse(
            id=list(table.id.names), location=self._catalog.uri(table), properties=dict(table.properties)
        )

    # -- versions: what native writers and readers call ---------------------------------------------------------

    @operation
    def create_table_version(self, request: Any) -> Any:
        field = _fields(request)
        table = self._table_of_version(request)
        outcome = self._catalog.commit_version(
            table, field("branch"), field("version"), field("manifest_path"), field("manifest_size")
        )
        committed = raise_unless_committed(outcome, str(table.id))
        version: dict[str, Any] = {
            "version": committed.version,
            "manifest_path": committed.path,
            "manifest_size": committed.size,
        }
        if isinstance(request, dict):
            return {"version": version}
        return api.CreateTableVersionResponse(version=api.TableVersion(**version))

    @operation
    def describe_table_version(self, request: Any) -> Any:
        field = _fields(request)
        root = self._root_of_version(request)
        version = field("version")
        row = self._catalog.commits.latest(root) if version is None else self._catalog.commits.get(root, version)
        if row is None:
            raise errors.VersionNotFound(f"{root.base_uri} has no version {'yet' if version is None else version}")
        if isinstance(request, dict):
            return {"version": _plain(row)}
        return api.DescribeTableVersionResponse(version=api.TableVersion(**_plain(row)))

    @operation
    def list_table_versions(self, request: Any) -> Any:
        """Versions from the latest to the oldest, or the other way; ``page_token`` is the last version returned."""
        field = _fields(request)
        root = self._root_of_version(request)
        limit, after, descending = _limit(request), field("page_token"), field("descending") is not False
        if limit == 1 and after is None and descending:
            latest = self._catalog.commits.latest(root)
            rows, token = [latest] if latest else [], None
        else:
            rows = self._catalog.commits.page(root, _version_token(after), limit and limit + 1, descending)
            token = str(rows[limit - 1].version) if limit and len(rows) > limit else None
            rows = rows[:limit]
        if isinstance(request, dict):
            return {"versions": [_plain(row) for row in rows], "page_token": token}
        versions = [api.TableVersion(**_plain(row)) for row in rows]
        return api.ListTableVersionsResponse(versions=versions, page_token=token)

    @operation
    def batch_delete_table_versions(self, request: Any) -> api.BatchDeleteTableVersionsResponse:
        """Delete the records of versions and their manifests; the latest version is refused."""
        field = _fields(request)
        root = self._root_of_version(request)
        latest = self._catalog.commits.latest(root)
        end = latest.version + 1 if latest else 0
        doomed: set[int] = set()
        for chosen in field("ranges"):
            span = _fields(chosen)
            start, stop = span("start_version"), span("end_version")
            if start < 0 or stop < -1:
                raise errors.InvalidInput(f"{start}..{stop} is not a range of versions")
            doomed.update(range(start, end if stop == -1 else min(stop, end)))
        return api.BatchDeleteTableVersionsResponse(deleted_count=self._catalog.delete_versions(root, doomed))

    # -- inside -------------------------------------------------------------------------------------------------

    def _storage_options(self, vend: bool | None) -> dict[str, str] | None:
        options = dict(self._catalog.storage_options)
        return options if options and self._vend and vend is not False else None

    def _root(self, table: Table, branch: str | None) -> DatasetRoot:
        return self._catalog.dataset_root(table).branch(branch)

    def _version(self, table: Table, branch: str | None, version: int) -> VersionRow:
        row = self._catalog.commits.get(self._root(table, branch), version)
        if row is None:
            raise errors.VersionNotFound(f"the table {table.id} has no version {version}")
        return row

    def _table_of_version(self, request: Any) -> Table:
        """The table a version operation names.

        A native writer that asks here holds a table open. Were it told `TableNotFound`, it would scan the object
        store and go on with what it finds of a table that was dropped; any other error stops it.
        """
        object_id = _id(request)
        try:
            return self._catalog.find_table(object_id)
        except errors.TableNotFound as error:
            if not isinstance(request, dict):
                raise
            raise errors.Refused(
                f"the table {object_id} was dropped or renamed since it was opened; open it again"
            ) from error

    def _root_of_version(self, request: Any) -> DatasetRoot:
        return self._root(self._table_of_version(request), _fields(request)("branch"))


def _fields(request: Any) -> Callable[[str], Any]:
    """Look up a field of a model, or of a dict in which absent keys stand for None."""
    if isinstance(request, dict):
        return request.get
    return lambda name: getattr(request, name, None)


def _id(request: Any) -> ObjectId:
    names = request.get("id") if isinstance(request, dict) else request.id
    return ObjectId.of(names)


def _limit(request: Any) -> int | None:
    limit: int | None = _fields(request)("limit")
    if limit is not None and limit < 1:
        raise errors.InvalidInput(f"limit is {limit}; give at least 1, or leave it out for everything")
    return limit


def _version_token(token: str | None) -> int | None:
    if not token:
        return None
    if not token.isdigit():
        raise errors.InvalidInput(f"{token!r} is not a page token of list_table_versions")
    return int(token)


def _choice(value: str | None, name: str, default: str, *others: str) -> str:
    """An option that is case insensitive, in PascalCase or snake_case; the first is the default."""
    if value is None:
        return default
    for choice in (default, *others):
        if value.lower().replace("_", "") == choice.replace("_", ""):
            return choice
    raise errors.InvalidInput(f"unknown {name} {value!r}; choose {', '.join((default, *others))}")


def _arrow(data: bytes) -> pa.RecordBatchReader:
    try:
        return pa.ipc.open_stream(data)
    except (pa.ArrowInvalid, TypeError) as error:
        raise errors.InvalidInput(f"the table's data are not an Arrow IPC stream: {error}") from error


def _plain(row: VersionRow) -> dict[str, Any]:
    return {"version": row.version, "manifest_path": row.path, "manifest_size": row.size}
