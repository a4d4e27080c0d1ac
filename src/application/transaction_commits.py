"""Versions of several tables, committed in one step: the runner of `lancekeep.domain.transaction`."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from lancekeep.application.table_commits import TableCommits, recognisable, refusal
from lancekeep.domain.commit import (
    FAULT,
    RESERVED,
    Committed,
    Conflict,
    Progress,
    Unknown,
    advance,
    begin_commit,
    begin_resolve,
    failed,
)
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.commit_transitions import State
from lancekeep.domain.errors import Damaged, InvalidInput, LancekeepError, StoreUnavailable
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Base
from lancekeep.domain.transaction import (
    WAITS,
    AllCommitted,
    Standing,
    TransactionOutcome,
    agreed,
    answered,
    claims,
    standing,
)
from lancekeep.ports.commit_store import require_atomic


@attrs.frozen
class Candidate:
    """A staged manifest that wants to become a version; the fields are the arguments of `TableCommits.commit`."""

    root: DatasetRoot
    version: int
    path: str
    size: int | None
    branch: bool = False
    base: Base | None = None


@attrs.frozen
class _Member:
    """One of the commits, the content of its staged manifest where it is at hand, and the fault that stopped it."""

    progress: Progress
    content: bytes | None
    fault: LancekeepError | None = None


class TransactionCommits:
    """Commits of several tables as one, by the rules of ``commits``."""

    def __init__(self, commits: TableCommits) -> None:
        self._commits = commits

    def commit(self, candidates: Sequence[Candidate]) -> TransactionOutcome:
        """Make each staged manifest the version it wants to be, or none of them.

        Idempotent for the same staged manifests. Nothing is removed unless the outcome is definite.

        Raises, nothing committed:
            Unsupported: the commit store cannot reserve so many versions in one step.
            InvalidInput: none is given, or two are versions of one table.
            CommitRefused, CommitStoreMismatch, StoreUnavailable, UnsafeStore: one of them, as `TableCommits.commit`.
        Raises `Damaged` where the commit store has lost what it had acknowledged, and a part is committed.
        """
        require_atomic(self._commits.rows, len(candidates))
        if not candidates or len({each.root.base_uri for each in candidates}) < len(candidates):
            raise InvalidInput("one new version of each table, or branch, can be committed together, and at least one")
        members, descendants = [], []
        for each in candidates:
            staged, content = self._commits.read_staged(
                each.root, each.version, each.path, each.size, branch=each.branch
            )
            descendants.append(self._commits.lineage.require(each.root, staged, content, each.base))
            members.append(_Member(begin_commit(staged), content))
        outcome = self._settle(members)
        if isinstance(outcome, AllCommitted):
            for descendant in descendants:
                self._commits.lineage.keep(descendant)
        return outcome

    def resolve(self, token: CommitToken) -> TransactionOutcome:
        """Settle an unknown outcome: complete the commit where every version is still free, else learn who won.

        It stays `Unknown` where no version is left that could tell. Idempotent. Raises as `commit`.
        """
        return self._settle([_Member(begin_resolve(CommitToken(staged)), None) for staged in token.members])

    def _settle(self, members: list[_Member]) -> TransactionOutcome:
        self._commits.prove()
        deadline = self._commits.retry.deadline()
        members = [self._run(member, deadline, until_decided=True) for member in members]
        while standing(_progresses(members)) is Standing.READY:
            members = self._reserve(members, deadline)
            members = [self._run(member, deadline, until_decided=True) for member in members]
        if standing(_progresses(members)) is Standing.LOST:
            members = [self._look_again(member, deadline) for member in members]
        match standing(_progresses(members)):
            case Standing.UNSETTLED:
                return self._unknown(members)
            case Standing.REFUSED:
                refused = next(member for member in members if WAITS[member.progress.state] is Standing.REFUSED)
                for member in members:
                    if member.progress.state is State.DISCARD:
                        refused = self._run(member, deadline, until_decided=False)
                raise refusal(refused.progress, refused.fault)
        decided = agreed(_progresses(members))
        members = [attrs.evolve(member, progress=each) for member, each in zip(members, decided, strict=True)]
        lost = standing(_progresses(members)) is Standing.LOST
        members = [self._run(member, deadline, until_decided=False) for member in members]
        return self._conflict(members) if lost else self._committed(members)

    def _run(self, member: _Member, deadline: float, *, until_decided: bool) -> _Member:
        progress, fault = self._commits.run(
            member.progress, member.content, deadline, WAITS.keys() if until_decided else ()
        )
        return attrs.evolve(member, progress=progress, fault=fault or member.fault)

    def _reserve(self, members: list[_Member], deadline: float) -> list[_Member]:
        """Ask the commit store for every version at once. What it does not answer, it may have done."""
        asked = _progresses(members)
        fault: LancekeepError | None = None
        try:
            try:
                reservation = self._commits.rows.reserve_all(claims(asked))
            except StoreUnavailable:
                asked = [attrs.evolve(each, repeated=True) for each in asked]
                reservation = self._commits.retry.call(lambda: self._commits.rows.reserve_all(claims(asked)), deadline)
            following = answered(asked, reservation)
        except LancekeepError as error:
            following = [advance(each, failed(each, error, asked_before=each.repeated)) for each in asked]
            fault = error
        return [_Member(each, member.content, fault) for each, member in zip(following, members, strict=True)]

    def _look_again(self, member: _Member, deadline: float) -> _Member:
        """What a row of its own points at must stay, even where another's bytes are in the way of the others."""
        waiting = member.progress
        if WAITS[waiting.state] is not Standing.READY or not waiting.repeated:
            return member
        try:
            held = self._commits.retry.call(
                lambda: self._commits.rows.get(waiting.row.base_uri, waiting.row.version), deadline
            )
        except LancekeepError as error:
            return _Member(advance(waiting, FAULT), member.content, error)
        own = held is not None and held.path == waiting.row.path
        return attrs.evolve(member, progress=advance(waiting, RESERVED)) if own else member

    # -- outcomes -----------------------------------------------------------------------------------------------

    def _committed(self, members: list[_Member]) -> TransactionOutcome:
        """Decided for us. Versions that nobody finds any more were cleaned up since, or went with their table."""
        if lost := [member.progress for member in members if member.progress.state is State.CONFLICT]:
            raise Damaged(
                f"of a transaction over {len(members)} tables, version {lost[0].row.version} of "
                f"{lost[0].row.base_uri} is another writer's, and others are committed: {self._commits.rows.url} has "
                "forgotten what it acknowledged, or somebody has committed past it. See by history() what is missing, "
                "and write it again; keep tables of transactions in a store that never forgets (sqlite://, dynamodb://)."
            )
        if any(member.progress.state is State.UNKNOWN and member.fault for member in members):
            return self._unknown(members)
        rows = [member.progress.final_row for member in members]
        return AllCommitted(tuple(Committed(row.version, row.path, row.size) for row in rows))

    def _conflict(self, members: list[_Member]) -> Conflict:
        winners = (member.progress.met for member in members if member.progress.state is State.CONFLICT)
        return Conflict(next((winner for winner in winners if winner is not None), None))

    def _unknown(self, members: list[_Member]) -> Unknown:
        faults = [str(member.fault) for member in members if member.fault is not None]
        staged = [
            recognisable(member.progress.staged, member.content)
            for member in members
            if member.progress.staged is not None
        ]
        gone = "versions were cleaned up since: nothing says whose they were but the tables' rows"
        return Unknown(CommitToken(staged[0], tuple(staged[1:])), faults[0] if faults else gone)


def _progresses(members: Sequence[_Member]) -> list[Progress]:
    return [member.progress for member in members]
