"""Move the data files of old fragments to a base path.

See `Upkeep.move_fragments` and ADR 71.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import partial
from secrets import token_bytes
from uuid import uuid4

import attrs

from lancekeep.application.concurrency import at_once
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.outside import OutsideDirectory, copy_object
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.tables import Tables
from lancekeep.application.rows.versions import Versions, raise_unless_committed
from lancekeep.application.upkeep.bases import Bases
from lancekeep.domain.commit import Conflict
from lancekeep.domain.dataset_files import DATA, data_file_name
from lancekeep.domain.errors import (
    ConcurrentModification,
    Damaged,
    InvalidInput,
    ObjectNotFound,
    Unsupported,
    VersionNotFound,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.identity import Identity
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.notebook import Shown
from lancekeep.domain.table import Table
from lancekeep.domain.version_row import VersionRow, scheme_of
from lancekeep.format.tiering import PlacedFile, data_files, moved, timestamp, with_base

Progress = Callable[[int, int, str], None]

_ATTEMPTS = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_BATCH = 64


@attrs.frozen
class TieringReport(Shown):
    """What was moved to a base or, with ``dry_run``, would be moved.

    Attributes:
        table: The table.
        base: The URI of the table's directory below the base; with ``dry_run``, the URI of the base if the catalog has
            no identity yet.
        files: The number of data files.
        bytes: Their size.
        version: The version that names the files at the base; None if none was committed.
        dry_run: Whether nothing was changed.
    """

    table: str
    base: str
    files: int
    bytes: int
    version: int | None
    dry_run: bool

    def __str__(self) -> str:
        done = "would move" if self.dry_run else "moved"
        version = "" if self.version is None else f", as version {self.version}"
        return f"{self.table}: {done} {self.files:,} data files, {self.bytes:,} bytes, to {self.base}{version}"


class Tiering:
    """Moves data files to base paths.

    Args:
        now: Returns the time in nanoseconds since 1970.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        tables: Tables,
        versions: Versions,
        *,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self._ledger = ledger
        self._places = places
        self._tables = tables
        self._versions = versions
        self._now = now
        self._bases = Bases(ledger, places)

    def move_fragments(
        self, object_id: ObjectId, older_than: timedelta | int, base: str, *, dry_run: bool, progress: Progress
    ) -> TieringReport:
        table = self._tables.find(object_id)
        self._versions.require_one_scheme(table)
        root = self._places.dataset_root(table)
        above = self._places.outside(base)
        identity = self._identity(dry_run)
        tier = above if identity is None else self._bases.directory(above, table, identity)
        old = self._old_files(object_id, root, older_than)
        latest = self._latest(object_id, root)
        wanted = _wanted(self._read(latest), latest.path, old, tier)
        report = TieringReport(str(object_id), tier.uri, len(wanted), sum(wanted.values()), None, True)
        if dry_run or identity is None or not wanted:
            return attrs.evolve(report, dry_run=dry_run)
        self._bases.claim(above, tier, identity)
        version = self._move(table, root, old, tier, progress)
        return attrs.evolve(report, version=version, dry_run=False)

    def _identity(self, dry_run: bool) -> Identity | None:
        """Return the identity of the catalog, which a dry run does not create."""
        if not dry_run:
            return self._ledger.require_identity()
        identity = self._ledger.identity()
        if identity is not None:
            identity.require_at(self._places.root_uri)
        return identity

    # -- choosing -----------------------------------------------------------------------------------------------

    def _old_files(self, object_id: ObjectId, root: DatasetRoot, older_than: timedelta | int) -> Collection[PlacedFile]:
        """Return the data files of the newest version that is old enough."""
        if isinstance(older_than, int):
            found = self._existing(root, older_than)[:1]
        else:
            if older_than < timedelta(0):
                raise InvalidInput(f"{object_id}: older_than is {older_than}; it is a time span, at least 0")
            rows = self._existing(root, None)
            before = self._now() - older_than // timedelta(microseconds=1) * 1000
            first = bisect_left(range(len(rows)), True, key=lambda at: self._time(rows[at]) <= before)
            found = rows[first : first + 1]
        return data_files(self._read(found[0]), found[0].path).keys() if found else ()

    def _existing(self, root: DatasetRoot, before: int | None) -> list[VersionRow]:
        """Return the versions before a number that no native clean-up has removed, newest first."""
        commits = self._ledger.commits
        return [row for row, _ in commits.dated(root, commits.page(root, before, None, True))]

    def _time(self, row: VersionRow) -> int:
        return timestamp(self._read(row), row.path)

    def _latest(self, object_id: ObjectId, root: DatasetRoot) -> VersionRow:
        latest = self._ledger.commits.latest(root)
        if latest is None:
            raise VersionNotFound(f"{object_id} has no version; nothing was moved")
        if scheme_of(latest) is not NamingScheme.V2:
            raise Unsupported(f"{object_id}: its manifests have V1 names; nothing was moved")
        return latest

    def _source(self, root: DatasetRoot, base: str | None) -> OutsideDirectory:
        if base is None:
            return OutsideDirectory(self._places.objects, root.key, root.base_uri)
        return self._places.outside(base)

    # -- moving -------------------------------------------------------------------------------------------------

    def _move(
        self, table: Table, root: DatasetRoot, old: Collection[PlacedFile], tier: OutsideDirectory, progress: Progress
    ) -> int | None:
        """Copy files and commit the version that names the copies."""
        copied: dict[PlacedFile, str] = {}
        pause = _FIRST_PAUSE
        for _ in range(_ATTEMPTS):
            since, latest = self._versions.recent(), self._latest(table.id, root)
            content = self._read(latest)
            wanted = _wanted(content, latest.path, old, tier)
            try:
                self._copy(
                    root, {file: size for file, size in wanted.items() if file not in copied}, tier, copied, progress
                )
            except ObjectNotFound as error:
                if self._latest(table.id, root) != latest:
                    continue
                raise Damaged(f"{table.id}: {error}; fsck --deep lists the missing files. Nothing was moved") from error
            built = str(uuid4()), self._now()
            registering = with_base(content, latest.path, tier.uri, *built)
            manifest = registering or moved(content, latest.path, copied, tier.uri, *built)
            if manifest is None:
                return None
            self._ledger.commits.record_transaction(root, manifest)
            outcome, _ = self._versions.commit_built(table, manifest, since)
            if not isinstance(outcome, Conflict):
                committed = raise_unless_committed(outcome, str(table.id))
                if registering is None:
                    return committed.version
                continue
            self._ledger.commits.retry.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise ConcurrentModification(
            f"{table.id}: other writers committed {_ATTEMPTS} versions while its files were moved. Move them again "
            "when fewer writers are active; cleanup removes the copies"
        )

    def _copy(
        self,
        root: DatasetRoot,
        files: Mapping[PlacedFile, int],
        tier: OutsideDirectory,
        copied: dict[PlacedFile, str],
        progress: Progress,
    ) -> None:
        """Copy data files under new names, several at once, with the files that belong to them.

        A copy has a name of its own because clean-up decides by names which file is needed.
        """
        sources = {base: self._source(root, base) for base in {file.base for file in files}}
        attached = {base: set(source.objects.directories(f"{source.key}/{DATA}/")) for base, source in sources.items()}
        remaining = list(files)
        while remaining:
            progress(len(files) - len(remaining), len(files), "copying data files")
            batch, remaining = remaining[:_BATCH], remaining[_BATCH:]
            tasks = [
                (sources[file.base], file.path, files[file], tier, file.path.rpartition(".")[0] in attached[file.base])
                for file in batch
            ]
            copied.update(zip(batch, at_once(self._copied, *zip(*tasks, strict=True)), strict=True))

    def _copied(self, source: OutsideDirectory, path: str, size: int, tier: OutsideDirectory, has_more: bool) -> str:
        """Copy one data file, and return its new path.

        Raises:
            ObjectNotFound: The file does not exist.
            Damaged: The file does not have the size that the manifest states.
        """
        name = data_file_name(token_bytes(16))
        key = f"{tier.key}/{DATA}/{name}"
        self._copy_object(source, f"{source.key}/{DATA}/{path}", tier, key)
        held = self._ledger.commits.retry.call(partial(tier.objects.head, key))
        if held is None or (size and held.size != size):
            found = "nothing" if held is None else f"{held.size:,} bytes"
            raise Damaged(f"{source.uri}/{DATA}/{path} has {size:,} bytes by its manifest; its copy has {found}")
        stem, new_stem = path.rpartition(".")[0], name.rpartition(".")[0]
        for info in source.objects.list(f"{source.key}/{DATA}/{stem}/") if has_more else ():
            rest = info.key.removeprefix(f"{source.key}/{DATA}/{stem}/")
            self._copy_object(source, info.key, tier, f"{tier.key}/{DATA}/{new_stem}/{rest}")
        return name

    def _copy_object(self, source: OutsideDirectory, key: str, target: OutsideDirectory, copy: str) -> None:
        copy_object(source.objects, key, target.objects, copy, self._ledger.commits.retry)

    def _read(self, row: VersionRow) -> bytes:
        try:
            return self._ledger.commits.retry.call(partial(self._places.objects.get, row.path))
        except ObjectNotFound as error:
            raise ConcurrentModification(f"{row.base_uri}: version {row.version} was removed; move again") from error


def _wanted(content: bytes, name: str, old: Collection[PlacedFile], tier: OutsideDirectory) -> dict[PlacedFile, int]:
    found = data_files(content, name)
    return {file: size for file, size in found.items() if file in old and file.base != tier.uri}
