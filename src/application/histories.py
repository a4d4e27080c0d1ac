"""Reads the versions of tables: the latest, one, or a page; and adopts versions that have no rows."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial

import attrs

from lancekeep.application.concurrency import all_alongside, alongside, is_remote
from lancekeep.application.protocol_runner import REMEMBERED, ProtocolRunner, moved
from lancekeep.application.retry import Retry
from lancekeep.domain.layout import BRANCHES, VERSIONS, DatasetRoot
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectInfo, ObjectStore


@attrs.frozen
class _Ahead:
    """A look for the final manifest of the version after ``version``."""

    version: int
    found: Future[ObjectInfo | None]


class Histories(ProtocolRunner):
    """The versions of the datasets of one object store, as readers see them."""

    def __init__(self, objects: ObjectStore, rows: ExternalCommitStore, retry: Retry) -> None:
        super().__init__(objects, rows, retry)
        self._newest: dict[str, VersionRow] = {}

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

    def final_object(self, root: DatasetRoot, version: int) -> VersionRow | None:
        """A version as the directory has it, whatever the commit store says; None where its manifest is not there."""
        for scheme in (NamingScheme.V2, NamingScheme.V1):
            key = root.manifest_key(version, scheme)
            info = self.objects.head(key)
            if info is not None:
                return VersionRow(root.base_uri, version, key, info.size)
        return None

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

    def forget(self) -> None:
        """Drop what is remembered of final rows: a table may have been replaced by another at the same place."""
        self._final.clear()
        self._newest.clear()
        self._adoption.forget_gaps()

    def _know(self, latest: VersionRow) -> None:
        if len(self._newest) >= REMEMBERED:
            self._newest.clear()
        self._newest[latest.base_uri] = latest

    def _begin_anew(self, root: DatasetRoot) -> VersionRow | None:
        """The engine deletes a branch as a directory, without a word to the namespace: its rows mean nothing any more.

        Should somebody be making it anew at this moment, his row is lost to him, and the final object decides as ever.
        """
        self.rows.delete(root.base_uri)
        self.forget()
        return self._adoption.adopt(root)
