"""The parts of a catalog whose storage and commit store this process configures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.clones import Clones
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.mem_wal import MemWal
from lancekeep.application.entries.namespaces import Namespaces
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.removal import Removal
from lancekeep.application.entries.sql_views import SqlViews
from lancekeep.application.entries.tables import Tables
from lancekeep.application.entries.tags import Tags
from lancekeep.application.rows.cloning import Cloning
from lancekeep.application.rows.compactions import Compactions
from lancekeep.application.rows.idempotency import IdempotentRequests
from lancekeep.application.rows.published import PublishedPartitions
from lancekeep.application.rows.versions import Versions
from lancekeep.application.rows.writes import Writes
from lancekeep.application.upkeep.bases import PropertiesAt
from lancekeep.application.upkeep.digest_recorder import DigestRecorder
from lancekeep.application.upkeep.renames import Renames
from lancekeep.domain.errors import Unsupported
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.table_engine import TableEngine

if TYPE_CHECKING:
    from lancekeep.application.rows.table_transactions import TableTransactions


class NoDirectory(Unsupported, AttributeError):
    """The catalog is that of a server, and the REST protocol has no such operation.

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
    """The parts of a catalog in a directory, each created once."""

    def __init__(
        self,
        places: Places,
        ledger: Ledger,
        versions: Versions,
        engine: TableEngine,
        open_rows: Callable[[str], ExternalCommitStore],
        properties_at: PropertiesAt,
    ) -> None:
        self.places, self.ledger, self.versions, self.engine = places, ledger, versions, engine
        self.open_rows, self.properties_at = open_rows, properties_at
        clones = Clones(places.objects, ledger.commits.retry, places.root_key, places.outside)
        self.removal = Removal(ledger, places, clones)
        self.mem_wal = MemWal(ledger, places)
        ledger.commits.on_staged = (
            versions.base_paths.require_staged,
            self.mem_wal.require_permitted,
            self.removal.record_staged,
        )
        self.tables = Tables(ledger, places, self.removal)
        self.namespaces = Namespaces(ledger, self.removal)
        self.tags = Tags(ledger, places, self.tables)
        self.sql_views = SqlViews(ledger)
        self.requests = IdempotentRequests(ledger, places, versions)
        versions.tagged_versions = lambda uri, branch: engine.tagged_versions(uri, branch)
        versions.recorder = self.recorder = DigestRecorder(ledger, places, clones, engine)
        self.published = PublishedPartitions(ledger, places, engine.restore)
        self.writes = Writes(
            ledger, places, versions, self.tables, self.removal, engine, self.transactions, self.published
        )
        self.compactions = Compactions(self.writes, engine, self.transactions)
        self.cloning = Cloning(ledger, places, self.tables, versions, clones, self.tags, self.mem_wal)
        self.renames = Renames(ledger, places, self.tables, self.removal, self.mem_wal, self.recorder)

    @property
    def commits(self) -> TableCommits:
        """The commits of table versions."""
        return self.ledger.commits

    def transactions(self) -> TableTransactions:
        """Return the commits that need no engine."""
        from lancekeep.application.rows.table_transactions import TableTransactions  # loads classes as `inspect` does

        return TableTransactions(self.ledger, self.tables, self.versions, self.published)

    def close(self) -> None:
        """Record the last digests, and release the connections. Idempotent."""
        self.recorder.close()
        self.ledger.close()
        self.places.close()
