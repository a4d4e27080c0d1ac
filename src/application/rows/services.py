"""The protocols of services for rows, of a directory and of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from lancekeep.application.rows.described_versions import HistoryEntry
from lancekeep.application.rows.transaction_records import TransactionRecord
from lancekeep.application.rows.write_checks import Announce, unannounced
from lancekeep.domain.commit import Committed
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.row_rules import Rules
from lancekeep.domain.table import Table
from lancekeep.ports.table_engine import VersionDetails, WritePlan

Result = TypeVar("Result")


class WriteService(Protocol):
    """Writes tables and opens their versions; `Writes` describes the methods."""

    def write(
        self,
        object_id: ObjectId,
        data: Any,
        mode: str,
        properties: Mapping[str, str] | None,
        stable_row_ids: bool | None = None,
    ) -> Committed: ...

    def begin(
        self,
        object_id: ObjectId,
        schema: Any,
        mode: str,
        properties: Mapping[str, str] | None,
        stable_row_ids: bool | None = None,
        location: str | None = None,
    ) -> WritePlan: ...

    def commit_fragments(
        self, plan: WritePlan, fragments: Sequence[Any], properties: Mapping[str, str], *, exactly: bool
    ) -> Committed: ...

    def require_no_new_rows(self, object_id: ObjectId) -> None: ...

    def require_columns_may_change(self, object_id: ObjectId) -> None: ...

    def commit_change(
        self,
        object_id: ObjectId,
        act: Callable[[Any], Any],
        after: int | None = None,
        *,
        branch: str | None = None,
        exactly: bool = False,
        admits: Callable[[Any, int], bool] | None = None,
        checks: Callable[[Any, Rules], None] | None = None,
        rebased: bool = False,
        noted: bool = True,
        indexes: bool = False,
        announce: Announce = unannounced,
    ) -> Committed: ...

    def note(
        self, object_id: ObjectId, branch: str | None, committed: Committed, *, after: int | None = None
    ) -> None: ...

    def examine(
        self, object_id: ObjectId, act: Callable[[Any], Result], version: int | None, branch: str | None
    ) -> Result: ...

    def with_version(self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Table: ...

    def abandon(self, plan: WritePlan) -> None: ...

    def open(self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any: ...

    def handle(self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any: ...

    def describe_version(
        self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None
    ) -> VersionDetails: ...

    def version_at(self, object_id: ObjectId, moment: datetime, branch: str | None) -> int:
        """Return the version that was the latest at a time; see `latest_at`."""

    def entries(self, object_id: ObjectId, versions: Sequence[int], branch: str | None) -> list[HistoryEntry]:
        """Return the history entries of the versions that exist, in the given order."""

    def history(
        self,
        object_id: ObjectId,
        limit: int | None,
        *,
        before: int | None = None,
        branch: str | None = None,
        changes: bool = False,
    ) -> list[HistoryEntry]:
        """Return the latest versions, newest first; see `TableVersions.history`."""


class TransactionRecordService(Protocol):
    """The transactions of the protocol; `TransactionRecords` describes the methods."""

    def describe(self, names: Sequence[str]) -> TransactionRecord: ...

    def settle(self, names: Sequence[str]) -> TransactionRecord: ...
