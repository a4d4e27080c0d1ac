"""The `lance_namespace.LanceNamespace` interface over a catalog, native callbacks included.

Native writers call `CatalogNamespace.create_table_version`, `describe_table_version` and `list_table_versions` from
threads of their own, with a ``dict``; people call every operation with the models of ``lance_namespace``. Both are
taken. Errors are those of ``lance_namespace.errors``, with ours as ``__cause__``.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import lance_namespace as api
import pyarrow as pa
from lance_namespace import errors as api_errors
from lance_namespace_urllib3_client.models.table_basic_stats import TableBasicStats

from lancekeep.adapters.namespace_api.arrow_schema import json_schema
from lancekeep.adapters.namespace_api.batches import CREATE, commit_batch
from lancekeep.application.catalog import Catalog, raise_unless_committed
from lancekeep.application.transactions import NewVersion
from lancekeep.domain import errors
from lancekeep.domain.identifiers import MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.manifest_entry import NAMESPACE
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import Table
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.table_engine import VersionDetails

P = ParamSpec("P")
R = TypeVar("R")

_TYPES: Mapping[str, type] = {
    "id": list,
    "version": int,
    "branch": str,
    "tag": str,
    "manifest_path": str,
    "manifest_size": int,
    "ranges": list,
    "limit": int,
    "page_token": str,
}
"""What the fields of a request hold where it comes as a dict."""

_MOST = 2**31 - 1
"""What a larger limit counts as: no listing is as long."""

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
    errors.Unsupported: api_errors.UnsupportedOperationError,
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

    Every field of a request is honoured or refused, but for two that are addressed to a server in between:
    ``identity``, since here the storage's own credentials decide who may do what, and ``context``.
    """

    def __init__(self, catalog: Catalog, *, vend_storage_options: bool = False) -> None:
        self._catalog = catalog
        self._vend = vend_storage_options

    def namespace_id(self) -> str:
        return f"lancekeep {self._catalog!r}"

    # -- namespaces ---------------------------------------------------------------------------------------------

    @operation
    def create_namespace(self, request: api.CreateNamespaceRequest) -> api.CreateNamespaceResponse:
        """``overwrite`` puts an empty namespace in the place of an empty one; any other is refused, as by a drop."""
        mode = _choice(request.mode, "mode", "create", "exist_ok", "overwrite")
        namespace = self._catalog.create_namespace(
            _id(request), request.properties, exist_ok=mode == "exist_ok", overwrite=mode == "overwrite"
        )
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
            dropped = self._catalog.drop_namespace(_id(request), cascade=cascade)
        except errors.NamespaceNotFound:
            if not skip:
                raise
            return api.DropNamespaceResponse()
        return api.DropNamespaceResponse(properties=dict(dropped.properties))

    # -- tables -------------------------------------------------------------------------------------------------

    @operation
    def list_tables(self, request: api.ListTablesRequest) -> api.ListTablesResponse:
        names, token = self._catalog.page_of_tables(
            _id(request), request.page_token, _limit(request), include_declared=request.include_declared is not False
        )
        return api.ListTablesResponse(tables=names, page_token=token)

    @operation
    def list_all_tables(self, request: api.ListTablesRequest) -> api.ListTablesResponse:
        """Full identifiers in string form, joined by ``$`` or the ``delimiter`` of a request that has one."""
        if request.id:
            raise errors.InvalidInput("list_all_tables is about the whole catalog; give no id, or use list_tables")
        limit, delimiter = _limit(request), _fields(request)("delimiter") or MANIFEST_DELIMITER
        tables = self._catalog.list_all_tables(
            request.page_token, include_declared=request.include_declared is not False
        )
        ids = list(islice(tables, limit and limit + 1))
        token = ids[limit - 1].key if limit and len(ids) > limit else None
        return api.ListTablesResponse(tables=[delimiter.join(table.names) for table in ids[:limit]], page_token=token)

    @operation
    def declare_table(self, request: api.DeclareTableRequest) -> api.DeclareTableResponse:
        table = self._catalog.declare_table(_id(request), request.properties, location=request.location)
        return api.DeclareTableResponse(
            location=self._catalog.uri(table),
            storage_options=self._storage_options(request.vend_credentials),
            properties=dict(table.properties),
            managed_versioning=self._catalog.managed or None,
        )

    def create_empty_table(self, request: api.CreateEmptyTableRequest) -> api.CreateEmptyTableResponse:
        """Deprecated: `declare_table` under its old name."""
        warnings.warn("create_empty_table is deprecated, use declare_table instead", DeprecationWarning, stacklevel=2)
        return self._create_empty_table(request)

    @operation
    def _create_empty_table(self, request: api.CreateEmptyTableRequest) -> api.CreateEmptyTableResponse:
        _refuse_storage_options(request)
        object_id = _id(request)
        mode = _choice(request.mode, "mode", "create", "exist_ok")
        try:
            table = self._catalog.declare_table(object_id, request.properties)
        except errors.TableAlreadyExists as error:
            table = self._existing(object_id, mode, error)
        return api.CreateEmptyTableResponse(
            location=self._catalog.uri(table),
            storage_options=self._storage_options(None),
            properties=dict(table.properties),
        )

    @operation
    def create_table(self, request: api.CreateTableRequest, request_data: bytes) -> api.CreateTableResponse:
        """``overwrite`` makes the data the next version of an existing table, whose properties stay."""
        _refuse_storage_options(request)
        mode = _choice(request.mode, "mode", "create", "exist_ok", "overwrite")
        object_id = _id(request)
        data = _arrow(request_data)
        write_mode = "overwrite" if mode == "overwrite" else "create"
        version: int | None
        try:
            version = self._catalog.write(object_id, data, write_mode, properties=request.properties).version
            table = self._catalog.find_table(object_id)
        except errors.TableAlreadyExists as error:
            table = self._existing(object_id, mode, error)
            version = self._latest(table, None)
        return api.CreateTableResponse(
            location=self._catalog.uri(table),
            version=version,
            storage_options=self._storage_options(None),
            properties=dict(table.properties),
        )

    @operation
    def describe_table(self, request: Any) -> api.DescribeTableResponse:
        """Where a table lies; with ``load_detailed_metadata`` what its version, or that of a tag or branch, is like."""
        field = _fields(request)
        object_id = _id(request)
        table = self._catalog.find_table(object_id)
        self._root(table, None)  # the caller will read there, so no symbolic link may lead to it
        version, tag, branch = field("version"), field("tag"), field("branch")
        if tag is not None and (version is not None or branch is not None):
            raise errors.InvalidInput("a tag names a version of its own: give no version or branch beside it")
        response = api.DescribeTableResponse(
            table=table.id.name,
            namespace=list(table.id.parent.names),
            location=self._catalog.uri(table),
            storage_options=self._storage_options(field("vend_credentials")),
            properties=dict(table.properties),
            managed_versioning=self._catalog.managed or None,
        )
        if field("with_table_uri"):
            response.table_uri = self._catalog.uri(table)
        if field("check_declared") or field("load_detailed_metadata"):
            response.is_only_declared = self._latest(table, None) is None
        if field("load_detailed_metadata"):
            if not response.is_only_declared or version is not None or tag is not None or branch is not None:
                _fill_in(response, self._catalog.describe_version(object_id, version, tag=tag, branch=branch))
        elif tag is not None:
            response.version = self._catalog.open(object_id, tag=tag).version
        elif version is not None:
            response.version = self._version(table, branch, version).version
        elif branch is not None:
            response.version = self._latest(table, branch)
            if response.version is None:
                raise errors.VersionNotFound(f"the table {table.id} has no branch {branch!r}, or it has no version yet")
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

    @operation
    def rename_table(self, request: api.RenameTableRequest) -> api.RenameTableResponse:
        """``new_namespace_id``: an empty list is the root; left out, the table stays in its namespace."""
        source = _id(request)
        namespace = source.parent if request.new_namespace_id is None else ObjectId.of(request.new_namespace_id)
        self._catalog.rename_table(source, namespace.child(request.new_table_name))
        return api.RenameTableResponse()

    # -- versions: what native writers and readers call ---------------------------------------------------------

    @operation
    def create_table_version(self, request: Any) -> Any:
        """``e_tag`` is taken and not kept: it is no identity, since a copy may have another."""
        field = _fields(request)
        table = self._table_of_version(request)
        _check_version_fields(field)
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
    def batch_create_table_versions(self, request: Any) -> api.BatchCreateTableVersionsResponse:
        """All of the versions, or none, where the commit store reserves several in one step; else unsupported."""
        versions = self._create_versions(_fields(request)("entries"))
        return api.BatchCreateTableVersionsResponse(versions=versions)

    @operation
    def batch_commit_tables(self, request: api.BatchCommitTablesRequest) -> api.BatchCommitTablesResponse:
        """New versions of several tables, or one operation of any kind: no step changes versions and names at once."""
        alone = {
            "declare_table": self.declare_table,
            CREATE: self.create_table_version,
            "delete_table_versions": self.batch_delete_table_versions,
            "deregister_table": self.deregister_table,
        }
        return api.BatchCommitTablesResponse(results=commit_batch(request.operations, self._create_versions, alone))

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
            rows = [latest] if latest else []
            token = str(latest.version) if latest and latest.version > 1 else None  # there may be older ones
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

    def _create_versions(self, requests: Sequence[Any]) -> list[api.TableVersion]:
        candidates = []
        for each in requests:
            field = _fields(each)
            table = self._table_of_version(each)
            _check_version_fields(field)
            candidates.append(
                NewVersion(table, field("version"), field("manifest_path"), field("manifest_size"), field("branch"))
            )
        names = ", ".join(str(each.table.id) for each in candidates)
        committed = raise_unless_committed(self._catalog.commit_versions(candidates), names)
        return [
            api.TableVersion(version=each.version, manifest_path=each.path, manifest_size=each.size)
            for each in committed.versions
        ]

    def _storage_options(self, vend: bool | None) -> dict[str, str] | None:
        options = dict(self._catalog.storage_options)
        return options if options and self._vend and vend is not False else None

    def _root(self, table: Table, branch: str | None) -> DatasetRoot:
        return self._catalog.dataset_root(table).branch(branch)

    def _latest(self, table: Table, branch: str | None) -> int | None:
        row = self._catalog.commits.latest(self._root(table, branch))
        return None if row is None else row.version

    def _existing(self, object_id: ObjectId, mode: str, error: errors.TableAlreadyExists) -> Table:
        """The table that another created first; ``error`` where that is not asked for, or the name is not a table's."""
        if mode == "exist_ok":
            with suppress(errors.TableNotFound):
                return self._catalog.find_table(object_id)
        raise error

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
    """Look up a field of a model, or of a dict in which absent keys stand for None, and which nobody has validated."""
    if not isinstance(request, dict):
        return lambda name: getattr(request, name, None)

    def field(name: str) -> Any:
        value, wanted = request.get(name), _TYPES.get(name, object)
        if value is not None and not isinstance(value, wanted):
            raise errors.InvalidInput(f"the field {name!r} of a request holds {wanted.__name__}; found {value!r:.80}")
        return value

    return field


def _id(request: Any) -> ObjectId:
    return ObjectId.of(_fields(request)("id"))


def _limit(request: Any) -> int | None:
    limit: int | None = _fields(request)("limit")
    if limit is not None and limit < 1:
        raise errors.InvalidInput(f"limit is {limit}; give at least 1, or leave it out for everything")
    return limit and min(limit, _MOST)


def _refuse_storage_options(request: Any) -> None:
    if request.storage_options:
        raise errors.InvalidInput("storage_options of one request are not supported; give them to the namespace")


def _check_version_fields(field: Callable[[str], Any]) -> None:
    if field("metadata"):
        raise errors.InvalidInput("metadata of a version is not kept here; put it into the transaction's properties")
    name = ManifestName.parse(field("manifest_path").rpartition("/")[2])
    scheme = field("naming_scheme")
    if scheme is not None and name is not None and name.scheme.value != scheme:
        raise errors.InvalidInput(
            f"naming_scheme is {scheme!r}, but {field('manifest_path')!r} is a name of scheme {name.scheme.value}"
        )


def _fill_in(response: api.DescribeTableResponse, details: VersionDetails) -> None:
    response.version = details.version
    response.var_schema = json_schema(details.schema)
    response.stats = TableBasicStats(num_deleted_rows=details.deleted_rows, num_fragments=details.fragments)
    response.metadata = {"total_rows": str(details.rows)}


def _version_token(token: str | None) -> int | None:
    if not token:
        return None
    if not re.fullmatch("[0-9]{1,18}", token):
        raise errors.InvalidInput(f"{token[:40]!r} is not a page token of list_table_versions")
    return int(token)


def _choice(value: str | None, name: str, default: str, *others: str) -> str:
    """An option that is case insensitive, in PascalCase or snake_case; the first is the default."""
    if value is None:
        return default
    for choice in (default, *others):
        if value.lower().replace("_", "") == choice.replace("_", ""):
            return choice
    raise errors.InvalidInput(f"unknown {name} {value!r}; choose {', '.join((default, *others))}")


def _arrow(data: bytes) -> pa.Table:
    """The whole stream, looked through before anything is written; its columns stay where ``data`` has them."""
    try:
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise errors.InvalidInput(f"the table's data are not an Arrow IPC stream: {error}") from error
    return table


def _plain(row: VersionRow) -> dict[str, Any]:
    return {"version": row.version, "manifest_path": row.path, "manifest_size": row.size}
