"""Commit, delete and move the versions of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs

from lancekeep.application.commits.histories import Histories
from lancekeep.application.commits.keyed_requests import current_request
from lancekeep.application.commits.protocol_runner import confirmed, recognizable, refusal
from lancekeep.application.concurrency import all_alongside, alongside, is_remote
from lancekeep.application.parts import part
from lancekeep.application.retry import Retry
from lancekeep.domain.commit import (
    Committed,
    Conflict,
    Outcome,
    Progress,
    Unknown,
    begin_commit,
    begin_resolve,
)
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.commit_transitions import State
from lancekeep.domain.dataset_files import TRANSACTIONS
from lancekeep.domain.errors import (
    CommitRefused,
    ConcurrentModification,
    LancekeepError,
    ObjectNotFound,
    Refused,
    StoreUnavailable,
)
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Base, refuse_accidental_overwrite
from lancekeep.domain.naming import ManifestName, NamingScheme, final_path
from lancekeep.domain.version_row import Reserved, VersionRow, scheme_of
from lancekeep.format.manifest import reads_version_zero, transaction_in
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectStore

if TYPE_CHECKING:
    from lancekeep.application.commits.holding import Holding
    from lancekeep.application.commits.lineage import Descendant, Lineage
    from lancekeep.application.commits.naming_schemes import NamingSchemes
    from lancekeep.application.commits.settled_indexes import SettledIndexes
    from lancekeep.format.judge import Approved

Check = Callable[[DatasetRoot, bytes], object]
"""Checks a manifest before it is committed to a dataset or branch. An error prevents the commit."""

Confirm = Callable[[str], object]
"""Checks a version after its commit, given the name of its transaction file; empty if that is not known."""

READ_AHEAD = 4
"""How many manifests are read at the same time after a conflict."""


@attrs.frozen
class Ahead:
    """The requests of a commit that began before its table was looked up.

    Attributes:
        staged: reads the staged manifest.
        previous: reads its predecessor into the memory of `Lineage`.
    """

    staged: Future[bytes]
    previous: Future[object]


class TableCommits(Histories):
    """The commit authority over the datasets of one object store.

    Every method retries transient faults of either store within ``retry``'s patience. Threads may share an instance.
    `prove` runs before each commit: an unsafe object store that is detected after the reservation would leave a row
    that blocks every writer.
    """

    def __init__(
        self,
        objects: ObjectStore,
        rows: ExternalCommitStore,
        committer: str,
        retry: Retry,
        direct: ExternalCommitStore | None = None,
    ) -> None:
        super().__init__(objects, rows, retry, direct)
        self.committer = committer
        """The name by which histories and records call this process."""

    @part
    def lineage(self) -> Lineage:
        """Compares staged manifests with their predecessors."""
        from lancekeep.application.commits.lineage import Lineage  # a process that only reads needs none

        return Lineage(self.objects, self.retry, self.get, self.is_settled)

    @part
    def naming_schemes(self) -> NamingSchemes:
        """The naming schemes of the manifests of tables."""
        from lancekeep.application.commits.naming_schemes import NamingSchemes  # as above

        return NamingSchemes(self.objects, self.rows, self.retry)

    @part
    def settled_indexes(self) -> SettledIndexes:
        """Takes entries of replaced values out of indexes."""
        from lancekeep.application.commits.settled_indexes import SettledIndexes  # as above

        return SettledIndexes(self.objects, self.retry, self.lineage, self.get)

    @part
    def holding(self) -> Holding:
        """Holds or adopts the direct commits of tables."""
        from lancekeep.application.commits.holding import Holding  # as above

        return Holding(self)

    def forget(self) -> None:
        """Clear the memory of versions: another table may have the same location now."""
        super().forget()
        lineage = TableCommits.lineage.made(self)
        if lineage is not None:
            lineage.forget()

    # -- committing ---------------------------------------------------------------------------------------------

    def read_ahead(self, root: DatasetRoot, version: int, path: str) -> Ahead:
        """Begin to read a staged manifest and its predecessor.

        Takes the arguments of `commit`.
        """
        return Ahead(
            alongside(partial(self.objects.get, path)),
            alongside(partial(self.lineage.read_ahead, root, path, version - 1)),
        )

    def commit(
        self,
        root: DatasetRoot,
        version: int,
        path: str,
        size: int | None,
        *,
        branch: bool,
        check: Check,
        base: Base | None = None,
        ahead: Ahead | None = None,
        confirm: Confirm = lambda transaction: None,
    ) -> Outcome:
        """Commit a staged manifest as a version of a dataset.

        Idempotent for one staged manifest. Files are removed only after a definite outcome.

        Args:
            root: The dataset, or the branch.
            version: The version to commit.
            path: The key of the staged manifest.
            size: Its size in bytes, as a check, if the caller knows it.
            branch: Whether the history may begin with any version.
            check: Checks the manifest.
            base: The version that the writer read, if the caller knows it.
            ahead: The requests that have begun.
            confirm: Gets the name of the version's transaction file. Raises if the committed version may be missing. If
                it cannot decide, the outcome is `Unknown`.

        Raises:
            CommitRefused: The path is not a staged manifest of this dataset and version, the version would leave a
                gap or does not descend from the one before it, or the manifest would wipe the table. Nothing was
                written.
            CommitStoreMismatch: The history has moved to another commit store.
            StoreUnavailable: The staged manifest could not be read; nothing was written.
            UnsafeStore: The object store violates the condition that commits depend on; nothing was committed.
            AccessDenied, Unsupported: The commit store refused the reservation; the staged manifest was removed.
        """
        reading = None if ahead is None else ahead.staged
        staged, content = self.read_staged(root, version, path, size, branch=branch, check=check, ahead=reading)
        if ahead is not None:
            ahead.previous.exception()  # the check of the lineage repeats a read that failed
        keyed, latest = current_request(), None
        if self.rows.guarantees.derived and self._is_remote and keyed is None:  # a claim would delay its use
            latest = alongside(partial(self.rows.latest, root.base_uri))
        staged, content, descendant = self.require_descent(root, staged, content, base)
        if keyed is not None:
            keyed.claim(lambda: CommitToken(recognizable(staged, content)))
        outcome = self._settle(begin_commit(staged), content, cleans_later=self._is_remote, latest=latest)
        if isinstance(outcome, Committed):
            self.lineage.keep(descendant)
            row = Committed(outcome.version, outcome.path, outcome.size, descendant.transaction)
            return confirmed(row, partial(confirm, row.transaction), lambda: CommitToken(recognizable(staged, content)))
        return outcome

    def require_descent(
        self, root: DatasetRoot, staged: StagedManifest, content: bytes, base: Base | None
    ) -> tuple[StagedManifest, bytes, Descendant]:
        """Check that a staged manifest descends from the version before it.

        Entries of replaced values are taken out of its indexes. See `Lineage.require` for the errors.

        Returns:
            The manifest to commit, which is staged under the same name, its bytes, and its descent.
        """
        self.holding.require_reflected(root, staged.version - 1)
        manifest = self.lineage.decode(root, staged, content)
        settled = None if manifest is None else self.settled_indexes.staged(root, staged, manifest)
        if settled is None:
            return staged, content, self.lineage.require(root, staged, manifest, base)
        content, files = settled
        staged = attrs.evolve(staged, size=len(content))
        descendant = self.lineage.require(root, staged, self.lineage.decode(root, staged, content), base)
        self.settled_indexes.write(root, files)
        self.retry.call(partial(self.objects.put, staged.path, content))
        return staged, content, descendant

    def commit_built(
        self,
        root: DatasetRoot,
        built: Approved,
        *,
        check: Check,
        scheme: NamingScheme = NamingScheme.V2,
        confirm: Confirm = lambda transaction: None,
        announce: Callable[[Callable[[], CommitToken]], object] = lambda token: None,
        is_reusable: bool = False,
    ) -> tuple[Outcome, Sequence[bytes]]:
        """Commit a manifest that this process has built.

        If rows are derived from the final manifests, creating the final manifest commits the version: nothing is
        staged and nothing is read before. The caller must know that the version before it is the latest. Otherwise
        the manifest is staged and committed by the protocol. A request without a reply is repeated with the same
        bytes. ``confirm`` is as in `commit`.

        Args:
            root: The dataset.
            built: The version.
            check: Checks the manifest.
            scheme: How to name it. The caller must know that the version before it has such a name.
            announce: Is called before anything is written, with a function that returns the token of the commit. An
                error of it prevents the commit.
            is_reusable: Whether another table may have the directory now.

        Returns:
            The outcome. After a conflict also the known manifests of the version and of the versions after it; none if
            the caller has to read the latest version.

        Raises:
            CommitRefused, UnsafeStore, AccessDenied, Unsupported: Nothing was committed.
        """
        content = built.content
        path = f"{root.manifest_key(built.number, scheme)}-{uuid4()}"
        staged = StagedManifest(root.base_uri, built.number, path, len(content), False, self.committer)
        check(root, content)
        derived = self.rows.guarantees.derived
        manifest = None if derived else self.lineage.decode(root, staged, content)
        descendant = None if derived else self.lineage.require(root, staged, manifest, None)
        announce(lambda: CommitToken(recognizable(staged, content)))
        found: Sequence[bytes] = ()
        if descendant is None:
            outcome, found = self._create_built(root, staged, content)
        else:
            self.retry.call(lambda: self.objects.put(path, content))
            if is_reusable:
                self.lineage.require_predecessor(root, staged, built.follows)
            outcome = self._settle(begin_commit(staged), content, cleans_later=self._is_remote)
            if isinstance(outcome, Committed):
                self.lineage.keep(descendant)
        if isinstance(outcome, Committed):
            outcome = confirmed(
                outcome, partial(confirm, built.transaction), lambda: CommitToken(recognizable(staged, content))
            )
        return outcome, found

    def record_transaction(self, root: DatasetRoot, built: Approved) -> None:
        """Write the transaction file that a built version names.

        It exists before the version does. A fence names none.
        """
        if not built.transaction:
            return
        key = f"{root.key}/{TRANSACTIONS}/{built.transaction}"
        self.retry.call(partial(self.objects.put, key, transaction_in(built.content)))

    def _create_built(
        self, root: DatasetRoot, staged: StagedManifest, content: bytes
    ) -> tuple[Outcome, Sequence[bytes]]:
        self.prove()
        row = attrs.evolve(staged.row, path=final_path(staged.path))
        unanswered = False

        def create() -> bool:
            nonlocal unanswered
            try:
                return self.objects.put_if_absent(row.path, content)
            except StoreUnavailable:
                unanswered = True
                raise

        try:
            if self.retry.call(create):
                return self._known(row), ()
            found = self._finals_from(root, row)
        except LancekeepError as error:
            if not unanswered and not isinstance(error, StoreUnavailable):
                raise
            return Unknown(CommitToken(recognizable(staged, content)), str(error)), ()
        if not found and not unanswered:
            return Conflict(None), ()  # another writer's version, which a clean-up has removed since
        if not found:
            gone = f"version {row.version} existed and no longer does: its table was dropped, or it was cleaned up"
            return Unknown(CommitToken(recognizable(staged, content)), gone), ()
        if found[0] == content:  # an earlier attempt created it, and its reply was lost
            return self._known(row), ()
        return Conflict(attrs.evolve(row, size=len(found[0]), committer="")), found

    def _finals_from(self, root: DatasetRoot, row: VersionRow) -> Sequence[bytes]:
        """Return the final manifests of a version and of the versions after it, up to a gap."""
        scheme = scheme_of(row) or NamingScheme.V2

        def read(number: int) -> bytes | None:
            try:
                return self.retry.call(partial(self.objects.get, root.manifest_key(number, scheme)))
            except ObjectNotFound:
                return None

        numbers = range(row.version, row.version + READ_AHEAD)
        read_all = all_alongside(read, numbers) if is_remote(self.objects) else map(read, numbers)
        found: list[bytes] = []
        for content in read_all:
            if content is None:
                break
            found.append(content)
        return found

    def publish(self, root: DatasetRoot, name: str, content: bytes) -> bool:
        """Commit a manifest of the catalog's own table under its final ``name``.

        The catalog uses this if the object store has no create-only write. Readers of that table list the directory
        only, so a losing writer finalizes the winner's version: the winner may have crashed. Idempotent for the same
        content.

        Returns:
            Whether this manifest is the version now.

        Raises:
            StoreUnavailable: The outcome is unknown.
            Damaged: Neither the staged nor the final manifest of the winner exists.
        """
        staged = f"{name}-{uuid4()}"
        self.retry.call(lambda: self.objects.put(staged, content))
        version = ManifestName.parse(name.rpartition("/")[2])
        assert version is not None  # the caller names versions by the naming scheme
        claim = self._claim(root, version, staged, content, branch=False)
        outcome = self._settle(begin_commit(claim), content)
        if isinstance(outcome, Unknown):
            raise StoreUnavailable(f"{name}: whether it was committed could not be learnt: {outcome.reason}")
        if isinstance(outcome, Conflict) and outcome.winner is not None:
            self.finalize(outcome.winner)
        return isinstance(outcome, Committed)

    def resolve(self, token: CommitToken) -> Outcome:
        """Settle an unknown commit: complete it, or return the winner.

        The outcome stays `Unknown` if both the version and the staged manifest were removed, by a cleanup or with their
        table. Idempotent. It raises the errors of `commit`.
        """
        return self._settle(begin_resolve(token), None)

    def read_staged(
        self,
        root: DatasetRoot,
        version: int,
        path: str,
        size: int | None,
        *,
        branch: bool,
        check: Check,
        ahead: Future[bytes] | None = None,
    ) -> tuple[StagedManifest, bytes]:
        """Read and check a staged manifest, with the arguments of `commit`."""
        directory, _, file_name = path.rpartition("/")
        name = ManifestName.parse(file_name)
        if directory + "/" != root.versions_key or name is None or not name.is_staged or name.version != version:
            raise CommitRefused(
                f"{root.base_uri}: {path!r} is not a staged manifest of version {version} of this table; expected "
                f"{root.versions_key + NamingScheme.V2.final_name(version) if version >= 0 else root.versions_key}"
                "-<uuid>. Nothing was committed."
            )
        try:
            if ahead is not None and not isinstance(ahead.exception(), StoreUnavailable):
                content = ahead.result()
            else:
                content = self.retry.call(partial(self.objects.get, path))
        except ObjectNotFound as error:
            raise CommitRefused(f"{root.base_uri}: the staged manifest {path!r} does not exist") from error
        if size is not None and size != len(content):
            raise CommitRefused(
                f"{root.base_uri}: the staged manifest {path!r} has {len(content)} bytes where {size} were announced; "
                "nothing was committed"
            )
        path = self._by_scheme_of_table(root, name, path, content)
        staged = self._claim(root, name, path, content, branch=branch)
        check(root, content)
        return staged, content

    def _claim(
        self, root: DatasetRoot, name: ManifestName, path: str, content: bytes, *, branch: bool
    ) -> StagedManifest:
        """Return the claim of a staged manifest.

        Raises:
            CommitRefused: The file is not a manifest, or would wipe the table.
        """
        version = name.version
        try:
            from_nothing = reads_version_zero(content)
        except ValueError as error:
            raise CommitRefused(
                f"{root.base_uri}: the file staged for version {version} is not a Lance manifest: {error}. Nothing was "
                "committed."
            ) from error
        refuse_accidental_overwrite(version, from_nothing, root.base_uri)
        begins = branch or version == 1
        return StagedManifest(root.base_uri, version, path, len(content), begins, self.committer)

    def _by_scheme_of_table(self, root: DatasetRoot, staged: ManifestName, path: str, content: bytes) -> str:
        """Return the key of a staged manifest whose name has the scheme of its table.

        A writer that opened the table before its names were migrated to V2 stages by V1: such a manifest is staged
        again. The version before it decides the scheme. A V2 name is followed by V2 names only, so this reads the
        commit store if this process does not know that version, or if it has a V1 name.

        Raises:
            CommitRefused: The names of the table are V1, and the staged name is V2. Nothing was committed.
        """
        known = self._newest.get(root.base_uri)
        if staged.version == 1 or (known is not None and scheme_of(known) is staged.scheme is NamingScheme.V2):
            return path
        if known is None or known.version != staged.version - 1 or scheme_of(known) is not staged.scheme:
            known = self.retry.call(lambda: self.rows.latest(root.base_uri))
        scheme = None if known is None else scheme_of(known)
        if scheme in (None, staged.scheme):
            return path
        if scheme is NamingScheme.V1:
            raise CommitRefused(
                f"{root.base_uri}: the staged manifest of version {staged.version} is named by the scheme "
                f"{staged.scheme.value}, and the table's manifests by {scheme.value}. A table with both is an error in "
                "the format, and readers refuse such a table. Open the table and write again; nothing was committed."
            )
        again = f"{root.manifest_key(staged.version, NamingScheme.V2)}-{staged.uuid}"
        self.retry.call(lambda: self.objects.put(again, content))
        self.retry.call(partial(self.objects.delete, path))
        return again

    def _settle(
        self,
        progress: Progress,
        content: bytes | None,
        *,
        cleans_later: bool = False,
        latest: Future[VersionRow | None] | None = None,
    ) -> Outcome:
        """Drive a commit to its outcome.

        With ``cleans_later``, a definite outcome is returned while the staged manifest is still being deleted. A
        crash in between leaves an orphan, as a crash before the deletion does.
        """
        self.prove()
        deadline = self.retry.deadline()
        until = (State.CLEAN, State.ABANDON) if cleans_later else ()
        progress, fault = self.run(progress, content, deadline, until, latest=latest)
        assert progress.staged is not None
        row = progress.final_row
        if progress.state in until:
            alongside(partial(self.run, progress, content, deadline))
        match progress.state:
            case State.COMMITTED | State.CLEAN:
                return self._known(row)
            case State.CONFLICT | State.ABANDON:
                self.conflicts.add(row.base_uri)
                self.holding.require_publishable(progress.met)
                return Conflict(progress.met)
            case State.UNKNOWN:
                gone = (
                    f"version {row.version} no longer has a manifest: it was cleaned up, or its table was dropped or "
                    "moved. Only the rows of the table show whether it was committed"
                )
                return Unknown(CommitToken(recognizable(progress.staged, content)), str(fault) if fault else gone)
        raise refusal(progress, fault)

    def _known(self, row: VersionRow) -> Committed:
        """Remember a committed version."""
        self._remember(row)
        self._know(row)
        return Committed(row.version, row.path, row.size)

    @property
    def _is_remote(self) -> bool:
        return is_remote(self.objects)

    def prove(self) -> None:
        """Raise `UnsafeStore` unless the object store keeps the condition of commits."""
        self.retry.call(self.objects.prove)

    # -- removing -----------------------------------------------------------------------------------------------

    def delete(self, root: DatasetRoot, versions: Iterable[int]) -> int:
        """Delete the rows of versions, then their manifests. Idempotent.

        Returns:
            The number of versions that existed.

        Raises:
            Refused: The latest version is among the versions. Nothing was deleted.
            ConcurrentModification: The table was dropped since. Some of its versions may have been deleted.
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
        is_same = self.lineage.witness(root, latest)
        self.retry.call(lambda: self.rows.delete(root.base_uri, [row.version for row in found]))
        for at, row in enumerate(found):
            if not is_same():
                last = [each.version for each in found[:at]][-1:]  # another table may lack this manifest now
                self.retry.call(partial(self.rows.delete, root.base_uri, last))
                raise ConcurrentModification(
                    f"{root.base_uri}: the table was dropped, and perhaps created again, while versions were deleted; "
                    f"version {row.version} and later ones were not. Read the versions of the table again"
                )
            self.retry.call(partial(self.objects.delete, row.path))
            self._final.pop((row.base_uri, row.version), None)
        if found:  # a concurrent reader may have recorded a row before its manifest was deleted
            self.retry.call(lambda: self.rows.delete(root.base_uri, [row.version for row in found]))
        return len(found)

    def forget_predecessor(self, root: DatasetRoot) -> None:
        """Delete the rows of an earlier table at ``root``, not of the current table."""

        def act() -> None:
            self.rows.reclaim(root.base_uri)
            rows, foreign = self.rows.sort_out(root.base_uri)
            if foreign:
                self.rows.delete(root.base_uri, [row.version for row in foreign])
            if rows or foreign:
                self.direct.forget(root.base_uri)
            if rows:
                self._adoption.forget_vanished(root, rows)

        self.retry.call(act)
        self.forget()

    def forget_history(self, root: DatasetRoot) -> None:
        """Delete every row of a dataset and its branches, to drop it."""
        for history in self.histories(root):
            self.retry.call(partial(self.rows.delete, history.base_uri))
            self.retry.call(partial(self.direct.forget, history.base_uri))
        self.forget()

    # -- moving to another commit store -------------------------------------------------------------------------

    def move_to(self, rows: ExternalCommitStore) -> None:
        """Commit through another commit store from now on."""
        self.rows.move_to(rows)
        self.forget()

    def fence(self, root: DatasetRoot, new_store: str) -> None:
        """End a history here by a row that names the new store. Idempotent."""
        while True:
            latest = self.rows.latest(root.base_uri) or self._adoption.adopt(root)
            if latest is not None:
                if latest.moved_to == new_store:
                    return
                met, latest = latest, self.finalize(latest)
                if latest is None and self.is_held(met):  # a commit that lost; what settles its version is kept
                    if self.rows.get(root.base_uri, met.version) == met:
                        self.rows.delete(root.base_uri, [met.version])
                    continue
            fence = VersionRow.fence(root.base_uri, latest.version + 1 if latest else 1, new_store)
            if isinstance(self.rows.reserve(fence, first=latest is None), Reserved):
                return

    # -- leaving a table to the storage -------------------------------------------------------------------------

    def is_managed_otherwise(self, root: DatasetRoot, *, storage: bool) -> bool:
        """Return whether a history of a dataset has another manager.

        Another than the storage, or without ``storage`` another than the commit store.
        """
        rows = self.rows
        if rows.storage is None:
            return False
        return any(
            self.retry.call(partial(rows.is_released, each.base_uri)) is not storage for each in self.histories(root)
        )

    def release(self, root: DatasetRoot) -> None:
        """Leave the versions of a dataset to the storage from now on. Idempotent.

        The dataset is first, because a new branch follows its table. A commit whose version was reserved before is
        rolled forward.
        """
        if self.rows.storage is None:
            return  # the commit store is the condition of the storage
        released: set[str] = set()
        while left := [each for each in self.histories(root) if each.base_uri not in released]:
            for history in left:  # a branch may appear while others are released
                self._release(history)
                released.add(history.base_uri)
        self.forget()

    def _release(self, root: DatasetRoot) -> None:
        self.latest(root)
        # The storage searches from the hint up to a gap, which deletions may have left.
        self.retry.call(partial(self.objects.delete, root.hint_key))
        self.retry.call(partial(self.rows.release, root.base_uri))
        stored = self.rows.stored
        rows = self.retry.call(partial(stored.list, root.base_uri, after=None, limit=None, descending=False))
        for row in rows:
            if not row.is_final and row.moved_to is None:
                self.finalize(row)
        self.retry.call(partial(self.rows.forget_rows, root.base_uri))

    def reclaim(self, root: DatasetRoot) -> None:
        """Let the commit store manage the versions of a dataset from now on. Idempotent.

        The dataset is last: its branches without rows follow it. The commit store adopts every final manifest.
        """
        for history in reversed(self.histories(root)):
            self.retry.call(partial(self.rows.reclaim, history.base_uri))
        self.forget()
        for history in self.histories(root):
            self.latest(history)
