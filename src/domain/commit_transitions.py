"""The transition table of the commit protocol: states, effects, replies, and the state that follows each reply."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class _Symbol(Enum):
    """An enumeration whose members are keys of hot look-ups: they are singletons, so identity may be their hash."""

    __hash__ = object.__hash__


class State(_Symbol):
    """Where a participant stands."""

    # a writer with a staged manifest of its own
    RESERVE = auto()
    RESERVE_FIRST = auto()
    FINALIZE_PREDECESSOR = auto()
    FIND_PREDECESSOR = auto()
    ADOPT_PREDECESSOR = auto()
    RECOGNIZE = auto()
    OVERTAKEN = auto()
    FINALIZE_HOLDER = auto()
    COPY = auto()
    COMPARE = auto()
    PUBLISH = auto()
    RESTORE = auto()
    CLEAN = auto()
    REPAIR = auto()
    REPAIR_LOST_ROW = auto()
    ABANDON = auto()
    DISCARD = auto()
    # a writer that comes back for a commit it lost sight of
    FIND_STAGED = auto()
    SETTLE = auto()
    WITHDRAW = auto()
    # a reader, or any other participant, that meets a staged row
    HELP_COPY = auto()
    HELP_MEASURE = auto()
    HELP_REREAD = auto()
    HELP_PUBLISH = auto()
    HELP_RESTORE = auto()
    HELP_CLEAN = auto()
    # outcomes
    COMMITTED = auto()
    CONFLICT = auto()
    UNKNOWN = auto()
    GAP = auto()
    MOVED = auto()
    REFUSED = auto()
    FINALIZED = auto()
    VANISHED = auto()
    UNREADABLE = auto()
    LOST = auto()


class Effect(_Symbol):
    """What a participant does to the world; the subject is its own staged manifest, or the row it helps with."""

    RESERVE = auto()
    RESERVE_FIRST = auto()
    FINALIZE_MET = auto()
    FIND_PREDECESSOR = auto()
    RECORD_PREDECESSOR = auto()
    COPY = auto()
    COMPARE = auto()
    FINALIZE_ROW = auto()
    RECORD_ROW = auto()
    DELETE_STAGED = auto()
    FIND_STAGED = auto()
    WITHDRAW_ROW = auto()
    MEASURE_FINAL = auto()
    GET_ROW = auto()


class Reply(_Symbol):
    """What came of an effect."""

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
    MAY_BEGIN = auto()
    CHANGED = auto()
    UNCHANGED = auto()
    FINAL = auto()
    REFUSED = auto()
    FAULT = auto()


TRANSITIONS: Final[Mapping[tuple[State, Reply], State]] = {
    # Who gets the version?
    (State.RESERVE, Reply.RESERVED): State.COPY,
    (State.RESERVE, Reply.TAKEN): State.ABANDON,
    (State.RESERVE, Reply.PERHAPS_OWN): State.RECOGNIZE,
    (State.RESERVE, Reply.OVERTAKEN): State.OVERTAKEN,
    (State.RESERVE, Reply.CONTESTED): State.FINALIZE_HOLDER,
    (State.RESERVE, Reply.PREDECESSOR_STAGED): State.FINALIZE_PREDECESSOR,
    (State.RESERVE, Reply.PREDECESSOR_MISSING): State.FIND_PREDECESSOR,
    (State.RESERVE, Reply.MOVED): State.MOVED,
    (State.RESERVE, Reply.FAULT): State.UNKNOWN,
    (State.RESERVE_FIRST, Reply.RESERVED): State.COPY,
    (State.RESERVE_FIRST, Reply.TAKEN): State.ABANDON,
    (State.RESERVE_FIRST, Reply.PERHAPS_OWN): State.RECOGNIZE,
    (State.RESERVE_FIRST, Reply.OVERTAKEN): State.OVERTAKEN,
    (State.RESERVE_FIRST, Reply.CONTESTED): State.FINALIZE_HOLDER,
    (State.RESERVE_FIRST, Reply.PREDECESSOR_STAGED): State.FINALIZE_PREDECESSOR,
    (State.RESERVE_FIRST, Reply.PREDECESSOR_MISSING): State.FIND_PREDECESSOR,
    (State.RESERVE_FIRST, Reply.MOVED): State.MOVED,
    (State.RESERVE_FIRST, Reply.FAULT): State.UNKNOWN,
    # The version before it is not final, or has no row: finish it, or take over what lies there.
    (State.FINALIZE_PREDECESSOR, Reply.DONE): State.RESERVE,
    (State.FINALIZE_PREDECESSOR, Reply.FAULT): State.UNKNOWN,
    (State.FIND_PREDECESSOR, Reply.PRESENT): State.ADOPT_PREDECESSOR,
    (State.FIND_PREDECESSOR, Reply.MAY_BEGIN): State.RESERVE_FIRST,
    (State.FIND_PREDECESSOR, Reply.ABSENT): State.GAP,
    (State.FIND_PREDECESSOR, Reply.FAULT): State.UNKNOWN,
    (State.ADOPT_PREDECESSOR, Reply.DONE): State.RESERVE,
    (State.ADOPT_PREDECESSOR, Reply.FAULT): State.UNKNOWN,
    # The row is final, or gone, and may have been our own: a reply was lost and a reader finished the commit meanwhile.
    # Where the version was cleaned up since, nobody can say any more whose it was.
    (State.RECOGNIZE, Reply.SAME): State.CLEAN,
    (State.RECOGNIZE, Reply.DIFFERENT): State.ABANDON,
    (State.RECOGNIZE, Reply.ABSENT): State.UNKNOWN,
    (State.RECOGNIZE, Reply.FAULT): State.UNKNOWN,
    # The row is gone, later ones stand, and this writer asks for the first time: only a caller or a driver that
    # repeated itself unseen can have committed before.
    (State.OVERTAKEN, Reply.SAME): State.CLEAN,
    (State.OVERTAKEN, Reply.DIFFERENT): State.ABANDON,
    (State.OVERTAKEN, Reply.ABSENT): State.ABANDON,
    (State.OVERTAKEN, Reply.FAULT): State.UNKNOWN,
    # Another's row is under way, but this writer may have copied before the store lost its own: let the version become
    # final, and then see whose it is.
    (State.FINALIZE_HOLDER, Reply.DONE): State.RECOGNIZE,
    (State.FINALIZE_HOLDER, Reply.FAULT): State.UNKNOWN,
    # The version is ours: bring it under its final name, then say so in the row.
    (State.COPY, Reply.DONE): State.PUBLISH,
    (State.COPY, Reply.EXISTS): State.COMPARE,
    (State.COPY, Reply.ABSENT): State.COMPARE,
    (State.COPY, Reply.FAULT): State.UNKNOWN,
    (State.COMPARE, Reply.SAME): State.PUBLISH,
    (State.COMPARE, Reply.DIFFERENT): State.REPAIR,
    (State.COMPARE, Reply.ABSENT): State.WITHDRAW,
    (State.COMPARE, Reply.FAULT): State.UNKNOWN,
    (State.PUBLISH, Reply.DONE): State.CLEAN,
    (State.PUBLISH, Reply.ABSENT): State.RESTORE,
    (State.PUBLISH, Reply.FAULT): State.COMMITTED,  # the final object is ours; the next participant sets the row right
    (State.RESTORE, Reply.DONE): State.CLEAN,
    (State.RESTORE, Reply.FAULT): State.COMMITTED,
    (State.CLEAN, Reply.DONE): State.COMMITTED,
    (State.CLEAN, Reply.FAULT): State.COMMITTED,
    # The final object holds another's bytes: publish what is there, and step back.
    (State.REPAIR, Reply.DONE): State.ABANDON,
    (State.REPAIR, Reply.ABSENT): State.REPAIR_LOST_ROW,
    (State.REPAIR, Reply.FAULT): State.CONFLICT,
    (State.REPAIR_LOST_ROW, Reply.DONE): State.ABANDON,
    (State.REPAIR_LOST_ROW, Reply.FAULT): State.CONFLICT,
    (State.ABANDON, Reply.DONE): State.CONFLICT,
    (State.ABANDON, Reply.FAULT): State.CONFLICT,
    # A commit lost sight of. With its staged manifest still there it is simply tried again: that is idempotent.
    # Without, a reservation would point at nothing, so the final object alone can answer.
    (State.FIND_STAGED, Reply.PRESENT): State.RESERVE,
    (State.FIND_STAGED, Reply.ABSENT): State.SETTLE,
    (State.FIND_STAGED, Reply.FAULT): State.UNKNOWN,
    (State.SETTLE, Reply.SAME): State.PUBLISH,
    (State.SETTLE, Reply.DIFFERENT): State.CONFLICT,
    (State.SETTLE, Reply.ABSENT): State.WITHDRAW,
    (State.SETTLE, Reply.FAULT): State.UNKNOWN,
    # A store refused before anything of this writer was written: nothing of its commit remains.
    (State.RESERVE, Reply.REFUSED): State.DISCARD,
    (State.RESERVE_FIRST, Reply.REFUSED): State.DISCARD,
    (State.FINALIZE_PREDECESSOR, Reply.REFUSED): State.DISCARD,
    (State.FIND_PREDECESSOR, Reply.REFUSED): State.DISCARD,
    (State.ADOPT_PREDECESSOR, Reply.REFUSED): State.DISCARD,
    (State.DISCARD, Reply.DONE): State.REFUSED,
    (State.DISCARD, Reply.FAULT): State.REFUSED,
    # Neither is there: nobody can say whether the version was there, and was cleaned up, or went with its table. A
    # reservation that points at nothing is in everybody's way, so it is taken back.
    (State.WITHDRAW, Reply.DONE): State.UNKNOWN,
    (State.WITHDRAW, Reply.FAULT): State.UNKNOWN,
    # Somebody left a staged row: roll it forward. The final object decides what the row says.
    (State.HELP_COPY, Reply.DONE): State.HELP_MEASURE,
    (State.HELP_COPY, Reply.EXISTS): State.HELP_MEASURE,
    (State.HELP_COPY, Reply.ABSENT): State.HELP_MEASURE,
    (State.HELP_COPY, Reply.FAULT): State.UNREADABLE,
    (State.HELP_MEASURE, Reply.PRESENT): State.HELP_PUBLISH,
    (State.HELP_MEASURE, Reply.ABSENT): State.HELP_REREAD,
    (State.HELP_MEASURE, Reply.FAULT): State.UNREADABLE,
    (State.HELP_REREAD, Reply.FINAL): State.FINALIZED,
    (State.HELP_REREAD, Reply.CHANGED): State.HELP_COPY,
    (State.HELP_REREAD, Reply.UNCHANGED): State.LOST,
    (State.HELP_REREAD, Reply.ABSENT): State.VANISHED,
    (State.HELP_REREAD, Reply.FAULT): State.UNREADABLE,
    (State.HELP_PUBLISH, Reply.DONE): State.HELP_CLEAN,
    (State.HELP_PUBLISH, Reply.ABSENT): State.HELP_RESTORE,
    (State.HELP_PUBLISH, Reply.FAULT): State.UNREADABLE,  # "return error if synchronization fails"
    (State.HELP_RESTORE, Reply.DONE): State.HELP_CLEAN,
    (State.HELP_RESTORE, Reply.FAULT): State.UNREADABLE,
    (State.HELP_CLEAN, Reply.DONE): State.FINALIZED,
    (State.HELP_CLEAN, Reply.FAULT): State.FINALIZED,
}

EFFECTS: Final[Mapping[State, Effect]] = {
    State.RESERVE: Effect.RESERVE,
    State.RESERVE_FIRST: Effect.RESERVE_FIRST,
    State.FINALIZE_PREDECESSOR: Effect.FINALIZE_MET,
    State.FIND_PREDECESSOR: Effect.FIND_PREDECESSOR,
    State.ADOPT_PREDECESSOR: Effect.RECORD_PREDECESSOR,
    State.RECOGNIZE: Effect.COMPARE,
    State.OVERTAKEN: Effect.COMPARE,
    State.FINALIZE_HOLDER: Effect.FINALIZE_MET,
    State.COPY: Effect.COPY,
    State.COMPARE: Effect.COMPARE,
    State.PUBLISH: Effect.FINALIZE_ROW,
    State.RESTORE: Effect.RECORD_ROW,
    State.CLEAN: Effect.DELETE_STAGED,
    State.REPAIR: Effect.FINALIZE_ROW,
    State.REPAIR_LOST_ROW: Effect.RECORD_ROW,
    State.ABANDON: Effect.DELETE_STAGED,
    State.DISCARD: Effect.DELETE_STAGED,
    State.FIND_STAGED: Effect.FIND_STAGED,
    State.SETTLE: Effect.COMPARE,
    State.WITHDRAW: Effect.WITHDRAW_ROW,
    State.HELP_COPY: Effect.COPY,
    State.HELP_MEASURE: Effect.MEASURE_FINAL,
    State.HELP_REREAD: Effect.GET_ROW,
    State.HELP_PUBLISH: Effect.FINALIZE_ROW,
    State.HELP_RESTORE: Effect.RECORD_ROW,
    State.HELP_CLEAN: Effect.DELETE_STAGED,
}
