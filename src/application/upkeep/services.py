"""The protocol of the maintenance of a catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

from lancekeep.application.upkeep.cleanup_report import CleanupReport
from lancekeep.application.upkeep.fsck import FsckReport, Progress
from lancekeep.application.upkeep.held_commits import DirectCommitsReport
from lancekeep.application.upkeep.maintenance import MaintenanceAction
from lancekeep.application.upkeep.manifest_names import RenamedManifests
from lancekeep.application.upkeep.migration import MigrationProgress, MigrationReport
from lancekeep.application.upkeep.quota_usage import QuotaUsage
from lancekeep.application.upkeep.table_relocation import RelocationReport
from lancekeep.application.upkeep.tiering import TieringReport
from lancekeep.domain.authorization import Quota
from lancekeep.domain.commit import Committed
from lancekeep.domain.identifiers import Identifier
from lancekeep.domain.identity import Identity
from lancekeep.domain.maintenance import MaintenancePolicy


class UpkeepService(Protocol):
    """The maintenance of a catalog; `Upkeep` describes the methods."""

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
    ) -> FsckReport: ...

    def cleanup(
        self,
        older_than: timedelta | float,
        *,
        keep: int = 1,
        grace: timedelta | float = timedelta(days=7),
        tables: Iterable[Identifier] | None = None,
        dry_run: bool = False,
        progress: Progress = lambda done, total, name: None,
    ) -> CleanupReport: ...

    def direct_commits(self, identifier: Identifier, decision: str | None = None) -> DirectCommitsReport: ...

    def relocate(
        self,
        identifier: Identifier,
        location: str,
        *,
        keep: bool = False,
        dry_run: bool = False,
        progress: Progress = lambda done, total, name: None,
    ) -> RelocationReport: ...

    def move_fragments(
        self,
        identifier: Identifier,
        older_than: timedelta | int,
        base: str,
        *,
        dry_run: bool = False,
        progress: Progress = lambda done, total, name: None,
    ) -> TieringReport: ...

    def identity(self) -> Identity | None: ...

    def adopt_identity(self, *, original: bool = False) -> Identity: ...

    def maintain(
        self, policy: MaintenancePolicy, *, dry_run: bool = False, proceed: Callable[[], bool] = lambda: True
    ) -> Iterator[MaintenanceAction]: ...

    def compact(self, identifier: Identifier, *, target_rows: int = 1 << 20) -> Committed | None: ...

    def commit_compaction(self, identifier: Identifier, rewritten: Sequence[Any]) -> Committed: ...

    def export_manifest(self) -> int: ...

    def materialize(self, identifier: Identifier) -> Committed | None: ...

    def migrate(
        self,
        *,
        dry_run: bool = False,
        batch: int = 1000,
        progress: Callable[[MigrationProgress], None] | None = None,
    ) -> MigrationReport: ...

    def migrate_manifest_names(
        self,
        table: Identifier,
        *,
        interrupt_plain_readers: bool = False,
        reader_pause: float = 1.0,
        dry_run: bool = False,
        progress: Progress = lambda done, total, name: None,
    ) -> tuple[RenamedManifests, ...]: ...

    def optimize(self) -> None: ...

    def quotas(self, policy: Sequence[Quota] | None = None) -> list[QuotaUsage]: ...

    def change_commit_store(self, url: str) -> int: ...
