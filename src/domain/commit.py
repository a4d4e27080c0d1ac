"""The commit protocol of the external manifest store, as one pure state machine.

It implements "External Store Commit" and "External Store Reader" of the table format specification, and adds what a
participant does when it meets an unfinished, lost or foreign version.

Theory of operation:

1. A *participant* is a writer with a staged manifest, a writer that resolves an unknown commit, or a reader that meets
   a staged row. `begin_commit`, `begin_resolve` and `begin_help` return its first `Progress`.
2. A `Progress` is a `State` and the values that go with it. `EFFECTS` names the effect of each state: one request, or
   a few, to the commit store and the object store. A state without an effect is an outcome.
3. The runner (`lancekeep.application.commits.protocol_runner`) performs the effect and reports an `Event`: the `Reply`,
   and the row or the size that came with it. The machine itself performs no I/O and holds no store.
4. `advance` finds the next state in `TRANSITIONS`. An event that cannot follow from the state raises and changes
   nothing. Steps 3 and 4 repeat until the participant reaches an outcome.
5. An undisturbed commit takes four effects: *reserve* the row with the staged path, which decides the winner; *copy*
   the manifest to its final name, create-only; *publish* the row with the final path; *clean*, which removes the
   staged manifest. A crash between two effects is rolled forward by the next participant, reader or writer.
6. Every effect is idempotent. After a lost reply the runner repeats it with ``repeated`` set, because the first attempt
   may have succeeded. A writer that repeats a claim asks the final object who won, never the row.
7. An effect that keeps failing replies `Reply.FAULT`. No deletion follows a fault: the outcome is unknown, or it is
   already decided and the remaining work is left to the next participant.

The table keeps three invariants:

- Version N+1 is reserved only after version N is final. So a reader that does not know the commit store is at most one
  version behind, and a copy of the directory is a complete table.
- The final object decides. If the commit store lost a row and another writer's bytes have the final name, that commit
  stands.
- A file is removed only after a definite outcome.

Production, the model checker and the simulator drive this same machine.
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
class Changed:
    """A committed change of a table.

    Attributes:
        version: The version that holds the change.
        transaction: The id of its transaction; None if it is not known.
    """

    version: int
    transaction: str | None


@attrs.frozen
class Committed:
    """The version is committed.

    Attributes:
        path: The key of its manifest.
        size: The size of its manifest, in bytes.
        transaction: The name of its transaction file, which identifies the version; empty if the caller did not learn
            it.
        rows: The number of rows that an append added; None if the caller did not learn it.
    """

    version: int
    path: str
    size: int
    transaction: str = attrs.field(default="", eq=False, repr=False)
    rows: int | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class Upserted(Committed):
    """The version of an upsert is committed.

    Attributes:
        inserted: The number of rows that the upsert inserted.
        updated: The number of rows that it updated.
    """

    inserted: int = attrs.field(default=0, kw_only=True)
    updated: int = attrs.field(default=0, kw_only=True)


@attrs.frozen
class Conflict:
    """Another manifest is the version; ``winner`` is its row, if the writer met it."""

    winner: VersionRow | None


@attrs.frozen
class Unknown:
    """The outcome is open and nothing was removed; ``resolve(token)`` settles it."""

    token: CommitToken
    reason: str


Outcome = Committed | Conflict | Unknown


@attrs.frozen
class Event:
    """The reply to an effect, with a row or the final object's size if it has one."""

    reply: Reply
    row: VersionRow | None = None
    size: int | None = None


@attrs.frozen
class Progress:
    """A participant between two effects.

    Attributes:
        state: the current state; it names the next effect.
        row: the writer's own row, or the row that a reader rolls forward.
        staged: the writer's staged manifest; None for a reader.
        met: the last row of another writer: the winner, or an unfinished predecessor.
        size: the size of the final object in bytes, once known; the final row records it.
        repeated: an earlier attempt at the effect may have succeeded.
        first: the claim begins the history; the commit store grants it only if the history has no row.
    """

    state: State
    row: VersionRow
    staged: StagedManifest | None = None
    met: VersionRow | None = None
    size: int | None = None
    repeated: bool = False
    first: bool = False

    @property
    def effect(self) -> Effect | None:
        """The effect to perform next; None at an outcome."""
        return EFFECTS.get(self.state)

    @property
    def final_row(self) -> VersionRow:
        """The row to publish once the manifest has its final name."""
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
    """Begin to commit a staged manifest (after step 1 of "External Store Commit")."""
    first = staged.begins and staged.version == 1
    return Progress(State.RESERVE, staged.row, staged, first=first)


def begin_resolve(token: CommitToken) -> Progress:
    """Begin to resolve a commit whose outcome is unknown."""
    return Progress(State.FIND_STAGED, token.staged.row, token.staged, repeated=True)


def begin_help(row: VersionRow) -> Progress:
    """Begin to roll a staged row forward (step 2 of "External Store Reader")."""
    return Progress(State.HELP_COPY, row)


def failed(progress: Progress, error: LancekeepError, *, asked_before: bool) -> Event:
    """Return the event for an effect that raised ``error``.

    A definite error refuses the commit if nothing of it can have been written. With ``asked_before``, an earlier
    request of this commit had no reply and may have succeeded, so the outcome stays open. It also stays open if the
    staged manifest is missing: another participant may have finished the commit.
    """
    definite = isinstance(error, (InvalidInput, NotFound, Refused, Damaged)) and not isinstance(error, ObjectNotFound)
    definite = definite and not asked_before
    return REFUSED if definite and (progress.state, Reply.REFUSED) in TRANSITIONS else FAULT


def advance(progress: Progress, event: Event) -> Progress:
    """Return the participant after ``event``.

    Raises:
        RuntimeError: the event cannot follow from the state's effect, which is a defect of the runner. Nothing changes.
    """
    following = TRANSITIONS.get((progress.state, event.reply))
    if following is None:
        raise RuntimeError(f"{event.reply} cannot follow from {progress.state}")
    if progress.staged is None and event.reply in (Reply.CHANGED, Reply.FINAL) and event.row is not None:
        return Progress(following, event.row)
    met = progress.met if event.row is None else event.row
    size = progress.size if event.size is None else event.size
    first = event.reply is Reply.MAY_BEGIN
    return Progress(following, progress.row, progress.staged, met, size, progress.repeated, first)


def understand(staged: StagedManifest, reservation: Reservation, *, repeated: bool) -> Event:
    """Return what the reply to a claim means for the writer of ``staged``.

    Args:
        staged: the manifest that claims its version.
        reservation: the reply of the commit store.
        repeated: an earlier claim may have been granted, so a foreign row does not prove that another writer won.
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
    if not holder.is_final or holder.size != staged.size:
        return Event(Reply.TAKEN, holder)
    return Event(Reply.PERHAPS_OWN if repeated else Reply.OVERTAKEN, holder)


def _understand_not_ready(staged: StagedManifest, latest: VersionRow | None, repeated: bool) -> Event:
    if latest is None:
        return Event(Reply.PREDECESSOR_MISSING)
    if latest.moved_to is not None:
        return Event(Reply.MOVED, latest)
    if latest.version >= staged.version:  # the version was decided; its row was cleaned up or lost
        return Event(Reply.PERHAPS_OWN if repeated else Reply.OVERTAKEN, latest)
    if latest.version == staged.version - 1 and not latest.is_final:
        return Event(Reply.PREDECESSOR_STAGED, latest)
    return Event(Reply.PREDECESSOR_MISSING, latest)


def found_predecessor(progress: Progress, present: bool) -> Event:
    """Return what the presence of the predecessor's final manifest means.

    If it is present, the commit store lost its row, or a writer made the version without the commit store. If it is
    absent, the version may begin its history; anywhere else it would leave a gap.
    """
    if present:
        return Event(Reply.PRESENT)
    begins = progress.staged is not None and progress.staged.begins and progress.met is None
    return Event(Reply.MAY_BEGIN if begins else Reply.ABSENT)
