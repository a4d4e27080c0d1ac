"""Describe, find and restore the versions of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lancekeep.application.entries.services import TableService
from lancekeep.application.rows.changes import change_table
from lancekeep.application.rows.described_versions import HistoryEntry
from lancekeep.application.rows.row_rules import check_stream
from lancekeep.application.rows.services import WriteService
from lancekeep.application.rows.version_times import Moment, moment_of, version_of
from lancekeep.domain.commit import Changed
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.manifest import Manifest
from lancekeep.domain.operations import Restore, Transaction
from lancekeep.domain.row_rules import Rules, columns_of
from lancekeep.format.next_version import has_dictionaries
from lancekeep.format.table_version import parse_manifest
from lancekeep.ports.table_engine import TableEngine, VersionDetails

if TYPE_CHECKING:
    from lancekeep.application.rows.table_transactions import TableTransactions


class TableVersions:
    """The versions of tables: ``catalog.versions``.

    Identifiers are as in `Catalog`. ``branch`` None is the main history. Every method raises `TableNotFound`,
    `BranchNotFound`, `TagNotFound` or `VersionNotFound` if the object does not exist.
    """

    def __init__(
        self,
        tables: TableService,
        writes: WriteService,
        engine: TableEngine,
        transactions: Callable[[], TableTransactions] | None = None,
    ) -> None:
        self._tables = tables
        self._writes = writes
        self._engine = engine
        self._transactions = transactions

    def history(
        self,
        identifier: Identifier,
        limit: int | None = None,
        *,
        before: int | None = None,
        branch: str | None = None,
        changes: bool = False,
    ) -> Sequence[HistoryEntry]:
        """Return the versions of a table, newest first.

        Args:
            identifier: The table.
            limit: The most versions; None for all.
            before: Only versions before this one, for the next page.
            branch: The branch.
            changes: Also find what each version added and removed. Reads one more version. A server does not say it.

        Raises:
            InvalidInput: The limit is negative.
        """
        if limit is not None and limit < 0:
            raise InvalidInput(f"the limit is {limit}; give a number from 0 on, or None for all versions")
        return self._writes.history(ObjectId.of(identifier), limit, before=before, branch=branch, changes=changes)

    def describe(
        self,
        identifier: Identifier,
        version: int | None = None,
        *,
        tag: str | None = None,
        branch: str | None = None,
        timestamp: Moment | None = None,
    ) -> VersionDetails:
        """Return the schema and the counts of a version, chosen as by `Catalog.open`."""
        object_id, writes = ObjectId.of(identifier), self._writes
        return writes.describe_version(
            object_id, version_of(writes, object_id, version, tag, branch, timestamp), tag, branch
        )

    def manifest(
        self, identifier: Identifier, version: int | None = None, *, tag: str | None = None, branch: str | None = None
    ) -> Manifest:
        """Return the manifest of a version, chosen as by `Catalog.open`.

        Its fragments are decoded when they are read, so a manifest of many fragments needs little memory.

        Raises:
            Damaged: The manifest cannot be decoded.
        """
        object_id = ObjectId.of(identifier)
        dataset = self._writes.open(object_id, version, tag, branch)
        return parse_manifest(self._engine.rows.manifest(dataset), str(object_id))

    def at(self, identifier: Identifier, timestamp: Moment, *, branch: str | None = None) -> int:
        """Return the version that was the latest at a time, chosen as by `Catalog.open`."""
        return self._writes.version_at(ObjectId.of(identifier), moment_of(timestamp), branch)

    def restore(
        self,
        identifier: Identifier,
        version: int | None = None,
        *,
        branch: str | None = None,
        timestamp: Moment | None = None,
    ) -> Changed:
        """Commit a new version with the contents of an earlier version.

        Raises the errors of `Catalog.write`.

        Args:
            identifier: The table.
            version: The earlier version.
            branch: The branch to change.
            timestamp: The time at which the earlier version was the latest, as in `Catalog.open`.
        """
        object_id, rows = ObjectId.of(identifier), self._engine.rows
        self._tables.require_replaceable(object_id, "restore")
        if branch is None:
            self._writes.require_no_new_rows(object_id)
        version = version_of(self._writes, object_id, version, None, branch, timestamp)
        if version is None:
            raise InvalidInput(
                f"{object_id}: restore needs a version or a timestamp; catalog.versions.history lists the versions"
            )
        self._writes.with_version(object_id, version, None, branch)  # its error says more than the one of the engine

        checked: list[Any] = []

        def act(dataset: Any) -> Any:
            checked[:] = [dataset]
            return rows.restore(dataset, version, branch)

        def check(dataset: Any, rules: Rules) -> None:
            checked.clear()
            old = self._writes.open(object_id, version, None, branch)
            check_stream(rows.updated(old, {}, None, columns_of(rules)), rules)

        try:
            return change_table(self._writes, self._engine, object_id, act, branch, checks=check)
        except InvalidInput:
            if not checked or branch is not None or self._transactions is None:
                raise
            old = self.manifest(object_id, version)
            if not has_dictionaries(old, old.fields):
                raise
        # The engine restores no version whose dictionaries are in the manifest file (ADR 201).
        read = parse_manifest(rows.manifest(checked[0]), str(object_id))
        transaction = Transaction(read.version, str(uuid4()), operation=Restore(version))
        committed = self._transactions().commit(object_id, transaction, base=read.transaction_file)
        return Changed(committed.version, transaction.uuid)
