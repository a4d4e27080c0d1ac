"""The transition table of the commit protocol is complete and reachable, and refuses impossible events."""

from __future__ import annotations

import pickle

import pytest

from lancekeep.domain.commit import (
    Committed,
    Conflict,
    Event,
    Progress,
    Unknown,
    advance,
    begin_commit,
    begin_help,
    begin_resolve,
    found_predecessor,
    understand,
)
from lancekeep.domain.commit_token import CommitToken, CommitUnknown, StagedManifest
from lancekeep.domain.commit_transitions import EFFECTS, TRANSITIONS, Reply, State
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.version_row import NotReady, Reserved, Taken, VersionRow

BASE = "s3://bucket/t.lance"
DIRECTORY = "t.lance/_versions/"
STAGED_3 = StagedManifest(BASE, 3, DIRECTORY + "18446744073709551612.manifest-aaaa", 10, digest="d" * 64)
FINAL_3 = VersionRow(BASE, 3, DIRECTORY + "18446744073709551612.manifest", 10)
OTHER_3 = VersionRow(BASE, 3, DIRECTORY + "18446744073709551612.manifest-bbbb", 12)


def row(version: int, *, final: bool) -> VersionRow:
    name = f"{2**64 - 1 - version:020}.manifest"
    return VersionRow(BASE, version, DIRECTORY + name + ("" if final else "-cccc"), 10)


def test_every_state_with_an_effect_is_reachable_and_has_a_successor() -> None:
    beginnings = {
        begin_commit(STAGED_3).state,
        begin_resolve(CommitToken(STAGED_3)).state,
        begin_help(OTHER_3).state,
    }
    reached, frontier = set(beginnings), set(beginnings)
    while frontier:
        frontier = {after for (before, _), after in TRANSITIONS.items() if before in frontier} - reached
        reached |= frontier
    assert reached == set(State)
    assert {before for before, _ in TRANSITIONS} == set(EFFECTS)


def test_failed_effect_never_leads_to_a_deletion() -> None:
    for state in EFFECTS:
        after = TRANSITIONS[state, Reply.FAULT]
        assert after not in EFFECTS, f"{state}: after a fault nothing more is done, so nothing is deleted"


def test_impossible_event_raises_and_changes_nothing() -> None:
    progress = begin_commit(STAGED_3)
    with pytest.raises(RuntimeError, match="cannot follow"):
        advance(progress, Event(Reply.SAME))
    assert progress == begin_commit(STAGED_3)


def test_commit_without_conflict_reserves_copies_publishes_and_cleans() -> None:
    progress, states = begin_commit(STAGED_3), []
    for reply in (Reply.RESERVED, Reply.DONE, Reply.DONE, Reply.DONE):
        states.append(progress.state)
        progress = advance(progress, Event(reply))
    assert states == [State.RESERVE, State.COPY, State.PUBLISH, State.CLEAN]
    assert progress.state is State.COMMITTED
    assert progress.final_row == FINAL_3


def test_final_object_of_another_writer_decides_the_commit() -> None:
    progress = begin_commit(STAGED_3)
    for event in (Event(Reply.RESERVED), Event(Reply.EXISTS), Event(Reply.DIFFERENT, size=99)):
        progress = advance(progress, event)
    assert progress.state is State.REPAIR
    assert progress.final_row == VersionRow(BASE, 3, FINAL_3.path, 99)
    assert advance(advance(progress, Event(Reply.DONE)), Event(Reply.DONE)).state is State.CONFLICT


@pytest.mark.parametrize(
    ("reservation", "reply"),
    [
        (Reserved(), Reply.RESERVED),
        (Taken(OTHER_3), Reply.TAKEN),
        (Taken(FINAL_3), Reply.OVERTAKEN),
        (Taken(VersionRow(BASE, 3, FINAL_3.path, 11)), Reply.TAKEN),
        (Taken(VersionRow.fence(BASE, 3, "redis://new")), Reply.MOVED),
        (NotReady(None), Reply.PREDECESSOR_MISSING),
        (NotReady(row(1, final=True)), Reply.PREDECESSOR_MISSING),
        (NotReady(row(1, final=False)), Reply.PREDECESSOR_MISSING),
        (NotReady(row(2, final=False)), Reply.PREDECESSOR_STAGED),
        (NotReady(row(7, final=True)), Reply.OVERTAKEN),
        (NotReady(VersionRow.fence(BASE, 2, "redis://new")), Reply.MOVED),
    ],
)
def test_reservation_is_translated_to_an_event(reservation: Reserved | Taken | NotReady, reply: Reply) -> None:
    assert understand(STAGED_3, reservation, repeated=False).reply is reply


def test_repeated_claim_is_decided_by_the_final_object() -> None:
    told: dict[Taken | NotReady, Reply] = {
        Taken(OTHER_3): Reply.CONTESTED,
        Taken(FINAL_3): Reply.PERHAPS_OWN,
        NotReady(row(7, final=True)): Reply.PERHAPS_OWN,
    }
    for reservation, reply in told.items():
        assert understand(STAGED_3, reservation, repeated=True).reply is reply


def test_history_begins_only_if_it_is_empty_and_the_writer_may_begin_it() -> None:
    may = StagedManifest(BASE, 3, STAGED_3.path, 10, begins=True)
    waiting = Progress(State.FIND_PREDECESSOR, may.row, may)
    assert found_predecessor(waiting, False).reply is Reply.MAY_BEGIN
    assert found_predecessor(waiting, True).reply is Reply.PRESENT
    met = Progress(State.FIND_PREDECESSOR, may.row, may, met=row(1, final=True))
    assert found_predecessor(met, False).reply is Reply.ABSENT
    assert found_predecessor(Progress(State.FIND_PREDECESSOR, STAGED_3.row, STAGED_3), False).reply is Reply.ABSENT


def test_claim_begins_a_history_only_directly_after_the_check_that_it_is_empty() -> None:
    may = StagedManifest(BASE, 3, STAGED_3.path, 10, begins=True)
    claim = advance(Progress(State.FIND_PREDECESSOR, may.row, may), Event(Reply.MAY_BEGIN))
    assert (claim.state, claim.first) == (State.RESERVE, True)
    begun = advance(claim, Event(Reply.PREDECESSOR_STAGED, row(2, final=False)))
    again = advance(begun, Event(Reply.DONE))
    assert (again.state, again.first) == (State.RESERVE, False)
    assert begin_commit(StagedManifest(BASE, 1, STAGED_3.path, 10, begins=True)).first
    assert not begin_commit(may).first


def test_outcomes_errors_and_tokens_survive_pickling() -> None:
    token = CommitToken(STAGED_3)
    assert CommitToken.parse(str(token)) == token
    for outcome in (Committed(3, FINAL_3.path, 10), Conflict(OTHER_3), Unknown(token, "no answer")):
        assert pickle.loads(pickle.dumps(outcome)) == outcome
    error = pickle.loads(pickle.dumps(CommitUnknown("who knows", token)))
    assert (str(error), error.token) == ("who knows", token)
    with pytest.raises(InvalidInput, match="not a commit token"):
        CommitToken.parse("{}")
