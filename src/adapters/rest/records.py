"""The tags, views and transactions of a server (REST catalog specification)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from lancekeep.application.entries.services import TableService
from lancekeep.application.partitions.namespace import PartitionedNamespace
from lancekeep.application.partitions.writing import PartitionWritePlan, WrittenPartition
from lancekeep.application.rows.services import WriteService
from lancekeep.application.rows.transaction_records import SUCCEEDED, TransactionRecord
from lancekeep.application.rows.versions import raise_unless_committed
from lancekeep.application.rows.views import Refreshed, Views
from lancekeep.application.upkeep.directory import NoDirectory
from lancekeep.domain.change_feed import CatalogChange, ChangePage
from lancekeep.domain.commit import Committed, Outcome
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import InvalidInput, LancekeepError, Unsupported
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.partitioning import PartitionBy
from lancekeep.domain.view import Effect, Refresh, ViewDefinition
from lancekeep.format.tags import Tag
from lancekeep.ports.catalog_server import CatalogServer
from lancekeep.ports.table_engine import TableEngine


class RestChanges:
    """The changes of a server's catalog, which the protocol does not have.

    Args:
        uri: The server.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def read(self, after: str | None = None, limit: int = 100, *, wait: float = 0.0) -> ChangePage:
        raise NoDirectory.at(self._uri, "changes")

    def watch(self, after: str | None = None, *, poll: float = 1.0) -> Iterator[CatalogChange]:
        raise NoDirectory.at(self._uri, "changes")

    def latest(self) -> str:
        raise NoDirectory.at(self._uri, "changes")


class RestTags:
    """The tags of the tables of a server."""

    def __init__(self, server: CatalogServer) -> None:
        self._server = server

    def get(self, identifier: Identifier, name: str) -> Tag:
        """Return the version and the branch of a tag.

        The response has no other members of the tag; the tags of `list` are complete.
        """
        found = self._call("get_table_tag_version", identifier, tag=name)
        return Tag(int(found["version"]), found.get("branch"), 0)

    def list(self, identifier: Identifier) -> Mapping[str, Tag]:
        object_id = ObjectId.of(identifier)
        tags: dict[str, Tag] = {}
        after: str | None = None
        while True:
            found = self._call("list_table_tags", object_id, page_token=after)
            for name, tag in (found.get("tags") or {}).items():
                tags[str(name)] = Tag(int(tag["version"]), tag.get("branch"), int(tag.get("manifestSize") or 0))
            after = found.get("page_token")
            if not after:
                return dict(sorted(tags.items()))

    def create(self, identifier: Identifier, name: str, version: int, branch: str | None = None) -> None:
        self._call("create_table_tag", identifier, tag=name, version=version, branch=branch)

    def update(self, identifier: Identifier, name: str, version: int, branch: str | None = None) -> None:
        self._call("update_table_tag", identifier, tag=name, version=version, branch=branch)

    def delete(self, identifier: Identifier, name: str) -> None:
        self._call("delete_table_tag", identifier, tag=name)

    def _call(self, operation: str, identifier: Identifier, **fields: Any) -> dict[str, Any]:
        given = {name: value for name, value in fields.items() if value is not None}
        return self._server.call(operation, {"id": list(ObjectId.of(identifier).names), **given})


class RestViews(Views):
    """The materialized views of a server, which computes their rows."""

    def __init__(self, server: CatalogServer, tables: TableService, writes: WriteService, engine: TableEngine) -> None:
        super().__init__(tables, writes, engine)
        self._server = server

    def create(self, identifier: Identifier, definition: ViewDefinition, schema: Any) -> Committed:
        object_id = ObjectId.of(identifier)
        fields = {
            "id": list(object_id.names),
            "kind": "query",
            "source_query": definition.query,
            "output_schema": b64encode(schema.serialize()).decode(),
            "auto_refresh": definition.auto_refresh,
        }
        created = {"id": fields["id"], "version": self._server.call("create_materialized_view", fields).get("version")}
        found = self._server.call("describe_table_version", created)["version"]
        return Committed(int(found["version"]), str(found["manifest_path"]), int(found.get("manifest_size") or 0))

    def refresh(self, identifier: Identifier, version: int | None = None) -> Refreshed:
        """Refresh a view from a version of its source, by default the latest.

        ``source`` of the result is None if the server has not finished the refresh, or does not record the version.
        """
        object_id = ObjectId.of(identifier)
        before = self._latest(object_id)
        fields = {"id": list(object_id.names), **({} if version is None else {"src_version": version})}
        job = self._server.call("refresh_materialized_view", fields).get("job_id")
        after = self._latest(object_id)
        source, _ = self._held(object_id, after)
        return Refreshed(after, source, self._how(object_id, before, after), str(job) if job else None)

    def refresh_due(self) -> Mapping[ObjectId, Refreshed | LancekeepError]:
        raise Unsupported(
            f"{self._server.uri}: the REST protocol has no operation that refreshes every view that is due. The "
            "maintenance worker of the server refreshes views with auto_refresh. Nothing was changed"
        )

    def _latest(self, object_id: ObjectId) -> int:
        return int(self._server.call("describe_table_version", {"id": list(object_id.names)})["version"]["version"])

    def _how(self, object_id: ObjectId, before: int, after: int) -> Refresh:
        if before == after:
            return Refresh.NOTHING
        effect, _ = self._writes.examine(
            object_id, lambda dataset: self._engine.views.effect(dataset, after), after, None
        )
        return Refresh.APPEND if effect is Effect.APPENDED else Refresh.FULL


class RestPartitions:
    """The partitions of a catalog, which the protocol does not offer."""

    def __init__(self, server: CatalogServer) -> None:
        self._server = server

    def create(self, schema: Any, by: Iterable[PartitionBy]) -> PartitionedNamespace:
        raise NoDirectory.at(self._server.uri, "partitions.create")

    def begin_create(self, schema: Any, by: Iterable[PartitionBy], *, replace: bool = False) -> PartitionWritePlan:
        raise NoDirectory.at(self._server.uri, "partitions.begin_create")

    def finish_create(
        self, plan: PartitionWritePlan, written: Sequence[WrittenPartition], *, replace: bool = False
    ) -> PartitionedNamespace:
        raise NoDirectory.at(self._server.uri, "partitions.finish_create")

    def open(self) -> PartitionedNamespace:
        raise NoDirectory.at(self._server.uri, "partitions.open")

    def drop(self, *, force: bool = False, keep: timedelta | float | None = None) -> None:
        raise NoDirectory.at(self._server.uri, "partitions.drop")


class RestTransactionRecords:
    """The transactions of a server."""

    def __init__(self, server: CatalogServer, resolve: Callable[[CommitToken], Outcome]) -> None:
        self._server = server
        self._resolve = resolve

    def describe(self, names: Sequence[str]) -> TransactionRecord:
        return _record(self._server.call("describe_transaction", {"id": list(names)}))

    def settle(self, names: Sequence[str]) -> TransactionRecord:
        """Complete a commit of unknown outcome.

        A token that this client made has no digest, so the key of the commit settles it. The server settles its own
        tokens.
        """
        token = _own_token(names)
        if token is not None:
            raise_unless_committed(self._resolve(token), token.staged.base_uri)
            return TransactionRecord(SUCCEEDED, {token.staged.base_uri: str(token.staged.version)})
        actions = [{"setStatusAction": {"status": SUCCEEDED}}]
        return _record(self._server.call("alter_transaction", {"id": list(names), "actions": actions}))


def _own_token(names: Sequence[str]) -> CommitToken | None:
    try:
        token = CommitToken.parse(names[0]) if len(names) == 1 else None
    except InvalidInput:
        return None
    return token if token is not None and not any(member.digest for member in token.members) else None


def _record(found: Mapping[str, Any]) -> TransactionRecord:
    properties = found.get("properties") or {}
    return TransactionRecord(
        str(found.get("status") or "").upper(), {str(name): str(value) for name, value in properties.items()}
    )
