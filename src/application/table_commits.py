"""The versions of tables: committing, reading, listing and deleting them.

This is the runner of the state machine in `lancekeep.domain.commit`: it performs effects on an object store and a
commit store, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from hashlib import sha256
from uuid import uuid4

import attrs

from lancekeep.application.adoption import Adoption
from lancekeep.application.checked_rows import CheckedRows, HistoryRows
from lancekeep.application.concurrency import all_alongside, alongside, is_remote
from lancekeep.application.lineage import Lineage
from lancekeep.application.retry import Retry
from lancekeep.domain.commit import (
    ABSENT,
    DONE,
    EXISTS,
    FAULT,
    Committed,
    Conflict,
    Event,
    Outcome,
    Progress,
    Unknown,
    advance,
    begin_commit,
    begin_help,
    begin_resolve,
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
    Refused,
    StoreUnavailable,
)
from lancekeep.domain.layout import BRANCHES, VERSIONS, DatasetRoot
from lancekeep.domain.lineage import Base, refuse_accidental_overwrite
from lancekeep.domain.naming import ManifestName, NamingScheme, final_path
from lancekeep.domain.version_row import Reserved, VersionRow, scheme_of
from lancekeep.format.manifest import reads_version_zero
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

_REMEMBERED = 4096
"""Final rows kept in memory: a native commit reads its own version back twice."""


@attrs.frozen
class _Ahead:
    """A look for the final manifest of the version after ``version``."""

    version: int
    found: Future[ObjectInfo | None]


class TableCommits:
    """The commit authority over the datasets of one object store.

    Every method retries transient faults of either store within ``retry``'s patience. Instances may be shared between
    threads. `prove` runs before each commit: if the object store turned out to be unsafe only after the reservation,
    the reserved row would block every writer.
    """

    def __init__(
        self,
        objects: ObjectStore,
        rows: ExternalCommitStore,
        committer: str,
        retry: Retry,
    ) -> None:
        self.objects = objects
        self.rows: HistoryRows = CheckedRows(rows, objects.root_uri)
        self._committer = committer
        self.retry = retry
        self.on_staged: Callable[[DatasetRoot, bytes], object] = lambda root, content: None
        """Called with each manifest that is about to be committed."""
        self._final: dict[tuple[str, int], VersionRow] = {}
        self.lineage = Lineage(objects, retry, self.get)
        self._newest: dict[str, VersionRow] = {}
        self._adoption = Adoption(objects, self.rows)
        self._effects: Mapping[Effect, Callable[[Progress, bytes | None], Event]] = {
            Effect.RESERVE: self._reserve,
            Effect.RESERVE_FIRST: self._reserve_first,
            Effect.FINALIZE_MET: self._finalize_met,
            Effect.FIND_PREDECESSOR: self._find_predecessor,
            Effect.RECORD_PREDECESSOR: self._record_predecessor,
            Effect.COPY: self._copy,
            Effect.COMPARE: self._compare,
            Effect.FINALIZE_ROW: self._finalize_row,
            Effect.RECORD_ROW: self._record_row,
            Effect.DELETE_STAGED: self._delete_staged,
            Effect.FIND_STAGED: self._find_staged,
            Effect.WITHDRAW_ROW: self._withdraw_row,
            Effect.MEASURE_FINAL: self._measure_final,
            Effect.GET_ROW: self._get_row,
        }

    # -- committing ---------------------------------------------------------------------------------------------

    def commit(
        self,
        root: DatasetRoot,
        version: int,
        path: str,
        size: int | None,
        *,
        branch: bool,
        base: Base | None = None,
    ) -> Outcome:
        """Make the staged manifest at ``path`` version ``version`` of the dataset at ``root``.

        ``size``: its bytes, where the caller knows them, as a check. ``branch``: the history may begin with any
        version. ``base``: the version that the writer has read, where it is known. Idempotent for one staged manifest.
        Nothing is removed unless the outcome is definite.

        Raises:
            CommitRefused: the path is not a staged manifest of this dataset and version, the version would leave a
                gap or does not descend from the one before it, or the manifest would wipe the table. Nothing was
                written.
            CommitStoreMismatch: the history has moved to another commit store.
            StoreUnavailable: the staged manifest could not be read; nothing was written.
            UnsafeStore: the object store does not keep the condition that commits rest on; nothing was committed.
            AccessDenied, Unsupported: the commit store refused the reservation; the staged manifest was removed.
        """
        staged, content = self.read_staged(root, version, path, size, branch=branch)
        descendant = self.lineage.require(root, staged, content, base)
        outcome = self._settle(begin_commit(staged), content)
        if isinstance(outcome, Committed):
            self.lineage.keep(descendant)
        return outcome

    def publish(self, root: DatasetRoot, name: str, content: bytes) -> bool:
        """Commit a manifest under its final ``name``; whether it is that version now, and not another's.

        For the catalog's own table where the object store cannot create an object for one writer only. Its readers look
        at the directory alone, so whoever loses a version sees to it that it lies there: its writer may be dead. Raises
        `StoreUnavailable` where the outcome could not be learnt, `Damaged` where the version that won is lost; calling
        again with the same content is safe.
        """
        staged = f"{name}-{uuid4()}"
        self.retry.call(lambda: self.objects.put(staged, content))
        version = ManifestName.parse(name.rpartition("/")[2])
        assert version is not None  # the caller names versions by the naming scheme
        claim, _ = self.read_staged(root, version.version, staged, len(content), branch=False)
        outcome = self._settle(begin_commit(claim), content)
        if isinstance(outcome, Unknown):
            raise StoreUnavailable(f"{name}: whether it was committed could not be learnt: {outcome.reason}")
        if isinstance(outcome, Conflict) and outcome.winner is not None:
            self.finalize(outcome.winner)
        return isinstance(outcome, Committed)

    def resolve(self, token: CommitToken) -> Outcome:
        """Settle an unknown commit: complete it where its version is still free, else learn who won.

        It stays `Unknown` where version and staged manifest were cleaned up, or went with their table, before anybody
        asked. Idempotent. Raises as `commit` does.
        """
        return self._settle(begin_resolve(token), None)

    def read_staged(
        self, root: DatasetRoot, version: int, path: str, size: int | None, *, branch: bool
    ) -> tuple[StagedManifest, bytes]:
        """A staged manifest and its content, looked over: arguments and errors are those of `commit`."""
        directory, _, file_name = path.rpartition("/")
        name = ManifestName.parse(file_name)
        if directory + "/" != root.versions_key or name is None or not name.is_staged or name.version != version:
            raise CommitRefused(
                f"{root.base_uri}: {path!r} is not a staged manifest of version {version} of this table; expected "
                f"{root.versions_key + NamingScheme.V2.final_name(version) if version >= 0 else root.versions_key}"
                "-<uuid>. Nothing was committed"
                + (": detached versions are not part of a managed history." if version < 0 else ".")
            )
        try:
            content = self.retry.call(lambda: self.objects.get(path))
        except ObjectNotFound as error:
            raise CommitRefused(f"{root.base_uri}: the staged manifest {path!r} does not exist") from error
        if size is not None and size != len(content):
            raise CommitRefused(
                f"{root.base_uri}: the staged manifest {path!r} has {len(content)} bytes where {size} were announced; "
                "nothing was committed"
            )
        try:
            from_nothing = reads_version_zero(content)
        except ValueError as error:
            raise CommitRefused(
                f"{root.base_uri}: the file staged for version {version} is not a Lance manifest: {error}. Nothing was "
                "committed."
            ) from error
        refuse_accidental_overwrite(version, from_nothing, root.base_uri)
        self._require_scheme(root, name)
        self.on_staged(root, content)
        begins = branch or version == 1
        return StagedManifest(root.base_uri, version, path, len(content), begins, self._committer), content

    def _require_scheme(self, root: DatasetRoot, staged: ManifestName) -> None:
        """Raise `CommitRefused` unless a staged manifest is named by the scheme of its table.

        Asks the commit store only if this process does not know the table, or if the schemes seem to differ.
        """
        if staged.version == 1 or ((known := self._newest.get(root.base_uri)) and scheme_of(known) is staged.scheme):
            return
        latest = self.retry.call(lambda: self.rows.latest(root.base_uri))
        scheme = None if latest is None else scheme_of(latest)
        if scheme not in (None, staged.scheme):
            raise CommitRefused(
                f"{root.base_uri}: the staged manifest of version {staged.version} is named by the scheme "
                f"{staged.scheme.value}, and the table's manifests by {scheme.value}. A table with both is an error in "
                "the format, and readers refuse such a table. Open it and write again; nothing was committed."
            )

    def _settle(self, progress: Progress, content: bytes | None) -> Outcome:
        self.prove()
        progress, fault = self.run(progress, content, self.retry.deadline())
        assert progress.staged is not None
        row = progress.final_row
        match progress.state:
            case State.COMMITTED:
                self._remember(row)
                self._know(row)
                return Committed(row.version, row.path, row.size)
            case State.CONFLICT:
                return Conflict(progress.met)
            case State.UNKNOWN:
                gone = (
                    f"version {row.version} has no manifest any more: it was cleaned up, or its table was dropped or "
                    "moved. Nothing says whose it was but the table's rows"
                )
                return Unknown(CommitToken(recognisable(progress.staged, content)), str(fault) if fault else gone)
        raise refusal(progress, fault)

    def prove(self) -> None:
        """Raise `UnsafeStore` if the object store does not keep the condition that commits rest on."""
        self.retry.call(self.objects.prove)

    def run(
        self, progress: Progress, content: bytes | None, deadline: float, until: Collection[State] = ()
    ) -> tuple[Progress, LancekeepError | None]:
        """Drive the machine to an outcome, or to a state of ``until``; also the fault that led there, if one did.

        content: of the staged manifest, where it is at hand.
        """
        fault: LancekeepError | None = None
        asked_before = progress.repeated
        while (effect := progress.effect) is not None and progress.state not in until:
            perform = self._effects[effect]
            found: LancekeepError | None = None
            try:
                event = perform(progress, content)
            except StoreUnavailable:
                asked_before = True
                event, found = self._perform_again(perform, attrs.evolve(progress, repeated=True), content, deadline)
            except LancekeepError as error:
                event, found = failed(progress, error, asked_before=asked_before), error
            if progress.state is not State.DISCARD:  # the refusal is the error to raise, not a failed removal
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
        """Every effect is idempotent, so one that failed may simply be repeated."""
        try:
            return self.retry.call(lambda: perform(progress, content), deadline), None
        except LancekeepError as error:
            return FAULT, error

    # -- effects ------------------------------------------------------------------------------------------------

    def _reserve(self, progress: Progress, _: bytes | None) -> Event:
        assert progress.staged is not None
        reservation = self.rows.reserve(progress.row, first=False)
        return understand(progress.staged, reservation, repeated=progress.repeated)

    def _reserve_first(self, progress: Progress, _: bytes | None) -> Event:
        assert progress.staged is not None
        reservation = self.rows.reserve(progress.row, first=True)
        return understand(progress.staged, reservation, repeated=progress.repeated)

    def _finalize_met(self, progress: Progress, _: bytes | None) -> Event:
        assert progress.met is not None
        self.finalize(progress.met)
        return DONE

    def _find_predecessor(self, progress: Progress, _: bytes | None) -> Event:
        return found_predecessor(progress, self._predecessor(progress) is not None)

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
        key = f"{directory}/{parsed.scheme.final_name(parsed.version - 1)}"
        info = self.objects.head(key)
        return None if info is None else VersionRow(progress.row.base_uri, parsed.version - 1, key, info.size)

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
                else:  # the winning row alone decides who comes this far; `connect` saw to it that rows are never lost
                    created = self.objects.head(target) is None
                    if created:
                        self.objects.put(target, content)
        except ObjectNotFound:
            return ABSENT
        return DONE if created else EXISTS

    def _compare(self, progress: Progress, content: bytes | None) -> Event:
        assert progress.staged is not None
        try:
            final = self.objects.get(progress.final_row.path)
        except ObjectNotFound:
            return ABSENT
        own = final == content if content is not None else _digest(final) == progress.staged.digest
        if own:
            return Event(Reply.SAME)
        winner = attrs.evolve(progress.final_row, size=len(final), committer="")
        return Event(Reply.DIFFERENT, winner, len(final))

    def _finalize_row(self, progress: Progress, _: bytes | None) -> Event:
        return DONE if self.rows.finalize(progress.final_row) else ABSENT

    def _record_row(self, progress: Progress, _: bytes | None) -> Event:
        self._adoption.record(progress.final_row)
        return DONE

    def _delete_staged(self, progress: Progress, _: bytes | None) -> Event:
        self.objects.delete(progress.row.path)
        return DONE

    def _find_staged(self, progress: Progress, _: bytes | None) -> Event:
        return Event(Reply.ABSENT if self.objects.head(progress.row.path) is None else Reply.PRESENT)

    def _withdraw_row(self, progress: Progress, _: bytes | None) -> Event:
        """Take the own reservation back, as long as it is one; another's row stays."""
        own = progress.row
        row = self.rows.get(own.base_uri, own.version)
        if row is not None and row.path == own.path:
            self.rows.delete(own.base_uri, [own.version])
        return DONE

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

    # -- reading ------------------------------------------------------------------------------------------------

    def finalize(self, row: VersionRow) -> VersionRow | None:
        """Bring a row that may be staged to its final path ("External Store Reader"); None where it is gone.

        Raises:
            CommitStoreMismatch: the row is the fence of a history that moved away.
            Damaged: neither the staged nor the final manifest exists.
            LancekeepError: synchronisation failed; the reader has to refuse.
        """
        if row.is_final:
            return row
        if row.moved_to is not None:
            raise moved(row)
        progress, fault = self.run(begin_help(row), None, self.retry.deadline())
        match progress.state:
            case State.FINALIZED:
                final = progress.row if progress.row.is_final else progress.final_row
                self._remember(final)
                return final
            case State.VANISHED:
                return None
            case State.UNREADABLE if fault is not None:
                raise fault
        raise Damaged(
            f"{row.base_uri}: version {row.version} is recorded at {row.path!r}, but neither that staged manifest nor "
            f"the final one exists. Put one of them back from a backup. Without one, `lancekeep repair --deep --yes` "
            f"forgets the row, and the table is at version {row.version - 1} again."
        )

    def latest(self, root: DatasetRoot) -> VersionRow | None:
        """Return the latest version, final; None if the dataset has none.

        Versions that lie in the object store without rows are adopted: those of a dataset that has no rows at all
        (registered, or forgotten by its store), and those after the latest row (forgotten, or committed by a writer
        that did not ask the catalog). Their rows are entered in the commit store.
        """
        row, ahead = self.retry.call(lambda: self._look(root))
        if row is None:
            return self.retry.call(lambda: self._adoption.adopt(root))
        if self._is_outlived(root, row):
            return None
        latest = self.finalize(row)
        if latest is None:  # removed since: there may be later versions, or none
            return self.latest(root)
        if root.is_branch and self.retry.call(partial(self.objects.head, latest.path)) is None:
            return self.retry.call(lambda: self._begin_anew(root))
        while not self.rows.guarantees.complete and self.retry.call(partial(self._is_followed, latest, ahead)):
            row, ahead = self.retry.call(lambda: self.rows.latest(root.base_uri)), None
            if row is None or row.version < latest.version:
                return self.latest(root)  # dropped or made anew since
            if row.version > latest.version:
                newer = self.finalize(row)
            else:
                newer = self.retry.call(partial(self._adoption.catch_up, root, latest))
                if newer == latest:
                    break
            if newer is None:
                return self.latest(root)
            latest = newer
        self._know(latest)
        return latest

    def _look(self, root: DatasetRoot) -> tuple[VersionRow | None, _Ahead | None]:
        """Return the latest row; on remote storage with a look, at the same time, beyond the latest row known before.

        A version that was final when the look began is seen, whichever of the two is answered first.
        """
        known = self._newest.get(root.base_uri) if is_remote(self.objects) else None
        if known is None or self.rows.guarantees.complete:
            return self.rows.latest(root.base_uri), None
        ahead = _Ahead(known.version, alongside(partial(self._adoption.following, known)))
        return self.rows.latest(root.base_uri), ahead

    def _is_followed(self, row: VersionRow, ahead: _Ahead | None) -> bool:
        """Return whether the final manifest of the next version lies in the object store."""
        if ahead is not None and ahead.version == row.version and ahead.found.exception() is None:
            return ahead.found.result() is not None
        return self._adoption.following(row) is not None

    def has_versions(self, root: DatasetRoot) -> bool:
        """Return whether the dataset has any version; `latest` says which."""
        row = self.retry.call(lambda: self.rows.latest(root.base_uri))
        if row is not None and row.moved_to is not None:
            if self._is_outlived(root, row):
                return False
            raise moved(row)
        return row is not None or self.retry.call(lambda: self._adoption.adopt(root)) is not None

    def _is_outlived(self, root: DatasetRoot, row: VersionRow) -> bool:
        """Return whether a row is the fence of a table that was dropped after its versions moved to another store.

        The catalog may have returned to this store since, where nothing removed the fence. Commits still meet it until
        the name is dropped or declared.
        """
        return row.moved_to is not None and not self.retry.call(partial(self._adoption.any_final, root))

    def unrecorded(self, rows: Sequence[VersionRow]) -> bool:
        """Return whether versions without rows follow any of these rows, each the latest of its history."""
        if self.rows.guarantees.complete:
            return False

        def follows(row: VersionRow) -> bool:
            found = self.retry.call(lambda: self._adoption.following(row))
            return found is not None and self.rows.get(row.base_uri, row.version + 1) is None

        return any(all_alongside(follows, rows) if is_remote(self.objects) else map(follows, rows))

    def get(self, root: DatasetRoot, version: int) -> VersionRow | None:
        """One version, final; None where the dataset has no such version."""
        remembered = self._final.get((root.base_uri, version))
        if remembered is not None:
            return remembered
        row = self.retry.call(lambda: self.rows.get(root.base_uri, version))
        if row is not None:
            return self.finalize(row)
        latest = self.latest(root)
        if latest is None or version > latest.version:
            return None
        return self.retry.call(lambda: self.final_object(root, version))

    def page(self, root: DatasetRoot, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        """Return versions in order, at most ``limit``, beginning behind ``after``; all of them final.

        Rows that the commit store lost between others are entered again.
        """
        latest = self.latest(root)
        if latest is None:
            return []

        def act() -> list[VersionRow]:
            rows = self.rows.list(root.base_uri, after=after, limit=limit, descending=descending)
            if self.rows.guarantees.complete or not rows:
                return rows
            bounds = {latest.version if descending else 0} if after is None else {min(after, latest.version + 1)}
            if descending and (limit is None or len(rows) < limit):
                bounds.add(0)
            if self._adoption.fill(root, rows, bounds):
                return self.rows.list(root.base_uri, after=after, limit=limit, descending=descending)
            return rows

        return [final for final in map(self.finalize, self.retry.call(act)) if final is not None]

    def created(self, root: DatasetRoot, rows: Sequence[VersionRow]) -> dict[int, datetime]:
        """Return when final versions were created, by the clock of the storage, where the storage tells it.

        Asks one request for one version, and otherwise lists the manifests until all versions are found.
        """
        missing = {row.path: row.version for row in rows}
        found: dict[int, datetime] = {}

        def act() -> None:
            infos = self.objects.list(root.versions_key) if len(rows) != 1 else [self.objects.head(rows[0].path)]
            for info in infos:
                version = None if info is None else missing.pop(info.key, None)
                if version is not None and info is not None and info.modified is not None:
                    found[version] = info.modified
                if not missing:
                    return

        self.retry.call(act)
        return found

    def forget(self) -> None:
        """Drop what is remembered of final rows: a table may have been replaced by another at the same place."""
        self._final.clear()
        self.lineage.forget()
        self._newest.clear()
        self._adoption.forget_gaps()

    def _know(self, latest: VersionRow) -> None:
        if len(self._newest) >= _REMEMBERED:
            self._newest.clear()
        self._newest[latest.base_uri] = latest

    def _remember(self, row: VersionRow) -> None:
        if len(self._final) >= _REMEMBERED:
            self._final.clear()
        self._final[row.base_uri, row.version] = row

    def _begin_anew(self, root: DatasetRoot) -> VersionRow | None:
        """The engine deletes a branch as a directory, without a word to the namespace: its rows mean nothing any more.

        Should somebody be making it anew at this moment, his row is lost to him, and the final object decides as ever.
        """
        self.rows.delete(root.base_uri)
        self.forget()
        return self._adoption.adopt(root)

    def final_object(self, root: DatasetRoot, version: int) -> VersionRow | None:
        """A version as the directory has it, whatever the commit store says; None where its manifest is not there."""
        for scheme in (NamingScheme.V2, NamingScheme.V1):
            key = root.manifest_key(version, scheme)
            info = self.objects.head(key)
            if info is not None:
                return VersionRow(root.base_uri, version, key, info.size)
        return None

    # -- removing -----------------------------------------------------------------------------------------------

    def delete(self, root: DatasetRoot, versions: Iterable[int]) -> int:
        """Delete versions: their rows, then their manifests. How many there were. Idempotent.

        Raises:
            Refused: the latest version is among them. Nothing was deleted.
        """
        latest = self.latest(root)
        doomed = sorted(set(versions))
        if latest is None or not doomed:
            return 0
        if latest.version in doomed:
            raise Refused(
                f"{root.base_uri}: version {latest.version} is the latest; deleting it would lose the table. "
                "Delete older versions only, or drop the table."
            )
        found = [row for row in self.page(root, doomed[0] - 1, None, False) if row.version in set(doomed)]
        self.retry.call(lambda: self.rows.delete(root.base_uri, [row.version for row in found]))
        for row in found:
            self.retry.call(partial(self.objects.delete, row.path))
            self._final.pop((row.base_uri, row.version), None)
        if found:  # a concurrent reader may have entered the row of a manifest that was still there
            self.retry.call(lambda: self.rows.delete(root.base_uri, [row.version for row in found]))
        return len(found)

    def histories(self, root: DatasetRoot) -> list[DatasetRoot]:
        """The dataset and its branches, as far as they have versions in the object store."""
        below = f"{root.key}/{BRANCHES}/"
        marker = f"/{VERSIONS}/"
        names = {
            info.key[len(below) :].partition(marker)[0]
            for info in self.objects.list(below)
            if marker in info.key[len(below) - 1 :]
        }
        return [root, *(root.branch(name) for name in sorted(names))]

    def forget_predecessor(self, root: DatasetRoot) -> None:
        """Remove the rows of a table that lay at ``root`` before; those of one that has begun there since stay."""

        def act() -> None:
            rows, foreign = self.rows.sort_out(root.base_uri)
            if foreign:
                self.rows.delete(root.base_uri, [row.version for row in foreign])
            if rows:
                self._adoption.forget_vanished(root, rows)

        self.retry.call(act)
        self.forget()

    def forget_history(self, root: DatasetRoot) -> None:
        """Remove every row of a dataset that is being dropped, branches included."""
        for history in self.histories(root):
            self.retry.call(partial(self.rows.delete, history.base_uri))
        self.forget()

    # -- moving to another commit store -------------------------------------------------------------------------

    def with_rows(self, rows: ExternalCommitStore) -> TableCommits:
        """The same authority over another commit store."""
        other = TableCommits(self.objects, rows, self._committer, self.retry)
        other.on_staged = self.on_staged
        return other

    def move_history(self, root: DatasetRoot, target: TableCommits) -> int:
        """Fence a history here and copy its rows to ``target``, compared; how many. Repeating it completes it.

        Raises:
            Damaged: the target holds other versions; see `require_room`.
        """
        self.retry.call(lambda: self._fence(root, target.rows.url))
        rows = [row for row in self._all_rows(root) if row.is_final]
        stale = target.rows.latest(root.base_uri)
        if stale is not None and stale.moved_to is not None:
            target.rows.delete(root.base_uri)  # left from an earlier move the other way
        target.rows.record(rows)
        missing = {(row.version, row.path) for row in rows} - {
            (row.version, row.path) for row in target._all_rows(root)
        }
        if missing:
            raise Damaged(
                f"{root.base_uri}: {target.rows.url} holds other versions than {self.rows.url}, first {min(missing)}. "
                "Remove the foreign rows there, then call change_commit_store again."
            )
        self.require_room(root, target)
        return len(rows)

    def require_room(self, root: DatasetRoot, target: TableCommits) -> None:
        """Check that the target holds no version of a history that does not exist.

        Readers would take it for the latest.

        Raises:
            Damaged: it does. The message names the row.
        """
        own = {(row.version, row.path) for row in self._all_rows(root)}
        for row in target._all_rows(root):
            if row.moved_to is not None:
                return  # a history that moved away from there; its rows are replaced
            if (row.version, row.path) not in own and self.retry.call(partial(self.objects.head, row.path)) is None:
                raise Damaged(
                    f"{root.base_uri}: {target.rows.url} holds a row of version {row.version}, whose manifest "
                    f"{row.path!r} does not exist. The row was left by another table at this place. Delete the rows of "
                    f"{root.base_uri} in {target.rows.url}, then call change_commit_store again."
                )

    def _all_rows(self, root: DatasetRoot) -> list[VersionRow]:
        return self.rows.list(root.base_uri, after=None, limit=None, descending=True)

    def _fence(self, root: DatasetRoot, new_store: str) -> None:
        while True:
            latest = self.rows.latest(root.base_uri) or self._adoption.adopt(root)
            if latest is not None:
                if latest.moved_to == new_store:
                    return
                latest = self.finalize(latest)
            fence = VersionRow.fence(root.base_uri, latest.version + 1 if latest else 1, new_store)
            if isinstance(self.rows.reserve(fence, first=latest is None), Reserved):
                return


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def recognisable(staged: StagedManifest, content: bytes | None) -> StagedManifest:
    """The staged manifest as a token keeps it, without the content but with what identifies it."""
    return staged if content is None else attrs.evolve(staged, digest=_digest(content))


def refusal(progress: Progress, fault: LancekeepError | None) -> LancekeepError:
    """Return the error for a refused commit: the store's own, a moved history, or a gap."""
    if progress.state is State.REFUSED and isinstance(fault, ObjectNotFound):
        refused = CommitRefused(
            f"{progress.row.base_uri}: the staged manifest of version {progress.row.version} is gone: the table was "
            "dropped while the version was committed. Nothing was committed."
        )
        refused.__cause__ = fault
        return refused
    if progress.state is State.REFUSED and fault is not None:
        return fault
    if progress.state is State.MOVED:
        return moved(progress.met)
    return CommitRefused(
        f"{progress.row.base_uri}: version {progress.row.version} would leave a gap: the latest version is "
        f"{progress.met.version if progress.met else 'none'}. The table was dropped, or recreated, since the "
        "writer opened it: open it again. Nothing was committed."
    )


def moved(fence: VersionRow | None) -> CommitStoreMismatch:
    """The error for a history that continues in another commit store."""
    place = "another commit store" if fence is None or fence.moved_to is None else fence.moved_to
    name = "" if fence is None else f"{fence.base_uri}: "
    return CommitStoreMismatch(f"{name}the versions of this table moved to {place}. Connect with that commit store.")
