"""The maintenance of a catalog: checks, garbage collection and migrations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from lancekeep.application.rows.idempotency import KEEP_REQUESTS
from lancekeep.application.upkeep.bases import Bases
from lancekeep.application.upkeep.cleanup import Cleanup
from lancekeep.application.upkeep.cleanup_report import CleanupReport, NotCleaned
from lancekeep.application.upkeep.commit_store_move import move_to
from lancekeep.application.upkeep.directory import Directory
from lancekeep.application.upkeep.fsck import Finding, Fsck, FsckReport, Kind, Progress
from lancekeep.application.upkeep.held_commits import DirectCommitsReport, HeldCommits
from lancekeep.application.upkeep.maintenance import Maintenance, MaintenanceAction
from lancekeep.application.upkeep.manifest_names import ManifestNamesMigration, RenamedManifests
from lancekeep.application.upkeep.migration import MigrationProgress, MigrationReport, migrate
from lancekeep.application.upkeep.quota_usage import QuotaUsage
from lancekeep.application.upkeep.refused_writes import RefusedWrites
from lancekeep.application.upkeep.table_checks import TableChecks
from lancekeep.application.upkeep.table_relocation import RelocationReport, TableRelocation
from lancekeep.application.upkeep.tiering import Tiering, TieringReport
from lancekeep.domain.authorization import Quota
from lancekeep.domain.commit import Committed
from lancekeep.domain.direct_commits import Decision
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.identity import Identity
from lancekeep.domain.maintenance import MaintenancePolicy
from lancekeep.domain.table import Table


class Upkeep:
    """The maintenance of a catalog in a directory: ``catalog.upkeep``.

    Identifiers are as in `Catalog`. The methods work on the files of a catalog, so a catalog over a server raises
    `Unsupported`, except for compactions and quotas.
    """

    def __init__(self, directory: Directory, event_defects: Callable[[bool], Iterable[tuple[str, str]]]) -> None:
        self._directory = directory
        self._event_defects = event_defects

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
        """Check the catalog and the directories below its root. Idempotent.

        Args:
            repair: Repair what can be repaired without loss. In the catalog, this removes directories without a table
                to which no entry refers, files that refused writers left in a V1 directory, records of dropped tables
                that cannot be brought back, deep clones that were stopped, markers that hide a table of the catalog,
                and files of the manifest table that no version needs. It completes purges. In tables, it publishes
                decided versions, makes rows and manifests agree, and removes staged manifests that lost, incomplete
                files, and tags of missing versions.
            grace: A time span, or seconds. Younger objects are not removed. It must exceed the longest operation plus
                the clock skew of the storage. 0 disables the check.
            remove_tables: With ``repair``, also remove tables to which no entry refers, including deregistered ones.
            deep: Check every table too: manifests, rows of the commit store, tags, branches, records of clones, and the
                files of the latest version of each history and of every tagged version. Each file must exist, with the
                size that the manifest states. Also check every batch of the log of events, and not only those that a
                recorder reads when it begins.
            accept_loss: With ``repair``, give up an unreadable latest version and go back to an older one. Without it,
                the finding describes the options.
            tables: Check only these tables, and not the catalog.
            progress: Called before each step.

        Returns:
            The inconsistencies that were found.

        Raises:
            TableNotFound: A table in ``tables`` does not exist.
            InvalidInput: ``grace`` is negative.
        """
        own = self._directory
        ledger, places = own.ledger, own.places
        span = _span(grace)
        fsck = Fsck(ledger, places, own.removal, own.tables.remove_unwritten, own.dropped.complete, span, remove_tables)
        checks = TableChecks(
            ledger.commits,
            own.removal.clones,
            own.mem_wal,
            ledger.managed,
            span,
            fsck.now,
            restore=lambda table, version: own.engine.restore(table, version),
            rebuild=lambda table, names: own.engine.change(
                table, lambda dataset: own.engine.structure.rebuild_indexes(dataset, names), None
            ),
            follow_entry=own.tables.follow_entry,
            accept_loss=accept_loss,
        )
        if tables is not None:
            chosen = [own.tables.find(ObjectId.of(table)) for table in tables]
            return checks.run(chosen, places.dataset_root, repair=repair, progress=progress)
        report = fsck.run(repair=repair)
        of_events = (Finding(Kind.EVENTS, path, meaning) for path, meaning in self._event_defects(deep))
        refused = RefusedWrites(ledger, places, own.tables.remove_unwritten, span, fsck.now).run(repair=repair)
        report = attrs.evolve(report, findings=(*report.findings, *refused, *of_events))
        if not deep:
            return report
        within = checks.run(list(own.tables.usable()), places.dataset_root, repair=repair, progress=progress)
        findings = report.findings + within.findings
        history = ledger.manifest.history
        if ledger.managed and history is not None:
            manifest = Table(ObjectId((places.location(history),)), places.location(history), {})
            own_checks = attrs.evolve(checks, accept_loss=False)
            of_manifest = own_checks.run([manifest], lambda _: history, repair=repair, progress=progress)
            findings += of_manifest.findings
        return attrs.evolve(report, findings=findings, tables=within.tables)

    def cleanup(
        self,
        older_than: timedelta | float,
        *,
        keep: int = 1,
        grace: timedelta | float = timedelta(days=7),
        tables: Iterable[Identifier] | None = None,
        dry_run: bool = False,
        progress: Progress = lambda done, total, name: None,
    ) -> CleanupReport:
        """Remove old versions of tables, and the files that no version needs.

        A version is removed if it and its successor are at least ``older_than`` old, beginning with the oldest. Tagged
        versions, versions at which a branch begins, and the latest ``keep`` versions of each history stay. A file is
        removed if no remaining manifest of the catalog names it, including manifests of clones and deregistered tables,
        and if a removed version named it or it is older than ``grace``. The same holds for the manifest of a commit
        that was never finished.

        Without ``tables``, dropped tables whose time is over are purged, and the answers of requests with idempotency
        keys are removed if they are at least 7 days and ``older_than`` old.

        Ages are differences between timestamps of the storage, so the clocks of writers do not matter. Clones outside
        the catalog are not known. A table with an unreadable manifest is skipped and reported. If the clean-up is
        interrupted at any point, call it again to complete it.

        Args:
            older_than: A time span, or seconds. Must exceed the longest read or restore of an old version, and the
                longest commit: the storage may accept a late one under the name of a removed version.
            keep: The number of versions of each history that stay; at least 1.
            grace: Must exceed the longest write.
            tables: The tables to clean; by default all, and the manifest table.
            dry_run: Remove nothing.
            progress: Called before each step.

        Returns:
            What was removed or, with ``dry_run``, would be removed.

        Raises:
            TableNotFound, InvalidInput: Nothing was removed.
        """
        own = self._directory
        chosen = None if tables is None else [own.tables.find(ObjectId.of(table)).id for table in tables]
        clones = own.removal.clones
        age = _span(older_than)
        cleanup = Cleanup(own.ledger, own.places, clones, age, keep, _span(grace), chosen, progress)
        purges = () if chosen is not None else list(own.dropped.purge_expired(dry_run=dry_run))
        report = cleanup.run(dry_run=dry_run)
        kept = tuple(NotCleaned(f"{each.id} (dropped)", reason) for each, reason in purges if reason)
        purged = tuple(each for each, reason in purges if not reason)
        report = attrs.evolve(report, purged=purged, skipped=(*report.skipped, *kept))
        if dry_run or chosen is not None:
            return report
        own.requests.clean_up(max(age, KEEP_REQUESTS))
        removed = own.ledger.commits.retry.call(own.ledger.manifest.clean_up)
        return attrs.evolve(report, manifest_versions=removed)

    def direct_commits(self, identifier: Identifier, decision: str | None = None) -> DirectCommitsReport:
        """List the direct commits that a table holds, or adopt or discard all of them.

        A table with the property ``lancekeep.direct_commits`` = ``hold`` does not show versions that a writer commits
        to the storage without the catalog, and no version can follow them. ``adopt`` makes them versions of the table,
        in their order, after the checks of every commit. ``discard`` replaces each by a version that holds the same as
        the version before it; `cleanup` later removes the files that only the direct commit named.

        For each direct commit the first decision of any process stands. If the operation is interrupted at any point,
        call it again to complete it. Branches are included.

        Args:
            identifier: The table.
            decision: ``adopt`` or ``discard``; by default they are only listed.

        Returns:
            The direct commits that were found. A table that adopts direct commits has none.

        Raises:
            TableNotFound: The table does not exist.
            InvalidInput: The decision is unknown.
            CommitRefused, Damaged, Refused: A direct commit may not follow the version before it, or has no version
                before it to return to. It and later ones stay as they are.
            ConcurrentModification: Another process has settled a direct commit otherwise.
        """
        if decision not in (None, *Decision):
            raise InvalidInput(f"the decision is {decision!r}; expected 'adopt' or 'discard', or none to list")
        own = self._directory
        table = own.tables.find(ObjectId.of(identifier))
        held = HeldCommits(own.commits, own.versions.check, str(table.id), own.places.dataset_root(table))
        return held.settle(None if decision is None else Decision(decision))

    def relocate(
        self,
        identifier: Identifier,
        location: str,
        *,
        keep: bool = False,
        dry_run: bool = False,
        progress: Progress = lambda done, total, name: None,
    ) -> RelocationReport:
        """Move a table with its versions, tags and branches to another directory.

        Files are copied while writers continue. Then a version that no writer follows, the fence, ends each history at
        the old place, the rest is copied and verified, and the entry changes in one atomic step. Writers of the old
        place are refused from the fence on; the new place continues with its number. The old files are removed, except
        the fences.

        If the move is interrupted at any point, call it again to complete it. To give it up, call it with the present
        location, which permits writes there again.

        Args:
            identifier: The table.
            location: The new directory, as a relative path, an absolute path or a URI.
            keep: Keep the old files.
            dry_run: Change nothing.
            progress: Called before each step.

        Returns:
            What was moved or, with ``dry_run``, would be moved.

        Raises:
            TableNotFound: The table does not exist.
            InvalidInput: The location is outside the root, is a V1 name, or belongs to another table.
            TableAlreadyExists: Files lie there.
            Refused: A shallow clone reads the table, or it has LSM writes.
            Unsupported: The catalog is a V1 directory, the table is only declared, or a base path cannot be rewritten.
            ConcurrentModification: Another writer changed the table or the copy. The old place is the table.
            Damaged: A version lacks files; or the table has moved, but something was committed at its old place since.
        """
        own = self._directory
        own.recorder.flush()
        relocation = TableRelocation(
            own.ledger, own.places, own.tables, own.removal, own.mem_wal, own.engine, own.versions.check
        )
        return relocation.relocate(ObjectId.of(identifier), location, keep=keep, dry_run=dry_run, progress=progress)

    def move_fragments(
        self,
        identifier: Identifier,
        older_than: timedelta | int,
        base: str,
        *,
        dry_run: bool = False,
        progress: Progress = lambda done, total, name: None,
    ) -> TieringReport:
        """Move the data files of old fragments to another prefix or bucket.

        The files are copied to a directory of the table below ``base``, and a new version names the copies by a base
        path. Rows, row ids, deletion files and indexes do not change. If other writers commit first, the version is
        built again on theirs, without another copy. The old files stay until `cleanup` removes the versions that name
        them; `cleanup` also removes files below the base that no version names.

        Args:
            identifier: The table.
            older_than: Files that a version of at least this age names, by the times of the versions; or the number of
                a version: files that a version before it names.
            base: An absolute path or a URI outside of the root. The storage options of the catalog must open it, also
                for readers.
            dry_run: Change nothing.
            progress: Called during the copy with the number of copied files and their total.

        Returns:
            What was moved or, with ``dry_run``, would be moved.

        Raises:
            TableNotFound, VersionNotFound: The table does not exist, or is only declared.
            InvalidInput: The base lies in the root, or is no absolute path or URI.
            Refused: The catalog was copied or moved; see `adopt_identity`. Or the directory at the base belongs to
                another catalog.
            Unsupported: Writers of the table need an unknown feature, or its manifests have V1 names.
            ConcurrentModification: Other writers kept committing. The copies stay until `cleanup`.
            Damaged: A file is missing, or has another size than its manifest states.
            CommitUnknown: The outcome is unknown.
        """
        own = self._directory
        tiering = Tiering(own.ledger, own.places, own.tables, own.versions)
        return tiering.move_fragments(ObjectId.of(identifier), older_than, base, dry_run=dry_run, progress=progress)

    def identity(self) -> Identity | None:
        """Return the identity of the catalog; None if it has none yet.

        The identity is a random id and the root at which the catalog is used. Directories that `move_fragments` creates
        outside of the root carry it, and only the catalog with the same identity removes files there.
        """
        own = self._directory
        return own.ledger.identity()

    def adopt_identity(self, *, original: bool = False) -> Identity:
        """Decide whether the catalog was copied or moved.

        A catalog that is used at another root than before refuses `move_fragments`, and `cleanup` skips its directories
        outside of the root, until you call this. Idempotent with ``original``.

        Args:
            original: The catalog was moved: it keeps its id and the directories outside of the root. It also takes over
                directories of this or the former root that a release without identities has marked. Without it,
                the catalog is a copy: it receives a new id and leaves the directories to the original. It still reads
                the files there, so move them again, or materialize its tables, before the original removes them.

        Returns:
            The identity of the catalog from now on.

        Raises:
            Refused: ``original`` is set, but the catalog at the former root still has the identity.
            Damaged: ``original`` is set, and the stored identity cannot be read.
        """
        own = self._directory
        return Bases(own.ledger, own.places).adopt_identity(original=original, properties_at=own.properties_at)

    def maintain(
        self, policy: MaintenancePolicy, *, dry_run: bool = False, proceed: Callable[[], bool] = lambda: True
    ) -> Iterator[MaintenanceAction]:
        """Compact, index and clean up tables by a policy; see `Maintenance.run`."""
        own = self._directory
        return Maintenance(own.tables, own.engine, own.compactions, self.cleanup).run(
            policy, dry_run=dry_run, proceed=proceed
        )

    def compact(self, identifier: Identifier, *, target_rows: int = 1 << 20) -> Committed | None:
        """Rewrite adjacent small fragments, and fragments with many deleted rows.

        Concurrent appends go on, and do not conflict. A delete, update or index of the same fragments wins; the
        compaction is then planned again. Idempotent: a repeated call finds nothing to do.

        Args:
            identifier: The table.
            target_rows: Fragments with fewer rows are small.

        Returns:
            The new version; None if there was nothing to do.

        Raises:
            TableNotFound, VersionNotFound: The table does not exist, or is only declared.
            InvalidInput: ``target_rows`` is less than 1.
            ConcurrentModification: Other writers kept changing the fragments; nothing was committed.
            Unsupported: An index of a clone has its files at the source; materialize the clone first.
            CommitUnknown: The outcome is unknown.
        """
        return self._directory.compactions.compact(ObjectId.of(identifier), target_rows)

    def commit_compaction(self, identifier: Identifier, rewritten: Sequence[Any]) -> Committed:
        """Commit fragments that distributed workers have rewritten, as one version.

        Args:
            identifier: The table.
            rewritten: The results of ``lance.optimize.CompactionTask.execute``, all of one plan.

        Raises:
            InvalidInput: The results belong to several plans.
            ConcurrentModification, CommitRefused: The table has changed; plan again. Nothing was committed.
            CommitUnknown: The outcome is unknown.
        """
        return self._directory.compactions.commit(ObjectId.of(identifier), rewritten)

    def materialize(self, identifier: Identifier) -> Committed | None:
        """Copy the files that a clone reads from other tables. Idempotent.

        The copies belong to a new version. Older versions read the files of the sources until `cleanup` removes them.
        Writers that change rows at the same time are asked to read the table again.

        Returns:
            The new version; None if the latest version reads no files of other tables.

        Raises:
            TableNotFound: The table does not exist.
            Unsupported: A base path cannot be resolved.
            ConcurrentModification: Other writers commit faster than files are copied. The copies stay.
            CommitUnknown: The outcome is unknown.
        """
        return self._directory.cloning.materialize(ObjectId.of(identifier))

    def migrate(
        self,
        *,
        dry_run: bool = False,
        batch: int = 1000,
        progress: Callable[[MigrationProgress], None] | None = None,
    ) -> MigrationReport:
        """Add every V1 table to the manifest, so that ``mode="v2"`` shows all tables.

        Files do not move, and other processes may read and write during the migration. If it is interrupted at any
        point, call it again to complete it.

        Args:
            dry_run: Write nothing.
            batch: The number of tables to add in one atomic change.
            progress: Called after each change.

        Returns:
            The tables that were added or skipped.

        Raises:
            InvalidInput: ``batch`` is less than 1.
            Unsupported: The catalog was not opened with ``mode="compatible"``.
        """
        own = self._directory
        clones = own.removal.clones
        return migrate(own.ledger, own.places, clones, dry_run=dry_run, batch=batch, progress=progress)

    def migrate_manifest_names(
        self,
        table: Identifier,
        *,
        interrupt_plain_readers: bool = False,
        reader_pause: float = 1.0,
        dry_run: bool = False,
        progress: Progress = lambda done, total, name: None,
    ) -> tuple[RenamedManifests, ...]:
        """Rename the manifests of a table and its branches from V1 to V2.

        Readers and writers of the catalog continue, including native writers that opened the table before. One version
        without changes is committed to each history. If the migration is interrupted at any point, call it again to
        complete it. Idempotent.

        Args:
            table: The table.
            interrupt_plain_readers: Proceed if readers that open the latest version without the catalog refuse the
                table until the migration ends, which they do on storage other than S3.
            reader_pause: Seconds between the last change of a row and the removal of V1 names: the time that a reader
                needs from the name of a version to its manifest.
            dry_run: Change nothing.
            progress: Called before each step.

        Returns:
            The histories that had V1 names.

        Raises:
            TableNotFound: The table does not exist.
            Unsupported: No commit store manages the table, plain readers would be interrupted, or the table has
                features that only the Lance engine commits. Nothing was changed.
            Damaged: A version has two different manifests.
            ConcurrentModification: Other writers committed all the time.
            CommitUnknown: The outcome of the version without changes is unknown; call it again.
        """
        own = self._directory
        found = own.tables.find(ObjectId.of(table))
        commits, check = own.ledger.commits, own.versions.check
        migration = ManifestNamesMigration(found.id, commits, check, interrupt_plain_readers, reader_pause, progress)
        return migration.run(own.places.dataset_root(found), dry_run=dry_run)

    def optimize(self) -> None:
        """Clean up the manifest table and build its indexes. Idempotent.

        The indexes are for other readers. See "Manifest Table Indexes" in the V2 specification.

        Raises:
            Unsupported: The catalog is a V1 directory, or no index can be built safely on this storage.
        """
        own = self._directory
        own.ledger.view(during_move=True)  # raises if the catalog moved to another home
        own.ledger.manifest.optimize()

    def export_manifest(self) -> int:
        """Write the entries as ``__manifest`` into the root, for native readers.

        Native readers list and open the tables as of this call. The properties ``lancekeep.snapshot_version`` and
        ``lancekeep.snapshot_at`` of the root say which version of the catalog the snapshot shows, and its time. Changes
        that native writers made in an earlier snapshot are overwritten.

        Returns:
            The number of entries; 0 if the catalog does not exist yet, and nothing was written.

        Raises:
            Unsupported: The entries are in the root, where native readers see them.
            Refused: The root has a ``__manifest`` that is no snapshot of the catalog. Nothing was changed.
        """
        own = self._directory
        if own.write_snapshot is None:
            raise own.ledger.guarantees.refusal("has its entries in the root, where native readers see them")
        return own.write_snapshot(own.ledger.view, lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def quotas(self, policy: Sequence[Quota] | None = None) -> list[QuotaUsage]:
        """Measure how much of the quotas of a policy is used.

        Each directory of a subtree with a quota of bytes is listed: one request for about 1,000 objects. A server
        answers with its own quotas, as far as the caller may describe their subtrees, as it measured them last.

        Args:
            policy: The quotas; of a server, None.

        Raises:
            InvalidInput: The quotas are missing, or a server has quotas of its own.
        """
        if policy is None:
            raise InvalidInput("quotas are in the policy of a server; pass the quotas of a policy to measure them here")
        measured = datetime.now(UTC)
        held = self._directory.usage.measure(policy)
        return [QuotaUsage.of(each, held[each.subtree], measured) for each in policy]

    def change_commit_store(self, url: str) -> int:
        """Move the versions of every table and branch to the commit store at ``url``.

        For each history, the latest version is finalized, a fence in the old store stops further commits of any
        process, and the rows are copied and compared. Then the catalog records the new store, and this object uses it.
        Processes that opened the catalog with the old store are refused.

        If the move is interrupted at any point, call it again to complete it.

        Returns:
            The number of rows moved.

        Raises:
            Refused: A move to a different commit store is in progress.
            Damaged: The new store holds versions that do not exist. Nothing was changed.
        """
        own = self._directory
        return move_to(own.open_rows(url), own.ledger, own.places)


def _span(span: timedelta | float) -> timedelta:
    return span if isinstance(span, timedelta) else timedelta(seconds=span)
