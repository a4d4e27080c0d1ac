"""The pure transaction: which step follows which reply, and which outcome follows which evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product

import attrs
import pytest

from lancekeep.domain.commit import (
    Committed,
    Conflict,
    Progress,
    Unknown,
)
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.commit_transitions import TRANSITIONS, Effect, State
from lancekeep.domain.errors import AccessDenied, InvalidInput, StoreUnavailable
from lancekeep.domain.naming import final_path
from lancekeep.domain.transaction import (
    STANDINGS,
    AllCommitted,
    NotCommitted,
    ReadRow,
    ReserveAll,
    RunMember,
    Standing,
    Torn,
    Transaction,
    require_one_version_each,
)
from lancekeep.domain.version_row import Blocked, Claim, Reserved, Taken, VersionRow

A, B = (
    StagedManifest(f"memory:///{name}", 2, f"{name}/_versions/2.manifest-{name * 8}", 100, digest=name * 64)
    for name in "ab"
)
TOKEN = CommitToken(A, (B,))
OTHER = VersionRow(A.base_uri, 2, "a/_versions/2.manifest", 7)
"""The final row of another writer for the version that ``A`` wants."""


def at(transaction: Transaction, *states: State) -> Transaction:
    """The transaction after its members have run up to these states."""
    for position, state in enumerate(states):
        progress = transaction.members[position].progress
        transaction = transaction.ran(position, attrs.evolve(progress, state=state), None)
    return transaction


def test_transaction_of_staged_manifests_reserves_all_rows() -> None:
    transaction = Transaction.begin([attrs.evolve(A, version=1, begins=True), B])
    first = attrs.evolve(A, version=1).row
    assert transaction.step == ReserveAll((Claim(first, first=True), Claim(B.row, first=False)))


def test_resumed_transaction_runs_every_member_before_it_reserves() -> None:
    transaction = Transaction.resume(TOKEN)
    for position in range(2):
        assert transaction.step == RunMember(position, STANDINGS.keys())
        progress = attrs.evolve(transaction.members[position].progress, state=State.RESERVE)
        transaction = transaction.ran(position, progress, None)
    assert isinstance(transaction.step, ReserveAll)


@pytest.mark.parametrize(("first", "second"), product(STANDINGS, repeat=2), ids=lambda state: state.name)
def test_strongest_evidence_decides(first: State, second: State) -> None:
    transaction = Transaction.resume(TOKEN)
    standings = {STANDINGS[first], STANDINGS[second]}
    transaction = at(transaction, first, second)
    if standings == {Standing.READY}:
        assert transaction.decision is None
        assert isinstance(transaction.step, ReserveAll)
    elif standings == {Standing.LOST, Standing.READY}:
        assert transaction.decision is None
        assert isinstance(transaction.step, ReadRow)
    else:
        assert transaction.decision is min(standings)


def test_reserved_rows_make_every_version_the_callers() -> None:
    transaction = Transaction.begin([A, B]).reserved(Reserved())
    assert transaction.decision is Standing.OURS
    assert transaction.step == RunMember(0, ())
    transaction = at(transaction, State.COMMITTED, State.COMMITTED)
    assert transaction.step is None
    assert transaction.outcome == AllCommitted(
        (Committed(2, final_path(A.path), 100), Committed(2, final_path(B.path), 100))
    )


def test_one_taken_version_abandons_every_member() -> None:
    transaction = Transaction.begin([A, B]).reserved(Blocked({A.base_uri: Taken(OTHER)}))
    assert transaction.decision is Standing.LOST
    assert [member.progress.effect for member in transaction.members] == [Effect.DELETE_STAGED, Effect.DELETE_STAGED]
    transaction = at(transaction, State.CONFLICT, State.CONFLICT)
    assert transaction.outcome == Conflict(OTHER)


def test_ready_member_learns_from_another_that_the_rows_were_reserved() -> None:
    transaction = at(Transaction.resume(TOKEN), State.PUBLISH, State.RESERVE)
    assert [member.progress.state for member in transaction.members] == [State.PUBLISH, State.COPY]


def test_version_without_evidence_is_committed_if_another_member_proves_it() -> None:
    transaction = at(Transaction.resume(TOKEN), State.UNKNOWN, State.CLEAN)
    assert isinstance(at(transaction, State.UNKNOWN, State.COMMITTED).outcome, AllCommitted)


def test_own_row_outweighs_the_conflict_of_another_member() -> None:
    transaction = at(Transaction.resume(TOKEN), State.ABANDON, State.RESERVE)
    assert transaction.step == ReadRow(1, B.row)
    assert transaction.read(1, B.row).decision is Standing.OURS
    assert transaction.read(1, None).decision is Standing.LOST
    unread = transaction.not_read(1, StoreUnavailable("no reply"))
    assert unread.decision is Standing.LOST
    assert unread.members[1].progress.effect is None  # its staged manifest stays: a row may name it


def test_row_is_not_read_again_without_a_lost_reply() -> None:
    transaction = Transaction.begin([A, B])
    blocked = Blocked({A.base_uri: Taken(OTHER)})
    assert transaction.reserved(blocked).decision is Standing.LOST
    assert transaction.unanswered().reserved(blocked).step == ReadRow(1, B.row)


def test_definite_error_refuses_and_only_removes_the_staged_manifests() -> None:
    denied = AccessDenied("no")
    transaction = Transaction.begin([A, B]).not_reserved(denied)
    assert transaction.decision is Standing.REFUSED
    assert [member.progress.effect for member in transaction.members] == [Effect.DELETE_STAGED, Effect.DELETE_STAGED]
    outcome = at(transaction, State.REFUSED, State.REFUSED).outcome
    assert isinstance(outcome, NotCommitted)
    assert outcome.fault is denied


def test_error_after_a_lost_reply_leaves_the_outcome_unknown_and_the_files_alone() -> None:
    transaction = Transaction.begin([A, B]).unanswered().not_reserved(AccessDenied("no"))
    assert transaction.step is None
    assert transaction.outcome == Unknown(TOKEN, "no")


def test_gap_of_one_table_leaves_the_other_untouched() -> None:
    transaction = at(Transaction.resume(TOKEN), State.RESERVE, State.GAP)
    assert transaction.step is None
    assert transaction.outcome == NotCommitted(transaction.members[1].progress, None)


def test_version_of_another_writer_in_a_committed_transaction_is_reported() -> None:
    transaction = Transaction.begin([A, B]).reserved(Reserved())
    assert at(transaction, State.COMMITTED, State.CONFLICT).outcome == Torn(
        B.row, (transaction.members[0].progress.final_row,)
    )


def test_fault_after_the_decision_leaves_the_outcome_unknown() -> None:
    transaction = Transaction.begin([A, B]).reserved(Reserved())
    unknown = attrs.evolve(transaction.members[0].progress, state=State.UNKNOWN)
    transaction = transaction.ran(0, unknown, StoreUnavailable("no reply"))
    transaction = transaction.ran(1, attrs.evolve(transaction.members[1].progress, state=State.COMMITTED), None)
    assert transaction.outcome == Unknown(TOKEN, "no reply")


@pytest.mark.parametrize(("base_uris", "message"), [([], "at least one"), (["a", "b", "a"], "found two of a")])
def test_transaction_without_one_version_for_each_table_is_refused(base_uris: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        require_one_version_each(base_uris)


# -- every sequence of replies --------------------------------------------------------------------------------------

COMMITS = {State.COPY, State.PUBLISH, State.CLEAN, State.COMMITTED}
ERRORS = (StoreUnavailable("no reply"), AccessDenied("no"))


def ends(progress: Progress, until: Collection[State]) -> set[State]:
    """Every state in which a run of a member can end."""
    found, seen, pending = set(), set(), [progress.state]
    while pending:
        state = pending.pop()
        if state in seen:
            continue
        seen.add(state)
        if state in until or attrs.evolve(progress, state=state).effect is None:
            found.add(state)
        else:
            pending += [following for (before, _), following in TRANSITIONS.items() if before is state]
    return found


def following(transaction: Transaction) -> Iterator[Transaction]:
    """Every transaction that can follow from its step."""
    match transaction.step:
        case RunMember(position, until):
            progress = transaction.members[position].progress
            for state in ends(progress, until):
                yield transaction.ran(position, attrs.evolve(progress, state=state), None)
        case ReserveAll(claims):
            for asked in (transaction, transaction.unanswered()):
                yield asked.reserved(Reserved())
                for blocked in ([claims[0]], [claims[1]], claims):
                    yield asked.reserved(Blocked({claim.row.base_uri: Taken(OTHER) for claim in blocked}))
                for error in ERRORS:
                    yield asked.not_reserved(error)
        case ReadRow(position, row):
            yield transaction.read(position, row)
            yield transaction.read(position, None)
            yield transaction.not_read(position, ERRORS[0])


@pytest.mark.parametrize("begun", [Transaction.begin([A, B]), Transaction.resume(TOKEN)], ids=["begun", "resumed"])
def test_every_sequence_of_replies_ends_in_an_outcome_that_the_members_bear_out(begun: Transaction) -> None:
    seen, pending, outcomes = {begun}, [begun], set()
    while pending:
        transaction = pending.pop()
        states = [member.progress.state for member in transaction.members]
        if transaction.decision is Standing.LOST:
            assert not COMMITS & set(states)
        if transaction.step is None:
            outcome = transaction.outcome
            outcomes.add(type(outcome))
            match outcome:
                case AllCommitted():
                    assert set(states) <= {State.COMMITTED, State.UNKNOWN}
                case Conflict():
                    assert State.COMMITTED not in states
                case NotCommitted():
                    assert not {State.COMMITTED, State.CONFLICT} & set(states)
                case Torn():
                    assert {State.CONFLICT, State.HELD} & set(states)
                case Unknown():
                    assert not {State.ABANDON, State.REFUSED} & set(states)
        reached = set(following(transaction))
        assert reached or transaction.step is None
        pending += reached - seen
        seen |= reached
    assert {AllCommitted, Conflict, NotCommitted, Torn, Unknown} >= outcomes >= {AllCommitted, Conflict, Unknown}
    assert len(seen) > 50
