"""Lancekeep: the catalog and commit layer for Lance tables.

>>> import lancekeep
>>> catalog = lancekeep.connect("./lake", commit_store="sqlite:///var/lib/lake/commits.db")  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lancekeep.application.catalog import Catalog, Description, HistoryEntry
from lancekeep.application.certification import Certificate, Check, Result
from lancekeep.application.cleanup import CleanupReport, NotCleaned, TableCleanup
from lancekeep.application.maintenance import Finding, FsckReport
from lancekeep.application.migration import MigrationProgress, MigrationReport
from lancekeep.application.partitions import PartitionedNamespace, Scan
from lancekeep.application.transactions import Snapshot, Transaction
from lancekeep.domain.batch import AllCommitted
from lancekeep.domain.commit import Committed, CommitToken, Conflict, Outcome, Unknown
from lancekeep.domain.errors import (
    AccessDenied,
    AlreadyExists,
    CommitRefused,
    CommitStoreMismatch,
    CommitUnknown,
    ConcurrentModification,
    Damaged,
    InvalidInput,
    LancekeepError,
    MissingExtra,
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NotFound,
    Refused,
    Retryable,
    StoreUnavailable,
    TableAlreadyExists,
    TableNotFound,
    UnsafeStore,
    UnsafeStoreWarning,
    Unsupported,
    VersionNotFound,
    VersionTaken,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.namespace import Namespace
from lancekeep.domain.partitioning import PartitionBy, PartitionField, PartitionSpec, Transform
from lancekeep.domain.partitions import Partition
from lancekeep.domain.table import Table
from lancekeep.ports.table_engine import VersionDetails, WritePlan

if TYPE_CHECKING:
    from lancekeep.composition import DirectoryNamespace, certify, connect

__all__ = [
    "AccessDenied",
    "AllCommitted",
    "AlreadyExists",
    "Catalog",
    "Certificate",
    "Check",
    "CleanupReport",
    "CommitRefused",
    "CommitStoreMismatch",
    "CommitToken",
    "CommitUnknown",
    "Committed",
    "ConcurrentModification",
    "Conflict",
    "Damaged",
    "Description",
    "DirectoryNamespace",
    "Finding",
    "FsckReport",
    "HistoryEntry",
    "InvalidInput",
    "LancekeepError",
    "MigrationProgress",
    "MigrationReport",
    "MissingExtra",
    "Namespace",
    "NamespaceAlreadyExists",
    "NamespaceNotEmpty",
    "NamespaceNotFound",
    "NotCleaned",
    "NotFound",
    "ObjectId",
    "Outcome",
    "Partition",
    "PartitionBy",
    "PartitionField",
    "PartitionSpec",
    "PartitionedNamespace",
    "Refused",
    "Result",
    "Retryable",
    "Scan",
    "Snapshot",
    "StoreUnavailable",
    "Table",
    "TableAlreadyExists",
    "TableCleanup",
    "TableNotFound",
    "Transaction",
    "Transform",
    "Unknown",
    "UnsafeStore",
    "UnsafeStoreWarning",
    "Unsupported",
    "VersionDetails",
    "VersionNotFound",
    "VersionTaken",
    "WritePlan",
    "certify",
    "connect",
]


def __getattr__(name: str) -> Any:
    """What needs the native engine is loaded when it is first asked for: workers on Spark never do."""
    if name in ("DirectoryNamespace", "certify", "connect"):
        from lancekeep import composition

        return getattr(composition, name)
    if name == "jobs":
        return import_module("lancekeep.jobs")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
