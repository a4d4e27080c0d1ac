"""Settle the indexes of a version before its commit.

`lancekeep.format.replaced_values` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID, uuid5

from lancekeep.application.commits.lineage import Lineage
from lancekeep.application.retry import Retry
from lancekeep.domain.commit_token import StagedManifest
from lancekeep.domain.dataset_files import INDICES
from lancekeep.domain.errors import Damaged, ObjectNotFound, Unsupported
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.judge import Approved, approve
from lancekeep.format.lineage import Manifest
from lancekeep.format.replaced_values import Changes, Sources, settle, settled_file
from lancekeep.format.table_version import TableVersion
from lancekeep.ports.object_store import ObjectStore


class SettledIndexes:
    """Takes entries of replaced values out of the indexes of new versions.

    Args:
        objects: The object store.
        retry: Repeats requests.
        lineage: Reads the manifests of earlier versions.
        final: Returns the final row of a version, as `Histories.get` does.
    """

    def __init__(
        self,
        objects: ObjectStore,
        retry: Retry,
        lineage: Lineage,
        final: Callable[[DatasetRoot, int], VersionRow | None],
    ) -> None:
        self._objects = objects
        self._retry = retry
        self._lineage = lineage
        self._final = final

    def staged(
        self, root: DatasetRoot, staged: StagedManifest, manifest: Manifest
    ) -> tuple[bytes, Mapping[str, bytes]] | None:
        """Settle a staged manifest.

        Returns:
            The bytes of the manifest, and the index files to `write`. None if the manifest can stay, or its indexes
            cannot be decoded: then its readers report it.

        Raises:
            StoreUnavailable: The version before it could not be read.
        """
        try:
            if not manifest.has_indexes:
                return None
            previous = self._lineage.before(root, staged)
            if previous is None:
                return None
            return settled_file(manifest, previous, self._sources(root), root.base_uri)
        except (Damaged, Unsupported, ValueError):
            return None

    def built(self, root: DatasetRoot, before: TableVersion, content: bytes) -> TableVersion | None:
        """Settle a version that this process has built, and write its index files.

        Args:
            root: The dataset.
            before: The version before.
            content: The manifest file.

        Returns:
            None if the version can stay.
        """
        after = TableVersion.parse(content, root.base_uri)
        settled = settle(before, after, Changes.between(before, after), self._sources(root), root.base_uri)
        if settled is None:
            return None
        self.write(root, settled.files)
        return settled.version

    def approved(self, root: DatasetRoot, before: TableVersion, built: Approved) -> Approved:
        """Return a built version without entries of replaced values.

        See `built`. The version changes rows.
        """
        settled = self.built(root, before, built.content) if before.indices else None
        return built if settled is None else approve(root.base_uri, settled, before)

    def write(self, root: DatasetRoot, files: Mapping[str, bytes]) -> None:
        """Write index files."""
        for path, content in files.items():
            self._retry.call(partial(self._objects.put, f"{root.key}/{INDICES}/{path}", content))

    def _sources(self, root: DatasetRoot) -> Sources:
        def version(number: int) -> TableVersion | None:
            row = self._final(root, number)
            found = None if row is None else self._read(row.path)
            return None if row is None or found is None else TableVersion.parse(found, row.path)

        return Sources(
            version,
            lambda path, base: self._read(f"{root.key if base is None else _key_of(base, root)}/{INDICES}/{path}"),
            lambda text: str(uuid5(UUID(int=0), f"{root.base_uri}/{text}")),
        )

    def _read(self, key: str) -> bytes | None:
        try:
            found: bytes = self._retry.call(partial(self._objects.get, key))
        except ObjectNotFound:
            return None
        return found


def _key_of(base: str, root: DatasetRoot) -> str:
    """Return the key of the dataset at a base path, if it is in the store of ``root``."""
    store = root.base_uri.removesuffix(root.key)
    return base.removeprefix(store).removeprefix(store.partition("://")[2]).rstrip("/")
