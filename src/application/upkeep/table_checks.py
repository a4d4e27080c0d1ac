"""The checks of single tables: manifests, rows, tags and branches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import unquote

import attrs

from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.clones import Clones
from lancekeep.application.entries.mem_wal import MemWal
from lancekeep.application.upkeep.checked_history import History, Repair, gaps, has_version
from lancekeep.application.upkeep.content_checks import ContentChecks
from lancekeep.application.upkeep.fsck import Finding, FsckReport, Kind, Progress, require_span, unless_young
from lancekeep.domain.dataset_files import DATA, DELETIONS, INDICES, REFERENCES, Place, Reference
from lancekeep.domain.directory_contents import is_versions_file
from lancekeep.domain.errors import Damaged, InvalidInput, ObjectNotFound, Unsupported
from lancekeep.domain.features import Feature
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, VERSIONS, DatasetRoot
from lancekeep.domain.managed import ADOPT, DIRECT_COMMITS, IMPLEMENTATION, MANAGED, STORAGE, by_storage, holds
from lancekeep.domain.mem_wal import MEM_WAL_DIRECTORY
from lancekeep.domain.naming import ManifestName, NamingScheme, final_names, final_path, final_versions, parse_detached
from lancekeep.domain.stable_row_ids import STABLE_ROW_IDS
from lancekeep.domain.table import Table
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.json_files import hinted_version, parse_reference
from lancekeep.format.outdated_indexes import outdated_indexes
from lancekeep.format.table_version import TableVersion
from lancekeep.ports.object_store import ObjectInfo, ObjectStore


@attrs.frozen
class TableChecks:
    """One check of single tables.

    Attributes:
        managed: Whether a commit store manages the versions.
        grace: As in `Fsck`.
        now: As in `Fsck`.
        restore: Makes an older version of a table the latest.
        rebuild: Builds indexes of a table again.
        follow_entry: Lets the manager that a table's entry names manage its versions.
        accept_loss: Whether repair may give up a committed version that cannot be read.
    """

    commits: TableCommits
    clones: Clones
    mem_wal: MemWal
    managed: bool
    grace: timedelta
    now: Callable[[], datetime]
    restore: Callable[[ObjectId, int], object]
    rebuild: Callable[[ObjectId, Sequence[str]], object]
    follow_entry: Callable[[ObjectId], object]
    accept_loss: bool = False

    def run(
        self, tables: Sequence[Table], place: Callable[[Table], DatasetRoot], *, repair: bool, progress: Progress
    ) -> FsckReport:
        """Check tables.

        Args:
            tables: The tables.
            place: Returns the dataset root of a table.
            repair: Repair what can be repaired without loss.
            progress: Called before each table.

        Raises:
            InvalidInput: The grace period is negative.
        """
        require_span(self.grace)
        findings: list[Finding] = []
        for at, table in enumerate(tables):
            progress(at, len(tables), str(table.id))
            tell = partial(_tell, progress, at, len(tables), str(table.id))
            findings += self._checked(table, place, tell, repair=repair)
        return FsckReport(tuple(findings), 0, 0, len(tables))

    def _checked(
        self, table: Table, place: Callable[[Table], DatasetRoot], tell: Callable[[int], object], *, repair: bool
    ) -> Iterator[Finding]:
        """Check a table. Damage that no check expects is a finding, and ends only the check of this table."""
        try:
            yield from self._of_manager(table, place(table), repair=repair)
            yield from self._of_table(table, place(table), tell, repair=repair)
        except (Damaged, InvalidInput, Unsupported) as error:
            yield Finding(Kind.UNCHECKED, str(table.id), f"the check of the table ended: {error}")

    def _of_manager(self, table: Table, root: DatasetRoot, *, repair: bool) -> Iterator[Finding]:
        """Yield the finding on a table whose manager is not the manager that its entry names."""
        storage = by_storage(table.properties)
        if self.managed and self.commits.holding.holds(root) is not holds(table.properties):
            if repair:
                self.follow_entry(table.id)
            meaning = (
                f"{DIRECT_COMMITS!r} is {table.properties.get(DIRECT_COMMITS, ADOPT)!r}, and {self.commits.rows.url} "
                "has recorded otherwise: a change of the property was stopped, or the commit store lost a row"
            )
            yield Finding(Kind.MANAGER, str(table.id), meaning, "follow the property", repaired=repair)
        if not self.managed or not self.commits.is_managed_otherwise(root, storage=storage):
            return
        if repair:
            self.follow_entry(table.id)
        managers = (STORAGE, IMPLEMENTATION) if storage else (IMPLEMENTATION, STORAGE)
        meaning = (
            f"{MANAGED!r} is {managers[0]!r}, and for {self.commits.rows.url} it is {managers[1]!r}: a change of the "
            "property was stopped, or the commit store lost a row. No version is lost"
        )
        yield Finding(Kind.MANAGER, str(table.id), meaning, "follow the property", repaired=repair)

    def _of_table(
        self, table: Table, root: DatasetRoot, tell: Callable[[int], object], *, repair: bool
    ) -> Iterator[Finding]:
        """Yield the findings on a table and its branches; optionally repair them."""
        name = table.id
        references = dict(self._references(root))
        held = {reference for reference in references.values() if reference is not None}
        branches = self._branches(root)
        histories: dict[str, History | None] = {}
        for branch in branches:
            title = str(name) if not branch else f"{name}@{branch}"
            try:
                histories[branch] = self._history(title, root.branch(branch or None))
            except Damaged as error:
                histories[branch] = None
                yield Finding(Kind.MIXED, title, str(error))
        sound = [(branch, history) for branch, history in histories.items() if history is not None]
        found = [
            *(one for branch, history in sound for one in self._of_history(branch, history, held)),
            *self._of_references(str(name), references, histories),
            *self._of_unfinished_branches(root, references, sound),
            *(one for _, history in sound for one in self._of_lsm_writes(history)),
            *self._unfinished(str(name), self._objects.unfinished(f"{root.key}/")),
            *self._of_clones(str(name), self.clones.location(root.key)),
            *self._contents.of_files(name, root, dict(sound), held, tell),
            *(one for branch, history in sound for one in self._of_latest(table, branch, history)),
        ]
        for finding, act in found:
            repaired = repair and finding.repair != "" and act is not None and act()
            yield attrs.evolve(finding, repaired=repaired)

    def _of_latest(self, table: Table, branch: str, history: History) -> Iterator[tuple[Finding, Repair | None]]:
        """Yield the findings on indexes that answer replaced values, and on row ids that the entry denies."""

        def read(version: int) -> TableVersion | None:
            info = history.finals.get(version)
            with suppress(ObjectNotFound, Damaged):  # other checks report the latest version
                return None if info is None else TableVersion.parse(self._objects.get(info.key), info.key)
            return None

        latest = read(max(history.finals)) if history.finals else None
        if latest is None:
            return
        names = outdated_indexes(latest, read, history.title)
        if names:
            meaning = (
                f"{', '.join(names)}: entries of replaced values count, so searches and deletes by the index take "
                "wrong rows"
            )
            repair = "" if branch else "build it again"
            yield Finding(Kind.OUTDATED_INDEX, history.title, meaning, repair), partial(self._rebuilt, table.id, names)
        present = str(bool(latest.manifest.reader_feature_flags & Feature.STABLE_ROW_IDS)).lower()
        stated = table.properties.get(STABLE_ROW_IDS, present)
        if not branch and stated != present:
            meaning = (
                f"the property {STABLE_ROW_IDS!r} is {stated!r}, and the first version decided {present!r}: a writer "
                f"without the catalog made one of them. Set it to {present!r}, or copy the rows to a new table"
            )
            yield Finding(Kind.ROW_IDS, history.title, meaning), None

    def _rebuilt(self, name: ObjectId, names: Sequence[str]) -> bool:
        self.rebuild(name, names)
        return True

    # -- looking ------------------------------------------------------------------------------------------------

    def _branches(self, root: DatasetRoot) -> list[str]:
        places = (Place.of(info.key[len(root.key) + 1 :]) for info in self._objects.list(f"{root.key}/{BRANCHES}/"))
        return ["", *sorted({place.branch for place in places if place is not None and place.directory == VERSIONS})]

    def _history(self, title: str, root: DatasetRoot) -> History:
        infos = {info.key[len(root.versions_key) :]: info for info in self._objects.list(root.versions_key)}
        if self.commits.rows.of(root.base_uri).guarantees.derived:
            final_versions(infos, root.base_uri)
        finals = final_names(infos, root.base_uri)
        unfinished = [infos.pop(name) for name in list(infos) if Place("", VERSIONS, name).is_unfinished]
        parsed = {name: ManifestName.parse(name) for name in infos}
        names = {name: None if one and one.is_staged and not one.is_generated else one for name, one in parsed.items()}
        rows, foreign, unreadable = self._rows(root)
        return History(
            title,
            root,
            {version: infos[name] for version, name in finals.items()},
            [infos[name] for name, one in names.items() if one and one.is_staged],
            unfinished,
            [name for name, one in names.items() if one is None and not is_versions_file(name)],
            {row.version: row for row in rows if row.moved_to is None},
            foreign,
            unreadable,
            [name for name, one in names.items() if one and not one.is_staged and one.scheme is NamingScheme.V1],
            {number: info for name, info in infos.items() if (number := parse_detached(name)) is not None},
        )

    def _rows(self, root: DatasetRoot) -> tuple[Sequence[VersionRow], Sequence[VersionRow], str]:
        """Return the sound rows, the foreign rows, and the error if they cannot be read."""
        if not self.managed:
            return [], [], ""
        try:
            return *self.commits.rows.sort_out(root.base_uri), ""
        except Damaged as error:
            return [], [], str(error)

    def _references(self, root: DatasetRoot) -> Iterator[tuple[str, Reference | None]]:
        """Yield tags and branches with their keys; None for a reference that cannot be read."""
        for info in self._objects.list(f"{root.key}/{REFERENCES}/"):
            try:
                yield info.key, parse_reference(self._objects.get(info.key), info.key)
            except ObjectNotFound:
                continue
            except Damaged:
                yield info.key, None

    # -- histories ----------------------------------------------------------------------------------------------

    def _of_history(
        self, branch: str, history: History, held: set[Reference]
    ) -> Iterator[tuple[Finding, Repair | None]]:
        for name in history.unknown:
            meaning = f"{name} in {VERSIONS}/ is no manifest's name; nothing reads it, remove it if it is not yours"
            yield Finding(Kind.UNKNOWN, history.title, meaning), None
        if history.v1 and not all(info.key.rpartition("/")[2] in history.v1 for info in history.finals.values()):
            meaning = (
                f"{len(history.v1)} manifests have V1 names, first {history.v1[0]}, and later ones V2 names: a "
                "migration of manifest names is unfinished. Complete it with `lancekeep migrate-names`"
            )
            yield Finding(Kind.MIXED, history.title, meaning), None
        if history.unreadable:
            yield Finding(Kind.FOREIGN_ROW, history.title, history.unreadable), None
        for row in history.foreign:
            meaning = f"the row of version {row.version} names {row.path!r:.200}, which is not that version's manifest"
            found = Finding(Kind.FOREIGN_ROW, history.title, meaning, "remove the row")
            yield found, partial(self._remove_row, history.root, row)
        direct = self._direct(history)
        yield from self._of_rows(history, direct)
        for version in direct:
            key = history.finals[version].key
            meaning = (
                f"a writer committed version {version} to {key!r} without the catalog. No reader of the catalog sees "
                "it, and no version can follow: `lancekeep direct-commits` adopts or discards it"
            )
            yield Finding(Kind.DIRECT, history.title, meaning), None
        if history.rows:  # a table that was never used through the catalog has no rows
            yield from self._unrecorded(history, direct)
        yield from self._leftovers(history, direct)
        yield from gaps(branch, history, held)
        if history.finals:
            if self.commits.rows.of(history.root.base_uri).guarantees.derived:
                yield from self._of_hint(history)
            yield from self._contents.of_head(history)

    def _of_rows(self, history: History, direct: Collection[int]) -> Iterator[tuple[Finding, Repair | None]]:
        """Yield rows of unfinished commits, and rows of missing versions."""
        for version, row in history.rows.items():
            if version in direct:
                continue  # a commit that lost to it
            if version in history.finals and row.is_final:
                if row.path != history.finals[version].key and not self._exists(row.path):
                    yield self._renamed(history, row)
                continue
            row = self.commits.rows.get(row.base_uri, version) or row  # it may have been finished since
            final = final_path(row.path)
            if not row.is_final and (self._exists(row.path) or self._exists(final)):
                meaning = f"version {version} is decided and not published: its row points at {row.path!r}"
                yield (
                    Finding(Kind.STUCK, history.title, meaning, "publish it, as the next reader would"),
                    partial(self._publish, row),
                )
            elif not self._exists(row.path) and not self._exists(final):
                yield self._lost(history, row)

    def _renamed(self, history: History, row: VersionRow) -> tuple[Finding, Repair | None]:
        info = history.finals[row.version]
        meaning = f"version {row.version} is recorded at {row.path!r}, and its manifest was renamed to {info.key!r}"
        renamed = VersionRow(row.base_uri, row.version, info.key, info.size)
        found = Finding(Kind.LOST, history.title, meaning, "correct the row")
        return found, lambda: self._forget(row) and self._record(renamed)

    def _lost(self, history: History, row: VersionRow) -> tuple[Finding, Repair | None]:
        where = f"version {row.version} is recorded at {row.path!r}, where no object exists"
        if row.version == history.latest and row.is_final:
            what = f"{where}: the latest version is lost"
            return self._contents.given_up(Kind.LOST, history, what, partial(self._forget, row))
        reason = "it was cleaned up without its row" if row.is_final else "it was never published, and blocks the table"
        repair = Finding(Kind.LOST, history.title, f"{where}: {reason}", "forget the row")
        return repair, partial(self._forget, row)

    def _direct(self, history: History) -> Collection[int]:
        """Return the direct commits that the table holds: manifests above the latest row."""
        newest = max(history.rows, default=0)
        above = [version for version in sorted(history.finals) if version >= newest]
        if not above or not self.managed or not self.commits.holding.is_marked(history.root):
            return ()
        latest = self.commits.latest(history.root)
        return [version for version in above if latest is None or version > latest.version]

    def _unrecorded(self, history: History, direct: Collection[int]) -> Iterator[tuple[Finding, Repair | None]]:
        """Yield manifests without rows: lost rows, or an interrupted removal or adoption."""
        newest = max(history.rows)
        foreign = {row.version for row in history.foreign}
        outdated = newest not in history.finals  # rows from before a clean-up, which left versions above a gap
        for version, info in sorted(history.finals.items()):
            if version in history.rows or version in foreign or version in direct:
                continue
            if self.commits.rows.get(history.root.base_uri, version) is not None:
                continue
            meaning = f"version {version} lies at {info.key!r}, and the commit store has no row of it"
            row = VersionRow(history.root.base_uri, version, info.key, info.size)
            followed = all(one in history.finals for one in range(newest + 1, version))
            if version > newest and not followed and not outdated:
                meaning += "; versions before it are missing, so no writer can commit. Move the file away"
                yield Finding(Kind.UNRECORDED, history.title, meaning), None
            else:
                yield Finding(Kind.UNRECORDED, history.title, meaning, "enter the row"), partial(self._record, row)

    def _leftovers(self, history: History, direct: Collection[int]) -> Iterator[tuple[Finding, Repair | None]]:
        """Yield staged manifests of commits that lost, crashed or are in progress."""
        yield from self._unfinished(history.title, history.unfinished)
        for info in history.staged:
            name = ManifestName.parse(info.key.rpartition("/")[2])
            row = history.rows.get(name.version) if name else None
            if name is None or (row is not None and row.path == info.key):
                continue
            if name.version in direct:
                continue  # it may be what replaces the direct commit
            if name.version <= max(history.finals, default=0):
                meaning = f"{info.key!r} lost version {name.version} to another commit, or was published"
                found = Finding(Kind.STAGED, history.title, meaning, "remove it")
            else:
                meaning = (
                    f"{info.key!r} is an unfinished commit of version {name.version}: `resolve` settles it by its "
                    "token; after the grace period, cleanup removes it"
                )
                found = Finding(Kind.STAGED, history.title, meaning)
            yield unless_young(found, [info], self.grace, self.now()), partial(self._remove, info)

    def _unfinished(self, title: str, infos: Iterable[ObjectInfo]) -> Iterator[tuple[Finding, Repair | None]]:
        for info in infos:
            meaning = f"{info.key!r} is the incomplete file of a writer that was stopped"
            found = Finding(Kind.LEFTOVER, title, meaning, "remove it")
            yield unless_young(found, [info], self.grace, self.now()), partial(self._remove, info)

    def _of_hint(self, history: History) -> Iterator[tuple[Finding, Repair | None]]:
        """Yield a version hint from which a search for the latest version ends at a gap."""
        hinted, latest = self._hinted(history.root), max(history.finals)
        end = next((version for version in range(hinted, latest) if version + 1 not in history.finals), None)
        if hinted not in history.finals or end is None:
            return
        meaning = (
            f"the version hint names version {hinted}, and version {end + 1} was removed: over conditional-put:// on a "
            f"file system the catalog takes version {end} for the latest instead of version {latest}"
        )
        found = Finding(Kind.STALE_HINT, history.title, meaning, "remove the hint")
        yield found, partial(self._remove_hint, history.root, hinted)

    def _hinted(self, root: DatasetRoot) -> int:
        try:
            return hinted_version(self._objects.get(root.hint_key))
        except ObjectNotFound:
            return 0

    def _of_lsm_writes(self, history: History) -> Iterator[tuple[Finding, Repair | None]]:
        """Yield acknowledged rows that no reader sees, and damage to what describes them."""
        try:
            stranded = self.mem_wal.stranded(history.root)
        except Damaged as error:
            yield Finding(Kind.LSM_WRITES, history.title, str(error)), None
            return
        if stranded:
            meaning = (
                f"{stranded} generations of LSM writes lie in {MEM_WAL_DIRECTORY}/, and no version records which are "
                "merged: their writer had the table open before it was dropped or overwritten, or LSM writes were "
                "ended. Merge what you need, then delete the directory"
            )
            yield Finding(Kind.LSM_WRITES, history.title, meaning), None

    def _of_clones(self, name: str, location: str) -> Iterator[tuple[Finding, Repair | None]]:
        """Yield findings on records that contradict the manifests of clones."""
        for source in self.clones.missing_records(location):
            meaning = f"the table is a clone that reads files of {source!r}, which has no record of it"
            yield (
                Finding(
                    Kind.UNRECORDED_CLONE, name, f"{meaning}: dropping that table would not be refused", "record it"
                ),
                partial(self.clones.add_record, source, location),
            )
        for key, clone in self.clones.records(location):
            if not self.clones.reads(clone, location):
                meaning = f"the record {key!r} names {clone!r}, which reads no file of the table"
                yield (
                    Finding(Kind.STALE_RECORD, name, meaning, "remove the record"),
                    partial(self._delete_record, key, clone, location),
                )

    # -- tags and branches --------------------------------------------------------------------------------------

    def _of_references(
        self, name: str, references: Mapping[str, Reference | None], histories: Mapping[str, History | None]
    ) -> Iterator[tuple[Finding, Repair | None]]:
        for key, reference in references.items():
            _, _, path = key.partition(f"/{REFERENCES}/")
            kind, _, title = unquote(path).removesuffix(".json").partition("/")
            subject = f"the {'tag' if kind == 'tags' else 'branch'} {title!r}"
            found = Kind.TAG if kind == "tags" else Kind.BRANCH
            if reference is None:
                meaning = f"{subject} cannot be read: {key!r} is invalid; delete it and create it again"
                yield Finding(found, name, meaning), None
            elif kind == "tags" and not has_version(histories, reference):
                place = f"version {reference.version}" + (f" of {reference.branch}" if reference.branch else "")
                yield (
                    Finding(found, name, f"{subject} points at {place}, which does not exist", "delete the tag"),
                    partial(self._delete_reference, key, reference),
                )
            elif kind != "tags" and not has_version(histories, Reference(title, 0)):
                yield Finding(found, name, f"{subject} has no version; delete it with the engine"), None

    def _of_unfinished_branches(
        self, root: DatasetRoot, references: Mapping[str, Reference | None], histories: Iterable[tuple[str, History]]
    ) -> Iterator[tuple[Finding, Repair | None]]:
        """Yield branches that no reference names, so that no reader finds them and their names are taken."""
        named = _branches_named(references)
        begun = {reference.branch for reference in references.values() if reference is not None}
        for branch, history in histories:
            if not branch or not history.finals or branch in named:
                continue
            meaning = (
                "it has versions, and no file in _refs/branches/ names it: its creation or deletion was stopped, or it "
                "was deleted while there was a branch below its name"
            )
            infos, holds = [], len(history.finals) > 1 or branch in begun
            for info in self._objects.list(f"{history.root.key}/"):
                place = Place.of(info.key[len(root.key) + 1 :])
                if place is not None and place.branch == branch:  # not the directory of a branch below its name
                    infos.append(info)
                    holds = holds or place.directory in (DATA, DELETIONS, INDICES)
            if holds:
                meaning += ". It was written to, or is needed; copy what you need, then delete its files"
            found = Finding(Kind.UNFINISHED_BRANCH, history.title, meaning, "" if holds else "remove its directory")
            act = partial(self._remove_branch, root, branch, history.root, [info.key for info in infos])
            yield unless_young(found, infos, self.grace, self.now()), act

    # -- repair -------------------------------------------------------------------------------------------------

    def _remove_branch(self, root: DatasetRoot, branch: str, at: DatasetRoot, keys: Sequence[str]) -> bool:
        """Remove the files of a branch, manifests first, unless it has a reference by now."""
        if branch in _branches_named(dict(self._references(root))):
            return False
        self.commits.rows.delete(at.base_uri)
        for key in sorted(keys, key=lambda key: (not key.startswith(at.versions_key), key)):
            self._objects.delete(key)
        self._objects.prune(at.key)
        self.commits.forget()
        return True

    def _publish(self, row: VersionRow) -> bool:
        published = self.commits.finalize(row)
        return published is not None and published.is_final

    def _remove_row(self, root: DatasetRoot, row: VersionRow) -> bool:
        """Remove a foreign row. If the version's manifest exists, record its own row."""
        if row not in self.commits.rows.sort_out(root.base_uri)[1]:
            return False
        self.commits.rows.delete(root.base_uri, [row.version])
        final = self.commits.final_object(root, row.version)
        if final is not None:
            self._record(final)
        return True

    def _forget(self, row: VersionRow) -> bool:
        """Remove a row whose manifest is still missing."""
        if self.commits.rows.get(row.base_uri, row.version) != row or self._exists(row.path):
            return False
        self.commits.rows.delete(row.base_uri, [row.version])
        self.commits.forget()
        return True

    def _record(self, row: VersionRow) -> bool:
        if not self._exists(row.path):
            return False
        self.commits.rows.record([row])
        return True

    def _remove(self, info: ObjectInfo) -> bool:
        self._objects.delete(info.key)
        return True

    def _delete_record(self, key: str, clone: str, location: str) -> bool:
        if self.clones.reads(clone, location):
            return False
        self._objects.delete(key)
        return True

    def _delete_reference(self, key: str, reference: Reference) -> bool:
        with suppress(ObjectNotFound, Damaged):
            if parse_reference(self._objects.get(key), key) == reference:
                self._objects.delete(key)
                return True
        return False

    def _remove_hint(self, root: DatasetRoot, hinted: int) -> bool:
        if self._hinted(root) != hinted:
            return False
        self._objects.delete(root.hint_key)
        return True

    def _exists(self, key: str) -> bool:
        return self._objects.head(key) is not None

    @property
    def _contents(self) -> ContentChecks:
        return ContentChecks(self.commits, self.clones, self.restore, self.accept_loss)

    @property
    def _objects(self) -> ObjectStore:
        return self.commits.objects


def _branches_named(references: Iterable[str]) -> set[str]:
    """Return the names of the branches that the keys of references name."""
    paths = (unquote(key.partition(f"/{REFERENCES}/")[2]) for key in references)
    return {path.removeprefix("branches/").removesuffix(".json") for path in paths if path.startswith("branches/")}


def _tell(progress: Progress, done: int, total: int, name: str, count: int) -> None:
    progress(done, total, f"{name}, {count:,} files")
