"""The parts of a catalog whose storage and commit store this process configures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.dropped import DroppedTables
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.mem_wal import MemWal
from lancekeep.application.entries.namespaces import Namespaces
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.protection import Protection
from lancekeep.application.entries.removal import Removal
from lancekeep.application.entries.sql_views import SqlViews
from lancekeep.application.entries.tables import Tables
from lancekeep.application.entries.tags import Tags
from lancekeep.application.rows.cloning import Cloning
from lancekeep.application.rows.compactions import Compactions
from lancekeep.application.rows.idempotency import IdempotentRequests
from lancekeep.application.rows.versions import Versions
from lancekeep.application.rows.writes import Writes
from lancekeep.application.upkeep.automatic_maintenance import AutomaticMaintenance
from lancekeep.application.upkeep.bases import PropertiesAt
from lancekeep.application.upkeep.digest_recorder import DigestRecorder
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.errors import Unsupported
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.table_engine import TableEngine

if TYPE_CHECKING:
    from lancekeep.application.rows.table_transactions import TableTransactions


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


@attrs.frozen(eq=False)
class Directory:
    """The parts of a catalog in a directory, which `bootstrap` creates."""

    places: Places
    ledger: Ledger
    versions: Versions
    engine: TableEngine
    removal: Removal
    mem_wal: MemWal
    dropped: DroppedTables
    protection: Protection
    tables: Tables
    namespaces: Namespaces
    tags: Tags
    sql_views: SqlViews
    requests: IdempotentRequests
    recorder: DigestRecorder
    automatic: AutomaticMaintenance
    writes: Writes
    compactions: Compactions
    cloning: Cloning
    transactions: Callable[[], TableTransactions]
    open_rows: Callable[[str], ExternalCommitStore]
    properties_at: PropertiesAt
    write_snapshot: WriteSnapshot | None = None

    @property
    def commits(self) -> TableCommits:
        """The commits of table versions."""
        return self.ledger.commits

    def close(self) -> None:
        """End maintenance, record digests, and release the connections. Idempotent."""
        self.automatic.close()
        self.recorder.close()
        self.ledger.close()
        self.places.close()
