"""Participants: the product's own `TableCommits`, run up to its next call of a port, again and again.

A participant is its programme and the replies it has heard. To find its next call the programme runs from its
beginning on those replies: nothing in the product has to know of the model. What it heard before the effect it stands
at is forgotten, since `Progress` says all that matters of it: so states merge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import attrs
from model.world import ROOT, Mishap, Request, Tale, letter_of
from unchecked import unchecked

from lancekeep.application.commits.lineage import Descendant
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.held_commits import HeldCommits
from lancekeep.domain.commit import Committed, Conflict, Event, Outcome, Progress
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.commit_transitions import State
from lancekeep.domain.direct_commits import Decision, lifted_of, mark_of
from lancekeep.domain.errors import (
    CommitRefused,
    ConcurrentModification,
    Damaged,
    LancekeepError,
    ObjectNotFound,
    Refused,
    StoreUnavailable,
)
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Base
from lancekeep.domain.version_row import BatchReservation, Claim, Reservation, VersionRow
from lancekeep.ports.commit_store import CommitStoreGuarantees
from lancekeep.ports.object_store import ObjectInfo, ObjectStoreGuarantees, Piece, Tail

ONE_MORE_TRY = Retry(patience=0, clock=lambda: 0.0, sleep=lambda _: None)
"""An effect that failed is repeated once: the smallest patience that shows what a repetition can do."""


_MARK, _LIFTED = mark_of(ROOT.base_uri), lifted_of(ROOT.base_uri)


class Pending(BaseException):
    """The replies are used up: this call is next."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.request = request


@attrs.frozen
class Resume:
    """What stands in a log for all that led to ``progress``.

    removed: keys deleted on the way. unrestored: versions whose rows were found lost, and not entered again.
    """

    progress: Progress
    removed: frozenset[str]
    unrestored: frozenset[int]


class Tape:
    """The replies that a programme has received, and its reports."""

    def __init__(self, log: Iterable[Any]) -> None:
        self.log = list(log)
        self.at = 0
        self.removed: frozenset[str] = frozenset()
        self.unrestored: frozenset[int] = frozenset()
        self.tales: list[Tale] = []

    def ask(self, method: str, *args: Any) -> Any:
        if self.at == len(self.log):
            raise Pending(Request(method, args))
        reply = self.log[self.at]
        self.at += 1
        if method == "objects.delete":
            self.removed |= set(args)
        elif method == "rows.finalize" and reply is False:
            self.unrestored |= {args[-1].version}
        elif method == "rows.record":
            self.unrestored -= {args[-1].version}
        if reply is Mishap.FAULT:
            raise StoreUnavailable(f"{method}: no reply")
        if reply is Mishap.MISSING:
            raise ObjectNotFound(f"{args[0]}: no such object")
        return reply

    def tell(self, what: str, about: Any) -> None:
        self.tales.append(Tale(what, about))

    def resumed(self, progress: Progress) -> Progress:
        if self.at < len(self.log) and isinstance(self.log[self.at], Resume):
            resume: Resume = self.log[self.at]
            self.at += 1
            self.removed |= resume.removed
            self.unrestored |= resume.unrestored
            return resume.progress
        return progress

    def forget(self, since: int, progress: Progress) -> None:
        """Let ``progress`` stand for what was heard since the run of the machine began."""
        self.log[since : self.at] = [Resume(progress, self.removed, self.unrestored)]
        self.at = since + 1


class Participant(TableCommits):
    """The runner as it is in production; only its memory is kept short."""

    def __init__(
        self,
        tape: Tape,
        guarantees: ObjectStoreGuarantees,
        *,
        trusts_rows: bool,
        holds: bool = False,
        lifts: bool = False,
    ) -> None:
        super().__init__(_Objects(tape, guarantees), _Rows(tape, trusts_rows, holds, lifts), "", ONE_MORE_TRY)
        self._tape = tape
        self._holds = holds
        self._runs: list[tuple[int, Progress | None]] = []
        self._effects = {effect: self._noting(perform) for effect, perform in self._effects.items()}

    def require_descent(
        self, root: DatasetRoot, staged: StagedManifest, content: bytes, base: Base | None
    ) -> tuple[StagedManifest, bytes, Descendant]:
        """Also compare manifests of the model, which the lineage cannot decode, if direct commits may be replaced."""
        result = super().require_descent(root, staged, content, base)
        if self._holds:
            before = self.final_object(root, staged.version - 1)
            predecessor = b"" if before is None else self.objects.get(before.path)
            if not content.partition(b"<")[2].startswith(letter_of(predecessor).encode()):
                raise CommitRefused("it does not descend from the version before it")
        return result

    def run(
        self, progress: Progress, content: bytes | None, deadline: float, until: Collection[State] = (), **ahead: Any
    ) -> tuple[Progress, LancekeepError | None]:
        self._runs.append((self._tape.at, None))
        try:
            return super().run(self._tape.resumed(progress), content, deadline, until, **ahead)
        finally:
            self._runs.pop()

    def _noting(self, perform: Any) -> Any:
        def noting(progress: Progress, content: bytes | None) -> Event:
            since, known = self._runs[-1]
            if known is None or known.state is not progress.state:  # a repetition remembers that it is one
                self._runs[-1] = since, progress
                self._tape.forget(since, progress)
            event: Event = perform(progress, content)
            return event

        return noting


class Programme(Protocol):
    """The steps of a participant up to a point at which one value describes its state."""

    def run(self, tape: Tape, commits: Participant) -> Programme | None:
        """The programme that follows; None at the end."""


@attrs.frozen(cache_hash=True)
class Append:
    """A writer: read the latest version, build the next one on it, stage it.

    hasty: it takes the row as it is and does not finalize it, as a writer of another make may.
    """

    left: int
    hasty: bool = False

    def run(self, tape: Tape, commits: Participant) -> Programme | None:
        try:
            row = commits.rows.latest(ROOT.base_uri) if self.hasty else commits.latest(ROOT)
        except StoreUnavailable:
            return None
        except Damaged as error:
            tape.tell("the table cannot be read", str(error))
            return None
        try:
            predecessor = b"" if row is None else commits.objects.get(row.path)
        except StoreUnavailable:
            return None
        except ObjectNotFound:
            assert row is not None
            if row.is_final:
                tape.tell("vanished", row.version)
            return Append(self.left)
        version = 1 if row is None else row.version + 1
        path, content = tape.ask("stage", version, predecessor)
        return Commit(self.left, version, path, content)


@attrs.frozen(cache_hash=True)
class Commit:
    """A writer with a staged manifest."""

    left: int
    version: int
    path: str
    content: bytes

    def run(self, tape: Tape, commits: Participant) -> Programme | None:
        try:
            outcome = commits.commit(ROOT, self.version, self.path, None, branch=False, check=unchecked)
        except (CommitRefused, StoreUnavailable):  # both promise that nothing was committed
            tape.tell("lost", self.content)
            return None
        return _after(self, outcome, tape)


@attrs.frozen(cache_hash=True)
class Resolve:
    """A writer that resolves its unknown commit."""

    commit: Commit
    token: CommitToken

    def run(self, tape: Tape, commits: Participant) -> Programme | None:
        try:
            outcome = commits.resolve(self.token)
        except CommitRefused:
            tape.tell("lost", self.commit.content)
            return None
        return _after(self.commit, outcome, tape)


def _after(commit: Commit, outcome: Outcome, tape: Tape) -> Programme | None:
    match outcome:
        case Committed():
            if outcome.size != len(commit.content):
                tape.tell("committed with a wrong size", outcome.size)
            tape.tell("committed", (outcome.version, commit.content, tape.unrestored))
            return Append(commit.left - 1) if commit.left > 1 else None
        case Conflict():
            tape.tell("lost", commit.content)
            return Append(commit.left)
    tape.tell("unknown", (commit.path, tape.removed))
    return Resolve(commit, outcome.token)


@attrs.frozen(cache_hash=True)
class Read:
    """A reader that finalizes the version that it finds, and opens it.

    Unless it trusts the rows, it has to see what was final when it began.
    """

    def run(self, tape: Tape, commits: Participant) -> Programme | None:
        try:
            newest = 0 if commits.rows.guarantees.complete else tape.ask("newest")
            row = commits.latest(ROOT)
            tape.tell("read", (0 if row is None else row.version, newest))
            if row is not None:
                try:
                    commits.objects.get(row.path)
                except ObjectNotFound:
                    tape.tell("vanished", row.version)
        except StoreUnavailable:
            pass
        except Damaged as error:
            tape.tell("the table cannot be read", str(error))
        return None


@attrs.frozen(cache_hash=True)
class Clean:
    """A cleaner: delete every version below the latest."""

    def run(self, tape: Tape, commits: Participant) -> Programme | None:
        try:
            latest = commits.latest(ROOT)
            if latest is not None:
                commits.delete(ROOT, range(1, latest.version))
        except (StoreUnavailable, Refused):
            pass
        except Damaged as error:
            tape.tell("the table cannot be read", str(error))
        return None


@attrs.frozen(cache_hash=True)
class CommitDirectly:
    """A writer that does not know the commit store: it builds on the newest manifest in the directory."""

    def run(self, tape: Tape, commits: Participant) -> Programme | None:
        try:
            version, content = tape.ask("head of the directory")
            tape.ask("direct", version + 1, content)
        except StoreUnavailable:
            pass
        return None


@attrs.frozen(cache_hash=True)
class Misled:
    """A writer that lists the directory to find the latest version, and commits through the commit store."""

    def run(self, tape: Tape, commits: Participant) -> Programme | None:
        try:
            version, content = tape.ask("head of the directory")
            path, content = tape.ask("stage", version + 1, content)
        except StoreUnavailable:
            return None
        return Commit(1, version + 1, path, content)


@attrs.frozen(cache_hash=True)
class Settle:
    """An operator that adopts or discards the direct commits which it finds."""

    decision: Decision

    def run(self, tape: Tape, commits: Participant) -> Programme | None:
        with suppress(StoreUnavailable, ConcurrentModification, Refused, ObjectNotFound):
            _Settlement(tape, commits).settle(self.decision)
        return None


@attrs.frozen(cache_hash=True)
class Lift:
    """An owner that sets the property to ``adopt``."""

    def run(self, tape: Tape, commits: Participant) -> Programme | None:
        with suppress(StoreUnavailable):
            tape.ask("lift")
        return None


class _Settlement(HeldCommits):
    """Builds manifests of the model."""

    def __init__(self, tape: Tape, commits: Participant) -> None:
        super().__init__(commits, unchecked, "t", ROOT)
        self._tape = tape

    def _require_legal(self, history: DatasetRoot, row: VersionRow, content: bytes) -> None:
        latest = self._commits.latest(history)
        predecessor = b"" if latest is None else self._commits.objects.get(latest.path)
        if not content.partition(b"<")[2].startswith(letter_of(predecessor).encode()):
            raise CommitRefused("it does not descend from the version before it")

    def _stage(self, history: DatasetRoot, row: VersionRow, latest: VersionRow) -> bytes:
        content: bytes = self._tape.ask("stage", row.version, self._commits.objects.get(latest.path))[1]
        return content


# -- ports that ask the tape -----------------------------------------------------------------------------------------


class _Objects:
    root_uri = "memory:///"

    def __init__(self, tape: Tape, guarantees: ObjectStoreGuarantees) -> None:
        self.guarantees = guarantees
        self._ask = tape.ask

    def prove(self) -> None:
        """Do nothing: the guarantees hold."""

    def get(self, key: str) -> bytes:
        content: bytes = self._ask("objects.get", key)
        return content

    def tail(self, key: str, most: int) -> Tail | None:
        raise NotImplementedError("no participant needs it")

    def piece(self, key: str, start: int, most: int, stamp: str | None = None) -> Piece:
        raise NotImplementedError("no participant needs it")

    def put(self, key: str, content: bytes) -> None:
        self._ask("objects.put", key, content)

    def put_pieces(self, key: str, size: int, pieces: Iterable[bytes]) -> None:
        raise NotImplementedError("no participant needs it")

    def put_if_absent(self, key: str, content: bytes) -> bool:
        created: bool = self._ask("objects.put_if_absent", key, content)
        return created

    def copy_if_absent(self, source: str, target: str) -> bool:
        created: bool = self._ask("objects.copy_if_absent", source, target)
        return created

    def head(self, key: str) -> ObjectInfo | None:
        size = self._ask("objects.head", key)
        return None if size is None else ObjectInfo(key, size)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        return iter([ObjectInfo(key, size) for key, size in self._ask("objects.list", prefix)])

    def delete(self, key: str) -> None:
        self._ask("objects.delete", key)

    def directories(self, prefix: str) -> Iterator[str]:
        raise NotImplementedError("no participant needs it")

    def copy(self, source: str, target: str) -> None:
        self._ask("objects.copy", source, target)

    def prune(self, directory: str) -> None:
        raise NotImplementedError("no participant needs it")

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        raise NotImplementedError("no participant needs it")

    def passes_link(self, directory: str, below: str) -> bool:
        raise NotImplementedError("no participant needs it")

    def close(self) -> None:
        raise NotImplementedError("no participant needs it")


class _Rows:
    """Calls that are not atomic over several rows are one request for each."""

    url = "memory://model"

    def __init__(self, tape: Tape, trusts_rows: bool, holds: bool, lifts: bool) -> None:
        self.guarantees = CommitStoreGuarantees(remembers=True, shared=True, complete=trusts_rows)
        self._ask = tape.ask
        self._holds, self._lifts = holds, lifts

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        if version == _MARK.version:  # it never changes, so reading it is no step
            return _MARK if self._holds else None
        if version == _LIFTED.version:
            return _LIFTED if self._lifts and self._ask("rows.lifted") else None
        if base_uri != ROOT.base_uri:
            approval: VersionRow | None = self._ask("rows.approval", version)
            return approval
        row: VersionRow | None = self._ask("rows.get", version)
        return row

    def latest(self, base_uri: str) -> VersionRow | None:
        row: VersionRow | None = self._ask("rows.latest")
        return row

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        return list(self._ask("rows.list", after, descending))[:limit]

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        reservation: Reservation = self._ask("rows.reserve", row, first)
        return reservation

    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        raise NotImplementedError("no participant needs it")

    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        raise NotImplementedError("no participant needs it")

    def finalize(self, row: VersionRow) -> bool:
        present: bool = self._ask("rows.finalize", row)
        return present

    def record(self, rows: Iterable[VersionRow]) -> None:
        for row in rows:
            self._ask("rows.record" if row.base_uri == ROOT.base_uri else "rows.approve", row)

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        assert versions is not None  # no history ends in the model
        return sum(self._ask("rows.delete", version) for version in sorted(versions))

    def close(self) -> None:
        """Nothing to give back."""
