"""Rebase a transaction on the versions committed since it read its table.

Table format, "Conflict Resolution Flow", step 3. `lancekeep.domain.conflicts` decides; this module reads what the
decision needs, and merges the deletions of two transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import attrs
import numpy as np
from pyroaring import BitMap

from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.concurrency import all_alongside, is_remote
from lancekeep.domain.conflicts import Clash, Effect, Outcome, When, conflict
from lancekeep.domain.dataset_files import DELETIONS, TRANSACTIONS, deletion_file_name
from lancekeep.domain.errors import CommitRefused, ConcurrentModification, Damaged, ObjectNotFound
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Operation
from lancekeep.domain.manifest import DeletionFile, DeletionFileType, Fragment
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.operations import Delete, Transaction, Update
from lancekeep.domain.version_row import VersionRow, scheme_of
from lancekeep.format import deletions
from lancekeep.format.effects import effect_of
from lancekeep.format.table_version import TableVersion, parse_transaction

_HELD = 4
"""The manifests in memory: the latest, and the manifests that a merge of deletions compares."""
_STABLE_ROW_IDS = 2
_NO_CLASH = Clash(Outcome.COMPATIBLE)
_DELETES = frozenset({Operation.DELETE, Operation.UPDATE})


class Recorded(NamedTuple):
    """What is kept of each version that was read.

    Attributes:
        row: Its row.
        transaction_file: The name of its transaction file.
        transaction: Its transaction; None if it has none, or it cannot be read.
    """

    row: VersionRow
    transaction_file: str
    transaction: Transaction | None


class CommittedVersions:
    """Reads the versions of one table, and holds the manifests of a few."""

    def __init__(self, commits: TableCommits, root: DatasetRoot) -> None:
        self._commits = commits
        self.root = root
        self._rows: dict[int, VersionRow] = {}
        self._read: dict[int, TableVersion] = {}
        self._recorded: dict[int, Recorded | None] = {}

    def row(self, version: int) -> VersionRow | None:
        """Return the row of a version; None if it does not exist."""
        if version not in self._rows:
            found = self._commits.get(self.root, version)
            if found is None:
                return None
            self._rows[version] = found
        return self._rows[version]

    def get(self, version: int) -> TableVersion | None:
        """Return a version; None if it does not exist."""
        row = self.row(version)
        return None if row is None else self.read(row)

    def fetch(self, versions: Iterable[int]) -> None:
        """Record versions, several at a time on remote storage."""
        missing = [version for version in versions if version not in self._recorded]
        remote = len(missing) > 1 and is_remote(self._commits.objects)
        found = all_alongside(self._record, missing) if remote else map(self._record, missing)
        self._recorded.update(zip(missing, found, strict=True))

    def recorded(self, version: int) -> Recorded | None:
        """Return the record of a version; None if it does not exist."""
        self.fetch([version])
        return self._recorded[version]

    def _record(self, version: int) -> Recorded | None:
        row = self._rows.get(version) or self._commits.get(self.root, version)
        if row is None:
            return None
        found = self._read.get(version) or TableVersion.parse(self.content(row), row.path)
        return Recorded(row, found.manifest.transaction_file, self.transaction(found))

    def add(self, latest: VersionRow, contents: Iterable[bytes]) -> VersionRow:
        """Add the versions that follow ``latest``, and return the last row.

        Args:
            latest: The row of a version.
            contents: The manifests of the next versions, in order.
        """
        for content in contents:
            version = latest.version + 1
            path = self.root.manifest_key(version, scheme_of(latest) or NamingScheme.V2)
            latest = attrs.evolve(latest, version=version, path=path, size=len(content))
            self._hold(latest, content)
        return latest

    def of_winner(self, latest: VersionRow, winner: VersionRow | None) -> Sequence[bytes]:
        """Return the manifest of the version after ``latest``, if it is the winner's.

        Empty if another writer has the version, or if the winner's file has another name by now.
        """
        if winner is not None and winner.version == latest.version + 1:
            with suppress(ObjectNotFound):
                return [self._commits.lineage.read(self.root, winner)]
        return []

    def read(self, row: VersionRow) -> TableVersion:
        """Return the version of a row. Raises as `content`."""
        if row.version not in self._read:
            self._hold(row, self.content(row))
        return self._read[row.version]

    def _hold(self, row: VersionRow, content: bytes) -> None:
        self._rows[row.version] = row
        self._read[row.version] = TableVersion.parse(content, row.path)
        if len(self._read) > _HELD:
            first = next(iter(self._read))
            self.fetch([first])
            del self._read[first]

    def content(self, row: VersionRow) -> bytes:
        """Return the manifest file of a row.

        Raises:
            ConcurrentModification: Garbage collection removed the version in between.
        """
        try:
            return self._commits.lineage.read(self.root, row)
        except ObjectNotFound as error:
            raise ConcurrentModification(f"{row.base_uri}: version {row.version} was removed; read it again") from error

    def transaction(self, version: TableVersion | None) -> Transaction | None:
        """Return the transaction of a version, or None.

        It is in the manifest or in its file.
        """
        if version is None or version.transaction is not None or not version.manifest.transaction_file:
            return None if version is None else version.transaction
        key = f"{self.root.key}/{TRANSACTIONS}/{version.manifest.transaction_file}"
        try:
            return parse_transaction(self._content(key), key)
        except (ObjectNotFound, Damaged):
            return None

    def require_kept(self, version: TableVersion) -> None:
        """Check that a version still exists.

        Then the versions after it are of the same table.

        Raises:
            ConcurrentModification: It was removed, perhaps with the table.
        """
        number, transaction = version.manifest.version, version.manifest.transaction_file
        if not self._commits.lineage.keeps_files(self.root, self._rows[number], transaction):
            raise ConcurrentModification(
                f"{self.root.base_uri}: version {number} was removed. The table was dropped, and perhaps created "
                "again, or cleaned up. Nothing was committed; read the table again"
            )

    def deleted(self, fragment: Fragment) -> BitMap:
        """Return the deleted rows of a fragment, as offsets.

        Raises:
            Damaged: The deletion file is damaged.
            ObjectNotFound: The deletion file does not exist.
        """
        file = fragment.deletion_file
        if file is None:
            return BitMap()
        bitmap = file.file_type is DeletionFileType.BITMAP
        key = self.deletion_key(deletion_file_name(fragment.id, file.read_version, file.id, bitmap=bitmap))
        return BitMap(deletions.read(self._content(key), file, fragment.physical_rows, key))

    def deletion_key(self, name: str) -> str:
        """Return the key of a deletion file of the table."""
        return f"{self.root.key}/{DELETIONS}/{name}"

    def _content(self, key: str) -> bytes:
        content: bytes = self._commits.retry.call(partial(self._commits.objects.get, key))
        return content


@attrs.frozen
class Rebase:
    """One transaction, to be committed after the latest version.

    Attributes:
        name: The table, for messages.
        versions: The versions of the table.
        latest: The latest version.
        write: Writes a deletion file.
        number: Returns the random number of a deletion file.
    """

    name: str
    versions: CommittedVersions
    latest: TableVersion
    write: Callable[[str, bytes], object]
    number: Callable[[], int]

    def apply(self, transaction: Transaction) -> Transaction:
        """Return the transaction as it follows the latest version.

        Raises:
            ConcurrentModification: It conflicts with another commit; read the table again and repeat the operation.
            CommitRefused: It conflicts, and a repetition could mean something else.
        """
        since = range(transaction.read_version + 1, self.latest.manifest.version + 1)
        clashes = [(self._compare(transaction, version), version) for version in since]
        worst, version = max(clashes, key=lambda each: each[0].outcome, default=(_NO_CLASH, 0))
        if worst.outcome > Outcome.REBASABLE:
            raise _refusal(self.name, worst, version)
        return self._merged(transaction) if worst.outcome is Outcome.REBASABLE else transaction

    def _compare(self, transaction: Transaction, version: int) -> Clash:
        recorded = self.versions.recorded(version)
        other = None if recorded is None else recorded.transaction
        stable = bool(self.latest.manifest.reader_feature_flags & _STABLE_ROW_IDS)
        mine, theirs = effect_of(transaction, stable_row_ids=stable), effect_of(other, stable_row_ids=stable)
        clash = conflict(mine, [theirs])
        if clash.outcome is Outcome.RETRYABLE and {mine.operation, theirs.operation} <= _DELETES:
            mine = self._with_rows(mine, transaction, transaction.read_version, theirs)
            theirs = self._with_rows(theirs, other, version - 1, mine)
            return conflict(mine, [theirs])
        return clash

    def _with_rows(self, effect: Effect, transaction: Transaction | None, before: int, other: Effect) -> Effect:
        """Add the rows that a transaction deletes in fragments that the other transaction changes, if known."""
        assert transaction is not None  # a missing transaction has no operation that deletes rows
        assert isinstance(transaction.operation, Delete | Update)
        previous = self._fragments(before, other.changed)
        rows = {}
        for fragment in transaction.operation.updated_fragments:
            if fragment.id in other.changed:
                files = fragment.deletion_file, previous[fragment.id].deletion_file if fragment.id in previous else None
                if fragment.id not in previous or any(file and file.base_id is not None for file in files):
                    return effect
                rows[fragment.id] = self.versions.deleted(fragment) - self.versions.deleted(previous[fragment.id])
        return attrs.evolve(effect, deleted=rows)

    def _fragments(self, version: int, ids: frozenset[int]) -> Mapping[int, Fragment]:
        found = self.versions.get(version)
        return {} if found is None else {each.id: each for each in found.manifest.fragments if each.id in ids}

    def _merged(self, transaction: Transaction) -> Transaction:
        """Return a delete or update that also marks the rows that others have deleted since.

        The engine records such changes in this way.
        """
        operation, version = transaction.operation, self.latest.manifest.version
        assert isinstance(operation, Delete | Update)
        ids = frozenset(fragment.id for fragment in operation.updated_fragments)
        before, after = self._fragments(transaction.read_version, ids), self._fragments(version, ids)
        updated: list[Fragment] = []
        emptied: list[int] = []
        for fragment in operation.updated_fragments:
            if after[fragment.id] == before[fragment.id]:
                updated.append(fragment)
                continue
            rows = self.versions.deleted(fragment) | self.versions.deleted(after[fragment.id])
            if len(rows) == fragment.physical_rows:
                emptied.append(fragment.id)
                continue
            kind = DeletionFileType.BITMAP
            file = DeletionFile(kind, read_version=version, id=self.number(), num_deleted_rows=len(rows))
            name = deletion_file_name(fragment.id, version, file.id, bitmap=True)
            self.write(self.versions.deletion_key(name), deletions.write(np.array(rows.to_array(), np.uint32), kind))
            updated.append(attrs.evolve(after[fragment.id], deletion_file=file))
        if isinstance(operation, Update):
            removed = (*operation.removed_fragment_ids, *emptied)
            merged: Delete | Update = attrs.evolve(operation, removed_fragment_ids=removed)
        else:
            merged = attrs.evolve(operation, deleted_fragment_ids=(*operation.deleted_fragment_ids, *emptied))
        merged = attrs.evolve(merged, updated_fragments=tuple(updated))
        return attrs.evolve(transaction, read_version=version, operation=merged)


def _refusal(name: str, clash: Clash, version: int) -> ConcurrentModification | CommitRefused:
    met = "unknown" if clash.committed is None else clash.committed.operation.name.lower().replace("_", " ")
    why = "" if clash.rule is None or clash.rule.when is When.ALWAYS else f" ({clash.rule.when})"
    said = f"{name}: version {version}, {met}, was committed since the transaction read the table{why}"
    if clash.outcome is Outcome.INCOMPATIBLE:
        return CommitRefused(
            f"{said}. The two are incompatible; nothing was committed. Open the table again, and repeat the change if "
            "it still means the same"
        )
    return ConcurrentModification(f"{said}. Read the table again and repeat the operation; nothing was committed")
