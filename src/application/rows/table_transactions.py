"""Commit the transaction of one table without the Lance engine.

Table format, "Conflict Resolution Flow". `Catalog.commit` documents the operation.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from uuid import uuid4

import attrs

from lancekeep.application.commits.detached_versions import DetachedVersions
from lancekeep.application.commits.new_files import begin_facts
from lancekeep.application.commits.rebase import CommittedVersions, Rebase
from lancekeep.application.commits.table_commits import READ_AHEAD
from lancekeep.application.concurrency import in_background
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.tables import Tables
from lancekeep.application.rows.published import PublishedPartitions
from lancekeep.application.rows.versions import Versions, raise_unless_committed
from lancekeep.application.rows.write_checks import Announce, CommitAttempt, unannounced
from lancekeep.domain.added_rows import adds_no_rows
from lancekeep.domain.appends import REBASED
from lancekeep.domain.commit import Committed, Conflict
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.dataset_files import DATA
from lancekeep.domain.errors import (
    CommitRefused,
    ConcurrentModification,
    InvalidInput,
    LancekeepError,
    ObjectNotFound,
    Unsupported,
    VersionNotFound,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Base
from lancekeep.domain.naming import DETACHED
from lancekeep.domain.operations import Restore, Transaction, Update, UpdateBases, without_updates_of_removed
from lancekeep.domain.table import Table, is_reusable
from lancekeep.domain.version_row import VersionRow, scheme_of
from lancekeep.format.file_facts import LEGACY, Facts, file_version
from lancekeep.format.judge import Approved
from lancekeep.format.manifest import transaction_in
from lancekeep.format.next_version import next_version
from lancekeep.format.table_version import TableVersion, serialize_transaction
from lancekeep.ports.table_engine import StagedVersion

_ATTEMPTS = 20
_MODEST = 4
"""The lost attempts after which a committer of appends has to wait; on local files it may always be faster."""
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
        published: PublishedPartitions,
        *,
        now: Callable[[], int] = time.time_ns,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._ledger = ledger
        self._tables = tables
        self._versions = versions
        self._published = published
        self._now = now
        self._random_bits = random_bits

    def commit(
        self,
        object_id: ObjectId,
        transaction: Transaction,
        *,
        base: str | None = None,
        detached: bool = False,
        by_engine: bool = False,
    ) -> Committed:
        """Commit a transaction, as `Catalog.commit` describes.

        Args:
            object_id: The table.
            transaction: The transaction.
            base: The transaction file of the version that the transaction read.
            detached: Commit a detached version.
            by_engine: The engine wrote the new files; they may have the legacy format.
        """
        if not isinstance(transaction, Transaction):
            raise InvalidInput(
                f"{object_id}: commit takes a lancekeep.domain.operations.Transaction, not a "
                f"{type(transaction).__module__}.{type(transaction).__name__}. Nothing was committed"
            )
        if not by_engine:
            _require_judgeable(object_id, transaction)
        try:
            serialize_transaction(transaction)
        except ValueError as error:
            raise InvalidInput(
                f"{object_id}: the transaction does not fit into the table format: {error}. Nothing was committed"
            ) from error
        if detached:
            return self._commit_detached(object_id, transaction)
        read = None if base is None else Base(transaction.read_version, base)
        table = self._tables.find(object_id)
        if not adds_no_rows(transaction.operation):
            self._published.require_no_new_rows(table.id)
        return self._published.commit(table.id, None, lambda: self._commit(table, transaction, read))

    def _commit(
        self,
        table: Table,
        transaction: Transaction,
        base: Base | None,
        *,
        is_staged: bool = False,
        admits: Callable[[int], bool] | None = None,
        announce: Announce = unannounced,
    ) -> Committed:
        object_id = table.id
        self._versions.require_one_scheme(table)
        root, commits = self._versions.dataset_root(table), self._ledger.commits
        known_files = begin_facts(commits, root, transaction, deletions=not is_staged)
        facts: Facts | None = None
        known = CommittedVersions(commits, root)
        pause, recorded = _FIRST_PAUSE, None
        admitted = transaction.read_version if base is None else min(transaction.read_version, base.version)
        since = self._versions.recent()
        with self._versions.lines.handover(object_id) as handover:
            latest = self._latest(object_id, known, transaction, base)
            for attempt in range(_ATTEMPTS):
                previous = known.read(latest)
                named = () if base is None else (base.version,)
                known.fetch([*named, *range(transaction.read_version + 1, latest.version)])
                if (committed := _committed_before(known, transaction, latest.version)) is not None:
                    return committed
                if facts is None:
                    _require_base(known, base)
                    facts = known_files()
                    if newer := handover.wait(root, latest.version, previous.manifest.transaction_file):
                        latest = known.add(latest, newer)
                        continue
                admitted = _require_admitted(object_id, admits, range(admitted + 1, latest.version + 1)) or admitted
                rebase = Rebase(str(object_id), known, previous, self._write, partial(self._random_bits, 64))
                rebased = rebase.apply(transaction)
                restored = self._restored(object_id, known, transaction)
                following = next_version(previous, rebased, self._now(), str(object_id), restored, facts=facts)
                self._require_files(object_id, rebased, following)
                if isinstance(rebased.operation, Update):
                    following = commits.settled_indexes.approved(root, previous, following)
                if recorded != (written := transaction_in(following.content)):  # it may state numbers of new fragments
                    commits.record_transaction(root, following)  # step 2 of the flow
                    recorded = written
                scheme = scheme_of(latest)
                after = root, latest.version, previous.manifest.transaction_file
                outcome, found = self._versions.commit_built(
                    table, following, since, scheme=scheme, announce=_announcing(announce, after, following)
                )
                if not isinstance(outcome, Conflict):
                    made = raise_unless_committed(outcome, str(object_id))
                    handover.follow(root, following)
                    if attempt > _MODEST:
                        self._versions.lines.note_other(object_id, won=True)
                    return attrs.evolve(made, transaction=following.transaction)
                handover.end()
                if attempt == _MODEST:
                    # A committer of appends gives way until the next attempt.
                    self._versions.lines.note_other(object_id, won=False, for_one_turn=True)
                if not found:
                    found = known.of_winner(latest, outcome.winner)
                if 0 < len(found) < READ_AHEAD:
                    latest = known.add(latest, found)
                else:
                    commits.retry.sleep(pause * (0.5 + commits.retry.jitter() / 2))
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    latest = self._latest(object_id, known, transaction, base)
                if is_reusable(table.location):
                    known.require_kept(previous)
        raise ConcurrentModification(
            f"{object_id}: other writers committed {_ATTEMPTS} versions in between; nothing was committed. Repeat the "
            "commit when fewer writers are active"
        )

    def require_own_indexes(self, object_id: ObjectId) -> None:
        """Raise `Unsupported` if the engine would lose an index by rewriting it.

        It writes the files of a clone's index to the clone, and names the directory of the source.

        Raises:
            Unsupported: An index of the latest version has its files in another table.
        """
        commits = self._ledger.commits
        known = CommittedVersions(commits, self._versions.dataset_root(self._tables.find(object_id)))
        latest = commits.latest(known.root)
        foreign = next((i.name for i in known.read(latest).indices if i.base_id is not None), None) if latest else None
        if foreign is not None:
            raise Unsupported(
                f"{object_id}: the index {foreign} reads files of the table that was cloned, and the Lance engine "
                "cannot rewrite it here. Call materialize() first, or build the index again; nothing was committed"
            )

    def set_base_paths(self, object_id: ObjectId, paths: Mapping[int, str]) -> Committed:
        table = self._tables.find(object_id)
        known = CommittedVersions(self._ledger.commits, self._versions.dataset_root(table))
        latest = self._ledger.commits.latest(known.root)
        if latest is None:
            raise VersionNotFound(f"{object_id} has no version; create it with write()")
        version = known.read(latest).manifest
        bases = {base.id: base for base in version.base_paths}
        if unknown := paths.keys() - bases.keys():
            found = ", ".join(f"{base.id} ({base.path})" for _, base in sorted(bases.items())) or "none"
            raise InvalidInput(
                f"{object_id} has no base path {min(unknown)!r} to change. Its latest version {latest.version} has the "
                f"base paths: {found}. Nothing was committed"
            )
        new = [attrs.evolve(bases[number], path=self._versions.base_paths.uri(path)) for number, path in paths.items()]
        changed = tuple(base for base in new if base != bases[base.id])
        if not changed:
            return Committed(latest.version, latest.path, latest.size or 0, version.transaction_file)
        transaction = Transaction(latest.version, str(uuid4()), operation=UpdateBases(changed))
        return self._published.commit(table.id, None, lambda: self._commit(table, transaction, None))

    def _require_files(self, object_id: ObjectId, transaction: Transaction, built: Approved) -> None:
        """Check that a version finds its files at the base paths that its transaction changes."""
        if isinstance(transaction.operation, UpdateBases):
            paths = [base.path for base in transaction.operation.new_bases]
            self._versions.base_paths.require_files(object_id, paths, built.content)

    def commit_staged(
        self,
        object_id: ObjectId,
        staged: StagedVersion,
        base: Base,
        admits: Callable[[int], bool] | None = None,
        announce: Announce = unannounced,
    ) -> Committed:
        """Commit the transaction of a staged version, and remove the staged manifest.

        Args:
            object_id: The table.
            staged: A version that the engine has staged.
            base: The version that the engine took.
            admits: Whether a version that was committed since may come between; None for every compatible one.
            announce: Is called before each attempt.

        Raises:
            ConcurrentModification, CommitRefused, Unsupported, CommitUnknown: As `commit`.
            CommitRefused: Also if the table was dropped or renamed in between.
        """
        commits, table, found = self._ledger.commits, self._tables.find(object_id), None
        root = self._versions.dataset_root(table)
        if staged.path.startswith(root.versions_key):
            with suppress(ObjectNotFound):
                found = TableVersion.parse(commits.retry.call(partial(commits.objects.get, staged.path)), staged.path)
        with suppress(RuntimeError):  # the system starts no thread
            in_background(partial(self._remove, staged.path))
        transaction = CommittedVersions(commits, root).transaction(found)
        if transaction is None:
            raise CommitRefused(
                f"{object_id}: the table was dropped or renamed during the change; nothing was committed. Change the "
                "right table again"
            )
        properties = {**transaction.transaction_properties, **dict([REBASED])}
        operation = without_updates_of_removed(transaction.operation)
        rebased = attrs.evolve(transaction, operation=operation, transaction_properties=properties)
        return self._commit(table, rebased, base, is_staged=True, admits=admits, announce=announce)

    def root(self, object_id: ObjectId) -> DatasetRoot:
        """Return the root of a table before a change.

        Raises:
            Damaged: As `Versions.require_one_scheme`.
        """
        table = self._tables.find(object_id)
        self._versions.require_one_scheme(table)
        return self._versions.dataset_root(table)

    def remove_data_files(self, root: DatasetRoot, names: Iterable[str]) -> None:
        """Remove data files that no version names."""
        for name in names:
            self._remove(f"{root.key}/{DATA}/{name}")

    def _remove(self, key: str) -> None:
        with suppress(LancekeepError):  # clean-up removes it later
            self._ledger.commits.objects.delete(key)

    def _latest(
        self, object_id: ObjectId, known: CommittedVersions, transaction: Transaction, base: Base | None
    ) -> VersionRow:
        latest = self._ledger.commits.latest(known.root)
        if latest is None:
            self._tables.find(object_id)  # it may have been renamed or dropped since
            raise VersionNotFound(f"{object_id} has no version; create it with write()")
        if transaction.read_version > latest.version or transaction.read_version < 1:
            _require_base(known, base)
            raise InvalidInput(
                f"{object_id}: the transaction read version {transaction.read_version}; the table has versions 1 to "
                f"{latest.version}"
            )
        return latest

    def _commit_detached(self, object_id: ObjectId, transaction: Transaction) -> Committed:
        """Commit a transaction on the version that it read; it conflicts with nothing."""
        table = self._tables.find(object_id)
        self._versions.require_one_scheme(table)
        root = self._versions.dataset_root(table)
        known = CommittedVersions(self._ledger.commits, root)
        base = known.get(transaction.read_version)
        if base is None:
            raise VersionNotFound(f"{object_id} has no version {transaction.read_version} to begin with")
        number = DETACHED | self._random_bits(63)
        restored = self._restored(object_id, known, transaction)
        facts = begin_facts(self._ledger.commits, root, transaction)()
        version = next_version(base, transaction, self._now(), str(object_id), restored, detached=number, facts=facts)
        self._require_files(object_id, transaction, version)
        self._ledger.commits.record_transaction(root, version)
        made = self._versions.commit_detached(table, None, partial(DetachedVersions.create, built=version))
        commits = self._ledger.commits
        read = commits.get(root, transaction.read_version)
        if read is None or commits.retry.call(partial(commits.objects.head, read.path)) is None:
            commits.retry.call(partial(commits.objects.delete, made.path))
            raise ConcurrentModification(
                f"{object_id}: version {transaction.read_version}, which the transaction read, was removed, and its "
                "files may be, too; nothing was committed. Read the table again"
            )
        return attrs.evolve(made, transaction=version.transaction)

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


def _require_judgeable(object_id: ObjectId, transaction: Transaction) -> None:
    """Raise `Unsupported` for files whose footers do not state their rows and columns."""
    for file in (file for each in transaction.new_fragments for file in each.files):
        if file_version(file.file_major_version, file.file_minor_version) == LEGACY:
            raise Unsupported(
                f"{object_id}: the data file {file.path!r} has the legacy format, whose footer does not state rows and "
                "columns, so it cannot be checked. Add its rows by write(); nothing was committed"
            )


def _announcing(
    announce: Announce, after: tuple[DatasetRoot, int, str], built: Approved
) -> Callable[[Callable[[], CommitToken]], object]:
    """Return what announces an attempt by its token."""
    return lambda token: announce(CommitAttempt(after, built.number, built.transaction, token))


def _committed_before(known: CommittedVersions, transaction: Transaction, latest: int) -> Committed | None:
    """Return the version that an earlier attempt at the same transaction committed, if any."""
    for version in range(transaction.read_version + 1, latest + 1):
        found = known.recorded(version)
        if found is not None and found.transaction_file.endswith(f"-{transaction.uuid}.txn"):
            return Committed(version, found.row.path, found.row.size, found.transaction_file)
    return None


def _require_admitted(object_id: ObjectId, admits: Callable[[int], bool] | None, versions: Iterable[int]) -> int | None:
    """Check that versions of other writers may come between; return the last one.

    Raises:
        ConcurrentModification: One may not.
    """
    last = None
    for last in versions:
        if admits is not None and not admits(last):
            raise ConcurrentModification(
                f"{object_id}: another writer has committed version {last} since; nothing of this call was committed"
            )
    return last


def _require_base(known: CommittedVersions, base: Base | None) -> None:
    """Refuse a transaction that read a version of another table at the same place."""
    if base is None:
        return
    recorded = known.recorded(base.version)
    if recorded is None or recorded.transaction_file != base.transaction:
        found = "does not exist" if recorded is None else f"is the version of {recorded.transaction_file}"
        raise CommitRefused(
            f"{known.root.base_uri}: the transaction read the version {base.version} of {base.transaction}; that "
            f"version {found}. Nothing was committed. Read the table again: it may have been dropped and created again"
        )
