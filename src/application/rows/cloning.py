"""Clone tables, and end the dependency of a clone on its source.

The methods of `Catalog` with similar names document these.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import uuid4

from lancekeep.application.entries.clones import Clones
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.mem_wal import MemWal
from lancekeep.application.entries.outside import OutsideDirectory, copy_object
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.tables import Tables
from lancekeep.application.entries.tags import Tags
from lancekeep.application.rows.versions import Versions, raise_unless_committed
from lancekeep.domain.commit import Committed, Conflict
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.dataset_files import DATA, DELETIONS, INDICES, Place
from lancekeep.domain.errors import (
    ConcurrentModification,
    Damaged,
    LancekeepError,
    ObjectNotFound,
    TableAlreadyExists,
    Unsupported,
    VersionNotFound,
)
from lancekeep.domain.file_references import FileReference
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.table import MARKER_CONTENT, Table, is_at
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.begun_clone import BegunClone
from lancekeep.format.clone import deep_clone, materialized, shallow_clone
from lancekeep.format.file_references import file_references, names_in
from lancekeep.format.judge import Approved

_ATTEMPTS = 20
"""The most versions of other writers that a materialization follows."""


class Cloning:
    """Creates and materializes clones.

    Args:
        now: Returns the time in nanoseconds since 1970, for manifests.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        tables: Tables,
        versions: Versions,
        clones: Clones,
        tags: Tags,
        mem_wal: MemWal,
        *,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self._ledger = ledger
        self._places = places
        self._tables = tables
        self._versions = versions
        self._clones = clones
        self._tags = tags
        self._mem_wal = mem_wal
        self._now = now

    def clone(self, source: ObjectId, target: ObjectId, version: int | str | None, *, deep: bool) -> Table:
        read = self._tables.find(source)
        root = self._places.dataset_root(read)
        self._mem_wal.refuse_unmerged(read, "cloned")
        if deep:
            return self._deep(read, root, target, version)
        row = self._row(source, root, version)
        manifest = shallow_clone(self._content(row), root.base_uri, self._places.uri(read), str(uuid4()), self._now())
        table = self._tables.declare_clone(target)
        self._begin(table, manifest)
        if not self._is_present(read, row):
            self._tables.drop(target, force=True, keep=0)
            raise ConcurrentModification(
                f"{source}: the table, or its version {row.version}, was removed while it was cloned. Nothing was "
                "cloned"
            )
        return table

    def _deep(self, source: Table, root: DatasetRoot, target: ObjectId, version: int | str | None) -> Table:
        """Create a deep clone, or complete a deep clone that was stopped.

        The marker in the directory of the target describes the clone until it is complete. So a repeated call builds
        the same manifest.
        """
        table = self._tables.find(target) if self._tables.exists(target) else None
        begun = None if table is None else self._places.begun_clone(table)
        row = self._row(source.id, root, begun.version if begun is not None and version is None else version)
        if begun is not None and (begun.source, begun.version) != (source.location, row.version):
            raise TableAlreadyExists(
                f"{target} is an unfinished deep clone of version {begun.version} of the table at {begun.source!r}, "
                f"not of version {row.version} of {source.id}. Repeat that call to complete it, or drop {target}"
            )
        clone = begun or BegunClone(source.location, row.version, str(uuid4()), self._now())
        content = self._content(row)
        manifest = deep_clone(content, root.base_uri, self._places.uri(source), clone.transaction, clone.began)
        if table is None or begun is None:  # the declaration refuses another table of the name
            table = self._tables.declare_clone(target, clone)
        if self._ledger.commits.latest(self._places.dataset_root(table)) is None:
            self._begin(table, manifest, lambda created: self._copy(content, root, created, borrowed=False))
        else:
            self._require_own(table, manifest)
        retry, objects, marker = self._ledger.commits.retry, self._places.objects, self._places.reserved_marker(table)
        # A removal of the unfinished clone deletes the marker before it looks for a version.
        if retry.call(partial(objects.head, marker)) is None or not is_at(self._ledger.fresh(), table.location):
            raise ConcurrentModification(f"{target} was dropped or moved while it was cloned; clone it again")
        retry.call(partial(objects.put, marker, MARKER_CONTENT))
        return table

    def _require_own(self, table: Table, manifest: Approved) -> None:
        """Raise `TableAlreadyExists` unless a table began with this manifest."""
        row = self._ledger.commits.existing(self._places.dataset_root(table), manifest.number)
        if row is None or self._content(row) != manifest.content:
            raise TableAlreadyExists(
                f"{table.id} is no unfinished deep clone of the source as it is now: it has a version that this call "
                "does not make. Choose another name, or drop the table"
            )

    def _begin(self, table: Table, manifest: Approved, copy: Callable[[DatasetRoot], object] | None = None) -> None:
        """Give a declared clone its first version, after its files are copied; take it back if that fails."""
        root = self._places.dataset_root(table)
        try:
            if copy is not None:
                copy(root)
            self._ledger.commits.record_transaction(root, manifest)
            raise_unless_committed(self._versions.begin_history(table, manifest), str(table.id))
        except CommitUnknown:
            raise
        except LancekeepError:
            with suppress(LancekeepError):
                self._tables.take_back(table.id)
            raise

    def materialize(self, object_id: ObjectId) -> Committed | None:
        table = self._tables.find(object_id)
        self._versions.require_one_scheme(table)
        root = self._places.dataset_root(table)
        for _ in range(_ATTEMPTS):
            since = self._versions.recent()
            row = self._row(object_id, root, None)
            content = self._content(row)
            manifest = materialized(content, root.base_uri, str(uuid4()), self._now())
            if manifest is None:
                return None
            self._copy(content, root, root, borrowed=True)
            self._ledger.commits.record_transaction(root, manifest)
            outcome, _ = self._versions.commit_built(table, manifest, since)
            if not isinstance(outcome, Conflict):
                return raise_unless_committed(outcome, str(object_id))
        raise ConcurrentModification(
            f"{object_id}: other writers committed {_ATTEMPTS} versions while its files were copied. The copies stay; "
            "materialize it again when fewer writers are active"
        )

    def _row(self, object_id: ObjectId, root: DatasetRoot, version: int | str | None) -> VersionRow:
        """Return a final version: by its number, by a tag, or the latest."""
        commits = self._ledger.commits
        if isinstance(version, str):
            tag = self._tags.get(object_id, version)
            if tag.branch is not None:
                raise Unsupported(f"{object_id}: the tag {version!r} points at the branch {tag.branch!r}")
            version = tag.version
        row = commits.latest(root) if version is None else commits.existing(root, version)
        if row is None:
            name = "no version" if version is None else f"no version {version}"
            raise VersionNotFound(f"{object_id} has {name}; nothing was changed")
        return row

    def _content(self, row: VersionRow) -> bytes:
        try:
            return self._ledger.commits.retry.call(partial(self._places.objects.get, row.path))
        except ObjectNotFound as error:
            raise Damaged(f"{row.base_uri}: version {row.version} has no manifest at {row.path!r}") from error

    def _is_present(self, source: Table, row: VersionRow) -> bool:
        """Return whether a table is still at its location and has a version."""
        head = self._ledger.commits.retry.call(partial(self._places.objects.head, row.path))
        return head is not None and is_at(self._ledger.fresh(), source.location)

    def _copy(self, content: bytes, root: DatasetRoot, target: DatasetRoot, *, borrowed: bool) -> None:
        """Copy the files that a version reads to a directory. Idempotent.

        Args:
            content: The manifest of the version.
            root: Its dataset.
            target: The dataset root that receives the files.
            borrowed: Copy only the files of other datasets.

        Raises:
            Damaged: A file does not exist.
            Unsupported: A base path cannot be resolved.
        """
        names, objects = names_in(content, root.base_uri), self._places.objects
        directories: dict[tuple[str, str], OutsideDirectory] = {}
        copied: set[str] = set()
        files = [file for file in file_references(content, root.base_uri) if file.base is not None or not borrowed]
        for file in files:
            place = self._directory(root, file)
            directories[place.uri, place.key] = place
        retry = self._ledger.commits.retry
        for place in directories.values():
            for path in retry.call(partial(self._needed, place, names)):
                copy_object(place.objects, f"{place.key}/{path}", objects, f"{target.key}/{path}", retry)
                copied.add(path)
        held = {path.rpartition("/")[0] + "/" for path in copied} | copied
        missing = next((file for file in files if file.path not in held), None)
        if missing is not None:
            raise Damaged(f"{root.base_uri}: the file {missing.path!r} does not exist; fsck --deep lists such files")

    def _needed(self, directory: OutsideDirectory, names: set[bytes]) -> list[str]:
        """Return the paths, relative to a dataset's directory, of the files that belong to these random names."""
        found: list[str] = []
        for part in (DATA, DELETIONS, INDICES):
            for info in directory.objects.list(f"{directory.key}/{part}/"):
                path = info.key.removeprefix(f"{directory.key}/")
                place = Place.of(path)
                if place is not None and place.own_name in names:
                    found.append(path)
        return found

    def _directory(self, root: DatasetRoot, file: FileReference) -> OutsideDirectory:
        """Return the dataset directory that holds a file."""
        objects = self._places.objects
        if file.base is None:
            return OutsideDirectory(objects, root.key, objects.root_uri)
        if not file.path.startswith((f"{DATA}/", f"{DELETIONS}/", f"{INDICES}/")):
            raise Unsupported(f"{root.base_uri}: the base path {file.base!r} is not the directory of a dataset")
        key = self._clones.base_key(root.key, file.base, file.path)
        return self._places.outside(file.base) if key is None else OutsideDirectory(objects, key, objects.root_uri)
