"""Detached versions of tables, which belong to no history.

Table format, "Manifest". The number of a detached version is random and has its highest bit set, so no other
writer has it. The commit store therefore has no row of it: creating its final manifest commits it.
"""

from __future__ import annotations

from functools import partial

from lancekeep.application.commits.table_commits import Check, TableCommits
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import CommitRefused, ObjectNotFound
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import detached_name
from lancekeep.format.judge import Approved
from lancekeep.format.manifest import is_manifest


class DetachedVersions:
    """Commits the detached versions of the datasets of one object store.

    Args:
        commits: The commits of other versions.
        check: Checks each manifest.
    """

    def __init__(self, commits: TableCommits, check: Check) -> None:
        self._commits = commits
        self._check = check
        self._objects = commits.objects

    def create(self, root: DatasetRoot, built: Approved) -> Committed:
        """Commit a version that this process has built.

        Idempotent for the same content.

        Raises:
            CommitRefused: Another manifest has the number, or a check refuses the content.
        """
        return self._create(root, built.number, built.content)

    def _create(self, root: DatasetRoot, version: int, content: bytes) -> Committed:
        self._check(root, content)
        key = root.versions_key + detached_name(version)
        if not self._commits.retry.call(partial(self._put, key, content)):
            raise CommitRefused(f"{root.base_uri}: the detached version {version} exists; nothing was committed")
        return Committed(version, key, len(content))

    def commit_staged(self, root: DatasetRoot, version: int, path: str, size: int | None) -> Committed:
        """Commit a staged manifest as a detached version, and delete the staged file.

        Raises:
            CommitRefused: The path is not a staged manifest of this version of the dataset, or it has another size.
        """
        directory, _, name = path.rpartition("/")
        if directory + "/" != root.versions_key or not name.startswith(f"{detached_name(version)}-"):
            raise CommitRefused(
                f"{root.base_uri}: {path!r} is not a staged manifest of the detached version {version}; expected "
                f"{root.versions_key}{detached_name(version)}-<uuid>. Nothing was committed"
            )
        try:
            content = self._commits.retry.call(partial(self._objects.get, path))
        except ObjectNotFound as error:
            raise CommitRefused(f"{root.base_uri}: the staged manifest {path!r} does not exist") from error
        if not is_manifest(content) or (size is not None and size != len(content)):
            raise CommitRefused(
                f"{root.base_uri}: {path!r} of {len(content)} bytes is not a manifest of {size or 'any'} bytes; "
                "nothing was committed"
            )
        committed = self._create(root, version, content)
        self._commits.retry.call(partial(self._objects.delete, path))
        return committed

    def _put(self, key: str, content: bytes) -> bool:
        """Create a manifest; return False if another manifest has the name."""
        if self._objects.guarantees.atomic_create:
            if self._objects.put_if_absent(key, content):
                return True
        elif self._objects.head(key) is None:  # the number is random: no other writer has it
            self._objects.put(key, content)
            return True
        return self._objects.get(key) == content
