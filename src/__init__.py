"""Lancekeep: the catalog and commit layer for Lance tables.

>>> import lancekeep
>>> catalog = lancekeep.connect("./lake", commit_store="sqlite:///commits.db")   # doctest: +SKIP
"""

from __future__ import annotations

from lancekeep.application.catalog import Catalog, Description, HistoryEntry
from lancekeep.composition import DirectoryNamespace, connect
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
    VersionNotFound,
    VersionTaken,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.namespace import Namespace
from lancekeep.domain.table import Table
from lancekeep.ports.table_engine import WritePlan

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "Catalog",
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
    "HistoryEntry",
    "InvalidInput",
    "LancekeepError",
    "MissingExtra",
    "Namespace",
    "NamespaceAlreadyExists",
    "NamespaceNotEmpty",
    "NamespaceNotFound",
    "NotFound",
    "ObjectId",
    "Outcome",
    "Refused",
    "Retryable",
    "StoreUnavailable",
    "Table",
    "TableAlreadyExists",
    "TableNotFound",
    "Unknown",
    "UnsafeStore",
    "VersionNotFound",
    "VersionTaken",
    "WritePlan",
    "connect",
]
