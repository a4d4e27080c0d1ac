"""Create the services of a catalog in a directory, in one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lancekeep.application.catalog import Catalog
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.base_paths import BasePaths
from lancekeep.application.entries.catalog_changes import CatalogChanges
from lancekeep.application.entries.clones import Clones
from lancekeep.application.entries.dropped import DroppedTables
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.mem_wal import MemWal
from lancekeep.application.entries.namespaces import Namespaces
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.protection import Protection
from lancekeep.application.entries.removal import Removal
from lancekeep.application.entries.sql_views import SqlViews
from lancekeep.application.entries.staged_checks import StagedChecks
from lancekeep.application.entries.tables import Tables
from lancekeep.application.entries.tag_files import TagFiles
from lancekeep.application.entries.tags import Tags
from lancekeep.application.rows.append_lines import Lines
from lancekeep.application.rows.appends import Appends
from lancekeep.application.rows.branches import Branches
from lancekeep.application.rows.cloning import Cloning
from lancekeep.application.rows.committed_tables import CommittedTables
from lancekeep.application.rows.compactions import Compactions
from lancekeep.application.rows.idempotency import IdempotentRequests
from lancekeep.application.rows.published import PublishedPartitions
from lancekeep.application.rows.recorded_keys import RecordedKeys
from lancekeep.application.rows.table_data import TableData
from lancekeep.application.rows.table_structure import TableStructure
from lancekeep.application.rows.table_versions import TableVersions
from lancekeep.application.rows.transaction_records import TransactionRecords
from lancekeep.application.rows.versions import Versions
from lancekeep.application.rows.views import Views
from lancekeep.application.rows.waiting_writers import WaitingWriters
from lancekeep.application.rows.writes import Writes
from lancekeep.application.services import Services
from lancekeep.application.upkeep.automatic_maintenance import AutomaticMaintenance
from lancekeep.application.upkeep.bases import PropertiesAt
from lancekeep.application.upkeep.digest_recorder import DigestRecorder, FileDigestOf
from lancekeep.application.upkeep.directory import Directory, WriteSnapshot
from lancekeep.application.upkeep.renames import Renames
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.manifest_store import ManifestStore
from lancekeep.ports.table_engine import TableEngine

if TYPE_CHECKING:
    from lancekeep.application.partitions.namespace import Partitions
    from lancekeep.application.rows.table_transactions import TableTransactions
    from lancekeep.application.upkeep.service import Upkeep


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
) -> Catalog:
    """Return the catalog in a directory.

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
    """
    objects, retry = places.objects, commits.retry
    ledger = Ledger(manifest, commits, places.root_uri, managed=managed, new_id=new_id)
    clones = Clones(objects, retry, places.root_key, places.outside)
    base_paths = BasePaths(ledger, places)
    mem_wal = MemWal(ledger, places)
    tag_files = TagFiles(objects, retry)
    waiting = WaitingWriters(objects, places.prefix, retry.clock)
    lines = Lines(waiting)
    recorder = DigestRecorder(ledger, places, clones, file_digest)
    protection = Protection(ledger, places)
    check = StagedChecks(base_paths, mem_wal, protection, clones)
    committed = CommittedTables((lambda: automatic.begin()) if maintained else None)
    versions = Versions(ledger, places, base_paths, check, tag_files, lines, recorder, committed)
    engine = engine_over(versions)
    removal = Removal(ledger, places, clones)
    dropped = DroppedTables(ledger, places, removal)
    tables = Tables(ledger, places, removal, dropped)
    namespaces = Namespaces(ledger, removal, dropped)
    tags = Tags(ledger, places, tables, tag_files)
    published = PublishedPartitions(ledger, places, engine)

    def transactions() -> TableTransactions:
        from lancekeep.application.rows.table_transactions import TableTransactions  # loads classes as `inspect` does

        return TableTransactions(ledger, tables, versions, published)

    keys = RecordedKeys(ledger, places)
    appends = Appends(versions, engine, lines, waiting, keys)
    writes = Writes(ledger, places, versions, tables, removal, engine, appends, transactions, published)
    compactions = Compactions(writes, engine, transactions)
    automatic = AutomaticMaintenance(ledger, places, clones, engine, compactions, committed)
    renames = Renames(ledger, places, tables, removal, mem_wal, recorder)
    directory = Directory(
        places,
        ledger,
        versions,
        engine,
        removal,
        mem_wal,
        dropped,
        protection,
        tables,
        namespaces,
        tags,
        SqlViews(ledger),
        IdempotentRequests(ledger, places, versions, keys),
        recorder,
        automatic,
        writes,
        compactions,
        Cloning(ledger, places, tables, versions, clones, tags, mem_wal),
        transactions,
        open_rows,
        properties_at,
        write_snapshot,
    )

    def partitions() -> Partitions:
        from lancekeep.application.partitions.namespace import Partitions  # as in `transactions`

        return Partitions(ledger, places, writes, removal, engine)

    def upkeep() -> Upkeep:
        from lancekeep.application.upkeep.service import Upkeep  # as in `transactions`

        return Upkeep(directory)

    services = Services(
        namespaces,
        tables,
        renames.rename,
        writes,
        TableData(tables, writes, engine, mem_wal.ask),
        TableStructure(writes, engine, transactions),
        dropped,
        protection,
        tags,
        CatalogChanges(ledger),
        TableVersions(tables, writes, engine),
        Branches(writes, engine),
        Views(tables, writes, engine),
        partitions,
        upkeep,
        compactions,
        TransactionRecords(ledger, places, tables, versions, writes, engine),
        engine,
        resolve=versions.resolve,
        close=directory.close,
        uri=places.uri,
        storage_options=places.storage_options,
        is_bare=lambda: places.is_bare() and ledger.view().version == 0,
    )
    return Catalog(services, places.root_uri, directory)
