"""Run the commit protocol: perform the effects that the state machine names.

`lancekeep.domain.commit` decides; this module sends the requests and reports the replies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import attrs

from lancekeep.application.commits.adoption import Adoption
from lancekeep.application.commits.conflict_count import ConflictCount
from lancekeep.application.commits.managed_rows import ManagedRows
from lancekeep.application.parts import part
from lancekeep.application.retry import Retry
from lancekeep.domain.commit import (
    ABSENT,
    DONE,
    EXISTS,
    FAULT,
    Event,
    Progress,
    Unknown,
    advance,
    begin_help,
    failed,
    found_predecessor,
    understand,
)
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.commit_transitions import Effect, Reply, State
from lancekeep.domain.errors import (
    CommitRefused,
    CommitStoreMismatch,
    Damaged,
    LancekeepError,
    ObjectNotFound,
    StoreUnavailable,
    Unsupported,
)
from lancekeep.domain.managed import DIRECT_COMMITS, HOLD
from lancekeep.domain.naming import ManifestName, NamingScheme, final_path
from lancekeep.domain.version_row import NotReady, Taken, VersionRow, may_claim, scheme_of
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectStore

if TYPE_CHECKING:
    from lancekeep.application.commits.direct_commits import DirectCommits

Success = TypeVar("Success")

REMEMBERED = 4096
"""The number of final rows kept in memory, because a native commit reads its own version back twice."""


class ProtocolRunner:
    """Drives the commit protocol over an object store and a commit store.

    Every method retries transient faults of either store within ``retry``'s patience. Threads may share an instance.
    ``direct`` is the storage's own condition, which manages the tables that the commit store ``rows`` does not manage.
    """

    def __init__(
        self, objects: ObjectStore, rows: ExternalCommitStore, retry: Retry, direct: ExternalCommitStore | None = None
    ) -> None:
        self.objects = objects
        self.rows = ManagedRows(rows, direct, objects.root_uri)
        self.retry = retry
        self.conflicts = ConflictCount(retry.clock)
        self._adoption = Adoption(objects, self.rows, lambda: self.direct)
        self._final: dict[tuple[str, int], VersionRow] = {}
        self._held: dict[str, VersionRow] = {}
        self._effects: Mapping[Effect, Callable[[Progress, bytes | None], Event]] = {
            Effect.RESERVE: self._reserve,
            Effect.FINALIZE_MET: self._finalize_met,
            Effect.FIND_PREDECESSOR: self._find_predecessor,
            Effect.RECORD_PREDECESSOR: self._record_predecessor,
            Effect.COPY: self._copy,
            Effect.COMPARE: self._compare,
            Effect.FINALIZE_ROW: self._finalize_row,
            Effect.DELETE_STAGED: self._delete_staged,
            Effect.FIND_STAGED: self._find_staged,
            Effect.WITHDRAW_ROW: self._withdraw_row,
            Effect.COMPARE_MET: self._compare_met,
            Effect.MEASURE_FINAL: self._measure_final,
            Effect.GET_ROW: self._get_row,
        }

    @part
    def direct(self) -> DirectCommits:
        """What the commit store records about direct commits."""
        from lancekeep.application.commits.direct_commits import DirectCommits  # a listing needs none

        return DirectCommits(self.objects, self.rows)

    def run(
        self,
        progress: Progress,
        content: bytes | None,
        deadline: float,
        until: Collection[State] = (),
        *,
        latest: Future[VersionRow | None] | None = None,
    ) -> tuple[Progress, LancekeepError | None]:
        """Drive the machine to an outcome, or to a state of ``until``.

        Args:
            progress: Where the participant is.
            content: The bytes of the staged manifest, if the caller has them.
            deadline: When to give up retries.
            until: States in which to pause.
            latest: A request for the latest row that has begun; a first attempt to create a final manifest uses it.

        Returns:
            The participant after its last effect, and the error that stopped an effect, if any.
        """
        fault: LancekeepError | None = None
        asked_before = progress.repeated
        while (effect := progress.effect) is not None and progress.state not in until:
            perform = self._effects[effect]
            found: LancekeepError | None = None
            try:
                if effect is Effect.RESERVE and latest is not None:
                    begun, latest = latest, None
                    event = self._reserve(progress, content, begun)
                else:
                    event = perform(progress, content)
            except StoreUnavailable:
                asked_before = True
                event, found = self._perform_again(perform, attrs.evolve(progress, repeated=True), content, deadline)
            except LancekeepError as error:
                event, found = failed(progress, error, asked_before=asked_before), error
            if progress.state is not State.DISCARD:  # raise the refusal, not a failed removal
                fault = found or fault
            progress = advance(progress, event)
        return progress, fault

    def _perform_again(
        self,
        perform: Callable[[Progress, bytes | None], Event],
        progress: Progress,
        content: bytes | None,
        deadline: float,
    ) -> tuple[Event, LancekeepError | None]:
        """Repeat an effect that had no reply; every effect is idempotent."""
        try:
            return self.retry.call(lambda: perform(progress, content), deadline), None
        except LancekeepError as error:
            return FAULT, error

    def finalize(self, row: VersionRow) -> VersionRow | None:
        """Roll a staged row forward ("External Store Reader").

        Returns:
            The final row; None if the version no longer exists, or if a direct commit that the table holds has its
            place (`is_held`).

        Raises:
            CommitStoreMismatch: The row is the fence of a history that moved to another commit store.
            Damaged: Neither the staged nor the final manifest exists.
            LancekeepError: Synchronization failed, so the version cannot be read.
        """
        if row.is_final:
            return row
        if row.moved_to is not None:
            raise moved(row)
        progress, fault = self.run(begin_help(row), None, self.retry.deadline())
        self._held.pop(row.base_uri, None)
        match progress.state:
            case State.FINALIZED:
                final = progress.row if progress.row.is_final else progress.final_row
                self._remember(final)
                return final
            case State.VANISHED:
                return None
            case State.HELD:
                self._held[row.base_uri] = row
                return None
            case State.UNREADABLE if fault is not None:
                raise fault
        raise Damaged(
            f"{row.base_uri}: version {row.version} is recorded at {row.path!r}, but neither that staged manifest nor "
            "the final manifest exists. Put one of them back from a backup. Without one, `lancekeep repair --deep "
            f"--yes` forgets the row, and the table is at version {row.version - 1} again."
        )

    def is_held(self, row: VersionRow) -> bool:
        """Return whether `finalize` has found a held direct commit in the place of a row."""
        return self._held.get(row.base_uri) == row

    def _remember(self, row: VersionRow) -> None:
        """Keep a final row; a migration of manifest names changes rows of V1 names."""
        if scheme_of(row) is NamingScheme.V1:
            return
        if len(self._final) >= REMEMBERED:
            self._final.clear()
        self._final[row.base_uri, row.version] = row

    # -- effects ------------------------------------------------------------------------------------------------

    def _reserve(
        self, progress: Progress, content: bytes | None, latest: Future[VersionRow | None] | None = None
    ) -> Event:
        assert progress.staged is not None
        if self.rows.guarantees.derived:
            return self._create_final(progress, progress.staged, content, latest)
        reservation = self.rows.reserve(progress.row, first=progress.first)
        return understand(progress.staged, reservation, repeated=progress.repeated)

    def _create_final(
        self,
        progress: Progress,
        staged: StagedManifest,
        content: bytes | None,
        begun: Future[VersionRow | None] | None,
    ) -> Event:
        """Claim a version whose row is derived from its final manifest, by creating this manifest.

        ``reserve`` of such a store does the same, but it would read the staged manifest, which this process holds, and
        the effects after it would check again what the creation has proved.
        """
        row = progress.row
        latest = self.rows.latest(row.base_uri) if begun is None else begun.result()
        copied = self._copy(progress, content) if may_claim(row, latest, first=progress.first) else EXISTS
        if copied is DONE:
            return Event(Reply.FINAL)
        held = latest if latest is not None and latest.version == row.version else self._final_row(row)
        if held is not None:
            return understand(staged, Taken(held), repeated=progress.repeated)
        if copied is ABSENT:
            raise ObjectNotFound(f"{row.base_uri}: the staged manifest {row.path!r} does not exist")
        return understand(staged, NotReady(latest), repeated=progress.repeated)

    def _final_row(self, row: VersionRow) -> VersionRow | None:
        final = self.objects.head(final_path(row.path))
        return None if final is None else VersionRow(row.base_uri, row.version, final.key, final.size)

    def _finalize_met(self, progress: Progress, _: bytes | None) -> Event:
        assert progress.met is not None
        final = self.finalize(progress.met)
        if progress.state is State.FINALIZE_PREDECESSOR and final is None and self.is_held(progress.met):
            return Event(Reply.DIRECT, progress.met)
        return DONE

    def _find_predecessor(self, progress: Progress, _: bytes | None) -> Event:
        predecessor = self._predecessor(progress)
        if predecessor is not None and not self.direct.may_be_version(predecessor):
            return Event(Reply.DIRECT, predecessor)
        return found_predecessor(progress, predecessor is not None)

    def _record_predecessor(self, progress: Progress, _: bytes | None) -> Event:
        predecessor = self._predecessor(progress)
        if predecessor is not None:
            self._adoption.record(predecessor)
        return DONE

    def _predecessor(self, progress: Progress) -> VersionRow | None:
        directory, _, name = progress.row.path.rpartition("/")
        parsed = ManifestName.parse(name)
        assert parsed is not None
        if parsed.version < 2:
            return None
        before = parsed.version - 1
        for scheme in dict.fromkeys((parsed.scheme, NamingScheme.V1)):  # a version with a V2 name may follow a V1 name
            key = f"{directory}/{scheme.final_name(before)}"
            info = self.objects.head(key)
            if info is not None:
                return VersionRow(progress.row.base_uri, before, key, info.size)
        return None

    def _copy(self, progress: Progress, content: bytes | None) -> Event:
        source = progress.row.path
        target = final_path(source)
        guarantees = self.objects.guarantees
        try:
            if guarantees.atomic_copy:
                created = self.objects.copy_if_absent(source, target)
            else:
                content = self.objects.get(source) if content is None else content
                if guarantees.atomic_create:
                    created = self.objects.put_if_absent(target, content)
                else:  # only the holder of the row gets here; `connect` requires a store that keeps rows
                    created = self.objects.head(target) is None
                    if created:
                        self.objects.put(target, content)
        except ObjectNotFound:
            return ABSENT
        return DONE if created else EXISTS

    def _compare(self, progress: Progress, content: bytes | None) -> Event:
        assert progress.staged is not None
        final = self._final_content(progress.final_row)
        if final is None:
            return ABSENT
        if content is None and not progress.staged.digest and len(final) == progress.staged.size:
            raise Unsupported(  # a client of a server makes such tokens: it cannot read what it commits
                f"{progress.staged.base_uri}: version {progress.staged.version} is committed, and the token has no "
                "digest to recognize it by. Resolve the token through the server that the commit was sent to"
            )
        own = final == content if content is not None else _digest(final) == progress.staged.digest
        if own:
            return Event(Reply.SAME)
        winner = attrs.evolve(progress.final_row, size=len(final), committer="")
        if progress.state is State.COMPARE and not self.direct.may_be_version(winner, final):
            return Event(Reply.DIRECT, winner)
        return Event(Reply.DIFFERENT, winner, len(final))

    def _final_content(self, row: VersionRow) -> bytes | None:
        """Return a final manifest, also if a migration has renamed it from V1 to V2 since."""
        directory = row.path.rpartition("/")[0]
        for key in dict.fromkeys((row.path, f"{directory}/{NamingScheme.V2.final_name(row.version)}")):
            with suppress(ObjectNotFound):
                return self.objects.get(key)
        return None

    def _finalize_row(self, progress: Progress, _: bytes | None) -> Event:
        """Finalize the row, or record it if the commit store has lost it.

        A repetition records in any case: the lost reply may be the reply to the record, after which the manifest has to
        be read once more (`Adoption.record`).
        """
        row = progress.final_row
        if not self.rows.finalize(row) or progress.repeated:
            self._adoption.record(row)
        return DONE

    def _delete_staged(self, progress: Progress, _: bytes | None) -> Event:
        self.objects.delete(progress.row.path)
        return DONE

    def _find_staged(self, progress: Progress, _: bytes | None) -> Event:
        return Event(Reply.ABSENT if self.objects.head(progress.row.path) is None else Reply.PRESENT)

    def _withdraw_row(self, progress: Progress, _: bytes | None) -> Event:
        """Withdraw the writer's own reservation; another writer's row stays."""
        own = progress.row
        row = self.rows.get(own.base_uri, own.version)
        if row is not None and row.path == own.path:
            self.rows.delete(own.base_uri, [own.version])
        return DONE

    def _compare_met(self, progress: Progress, content: bytes | None) -> Event:
        """Measure the final manifest, which another participant has created.

        It is the manifest of the row's writer, or a direct commit.
        """
        if not self.direct.is_marked(progress.row.base_uri):
            return self._measure_final(progress, content)
        final = self._final_content(progress.final_row)
        if final is None:
            return ABSENT
        found = attrs.evolve(progress.final_row, size=len(final), committer="")
        if self.direct.is_approved(found, final):
            return Event(Reply.PRESENT, size=len(final))
        try:
            staged = self.objects.get(progress.row.path)
        except ObjectNotFound:
            return ABSENT  # the row has become final since, or it is lost
        if staged == final or self.direct.may_be_version(found, final):
            return Event(Reply.PRESENT, size=len(final))
        return Event(Reply.DIRECT, found)

    def _measure_final(self, progress: Progress, _: bytes | None) -> Event:
        info = self.objects.head(progress.final_row.path)
        return ABSENT if info is None else Event(Reply.PRESENT, size=info.size)

    def _get_row(self, progress: Progress, _: bytes | None) -> Event:
        row = self.rows.get(progress.row.base_uri, progress.row.version)
        if row is None:
            return ABSENT
        if row.is_final:
            return Event(Reply.FINAL, row)
        return Event(Reply.UNCHANGED if row.path == progress.row.path else Reply.CHANGED, row)


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def recognizable(staged: StagedManifest, content: bytes | None) -> StagedManifest:
    """Return the staged manifest as a token keeps it: with the digest of its content."""
    return staged if content is None else attrs.evolve(staged, digest=_digest(content))


def refusal(progress: Progress, fault: LancekeepError | None) -> LancekeepError:
    """Return the error for a refused commit: a refusal, a moved history or a gap."""
    if progress.state is State.REFUSED and isinstance(fault, ObjectNotFound):
        refused = CommitRefused(
            f"{progress.row.base_uri}: the staged manifest of version {progress.row.version} no longer exists: the "
            "table was dropped during the commit. Nothing was committed."
        )
        refused.__cause__ = fault
        return refused
    if progress.state is State.REFUSED and fault is not None:
        return fault
    if progress.state in (State.HELD, State.REFUSED) and progress.met is not None:
        return held(progress.met)
    if progress.state is State.MOVED:
        return moved(progress.met)
    return CommitRefused(
        f"{progress.row.base_uri}: version {progress.row.version} would leave a gap: the latest version is "
        f"{progress.met.version if progress.met else 'none'}. The table was dropped, or recreated, since the "
        "writer opened it: open it again. Nothing was committed."
    )


def held(direct: VersionRow) -> CommitRefused:
    """Return the error for a commit that meets a direct commit which its table holds."""
    return CommitRefused(
        f"{direct.base_uri}: a writer committed version {direct.version} to the storage without the catalog, and the "
        f"table holds such commits ({DIRECT_COMMITS!r} is {HOLD!r}). No version can follow until you adopt or discard "
        "it with `lancekeep direct-commits`. Nothing was committed."
    )


def moved(fence: VersionRow | None, advice: str = "Connect with that commit store.") -> CommitStoreMismatch:
    """Return the error for a history that moved to another commit store."""
    place = "another commit store" if fence is None or fence.moved_to is None else fence.moved_to
    name = "" if fence is None else f"{fence.base_uri}: "
    return CommitStoreMismatch(f"{name}the versions of this table moved to {place}. {advice}")


def confirmed(committed: Success, confirm: Callable[[], object], token: Callable[[], CommitToken]) -> Success | Unknown:
    """Return a committed outcome that ``confirm`` accepts.

    Returns:
        The outcome; `Unknown` if ``confirm`` could not decide, because the version exists all the same.

    Raises:
        CommitRefused: ``confirm`` raised it.
    """
    try:
        confirm()
    except CommitRefused:
        raise
    except LancekeepError as error:
        return Unknown(token(), f"the version was created, but whether its table moved is not known: {error}")
    return committed
