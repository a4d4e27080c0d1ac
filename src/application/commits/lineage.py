"""Check that a commit descends from the version it follows.

Manifests that were committed or compared before stay in memory, which makes the check cheap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from threading import Lock

import attrs

from lancekeep.application.concurrency import all_alongside, is_remote
from lancekeep.application.retry import Retry
from lancekeep.domain.commit_token import StagedManifest
from lancekeep.domain.dataset_files import DATA
from lancekeep.domain.errors import CommitRefused, ObjectNotFound
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Base, Change, Operation, require_descent, versions_to_compare
from lancekeep.domain.naming import ManifestName, NamingScheme
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.lineage import Manifest, difference
from lancekeep.ports.object_store import ObjectStore

_REMEMBERED = 64 << 20
"""The bytes of manifests to keep in memory; a manifest of 100,000 fragments has about 14 MB."""
_PAGE = 1000
"""The objects that one request lists."""
_PER_HISTORY = 8
"""The versions of a history to keep: more would slow garbage collection, and only stale writers read old ones."""


@attrs.frozen
class Descendant:
    """A staged manifest that passed the check.

    Attributes:
        manifest: The manifest; None if it cannot be kept.
        transaction: The name of its transaction file; empty if the manifest cannot be decoded.
    """

    base_uri: str
    version: int
    manifest: Manifest | None
    generation: int
    transaction: str = ""


class Lineage:
    """Compares staged manifests with their predecessors in one object store.

    The predecessor is in memory if this process committed it or compared with it; otherwise it costs one request. Call
    `forget` when a table may have been dropped. ``final`` returns the final row of a version, as `Histories.get` does.
    ``is_settled`` returns whether this process knows that a version is final: only then its manifest is kept, because
    the manifest of a direct commit may be replaced. Threads may share an instance.
    """

    def __init__(
        self,
        objects: ObjectStore,
        retry: Retry,
        final: Callable[[DatasetRoot, int], VersionRow | None],
        is_settled: Callable[[DatasetRoot, int], bool],
    ) -> None:
        self._objects = objects
        self._retry = retry
        self._final = final
        self._is_settled = is_settled
        self._lock = Lock()
        self._generation = 0
        self._held: OrderedDict[tuple[str, int], Manifest] = OrderedDict()
        self._bytes = 0

    def decode(self, root: DatasetRoot, staged: StagedManifest, content: bytes) -> Manifest | None:
        """Decode a staged manifest; share what the previous manifest has in memory.

        Returns:
            None if it cannot be decoded.
        """
        try:
            return Manifest(content, self._held_manifest(root, staged.version - 1))
        except ValueError:
            return None

    def require(
        self, root: DatasetRoot, staged: StagedManifest, manifest: Manifest | None, base: Base | None
    ) -> Descendant:
        """Check that a staged manifest descends from the version before it.

        The first version of a history has no predecessor, and passes. So does a version whose predecessor no longer
        exists, which the commit detects, and a manifest that cannot be decoded, which its readers report.

        Args:
            root: The history.
            staged: The staged manifest.
            manifest: Its content, as `decode` returns it.
            base: The version that the writer read, if known.

        Raises: CommitRefused: The manifest does not descend from that version. Nothing was written. StoreUnavailable:
            The predecessor could not be read; nothing was written.
        """
        generation = self._generation
        unknown = Descendant(staged.base_uri, staged.version, None, generation)
        if manifest is None:
            return unknown
        try:
            change = manifest.change()
        except ValueError:
            return unknown
        kept = None if root.is_branch else manifest
        descendant = Descendant(staged.base_uri, staged.version, kept, generation, manifest.transaction)
        if staged.version > 1 or base is not None:
            try:
                self._compare(root, staged, manifest, change, base)
            except CommitRefused as error:
                raise CommitRefused(
                    f"{root.base_uri}: version {staged.version} does not descend from version {staged.version - 1}: "
                    f"{error}. The table or branch was dropped and recreated, or cleaned up, since the writer opened "
                    "it: open it again and repeat the write. Nothing was committed."
                ) from None
        return descendant

    def before(self, root: DatasetRoot, staged: StagedManifest) -> Manifest | None:
        """Return the manifest that a staged manifest follows.

        Returns:
            None if it does not exist, or cannot be decoded.
        """
        return self._manifest(root, staged.path, staged.version - 1) if staged.version > 1 else None

    def read(self, root: DatasetRoot, row: VersionRow) -> bytes:
        """Read the manifest of a version, and keep it for the check of the next commit.

        Raises:
            ObjectNotFound: The manifest was removed.
        """
        generation = self._generation
        content = self._retry.call(partial(self._objects.get, row.path))
        if not root.is_branch:
            with suppress(ValueError):  # the caller reports damage
                self._remember(root.base_uri, row.version, Manifest(content), generation)
        return content

    def read_ahead(self, root: DatasetRoot, staged: str, version: int) -> None:
        """Read the predecessor of a staged manifest into memory.

        Does nothing if its name has another scheme.
        """
        generation, name = self._generation, ManifestName.parse(staged.rpartition("/")[2])
        if name is None or version < 1 or root.is_branch or self._held_manifest(root, version) is not None:
            return
        if not self._is_settled(root, version):
            return
        if (content := self._content(root.manifest_key(version, name.scheme))) is not None:
            self._remember(root.base_uri, version, Manifest(content), generation)

    def base(self, root: DatasetRoot, row: VersionRow) -> Base | None:
        """Identify a version for its reader; None if its manifest cannot be read."""
        manifest = self._manifest(root, row.path, row.version)
        return None if manifest is None else Base(row.version, manifest.transaction)

    def keeps_files(self, root: DatasetRoot, row: VersionRow, transaction: str | None = None) -> bool:
        """Return whether a version still exists.

        Its first data file proves it: a drop removes the file, and no other table has a file of this name. Without such
        a file, the manifest is read again.

        Args:
            root: The history.
            row: The version.
            transaction: Its transaction file, if the caller has read the version. Without, a version whose manifest
                does not exist is not a version that lacks its files.
        """
        manifest = self._manifest(root, row.path, row.version)
        if manifest is None:
            return transaction is None
        if transaction not in (None, manifest.transaction):
            return False
        file = manifest.first_file()
        if file is not None:
            return self._has(root, file)
        self.forget()
        again = self._manifest(root, row.path, row.version)
        return again is not None and again.transaction == manifest.transaction

    def witness(self, root: DatasetRoot, row: VersionRow) -> Callable[[], bool]:
        """Return a function that returns whether a version still exists.

        A table that is created again in the directory has versions of the same names, which a caller must not remove.
        """
        manifest = self._manifest(root, row.path, row.version)
        file = None if manifest is None else manifest.first_file()
        if file is not None:
            return partial(self._has, root, file)
        return partial(self.keeps_files, root, row, None if manifest is None else manifest.transaction)

    def require_predecessor(self, root: DatasetRoot, staged: StagedManifest, transaction: str) -> None:
        """Check that the version that a staged manifest follows still exists.

        Then the manifest lies in the directory of the table that it changes, and a later drop of the table removes it:
        a table that is created there cannot get it.

        Args:
            root: The history.
            staged: The staged manifest.
            transaction: The transaction file of the version that it follows.

        Raises:
            CommitRefused: The table was dropped, and perhaps created again. The staged manifest was removed.
        """
        if self.before(root, staged) is None:
            return
        if not self.keeps_files(root, attrs.evolve(staged.row, version=staged.version - 1), transaction):
            self._retry.call(partial(self._objects.delete, staged.path))
            raise CommitRefused(
                f"{root.base_uri}: the table was dropped, and perhaps created again, before version {staged.version} "
                "was committed. Nothing was committed: open it again and repeat the write"
            )

    def keep(self, committed: Descendant) -> None:
        """Keep a committed manifest, to compare the next commit with it."""
        if committed.manifest is not None:
            self._remember(committed.base_uri, committed.version, committed.manifest, committed.generation)

    def forget(self) -> None:
        """Clear the memory: another table may have the same location now."""
        with self._lock:
            self._generation += 1
            self._held.clear()
            self._bytes = 0

    def _compare(
        self, root: DatasetRoot, staged: StagedManifest, manifest: Manifest, change: Change, base: Base | None
    ) -> None:
        before = staged.version - 1
        if base is not None:
            read = self._manifest(root, staged.path, base.version) if base.version <= before else None
            if read is None:
                raise CommitRefused(f"the writer read version {base.version}, which does not exist (any more)")
            if read.transaction != base.transaction:
                raise CommitRefused(
                    f"the writer read {base.transaction} as version {base.version}, which has another transaction"
                )
        if change.operation is Operation.OVERWRITE:
            if base is None and self._held_manifest(root, before) is None:
                self._require_file(root, next(iter(change.created), None))
            return
        number = change.restored if change.operation is Operation.RESTORE else before
        previous = self._manifest(root, staged.path, number)
        if previous is not None:
            differs = difference(manifest, previous)
            self._require_file(root, require_descent(differs, change))
            self._require_versions(root, versions_to_compare(differs, change, staged.version))

    def _require_versions(self, root: DatasetRoot, between: range) -> None:
        """Raise `CommitRefused` if a version that the writer had to compare its transaction with was cleaned up."""
        several = len(between) > 1 and is_remote(self._objects)
        listed = self._listed(root) if several else frozenset()
        unseen = [version for version in between if root.manifest_key(version, NamingScheme.V2) not in listed]
        exists = partial(self._exists, root)
        found = all_alongside(exists, unseen) if several else map(exists, unseen)
        gone = next((version for version, is_there in zip(unseen, found, strict=True) if not is_there), None)
        if gone is not None:
            raise CommitRefused(
                f"the writer read version {between[0] - 1}, and version {gone} was cleaned up since, so the writer "
                "could not compare its changes with that version"
            )

    def _listed(self, root: DatasetRoot) -> frozenset[str]:
        """Return the keys of one page of manifests: the latest manifests, if their names are of the scheme V2."""
        page = self._retry.call(lambda: list(islice(self._objects.list(root.versions_key), _PAGE)))
        return frozenset(info.key for info in page)

    def _exists(self, root: DatasetRoot, version: int) -> bool:
        keys = (root.manifest_key(version, scheme) for scheme in (NamingScheme.V2, NamingScheme.V1))
        return any(self._retry.call(partial(self._objects.head, key)) is not None for key in keys)

    def _manifest(self, root: DatasetRoot, beside: str, version: int) -> Manifest | None:
        """Read the manifest of a version, with the naming scheme of the path ``beside``.

        Returns:
            None if the version does not exist, or its manifest cannot be decoded.
        """
        generation, held = self._generation, self._held_manifest(root, version)
        if held is not None:
            return held
        is_settled = self._is_settled(root, version)
        name = ManifestName.parse(beside.rpartition("/")[2])
        assert name is not None
        content = self._content(root.manifest_key(version, name.scheme))
        if content is None:
            row = self._final(root, version)
            content = None if row is None else self._content(row.path)
        if content is None:
            return None
        try:
            manifest = Manifest(content)
        except ValueError:
            return None
        if is_settled and not root.is_branch:  # Lance recreates a branch without a change that would clear the memory.
            self._remember(root.base_uri, version, manifest, generation)
        return manifest

    def _held_manifest(self, root: DatasetRoot, version: int) -> Manifest | None:
        """Return a manifest from memory."""
        with self._lock:
            held = self._held.get((root.base_uri, version))
            if held is not None:
                self._held.move_to_end((root.base_uri, version))
            return held

    def _content(self, key: str) -> bytes | None:
        try:
            return self._retry.call(partial(self._objects.get, key))
        except ObjectNotFound:
            return None

    def _require_file(self, root: DatasetRoot, file: str | None) -> None:
        if file is not None and not self._has(root, file):
            raise CommitRefused(f"its data file {file!r} does not exist")

    def _has(self, root: DatasetRoot, file: str) -> bool:
        return self._retry.call(partial(self._objects.head, f"{root.key}/{DATA}/{file}")) is not None

    def _remember(self, base_uri: str, version: int, manifest: Manifest, generation: int) -> None:
        with self._lock:
            if generation != self._generation or manifest.size > _REMEMBERED:
                return
            for number in (version, version - _PER_HISTORY):
                if (replaced := self._held.pop((base_uri, number), None)) is not None:
                    self._bytes -= replaced.size
            self._held[base_uri, version] = manifest
            self._bytes += manifest.size
            while self._bytes > _REMEMBERED:
                _, oldest = self._held.popitem(last=False)
                self._bytes -= oldest.size
