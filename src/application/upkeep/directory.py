"""The parts of a catalog whose storage and commit store this process configures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.parts import part
from lancekeep.domain.errors import Unsupported

if TYPE_CHECKING:
    from lancekeep.application.commits.table_commits import TableCommits
    from lancekeep.application.entries.base_paths import BasePaths
    from lancekeep.application.entries.clones import Clones
    from lancekeep.application.entries.dropped import DroppedTables
    from lancekeep.application.entries.mem_wal import MemWal
    from lancekeep.application.entries.namespaces import Namespaces
    from lancekeep.application.entries.protection import Protection
    from lancekeep.application.entries.quotas import Quotas
    from lancekeep.application.entries.removal import Removal
    from lancekeep.application.entries.sql_views import SqlViews
    from lancekeep.application.entries.staged_checks import StagedChecks
    from lancekeep.application.entries.tables import Tables
    from lancekeep.application.entries.tag_files import TagFiles
    from lancekeep.application.entries.tags import Tags
    from lancekeep.application.rows.append_lines import Lines
    from lancekeep.application.rows.appends import Appends
    from lancekeep.application.rows.cloning import Cloning
    from lancekeep.application.rows.committed_tables import CommittedTables
    from lancekeep.application.rows.compactions import Compactions
    from lancekeep.application.rows.forwarding import Forwarding
    from lancekeep.application.rows.idempotency import IdempotentRequests
    from lancekeep.application.rows.published import PublishedPartitions
    from lancekeep.application.rows.recorded_keys import RecordedKeys
    from lancekeep.application.rows.table_transactions import TableTransactions
    from lancekeep.application.rows.upserts import Upserts
    from lancekeep.application.rows.versions import Versions
    from lancekeep.application.rows.waiting_writers import WaitingWriters
    from lancekeep.application.rows.writes import Writes
    from lancekeep.application.upkeep.automatic_maintenance import AutomaticMaintenance
    from lancekeep.application.upkeep.bases import PropertiesAt
    from lancekeep.application.upkeep.digest_recorder import DigestRecorder, FileDigestOf
    from lancekeep.application.upkeep.usage import Usage
    from lancekeep.domain.catalog import CatalogView
    from lancekeep.ports.commit_store import ExternalCommitStore
    from lancekeep.ports.committers import Committers, Received
    from lancekeep.ports.manifest_store import ManifestStore
    from lancekeep.ports.table_engine import TableEngine

    WriteSnapshot = Callable[[Callable[[], CatalogView], Callable[[], str]], int]
    """Writes the entries that a view has, and the time, for native readers; returns the number of entries."""


class NoDirectory(Unsupported, AttributeError):
    """A server has the catalog, and the REST protocol has no such operation.

    It is an `AttributeError`, too, so ``hasattr`` is False for the parts that only a directory has.
    """

    @classmethod
    def at(cls, uri: str, operation: str) -> NoDirectory:
        """Return the error for an operation of a server's catalog."""
        return cls(
            f"{uri}: the REST protocol of Lance namespaces has no operation for {operation!r}. Run it where the "
            "catalog's storage and commit store are configured. Nothing was changed"
        )


class Directory:
    """The parts of a catalog in a directory, each made when it is first read.

    A part imports its module when it is made, because a process needs few of them, and each module takes about 1 ms.

    Args:
        commits: The commits of table versions.
        places: The directories of the catalog.
        manifest: The store of the entries.
        engine_over: Returns the table engine that commits through these versions.
        managed: Whether a commit store, and not the storage alone, manages the versions.
        new_id: Returns a random id for a new catalog.
        file_digest: Returns the digest of a file that the table engine has written.
        open_rows: Opens the commit store at a URL, to move the versions there.
        properties_at: Returns the properties of the catalog at another root.
        write_snapshot: Writes the entries for native readers; None if native readers see them in any case.
        maintained: Whether this process maintains the tables to which it commits.
        committers: The processes of this host that commit appends and upserts; None if this process commits its own.
    """

    def __init__(
        self,
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
    ) -> None:
        self.places = places
        self.ledger = Ledger(manifest, commits, places.root_uri, managed=managed, new_id=new_id)
        self.open_rows = open_rows
        self.properties_at = properties_at
        self.write_snapshot = write_snapshot
        self.storage_options: Mapping[str, str] = places.storage_options
        self._engine_over = engine_over
        self._file_digest = file_digest
        self._is_maintained = maintained
        self._committers = committers
        self._forwarding = None if committers is None else self._forwarding_to(committers)

    @property
    def commits(self) -> TableCommits:
        """The commits of table versions."""
        return self.ledger.commits

    # -- entries ------------------------------------------------------------------------------------------------

    @part
    def namespaces(self) -> Namespaces:
        """The namespaces."""
        from lancekeep.application.entries.namespaces import Namespaces

        return Namespaces(self.ledger, self.removal, self.dropped)

    @part
    def tables(self) -> Tables:
        """The entries of tables."""
        from lancekeep.application.entries.tables import Tables

        return Tables(self.ledger, self.places, self.removal, self.dropped)

    @part
    def dropped(self) -> DroppedTables:
        """The tables that were dropped and are kept."""
        from lancekeep.application.entries.dropped import DroppedTables

        return DroppedTables(self.ledger, self.places, self.removal)

    @part
    def removal(self) -> Removal:
        """The removal of directories of tables."""
        from lancekeep.application.entries.removal import Removal

        return Removal(self.ledger, self.places, lambda: self.clones)

    @part
    def clones(self) -> Clones:
        """The tables whose versions refer to files of other tables."""
        from lancekeep.application.entries.clones import Clones

        return Clones(self.places.objects, self.commits.retry, self.places.root_key, self.places.outside)

    @part
    def protection(self) -> Protection:
        """The protection of tables and namespaces."""
        from lancekeep.application.entries.protection import Protection

        return Protection(self.ledger, self.places)

    @part
    def tags(self) -> Tags:
        """The tags of versions."""
        from lancekeep.application.entries.tags import Tags

        return Tags(self.ledger, self.places, self.tables, self._tag_files)

    @part
    def mem_wal(self) -> MemWal:
        """The write-ahead logs of tables."""
        from lancekeep.application.entries.mem_wal import MemWal

        return MemWal(self.ledger, self.places)

    @part
    def sql_views(self) -> SqlViews:
        """The views that SQL defines."""
        from lancekeep.application.entries.sql_views import SqlViews

        return SqlViews(self.ledger)

    @part
    def _tag_files(self) -> TagFiles:
        from lancekeep.application.entries.tag_files import TagFiles

        return TagFiles(self.places.objects, self.commits.retry)

    @part
    def _base_paths(self) -> BasePaths:
        from lancekeep.application.entries.base_paths import BasePaths

        return BasePaths(self.ledger, self.places)

    @part
    def _staged_checks(self) -> StagedChecks:
        from lancekeep.application.entries.staged_checks import StagedChecks

        return StagedChecks(self._base_paths, self.mem_wal, self.protection, self._quotas, self.clones)

    @part
    def _quotas(self) -> Quotas:
        from lancekeep.application.entries.quotas import Quotas

        return Quotas(self.ledger, self.places)

    @part
    def usage(self) -> Usage:
        """Measures what subtrees hold."""
        from lancekeep.application.upkeep.usage import Usage

        return Usage(self.ledger, self.places)

    # -- rows ---------------------------------------------------------------------------------------------------

    @part
    def versions(self) -> Versions:
        """The versions of tables, and their commits."""
        from lancekeep.application.rows.versions import Versions

        return Versions(
            self.ledger,
            self.places,
            self._base_paths,
            self._staged_checks,
            self._tag_files,
            self._lines,
            self.recorder,
            self._committed,
        )

    @part
    def engine(self) -> TableEngine:
        """The table engine, which commits through the versions."""
        return self._engine_over(self.versions)

    @part
    def writes(self) -> Writes:
        """Writes tables and opens their versions."""
        from lancekeep.application.rows.writes import Writes

        return Writes(
            self.ledger,
            self.places,
            self.versions,
            self.tables,
            self.removal,
            self.engine,
            self._appends,
            self.transactions,
            self._published,
        )

    @part
    def compactions(self) -> Compactions:
        """The compaction of tables."""
        from lancekeep.application.rows.compactions import Compactions

        return Compactions(
            self.writes, self.engine, self.transactions, lambda object_id: self.tables.find(object_id).properties
        )

    @part
    def cloning(self) -> Cloning:
        """The clones of tables."""
        from lancekeep.application.rows.cloning import Cloning

        return Cloning(self.ledger, self.places, self.tables, self.versions, self.clones, self.tags, self.mem_wal)

    @part
    def requests(self) -> IdempotentRequests:
        """The keyed requests and their effects."""
        from lancekeep.application.rows.idempotency import IdempotentRequests

        return IdempotentRequests(self.ledger, self.places, self.versions, self._keys)

    def transactions(self) -> TableTransactions:
        """Return the transactions over the metadata of one table."""
        from lancekeep.application.rows.table_transactions import TableTransactions

        return TableTransactions(self.ledger, self.tables, self.versions, self._published)

    @part
    def _appends(self) -> Appends:
        from lancekeep.application.rows.appends import Appends

        return Appends(self.versions, self.engine, self._lines, self._waiting, self._keys, self._forwarding)

    @part
    def upserts(self) -> Upserts:
        """The upserts of this process, which share commits."""
        from lancekeep.application.rows.direct_upserts import DirectUpserts
        from lancekeep.application.rows.upserts import Upserts

        direct = DirectUpserts(self.writes, self.versions, self.engine)
        return Upserts(self.writes, self.engine, self._keys, self._forwarding, direct)

    def _forwarding_to(self, committers: Committers) -> Forwarding:
        from lancekeep.application.rows.forwarding import Forwarding

        def take(received: Received) -> None:
            wing = self._appends if received.upsert is None else self.upserts
            wing.take(received)

        retry = self.commits.retry
        return Forwarding(committers, take, lambda token: self.versions.resolve(token), retry.clock, retry.sleep)

    @part
    def _lines(self) -> Lines:
        from lancekeep.application.rows.append_lines import Lines

        return Lines(self._waiting)

    @part
    def _waiting(self) -> WaitingWriters:
        from lancekeep.application.rows.waiting_writers import WaitingWriters

        return WaitingWriters(self.places.objects, self.places.prefix, self.commits.retry.clock)

    @part
    def _keys(self) -> RecordedKeys:
        from lancekeep.application.rows.recorded_keys import RecordedKeys

        return RecordedKeys(self.ledger, self.places)

    @part
    def _published(self) -> PublishedPartitions:
        from lancekeep.application.rows.published import PublishedPartitions

        return PublishedPartitions(self.ledger, self.places, self.engine)

    @part
    def _committed(self) -> CommittedTables:
        from lancekeep.application.rows.committed_tables import CommittedTables

        return CommittedTables((lambda: self.automatic.begin()) if self._is_maintained else None)

    # -- upkeep -------------------------------------------------------------------------------------------------

    @part
    def recorder(self) -> DigestRecorder:
        """Records the digests of committed files."""
        from lancekeep.application.upkeep.digest_recorder import DigestRecorder

        return DigestRecorder(self.ledger, self.places, self.clones, self._file_digest)

    @part
    def automatic(self) -> AutomaticMaintenance:
        """Maintains the tables to which this process commits."""
        from lancekeep.application.upkeep.automatic_maintenance import AutomaticMaintenance

        return AutomaticMaintenance(
            self.ledger,
            self.places,
            self.clones,
            self.engine,
            self.compactions,
            self._committed,
            lambda table: self._committers is not None and self._committers.is_elsewhere(table),
        )

    def leave_committers(self, seconds: float) -> bool:
        """Take no more appends of other processes; see `Committers.leave`."""
        return self._committers is None or self._committers.leave(seconds)

    def close(self) -> None:
        """End maintenance, record digests, and release the connections. Idempotent."""
        if self._committers is not None:
            self._committers.close()
        for working in (Directory.automatic.made(self), Directory.recorder.made(self)):
            if working is not None:
                working.close()
        self.ledger.close()
        self.places.close()
