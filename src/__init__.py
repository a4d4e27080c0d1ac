"""Lancekeep: the catalog and commit layer for Lance tables.

>>> import lancekeep
>>> catalog = lancekeep.connect("./lake", commit_store="sqlite:///var/lib/lake/commits.db")  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lancekeep.application.catalog import Catalog
    from lancekeep.application.certification import Certificate, Check, Result
    from lancekeep.application.commits.commit_rows import CommitRow, CommitRows, StagedCommit
    from lancekeep.application.commits.conflict_count import Conflicts
    from lancekeep.application.commits.unresolved import UnresolvedCommit, UnresolvedCommits
    from lancekeep.application.entries.catalog_changes import CatalogChanges
    from lancekeep.application.entries.dropped import DroppedTable
    from lancekeep.application.entries.tables import Description
    from lancekeep.application.entries.tags import Tags
    from lancekeep.application.events.service import Events
    from lancekeep.application.partitions.namespace import PartitionedNamespace, Partitions
    from lancekeep.application.partitions.scan import Scan
    from lancekeep.application.partitions.writing import PartitionWritePlan, WrittenPartition
    from lancekeep.application.rows.branches import Branches
    from lancekeep.application.rows.described_versions import HistoryEntry, VersionChange
    from lancekeep.application.rows.differences import At, ChangeCounts, Difference, SchemaDifference
    from lancekeep.application.rows.table_data import TableData
    from lancekeep.application.rows.table_scan import TableScan
    from lancekeep.application.rows.table_structure import TableStructure
    from lancekeep.application.rows.table_versions import TableVersions
    from lancekeep.application.rows.transactions import Snapshot, Transaction
    from lancekeep.application.rows.views import Refreshed, Views
    from lancekeep.application.upkeep.backup_report import BackupReport
    from lancekeep.application.upkeep.cleanup_report import CleanupReport, NotCleaned, TableCleanup
    from lancekeep.application.upkeep.copy_report import CatalogCopy, Obstacle
    from lancekeep.application.upkeep.fsck import Finding, FsckReport
    from lancekeep.application.upkeep.held_commits import DirectCommit, DirectCommitsReport
    from lancekeep.application.upkeep.maintenance import MaintenanceAction
    from lancekeep.application.upkeep.manifest_names import RenamedManifests
    from lancekeep.application.upkeep.migration import MigrationProgress, MigrationReport
    from lancekeep.application.upkeep.quota_usage import QuotaUsage
    from lancekeep.application.upkeep.service import Upkeep
    from lancekeep.application.upkeep.table_relocation import RelocationReport
    from lancekeep.application.upkeep.tiering import TieringReport
    from lancekeep.composition import certify, connect
    from lancekeep.domain.authorization import Quota
    from lancekeep.domain.change_feed import CatalogChange, ChangePage
    from lancekeep.domain.commit import Changed, Committed, Conflict, Outcome, Unknown
    from lancekeep.domain.commit_token import CommitToken, CommitUnknown
    from lancekeep.domain.errors import (
        AccessDenied,
        AlreadyExists,
        BranchAlreadyExists,
        BranchNotFound,
        ColumnNotFound,
        CommitRefused,
        CommitStoreMismatch,
        ConcurrentModification,
        CursorExpired,
        Damaged,
        EngineFailed,
        IndexAlreadyExists,
        IndexNotFound,
        InvalidInput,
        LancekeepError,
        LsmRefused,
        LsmWarning,
        MissingExtra,
        NamespaceAlreadyExists,
        NamespaceNotEmpty,
        NamespaceNotFound,
        NotFound,
        Refused,
        Retryable,
        SchemaMismatch,
        StoreUnavailable,
        TableAlreadyExists,
        TableNotFound,
        TagAlreadyExists,
        TagNotFound,
        TransactionNotFound,
        UnsafeStore,
        UnsafeStoreWarning,
        Unsupported,
        VersionNotFound,
        VersionTaken,
        ViewAlreadyExists,
        ViewNotFound,
    )
    from lancekeep.domain.events import Event, EventPage
    from lancekeep.domain.identifiers import ObjectId
    from lancekeep.domain.identity import Identity
    from lancekeep.domain.maintenance import MaintenancePolicy
    from lancekeep.domain.namespace import Namespace
    from lancekeep.domain.partitioning import PartitionBy, PartitionField, PartitionSpec, Transform
    from lancekeep.domain.partitions import Partition
    from lancekeep.domain.table import Table
    from lancekeep.domain.transaction import AllCommitted
    from lancekeep.domain.view import Refresh, SourceVersion, ViewDefinition
    from lancekeep.entrypoints.hashing import Recording, digest
    from lancekeep.entrypoints.index_verification import IndexCounts, VerifiedIndex
    from lancekeep.entrypoints.lost_rows import LostRows, drop_fragments, lost_rows
    from lancekeep.entrypoints.namespace.directory import DirectoryNamespace
    from lancekeep.entrypoints.namespace.hive import HiveNamespace
    from lancekeep.entrypoints.namespace.postgres import PostgresNamespace
    from lancekeep.entrypoints.namespace.rest import RestNamespace
    from lancekeep.entrypoints.verification import Problem, Verification, VerifiedTable, verify
    from lancekeep.format.tags import Tag
    from lancekeep.homes import backup, copy_catalog
    from lancekeep.ports.rows import MergeCounts, MergeRule, Query, RowStats, VectorSearch
    from lancekeep.ports.table_engine import VersionDetails, WritePlan
    from lancekeep.ports.table_structure import Branch, ColumnChange, FieldMetadata, Index, IndexStatistics, NewIndex

__all__ = [
    "AccessDenied",
    "AllCommitted",
    "AlreadyExists",
    "At",
    "BackupReport",
    "Branch",
    "BranchAlreadyExists",
    "BranchNotFound",
    "Branches",
    "Catalog",
    "CatalogChange",
    "CatalogChanges",
    "CatalogCopy",
    "Certificate",
    "ChangeCounts",
    "ChangePage",
    "Changed",
    "Check",
    "CleanupReport",
    "ColumnChange",
    "ColumnNotFound",
    "CommitRefused",
    "CommitRow",
    "CommitRows",
    "CommitStoreMismatch",
    "CommitToken",
    "CommitUnknown",
    "Committed",
    "ConcurrentModification",
    "Conflict",
    "Conflicts",
    "CursorExpired",
    "Damaged",
    "Description",
    "Difference",
    "DirectCommit",
    "DirectCommitsReport",
    "DirectoryNamespace",
    "DroppedTable",
    "EngineFailed",
    "Event",
    "EventPage",
    "Events",
    "FieldMetadata",
    "Finding",
    "FsckReport",
    "HistoryEntry",
    "HiveNamespace",
    "Identity",
    "Index",
    "IndexAlreadyExists",
    "IndexCounts",
    "IndexNotFound",
    "IndexStatistics",
    "InvalidInput",
    "LancekeepError",
    "LostRows",
    "LsmRefused",
    "LsmWarning",
    "MaintenanceAction",
    "MaintenancePolicy",
    "MergeCounts",
    "MergeRule",
    "MigrationProgress",
    "MigrationReport",
    "MissingExtra",
    "Namespace",
    "NamespaceAlreadyExists",
    "NamespaceNotEmpty",
    "NamespaceNotFound",
    "NewIndex",
    "NotCleaned",
    "NotFound",
    "ObjectId",
    "Obstacle",
    "Outcome",
    "Partition",
    "PartitionBy",
    "PartitionField",
    "PartitionSpec",
    "PartitionWritePlan",
    "PartitionedNamespace",
    "Partitions",
    "PostgresNamespace",
    "Problem",
    "Query",
    "Quota",
    "QuotaUsage",
    "Recording",
    "Refresh",
    "Refreshed",
    "Refused",
    "RelocationReport",
    "RenamedManifests",
    "RestNamespace",
    "Result",
    "Retryable",
    "RowStats",
    "Scan",
    "SchemaDifference",
    "SchemaMismatch",
    "Snapshot",
    "SourceVersion",
    "StagedCommit",
    "StoreUnavailable",
    "Table",
    "TableAlreadyExists",
    "TableCleanup",
    "TableData",
    "TableNotFound",
    "TableScan",
    "TableStructure",
    "TableVersions",
    "Tag",
    "TagAlreadyExists",
    "TagNotFound",
    "Tags",
    "TieringReport",
    "Transaction",
    "TransactionNotFound",
    "Transform",
    "Unknown",
    "UnresolvedCommit",
    "UnresolvedCommits",
    "UnsafeStore",
    "UnsafeStoreWarning",
    "Unsupported",
    "Upkeep",
    "VectorSearch",
    "Verification",
    "VerifiedIndex",
    "VerifiedTable",
    "VersionChange",
    "VersionDetails",
    "VersionNotFound",
    "VersionTaken",
    "ViewAlreadyExists",
    "ViewDefinition",
    "ViewNotFound",
    "Views",
    "WritePlan",
    "WrittenPartition",
    "backup",
    "certify",
    "connect",
    "copy_catalog",
    "digest",
    "drop_fragments",
    "lost_rows",
    "verify",
]

_HOMES = {
    "lancekeep.application.catalog": "Catalog",
    "lancekeep.application.certification": "Certificate Check Result",
    "lancekeep.application.upkeep.backup_report": "BackupReport",
    "lancekeep.application.upkeep.catalog_copy": "CatalogCopy Obstacle",
    "lancekeep.application.upkeep.cleanup": "CleanupReport NotCleaned TableCleanup",
    "lancekeep.application.upkeep.held_commits": "DirectCommit DirectCommitsReport",
    "lancekeep.application.upkeep.table_relocation": "RelocationReport",
    "lancekeep.application.upkeep.tiering": "TieringReport",
    "lancekeep.application.upkeep.fsck": "Finding FsckReport",
    "lancekeep.application.upkeep.migration": "MigrationProgress MigrationReport",
    "lancekeep.application.commits.commit_rows": "CommitRow CommitRows StagedCommit",
    "lancekeep.application.commits.conflict_count": "Conflicts",
    "lancekeep.application.commits.unresolved": "UnresolvedCommit UnresolvedCommits",
    "lancekeep.application.partitions.namespace": "PartitionedNamespace Partitions",
    "lancekeep.application.partitions.scan": "Scan",
    "lancekeep.application.partitions.writing": "PartitionWritePlan WrittenPartition",
    "lancekeep.application.entries.tables": "Description",
    "lancekeep.application.rows.differences": "At ChangeCounts Difference SchemaDifference",
    "lancekeep.application.rows.transactions": "Snapshot Transaction",
    "lancekeep.application.rows.described_versions": "HistoryEntry VersionChange",
    "lancekeep.application.rows.branches": "Branches",
    "lancekeep.domain.identity": "Identity",
    "lancekeep.domain.maintenance": "MaintenancePolicy",
    "lancekeep.domain.authorization": "Quota",
    "lancekeep.application.upkeep.quota_usage": "QuotaUsage",
    "lancekeep.application.upkeep.maintenance": "MaintenanceAction",
    "lancekeep.application.upkeep.manifest_names": "RenamedManifests",
    "lancekeep.composition": "certify connect",
    "lancekeep.homes": "backup copy_catalog",
    "lancekeep.domain.transaction": "AllCommitted",
    "lancekeep.application.rows.table_data": "TableData",
    "lancekeep.application.rows.table_scan": "TableScan",
    "lancekeep.application.rows.table_structure": "TableStructure",
    "lancekeep.application.rows.table_versions": "TableVersions",
    "lancekeep.application.rows.views": "Refreshed Views",
    "lancekeep.application.entries.tags": "Tags",
    "lancekeep.application.upkeep.service": "Upkeep",
    "lancekeep.domain.view": "Refresh SourceVersion ViewDefinition",
    "lancekeep.format.tags": "Tag",
    "lancekeep.ports.rows": "MergeCounts MergeRule Query RowStats VectorSearch",
    "lancekeep.ports.table_structure": "Branch ColumnChange FieldMetadata Index IndexStatistics NewIndex",
    "lancekeep.domain.change_feed": "CatalogChange ChangePage",
    "lancekeep.domain.events": "Event EventPage",
    "lancekeep.application.events.service": "Events",
    "lancekeep.domain.commit": "Changed Committed Conflict Outcome Unknown",
    "lancekeep.domain.commit_token": "CommitToken CommitUnknown",
    "lancekeep.application.entries.catalog_changes": "CatalogChanges",
    "lancekeep.application.entries.dropped": "DroppedTable",
    "lancekeep.domain.identifiers": "ObjectId",
    "lancekeep.domain.namespace": "Namespace",
    "lancekeep.domain.partitioning": "PartitionBy PartitionField PartitionSpec Transform",
    "lancekeep.domain.partitions": "Partition",
    "lancekeep.domain.table": "Table",
    "lancekeep.entrypoints.namespace.directory": "DirectoryNamespace",
    "lancekeep.entrypoints.namespace.hive": "HiveNamespace",
    "lancekeep.entrypoints.namespace.postgres": "PostgresNamespace",
    "lancekeep.entrypoints.namespace.rest": "RestNamespace",
    "lancekeep.entrypoints.hashing": "Recording digest",
    "lancekeep.entrypoints.lost_rows": "LostRows drop_fragments lost_rows",
    "lancekeep.entrypoints.index_verification": "IndexCounts VerifiedIndex",
    "lancekeep.entrypoints.verification": "Problem Verification VerifiedTable verify",
    "lancekeep.ports.table_engine": "VersionDetails WritePlan",
}
_HOME = dict.fromkeys(__all__, "lancekeep.domain.errors")
_HOME |= {name: home for home, names in _HOMES.items() for name in names.split()}
_SUBMODULES = ("jobs",)


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that ``import lancekeep`` loads neither pyarrow nor pylance."""
    if name == "__version__":
        from importlib.metadata import version

        return version("lancekeep")
    if name in _SUBMODULES:
        return import_module(f"lancekeep.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names that are not loaded yet, too, so that completion offers them."""
    return sorted({*globals(), *__all__, *_SUBMODULES, "__version__"})
