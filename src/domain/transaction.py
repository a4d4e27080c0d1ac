"""A transaction over several tables as a pure state machine.

It commits the new versions of its tables together, or none of them.

1. Each member is a writer in the protocol of its own table (`lancekeep.domain.commit`). It runs by the transitions of
   that table until the other members matter (`STANDINGS`): it is about to reserve its row, or it knows who won its
   version.
2. If every member is ready, one step of the commit store reserves all rows or none (`ReserveAll`). That step decides
   the transaction.
3. Rows of a transaction are only ever reserved together. One version of the transaction proves that all its rows are
   reserved; one version of another writer proves that no row is. So a member that learned nothing, after a lost reply
   or a clean-up, takes the decision from the others.
4. Once the transaction is decided, each member completes its own protocol: it publishes its version, or removes its
   staged manifest. Any reader can complete a publication that a crash interrupts.

A runner performs `Transaction.step` and reports the reply by the method of the same name, until no step is left.
Production (`lancekeep.application.commits.transaction_commits`) and the model checker drive this same value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum, auto
from typing import Final

import attrs

from lancekeep.domain.commit import (
    FAULT,
    RESERVED,
    Committed,
    Conflict,
    Event,
    Progress,
    Unknown,
    advance,
    begin_commit,
    begin_resolve,
    failed,
    understand,
)
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.commit_transitions import Reply, State
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.version_row import BatchReservation, Claim, NotReady, Reserved, Taken, VersionRow


@attrs.frozen
class AllCommitted:
    """Every version is the caller's; ``versions`` has the order of the request."""

    versions: tuple[Committed, ...]


@attrs.frozen
class NotCommitted:
    """Nothing was committed: ``progress`` and ``fault`` of one member say why."""

    progress: Progress
    fault: LancekeepError | None


@attrs.frozen
class Torn:
    """A part is committed, and the version ``lost`` belongs to another writer.

    The commit store lost an acknowledged row, or a writer committed without it.
    """

    lost: VersionRow
    committed: tuple[VersionRow, ...]


TransactionOutcome = AllCommitted | Conflict | Unknown


class Standing(IntEnum):
    """What a waiting member knows; the lowest value is the strongest evidence."""

    OURS = auto()
    LOST = auto()
    UNSETTLED = auto()
    REFUSED = auto()
    READY = auto()


STANDINGS: Final[Mapping[State, Standing]] = {
    State.RESERVE: Standing.READY,
    State.COPY: Standing.OURS,
    State.PUBLISH: Standing.OURS,
    State.CLEAN: Standing.OURS,
    State.ABANDON: Standing.LOST,
    State.CONFLICT: Standing.LOST,
    State.UNKNOWN: Standing.UNSETTLED,
    State.GAP: Standing.REFUSED,
    State.MOVED: Standing.REFUSED,
    State.DISCARD: Standing.REFUSED,
}
"""The states in which a member waits for the others."""

_DECISIONS: Final = {Standing.OURS: RESERVED, Standing.LOST: Event(Reply.TAKEN)}
"""The event by which a ready member learns the decision from the others."""


@attrs.frozen
class Member:
    """One table of a transaction.

    Attributes:
        progress: its progress in the protocol of its table.
        fault: the error that stopped it.
        row_read: `ReadRow` has been performed for it.
    """

    progress: Progress
    fault: LancekeepError | None = attrs.field(default=None, eq=repr)
    row_read: bool = False

    @property
    def standing(self) -> Standing | None:
        """What this member knows about the decision; None while it runs."""
        return STANDINGS.get(self.progress.state)

    @property
    def is_doubtful(self) -> bool:
        """Whether an unanswered request may have reserved the row of this member."""
        return self.standing is Standing.READY and self.progress.repeated and not self.row_read

    def after(self, event: Event, fault: LancekeepError | None = None) -> Member:
        """Return the member after an event of its protocol."""
        return attrs.evolve(self, progress=advance(self.progress, event), fault=fault or self.fault)


@attrs.frozen
class RunMember:
    """Run a member by the transitions of its table, up to a state of ``until``."""

    position: int
    until: Collection[State]


@attrs.frozen
class ReserveAll:
    """Reserve the rows of all members in one step of the commit store."""

    claims: tuple[Claim, ...]


@attrs.frozen
class ReadRow:
    """Read the row of a member again before the transaction counts as lost.

    If the row belongs to the transaction, its manifest must stay, even if the final manifest of another member's
    version holds the bytes of another writer.
    """

    position: int
    row: VersionRow


Step = RunMember | ReserveAll | ReadRow


@attrs.frozen
class Transaction:
    """The members between two steps; ``decision`` is None until they know enough."""

    members: tuple[Member, ...]
    decision: Standing | None = None

    @staticmethod
    def begin(staged: Iterable[StagedManifest]) -> Transaction:
        """Begin to commit staged manifests, one for each table."""
        return Transaction(tuple(Member(begin_commit(each)) for each in staged))

    @staticmethod
    def resume(token: CommitToken) -> Transaction:
        """Resume a transaction whose outcome is unknown."""
        return Transaction(tuple(Member(begin_resolve(CommitToken(each))) for each in token.members))

    @property
    def standing(self) -> Standing | None:
        """What is known about the decision; None while a member runs."""
        standings = [member.standing for member in self.members]
        return None if None in standings else min(standing for standing in standings if standing is not None)

    @property
    def token(self) -> CommitToken:
        """The token that settles the whole transaction."""
        staged = tuple(member.progress.staged for member in self.members if member.progress.staged is not None)
        return CommitToken(staged[0], staged[1:])

    # -- what to do next ----------------------------------------------------------------------------------------

    @property
    def step(self) -> Step | None:
        """The next step; None at the outcome."""
        if self.decision is not None:
            return self._completion(self.decision)
        for position, member in enumerate(self.members):
            if member.standing is None:
                return RunMember(position, STANDINGS.keys())
        if self.standing is Standing.READY:
            return ReserveAll(tuple(_claim(member.progress) for member in self.members))
        doubtful = next(position for position, member in enumerate(self.members) if member.is_doubtful)
        return ReadRow(doubtful, self.members[doubtful].progress.row)

    def _completion(self, decision: Standing) -> RunMember | None:
        """The next member to complete its protocol; after a refusal, only a member that discards its manifest."""
        for position, member in enumerate(self.members):
            discards = decision is Standing.REFUSED and member.progress.state is State.DISCARD
            if discards or (decision in _DECISIONS and member.progress.effect is not None):
                return RunMember(position, ())
        return None

    # -- the replies --------------------------------------------------------------------------------------------

    def ran(self, position: int, progress: Progress, fault: LancekeepError | None) -> Transaction:
        """Return the transaction after `RunMember`; ``fault`` stopped the member."""
        member = self.members[position]
        return self._with(position, attrs.evolve(member, progress=progress, fault=fault or member.fault))

    def unanswered(self) -> Transaction:
        """Return the transaction after a `ReserveAll` that got no reply."""
        members = [attrs.evolve(each, progress=attrs.evolve(each.progress, repeated=True)) for each in self.members]
        return attrs.evolve(self, members=tuple(members))

    def reserved(self, reservation: BatchReservation) -> Transaction:
        """Return the transaction after `ReserveAll`."""
        if isinstance(reservation, Reserved):
            return self._after(member.after(RESERVED) for member in self.members)
        return self._after(_answered(member, reservation.obstacles) for member in self.members)

    def not_reserved(self, error: LancekeepError) -> Transaction:
        """Return the transaction after a `ReserveAll` that ended in an error."""
        return self._after(
            member.after(failed(member.progress, error, asked_before=member.progress.repeated), error)
            for member in self.members
        )

    def read(self, position: int, row: VersionRow | None) -> Transaction:
        """Return the transaction after `ReadRow` found ``row``."""
        member = attrs.evolve(self.members[position], row_read=True)
        own = row is not None and row.path == member.progress.row.path
        return self._with(position, member.after(RESERVED) if own else member)

    def not_read(self, position: int, error: LancekeepError) -> Transaction:
        """Return the transaction after a `ReadRow` that ended in an error."""
        return self._with(position, self.members[position].after(FAULT, error))

    def _with(self, position: int, member: Member) -> Transaction:
        return self._after((*self.members[:position], member, *self.members[position + 1 :]))

    def _after(self, members: Iterable[Member]) -> Transaction:
        """Return the transaction with these members, decided if they know enough."""
        following = attrs.evolve(self, members=tuple(members))
        standing = following.standing
        if following.decision is not None or standing is None or standing is Standing.READY:
            return following
        if standing is Standing.LOST and any(member.is_doubtful for member in following.members):
            return following
        return following._decided(standing)

    def _decided(self, decision: Standing) -> Transaction:
        event = _DECISIONS.get(decision)
        members = (
            member.after(event) if event is not None and member.standing is Standing.READY else member
            for member in self.members
        )
        return Transaction(tuple(members), decision)

    # -- the outcome --------------------------------------------------------------------------------------------

    @property
    def outcome(self) -> TransactionOutcome | NotCommitted | Torn:
        """The outcome, once no step is left."""
        match self.decision:
            case Standing.OURS:
                return self._ours()
            case Standing.LOST:
                winners = (each.met for each in self._progresses(State.CONFLICT) if each.met is not None)
                return Conflict(next(winners, None))
            case Standing.REFUSED:
                refused = [member for member in self.members if member.progress.state is State.REFUSED]
                refused += [member for member in self.members if member.standing is Standing.REFUSED]
                return NotCommitted(refused[0].progress, refused[0].fault)
        return self._unknown()

    def _ours(self) -> AllCommitted | Torn | Unknown:
        """A version that no manifest proves any more was cleaned up after the decision, or dropped with its table."""
        lost = self._progresses(State.CONFLICT) + self._progresses(State.HELD)
        if lost:
            kept = (member.progress for member in self.members if member.progress not in lost)
            return Torn(lost[0].row, tuple(progress.final_row for progress in kept))
        if any(member.progress.state is State.UNKNOWN and member.fault is not None for member in self.members):
            return self._unknown()
        rows = [member.progress.final_row for member in self.members]
        return AllCommitted(tuple(Committed(row.version, row.path, row.size) for row in rows))

    def _unknown(self) -> Unknown:
        faults = (str(member.fault) for member in self.members if member.fault is not None)
        gone = "the versions were cleaned up, so no manifest says who committed them; compare the rows of the tables"
        return Unknown(self.token, next(faults, gone))

    def _progresses(self, state: State) -> list[Progress]:
        return [member.progress for member in self.members if member.progress.state is state]


def require_one_version_each(base_uris: Sequence[str]) -> None:
    """Check that a transaction has members, and no two of one table or branch.

    Raises:
        InvalidInput: there is no member, or a table or branch has two.
    """
    if not base_uris:
        raise InvalidInput("a transaction needs at least one new version; found none")
    twice = [uri for uri, times in Counter(base_uris).items() if times > 1]
    if twice:
        raise InvalidInput(
            f"a transaction commits one new version of each table or branch; found two of {twice[0]}. Commit the "
            "second one in a transaction of its own."
        )


def _claim(progress: Progress) -> Claim:
    return Claim(progress.row, first=progress.first)


def _answered(member: Member, obstacles: Mapping[str, Taken | NotReady]) -> Member:
    """Return the member after a reservation of all rows that failed; without an obstacle it stays ready."""
    obstacle = obstacles.get(member.progress.row.base_uri)
    if obstacle is None or member.progress.staged is None:
        return member
    return member.after(understand(member.progress.staged, obstacle, repeated=member.progress.repeated))
