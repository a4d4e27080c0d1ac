"""Commit the transaction of one table without the Lance engine.

Table format, "Conflict Resolution Flow". `Catalog.commit` documents the operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import attrs

from lancekeep.application.ledger import Ledger
from lancekeep.application.tables import Tables
from lancekeep.application.versions import Versions, raise_unless_committed
from lancekeep.domain.commit import Committed, Conflict
from lancekeep.domain.conflicts import Clash, Outcome, conflict
from lancekeep.domain.dataset_files import TRANSACTIONS
from lancekeep.domain.errors import (
    CommitRefused,
    ConcurrentModification,
    Damaged,
    InvalidInput,
    ObjectNotFound,
    Unsupported,
    VersionNotFound,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.operations import Restore, Transaction
from lancekeep.domain.version_row import VersionRow, scheme_of
from lancekeep.format.effects import effect_of
from lancekeep.format.next_version import next_version
from lancekeep.format.table_version import TableVersion, parse_transaction

_ATTEMPTS = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_STABLE_ROW_IDS = 2


class TableTransactions:
    """Commits transactions of single tables.

    Args:
        now: Returns the time in nanoseconds since 1970, for manifests.
    """

    def __init__(
        self, ledger: Ledger, tables: Tables, versions: Versions, *, now: Callable[[], int] = time.time_ns
    ) -> None:
        self._ledger = ledger
        self._tables = tables
        self._versions = versions
        self._now = now

    def commit(self, object_id: ObjectId, transaction: Transaction) -> Committed:
        table = self._tables.find(object_id)
        root = self._versions.dataset_root(table)
        pause = _FIRST_PAUSE
        for _ in range(_ATTEMPTS):
            latest = self._latest(object_id, root, transaction)
            base = self._read(latest)
            self._require_compatible(object_id, root, transaction, base)
            restored = self._restored(object_id, root, transaction)
            following = next_version(base, transaction, self._now(), str(object_id), restored)
            outcome, _ = self._versions.commit_built(table, latest.version + 1, following.serialize())
            if not isinstance(outcome, Conflict):
                committed = raise_unless_committed(outcome, str(object_id))
                return attrs.evolve(committed, transaction=following.manifest.transaction_file)
            self._ledger.commits.retry.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise ConcurrentModification(
            f"{object_id}: other writers committed {_ATTEMPTS} versions in between; nothing was committed. Repeat it "
            "when fewer writers are active"
        )

    def _latest(self, object_id: ObjectId, root: DatasetRoot, transaction: Transaction) -> VersionRow:
        latest = self._ledger.commits.latest(root)
        if latest is None:
            raise VersionNotFound(f"{object_id} has no version; create it with write()")
        if transaction.read_version > latest.version or transaction.read_version < 1:
            raise InvalidInput(
                f"{object_id}: the transaction read version {transaction.read_version}; the table has versions 1 to "
                f"{latest.version}"
            )
        if scheme_of(latest) is not NamingScheme.V2:
            raise Unsupported(f"{object_id}: its manifests have V1 names; commit with the Lance engine")
        return latest

    def _require_compatible(
        self, object_id: ObjectId, root: DatasetRoot, transaction: Transaction, base: TableVersion
    ) -> None:
        """Compare a transaction with those after the version that it read.

        Raises:
            ConcurrentModification: They conflict; the writer reads the table again and repeats the operation.
            CommitRefused: They conflict, and a repetition could mean something else.
        """
        stable = bool(base.manifest.reader_feature_flags & _STABLE_ROW_IDS)
        own = effect_of(transaction, stable_row_ids=stable)
        for version in range(transaction.read_version + 1, base.manifest.version + 1):
            other = base if version == base.manifest.version else self._version(root, version)
            clash = conflict(own, [effect_of(self._transaction(root, other), stable_row_ids=stable)])
            if clash.outcome is not Outcome.COMPATIBLE:
                raise _refusal(object_id, clash, version)

    def _restored(self, object_id: ObjectId, root: DatasetRoot, transaction: Transaction) -> TableVersion | None:
        if not isinstance(transaction.operation, Restore):
            return None
        restored = self._version(root, transaction.operation.version)
        if restored is None:
            raise VersionNotFound(f"{object_id} has no version {transaction.operation.version} to restore")
        return restored

    def _version(self, root: DatasetRoot, version: int) -> TableVersion | None:
        row = self._ledger.commits.get(root, version)
        return None if row is None else self._read(row)

    def _read(self, row: VersionRow) -> TableVersion:
        commits = self._ledger.commits
        try:
            return TableVersion.parse(commits.retry.call(partial(commits.objects.get, row.path)), row.path)
        except ObjectNotFound as error:
            raise ConcurrentModification(f"{row.base_uri}: version {row.version} was removed; read it again") from error

    def _transaction(self, root: DatasetRoot, version: TableVersion | None) -> Transaction | None:
        """Return the transaction of a version, from its manifest or its file; None if it is missing."""
        if version is None or version.transaction is not None or not version.manifest.transaction_file:
            return None if version is None else version.transaction
        commits = self._ledger.commits
        key = f"{root.key}/{TRANSACTIONS}/{version.manifest.transaction_file}"
        try:
            return parse_transaction(commits.retry.call(partial(commits.objects.get, key)), key)
        except (ObjectNotFound, Damaged):
            return None


def _refusal(object_id: ObjectId, clash: Clash, version: int) -> ConcurrentModification | CommitRefused:
    met = "unknown" if clash.committed is None else clash.committed.operation.name.lower().replace("_", " ")
    why = "" if clash.rule is None else f" ({clash.rule.when})"
    said = f"{object_id}: version {version}, {met}, was committed since the transaction read the table{why}"
    if clash.outcome is Outcome.INCOMPATIBLE:
        return CommitRefused(f"{said}. The two are incompatible; nothing was committed")
    return ConcurrentModification(f"{said}. Read the table again and repeat the operation; nothing was committed")
