"""The runner of `lancekeep.domain.transaction`; it decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs

from lancekeep.application.commits.keyed_requests import current_request
from lancekeep.application.commits.protocol_runner import confirmed, recognizable, refusal
from lancekeep.application.commits.table_commits import Check, TableCommits
from lancekeep.domain.commit import Unknown
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.errors import Damaged, LancekeepError, StoreUnavailable
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Base
from lancekeep.domain.transaction import (
    AllCommitted,
    NotCommitted,
    ReadRow,
    ReserveAll,
    RunMember,
    Step,
    Torn,
    Transaction,
    TransactionOutcome,
    require_one_version_each,
)
from lancekeep.domain.version_row import Claim, VersionRow
from lancekeep.ports.commit_store import require_atomic


@attrs.frozen
class Candidate:
    """A staged manifest to commit; see the arguments of `TableCommits.commit`."""

    root: DatasetRoot
    version: int
    path: str
    size: int | None
    branch: bool = False
    base: Base | None = None


class TransactionCommits:
    """Commit versions of several tables together, over the stores of ``commits``."""

    def __init__(self, commits: TableCommits) -> None:
        self._commits = commits

    def commit(
        self,
        candidates: Sequence[Candidate],
        check: Check,
        *,
        confirm: Callable[[Sequence[str]], object] = lambda transactions: None,
    ) -> TransactionOutcome:
        """Commit every staged manifest as the version that it names, or none of them.

        Idempotent for the same staged manifests. Nothing is removed unless the outcome is definite. ``check`` and
        ``confirm`` are as in `TableCommits.commit`, but ``confirm`` gets the names of all transaction files.

        Raises:
            Unsupported: The commit store cannot reserve that many versions in one step; nothing was committed.
            InvalidInput: No candidate is given, or two name one table; nothing was committed.
            CommitRefused, CommitStoreMismatch, StoreUnavailable, UnsafeStore: A candidate cannot be committed, as
                `TableCommits.commit` describes; nothing was committed.
            Damaged: The commit store lost an acknowledged row, and a part is committed.
        """
        require_atomic(self._commits.rows, len(candidates))
        require_one_version_each([each.root.base_uri for each in candidates])
        staged, contents, descendants = [], [], []
        for each in candidates:
            manifest, content = self._commits.read_staged(
                each.root, each.version, each.path, each.size, branch=each.branch, check=check
            )
            manifest, content, descendant = self._commits.require_descent(each.root, manifest, content, each.base)
            descendants.append(descendant)
            staged.append(manifest)
            contents.append(content)
        if (request := current_request()) is not None:
            request.claim(lambda: _token(staged, contents))
        outcome = self._settle(Transaction.begin(staged), contents)
        if isinstance(outcome, AllCommitted):
            for descendant in descendants:
                self._commits.lineage.keep(descendant)
            transactions = [descendant.transaction for descendant in descendants]
            return confirmed(outcome, partial(confirm, transactions), lambda: _token(staged, contents))
        return outcome

    def resolve(self, token: CommitToken) -> TransactionOutcome:
        """Settle an unknown outcome: commit if no version is taken. Idempotent.

        The outcome stays `Unknown` if garbage collection removed all evidence. Raises the errors of `commit`.
        """
        return self._settle(Transaction.resume(token), [None] * len(token.members))

    def _settle(self, transaction: Transaction, contents: Sequence[bytes | None]) -> TransactionOutcome:
        self._commits.prove()
        deadline = self._commits.retry.deadline()
        while (step := transaction.step) is not None:
            transaction = self._perform(step, transaction, contents, deadline)
        match transaction.outcome:
            case NotCommitted(progress, fault):
                raise refusal(progress, fault)
            case Torn(lost, committed):
                kept = ", ".join(f"version {row.version} of {row.base_uri}" for row in committed)
                raise Damaged(
                    f"version {lost.version} of {lost.base_uri} belongs to another writer, but the transaction over "
                    f"{len(transaction.members)} tables is committed as {kept or 'no other version'}: the table was "
                    f"dropped, and created again, {self._commits.rows.url} has lost an acknowledged row, or a writer "
                    "committed without it. Find what is missing with catalog.versions.history and write it again. Keep "
                    "tables of transactions in a commit store that never loses rows (sqlite://, dynamodb://)."
                )
            case Unknown(token, reason):
                return Unknown(_token(token.members, contents), reason)
            case outcome:
                return outcome

    # -- the steps ----------------------------------------------------------------------------------------------

    def _perform(
        self, step: Step, transaction: Transaction, contents: Sequence[bytes | None], deadline: float
    ) -> Transaction:
        """Perform a step, and return the transaction after its reply."""
        match step:
            case RunMember(at, until):
                member = transaction.members[at]
                return transaction.ran(at, *self._commits.run(member.progress, contents[at], deadline, until))
            case ReserveAll(claims):
                return self._reserve(transaction, claims, deadline)
            case ReadRow(at, row):
                return self._read(transaction, at, row, deadline)

    def _reserve(self, transaction: Transaction, claims: Sequence[Claim], deadline: float) -> Transaction:
        try:
            try:
                reservation = self._commits.rows.reserve_all(claims)
            except StoreUnavailable:
                transaction = transaction.unanswered()
                reservation = self._commits.retry.call(lambda: self._commits.rows.reserve_all(claims), deadline)
        except LancekeepError as error:
            return transaction.not_reserved(error)
        return transaction.reserved(reservation)

    def _read(self, transaction: Transaction, at: int, row: VersionRow, deadline: float) -> Transaction:
        try:
            found = self._commits.retry.call(lambda: self._commits.rows.get(row.base_uri, row.version), deadline)
        except LancekeepError as error:
            return transaction.not_read(at, error)
        return transaction.read(at, found)


def _token(staged: Sequence[StagedManifest], contents: Sequence[bytes | None]) -> CommitToken:
    first, *others = map(recognizable, staged, contents)
    return CommitToken(first, tuple(others))
