"""Describe and settle transactions, as the namespace interface names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

import attrs

from lancekeep.application.commits.tokens import parse_token
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.tables import Tables
from lancekeep.application.rows.versions import Versions, raise_unless_committed
from lancekeep.application.rows.writes import Writes
from lancekeep.domain.commit import Committed, Conflict, Unknown
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import InvalidInput, ObjectNotFound, TransactionNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.transaction import AllCommitted
from lancekeep.format.manifest import message_at, transaction_name
from lancekeep.ports.table_engine import TableEngine

SUCCEEDED, FAILED, RUNNING = "SUCCEEDED", "FAILED", "RUNNING"
STATUSES = (SUCCEEDED, FAILED, RUNNING, "QUEUED", "CANCELED")
"""The statuses of the specification. The last two do not occur: a commit neither waits nor is withdrawn."""

_TRANSACTIONS = "_transactions/"
_VERSION = re.compile("[0-9]{1,18}")
_UUID = re.compile("[0-9a-f-]{36}")
_FILE = re.compile(r"(\d+)-([0-9a-f-]{36})\.txn")


@attrs.frozen
class TransactionRecord:
    """The status of a transaction, and what is known of it."""

    status: str
    properties: Mapping[str, str]

    @property
    def has_ended(self) -> bool:
        """Whether the status is final."""
        return self.status in (SUCCEEDED, FAILED)


class TransactionRecords:
    """Finds transactions by their ids.

    The id of a committed transaction is its table's names and the uuid in the name of its transaction file, or the
    number of its version. The id of a commit of unknown outcome is its token alone.
    """

    def __init__(
        self, ledger: Ledger, places: Places, tables: Tables, versions: Versions, writes: Writes, engine: TableEngine
    ) -> None:
        self._ledger = ledger
        self._places = places
        self._tables = tables
        self._versions = versions
        self._writes = writes
        self._engine = engine

    def describe(self, names: Sequence[str]) -> TransactionRecord:
        """Return the record of a transaction.

        A transaction file that no version names is `RUNNING`: its writer is still running, or has crashed.

        Raises:
            TransactionNotFound: There is no such transaction.
            TableNotFound: The table does not exist.
        """
        if len(names) > 1:
            return self._of_table(ObjectId.of(list(names[:-1])), names[-1])
        token, gone = self._token(names)
        if gone:
            return TransactionRecord(RUNNING, {**_members(token), "reason": gone})
        if not any(self._is_taken(staged.base_uri, staged.version) for staged in token.members):
            return TransactionRecord(RUNNING, _members(token))
        return _record(token, self._versions.resolve(token))  # every version is decided, so this commits nothing

    def settle(self, names: Sequence[str]) -> TransactionRecord:
        """Complete a commit of unknown outcome. Idempotent.

        Raises:
            VersionTaken: Another writer has the version.
            CommitUnknown: The outcome is still unknown.
            InvalidInput: The transaction has no token.
        """
        if len(names) > 1:
            raise InvalidInput(
                f"{'.'.join(names)}: only the writer of a transaction can commit it; give the token of the commit"
            )
        token, _ = self._token(names)
        outcome = self._versions.resolve(token)
        if not isinstance(outcome, AllCommitted):
            raise_unless_committed(outcome, token.staged.base_uri)
        return _record(token, outcome)

    def _token(self, names: Sequence[str]) -> tuple[CommitToken, str]:
        """Return the token in an id, and the reason why it cannot be settled."""
        try:
            token = CommitToken.parse("".join(names))
        except InvalidInput as error:
            raise TransactionNotFound(
                "the id of a transaction is the id of its table with the uuid of its transaction file, or the token "
                f"of a commit of unknown outcome; found {list(names)!r:.200}"
            ) from error
        return parse_token(token, self._ledger.view(), self._places.base_uri, self._places.dataset_root)

    def _is_taken(self, base_uri: str, version: int) -> bool:
        commits = self._ledger.commits
        return commits.retry.call(lambda: commits.rows.get(base_uri, version)) is not None

    # -- transactions of tables ---------------------------------------------------------------------------------

    def _of_table(self, object_id: ObjectId, name: str) -> TransactionRecord:
        """Return the record of a table's transaction; ``name`` is its uuid, or the number of its version."""
        main = self._places.dataset_root(self._tables.find(object_id))
        if _VERSION.fullmatch(name):
            file = self._file_of(main, int(name))
            if file:
                return self._committed(object_id, None, int(name), file)
            raise TransactionNotFound(f"the table {object_id} has no version {name}")
        for root in self._histories(main):
            file = self._file(root, name)
            if file is not None:
                return self._in_history(object_id, root, file)
        if _UUID.fullmatch(name) and (found := self._without_file(main, name)):
            return self._committed(object_id, None, *found)
        raise TransactionNotFound(f"the table {object_id} has no transaction {name[:80]!r}")

    def _histories(self, root: DatasetRoot) -> Sequence[DatasetRoot]:
        return self._ledger.commits.retry.call(partial(self._ledger.commits.histories, root))

    def _file(self, root: DatasetRoot, uuid: str) -> str | None:
        """Return the name of the transaction file with a uuid; None if the history has none."""
        prefix = f"{root.key}/{_TRANSACTIONS}"

        def look() -> str | None:
            names = (info.key[len(prefix) :] for info in self._places.objects.list(prefix))
            return next((name for name in names if (file := _FILE.fullmatch(name)) and file[2] == uuid), None)

        return self._ledger.commits.retry.call(look)

    def _without_file(self, root: DatasetRoot, uuid: str) -> tuple[int, str] | None:
        """Return the version whose manifest names a transaction, and its file's name. The latest version is read first.

        A group of appends writes no transaction file: its manifest holds the transaction.
        """
        latest = self._ledger.commits.latest(root)
        for version in range(latest.version if latest else 0, 0, -1):
            file = self._file_of(root, version)
            if file and (named := _FILE.fullmatch(file)) and named[2] == uuid:
                return version, file
        return None

    def _in_history(self, object_id: ObjectId, root: DatasetRoot, file: str) -> TransactionRecord:
        """Return the record of a transaction. Its version, if any, follows the version that it has read."""
        branch = root.key.partition(f"/{BRANCHES}/")[2] if root.is_branch else None
        read_version = int(file.partition("-")[0])
        latest = self._ledger.commits.latest(root)
        for version in range(max(1, read_version), (latest.version if latest else 0) + 1):
            if self._file_of(root, version) == file:
                return self._committed(object_id, branch, version, file)
        return TransactionRecord(RUNNING, _named(branch, file))

    def _committed(self, object_id: ObjectId, branch: str | None, version: int, file: str) -> TransactionRecord:
        operation = self._writes.examine(object_id, self._engine.structure.operation, version, branch)
        return TransactionRecord(SUCCEEDED, {**_named(branch, file), "version": str(version), "operation": operation})

    def _file_of(self, root: DatasetRoot, version: int) -> str | None:
        """Return the name of the transaction file that a version names; None without the version."""
        row = self._ledger.commits.get(root, version)
        if row is None:
            return None
        try:
            content = self._ledger.commits.retry.call(partial(self._places.objects.get, row.path))
        except ObjectNotFound:
            return None
        return transaction_name(message_at(content))


def _record(token: CommitToken, outcome: Committed | AllCommitted | Conflict | Unknown) -> TransactionRecord:
    match outcome:
        case Conflict(winner):
            other = {} if winner is None else {"winner": winner.path}
            return TransactionRecord(FAILED, {**_members(token), **other})
        case Unknown(_, reason):
            return TransactionRecord(RUNNING, {**_members(token), "reason": reason})
    return TransactionRecord(SUCCEEDED, _members(token))


def _members(token: CommitToken) -> dict[str, str]:
    return {staged.base_uri: str(staged.version) for staged in token.members}


def _named(branch: str | None, file: str) -> dict[str, str]:
    read_version, _, rest = file.partition("-")
    known = {"uuid": rest.removesuffix(".txn"), "read_version": read_version}
    return known if branch is None else {**known, "branch": branch}
