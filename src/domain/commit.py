"""The protocol of the external manifest store, commit and read, as one pure state machine.

Implements "External Store Commit" and "External Store Reader" of the table format specification, with what a
participant does when it finds things otherwise. It knows no store: a runner performs the effect of the current state
(`EFFECTS`), says what came of it (`Event`), and `advance` looks up the next state in `TRANSITIONS` until the state has
no effect left: that is the outcome. Production and the model checker drive this same machine.

The order is: row with the staged path (this decides who wins) → create-only copy to the final name → row with the
final path → removal of the staged file. It holds that

- version N+1 is not reserved before N is final, so a reader that knows nothing of the commit store is at most one
  version behind, and a copy of the directory is a complete table;
- the final object decides: where it holds another's bytes (the store had lost a row), that commit stands;
- a file is removed only after a definite outcome; after a fault nothing is.
"""

from __future__ import annotations

from typing import Final

import attrs

from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.commit_transitions import EFFECTS, TRANSITIONS, Effect, Reply, State
from lancekeep.domain.errors import Damaged, InvalidInput, LancekeepError, NotFound, ObjectNotFound, Refused
from lancekeep.domain.naming import final_path
from lancekeep.domain.version_row import NotReady, Reservation, Reserved, VersionRow


@attrs.frozen
class Committed:
    """The version is the caller's: ``path`` is the key of its manifest, ``size`` in bytes."""

    version: int
    path: str
    size: int


@attrs.frozen
class Conflict:
    """Another manifest is that version: ``winner``, where it was met."""

    winner: VersionRow | None


@attrs.frozen
class Unknown:
    """The outcome could not be learnt; nothing was removed. ``resolve(token)`` settles it."""

    token: CommitToken
    reason: str


Outcome = Committed | Conflict | Unknown


@attrs.frozen
class Event:
    """What came of an effect, with the row that was met and the size of the final object where they matter."""

    reply: Reply
    row: VersionRow | None = None
    size: int | None = None


@attrs.frozen
class Progress:
    """A participant between two effects.

    row: what it works on: its own row, or the row it helps with.
    staged: its own staged manifest; None for a helper.
    met: the last foreign row it met: the winner, or the predecessor that is in the way.
    size: bytes of the final object, once known; what the row will say.
    repeated: an earlier attempt at the same may have had its effect.
    """

    state: State
    row: VersionRow
    staged: StagedManifest | None = None
    met: VersionRow | None = None
    size: int | None = None
    repeated: bool = False

    @property
    def effect(self) -> Effect | None:
        """What to do now; None at an outcome."""
        return EFFECTS.get(self.state)

    @property
    def final_row(self) -> VersionRow:
        """The row as it reads once the manifest lies under its final name."""
        row = self.row
        size = row.size if self.size is None else self.size
        return VersionRow(row.base_uri, row.version, final_path(row.path), size, row.committer)


DONE: Final = Event(Reply.DONE)
EXISTS: Final = Event(Reply.EXISTS)
ABSENT: Final = Event(Reply.ABSENT)
FAULT: Final = Event(Reply.FAULT)
REFUSED: Final = Event(Reply.REFUSED)
RESERVED: Final = Event(Reply.RESERVED)


def begin_commit(staged: StagedManifest) -> Progress:
    """A writer whose manifest is staged (step 1 of "External Store Commit" is done)."""
    first = staged.begins and staged.version == 1
    return Progress(State.RESERVE_FIRST if first else State.RESERVE, staged.row, staged)


def begin_resolve(token: CommitToken) -> Progress:
    """A writer that comes back for a commit whose outcome it could not learn."""
    return Progress(State.FIND_STAGED, token.staged.row, token.staged, repeated=True)


def begin_help(row: VersionRow) -> Progress:
    """Any participant that meets a staged row (step 2 of "External Store Reader")."""
    return Progress(State.HELP_COPY, row)


def failed(progress: Progress, error: LancekeepError, *, asked_before: bool) -> Event:
    """Return the event for an effect that raised ``error``.

    A definite error refuses the commit if nothing of it can have been written. With ``asked_before``, an earlier
    request of this commit went unanswered and may have had its effect, so the outcome stays open. It also stays open if
    the staged manifest is missing: another participant may have finished the commit.
    """
    definite = isinstance(error, (InvalidInput, NotFound, Refused, Damaged)) and not isinstance(error, ObjectNotFound)
    definite = definite and not asked_before
    return REFUSED if definite and (progress.state, Reply.REFUSED) in TRANSITIONS else FAULT


def advance(progress: Progress, event: Event) -> Progress:
    """The participant after ``event``.

    Raises:
        RuntimeError: the event cannot follow from the state's effect; nothing changes. That is a fault of the runner.
    """
    following = TRANSITIONS.get((progress.state, event.reply))
    if following is None:
        raise RuntimeError(f"{event.reply} cannot follow from {progress.state}")
    if progress.staged is None and event.reply in (Reply.CHANGED, Reply.FINAL) and event.row is not None:
        return Progress(following, event.row)
    met = progress.met if event.row is None else event.row
    size = progress.size if event.size is None else event.size
    return Progress(following, progress.row, progress.staged, met, size, progress.repeated)


def understand(staged: StagedManifest, reservation: Reservation, *, repeated: bool) -> Event:
    """What the answer of the commit store to a claim means for the writer of ``staged``.

    ``repeated``: the claim was made before, and may have been granted.
    """
    if isinstance(reservation, Reserved):
        return RESERVED
    if isinstance(reservation, NotReady):
        return _understand_not_ready(staged, reservation.latest, repeated)
    holder = reservation.row
    if holder.moved_to is not None:
        return Event(Reply.MOVED, holder)
    if repeated and not holder.is_final:
        return Event(Reply.CONTESTED, holder)
    own_size = holder.is_final and holder.size == staged.size
    return Event(Reply.PERHAPS_OWN if own_size else Reply.TAKEN, holder)


def _understand_not_ready(staged: StagedManifest, latest: VersionRow | None, repeated: bool) -> Event:
    if latest is None:
        return Event(Reply.PREDECESSOR_MISSING)
    if latest.moved_to is not None:
        return Event(Reply.MOVED, latest)
    if latest.version >= staged.version:  # the version was decided; its row was cleaned up, or lost
        return Event(Reply.PERHAPS_OWN if repeated else Reply.OVERTAKEN, latest)
    if latest.version == staged.version - 1 and not latest.is_final:
        return Event(Reply.PREDECESSOR_STAGED, latest)
    return Event(Reply.PREDECESSOR_MISSING, latest)


def found_predecessor(progress: Progress, present: bool) -> Event:
    """What it means that the final manifest of the version before is, or is not, in the object store.

    Present: the store has lost the row, or the history was written before it had one. Absent: nothing precedes this
    version, which is right for the beginning of a history and a gap anywhere else.
    """
    if present:
        return Event(Reply.PRESENT)
    begins = progress.staged is not None and progress.staged.begins and progress.met is None
    return Event(Reply.MAY_BEGIN if begins else Reply.ABSENT)
