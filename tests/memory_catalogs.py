"""Catalogs in memory, with a clock that tests set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from unittest.mock import Mock

from memory_manifests import MemoryManifestStore

from lancekeep.adapters.commit_stores.memory import MemoryCommitStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.bootstrap import bootstrap
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.places import Places
from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.cleanup import Cleanup
from lancekeep.application.upkeep.cleanup_report import CleanupReport
from lancekeep.application.upkeep.fsck import Fsck, FsckReport
from lancekeep.domain.catalog import ManifestStoreGuarantees, Put
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry

NAMES = count()
COMPATIBLE = ManifestStoreGuarantees(lists_directories=True)
MANIFEST = "_versions/18446744073709551614.manifest"
STAGED = f"{MANIFEST}-6f1c1c1e-0000-4000-8000-000000000001"
DATA = f"data/{'01' * 12}{'0a' * 13}.lance"
TRANSACTION = "_transactions/1-6f1c1c1e-0000-4000-8000-000000000002.txn"


class World:
    """A catalog below ``lake/`` without a table engine; by default as in compatibility mode."""

    def __init__(
        self,
        guarantees: ManifestStoreGuarantees = COMPATIBLE,
        *,
        managed: bool = False,
        store: type[MemoryObjectStore] = MemoryObjectStore,
    ) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)
        self.objects = store(clock=lambda: self.time)
        self.manifest = MemoryManifestStore(guarantees)
        self.rows = MemoryCommitStore(f"world-{next(NAMES)}")
        entropy = count()
        no_engine: Any = Mock(spec=["restore"])  # nothing here reads or writes data
        places = Places(
            self.objects,
            "lake",
            uri_of=lambda key: f"memory:///{key}",
            storage_options={},
            entropy=lambda: f"{next(entropy):08x}",
        )
        commits = TableCommits(self.objects, self.rows, "tester", Retry())
        self.catalog = bootstrap(
            commits,
            places,
            self.manifest,
            lambda versions: no_engine,
            managed=managed,
            new_id=lambda: f"{next(entropy):032x}",
            file_digest=no_engine,
            open_rows=lambda _: self.rows,
        )

    def enter(self, object_id: str, location: str | None, *, listed: bool = False) -> None:
        """Put an unchecked entry into the manifest, as a native writer might."""
        kind = TABLE if location is not None else NAMESPACE
        entry = ManifestEntry(object_id, kind, location, listed=listed)
        self.manifest.apply(lambda _: ([Put(entry)], None))

    def files(self, directory: str, *names: str) -> None:
        for name in names:
            self.objects.put(f"lake/{directory}/{name}", name.encode())

    def stored(self) -> list[str]:
        return [info.key.removeprefix("lake/") for info in self.objects.list("lake/")]

    def tables(self) -> list[str]:
        return [str(ObjectId.from_key(entry.object_id)) for entry in self.manifest.view().all_of(TABLE)]

    def fsck(
        self, *, repair: bool = False, grace: timedelta = timedelta(hours=1), remove_tables: bool = False
    ) -> FsckReport:
        """Run `Upkeep.fsck` with the clock of this world."""
        catalog = self.catalog
        fsck = Fsck(
            directory_of(catalog).ledger,
            directory_of(catalog).places,
            directory_of(catalog).removal,
            directory_of(catalog).tables.remove_unwritten,
            directory_of(catalog).dropped.complete,
            grace,
            remove_tables,
            lambda: self.time,
        )
        return fsck.run(repair=repair)

    def cleanup(self, *, older_than: timedelta, now: datetime, dry_run: bool = False) -> CleanupReport:
        """Run `Upkeep.cleanup` in a process whose clock shows ``now``."""
        catalog, week = self.catalog, timedelta(days=7)
        cleanup = Cleanup(
            directory_of(catalog).ledger,
            directory_of(catalog).places,
            directory_of(catalog).removal.clones,
            older_than,
            keep=1,
            grace=week,
            tables=None,
            progress=lambda done, total, name: None,
            now=lambda: now,
        )
        return cleanup.run(dry_run=dry_run)
