"""Move a table's files to another directory during writes.

See rule 4 of the directory namespace's compatibility mode. Files are copied until nothing new appears. Only the
catalog's entry decides which of the two directories is the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import attrs

from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.domain.errors import ConcurrentModification, Damaged, ObjectNotFound, Refused, Retryable
from lancekeep.domain.layout import BRANCHES, HINT, VERSIONS, DatasetRoot
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import CLONES_DIRECTORY, DEREGISTERED_MARKER, MOVING_MARKER, RESERVED_MARKER
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.object_store import ObjectInfo

_ROUNDS = 10
"""The most listings of the source before its writers count as faster than the copy."""

_REFERENCES = "_refs/"
"""The directory of tags, the only objects of a table whose content changes."""

_LEFT_BEHIND = {RESERVED_MARKER, DEREGISTERED_MARKER, MOVING_MARKER, f"{VERSIONS}/{HINT}"}
"""Objects that describe the directory itself, or that the next commit rewrites."""


class Relocation:
    """The copy of a table from ``source`` to ``target``, a reserved empty directory."""

    def __init__(self, commits: TableCommits, source: DatasetRoot, target: DatasetRoot) -> None:
        self._commits = commits
        self._objects = commits.objects
        self._source = source
        self._target = target
        self._copied: set[str] = set()
        self._versions: dict[str, ObjectInfo] = {}
        self._references: dict[str, bytes] = {}
        self._is_the_table = False

    def begin(self) -> None:
        """Copy most of the table, so that `copy` takes a short time.

        Writers may commit faster than the copy. Raises the errors of `copy`.
        """
        self._catch_up()

    def copy(self) -> None:
        """Copy the table. `carry_over` copies later commits at the source.

        Raises:
            Refused: The table has branches, whose manifests contain the absolute path of the table's files.
            ConcurrentModification: Other writers committed faster than the copy, the table was removed during the copy,
                or another process registered the target.
            Damaged: A version cannot be read.
        """
        if not self._catch_up():
            raise ConcurrentModification(
                f"{self._source.base_uri}: other writers kept committing while it was copied for its new name; nothing "
                "was changed. Rename the table again when fewer writers are active."
            )

    def carry_over(self) -> None:
        """Copy what was committed at the source before the entry moved to the target.

        The target is the table now.

        Raises:
            Damaged: This is not possible. Nothing was removed.
        """
        self._is_the_table = True
        try:
            complete = self._catch_up()
        except (Refused, Retryable, Damaged) as error:
            raise self._torn(str(error)) from error
        if not complete:
            raise self._torn("writers that do not ask the catalog keep committing at the old place")

    def _catch_up(self) -> bool:
        """Copy to the target until nothing changes; return whether that was achieved."""
        seen: set[str] = set()
        for _ in range(_ROUNDS):
            copied = len(self._copied)
            versions = self._commits.retry.call(partial(self._round, seen))
            if versions <= self._copied and len(self._copied) == copied:
                return True
            seen = versions
        return False

    def _round(self, seen: set[str]) -> set[str]:
        """List the source, copy its files and the versions of the last round. Idempotent.

        So every file of a version is copied before the version itself.

        Returns:
            The versions of the source.

        Raises:
            ConcurrentModification: Copied versions were removed or replaced. The source may be another table now.
        """
        prefix = f"{self._source.key}/"
        infos = {info.key.removeprefix(prefix): info for info in self._objects.list(prefix)}
        keys = infos.keys()
        for key, info in self._versions.items():
            if key not in infos or (infos[key].modified != info.modified and not self._is_copied(key)):
                raise ConcurrentModification(
                    f"{self._source.base_uri}: {key} was removed or replaced while the table was copied for its new "
                    "name: the table was dropped, recreated or cleaned up. Rename it again"
                )
        self._versions.update((key, infos[key]) for key in self._versions)
        manifests = {key: name for key in keys if (name := ManifestName.parse(key.rpartition("/")[2])) is not None}
        versions = {key for key, name in manifests.items() if not name.is_staged}
        _refuse_branches(self._source, versions)
        for key in sorted(keys - manifests.keys() - self._copied - _LEFT_BEHIND):
            if key.startswith(f"{CLONES_DIRECTORY}/"):
                continue  # stale records: a table with clones is not moved
            with suppress(ObjectNotFound):  # garbage collection removed it, with the versions that name it
                if key.startswith(_REFERENCES):
                    self._copy_reference(key)
                else:
                    self._objects.copy(self._source_key(key), self._target_key(key))
                    self._copied.add(key)
        for key in self._references.keys() - keys:
            self._objects.delete(self._target_key(key))
            del self._references[key]
        self._copy_versions({key: infos[key] for key in seen & keys - self._copied})
        return versions

    def _is_copied(self, key: str) -> bool:
        """Return whether a version has the same bytes in both directories.

        Every manifest contains its own transaction. The modification time is no criterion: for a local file, it changes
        with the last step of a commit, which removes the staged name.
        """
        try:
            return self._objects.get(self._source_key(key)) == self._objects.get(self._target_key(key))
        except ObjectNotFound:
            return False

    def _copy_reference(self, key: str) -> None:
        content = self._objects.get(self._source_key(key))
        if self._references.get(key) != content:
            self._objects.put(self._target_key(key), content)
            self._references[key] = content

    def _copy_versions(self, infos: Mapping[str, ObjectInfo]) -> None:
        """Create versions at the target, and record them in the commit store.

        The oldest is first: if the target has a version of its own, no version that follows another version may be
        created after it.
        """
        created = []
        for key in sorted(infos, key=version_at):
            with suppress(ObjectNotFound):  # dropped in between; a version that replaces it must be copied, too
                self._create(key)
                created.append(key)
                self._versions[key] = infos[key]
        if created:
            target = self._target
            rows = [
                attrs.evolve(row, base_uri=target.base_uri, path=target.versions_key + row.path.rpartition("/")[2])
                for row in self._commits.page(self._source, None, None, True)
            ]
            paths = set(map(self._target_key, created))
            self._enter([row for row in rows if row.path in paths])
        self._copied.update(created)

    def _enter(self, rows: Sequence[VersionRow]) -> None:
        """Record versions of the target in the commit store.

        Another process may drop the moved table at the same time.
        """
        try:
            self._commits.rows.record(rows)
        except Damaged:
            if all(self._objects.head(row.path) is not None for row in rows):
                raise

    def _create(self, key: str) -> None:
        content, target = self._objects.get(self._source_key(key)), self._target_key(key)
        if self._objects.guarantees.atomic_create:
            created = self._objects.put_if_absent(target, content)
        elif self._is_the_table:  # other writers commit there, too
            created = self._commits.publish(self._target, target, content)
        else:
            created = self._objects.head(target) is None
            if created:
                self._objects.put(target, content)
        if not created and self._objects.get(target) != content:
            raise ConcurrentModification(
                f"{self._source.base_uri} and {self._target.base_uri} each have a {key}, with different content: "
                "another writer writes into the copy, which has been registered as a table"
            )

    def _source_key(self, key: str) -> str:
        return f"{self._source.key}/{key}"

    def _target_key(self, key: str) -> str:
        return f"{self._target.key}/{key}"

    def _torn(self, reason: str) -> Damaged:
        return Damaged(
            f"the table moved from {self._source.base_uri} to {self._target.base_uri}, but {reason}. Nothing was "
            "removed: stop the writers of the old place, and write its later rows to the new place"
        )


def version_at(key: str) -> int:
    """Return the version of the manifest at a key."""
    name = ManifestName.parse(key.rpartition("/")[2])
    assert name is not None  # it would not count as a version
    return name.version


def _refuse_branches(root: DatasetRoot, versions: set[str]) -> None:
    branched = next((key for key in versions if key.startswith(f"{BRANCHES}/")), None)
    if branched is not None:
        branch = branched[len(BRANCHES) + 1 :].partition(f"/{VERSIONS}/")[0]
        raise Refused(
            f"{root.base_uri} has the branch {branch!r}, which names the table's files by their absolute place, so "
            "they cannot move. Delete the branches first, or rename in a catalog of V2 directories alone, where no "
            "files move."
        )
