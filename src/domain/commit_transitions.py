"""The transition table of the commit protocol.

`EFFECTS` gives the effect of each state, `TRANSITIONS` the state that follows each reply. The theory of operation is in
`lancekeep.domain.commit`. ``docs/commit-protocol.md`` draws this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class _Symbol(Enum):
    """An enumeration with members that hash by identity: they are keys of hot lookups, and singletons."""

    __hash__ = object.__hash__


class State(_Symbol):
    """What a participant does next, or the outcome that it reached."""

    # a writer with a staged manifest
    RESERVE = auto()
    FINALIZE_PREDECESSOR = auto()
    FIND_PREDECESSOR = auto()
    ADOPT_PREDECESSOR = auto()
    RECOGNIZE = auto()
    OVERTAKEN = auto()
    FINALIZE_HOLDER = auto()
    COPY = auto()
    COMPARE = auto()
    PUBLISH = auto()
    CLEAN = auto()
    REPAIR = auto()
    ABANDON = auto()
    DISCARD = auto()
    # a writer that resolves an unknown commit
    FIND_STAGED = auto()
    SETTLE = auto()
    WITHDRAW = auto()
    # a participant that rolls a staged row forward
    HELP_COPY = auto()
    HELP_COMPARE = auto()
    HELP_MEASURE = auto()
    HELP_REREAD = auto()
    HELP_PUBLISH = auto()
    HELP_CLEAN = auto()
    # outcomes
    COMMITTED = auto()
    CONFLICT = auto()
    UNKNOWN = auto()
    GAP = auto()
    MOVED = auto()
    REFUSED = auto()
    HELD = auto()
    FINALIZED = auto()
    VANISHED = auto()
    UNREADABLE = auto()
    LOST = auto()


class Effect(_Symbol):
    """A request to the stores, about the writer's manifest or the row it met."""

    RESERVE = auto()
    FINALIZE_MET = auto()
    FIND_PREDECESSOR = auto()
    RECORD_PREDECESSOR = auto()
    COPY = auto()
    COMPARE = auto()
    FINALIZE_ROW = auto()
    DELETE_STAGED = auto()
    FIND_STAGED = auto()
    WITHDRAW_ROW = auto()
    COMPARE_MET = auto()
    MEASURE_FINAL = auto()
    GET_ROW = auto()


class Reply(_Symbol):
    """What the stores reply to an effect."""

    RESERVED = auto()
    TAKEN = auto()
    PERHAPS_OWN = auto()
    OVERTAKEN = auto()
    CONTESTED = auto()
    PREDECESSOR_STAGED = auto()
    PREDECESSOR_MISSING = auto()
    MOVED = auto()
    DONE = auto()
    EXISTS = auto()
    PRESENT = auto()
    ABSENT = auto()
    SAME = auto()
    DIFFERENT = auto()
    DIRECT = auto()
    MAY_BEGIN = auto()
    CHANGED = auto()
    UNCHANGED = auto()
    FINAL = auto()
    REFUSED = auto()
    FAULT = auto()


TRANSITIONS: Final[Mapping[tuple[State, Reply], State]] = {
    # The claim decides which writer gets the version.
    (State.RESERVE, Reply.RESERVED): State.COPY,
    (State.RESERVE, Reply.FINAL): State.CLEAN,  # the row is derived from the final manifest, which the claim created
    (State.RESERVE, Reply.TAKEN): State.ABANDON,
    (State.RESERVE, Reply.PERHAPS_OWN): State.RECOGNIZE,
    (State.RESERVE, Reply.OVERTAKEN): State.OVERTAKEN,
    (State.RESERVE, Reply.CONTESTED): State.FINALIZE_HOLDER,
    (State.RESERVE, Reply.PREDECESSOR_STAGED): State.FINALIZE_PREDECESSOR,
    (State.RESERVE, Reply.PREDECESSOR_MISSING): State.FIND_PREDECESSOR,
    (State.RESERVE, Reply.MOVED): State.MOVED,
    (State.RESERVE, Reply.FAULT): State.UNKNOWN,
    # The predecessor is staged, or has no row: roll it forward, or adopt its final manifest.
    (State.FINALIZE_PREDECESSOR, Reply.DONE): State.RESERVE,
    (State.FINALIZE_PREDECESSOR, Reply.DIRECT): State.DISCARD,  # as below
    (State.FINALIZE_PREDECESSOR, Reply.FAULT): State.UNKNOWN,
    (State.FIND_PREDECESSOR, Reply.PRESENT): State.ADOPT_PREDECESSOR,
    (State.FIND_PREDECESSOR, Reply.MAY_BEGIN): State.RESERVE,
    (State.FIND_PREDECESSOR, Reply.ABSENT): State.GAP,
    (State.FIND_PREDECESSOR, Reply.DIRECT): State.DISCARD,  # the writer built on a direct commit that the table holds
    (State.FIND_PREDECESSOR, Reply.FAULT): State.UNKNOWN,
    (State.ADOPT_PREDECESSOR, Reply.DONE): State.RESERVE,
    (State.ADOPT_PREDECESSOR, Reply.FAULT): State.UNKNOWN,
    # The row is final or missing, and may have been this writer's: a reply was lost, and a reader rolled the commit
    # forward. If the version was cleaned up since, its author cannot be determined.
    (State.RECOGNIZE, Reply.SAME): State.CLEAN,
    (State.RECOGNIZE, Reply.DIFFERENT): State.ABANDON,
    (State.RECOGNIZE, Reply.ABSENT): State.UNKNOWN,
    (State.RECOGNIZE, Reply.FAULT): State.UNKNOWN,
    # This is the first claim, and the row is missing and later ones exist, or it is final with this manifest's size.
    # Only a caller or a driver that repeated the claim unnoticed can have committed before. A clean-up that has removed
    # the version since leaves the conflict definite.
    (State.OVERTAKEN, Reply.SAME): State.CLEAN,
    (State.OVERTAKEN, Reply.DIFFERENT): State.ABANDON,
    (State.OVERTAKEN, Reply.ABSENT): State.ABANDON,
    (State.OVERTAKEN, Reply.FAULT): State.UNKNOWN,
    # Another writer holds the row, but this one may have copied before the store lost its row: finalize the version,
    # then compare.
    (State.FINALIZE_HOLDER, Reply.DONE): State.RECOGNIZE,
    (State.FINALIZE_HOLDER, Reply.FAULT): State.UNKNOWN,
    # This writer holds the row: copy the manifest to its final name, then publish the row. If a direct commit has that
    # name, and the table holds it, this manifest never becomes the version. The row stays: a deletion could meet the
    # row that settles the direct commit. So does the staged manifest, by which others see that it was not published.
    (State.COPY, Reply.DONE): State.PUBLISH,
    (State.COPY, Reply.EXISTS): State.COMPARE,
    (State.COPY, Reply.ABSENT): State.COMPARE,
    (State.COPY, Reply.FAULT): State.UNKNOWN,
    (State.COMPARE, Reply.SAME): State.PUBLISH,
    (State.COMPARE, Reply.DIFFERENT): State.REPAIR,
    (State.COMPARE, Reply.ABSENT): State.WITHDRAW,
    (State.COMPARE, Reply.DIRECT): State.HELD,
    (State.COMPARE, Reply.FAULT): State.UNKNOWN,
    (State.PUBLISH, Reply.DONE): State.CLEAN,
    (State.PUBLISH, Reply.FAULT): State.COMMITTED,  # the final object decides; the next participant publishes the row
    (State.CLEAN, Reply.DONE): State.COMMITTED,
    (State.CLEAN, Reply.FAULT): State.COMMITTED,
    # The final object holds another writer's bytes: publish that version, and report the conflict.
    (State.REPAIR, Reply.DONE): State.ABANDON,
    (State.REPAIR, Reply.FAULT): State.CONFLICT,
    (State.ABANDON, Reply.DONE): State.CONFLICT,
    (State.ABANDON, Reply.FAULT): State.CONFLICT,
    # Resolve an unknown commit. If its staged manifest exists, commit again, which is idempotent. Without it, a new
    # reservation would be a dangling reference, so only the final object can answer.
    (State.FIND_STAGED, Reply.PRESENT): State.RESERVE,
    (State.FIND_STAGED, Reply.ABSENT): State.SETTLE,
    (State.FIND_STAGED, Reply.FAULT): State.UNKNOWN,
    (State.SETTLE, Reply.SAME): State.PUBLISH,
    (State.SETTLE, Reply.DIFFERENT): State.CONFLICT,
    (State.SETTLE, Reply.ABSENT): State.WITHDRAW,
    (State.SETTLE, Reply.FAULT): State.UNKNOWN,
    # A store refused before the writer wrote a row: remove the staged manifest.
    (State.RESERVE, Reply.REFUSED): State.DISCARD,
    (State.FINALIZE_PREDECESSOR, Reply.REFUSED): State.DISCARD,
    (State.FIND_PREDECESSOR, Reply.REFUSED): State.DISCARD,
    (State.ADOPT_PREDECESSOR, Reply.REFUSED): State.DISCARD,
    (State.DISCARD, Reply.DONE): State.REFUSED,
    (State.DISCARD, Reply.FAULT): State.REFUSED,
    # Neither the staged nor the final manifest exists: the version was cleaned up, or its table was dropped. Withdraw
    # the reservation, which would block every writer.
    (State.WITHDRAW, Reply.DONE): State.UNKNOWN,
    (State.WITHDRAW, Reply.FAULT): State.UNKNOWN,
    # Roll a staged row forward. The final object decides what the row records.
    (State.HELP_COPY, Reply.DONE): State.HELP_MEASURE,
    (State.HELP_COPY, Reply.EXISTS): State.HELP_COMPARE,
    (State.HELP_COPY, Reply.ABSENT): State.HELP_COMPARE,
    (State.HELP_COPY, Reply.FAULT): State.UNREADABLE,
    (State.HELP_COMPARE, Reply.PRESENT): State.HELP_PUBLISH,
    (State.HELP_COMPARE, Reply.ABSENT): State.HELP_REREAD,
    (State.HELP_COMPARE, Reply.DIRECT): State.HELD,
    (State.HELP_COMPARE, Reply.FAULT): State.UNREADABLE,
    (State.HELP_MEASURE, Reply.PRESENT): State.HELP_PUBLISH,
    (State.HELP_MEASURE, Reply.ABSENT): State.HELP_REREAD,
    (State.HELP_MEASURE, Reply.FAULT): State.UNREADABLE,
    (State.HELP_REREAD, Reply.FINAL): State.FINALIZED,
    (State.HELP_REREAD, Reply.CHANGED): State.HELP_COPY,
    (State.HELP_REREAD, Reply.UNCHANGED): State.LOST,
    (State.HELP_REREAD, Reply.ABSENT): State.VANISHED,
    (State.HELP_REREAD, Reply.FAULT): State.UNREADABLE,
    (State.HELP_PUBLISH, Reply.DONE): State.HELP_CLEAN,
    (State.HELP_PUBLISH, Reply.FAULT): State.UNREADABLE,  # "return error if synchronization fails"
    (State.HELP_CLEAN, Reply.DONE): State.FINALIZED,
    (State.HELP_CLEAN, Reply.FAULT): State.FINALIZED,
}

EFFECTS: Final[Mapping[State, Effect]] = {
    State.RESERVE: Effect.RESERVE,
    State.FINALIZE_PREDECESSOR: Effect.FINALIZE_MET,
    State.FIND_PREDECESSOR: Effect.FIND_PREDECESSOR,
    State.ADOPT_PREDECESSOR: Effect.RECORD_PREDECESSOR,
    State.RECOGNIZE: Effect.COMPARE,
    State.OVERTAKEN: Effect.COMPARE,
    State.FINALIZE_HOLDER: Effect.FINALIZE_MET,
    State.COPY: Effect.COPY,
    State.COMPARE: Effect.COMPARE,
    State.PUBLISH: Effect.FINALIZE_ROW,
    State.CLEAN: Effect.DELETE_STAGED,
    State.REPAIR: Effect.FINALIZE_ROW,
    State.ABANDON: Effect.DELETE_STAGED,
    State.DISCARD: Effect.DELETE_STAGED,
    State.FIND_STAGED: Effect.FIND_STAGED,
    State.SETTLE: Effect.COMPARE,
    State.WITHDRAW: Effect.WITHDRAW_ROW,
    State.HELP_COPY: Effect.COPY,
    State.HELP_COMPARE: Effect.COMPARE_MET,
    State.HELP_MEASURE: Effect.MEASURE_FINAL,
    State.HELP_REREAD: Effect.GET_ROW,
    State.HELP_PUBLISH: Effect.FINALIZE_ROW,
    State.HELP_CLEAN: Effect.DELETE_STAGED,
}
