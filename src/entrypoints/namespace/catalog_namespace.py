"""The `lance_namespace.LanceNamespace` interface over a catalog, native callbacks included.

Every operation accepts a request model of ``lance_namespace``, a dict, or a subclass of dict, and raises the errors of
``lance_namespace.errors``; see `boundary`. Native writers call `CatalogNamespace.create_table_version`,
`describe_table_version` and `list_table_versions` from their own threads.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar, cast

import lance_namespace as api
import pyarrow as pa
from lance_namespace_urllib3_client.models.table_basic_stats import TableBasicStats

from lancekeep.application.catalog import Catalog
from lancekeep.application.versions import NewVersion, raise_unless_committed
from lancekeep.domain import errors
from lancekeep.domain.commit import Committed
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Base
from lancekeep.domain.manifest_entry import NAMESPACE
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import Table
from lancekeep.domain.version_row import VersionRow
from lancekeep.entrypoints.namespace.arrow_schema import json_schema
from lancekeep.entrypoints.namespace.batches import CREATE, commit_batch
from lancekeep.entrypoints.namespace.boundary import callback, operation, version_operation
from lancekeep.ports.table_engine import VersionDetails

Answer = TypeVar("Answer")
VersionRequest = api.CreateTableVersionRequest | api.CreateTableVersionEntry

_MOST = 2**31 - 1
"""What a larger limit counts as: no listing is as long."""


class CatalogNamespace(api.LanceNamespace):
    """Any catalog as a Lance namespace.

    With a commit store the catalog answers ``managed_versioning=True``, and every native commit goes through
    `create_table_version`.

    Storage options may hold credentials. ``vend_storage_options`` True: answers hold them unless a request has
    ``vend_credentials=false``; None: only if it has ``vend_credentials=true``; False: never.

    Every field of a request is honoured or refused, but for two that are addressed to a server in between:
    ``identity``, since here the storage's own credentials decide who may do what, and ``context``.
    """

    def __init__(self, catalog: Catalog, *, vend_storage_options: bool | None = None) -> None:
        self._catalog = catalog
        self._vend = vend_storage_options
        self._base: Base | None = None

    def based_on(self, base: Base) -> CatalogNamespace:
        """Return the same namespace for a writer that has read ``base``: its commits are refused in another table."""
        namespace = copy(self)
        namespace._base = base
        return namespace

    def namespace_id(self) -> str:
        return f"lancekeep {self._catalog!r}"

    def retrieve_ops_metrics(self) -> dict[str, int]:
        """Return no metrics, as the native namespace does without ``ops_metrics_enabled``."""
        return {}

    def reset_ops_metrics(self) -> None:
        """Do nothing: there are no metrics."""

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
        """List full identifiers in string form, joined by ``$``."""
        if request.id:
            raise errors.InvalidInput("list_all_tables is about the whole catalog; give no id, or use list_tables")
        limit = _limit(request)
        tables = self._catalog.list_all_tables(
            request.page_token, include_declared=request.include_declared is not False
        )
        ids = list(islice(tables, limit and limit + 1))
        token = ids[limit - 1].key if limit and len(ids) > limit else None
        return api.ListTablesResponse(tables=[table.key for table in ids[:limit]], page_token=token)

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
        """Create a table; ``overwrite`` makes the data the next version of an existing one and replaces its properties.

        As the native namespace does, ``overwrite`` without properties removes them.
        """
        _refuse_storage_options(request)
        mode = _choice(request.mode, "mode", "create", "exist_ok", "overwrite")
        object_id = _id(request)
        data = _arrow(request_data)
        overwrites = mode == "overwrite"
        properties = request.properties or ({} if overwrites else None)
        version: int | None
        try:
            write_mode = "overwrite" if overwrites else "create"
            version = self._catalog.write(object_id, data, write_mode, properties=properties).version
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
    def describe_table(self, request: api.DescribeTableRequest) -> api.DescribeTableResponse:
        """Where a table lies; with ``load_detailed_metadata`` what its version, or that of a tag or branch, is like."""
        object_id = _id(request)
        table = self._catalog.find_table(object_id)
        self._root(table, None)  # the caller will read there, so no symbolic link may lead to it
        version, tag, branch = request.version, request.tag, request.branch
        if tag is not None and (version is not None or branch is not None):
            raise errors.InvalidInput("a tag names a version of its own: give no version or branch beside it")
        response = api.DescribeTableResponse(
            table=table.id.name,
            namespace=list(table.id.parent.names),
            location=self._catalog.uri(table),
            storage_options=self._storage_options(request.vend_credentials),
            properties=dict(table.properties),
            managed_versioning=self._catalog.managed or None,
        )
        if request.with_table_uri:
            response.table_uri = self._catalog.uri(table)
        if request.check_declared or request.load_detailed_metadata:
            response.is_only_declared = self._latest(table, None) is None
        if request.load_detailed_metadata:
            if not response.is_only_declared or version is not None or tag is not None or branch is not None:
                _fill_in(response, self._catalog.describe_version(object_id, version, tag=tag, branch=branch))
        elif tag is not None:
            response.version = self._catalog.open(object_id, tag=tag).version
        elif version is not None:
            response.version = self._version(table, branch, version).version
        elif branch is not None:
            response.version = self._latest(table, branch)
            if response.version is None:
                self._require_branch(table, branch)
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

    @callback
    def create_table_version(
        self, request: api.CreateTableVersionRequest, *, native: bool = False
    ) -> api.CreateTableVersionResponse:
        """Commit a staged manifest. ``e_tag`` is not kept: a copy may have another one, so it is no identity."""
        table = self._catalog.find_table(_id(request))
        _check_version_fields(request)
        outcome = self._catalog.commit_version(
            table, request.branch, request.version, request.manifest_path, request.manifest_size, base=self._base
        )
        committed = raise_unless_committed(outcome, str(table.id))
        if native:
            return _native(api.CreateTableVersionResponse, version=_plain(committed))
        return api.CreateTableVersionResponse(version=_version(committed))

    @version_operation
    def batch_create_table_versions(
        self, request: api.BatchCreateTableVersionsRequest, *, native: bool = False
    ) -> api.BatchCreateTableVersionsResponse:
        """Commit all of the versions or none; unsupported unless the commit store reserves several in one step."""
        return api.BatchCreateTableVersionsResponse(versions=self._create_versions(request.entries))

    @operation
    def batch_commit_tables(self, request: api.BatchCommitTablesRequest) -> api.BatchCommitTablesResponse:
        """Commit new versions of several tables, or one operation of any kind.

        No store changes versions and names in one step.
        """
        alone: dict[str, Callable[[Any], Any]] = {
            "declare_table": self.declare_table,
            CREATE: self.create_table_version,
            "delete_table_versions": self.batch_delete_table_versions,
            "deregister_table": self.deregister_table,
        }
        return api.BatchCommitTablesResponse(results=commit_batch(request.operations, self._create_versions, alone))

    @callback
    def describe_table_version(
        self, request: api.DescribeTableVersionRequest, *, native: bool = False
    ) -> api.DescribeTableVersionResponse:
        table = self._catalog.find_table(_id(request))
        version, root = request.version, self._root(table, request.branch)
        row = self._catalog.commits.latest(root) if version is None else self._catalog.commits.get(root, version)
        if row is None:
            if not native:
                self._require_branch(table, request.branch)
            raise errors.VersionNotFound(f"{root.base_uri} has no version {'yet' if version is None else version}")
        if native:
            return _native(api.DescribeTableVersionResponse, version=_plain(row))
        [described] = self._versions(root, [row])
        return api.DescribeTableVersionResponse(version=described)

    @callback
    def list_table_versions(
        self, request: api.ListTableVersionsRequest, *, native: bool = False
    ) -> api.ListTableVersionsResponse:
        """List versions, the latest first unless ``descending`` is false; a page token is the last version returned.

        For a branch that does not exist native code receives an empty list: it asks before it creates the branch.
        """
        table = self._catalog.find_table(_id(request))
        root = self._root(table, request.branch)
        limit, after, descending = _limit(request), request.page_token, request.descending is not False
        if limit == 1 and after is None and descending:
            latest = self._catalog.commits.latest(root)
            rows = [latest] if latest else []
            token = str(latest.version) if latest and latest.version > 1 else None  # there may be older ones
        else:
            rows = self._catalog.commits.page(root, _version_token(after), limit and limit + 1, descending)
            token = str(rows[limit - 1].version) if limit and len(rows) > limit else None
            rows = rows[:limit]
        if native:
            return _native(api.ListTableVersionsResponse, versions=[_plain(row) for row in rows], page_token=token)
        if not rows:
            self._require_branch(table, request.branch)
        return api.ListTableVersionsResponse(versions=self._versions(root, rows), page_token=token)

    @version_operation
    def batch_delete_table_versions(
        self, request: api.BatchDeleteTableVersionsRequest, *, native: bool = False
    ) -> api.BatchDeleteTableVersionsResponse:
        """Delete the records of versions and their manifests; the latest version is refused."""
        table = self._catalog.find_table(_id(request))
        root = self._root(table, request.branch)
        latest = self._catalog.commits.latest(root)
        if latest is None:
            self._require_branch(table, request.branch)
        end = latest.version + 1 if latest else 0
        doomed: set[int] = set()
        for span in request.ranges:
            start, stop = span.start_version, span.end_version
            if start < 0 or stop < -1:
                raise errors.InvalidInput(f"{start}..{stop} is not a range of versions")
            doomed.update(range(start, end if stop == -1 else min(stop, end)))
        return api.BatchDeleteTableVersionsResponse(deleted_count=self._catalog.delete_versions(root, doomed))

    # -- inside -------------------------------------------------------------------------------------------------

    def _create_versions(self, requests: Sequence[VersionRequest]) -> list[api.TableVersion]:
        candidates = []
        for each in requests:
            table = self._catalog.find_table(_id(each))
            _check_version_fields(each)
            candidates.append(NewVersion(table, each.version, each.manifest_path, each.manifest_size, each.branch))
        names = ", ".join(str(each.table.id) for each in candidates)
        committed = raise_unless_committed(self._catalog.commit_versions(candidates), names)
        return [_version(each) for each in committed.versions]

    def _versions(self, root: DatasetRoot, rows: Sequence[VersionRow]) -> list[api.TableVersion]:
        """Return rows as versions, with the times at which they were created, which cost one request."""
        created = self._catalog.commits.created(root, rows)
        return [
            _version(row, None if (moment := created.get(row.version)) is None else _millis(moment)) for row in rows
        ]

    def _require_branch(self, table: Table, branch: str | None) -> None:
        """Raise `BranchNotFound` if a table has no such branch."""
        if branch is not None and self._latest(table, branch) is None:
            raise errors.BranchNotFound(f"the table {table.id} has no branch {branch!r}, or it has no version yet")

    def _storage_options(self, vend: bool | None) -> dict[str, str] | None:
        wanted = vend if self._vend is None else self._vend and vend is not False
        return dict(self._catalog.storage_options) or None if wanted else None

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


def _id(request: Any) -> ObjectId:
    return ObjectId.of(request.id)


def _limit(request: Any) -> int | None:
    limit: int | None = request.limit
    if limit is not None and limit < 1:
        raise errors.InvalidInput(f"limit is {limit}; give at least 1, or leave it out for everything")
    return limit and min(limit, _MOST)


def _refuse_storage_options(request: Any) -> None:
    if request.storage_options:
        raise errors.InvalidInput("storage_options of one request are not supported; give them to the namespace")


def _check_version_fields(request: VersionRequest) -> None:
    if request.metadata:
        raise errors.InvalidInput("metadata of a version is not kept here; put it into the transaction's properties")
    name = ManifestName.parse(request.manifest_path.rpartition("/")[2])
    scheme = request.naming_scheme
    if scheme is not None and name is not None and name.scheme.value != scheme:
        raise errors.InvalidInput(
            f"naming_scheme is {scheme!r}, but {request.manifest_path!r} is a name of scheme {name.scheme.value}"
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


def _native(model: type[Answer], **fields: Any) -> Answer:
    """Return a response as native code takes it: a dict costs less than a model that is taken apart at once."""
    return cast(Answer, fields)


def _plain(row: VersionRow | Committed) -> dict[str, Any]:
    """Return a version as native code takes it."""
    return {"version": row.version, "manifest_path": row.path, "manifest_size": row.size}


def _version(row: VersionRow | Committed, timestamp_millis: int | None = None) -> api.TableVersion:
    return api.TableVersion(
        version=row.version, manifest_path=row.path, manifest_size=row.size, timestamp_millis=timestamp_millis
    )


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
