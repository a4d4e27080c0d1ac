"""Commit the transaction of one table without the Lance engine.

Table format, "Conflict Resolution Flow". `Catalog.commit` documents the operation.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial

import attrs

from lancekeep.application.concurrency import all_alongside, is_remote
from lancekeep.application.detached_versions import DetachedVersions
from lancekeep.application.ledger import Ledger
from lancekeep.application.rebase import CommittedVersions, Rebase
from lancekeep.application.table_commits import READ_AHEAD, TableCommits
from lancekeep.application.tables import Tables
from lancekeep.application.versions import Versions, raise_unless_committed
from lancekeep.domain.commit import Committed, Conflict
from lancekeep.domain.dataset_files import DATA, TRANSACTIONS
from lancekeep.domain.errors import CommitRefused, ConcurrentModification, InvalidInput, VersionNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import DETACHED
from lancekeep.domain.operations import Restore, Transaction
from lancekeep.domain.version_row import VersionRow, scheme_of
from lancekeep.format.next_version import next_version
from lancekeep.format.table_version import TableVersion, serialize_transaction

_ATTEMPTS = 20
_LOOKED_AT = 16
"""About how many data files are looked for."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class TableTransactions:
    """Commits transactions of single tables.

    Args:
        now: Returns the time in nanoseconds since 1970, for manifests.
        random_bits: Returns a random number of so many bits, for deletion files and detached versions.
    """

    def __init__(
        self,
        ledger: Ledger,
        tables: Tables,
        versions: Versions,
        *,
        now: Callable[[], int] = time.time_ns,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._ledger = ledger
        self._tables = tables
        self._versions = versions
        self._now = now
        self._random_bits = random_bits

    def commit(
        self, object_id: ObjectId, transaction: Transaction, *, base: str | None = None, detached: bool = False
    ) -> Committed:
        table = self._tables.find(object_id)
        root, commits = self._versions.dataset_root(table), self._ledger.commits
        known = CommittedVersions(commits, root)
        if detached:
            return self._commit_detached(object_id, root, known, transaction)
        pause, recorded = _FIRST_PAUSE, None
        latest = self._latest(object_id, root, transaction)
        for _ in range(_ATTEMPTS):
            known.fetch(range(transaction.read_version + 1, latest.version))
            previous = known.read(latest)
            if (committed := _committed_before(known, transaction, latest.version)) is not None:
                return committed
            if recorded is None:
                _require_base(known, transaction.read_version, base)
                self._require_files(object_id, root, transaction)
            rebase = Rebase(str(object_id), known, previous, self._write, partial(self._random_bits, 64))
            rebased = rebase.apply(transaction)
            restored = self._restored(object_id, known, transaction)
            following = next_version(previous, rebased, self._now(), str(object_id), restored)
            if recorded is not rebased:
                self._record(root, rebased)
                recorded = rebased
            scheme = scheme_of(latest)
            outcome, found = self._versions.commit_built(
                table, latest.version + 1, following.serialize(), scheme=scheme
            )
            if not isinstance(outcome, Conflict):
                made = raise_unless_committed(outcome, str(object_id))
                return attrs.evolve(made, transaction=following.manifest.transaction_file)
            if not found:
                found = known.of_winner(latest, outcome.winner)
            if 0 < len(found) < READ_AHEAD:
                latest = known.add(latest, found)
                continue
            commits.retry.sleep(pause * (0.5 + commits.retry.jitter() / 2))
            pause = min(2 * pause, _LONGEST_PAUSE)
            latest = self._latest(object_id, root, transaction)
        raise ConcurrentModification(
            f"{object_id}: other writers committed {_ATTEMPTS} versions in between; nothing was committed. Repeat it "
            "when fewer writers are active"
        )

    def _require_files(self, object_id: ObjectId, root: DatasetRoot, transaction: Transaction) -> None:
        """Refuse new fragments whose data files are not at the table, as after a drop; looks at some of many."""
        files = [file for fragment in transaction.new_fragments for file in fragment.files if file.base_id is None]
        keys = [f"{root.key}/{DATA}/{file.path}" for file in files[:: 1 + len(files) // _LOOKED_AT]]
        commits = self._ledger.commits
        look = partial(_exists, commits)
        found = all_alongside(look, keys) if is_remote(commits.objects) else map(look, keys)
        for key, exists in zip(keys, found, strict=True):
            if not exists:
                raise CommitRefused(
                    f"{object_id}: the transaction adds the data file {key!r}, which does not exist. Nothing was "
                    "committed. If the table was dropped or moved since the rows were written, write them again"
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
        return latest

    def _commit_detached(
        self, object_id: ObjectId, root: DatasetRoot, known: CommittedVersions, transaction: Transaction
    ) -> Committed:
        """Commit a transaction on the version that it read; it conflicts with nothing."""
        base = known.get(transaction.read_version)
        if base is None:
            raise VersionNotFound(f"{object_id} has no version {transaction.read_version} to begin with")
        number = DETACHED | self._random_bits(63)
        restored = self._restored(object_id, known, transaction)
        version = next_version(base, transaction, self._now(), str(object_id), restored, detached=number)
        self._record(root, transaction)
        made = DetachedVersions(self._ledger.commits).create(root, number, version.serialize())
        return attrs.evolve(made, transaction=version.manifest.transaction_file)

    def _record(self, root: DatasetRoot, transaction: Transaction) -> None:
        """Write the transaction file (step 2 of the flow)."""
        self._write(f"{root.key}/{TRANSACTIONS}/{_name_of(transaction)}", serialize_transaction(transaction))

    def _write(self, key: str, content: bytes) -> None:
        commits = self._ledger.commits
        commits.retry.call(lambda: commits.objects.put(key, content))

    def _restored(self, object_id: ObjectId, known: CommittedVersions, transaction: Transaction) -> TableVersion | None:
        if not isinstance(transaction.operation, Restore):
            return None
        restored = known.get(transaction.operation.version)
        if restored is None:
            raise VersionNotFound(f"{object_id} has no version {transaction.operation.version} to restore")
        return restored


def _committed_before(known: CommittedVersions, transaction: Transaction, latest: int) -> Committed | None:
    """Return the version that an earlier attempt at the same transaction committed, if any."""
    for version in range(transaction.read_version + 1, latest + 1):
        found = known.recorded(version)
        if found is not None and found.transaction_file.endswith(f"-{transaction.uuid}.txn"):
            return Committed(version, found.row.path, found.row.size, found.transaction_file)
    return None


def _exists(commits: TableCommits, key: str) -> bool:
    return commits.retry.call(lambda: commits.objects.head(key)) is not None


def _require_base(known: CommittedVersions, read_version: int, base: str | None) -> None:
    """Refuse a transaction that read a version of another table at the same place."""
    if base is None:
        return
    version = known.get(read_version)
    if version is None or version.manifest.transaction_file != base:
        found = "does not exist" if version is None else f"is that of {version.manifest.transaction_file}"
        raise CommitRefused(
            f"{known.root.base_uri}: the transaction read the version {read_version} of {base}; that version "
            f"{found}. Nothing was committed. Read the table again: it may have been dropped and created again"
        )


def _name_of(transaction: Transaction) -> str:
    return f"{transaction.read_version}-{transaction.uuid}.txn"
