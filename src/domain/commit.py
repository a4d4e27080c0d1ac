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

import json
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

import attrs

from lancekeep.domain.errors import Damaged, InvalidInput, LancekeepError, NotFound, ObjectNotFound, Refused
from lancekeep.domain.layout import VERSIONS
from lancekeep.domain.naming import ManifestName, final_path
from lancekeep.domain.version_row import NotReady, Reservation, Reserved, VersionRow, names_version

HIGHEST = 2**63 - 1
"""The highest version, and size, that every commit store keeps."""
_DIGEST = re.compile("[0-9a-f]{64}")


@attrs.frozen
class StagedManifest:
    """A manifest that wants to become a version.

    path: its key, ending in ``.manifest-{uuid}``: the identity by which a writer recognises its own commit.
    size: in bytes. digest: SHA-256 of the content in hexadecimal, by which whoever has not got the content recognises
    it under the final name: only a token needs it.
    begins: the history may begin with this version: version 1, or the first of a branch.
    """

    base_uri: str
    version: int
    path: str
    size: int
    begins: bool = False
    committer: str = ""
    digest: str = ""

    @property
    def row(self) -> VersionRow:
        return VersionRow(self.base_uri, self.version, self.path, self.size, self.committer)


@attrs.frozen
class CommitToken:
    """What ``resolve`` needs to settle an unknown commit, in this process or another: it has a text form.

    others: what was to be committed together with ``staged``, by a transaction.
    """

    staged: StagedManifest
    others: tuple[StagedManifest, ...] = ()

    @property
    def members(self) -> tuple[StagedManifest, ...]:
        """Everything that the commit is about."""
        return self.staged, *self.others

    def __str__(self) -> str:
        members = [attrs.asdict(staged) for staged in self.members]
        return json.dumps(members if self.others else members[0], separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> CommitToken:
        """Parse the text of a token; the inverse of ``str(token)``.

        A token is input: its paths are confined to the datasets that it names.

        Raises:
            InvalidInput: the text is no token, or a part of it cannot be a commit to its dataset.
        """
        try:
            found = json.loads(text)
            members = [StagedManifest(**member) for member in (found if isinstance(found, list) else [found])]
            for member in members:
                if [type(value) for value in attrs.astuple(member)] != [str, int, str, int, bool, str, str]:
                    raise TypeError("a field is of another type")
            token = CommitToken(members[0], tuple(members[1:]))
        except (TypeError, ValueError, IndexError, RecursionError) as error:
            raise InvalidInput(
                f"not a commit token, which is the JSON text that str(token) gives: {text[:500]!r}"
            ) from error
        if fault := next(filter(None, map(_fault, members)), ""):
            raise InvalidInput(f"not a token that Lancekeep made: {fault}; nothing was done")
        if len({member.base_uri for member in members}) < len(members):
            raise InvalidInput("not a token that Lancekeep made: it names one dataset twice; nothing was done")
        return token


def _fault(staged: StagedManifest) -> str:
    """Return why nothing can be committed as a part of a token says; empty if it can."""
    name = ManifestName.parse(staged.path.rpartition("/")[2])
    key = staged.path.rpartition(f"/{VERSIONS}/")[0]
    if not 0 < staged.version <= HIGHEST or not 0 < staged.size <= HIGHEST:
        return f"version {staged.version} of {staged.size} bytes cannot be"
    if name is None or not name.is_staged or not names_version(staged.path, key, staged.version):
        return f"{staged.path!r:.200} is not the path of a staged manifest of version {staged.version}"
    if not key or not staged.base_uri.endswith(f"/{key}"):
        return f"{staged.path!r:.200} does not lie in {staged.base_uri!r:.200}"
    if staged.digest and not _DIGEST.fullmatch(staged.digest):
        return f"{staged.digest!r:.200} is not a SHA-256 digest"
    return ""


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


@attrs.frozen
class Event:
    """What came of an effect, with the row that was met and the size of the final object where they matter."""

    reply: Reply
    row: VersionRow | None = None
    size: int | None = None


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
