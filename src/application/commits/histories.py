"""Read the versions of tables: the latest, one, or a page of them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial

import attrs

from lancekeep.application.commits.protocol_runner import REMEMBERED, ProtocolRunner, moved
from lancekeep.application.concurrency import all_alongside, alongside, is_remote
from lancekeep.application.retry import Retry
from lancekeep.domain.dataset_files import Place
from lancekeep.domain.layout import BRANCHES, VERSIONS, DatasetRoot
from lancekeep.domain.naming import NamingScheme, detached_name, detached_version
from lancekeep.domain.version_row import LatestRow, VersionRow
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectInfo, ObjectStore


@attrs.frozen
class _Ahead:
    """A concurrent check for the final manifest of the version after ``version``."""

    version: int
    found: Future[ObjectInfo | None]


class Histories(ProtocolRunner):
    """Reads the versions of the datasets of one object store.

    A *history* is the sequence of versions of a dataset or of one of its branches. Reads roll decided commits forward
    and adopt versions that have no rows; they write nothing else.
    """

    def __init__(
        self, objects: ObjectStore, rows: ExternalCommitStore, retry: Retry, direct: ExternalCommitStore | None = None
    ) -> None:
        super().__init__(objects, rows, retry, direct)
        self._newest: dict[str, VersionRow] = {}

    def latest(self, root: DatasetRoot, read: LatestRow | None = None) -> VersionRow | None:
        """Return the final row of the latest version; None if there is no version.

        Versions in the object store that have no rows are adopted, which records their rows: all versions of a dataset
        without any row (registered, or lost by the commit store), and the versions after the latest row (lost, or
        committed by a writer that bypasses the catalog).

        Args:
            root: The dataset.
            read: The latest row, if it was read together with the catalog's entry.
        """
        row, ahead = self.retry.call(lambda: self._look(root, read))
        if row is None:
            return self.retry.call(lambda: self._adoption.adopt(root))
        if self._is_outlived(root, row):
            return None
        latest = self._reflected(row)
        if latest is None:  # deleted in between; there may be a later version
            return None if self.is_held(row) else self.latest(root)
        if root.is_branch and self.retry.call(partial(self.objects.head, latest.path)) is None:
            return self.retry.call(lambda: self._adopt_again(root))
        while not self.rows.guarantees.complete and self.retry.call(partial(self._is_followed, latest, ahead)):
            row, ahead = self.retry.call(lambda: self.rows.latest(root.base_uri)), None
            if row is None or row.version < latest.version:
                return self.latest(root)  # dropped or recreated in between
            if row.version > latest.version:
                newer = self._reflected(row)
            else:
                newer = self.retry.call(partial(self._adoption.catch_up, root, latest))
            if newer == latest:
                break
            if newer is None:
                return self.latest(root)
            latest = newer
        self._know(latest)
        return latest

    def _reflected(self, row: VersionRow) -> VersionRow | None:
        """Return the final row of the latest row; of the row before it if a direct commit has its place."""
        final = self.finalize(row)
        if final is not None or not self.is_held(row):
            return final
        before = self.retry.call(lambda: self.rows.list(row.base_uri, after=row.version, limit=1, descending=True))
        return before[0] if before else None

    def _look(self, root: DatasetRoot, read: LatestRow | None) -> tuple[VersionRow | None, _Ahead | None]:
        """Return the latest row; on remote storage also start to check for the version after the latest known version.

        Both requests run concurrently. They find every version that was final when they began, in either order of their
        replies.
        """
        known = self._newest.get(root.base_uri) if is_remote(self.objects) else None
        if known is None or self.rows.guarantees.complete:
            return self.rows.latest(root.base_uri, read), None
        ahead = _Ahead(known.version, alongside(partial(self._adoption.following, known)))
        return self.rows.latest(root.base_uri, read), ahead

    def _is_followed(self, row: VersionRow, ahead: _Ahead | None) -> bool:
        """Return whether the object store holds the final manifest of the next version."""
        if ahead is not None and ahead.version == row.version and ahead.found.exception() is None:
            return ahead.found.result() is not None
        return self._adoption.following(row) is not None

    def has_versions(self, root: DatasetRoot) -> bool:
        """Return whether the dataset has any version."""
        row = self.retry.call(lambda: self.rows.latest(root.base_uri))
        if row is not None and row.moved_to is not None:
            if self._is_outlived(root, row):
                return False
            raise moved(row)
        return row is not None or self.retry.call(lambda: self._adoption.adopt(root)) is not None

    def _is_outlived(self, root: DatasetRoot, row: VersionRow) -> bool:
        """Return whether a row is the stale fence of a dropped table.

        The table was dropped after its versions moved to another commit store, so nothing removed the fence here. The
        catalog may use this store again. Commits meet the fence until the name is dropped or declared.
        """
        return row.moved_to is not None and not self.retry.call(partial(self._adoption.any_final, root))

    def unrecorded(self, rows: Sequence[VersionRow]) -> bool:
        """Return whether a version without a row follows any of these latest rows."""
        if self.rows.guarantees.complete:
            return False

        def follows(row: VersionRow) -> bool:
            found = self.retry.call(lambda: self._adoption.following(row))
            if found is None or self.rows.get(row.base_uri, row.version + 1) is not None:
                return False
            return self.direct.may_be_version(VersionRow(row.base_uri, row.version + 1, found.key, found.size))

        return any(all_alongside(follows, rows) if is_remote(self.objects) else map(follows, rows))

    def get(self, root: DatasetRoot, version: int) -> VersionRow | None:
        """Return the final row of a version, or None; the version may be detached."""
        if (detached := detached_version(version)) is not None:
            return self.retry.call(partial(self._row_at, root, detached, root.versions_key + detached_name(detached)))
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

    def existing(self, root: DatasetRoot, version: int) -> VersionRow | None:
        """Return the final row of a version whose manifest exists, or None.

        A clean-up of native code removes manifests without removing their rows.
        """
        row = self.get(root, version)
        return None if row is None or not self.dated(root, [row]) else row

    def page(self, root: DatasetRoot, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        """Return the final rows of versions in order.

        Rows that the commit store lost between other rows are recorded again.

        Args:
            root: The history.
            after: The version before the first version to return; None to begin at the end of the order.
            limit: The most rows to return; None for all.
            descending: Whether to begin with the newest version.
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

    def dated(self, root: DatasetRoot, rows: Sequence[VersionRow]) -> list[tuple[VersionRow, datetime | None]]:
        """Return the versions that exist, each with its creation time.

        The time is by the clock of the storage; None if the storage does not report it. One version costs one request.
        Otherwise the manifests are listed until all versions are found. The latest known version is returned in any
        case.
        """
        wanted = {row.path: row.version for row in rows}
        found: dict[int, datetime | None] = {}

        def act() -> None:
            infos = self.objects.list(root.versions_key) if len(rows) != 1 else [self.objects.head(rows[0].path)]
            last, missing = max(wanted, default=""), len(wanted)
            for info in infos:
                if info is not None and info.key in wanted:
                    found[wanted[info.key]] = info.modified
                    missing -= 1
                if not missing or (info is not None and info.key >= last):
                    return

        self.retry.call(act)
        newest = self._newest.get(root.base_uri)
        known = None if newest is None else newest.version
        return [(row, found.get(row.version)) for row in rows if row.version in found or row.version == known]

    def final_object(self, root: DatasetRoot, version: int) -> VersionRow | None:
        """Return a version as a row from its final manifest; None without a manifest."""
        for scheme in (NamingScheme.V2, NamingScheme.V1):
            row = self._row_at(root, version, root.manifest_key(version, scheme))
            if row is not None:
                return row
        return None

    def _row_at(self, root: DatasetRoot, version: int, key: str) -> VersionRow | None:
        info = self.objects.head(key)
        return None if info is None else VersionRow(root.base_uri, version, key, info.size)

    def histories(self, root: DatasetRoot) -> list[DatasetRoot]:
        """Return the roots of the dataset and of its branches that have versions."""
        found = (Place.of(info.key[len(root.key) + 1 :]) for info in self.objects.list(f"{root.key}/{BRANCHES}/"))
        names = {place.branch for place in found if place is not None and place.directory == VERSIONS}
        return [root, *(root.branch(name) for name in sorted(names))]

    def forget(self) -> None:
        """Clear the memory of versions: another table may have the same location now."""
        self._final.clear()
        self._held.clear()
        self._newest.clear()
        self._adoption.forget_gaps()

    def is_settled(self, root: DatasetRoot, version: int) -> bool:
        """Return whether this process knows that a version keeps its manifest.

        It has found that the version, or a later one, is final, or no table of the commit store can hold direct
        commits. This costs no request.
        """
        if not self.direct.can_hold:
            return True
        newest = self._newest.get(root.base_uri)
        return (newest is not None and newest.version >= version) or (root.base_uri, version) in self._final

    def _know(self, latest: VersionRow) -> None:
        if len(self._newest) >= REMEMBERED:
            self._newest.clear()
        self._newest[latest.base_uri] = latest

    def _adopt_again(self, root: DatasetRoot) -> VersionRow | None:
        """Delete the stale rows of a branch and adopt the versions that it has now.

        Lance deletes a branch's directory without notifying the namespace, so the branch's rows are stale. A concurrent
        writer that recreates the branch may lose its row; the final object still decides.
        """
        self.rows.delete(root.base_uri)
        self.forget()
        return self._adoption.adopt(root)
