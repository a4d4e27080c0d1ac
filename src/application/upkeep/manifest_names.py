"""Migrate the names of a table's manifests from V1 to V2.

Table format, "Manifest Naming Schemes". The commit store decides which version is next, so one version switches the
scheme: it is committed under a V2 name, and a version after a V2 name gets a V2 name, whatever its writer staged. Then
the older manifests are copied to their V2 names, their rows are changed, and their V1 names are removed. Each version
has a name and a row at every moment. If the migration is interrupted at any point, the next migration completes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar
from uuid import uuid4

import attrs

from lancekeep.application.commits.table_commits import Check, TableCommits
from lancekeep.application.rows.versions import raise_unless_committed
from lancekeep.domain.commit import Conflict
from lancekeep.domain.errors import ConcurrentModification, Damaged, ObjectNotFound, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.naming import ManifestName, NamingScheme
from lancekeep.domain.notebook import Shown
from lancekeep.domain.operations import Transaction, UpdateConfig
from lancekeep.domain.version_row import VersionRow, scheme_of
from lancekeep.format.next_version import next_version
from lancekeep.format.table_version import TableVersion

T = TypeVar("T")

_ATTEMPTS = 20
_V1, _V2 = NamingScheme.V1, NamingScheme.V2
Progress = Callable[[int, int, str], object]


@attrs.frozen
class RenamedManifests(Shown):
    """The manifests of one history that were, or would be, renamed.

    Attributes:
        branch: The branch; empty for the main history.
        switched: The version without changes that has the first V2 name; None if an earlier run committed it, or in a
            dry run.
        versions: The versions whose manifests were renamed.
    """

    branch: str
    switched: int | None
    versions: tuple[int, ...]


@attrs.frozen
class ManifestNamesMigration:
    """One migration of the manifest names of a table.

    Attributes:
        name: The table.
        commits: The commits of the table's versions.
        check: Checks the version without changes.
        interrupt_plain_readers: Whether readers that open the latest version without the catalog may fail until the
            migration ends.
        reader_pause: Seconds between the change of the rows and the removal of the V1 names.
        progress: Called before each step.
        now: Returns the time in nanoseconds since 1970, for manifests.
    """

    name: ObjectId
    commits: TableCommits
    check: Check
    interrupt_plain_readers: bool
    reader_pause: float
    progress: Progress
    now: Callable[[], int] = time.time_ns

    def run(self, root: DatasetRoot, *, dry_run: bool) -> tuple[RenamedManifests, ...]:
        """Migrate a table and its branches; see `Upkeep.migrate_manifest_names`."""
        histories = [each for each in self.commits.histories(root) if self._versions(each, _V1) or self._stale(each)]
        if histories and self.commits.rows.of(root.base_uri).guarantees.derived:
            raise Unsupported(
                f"{self.name}: no commit store decides its next version, so a writer of V1 names and a writer of V2 "
                "names could commit the same version. Move the catalog to a commit store with change_commit_store "
                "first, or stop all writers and call migrate_manifest_paths_v2 of pylance. Nothing was changed"
            )
        for history in histories:
            self._require_plain_readers(history)
        branches = (history.key.removeprefix(root.key).removeprefix(f"/{BRANCHES}/") for history in histories)
        if dry_run:
            found = (tuple(self._versions(history, _V1)) for history in histories)
            return tuple(RenamedManifests(branch, None, v1) for branch, v1 in zip(branches, found, strict=True))
        return tuple(self._migrate(branch, history) for branch, history in zip(branches, histories, strict=True))

    def _migrate(self, branch: str, history: DatasetRoot) -> RenamedManifests:
        self.progress(0, 4, f"{history.base_uri}: commit a version with a V2 name")
        self._change_rows(history, [row.version for row in self._stale(history)])
        switched = self._switch(history)
        versions = self._versions(history, _V1)
        self.progress(1, 4, f"{history.base_uri}: copy {len(versions)} manifests")
        for version in versions:
            self._copy(history, version)
        self.progress(2, 4, f"{history.base_uri}: change rows")
        self._change_rows(history, versions)
        if versions:
            self.commits.retry.sleep(self.reader_pause)
        self.progress(3, 4, f"{history.base_uri}: remove V1 names")
        self._remove(history, versions)
        self.commits.forget()
        self.progress(4, 4, history.base_uri)
        return RenamedManifests(branch, switched, tuple(versions))

    def _require_plain_readers(self, root: DatasetRoot) -> None:
        """Refuse if plain readers could not open the latest version of a mixture of names."""
        if self.interrupt_plain_readers or self._versions(root, _V2):
            return  # an unfinished migration is completed
        objects, versions = self.commits.objects, self._versions(root, _V1)
        first = _V2.final_name(max(versions, default=0) + 1)
        early = [version for version in versions if _V1.final_name(version) < first]
        if objects.guarantees.paged and not objects.root_uri.endswith("--x-s3/"):
            if not early:
                return
            why = f"the name {_V1.final_name(early[0])!r} precedes V2 names in a listing; clean up such versions first"
        else:
            why = "its storage does not list names in order"
        raise Unsupported(
            f"{root.base_uri}: readers that open the table without the catalog would refuse it while both kinds of "
            f"names exist: {why}, or accept the interruption (interrupt_plain_readers=True, "
            "--interrupt-plain-readers). Readers through the catalog, and readers of a given "
            "version, are not affected. Nothing was changed"
        )

    # -- steps --------------------------------------------------------------------------------------------------

    def _switch(self, root: DatasetRoot) -> int | None:
        """Commit a version without changes under a V2 name, unless the latest version has a V2 name."""
        for _ in range(_ATTEMPTS):
            latest = self.commits.latest(root)
            if latest is None or scheme_of(latest) is _V2:
                return None
            self._require_plain_readers(root)
            base = TableVersion.parse(self._get(latest.path), latest.path)
            transaction = Transaction(latest.version, str(uuid4()), operation=UpdateConfig())
            following = next_version(base, transaction, self.now(), str(self.name))
            self.commits.record_transaction(root, following)
            outcome, _ = self.commits.commit_built(root, following, check=self.check, scheme=_V2, is_reusable=True)
            if not isinstance(outcome, Conflict):
                return raise_unless_committed(outcome, str(self.name)).version
        raise ConcurrentModification(
            f"{self.name}: other writers committed {_ATTEMPTS} versions in between; nothing was changed. Repeat the "
            "migration when fewer writers are active"
        )

    def _copy(self, root: DatasetRoot, version: int) -> None:
        source, target = root.manifest_key(version, _V1), root.manifest_key(version, _V2)
        objects = self.commits.objects
        try:
            content = self._get(source)
            if self._call(lambda: objects.head(target)) is None:
                self._put(target, content)
            elif self._get(target) != content:
                raise Damaged(
                    f"{root.base_uri}: version {version} has two manifests, {source!r} and {target!r}, with different "
                    "bytes. Find out which manifest its writer committed, and move the other manifest away"
                )
        except ObjectNotFound:
            return  # garbage collection, or another migration, removed it in between

    def _change_rows(self, root: DatasetRoot, versions: Iterable[int]) -> None:
        """Let the rows of versions name their V2 manifests.

        The change of a row takes two steps. In between, readers find the version by its manifest.
        """
        rows = self.commits.rows
        present = {row.version: row for row in self._rows(root)}
        for version in versions:
            row, target = present.get(version), root.manifest_key(version, _V2)
            info = self._call(partial(self.commits.objects.head, target))
            if info is None or (row is not None and row.path == target):
                continue
            renamed = VersionRow(root.base_uri, version, target, info.size, row.committer if row else "")
            for _ in range(_ATTEMPTS):  # a concurrent reader may record the V1 name again
                self._call(partial(rows.delete, root.base_uri, [version]))
                self._call(partial(rows.record, [renamed]))
                if self._call(partial(rows.get, root.base_uri, version)) == renamed:
                    break
            if self._call(partial(self.commits.objects.head, target)) is None:  # garbage collection removed it
                self._call(partial(rows.delete, root.base_uri, [version]))

    def _remove(self, root: DatasetRoot, versions: Iterable[int]) -> None:
        """Remove the V1 names of versions whose rows name V2 manifests."""
        named = {row.version: row.path for row in self._rows_of_v1(root)}
        for version in versions:
            if version not in named:
                self._call(partial(self.commits.objects.delete, root.manifest_key(version, _V1)))

    # -- reading ------------------------------------------------------------------------------------------------

    def _stale(self, root: DatasetRoot) -> list[VersionRow]:
        """Return the rows of manifests that pylance's own migration has renamed."""
        if self.commits.rows.of(root.base_uri).guarantees.derived:
            return []
        present = self._names(root)
        return [row for row in self._rows_of_v1(root) if row.path not in present]

    def _rows_of_v1(self, root: DatasetRoot) -> list[VersionRow]:
        return [row for row in self._rows(root) if row.is_final and scheme_of(row) is _V1]

    def _rows(self, root: DatasetRoot) -> list[VersionRow]:
        return self._call(lambda: self.commits.rows.list(root.base_uri, after=None, limit=None, descending=True))

    def _versions(self, root: DatasetRoot, scheme: NamingScheme) -> list[int]:
        """Return the versions whose final manifests have names of a scheme, the newest first."""
        names = self._names(root).values()
        return sorted((name.version for name in names if name.scheme is scheme and not name.is_staged), reverse=True)

    def _names(self, root: DatasetRoot) -> Mapping[str, ManifestName]:
        keys = [info.key for info in self._call(lambda: list(self.commits.objects.list(root.versions_key)))]
        parsed = {key: ManifestName.parse(key.removeprefix(root.versions_key)) for key in keys}
        return {key: name for key, name in parsed.items() if name is not None}

    def _get(self, key: str) -> bytes:
        return self._call(partial(self.commits.objects.get, key))

    def _put(self, key: str, content: bytes) -> None:
        self._call(partial(self.commits.objects.put, key, content))

    def _call(self, act: Callable[[], T]) -> T:
        return self.commits.retry.call(act)
