"""The garbage collection of tables: `Upkeep.cleanup`.

The clean-up first removes old versions of every table: rows of the commit store, then manifests. Then it reads the
manifests that have appeared since, and removes files that no manifest names. If it is interrupted at any point, every
visible version remains readable, and the next run completes the clean-up.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TypeVar

import attrs

from lancekeep.application.entries.clones import Clones
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.outside import OutsideDirectory
from lancekeep.application.entries.places import Places
from lancekeep.application.rows.digests import Digests
from lancekeep.application.rows.recorded_keys import keys_of
from lancekeep.application.upkeep.bases import Bases
from lancekeep.application.upkeep.cleanup_report import CleanupReport, NotCleaned, TableCleanup
from lancekeep.application.upkeep.fsck import Progress, require_span
from lancekeep.domain.dataset_files import DIRECTORIES, REFERENCES, Place, Reference
from lancekeep.domain.errors import Damaged, InvalidInput, ObjectNotFound, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, VERSIONS, DatasetRoot
from lancekeep.domain.manifest_entry import TABLE
from lancekeep.domain.naming import ManifestName, NamingScheme, final_names, is_detached_name
from lancekeep.domain.partitions import published_version
from lancekeep.domain.protection import protector
from lancekeep.domain.table import DIGESTS_DIRECTORY, MOVED_MARKER, Table, is_reusable
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.fence import is_fence
from lancekeep.format.file_references import FileNames
from lancekeep.format.json_files import parse_reference
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

T = TypeVar("T")


@attrs.define
class _Branch:
    """The objects of one history of a table, and the objects to remove.

    Attributes:
        name: The branch; empty for the main history.
        others: Manifests that are not versions, such as detached ones. They stay.
        files: The files with their random names, including unfinished uploads.
        twins: Manifests with a V1 name of versions that have a V2 name, too, because a migration is unfinished.
    """

    name: str
    root: DatasetRoot
    versions: dict[int, ObjectInfo] = attrs.field(factory=dict)
    staged: list[ObjectInfo] = attrs.field(factory=list)
    others: list[ObjectInfo] = attrs.field(factory=list)
    twins: dict[int, ObjectInfo] = attrs.field(factory=dict)
    files: list[tuple[bytes, ObjectInfo]] = attrs.field(factory=list)
    doomed: list[int] = attrs.field(factory=list)
    dangling: list[int] = attrs.field(factory=list)
    abandoned: list[ObjectInfo] = attrs.field(factory=list)
    unneeded: list[tuple[bytes, ObjectInfo]] = attrs.field(factory=list)

    def add_manifest(self, name: str, info: ObjectInfo) -> None:
        parsed = ManifestName.parse(name)
        either = ManifestName.parse(name[1:]) if is_detached_name(name) else parsed
        if either is not None and either.is_generated:
            self.staged.append(info)
        elif parsed is None:
            if ".manifest" in name:
                self.others.append(info)
        elif parsed.is_staged:  # a copy that a user made stays
            self.others.append(info)
        elif parsed.version not in self.versions:
            self.versions[parsed.version] = info
        elif parsed.scheme is NamingScheme.V1:
            self.twins[parsed.version] = info
        else:
            self.twins[parsed.version], self.versions[parsed.version] = self.versions[parsed.version], info

    @property
    def manifests(self) -> int:
        return len(self.versions) + len(self.twins) + len(self.others) + len(self.staged)

    def spare(self) -> None:
        """Remove nothing."""
        self.doomed, self.dangling, self.abandoned, self.unneeded = [], [], [], []


@attrs.define
class _Dataset:
    """A table with its branches.

    Attributes:
        selected: Whether to clean the table. Otherwise the clean-up only reads which files it needs.
        refusal: Why nothing of the table may be removed; empty if it may.
        object_id: The identifier of the table in the catalog, if it has one.
        tier: The directory outside of the root that holds data files of tables; None for a table.
        has_digests: Whether the directory has records of digests.
        protection: Which versions stay because the table is protected; empty if none.
    """

    name: str
    root: DatasetRoot
    selected: bool
    branches: dict[str, _Branch] = attrs.field(factory=dict)
    refusal: str = ""
    object_id: ObjectId | None = None
    tier: OutsideDirectory | None = None
    has_digests: bool = False
    protection: str = ""

    def refuse(self, reason: str) -> None:
        self.refusal = self.refusal or reason
        for branch in self.branches.values():
            branch.spare()


@attrs.define
class Cleanup:
    """One clean-up.

    Attributes:
        ledger: The entries, and the commits of the tables' versions.
        places: The directories.
        clones: Finds the datasets to which no entry refers.
        tables: The tables to clean; None for all.
        now: A clock.
        present: A time of the storage, such as the time of an object that was just written. By default the newest
            manifest defines the present, so that a catalog without new writes keeps its recent versions.

    The other attributes are the arguments of `Upkeep.cleanup`.
    """

    ledger: Ledger
    places: Places
    clones: Clones
    older_than: timedelta
    keep: int
    grace: timedelta
    tables: Collection[ObjectId] | None
    progress: Progress
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    present: datetime | None = None
    _newest: datetime | None = None
    _manifests: int = 0
    _done: int = 0
    _needed: FileNames = attrs.field(factory=FileNames)
    _read: set[ObjectInfo] = attrs.field(factory=set)

    def run(self, *, dry_run: bool) -> CleanupReport:
        """Choose what to remove and, unless ``dry_run`` is set, remove it."""
        require_span(self.older_than, "older_than")
        require_span(self.grace)
        if self.keep < 1:
            raise InvalidInput(f"keep is {self.keep}; the latest version always stays, so give at least 1")
        datasets = [*self._look(files=True), *self._tiers()]
        self._choose(datasets)
        if not dry_run:
            self._remove_versions([dataset for dataset in datasets if dataset.selected])
            self._remove_files([dataset for dataset in datasets if dataset.selected])
        cleaned = (_cleaned(dataset, branch) for dataset in datasets for branch in dataset.branches.values())
        skipped = (
            NotCleaned(dataset.name, dataset.refusal or dataset.protection) for dataset in datasets if dataset.selected
        )
        return CleanupReport(
            tuple(table for table in cleaned if not table.is_empty),
            tuple(table for table in skipped if table.reason),
            dry_run,
        )

    # -- looking ------------------------------------------------------------------------------------------------

    def _look(self, *, files: bool) -> Iterator[_Dataset]:
        """Yield every table, then datasets without an entry.

        A deregistered clone is such a dataset; it may be registered again. A directory that a table has left is none:
        the versions that stay there for a while name files by the names that they have at the new place.

        Args:
            files: Also list the files of the tables to clean. Otherwise list only manifests.
        """
        entries = list(self.ledger.view().all_of(TABLE))
        taken = set[str]()
        for at, entry in enumerate(entries):
            object_id = ObjectId.from_key(entry.object_id)
            self.progress(at, len(entries), f"looking at {object_id}")
            selected = self.tables is None or object_id in self.tables
            try:
                table = Table.from_entry(entry)
            except Damaged as error:
                yield _Dataset(str(object_id), DatasetRoot("", ""), selected, refusal=str(error))
                continue
            taken.add(table.location)
            yield self._filled(self._placed(table, selected), files=files)
        for location in self.clones.unowned_datasets(taken):
            dataset = self._filled(_Dataset(location, self._root(location), selected=False), files=False)
            if not self._is_left(dataset):
                yield dataset

    def _tiers(self) -> Iterator[_Dataset]:
        """Yield the directories outside of the root that hold data files of tables."""
        for place, refusal in self._bases.found():
            root = DatasetRoot(place.key, place.uri)
            branch = _Branch("", root, files=[] if refusal else self._bases.files(place))
            yield _Dataset(place.uri, root, True, {"": branch}, refusal, tier=place)

    def _placed(self, table: Table, selected: bool) -> _Dataset:
        """Return a table with its dataset root.

        If a symbolic link leads to the table, nothing of it is removed. It is still read, because it may be a clone.
        """
        try:
            return _Dataset(str(table.id), self.places.dataset_root(table), selected, object_id=table.id)
        except Damaged as error:
            return _Dataset(str(table.id), self._root(table.location), selected, refusal=str(error))

    def _root(self, location: str) -> DatasetRoot:
        key = self.places.prefix + location
        return DatasetRoot(key, self._objects.root_uri + key)

    def _filled(self, dataset: _Dataset, *, files: bool) -> _Dataset:
        """Add the objects of the directory; only manifests without ``files``, or if the table is not cleaned."""
        prefix, cleaned = f"{dataset.root.key}/", files and dataset.selected and not dataset.refusal
        parts = ("",) if cleaned else (f"{VERSIONS}/", f"{BRANCHES}/")
        for info in (info for part in parts for info in self._listed(prefix + part)):
            place = Place.of(info.key[len(prefix) :])
            if place is None:
                dataset.has_digests = dataset.has_digests or f"/{DIGESTS_DIRECTORY}/" in info.key
                continue
            root = dataset.root.branch(place.branch or None)
            branch = dataset.branches.setdefault(place.branch, _Branch(place.branch, root))
            if place.directory == VERSIONS and not place.is_unfinished:
                branch.add_manifest(place.rest, info)
            elif cleaned and place.own_name is not None:
                branch.files.append((place.own_name, info))
        if cleaned:
            own = dataset.branches.setdefault("", _Branch("", dataset.root))
            unfinished = self._retry(lambda: list(self._objects.unfinished(prefix)))
            own.files += [(info.key.encode(), info) for info in unfinished]
        return dataset

    def _is_left(self, dataset: _Dataset) -> bool:
        """Return whether a move has left a directory: its marker says so, and a fence ends each history."""
        if self._retry(partial(self._objects.head, f"{dataset.root.key}/{MOVED_MARKER}")) is None:
            return False
        ends = [branch.versions[max(branch.versions)].key for branch in dataset.branches.values() if branch.versions]
        try:
            return all(is_fence(self._retry(partial(self._objects.get, key)), key) for key in ends)
        except (Damaged, ObjectNotFound):
            return False

    def _references(self, dataset: _Dataset) -> set[Reference]:
        """Return the versions to which tags, branches and the entry of a table refer now.

        Raises:
            Damaged: A reference cannot be read.
        """
        found = set()
        entry = None if dataset.object_id is None else self.ledger.view().find(dataset.object_id.key)
        published = None if entry is None else published_version(entry)
        if published is not None:
            found.add(published)
        for info in self._list(f"{dataset.root.key}/{REFERENCES}/"):
            with suppress(ObjectNotFound):  # deleted since it was listed
                found.add(parse_reference(self._objects.get(info.key), info.key))
        return found

    # -- choosing -----------------------------------------------------------------------------------------------

    def _choose(self, datasets: Sequence[_Dataset]) -> None:
        branches = [branch for dataset in datasets for branch in dataset.branches.values()]
        times = [info.modified for branch in branches for info in branch.versions.values() if info.modified]
        times += [self.present] if self.present else []
        self._newest = min(max(times), self.now()) if times else None
        self._manifests = sum(branch.manifests for branch in branches)
        doomed = FileNames()
        for dataset in datasets:
            if dataset.selected and not dataset.refusal and dataset.tier is None:
                try:
                    self._choose_versions(dataset)
                    for branch in dataset.branches.values():
                        for version in branch.doomed:  # one manifest in memory at a time
                            self._add_names(doomed, dataset, branch.versions[version])
                except Damaged as error:
                    dataset.refuse(f"{error}. Nothing of the table is removed")
            self._need(dataset)
        _spare_tiers(datasets, [dataset.refusal for dataset in datasets if dataset.tier is None])
        for dataset in datasets:
            for branch in dataset.branches.values() if not dataset.refusal else ():
                branch.unneeded = [
                    (name, info)
                    for name, info in branch.files
                    if name not in self._needed.names and (name in doomed.names or self._is_older(info, self.grace))
                ]

    def _choose_versions(self, dataset: _Dataset) -> None:
        if self.ledger.managed and self.ledger.commits.holding.is_marked(dataset.root):
            self._require_no_direct_commit(dataset)
        held = self._references(dataset)
        for branch in dataset.branches.values():
            final_names((info.key.rpartition("/")[2] for info in branch.versions.values()), branch.root.base_uri)
            branch.doomed = [version for version in self._old(branch) if Reference(branch.name, version) not in held]
            self._spare_below_tags(dataset, branch, held)
            branch.abandoned = [
                info
                for info in branch.staged
                if self._is_older(info, self.grace) and not self._is_claimed(branch, info)
            ]
            branch.dangling = self._dangling(branch)

    def _require_no_direct_commit(self, dataset: _Dataset) -> None:
        """Check that each history ends with a version of the catalog, so that the latest one counts as such.

        Raises:
            Damaged: A direct commit that the table holds follows it.
        """
        for branch in dataset.branches.values():
            latest, newest = self.ledger.commits.latest(branch.root), max(branch.versions, default=0)
            if newest > (0 if latest is None else latest.version):
                raise Damaged(
                    f"{branch.root.base_uri}: version {newest} is a direct commit that the table holds. Adopt or "
                    "discard it with `lancekeep direct-commits`"
                )

    def _spare_below_tags(self, dataset: _Dataset, branch: _Branch, held: Collection[Reference]) -> None:
        """Keep the versions of a protected table up to the latest tag or branch of a history."""
        by = None if dataset.object_id is None else protector(self.ledger.view(), dataset.object_id)
        latest = max((held_one.version for held_one in held if held_one.branch == branch.name), default=0)
        spared = [version for version in branch.doomed if version < latest] if by is not None else []
        if spared:
            branch.doomed = branch.doomed[len(spared) :]
            dataset.protection = (
                f"{by} is protected, so {len(spared)} versions before the tag or branch at version {latest} of "
                f"{'@'.join(filter(None, (dataset.name, branch.name)))} stay"
            )

    def _old(self, branch: _Branch) -> Iterator[int]:
        """Yield the oldest versions whose successors are old too.

        Readers open a version as the latest until its successor exists.
        """
        versions = sorted(branch.versions)
        for version, successor in pairwise(versions[: len(versions) - self.keep + 1]):
            if not all(self._is_older(branch.versions[one], self.older_than) for one in (version, successor)):
                return
            yield version

    def _is_claimed(self, branch: _Branch, staged: ObjectInfo) -> bool:
        """Return whether a row points at a staged manifest: its version is decided."""
        name = ManifestName.parse(staged.key.rpartition("/")[2])
        if name is None:
            return False  # a detached version has no row
        row = self._retry(lambda: self.ledger.commits.rows.get(branch.root.base_uri, name.version))
        return row is not None and row.path == staged.key

    def _dangling(self, branch: _Branch) -> list[int]:
        """Return old versions with a row but no manifest.

        Lance's own clean-up does not report the versions that it removes.
        """
        latest, rows = max(branch.versions, default=0), self.ledger.commits.rows
        below = self._retry(lambda: rows.list(branch.root.base_uri, after=latest, limit=None, descending=True))
        gone = (row for row in below if row.is_final and row.version not in branch.versions)
        return [row.version for row in gone if self._objects.head(row.path) is None]

    def _need(self, dataset: _Dataset) -> None:
        """Record the files that remaining, unread manifests name.

        A damaged manifest may name any file, so its table is not cleaned.
        """
        refusal = dataset.refusal
        for branch in dataset.branches.values():
            gone = {*(branch.versions[version] for version in branch.doomed), *branch.abandoned}
            twins = {info for version, info in branch.twins.items() if version not in branch.doomed}
            unread = {*branch.versions.values(), *twins, *branch.others, *branch.staged} - gone - self._read
            for info in sorted(unread, key=lambda info: info.key):  # so that neighbours share most of their bytes
                try:
                    self._add_names(self._needed, dataset, info)
                except Damaged as error:
                    if info not in branch.staged:  # an undecodable staged file cannot become a version
                        dataset.refuse(f"{error}. Nothing of the table is removed")
                self._read.add(info)
        if dataset.refusal != refusal:
            self._need(dataset)  # the versions that were to be removed stay, too

    def _add_names(self, names: FileNames, dataset: _Dataset, manifest: ObjectInfo) -> None:
        self._done += 1
        self.progress(min(self._done, self._manifests), self._manifests, f"reading the manifests of {dataset.name}")
        with suppress(ObjectNotFound):  # removed since it was listed, by another clean-up or a finished commit
            names.add(self._retry(partial(self._objects.get, manifest.key)), manifest.key)

    def _is_older(self, info: ObjectInfo, span: timedelta) -> bool:
        """Return whether an object has at least an age, by the timestamps of the storage.

        The newest timestamp counts as now. An object of unknown age counts as young.
        """
        return info.modified is not None and self._newest is not None and self._newest - info.modified >= span

    # -- removing -----------------------------------------------------------------------------------------------

    def _remove_versions(self, datasets: Sequence[_Dataset]) -> None:
        for at, dataset in enumerate(datasets):
            self.progress(at, len(datasets), f"removing versions of {dataset.name}")
            for branch in dataset.branches.values():
                try:
                    self._recheck(dataset, branch)
                    self._settle_keys(dataset, branch)
                except (Damaged, Unsupported) as error:
                    dataset.refuse(str(error))
                self._remove_versions_of(dataset, branch)
        self.ledger.commits.forget()

    def _recheck(self, dataset: _Dataset, branch: _Branch) -> None:
        """Keep versions to which a tag or branch refers now.

        If the table was recreated, keep all versions.
        """
        branch.abandoned = [info for info in branch.abandoned if not self._is_claimed(branch, info)]
        if not branch.doomed:
            return
        present = set(self._list(branch.root.versions_key))
        if branch.versions[max(branch.versions)] not in present:
            branch.spare()
        held = self._references(dataset)
        branch.doomed = [
            version
            for version in branch.doomed
            if branch.versions[version] in present and Reference(branch.name, version) not in held
        ]

    def _settle_keys(self, dataset: _Dataset, branch: _Branch) -> None:
        """Note which keyed appends are in the versions to remove: a request may be repeated later."""
        if branch.doomed and not branch.name and dataset.object_id is not None:
            keys_of(self.ledger, self.places, dataset.object_id).settle(branch.root, max(branch.doomed))

    def _remove_versions_of(self, dataset: _Dataset, branch: _Branch) -> None:
        """Remove rows, then manifests.

        After an interruption, a manifest without a row is readable, and the next run finds it. If the table is dropped
        in between, the removal ends: another table may have its versions in the directory.
        """
        is_same = self._witness(branch)
        forgotten = [*branch.doomed, *branch.dangling]
        if forgotten:
            self._retry(lambda: self.ledger.commits.rows.delete(branch.root.base_uri, forgotten))
        for at, version in enumerate(branch.doomed):
            self.progress(at, len(branch.doomed), f"removing manifests of {dataset.name}")
            if not is_same():
                branch.doomed = branch.doomed[:at]
                break
            twin = [branch.twins[version]] if version in branch.twins else []
            for info in (*twin, branch.versions[version]):
                self._retry(partial(self._objects.delete, info.key))
        for info in branch.abandoned:
            self._retry(partial(self._objects.delete, info.key))
        # A concurrent reader may have recorded rows again. Of another table, only the last manifest can be gone.
        again = branch.doomed if is_same() else branch.doomed[-1:]
        if again:
            self._retry(lambda: self.ledger.commits.rows.delete(branch.root.base_uri, again))

    def _witness(self, branch: _Branch) -> Callable[[], bool]:
        """Return a function that returns whether a history still belongs to its table."""
        location = branch.root.key.removeprefix(self.places.prefix)
        if not branch.doomed or not (branch.root.is_branch or is_reusable(location)):
            return lambda: True
        latest = max(branch.versions)
        info = branch.versions[latest]
        row = VersionRow(branch.root.base_uri, latest, info.key, info.size)
        return self.ledger.commits.lineage.witness(branch.root, row)

    def _remove_files(self, datasets: Sequence[_Dataset]) -> None:
        """Read the manifests that appeared since the first listing, and remove files."""
        torn = {}
        for dataset in self._look(files=False):
            self._need(dataset)
            torn[dataset.root] = dataset.refusal
        _spare_tiers(datasets, torn.values())
        for dataset in datasets:
            dataset.refusal = dataset.refusal or torn.get(dataset.root, "")
            if dataset.tier is not None and not self._bases.is_own(dataset.tier):
                dataset.refuse("another catalog has taken it over; nothing is removed")
            for branch in dataset.branches.values():
                unneeded = () if dataset.refusal else branch.unneeded
                branch.unneeded = [(name, info) for name, info in unneeded if name not in self._needed.names]
                objects = self._objects if dataset.tier is None else dataset.tier.objects
                for at, (_, info) in enumerate(branch.unneeded):
                    self.progress(at, len(branch.unneeded), f"removing files of {dataset.name}")
                    self._retry(partial(objects.delete, info.key))
                for directory in {posixpath.dirname(info.key) for _, info in branch.unneeded}:
                    if posixpath.basename(directory) not in DIRECTORIES:  # such as the directory of an index
                        objects.prune(directory)
                if dataset.has_digests:
                    self._forget_digests(branch)

    def _forget_digests(self, branch: _Branch) -> None:
        """Merge the records of digests, without the digests of removed files."""
        manifests = (branch.versions[version] for version in branch.doomed)
        gone = (*manifests, *(info for _, info in branch.unneeded))
        prefix = f"{branch.root.key}/"
        Digests(self._objects, self.ledger.commits.retry).fold(
            branch.root.key, {info.key.removeprefix(prefix) for info in gone}
        )

    def _listed(self, prefix: str) -> list[ObjectInfo]:
        """Return the result of `_list`; empty if the storage rejects the location."""
        with suppress(InvalidInput):
            return self._list(prefix)
        return []

    def _list(self, prefix: str) -> list[ObjectInfo]:
        return self._retry(lambda: list(self._objects.list(prefix)))

    def _retry(self, act: Callable[[], T]) -> T:
        return self.ledger.commits.retry.call(act)

    @property
    def _bases(self) -> Bases:
        return Bases(self.ledger, self.places)

    @property
    def _objects(self) -> ObjectStore:
        return self.ledger.commits.objects


def _spare_tiers(datasets: Iterable[_Dataset], refusals: Iterable[str]) -> None:
    """Clean no tier if a manifest of the catalog cannot be read: the manifest may name files there."""
    reason = next(filter(None, refusals), "")
    for dataset in datasets:
        if dataset.tier is not None and reason:
            dataset.refuse(reason)


def _cleaned(dataset: _Dataset, branch: _Branch) -> TableCleanup:
    manifests = [branch.versions[version] for version in branch.doomed]
    gone = [*manifests, *branch.abandoned, *(info for _, info in branch.unneeded)]
    return TableCleanup(
        dataset.name,
        branch.name,
        tuple(branch.doomed),
        len(branch.versions) - len(branch.doomed),
        len(branch.dangling),
        len(branch.abandoned),
        len(branch.unneeded),
        sum(info.size for info in gone),
    )
