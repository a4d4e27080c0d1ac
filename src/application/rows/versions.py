"""The versions of a catalog's tables, as native readers and writers request them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar
from uuid import uuid4

import attrs

from lancekeep.application.commits.detached_versions import DetachedVersions
from lancekeep.application.commits.table_commits import Ahead, Check, Confirm, TableCommits
from lancekeep.application.commits.tokens import parse_token
from lancekeep.application.commits.transaction_commits import Candidate, TransactionCommits
from lancekeep.application.concurrency import is_remote
from lancekeep.application.entries.base_paths import BasePaths
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.tag_files import TagFiles
from lancekeep.application.entries.unfinished_clones import UnfinishedClones
from lancekeep.application.rows.append_lines import Lines
from lancekeep.application.rows.committed_tables import CommittedTables
from lancekeep.application.rows.digests import Recorder
from lancekeep.application.rows.moved_tables import MovedTables
from lancekeep.application.rows.partition_columns import PartitionColumns
from lancekeep.domain.catalog import CatalogView, Lookup
from lancekeep.domain.commit import Committed, Conflict, Outcome, Unknown
from lancekeep.domain.commit_token import CommitToken, CommitUnknown
from lancekeep.domain.errors import (
    CommitRefused,
    LancekeepError,
    Refused,
    VersionTaken,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.lineage import Base
from lancekeep.domain.naming import NamingScheme, detached_version
from lancekeep.domain.partitions import published_version
from lancekeep.domain.table import Table, find_table, is_at, is_reusable
from lancekeep.domain.transaction import AllCommitted, TransactionOutcome
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.judge import Approved

Success = TypeVar("Success", Committed, AllCommitted)


@attrs.frozen
class NewVersion:
    """A staged manifest to commit as a version of a table, or of one of its branches."""

    table: Table
    version: int
    manifest_path: str
    size: int | None
    branch: str | None = None
    base: Base | None = None

    def at(self, root: DatasetRoot) -> Candidate:
        """Return the candidate for `TransactionCommits`.

        Args:
            root: The dataset root of the table.
        """
        on_branch = self.branch is not None
        return Candidate(root.branch(self.branch), self.version, self.manifest_path, self.size, on_branch, self.base)


class Versions:
    """The versions of every table of one catalog.

    The table engine calls this object while it reads and writes, so this object must not need the engine.

    Args:
        ledger: The entries, and the commits.
        places: The directories of the tables.
        base_paths: The base paths that the caller may read.
        check: Checks each manifest before its commit.
        tag_files: The tags, which keep versions from being deleted.
        lines: The appends that give way to other writers.
        recorder: Notes each committed version.
        committed: Counts the committed versions.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        base_paths: BasePaths,
        check: Check,
        tag_files: TagFiles,
        lines: Lines,
        recorder: Recorder,
        committed: CommittedTables,
    ) -> None:
        self._ledger = ledger
        self._places = places
        self.base_paths = base_paths
        self.check = check
        self._tag_files = tag_files
        self.lines = lines
        self.recorder = recorder
        self.committed = committed
        self.columns = PartitionColumns(ledger, places)
        self.unfinished_clones = UnfinishedClones(ledger, places)
        self.moved = MovedTables(ledger, places)

    # -- tables -------------------------------------------------------------------------------------------------

    @property
    def managed(self) -> bool:
        """Whether a commit store manages the versions."""
        return self._ledger.managed

    def manages(self, table: Table) -> bool:
        """Return whether the commit store manages the versions of a table."""
        return self._ledger.manages(table)

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options that the table engine needs to open a table."""
        return self._places.storage_options

    @property
    def root_uri(self) -> str:
        """The root of the catalog."""
        return self._places.root_uri

    @property
    def commits(self) -> TableCommits:
        """The commits of the versions of single datasets."""
        return self._ledger.commits

    def find_table(self, object_id: ObjectId) -> Table:
        """Return a table's entry.

        Raises:
            TableNotFound: The table does not exist.
        """
        return find_table(self._ledger.view(Lookup(object_id.key)), object_id)

    def dataset_root(self, table: Table) -> DatasetRoot:
        """Return the dataset root of a table; see `Places.dataset_root`."""
        return self._places.dataset_root(table)

    def uri(self, table: Table) -> str:
        """Return the URI by which the table engine opens a table."""
        return self._places.uri(table)

    # -- reading ------------------------------------------------------------------------------------------------

    def latest(self, root: DatasetRoot) -> VersionRow | None:
        """Return the latest version; see `TableCommits.latest`."""
        return self._ledger.commits.latest(root)

    def get(self, root: DatasetRoot, version: int) -> VersionRow | None:
        """Return one version; see `TableCommits.get`."""
        return self._ledger.commits.get(root, version)

    def page(self, root: DatasetRoot, after: int | None, limit: int | None, descending: bool) -> Sequence[VersionRow]:
        """Return several versions in order; see `TableCommits.page`."""
        return self._ledger.commits.page(root, after, limit, descending)

    # -- committing ---------------------------------------------------------------------------------------------

    def commit_to(
        self,
        object_id: ObjectId,
        branch: str | None,
        version: int,
        manifest_path: str,
        size: int | None,
        *,
        base: Base | None = None,
    ) -> Outcome:
        """Find a table and commit its next version; see `commit_version`.

        On remote storage, the staged manifest and its predecessor are read while the table is looked up.

        Raises:
            TableNotFound: The table does not exist.
            Refused: The table is an unfinished deep clone.
        """
        if (detached := detached_version(version)) is not None:
            detaching = partial(DetachedVersions.commit_staged, version=detached, path=manifest_path, size=size)
            return self.commit_detached(self.find_table(object_id), branch, detaching)
        ahead = self._read_ahead(object_id, branch, version, manifest_path)
        table = self.find_table(object_id)
        if version == 1:
            self.unfinished_clones.refuse(table)
        return self.commit_version(table, branch, version, manifest_path, size, base=base, ahead=ahead)

    def require_one_scheme(self, table: Table, branch: str | None = None) -> None:
        """Check the names of a table's manifests; called before a change writes anything.

        See `NamingSchemes.require_one`.

        Raises:
            Damaged: The names mix both schemes.
        """
        self._ledger.commits.naming_schemes.require_one(self.dataset_root(table).branch(branch))

    def require_safe(self, object_id: ObjectId, branch: str | None) -> None:
        """Check, before a change by the table engine, that its commit is safe.

        Raises:
            UnsafeStore: The object store violates the condition that commits depend on.
            Damaged: As `require_one_scheme`.
        """
        self._ledger.commits.prove()
        entry = self._ledger.recent().find(object_id.key)
        self.require_one_scheme(self.find_table(object_id) if entry is None else Table.from_entry(entry), branch)

    def commit_detached(
        self, table: Table, branch: str | None, detaching: Callable[[DetachedVersions, DatasetRoot], Committed]
    ) -> Committed:
        """Commit a detached version of a table.

        A relocation or a rename copies the versions that were committed before the entry changed. Later, the latest
        version is missing in the old directory, which may belong to another table.

        Raises:
            CommitRefused: The table was moved or dropped during the commit.
        """
        self.require_one_scheme(table, branch)
        root, commits = self._places.dataset_root(table).branch(branch), self._ledger.commits
        latest = commits.latest(root)
        committed = detaching(DetachedVersions(commits, self.check), root)
        is_here = is_at(self._ledger.fresh(), table.location)
        if is_here and (latest is None or commits.retry.call(partial(commits.objects.head, latest.path))):
            self.note(table, branch, committed)
            return committed
        commits.retry.call(partial(commits.objects.delete, committed.path))
        raise CommitRefused(
            f"the table {table.id} was moved, dropped or cleaned up while the detached version {committed.version} was "
            f"committed at {table.location!r}; nothing was committed there. Find the table again, and repeat the commit"
        )

    def _read_ahead(self, object_id: ObjectId, branch: str | None, version: int, manifest_path: str) -> Ahead | None:
        """Begin to read a staged manifest and its predecessor.

        Returns:
            The requests; None if local, or if the file is not in the last known directory of the table.
        """
        if not is_remote(self._ledger.commits.objects):
            return None
        with suppress(LancekeepError):  # the current entry decides
            root = self.dataset_root(find_table(self._ledger.recent(), object_id)).branch(branch)
            if manifest_path.rpartition("/")[0] + "/" == root.versions_key:
                return self._ledger.commits.read_ahead(root, version, manifest_path)
        return None

    def commit_version(
        self,
        table: Table,
        branch: str | None,
        version: int,
        manifest_path: str,
        size: int | None,
        *,
        base: Base | None = None,
        ahead: Ahead | None = None,
    ) -> Outcome:
        """Make a staged manifest the next version of a table or branch.

        See `TableCommits.commit`.

        Args:
            table: The table.
            branch: The branch; None for the main history.
            version: The version to commit.
            manifest_path: The key of the staged manifest.
            size: The size of the staged manifest, as a check, if the caller knows it.
            base: The version that the writer read, if the caller knows it.
            ahead: The requests that have begun.

        Raises:
            CommitRefused: As `TableCommits.commit`, or a rename moved the table's files during the commit.
        """
        if version != 1:
            self.require_one_scheme(table, branch)
        self.columns.require_kept(table, branch, lambda: self._places.objects.get(manifest_path))
        base, confirm = self._following(table, branch, version, base)
        outcome = self._ledger.commits.commit(
            self._places.dataset_root(table).branch(branch),
            version,
            manifest_path,
            size,
            branch=branch is not None,
            check=self.check,
            base=base,
            ahead=ahead,
            confirm=confirm,
        )
        if branch is None:
            self.lines.note_other(table.id, won=not isinstance(outcome, Conflict))
        self.note(table, branch, outcome)
        return outcome

    def recent(self) -> CatalogView:
        """Return the entries as of the last read; see `Ledger.recent`."""
        return self._ledger.recent()

    def commit_built(
        self,
        table: Table,
        built: Approved,
        since: CatalogView,
        *,
        scheme: NamingScheme | None = None,
        noted: bool = True,
        announce: Callable[[Callable[[], CommitToken]], object] = lambda token: None,
    ) -> tuple[Outcome, Sequence[bytes]]:
        """Make a version that this process has built the next version of a table.

        See `TableCommits.commit_built`.

        Args:
            table: The table.
            built: The version.
            since: The entries before the version that it follows was read.
            scheme: How to name it.
            noted: Whether to note the version for `recorder`; otherwise the caller does.
            announce: As for `TableCommits.commit_built`.

        Raises:
            CommitRefused: As `commit_version`.
        """
        self.require_one_scheme(table)
        self.columns.require_kept(table, None, lambda: built.content)
        confirm = self.moved.confirming(table, built.number, first=False, since=since, follows=built.follows)
        root = self._places.dataset_root(table)
        outcome, found = self._ledger.commits.commit_built(
            root,
            built,
            check=self.check,
            scheme=scheme or NamingScheme.V2,
            confirm=confirm,
            announce=announce,
            is_reusable=is_reusable(table.location),
        )
        if noted:
            self.note(table, None, outcome)
        return outcome, found

    def begin_history(self, table: Table, built: Approved) -> Outcome:
        """Commit a version that this process has built as a first version.

        The table is declared. Its history may begin with any version.

        Raises:
            CommitRefused: As `commit_version`.
        """
        root = self._places.dataset_root(table)
        confirm = self.moved.confirming(table, built.number, first=True)
        staged = f"{root.manifest_key(built.number, NamingScheme.V2)}-{uuid4()}"
        commits = self._ledger.commits
        commits.retry.call(lambda: self._places.objects.put(staged, built.content))
        outcome = commits.commit(
            root, built.number, staged, len(built.content), branch=True, check=self.check, confirm=confirm
        )
        self.note(table, None, outcome)
        return outcome

    def commit_versions(self, candidates: Sequence[NewVersion]) -> TransactionOutcome:
        """Make staged manifests the next versions of their tables, all or none.

        See `TransactionCommits.commit`.

        Raises:
            CommitRefused: As `TransactionCommits.commit`, or a rename moved the files of a table during the commit.
        """
        for each in candidates:
            if each.version == 1:
                self.unfinished_clones.refuse(each.table)
            self.require_one_scheme(each.table, each.branch)
            self.columns.require_kept(each.table, each.branch, partial(self._places.objects.get, each.manifest_path))
        following = [self._following(each.table, each.branch, each.version, each.base) for each in candidates]
        outcome = TransactionCommits(self._ledger.commits).commit(
            [
                attrs.evolve(each, base=base).at(self._places.dataset_root(each.table))
                for each, (base, _) in zip(candidates, following, strict=True)
            ],
            self.check,
            confirm=partial(_confirm_all, candidates, [confirm for _, confirm in following]),
        )
        if isinstance(outcome, AllCommitted):
            for each, committed in zip(candidates, outcome.versions, strict=True):
                self.note(each.table, each.branch, committed)
        return outcome

    def _following(
        self, table: Table, branch: str | None, version: int, base: Base | None
    ) -> tuple[Base | None, Confirm]:
        """Return the version that a version has to follow, if known, and the check after its commit.

        Raises:
            CommitRefused: As `MovedTables.confirming_reservation`, if the writer has read that there is no version.
        """
        read, first = _base_at(table, branch, base), version == 1
        if read is None or read.version:
            return read, self.moved.confirming(table, version, first=first, branch=branch)
        return None, self.moved.confirming_reservation(read.transaction)(table, version, first=first, branch=branch)

    def note(self, table: Table, branch: str | None, outcome: Outcome) -> None:
        """Note a committed version for `recorder` and `committed`."""
        if isinstance(outcome, Committed):
            self.committed.add(table.id)
            self.recorder.note(table, branch, outcome.version, outcome.path)

    def by_engine(
        self,
        object_id: ObjectId,
        commit: Callable[[], Committed],
        branch: str | None = None,
        read: Collection[int] = (),
    ) -> Committed:
        """Commit by the engine, and check a version that has no callback.

        Without a commit store, the engine creates the manifest itself. For a table in another place than a V1
        directory, the check costs no request.

        Args:
            object_id: The table.
            commit: Commits the version.
            branch: The branch; None for the main history.
            read: Filled by ``commit`` with the version that was read, which it returns if it changes nothing.

        Raises:
            CommitRefused: As `commit_version`.
            StoreUnavailable: Whether the table moved could not be learnt.
        """
        check = self.moved.native_check(object_id, branch)
        committed = commit()
        if not committed.path and committed.version not in read:
            check(committed)
        return committed

    def resolve(self, token: CommitToken | str) -> Outcome | AllCommitted:
        """Settle a commit of unknown outcome; see `Catalog.resolve`."""
        places = self._places
        known, gone = parse_token(token, self._ledger.view(), places.base_uri, places.dataset_root)
        if gone:
            return Unknown(known, gone)
        commits = self._ledger.commits
        outcome = TransactionCommits(commits).resolve(known) if known.others else commits.resolve(known)
        done = outcome.versions if isinstance(outcome, AllCommitted) else (outcome,)
        for member, each in zip(known.members, done, strict=False):
            if (found := self._history(member.base_uri.removeprefix(places.base_uri))) is not None:
                self.note(*found, each)
        return outcome

    def is_free(self, token: CommitToken) -> bool:
        """Return whether the version of an unknown commit is its table's next version.

        Then either this commit or another commit becomes the version, if the final manifest is created by
        put-if-absent.
        """
        places, commits = self._places, self._ledger.commits
        known, gone = parse_token(token, self._ledger.view(), places.base_uri, places.dataset_root)
        if gone or not commits.objects.guarantees.atomic_create:
            return False
        latest = commits.retry.call(lambda: commits.rows.latest(known.staged.base_uri))
        return latest is not None and latest.version == known.staged.version - 1

    # -- deleting -----------------------------------------------------------------------------------------------

    def delete_versions(self, root: DatasetRoot, versions: Iterable[int]) -> int:
        """Delete old versions of a table or branch: rows, then manifests.

        See `TableCommits.delete`.

        Returns:
            The number of versions that existed.

        Raises:
            Refused: A version is the latest, is tagged, or is the published version of a partition.
            Damaged: As `require_one_scheme`.
        """
        self._ledger.commits.naming_schemes.require_one(root)
        doomed = set(versions)
        self._refuse_published(root, doomed)
        tagged = doomed & self._tagged(root)
        if tagged:
            raise Refused(f"{root.base_uri}: a tag points at version {min(tagged)}; delete the tag first")
        return self._ledger.commits.delete(root, doomed)

    def _tagged(self, root: DatasetRoot) -> set[int]:
        """Return the tagged versions of a history. Histories share numbers; a tag belongs to one history."""
        found = self._history(self._places.location(root))
        if found is None or not root.is_branch:
            return self._tag_files.tagged_versions(root, None)
        table, branch = found
        return self._tag_files.tagged_versions(self._places.dataset_root(table), branch)

    def _history(self, location: str) -> tuple[Table, str | None] | None:
        """Return the table and the branch of a history; None if no entry has it."""
        owner = self._ledger.view().owner_of(location)
        if owner is None:
            return None
        table = Table.from_entry(owner)
        _, _, branch = location.partition(f"{table.location}/{BRANCHES}/")
        return table, branch or None

    def _refuse_published(self, root: DatasetRoot, doomed: set[int]) -> None:
        owner = self._ledger.view().owner_of(self._places.location(root))
        published = None if owner is None else published_version(owner)
        if owner is None or published is None or published.version not in doomed:
            return
        if root == self._places.dataset_root(Table.from_entry(owner)).branch(published.branch or None):
            raise Refused(
                f"{root.base_uri}: version {published.version} is published for the partition {owner.object_id}"
            )


def _confirm_all(candidates: Sequence[NewVersion], confirms: Sequence[Confirm], transactions: Sequence[str]) -> None:
    """Check the versions of a transaction after its commit.

    Raises:
        CommitRefused: A table was dropped or renamed. The message names the versions that the transaction has made.
    """
    refused: list[tuple[NewVersion, CommitRefused]] = []
    kept: list[str] = []
    for each, confirm, transaction in zip(candidates, confirms, transactions, strict=True):
        try:
            confirm(transaction)
        except CommitRefused as error:
            refused.append((each, error))
        else:
            kept.append(f"version {each.version} of {each.table.id}")
    if not refused:
        return
    _, first = refused[0]
    if not kept:
        raise first
    lost = ", ".join(str(each.table.id) for each, _ in refused)
    raise CommitRefused(
        f"{first} The transaction is committed as {', '.join(kept)}, but not in {lost}. To complete it, write the "
        f"changes of {lost} again. To undo it, restore the other tables to the versions before"
    ) from first


def raise_unless_committed(outcome: Success | Conflict | Unknown, name: str) -> Success:
    """Return the committed version or versions; raise if there are none.

    Raises:
        CommitUnknown: The outcome is unknown. The error carries the token that settles it.
        VersionTaken: Another writer has the version.
    """
    if isinstance(outcome, Unknown):
        raise CommitUnknown(
            f"{name}: whether version {outcome.token.staged.version} was committed could not be learnt: "
            f"{outcome.reason}. Nothing was removed; settle it with catalog.resolve(error.token).",
            outcome.token,
        )
    if isinstance(outcome, Conflict):
        winner = "another" if outcome.winner is None else f"{outcome.winner.path} ({outcome.winner.committer})"
        raise VersionTaken(f"{name}: the version is taken by {winner}; nothing was committed")
    return outcome


def _base_at(table: Table, branch: str | None, base: Base | None) -> Base | None:
    """Return the version that a writer read, if the location may have been reused."""
    if base is None or base.branch != branch or (branch is None and not is_reusable(table.location)):
        return None
    return base
