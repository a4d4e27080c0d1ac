"""Move a table to another directory, with its history, and fence the old one.

`Upkeep.relocate` documents the operation, ADR 71 the order of its steps. Each step is idempotent, and a marker in the
new directory names the old directory, so a second call completes an interrupted call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TypeVar
from uuid import uuid4

import attrs

from lancekeep.application.commits.table_commits import Check
from lancekeep.application.concurrency import at_once
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.mem_wal import MemWal
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.removal import Removal
from lancekeep.application.entries.tables import DEFINITE, Tables
from lancekeep.application.entries.unfinished_clones import UnfinishedClones
from lancekeep.application.rows.digests import Digests
from lancekeep.application.rows.versions import raise_unless_committed
from lancekeep.application.upkeep.file_checks import FileChecks, Version
from lancekeep.application.upkeep.moved_files import is_copied, is_detached, is_version, may_be_awaited
from lancekeep.application.upkeep.relocation import version_at
from lancekeep.domain.catalog import CatalogView, Change
from lancekeep.domain.commit import Conflict
from lancekeep.domain.dataset_files import REFERENCES
from lancekeep.domain.errors import (
    ConcurrentModification,
    Damaged,
    InvalidInput,
    LancekeepError,
    ObjectNotFound,
    Refused,
    TableAlreadyExists,
    Unsupported,
)
from lancekeep.domain.file_references import same_dataset
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, VERSIONS, DatasetRoot
from lancekeep.domain.naming import is_detached_name
from lancekeep.domain.notebook import Shown
from lancekeep.domain.table import (
    DEREGISTERED_MARKER,
    MARKER_CONTENT,
    MOVED_MARKER,
    Table,
    is_at,
    relocate_table,
    v1_table,
)
from lancekeep.domain.version_row import VersionRow, scheme_of
from lancekeep.format.fence import at_other_place, emptied, fence, is_fence, without_fence
from lancekeep.format.file_references import file_references
from lancekeep.format.judge import Approved
from lancekeep.ports.object_store import ObjectInfo
from lancekeep.ports.table_engine import TableEngine

Progress = Callable[[int, int, str], None]
T = TypeVar("T")

_ATTEMPTS = 200
"""The most versions of other writers that a fence follows."""

_BATCH = 512
"""How many objects are in memory at once."""

_ADVICE = "Materialize the clones, or drop them."


@attrs.frozen
class RelocationReport(Shown):
    """What a relocation did or, with ``dry_run``, would do.

    Attributes:
        table: The table.
        source: The URI of its directory before.
        target: The URI of its directory afterwards.
        versions: The number of versions, including branches.
        files: The number of files to copy.
        bytes: Their size.
        readers: The clones that read the table, which prevent the move.
        kept: Whether the old files stay.
        dry_run: Whether nothing was changed.
    """

    table: str
    source: str
    target: str
    versions: int
    files: int
    bytes: int
    readers: tuple[str, ...]
    kept: bool
    dry_run: bool

    def __str__(self) -> str:
        done = "would move" if self.dry_run else "moved"
        return (
            f"{self.table}: {done} from {self.source} to {self.target}: {self.versions:,} versions, {self.files:,} "
            f"files, {self.bytes:,} bytes"
        )


class TableRelocation:
    """Moves tables below the root of one catalog.

    Args:
        check: Checks each fence.
        now: Returns the time in nanoseconds since 1970, for manifests.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        tables: Tables,
        removal: Removal,
        mem_wal: MemWal,
        engine: TableEngine,
        check: Check,
        *,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self._ledger = ledger
        self._places = places
        self._tables = tables
        self._removal = removal
        self._mem_wal = mem_wal
        self._engine = engine
        self._check = check
        self._now = now

    def relocate(
        self, object_id: ObjectId, location: str, *, keep: bool, dry_run: bool, progress: Progress
    ) -> RelocationReport:
        table = self._tables.find(object_id)
        target = attrs.evolve(table, location=self._places.relative(location))
        source = table
        if table.location == target.location:
            if (before := self._places.moves_from(target)) is None:
                return self._cancel(table, dry_run=dry_run)
            source = attrs.evolve(table, location=before)
        report = self._planned(source, target, keep)
        if dry_run:
            return report
        if source is table:
            self._move(table, target, progress)
        self._leave(source, target, keep=keep)
        return attrs.evolve(report, dry_run=False)

    # -- planning -----------------------------------------------------------------------------------------------

    def _planned(self, source: Table, target: Table, keep: bool) -> RelocationReport:
        root = self._places.dataset_root(source)
        versions = files = size = 0
        for info in self._places.objects.list(f"{root.key}/"):
            path = info.key.removeprefix(f"{root.key}/")
            versions += is_version(path)
            if is_version(path) or is_detached(path) or is_copied(path):
                files, size = files + 1, size + info.size
        readers = self._removal.readers(source)
        places = (self._places.uri(source), self._places.uri(target))
        return RelocationReport(str(source.id), *places, versions, files, size, tuple(readers), keep, True)

    def _require_movable(self, table: Table, target: Table) -> None:
        self._ledger.refuse_early(lambda view: relocate_table(view, table, target.location))
        self._places.chosen_root(target)
        if self._ledger.guarantees.lists_directories and v1_table(target.location) is not None:
            raise InvalidInput(
                f"{target.location!r} is the name of a V1 directory, in which other readers would see a table while it "
                "is copied; choose a location that does not end in '.lance'"
            )
        if self._ledger.commits.latest(self._places.dataset_root(table)) is None:
            UnfinishedClones(self._ledger, self._places).refuse(table)
            raise Unsupported(
                f"{table.id} is only declared and has nothing to move; drop it, and declare it with "
                f"location={target.location!r}"
            )
        self._ledger.commits.naming_schemes.require_one(self._places.dataset_root(table))
        for history in self._ledger.commits.histories(self._places.dataset_root(table)):
            self._ledger.commits.holding.require_none(history)
        self._removal.refuse_needed([table], _ADVICE)
        self._mem_wal.refuse_writers(table, "moved")

    # -- moving -------------------------------------------------------------------------------------------------

    def _move(self, table: Table, target: Table, progress: Progress) -> None:
        """Copy a table, fence the old place, copy the rest and switch the entry."""
        self._require_movable(table, target)
        self._claim(table, target)
        source, copy = self._places.dataset_root(table), self._places.dataset_root(target)
        progress(0, 5, "copying files")
        self._copy_files(source, copy)
        progress(1, 5, "fencing the old place")
        try:
            while open_ends := [end for end in self._ends(source) if not is_fence(self._get(end.path), end.path)]:
                for end in open_ends:
                    self._fence(source, end, target.location)
            progress(2, 5, "copying versions")
            self._copy_files(source, copy)
            self._copy_references(source, copy)
            self._copy_versions(source, copy)
            self._copy_detached(source, copy)
            progress(3, 5, "verifying the copy")
            self._verify(source, copy)
            self._mem_wal.refuse_writers(table, "moved")  # a writer may have set LSM writes up before the fence
            self._removal.clones.record_dataset(target.location)
            progress(4, 5, "switching the catalog entry")
            self._ledger.apply(lambda view: self._switched(view, table, target.location))
            self._tables.follow_entry(table.id)
        except (*DEFINITE, Damaged):
            with suppress(LancekeepError):  # the caller raises the original error
                self._lift(table)
            raise

    def _switched(self, view: CatalogView, table: Table, location: str) -> tuple[list[Change], None]:
        return relocate_table(view, table, location), None

    def _claim(self, table: Table, target: Table) -> None:
        """Write the marker that names the old place into an empty directory, or find it there."""
        objects, marker = self._places.objects, self._places.moving_marker(target)
        content = table.location.encode()
        before = self._places.moves_from(target)
        if before not in (None, table.location):
            raise Refused(
                f"{target.location!r} holds the unfinished copy of a table from {before!r}; choose another location, "
                "or have `lancekeep repair` remove the copy"
            )
        if before is None and self._places.is_occupied(target):
            raise TableAlreadyExists(f"files lie in {target.location!r} already; choose an empty location")
        if before is None and objects.guarantees.atomic_create:
            if not objects.put_if_absent(marker, content) and self._places.moves_from(target) != table.location:
                raise TableAlreadyExists(f"another writer has just taken the directory {target.location!r}")
        elif before is None:
            objects.put(marker, content)
        if self._ledger.managed:
            commits, root = self._ledger.commits, self._places.dataset_root(target)
            commits.forget_predecessor(root)
            if commits.rows.is_released(self._places.dataset_root(table).base_uri):
                commits.release(root)
            if self._ledger.holds(table):
                commits.holding.hold(root)

    def _copy_files(self, source: DatasetRoot, target: DatasetRoot) -> None:
        """Copy every file except versions and references that the target does not have with the same size."""

        def copy(info: ObjectInfo) -> None:
            with suppress(ObjectNotFound):  # garbage collection removed it
                self._retry(partial(self._places.objects.copy, info.key, _moved(info.key, source, target)))

        for batch in _batches(self._missing(source, target)):
            at_once(copy, batch)

    def _missing(self, source: DatasetRoot, target: DatasetRoot) -> Iterator[ObjectInfo]:
        """Yield the files that the target lacks. Both listings have the same order, so neither is kept."""
        held = iter(self._places.objects.list(f"{target.key}/"))
        other = next(held, None)
        for info in self._places.objects.list(f"{source.key}/"):
            wanted = _moved(info.key, source, target)
            if not is_copied(info.key.removeprefix(f"{source.key}/")):
                continue
            while other is not None and other.key < wanted:
                other = next(held, None)
            if other is None or other.key != wanted or other.size != info.size:
                yield info

    def _copy_references(self, source: DatasetRoot, target: DatasetRoot, *, replace: bool = True) -> None:
        """Make the tags and branches of the target equal to the source.

        Args:
            replace: Change and remove references that the target has. Otherwise only add.
        """
        objects = self._places.objects
        there = {info.key for info in objects.list(f"{target.key}/{REFERENCES}/")}
        for info in list(objects.list(f"{source.key}/{REFERENCES}/")):
            key = _moved(info.key, source, target)
            with suppress(ObjectNotFound):
                content = objects.get(info.key)
                if key not in there or (replace and objects.get(key) != content):
                    objects.put(key, content)
            there.discard(key)
        for key in there if replace else ():
            objects.delete(key)

    def _copy_versions(self, source: DatasetRoot, target: DatasetRoot) -> None:
        """Copy the manifests and rows of all histories, without the fence and with base paths of the new place."""
        commits = self._ledger.commits
        for history in commits.histories(source):
            copied = _placed_below(history, source, target)
            for batch in _batches(commits.page(history, None, None, False)):
                rows = [row for row in at_once(partial(self._copy_version, source, target), batch) if row is not None]
                if not commits.rows.guarantees.derived:
                    self._retry(
                        partial(commits.rows.record, [attrs.evolve(row, base_uri=copied.base_uri) for row in rows])
                    )

    def _copy_version(self, source: DatasetRoot, target: DatasetRoot, row: VersionRow) -> VersionRow | None:
        key = _moved(row.path, source, target)
        try:
            original = self._get(row.path)
            content = at_other_place(original, row.path, partial(self._base, source, target))
        except ObjectNotFound:  # garbage collection removed it
            return None
        objects = self._places.objects
        held = self._retry(partial(objects.head, key))
        if held is None:
            self._retry(partial(objects.put, key, content))
            if content != original:
                history, _, name = key.rpartition(f"/{VERSIONS}/")
                Digests(objects, self._ledger.commits.retry).amend(history, f"{VERSIONS}/{name}", content)
        elif self._get(key) != content:
            raise ConcurrentModification(f"{key} exists and is not the copy of {row.path}; another writer wrote there")
        return attrs.evolve(row, path=key, size=len(content))

    def _copy_detached(self, source: DatasetRoot, target: DatasetRoot) -> None:
        """Copy the detached versions that the target lacks, each after its files.

        No fence stops their writers, so this is repeated once the entry names the target.
        """
        objects = self._places.objects
        for history in self._ledger.commits.histories(source):
            for info in list(objects.list(history.versions_key)):
                key, copy = info.key, _moved(info.key, source, target)
                is_final = is_detached_name(key.rpartition("/")[2]) and key.endswith(".manifest")
                if not is_final or self._retry(partial(objects.head, copy)) is not None:
                    continue
                with suppress(ObjectNotFound):  # garbage collection removed it, or an earlier call its files
                    content = self._get(key)
                    for file in self._files_of(content, key, history):
                        if self._retry(partial(objects.head, _moved(file, source, target))) is None:
                            self._retry(partial(objects.copy, file, _moved(file, source, target)))
                    placed = at_other_place(content, key, partial(self._base, source, target))
                    self._retry(partial(objects.put, copy, placed))

    def _files_of(self, content: bytes, name: str, history: DatasetRoot) -> Iterator[str]:
        """Yield the keys of the files that a manifest names in its own directory."""
        for reference in file_references(content, name):
            key = f"{history.key}/{reference.path}"
            if reference.base is None and key.endswith("/"):
                yield from (info.key for info in list(self._places.objects.list(key)))
            elif reference.base is None:
                yield key

    def _base(self, source: DatasetRoot, target: DatasetRoot, path: str) -> str:
        """Return the new spelling of a base path, which changes if it names the table itself."""
        for spelled in (self._places.uri_at(source), source.base_uri, f"/{source.key}"):
            if path == spelled or path.startswith(f"{spelled}/{BRANCHES}/"):
                return self._places.uri_at(target) + path[len(spelled) :]
        if same_dataset(path, self._places.location(source)):
            raise Unsupported(
                f"{source.base_uri}: a version has the base path {path!r}, which may be the table itself in a spelling "
                "that depends on the working directory of its writer. Nothing was moved"
            )
        return path

    def _verify(self, source: DatasetRoot, target: DatasetRoot) -> None:
        """Check every file of every version with its size, and read a row with the table engine.

        Files that a refused writer has written since the copy are not needed.

        Raises:
            Damaged: The copy does not read as the table does.
        """
        commits = self._ledger.commits
        versions = [
            Version(history, row.version, row.path)
            for history in commits.histories(target)
            for row in commits.page(history, None, None, False)
        ]
        fault = next(FileChecks(self._removal.clones).faults(target, versions), None)
        if fault is not None:
            raise Damaged(
                f"version {fault.version.number} of {source.base_uri} cannot be moved: {fault.key!r} {fault.reason}. "
                "Nothing was changed; `lancekeep fsck --deep` lists such files"
            )
        engine = self._engine
        before, after = (engine.open_at(self._places.uri_at(root)) for root in (source, target))
        counts = [(dataset.version, engine.rows.count(dataset, None)) for dataset in (before, after)]
        if counts[0] != counts[1] or not before.head(1).equals(after.head(1)):
            raise Damaged(f"{target.base_uri} reads as version and rows {counts[1]}, its source as {counts[0]}")

    # -- fences -------------------------------------------------------------------------------------------------

    def _ends(self, root: DatasetRoot) -> list[VersionRow]:
        """Return the latest version of a table and of each of its branches."""
        commits = self._ledger.commits
        found = [commits.latest(history) for history in commits.histories(root)]
        return [row for row in found if row is not None]

    def _fence(self, root: DatasetRoot, latest: VersionRow, location: str) -> None:
        self._follow(root, latest.base_uri, partial(fence, location=location), wanted=True)

    def _lift(self, table: Table) -> None:
        """Permit writes again at the place of a table that did not move, also under another name."""
        if not is_at(self._ledger.fresh(), table.location):
            return
        root = self._places.dataset_root(table)
        ends = [end for end in self._ends(root) if is_fence(self._get(end.path), end.path)]
        for end in ends:
            self._follow(root, end.base_uri, partial(without_fence, location=table.location), wanted=False)

    def _follow(self, root: DatasetRoot, base_uri: str, build: Callable[..., Approved], *, wanted: bool) -> None:
        """Commit the next version of a history, unless its latest version already is a fence or not, as wanted."""
        commits = self._ledger.commits
        branch = base_uri.removeprefix(f"{root.base_uri}/{BRANCHES}/") if base_uri != root.base_uri else None
        history = root.branch(branch)
        for _ in range(_ATTEMPTS):
            latest = commits.latest(history)
            if latest is None or is_fence(content := self._get(latest.path), latest.path) is wanted:
                return
            scheme = scheme_of(latest)
            assert scheme is not None  # a final row names its manifest
            manifest = build(content, latest.path, str(uuid4()), self._now())
            commits.record_transaction(history, manifest)
            staged = f"{history.manifest_key(latest.version + 1, scheme)}-{uuid4()}"
            self._retry(partial(self._places.objects.put, staged, manifest.content))
            size = len(manifest.content)
            outcome = commits.commit(
                history, latest.version + 1, staged, size, branch=branch is not None, check=self._check
            )
            if not isinstance(outcome, Conflict):
                raise_unless_committed(outcome, base_uri)
                return
        raise ConcurrentModification(
            f"{base_uri}: other writers committed {_ATTEMPTS} versions in between; nothing was moved. Move the table "
            "again"
        )

    def _cancel(self, table: Table, *, dry_run: bool) -> RelocationReport:
        """Permit writes to a table again whose move was stopped."""
        if not dry_run:
            self._lift(table)
        uri = self._places.uri(table)
        return RelocationReport(str(table.id), uri, uri, 0, 0, 0, (), True, dry_run)

    # -- leaving ------------------------------------------------------------------------------------------------

    def _leave(self, source: Table, target: Table, *, keep: bool) -> None:
        """Remove the old files, except the fences, and the marker of the move."""
        places, objects = self._places, self._places.objects
        old, new = places.dataset_root(source), places.dataset_root(target)
        if self._ledger.view().owner_of(source.location) is None and places.is_occupied(source):
            if self._ledger.guarantees.lists_directories and v1_table(source.location) is not None:
                objects.put(f"{old.key}/{DEREGISTERED_MARKER}", MARKER_CONTENT)
            fences, awaited = self._fences(old)
            self._copy_references(old, new, replace=False)
            self._copy_detached(old, new)
            if not keep and not self._removal.recorded_readers(source):
                self._remove(source, target, old, fences, awaited)
        objects.delete(places.moving_marker(target))
        self._ledger.commits.forget()

    def _fences(self, root: DatasetRoot) -> tuple[list[str], list[str]]:
        """Return the keys of the fences that end the histories at the old place, and of the versions that stay there.

        Raises:
            Damaged: A history has no fence: a branch was created since.
        """
        fences, awaited = list[str](), list[str]()
        for history in self._ledger.commits.histories(root):
            infos = self._places.objects.list(history.versions_key)
            finals = [info for info in infos if is_version(info.key.removeprefix(f"{root.key}/"))]
            if not finals:
                continue
            fence = max(finals, key=lambda info: version_at(info.key))
            if not is_fence(self._get(fence.key), fence.key):
                raise Damaged(
                    f"the table moved from {root.base_uri}, but {fence.key} was committed there since. Nothing was "
                    "removed: write its rows to the table, then drop the old directory"
                )
            fences.append(fence.key)
            if self._ledger.commits.rows.of(history.base_uri).guarantees.derived:
                awaited += [info.key for info in finals if info is not fence and may_be_awaited(info, fence)]
        return fences, awaited

    def _remove(
        self, source: Table, target: Table, old: DatasetRoot, fences: Sequence[str], awaited: Sequence[str]
    ) -> None:
        commits, objects = self._ledger.commits, self._places.objects
        objects.put(f"{old.key}/{MOVED_MARKER}", target.location.encode())
        for key in fences:
            self._retry(partial(objects.put, key, emptied(self._get(key), key)))
        with suppress(LancekeepError):  # fsck removes the records of a clone that moved
            latest = self._places.latest_manifest(self._places.dataset_root(target), self._finals(target))
            if latest is not None:
                self._removal.clones.forget(source.location, *latest)
        for history in commits.histories(old):
            self._retry(partial(commits.rows.delete, history.base_uri))
        stay = {*fences, *awaited, *(f"{old.key}/{marker}" for marker in (MOVED_MARKER, DEREGISTERED_MARKER))}
        self._places.remove(old, set(self._places.contents(old)) - stay)

    def _finals(self, table: Table) -> list[str]:
        root = self._places.dataset_root(table)
        return [info.key for info in self._places.objects.list(root.versions_key)]

    def _get(self, key: str) -> bytes:
        return self._retry(partial(self._places.objects.get, key))

    def _retry(self, act: Callable[[], T]) -> T:
        return self._ledger.commits.retry.call(act)


def _moved(key: str, source: DatasetRoot, target: DatasetRoot) -> str:
    return target.key + key.removeprefix(source.key)


def _placed_below(history: DatasetRoot, source: DatasetRoot, target: DatasetRoot) -> DatasetRoot:
    return attrs.evolve(
        history,
        key=_moved(history.key, source, target),
        base_uri=target.base_uri + history.base_uri[len(source.base_uri) :],
    )


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, _BATCH)):
        yield batch
