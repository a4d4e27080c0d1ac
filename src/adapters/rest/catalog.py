"""A catalog that another process serves (REST catalog specification).

The services of this package call the server. The table engine of this process reads and writes data files, with the
credentials that the server vends, and commits through the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import NAMESPACE_URL, uuid5

import attrs

from lancekeep.adapters.rest.dropped import RestDropped, RestProtection
from lancekeep.adapters.rest.events import RestEvents
from lancekeep.adapters.rest.records import RestChanges, RestPartitions, RestTags, RestTransactionRecords, RestViews
from lancekeep.adapters.rest.tables import RestNamespaces, RestTables, table_of, texts_of
from lancekeep.adapters.rest.upkeep import RestUpkeep
from lancekeep.application.catalog import Catalog
from lancekeep.application.commits.replaced_values import WatchedChange
from lancekeep.application.entries.services import (
    ChangeService,
    DroppedService,
    NamespaceService,
    ProtectionService,
    TableService,
    TagService,
)
from lancekeep.application.events.service import EventService
from lancekeep.application.partitions.services import PartitionService
from lancekeep.application.rows.branches import Branches
from lancekeep.application.rows.compactions import Compactions
from lancekeep.application.rows.described_versions import HistoryEntry
from lancekeep.application.rows.row_rules import checked
from lancekeep.application.rows.services import TransactionRecordService, WriteService
from lancekeep.application.rows.table_data import TableData
from lancekeep.application.rows.table_structure import TableStructure
from lancekeep.application.rows.table_versions import TableVersions
from lancekeep.application.rows.version_times import Times, history_name, latest_at, time_of_manifest
from lancekeep.application.rows.views import Views
from lancekeep.application.rows.write_checks import (
    Announce,
    after_checks,
    mode_of,
    require_no_location,
    unannounced,
    until_committed,
)
from lancekeep.application.upkeep.directory import NoDirectory
from lancekeep.application.upkeep.services import UpkeepService
from lancekeep.domain.commit import Committed, Conflict, Outcome, Unknown
from lancekeep.domain.commit_token import CommitToken, CommitUnknown
from lancekeep.domain.errors import (
    InvalidInput,
    LancekeepError,
    Refused,
    StoreUnavailable,
    TableAlreadyExists,
    TableNotFound,
    Unsupported,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES
from lancekeep.domain.row_rules import Rules, rules_of
from lancekeep.domain.stable_row_ids import (
    require_row_ids,
    stated_row_ids,
    wants_stable_row_ids,
    with_row_ids,
)
from lancekeep.domain.table import Table
from lancekeep.domain.transaction import AllCommitted
from lancekeep.ports.catalog_server import CatalogServer
from lancekeep.ports.table_engine import TableEngine, VersionDetails, WriteMode, WritePlan

if TYPE_CHECKING:
    from lancekeep.application.rows.table_transactions import TableTransactions

Result = TypeVar("Result")

_MOST_LISTED = 2**31 - 1
"""The largest limit of a list that servers accept."""

Engines = Callable[[ObjectId, Mapping[str, str]], TableEngine]
"""Returns the engine for a table and the storage options that the server vends for it."""


def commit_key(manifest_path: str) -> str:
    """Return the idempotency key of the commit of a staged manifest.

    No other commit has the manifest's name.
    """
    return str(uuid5(NAMESPACE_URL, manifest_path))


@attrs.frozen(eq=False)
class ServedServices:
    """The services of a catalog over a server; see `Services`."""

    namespaces: NamespaceService
    tables: TableService
    dropped: DroppedService
    protection: ProtectionService
    tags: TagService
    changes: ChangeService
    events: EventService
    writes: WriteService
    data: TableData
    structure: TableStructure
    versions: TableVersions
    branches: Branches
    views: Views
    compactions: Compactions
    transaction_records: TransactionRecordService
    partitions: PartitionService
    upkeep: UpkeepService
    engine: TableEngine
    storage_options: Mapping[str, str] = attrs.field(repr=False)
    vends: object | None
    rename: Callable[[ObjectId, ObjectId], Table]
    resolve: Callable[[CommitToken | str], Outcome | AllCommitted]
    uri: Callable[[Table], str]
    is_bare: Callable[[], bool]
    close: Callable[[], None]


def served_catalog(server: CatalogServer, engines: Engines, vends: object, options: Mapping[str, str]) -> Catalog:
    """Return the catalog over a server.

    An operation that the protocol lacks raises `Unsupported`. Maintenance works on the files of a catalog, so it runs
    where the server's catalog is configured.

    Args:
        server: The server.
        engines: The table engines.
        vends: The namespace client of the server; it pickles, with the credentials of this client.
        options: The storage options of this process.
    """
    tables = RestTables(server)
    writes = RestWrites(server, tables, engines, vends, options)
    engine = engines(ObjectId(()), {})
    compactions = Compactions(writes, engine, None)

    def no_transactions() -> TableTransactions:
        raise NoDirectory.at(server.uri, "set_base_paths")

    services = ServedServices(
        namespaces=RestNamespaces(server),
        tables=tables,
        dropped=RestDropped(server),
        protection=RestProtection(server),
        tags=RestTags(server),
        changes=RestChanges(server.uri),
        events=RestEvents(server),
        writes=writes,
        data=TableData(tables, writes, engine),
        structure=TableStructure(writes, engine, no_transactions),
        versions=TableVersions(tables, writes, engine),
        branches=Branches(writes, engine),
        views=RestViews(server, tables, writes, engine),
        compactions=compactions,
        transaction_records=RestTransactionRecords(server, writes.resolve),
        partitions=RestPartitions(server),
        upkeep=RestUpkeep(server, compactions),
        engine=engine,
        storage_options=options,
        vends=vends,
        rename=tables.rename,
        resolve=writes.resolve,
        uri=lambda table: table.location,
        is_bare=lambda: False,  # a server cannot be a mistyped directory
        close=server.close,
    )
    return Catalog(services, server.uri)


class RestWrites:
    """Writes and opens tables of a server with the table engine of this process."""

    def __init__(
        self, server: CatalogServer, tables: RestTables, engines: Engines, vends: Any, options: Mapping[str, str]
    ) -> None:
        self._server = server
        self._entries = tables
        self._engines = engines
        self._vends = vends
        self._options = options

    def write(
        self,
        object_id: ObjectId,
        data: Any,
        mode: str,
        properties: Mapping[str, str] | None,
        stable_row_ids: bool | None = None,
    ) -> Committed:
        plan_mode = mode_of(mode)
        stated = stated_row_ids(properties, stable_row_ids)
        reader = self._engines(object_id, {}).reader(data)
        declared = self._declares_for(object_id, plan_mode, properties, stated)
        engine, found = self._opened(object_id)
        stable = wants_stable_row_ids(table_of(object_id, found).properties) if stated is None else stated
        engine_mode = WriteMode.CREATE if declared else plan_mode
        rules = rules_of(properties or {}) if declared else table_of(object_id, found).rules
        with checked(reader, rules) as rows:
            return self._taking_back(
                object_id, declared, lambda: engine.write(object_id, rows, engine_mode, stable_row_ids=stable)
            )

    def begin(
        self,
        object_id: ObjectId,
        schema: Any,
        mode: str,
        properties: Mapping[str, str] | None,
        stable_row_ids: bool | None = None,
        location: str | None = None,
    ) -> WritePlan:
        write_mode = mode_of(mode)
        stated = stated_row_ids(properties, stable_row_ids)
        declared = self._declares_for(object_id, write_mode, properties, stated, location)
        latest = self._entries.latest(object_id)
        if latest is None and write_mode is WriteMode.APPEND:
            raise TableNotFound(
                f"the table {object_id} is only declared: it has no version to append to. Write the first version with "
                "mode='overwrite'"
            )
        _, found = self._opened(object_id)
        options = {**self._options, **texts_of(found.get("storage_options"))}
        rules = rules_of(properties or {}) if declared else table_of(object_id, found).rules
        return WritePlan(
            object_id,
            found["location"],
            options,
            schema,
            write_mode,
            latest or 0,
            declared,
            vends=self._vends,
            rules=rules,
            stable_row_ids=wants_stable_row_ids(table_of(object_id, found).properties) if stated is None else stated,
        )

    def commit_fragments(
        self, plan: WritePlan, fragments: Sequence[Any], properties: Mapping[str, str], *, exactly: bool
    ) -> Committed:
        engine, _ = self._opened(plan.table)
        return self._resolved(lambda: engine.commit_fragments(plan, fragments, properties, exactly=exactly))

    def require_no_new_rows(self, object_id: ObjectId) -> None:
        """Do nothing: the server refuses versions that it does not permit."""

    def require_columns_may_change(self, object_id: ObjectId) -> None:
        """Do nothing: the server refuses versions that it does not permit."""

    def commit_change(
        self,
        object_id: ObjectId,
        act: Callable[[Any], Any],
        after: int | None = None,
        *,
        branch: str | None = None,
        exactly: bool = False,
        admits: Callable[[Any, int], bool] | None = None,
        checks: Callable[[Any, Rules], None] | None = None,
        rebased: bool = False,  # only its server knows whether appends to the table are busy
        noted: bool = True,
        indexes: bool = False,
        announce: Announce = unannounced,
    ) -> Committed:
        engine, found = self._opened(object_id)
        rules = () if checks is None else table_of(object_id, found).rules
        if checks is not None and rules:
            ruled = after_checks(checks, rules, act)
            if admits is None:
                return until_committed().call(
                    lambda: self.commit_change(object_id, ruled, after, branch=branch, exactly=True, announce=announce)
                )
            act = ruled
        announce(None)
        watched = WatchedChange(engine.structure, act, indexes=indexes)
        committed = self._resolved(
            lambda: engine.change(
                object_id, watched, after, branch=branch, exactly=exactly, admits=admits, indexes=indexes
            )
        )
        watched.settle(
            object_id, lambda merge: self._resolved(lambda: engine.change(object_id, merge, None, branch=branch))
        )
        return committed

    def note(self, object_id: ObjectId, branch: str | None, committed: Committed, *, after: int | None = None) -> None:
        """Do nothing: the server records the digests of the versions that it commits."""

    def examine(
        self, object_id: ObjectId, act: Callable[[Any], Result], version: int | None, branch: str | None
    ) -> Result:
        engine, _ = self._opened(object_id)
        return engine.examine(object_id, act, version, branch)

    def with_version(self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Table:
        if tag is None:
            wanted = {"id": list(object_id.names), "version": version, "branch": branch}
            self._server.call("describe_table_version", {name: each for name, each in wanted.items() if each})
        else:
            self._server.call("get_table_tag_version", {"id": list(object_id.names), "tag": tag})
        return self._entries.find(object_id)

    def abandon(self, plan: WritePlan) -> None:
        if plan.declared and self._entries.exists(plan.table) and self._entries.latest(plan.table) is None:
            self._entries.drop(plan.table, force=False, keep=None)

    def open(self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any:
        if tag is not None and (version is not None or branch is not None):
            raise InvalidInput("a tag names a version of its own: give no version or branch beside it")
        engine, _ = self._opened(object_id)
        return engine.open(object_id, version, tag, branch)

    def handle(self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any:
        return self.open(object_id, version, tag, branch)

    def describe_version(
        self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None
    ) -> VersionDetails:
        engine, _ = self._opened(object_id)
        return engine.details(object_id, version, tag, branch)

    def version_at(self, object_id: ObjectId, moment: datetime, branch: str | None) -> int:
        """Search the manifests from here.

        A server may ignore the context of a request.
        """
        engine, _ = self._opened(object_id)
        latest, nanos = engine.times(object_id, branch)
        name = history_name(object_id, branch)

        def time(version: int) -> datetime | None:
            found = nanos(version)
            return None if found is None else time_of_manifest(found, f"version {version} of {name}")

        def kept(until: int) -> list[int]:
            fields = {"id": list(object_id.names), "branch": branch, "descending": False}
            return [version for version in self._versions(fields) if version <= until]

        return latest_at(Times(name, latest, time, kept), moment)

    def _versions(self, fields: Mapping[str, Any]) -> Iterator[int]:
        """Yield the versions of all pages of a list."""
        given, after = {name: value for name, value in fields.items() if value is not None}, None
        while True:
            found = self._server.call("list_table_versions", {**given, **({"page_token": after} if after else {})})
            yield from (int(row["version"]) for row in found.get("versions") or [])
            after = found.get("page_token")
            if not after:
                return

    def history(
        self,
        object_id: ObjectId,
        limit: int | None,
        *,
        before: int | None = None,
        branch: str | None = None,
        changes: bool = False,
    ) -> list[HistoryEntry]:
        """Describe the latest versions, without ``changes``: the protocol has none."""
        engine, _ = self._opened(object_id)
        fields: dict[str, Any] = {"id": list(object_id.names), "branch": branch, "descending": True}
        limit = limit and min(limit, _MOST_LISTED)
        if before is None:
            fields["limit"] = limit
        found = (each for each in self._versions(fields) if before is None or each < before)
        return self._entries_of(engine, object_id, list(islice(found, limit)), branch)

    def entries(self, object_id: ObjectId, versions: Sequence[int], branch: str | None) -> list[HistoryEntry]:
        engine, _ = self._opened(object_id)
        return self._entries_of(engine, object_id, versions, branch)

    @staticmethod
    def _entries_of(
        engine: TableEngine, object_id: ObjectId, versions: Sequence[int], branch: str | None
    ) -> list[HistoryEntry]:
        return [
            HistoryEntry(entry.version, entry.timestamp, entry.operation, entry.rows, "")
            for entry in (engine.summaries(object_id, versions, branch) if versions else ())
        ]

    def resolve(self, token: CommitToken | str) -> Outcome:
        """Settle a commit by repeating it with its idempotency key.

        Raises:
            InvalidInput: The text is not a token, or no table of the server is at the location in it.
            Unsupported: The server does not keep idempotency keys, or the token belongs to a transaction.
        """
        token = CommitToken.parse(str(token))
        if token.others or not self._server.honours_keys():
            raise Unsupported(
                f"{self._server.uri}: the server cannot settle this token. Resolve it where the catalog's storage and "
                "commit store are configured"
            )
        staged = token.staged
        table, branch = self._dataset_at(staged.base_uri)
        fields = {
            "id": list(table.names),
            "branch": branch,
            "version": staged.version,
            "manifest_path": staged.path,
            "manifest_size": staged.size,
        }
        try:
            found = self._server.call("create_table_version", fields, key=commit_key(staged.path))["version"]
        except (CommitUnknown, StoreUnavailable) as error:
            return Unknown(token, str(error))
        except Refused:
            return Conflict(None)
        return Committed(int(found["version"]), str(found["manifest_path"]), int(found.get("manifest_size") or 0))

    def _dataset_at(self, base_uri: str) -> tuple[ObjectId, str | None]:
        """Return the table at a location, and the branch."""
        wanted = base_uri.removeprefix("file://")
        for each in self._entries.all(None, include_declared=True):
            location = self._entries.find(each).location.rstrip("/").removeprefix("file://")
            if wanted == location:
                return each, None
            if wanted.startswith(f"{location}/{BRANCHES}/"):
                return each, wanted.removeprefix(f"{location}/{BRANCHES}/")
        raise InvalidInput(f"no table of {self._server.uri} lies at {base_uri!r:.200}; nothing was done")

    def _opened(self, object_id: ObjectId) -> tuple[TableEngine, dict[str, Any]]:
        """Return the engine of a table, and what the server says about the table."""
        found = self._entries.reached(object_id)
        return self._engines(object_id, texts_of(found.get("storage_options"))), found

    def _declares_for(
        self,
        object_id: ObjectId,
        mode: WriteMode,
        properties: Mapping[str, str] | None,
        stable: bool | None,
        location: str | None = None,
    ) -> bool:
        new = with_row_ids(properties, stable)
        if mode is WriteMode.CREATE:
            self._entries.declare(object_id, new, location)
            return True
        if mode is WriteMode.OVERWRITE and not self._entries.exists(object_id):
            with suppress(TableAlreadyExists):  # another writer was faster; this write overwrites its rows
                self._entries.declare(object_id, new, location)
                return True
        require_no_location(object_id, location)
        if properties:
            raise InvalidInput(f"the table {object_id} exists; properties are given when a table is created")
        if stable is not None:
            self._require_row_ids(object_id, stable)
        return False

    def _require_row_ids(self, object_id: ObjectId, stable: bool) -> None:
        """Check that a table has the row ids that a caller states; its first version decides them."""
        if self._entries.latest(object_id) is None:
            present = stated_row_ids(self._entries.find(object_id).properties)
        else:
            present = self.examine(object_id, lambda dataset: bool(dataset.has_stable_row_ids), None, None)
        require_row_ids(str(object_id), present, stable)

    def _taking_back(self, object_id: ObjectId, declared: bool, write: Callable[[], Committed]) -> Committed:
        """Run a write. If it fails, remove the entry that it has declared."""
        try:
            return self._resolved(write)
        except (CommitUnknown, StoreUnavailable):
            raise
        except Exception:
            if declared:
                with suppress(LancekeepError):  # the original error is raised
                    if self._entries.latest(object_id) is None:
                        self._entries.drop(object_id, force=False, keep=None)
            raise

    def _resolved(self, write: Callable[[], Committed]) -> Committed:
        """Return the outcome of a write. Resolve an unknown outcome if the server answers."""
        try:
            return write()
        except CommitUnknown as unknown:
            outcome = None
            with suppress(LancekeepError):  # the original error is raised
                outcome = self.resolve(unknown.token)
            if isinstance(outcome, Committed):
                return outcome
            raise
