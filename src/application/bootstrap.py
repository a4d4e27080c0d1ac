"""Create a catalog in a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancekeep.application.catalog import Catalog
from lancekeep.application.parts import part
from lancekeep.application.upkeep.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lancekeep.application.commits.table_commits import TableCommits
    from lancekeep.application.entries.catalog_changes import CatalogChanges
    from lancekeep.application.entries.dropped import DroppedTables
    from lancekeep.application.entries.namespaces import Namespaces
    from lancekeep.application.entries.places import Places
    from lancekeep.application.entries.protection import Protection
    from lancekeep.application.entries.tables import Tables
    from lancekeep.application.entries.tags import Tags
    from lancekeep.application.events.recorder import EventRecorder
    from lancekeep.application.events.service import Events
    from lancekeep.application.partitions.namespace import Partitions
    from lancekeep.application.rows.branches import Branches
    from lancekeep.application.rows.compactions import Compactions
    from lancekeep.application.rows.table_data import TableData
    from lancekeep.application.rows.table_structure import TableStructure
    from lancekeep.application.rows.table_versions import TableVersions
    from lancekeep.application.rows.transaction_records import TransactionRecords
    from lancekeep.application.rows.versions import Versions
    from lancekeep.application.rows.views import Views
    from lancekeep.application.rows.writes import Writes
    from lancekeep.application.upkeep.bases import PropertiesAt
    from lancekeep.application.upkeep.digest_recorder import FileDigestOf
    from lancekeep.application.upkeep.directory import WriteSnapshot
    from lancekeep.application.upkeep.service import Upkeep
    from lancekeep.domain.commit import Outcome
    from lancekeep.domain.commit_token import CommitToken
    from lancekeep.domain.identifiers import ObjectId
    from lancekeep.domain.table import Table
    from lancekeep.domain.transaction import AllCommitted
    from lancekeep.ports.commit_store import ExternalCommitStore
    from lancekeep.ports.committers import Committers
    from lancekeep.ports.manifest_store import ManifestStore
    from lancekeep.ports.table_engine import TableEngine


def bootstrap(
    commits: TableCommits,
    places: Places,
    manifest: ManifestStore,
    engine_over: Callable[[Versions], TableEngine],
    *,
    managed: bool,
    new_id: Callable[[], str],
    file_digest: FileDigestOf,
    open_rows: Callable[[str], ExternalCommitStore],
    properties_at: PropertiesAt = lambda _: {},
    write_snapshot: WriteSnapshot | None = None,
    maintained: bool = False,
    committers: Committers | None = None,
) -> Catalog:
    """Return the catalog in a directory; `Directory` describes the arguments."""
    directory = Directory(
        commits,
        places,
        manifest,
        engine_over,
        managed=managed,
        new_id=new_id,
        file_digest=file_digest,
        open_rows=open_rows,
        properties_at=properties_at,
        write_snapshot=write_snapshot,
        maintained=maintained,
        committers=committers,
    )
    return Catalog(DirectoryServices(directory), places.root_uri, directory)


class DirectoryServices:
    """The services of a catalog in a directory, made as the parts of `Directory` are."""

    vends = None

    def __init__(self, directory: Directory) -> None:
        self._own = directory

    @property
    def namespaces(self) -> Namespaces:
        """The namespaces."""
        return self._own.namespaces

    @property
    def tables(self) -> Tables:
        """The entries of tables."""
        return self._own.tables

    @property
    def dropped(self) -> DroppedTables:
        """The tables that were dropped and are kept."""
        return self._own.dropped

    @property
    def protection(self) -> Protection:
        """The protection of tables and namespaces."""
        return self._own.protection

    @property
    def tags(self) -> Tags:
        """The tags of versions."""
        return self._own.tags

    @property
    def writes(self) -> Writes:
        """Writes tables and opens their versions."""
        return self._own.writes

    @property
    def compactions(self) -> Compactions:
        """The compaction of tables."""
        return self._own.compactions

    @property
    def engine(self) -> TableEngine:
        """The table engine."""
        return self._own.engine

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options with which the table engine opens a table."""
        return self._own.places.storage_options

    @part
    def changes(self) -> CatalogChanges:
        """The feed of changes of the catalog."""
        from lancekeep.application.entries.catalog_changes import CatalogChanges

        return CatalogChanges(self._own.ledger)

    @part
    def events(self) -> Events:
        """The events of the catalog."""
        from lancekeep.application.events.log import EventLog
        from lancekeep.application.events.service import Events

        own = self._own
        log = EventLog.of(own)

        def recorder() -> EventRecorder:
            from lancekeep.application.events.histories import TableHistories
            from lancekeep.application.events.recorder import EventRecorder

            histories = TableHistories(own.commits, own.places)
            return EventRecorder(own.ledger, log, histories, own.ledger.new_id)

        return Events(log, recorder, own.commits.retry)

    @part
    def data(self) -> TableData:
        """The changes of rows."""
        from lancekeep.application.rows.table_data import TableData

        own = self._own
        return TableData(self.tables, self.writes, self.engine, own.mem_wal.ask, own.upserts)

    @part
    def structure(self) -> TableStructure:
        """The changes of columns and indexes."""
        from lancekeep.application.rows.table_structure import TableStructure

        return TableStructure(self.writes, self.engine, self._own.transactions)

    @part
    def versions(self) -> TableVersions:
        """The versions of tables, as people see them."""
        from lancekeep.application.rows.table_versions import TableVersions

        return TableVersions(self.tables, self.writes, self.engine, self._own.transactions)

    @part
    def branches(self) -> Branches:
        """The branches of tables."""
        from lancekeep.application.rows.branches import Branches

        return Branches(self.writes, self.engine)

    @part
    def views(self) -> Views:
        """The materialized views."""
        from lancekeep.application.rows.views import Views

        return Views(self.tables, self.writes, self.engine)

    @part
    def transaction_records(self) -> TransactionRecords:
        """The transactions that are recorded in manifests."""
        from lancekeep.application.rows.transaction_records import TransactionRecords

        own = self._own
        return TransactionRecords(own.ledger, own.places, own.tables, own.versions, own.writes, own.engine)

    @part
    def partitions(self) -> Partitions:
        """The partitions of the catalog."""
        from lancekeep.application.partitions.namespace import Partitions

        own = self._own
        return Partitions(own.ledger, own.places, own.writes, own.removal, own.engine, own.namespaces)

    @part
    def upkeep(self) -> Upkeep:
        """The maintenance of the catalog."""
        from lancekeep.application.upkeep.service import Upkeep

        own = self._own

        def event_defects(deep: bool) -> Iterable[tuple[str, str]]:
            from lancekeep.application.events.checks import event_defects

            return event_defects(own, deep=deep)

        return Upkeep(own, event_defects)

    def rename(self, old: ObjectId, new: ObjectId) -> Table:
        """Rename a table; see `Catalog.rename_table`."""
        from lancekeep.application.upkeep.renames import Renames

        own = self._own
        renames = Renames(own.ledger, own.places, own.tables, own.removal, own.mem_wal, own.recorder)
        return renames.rename(old, new)

    def resolve(self, token: CommitToken | str) -> Outcome | AllCommitted:
        """Find out the outcome of a commit; see `Catalog.resolve`."""
        return self._own.versions.resolve(token)

    def uri(self, table: Table) -> str:
        """Return the URI by which the table engine opens a table."""
        return self._own.places.uri(table)

    def is_bare(self) -> bool:
        """Return whether the root is empty: the catalog is new, or its root is mistyped."""
        return self._own.places.is_bare() and self._own.ledger.view().version == 0

    def close(self) -> None:
        """Release what the catalog holds."""
        self._own.close()
