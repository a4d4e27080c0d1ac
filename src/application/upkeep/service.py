"""The operations of upkeep: checks, clean-up, migration, and the change of the commit store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import attrs

from lancekeep.application.ledger import Ledger
from lancekeep.application.places import Places
from lancekeep.application.removal import Removal
from lancekeep.application.tables import Tables
from lancekeep.application.upkeep.cleanup import Cleanup, CleanupReport
from lancekeep.application.upkeep.commit_store_move import move_to
from lancekeep.application.upkeep.fsck import Fsck, FsckReport, Progress
from lancekeep.application.upkeep.migration import MigrationProgress, MigrationReport, migrate
from lancekeep.application.upkeep.table_checks import TableChecks
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.table import MANIFEST_DIRECTORY, Table
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.table_engine import TableEngine


class Upkeep:
    """The operations of upkeep, which `Catalog` inherits."""

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        tables: Tables,
        removal: Removal,
        engine: TableEngine,
        open_rows: Callable[[str], ExternalCommitStore],
    ) -> None:
        self.ledger = ledger
        self.places = places
        self.tables = tables
        self.removal = removal
        self.engine = engine
        self._open_rows = open_rows

    def fsck(
        self,
        *,
        repair: bool = False,
        grace: timedelta | float = timedelta(hours=1),
        remove_tables: bool = False,
        deep: bool = False,
        accept_loss: bool = False,
        tables: Iterable[Identifier] | None = None,
        progress: Progress = lambda done, total, name: None,
    ) -> FsckReport:
        """Check the catalog and the directories below its root, and report what is inconsistent. Idempotent.

        Args:
            repair: Repair what can be repaired without a loss. In the catalog: remove directories without a table that
                no entry refers to, markers that hide a table of the catalog, and files of the manifest table that no
                version needs. In tables: publish decided versions, bring rows and manifests into agreement, and remove
                lost staged manifests, incomplete files, and tags of versions that are gone.
            grace: A time span, or seconds. Younger objects are not removed. It must exceed the longest operation plus
                the clock skew of the storage. 0 disables the check.
            remove_tables: With ``repair``, also remove tables that no entry refers to, deregistered ones included.
            deep: Check every table too: manifests, rows of the commit store, tags, branches, records of clones, and the
                files that the latest version of each history and every tagged version name. Each file must exist, with
                the size in the manifest.
            accept_loss: With ``repair``, give up a latest version that cannot be read, and go back to an older one.
                Without it, the finding says what can be done.
            tables: Check these tables only, and not the catalog.
            progress: Called before each step.

        Raises:
            TableNotFound, InvalidInput.
        """
        ledger, places = self.ledger, self.places
        span = grace if isinstance(grace, timedelta) else timedelta(seconds=grace)
        fsck = Fsck(ledger, places, self.removal, span, remove_tables)
        checks = TableChecks(
            ledger.commits,
            self.removal.clones,
            ledger.managed,
            span,
            fsck.now,
            restore=lambda table, version: self.engine.restore(table, version),
            accept_loss=accept_loss,
        )
        if tables is not None:
            chosen = [self.tables.find(ObjectId.of(table)) for table in tables]
            return checks.run(chosen, places.dataset_root, repair=repair, progress=progress)
        report = fsck.run(repair=repair)
        if not deep:
            return report
        within = checks.run(list(self.tables.usable()), places.dataset_root, repair=repair, progress=progress)
        findings = report.findings + within.findings
        if ledger.managed and ledger.shares_store(ledger.view()):
            own = Table(ObjectId((MANIFEST_DIRECTORY,)), MANIFEST_DIRECTORY, {})
            own_checks = attrs.evolve(checks, accept_loss=False)
            of_manifest = own_checks.run([own], lambda _: places.manifest_root, repair=repair, progress=progress)
            findings += of_manifest.findings
        return attrs.evolve(report, findings=findings, tables=within.tables)

    def cleanup(
        self,
        older_than: timedelta,
        *,
        keep: int = 1,
        grace: timedelta = timedelta(days=7),
        tables: Iterable[Identifier] | None = None,
        dry_run: bool = False,
        progress: Progress = lambda done, total, name: None,
    ) -> CleanupReport:
        """Remove old versions of tables, rows and manifests, and the files that no version needs.

        A version is removed if it and its successor are ``older_than`` that, beginning with the oldest. Versions that a
        tag points at, that a branch begins with, and the latest ``keep`` of each history stay. A file is removed if no
        remaining manifest of the catalog names it, clones and deregistered tables included, and if a removed version
        named it or it is older than ``grace``. The same holds for the manifest of a commit that was never finished.

        Ages are differences between the storage's own times, so no writer's clock matters. Clones outside the catalog
        are not known. A table with a manifest that cannot be read is skipped and reported. If the clean-up is
        interrupted at any point, call it again to complete it.

        Args:
            older_than: Must exceed the longest read or restore of an old version.
            keep: How many versions of each history stay; at least 1.
            grace: Must exceed the longest write.
            tables: The tables to clean; by default all, and the manifest table.
            dry_run: Remove nothing.
            progress: Called before each step.

        Raises:
            TableNotFound, InvalidInput: Nothing was removed.
        """
        chosen = None if tables is None else [self.tables.find(ObjectId.of(table)).id for table in tables]
        clones = self.removal.clones
        cleanup = Cleanup(self.ledger, self.places, clones, older_than, keep, grace, chosen, progress)
        report = cleanup.run(dry_run=dry_run)
        if dry_run or chosen is not None:
            return report
        removed = self.ledger.commits.retry.call(self.ledger.manifest.clean_up)
        return attrs.evolve(report, manifest_versions=removed)

    def migrate(
        self,
        *,
        dry_run: bool = False,
        batch: int = 1000,
        progress: Callable[[MigrationProgress], None] | None = None,
    ) -> MigrationReport:
        """Enter every table that only V1 knows in the manifest; ``mode="v2"`` shows them all afterwards.

        Files do not move, and other processes may read and write during the migration. If it is interrupted at any
        point, call it again to complete it.

        One atomic change enters ``batch`` tables, and ``progress`` is called after it. ``dry_run`` writes nothing.

        Raises:
            Unsupported: The catalog was not opened with ``mode="compatible"``.
        """
        clones = self.removal.clones
        return migrate(self.ledger, self.places, clones, dry_run=dry_run, batch=batch, progress=progress)

    def optimize(self) -> None:
        """Clean up the manifest table and build its indexes for other readers. Idempotent.

        V2 specification, "Manifest Table Indexes". Raises `Unsupported` for a V1 directory, and if no index could be
        built safely here.
        """
        self.ledger.manifest.optimize()

    def change_commit_store(self, url: str) -> int:
        """Move the versions of every table and branch to the commit store at ``url``.

        For each history, the latest version is finalized, a fence in the old store stops further commits of any
        process, and the rows are copied and compared. Then the catalog records the new store, and this object uses it.
        Processes that have the catalog open with the old store are refused.

        If the move is interrupted at any point, call it again to complete it.

        Returns:
            The number of rows moved.

        Raises:
            Refused: A move to a different commit store is in progress.
            Damaged: The new store holds versions that do not exist. Nothing was changed.
        """
        return move_to(self._open_rows(url), self.ledger, self.places)
