"""The check of a catalog's entries and directories: `Upkeep.fsck`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum

import attrs

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.removal import Removal
from lancekeep.application.entries.unfinished_clones import UnfinishedClones
from lancekeep.domain.catalog import CatalogView, Change, Remove, SetProperties, ancestors
from lancekeep.domain.dataset_files import DIRECTORIES
from lancekeep.domain.directory_contents import foreign_files, is_mark, is_own
from lancekeep.domain.dropped import DropRecord, is_held, is_record
from lancekeep.domain.errors import CommitStoreMismatch, Damaged, InvalidInput, ObjectNotFound, Refused, TableNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, VERSIONS
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.notebook import Shown
from lancekeep.domain.table import (
    DEREGISTERED_MARKER,
    MANIFEST_DIRECTORY,
    MOVED_MARKER,
    MOVING_MARKER,
    OWN_DIRECTORIES,
    Table,
    find_table,
    is_at,
    v1_table,
)
from lancekeep.format.begun_clone import BegunClone
from lancekeep.ports.object_store import ObjectInfo

_HASHED = re.compile(r"[0-9a-f]{8}_[^/]+")
Progress = Callable[[int, int, str], None]
"""Called with the number of completed steps, their total, and the name of the next step."""


class Kind(Enum):
    """The kinds of findings.

    The first group is about entries, directories and files of the catalog, the second about tables and branches.
    """

    MALFORMED = "malformed entry"
    DUPLICATE = "duplicate object id"
    ORPHAN = "orphan"
    UNUSABLE = "unusable location"
    OVERLAP = "overlapping directories"
    DANGLING = "dangling entry"
    UNFINISHED_CLONE = "unfinished clone"
    BROKEN_RECORD = "broken record of a dropped table"
    UNFINISHED_PURGE = "unfinished purge"
    HIDDEN = "hidden table"
    EMPTY = "empty directory"
    UNREFERENCED = "unreferenced directory"
    FENCE = "fence of a moved table"
    UNREGISTERED = "unregistered table"
    DEREGISTERED = "deregistered table"
    FOREIGN = "foreign directory"
    FOREIGN_FILE = "foreign file"
    LEFTOVER = "leftover file"
    EVENTS = "damaged log of events"

    STUCK = "stuck commit"
    MANAGER = "other manager"
    FOREIGN_ROW = "foreign row"
    LOST = "missing version"
    UNRECORDED = "unrecorded version"
    DIRECT = "direct commit"
    STAGED = "leftover staged manifest"
    GAP = "version gap"
    STALE_HINT = "stale version hint"
    UNKNOWN = "unknown name"
    MIXED = "mixed naming schemes"
    HEAD = "damaged head"
    MISSING_FILE = "missing file"
    DAMAGED_FILE = "damaged file"
    TAG = "dangling tag"
    BRANCH = "dangling branch"
    UNFINISHED_BRANCH = "unfinished branch"
    UNRECORDED_CLONE = "unrecorded clone"
    STALE_RECORD = "stale record of a clone"
    OUTDATED_INDEX = "outdated index"
    ROW_IDS = "other row ids"
    LSM_WRITES = "stranded LSM writes"
    UNCHECKED = "unfinished check"


_TABLES = (Kind.UNREGISTERED, Kind.DEREGISTERED)


@attrs.frozen
class Finding(Shown):
    """An inconsistency that ``fsck`` reports.

    Attributes:
        kind: The kind of the inconsistency.
        object: An identifier (``table@branch`` for a branch), or a path relative to the root.
        meaning: A description with advice, for people.
        repair: What ``repair`` does about it; empty if nothing.
        repaired: Whether the repair was done.
    """

    kind: Kind
    object: str
    meaning: str
    repair: str = ""
    repaired: bool = False

    def __str__(self) -> str:
        remedy = f"; {'repaired' if self.repaired else 'repair'}: {self.repair}" if self.repair else ""
        return f"{self.kind.value}: {self.object}: {self.meaning}{remedy}"


@attrs.frozen
class FsckReport(Shown):
    """The findings of ``fsck``, with the numbers of checked objects."""

    findings: tuple[Finding, ...]
    entries: int
    directories: int
    tables: int = 0

    def __str__(self) -> str:
        looked = [f"{self.entries} entries", f"{self.directories} directories"]
        looked += [f"{self.tables} tables"] if self.tables else []
        head = f"{' and '.join(looked)}: {len(self.findings)} findings"
        return "\n".join([head, *(f"  {finding}" for finding in self.findings)])


@attrs.frozen
class Fsck:
    """One check of a catalog's entries and directories.

    Attributes:
        ledger: The entries.
        places: The directories.
        removal: Removes tables and leftovers, and finds the clones.
        remove_unwritten: Removes a table without a version; see `Tables.remove_unwritten`.
        purge: Removes a dropped table; see `DroppedTables.complete`.
        grace: See `Upkeep.fsck`.
        remove_tables: See `Upkeep.fsck`.
        now: A clock.
    """

    ledger: Ledger
    places: Places
    removal: Removal
    remove_unwritten: Callable[[Table, Callable[[], bool]], bool]
    purge: Callable[[DropRecord], object]
    grace: timedelta
    remove_tables: bool = False
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def run(self, *, repair: bool) -> FsckReport:
        """Check everything; with ``repair``, repair what can be repaired without loss."""
        require_span(self.grace)
        directories = list(self._directories(""))  # listed first, so that new tables are not reported
        view = self.ledger.view()
        entries = list(view.descendants(ObjectId()))
        dropped = [entry for entry in entries if is_record(entry)]
        entries = [entry for entry in entries if not is_record(entry)]
        located = {posixpath.normpath(entry.location) for entry in (*entries, *dropped) if entry.location}
        found = [
            *_without_names(view.unnamed),
            *_misfits(entries),
            *self._of_entries(entry for entry in entries if entry.object_type == TABLE and not entry.listed),
            *self._of_dropped(view, dropped),
            *self._of_directories(directories, located),
        ]
        findings = self._needed(found, located)
        clones = list(self._of_clones(entry for entry in entries if entry.object_type == TABLE))
        leftovers = self._of_manifest()
        if repair:
            if leftovers:
                self.ledger.apply(lambda view: ([SetProperties({})], None))
            findings = [self._repaired(finding) for finding in findings]
            clones = [(table, self._removed_clone(table, finding)) for table, finding in clones]
            leftovers = self._removed(leftovers)
        unfinished = (finding for _, finding in clones)
        return FsckReport((*findings, *unfinished, *leftovers.values()), len(entries), len(directories))

    def _of_entries(self, entries: Iterable[ManifestEntry]) -> Iterator[Finding]:
        """Yield findings on single tables and their directories."""
        for entry in entries:
            if entry.defect is not None:
                continue
            name = str(ObjectId.from_key(entry.object_id))
            try:
                table = Table.from_entry(entry)
                location = table.location
                linked = self.places.objects.passes_link(self._key(location), self.places.root_key)
                is_lost = not (
                    linked
                    or self.places.is_occupied(table)
                    or self.ledger.may_be_empty(self.places.dataset_root(table))
                )
            except (Damaged, InvalidInput) as error:
                yield Finding(Kind.UNUSABLE, name, str(error))
                continue
            if linked:
                meaning = f"a symbolic link leads to its directory {location!r}; put the directory itself there"
                yield Finding(Kind.UNUSABLE, name, meaning)
            elif is_lost:
                meaning = f"its directory {location!r} holds nothing; write its first version, or drop it"
                yield Finding(Kind.DANGLING, name, meaning)
            elif v1_table(location) == ObjectId.from_key(entry.object_id) and (marker := self._hiding(location)):
                meaning = f"a marker hides the table {name} from V1 readers: its removal was begun and not finished"
                yield self._unless_young(Finding(Kind.HIDDEN, location, meaning, "remove the marker"), [marker])

    def _of_dropped(self, view: CatalogView, records: Iterable[ManifestEntry]) -> Iterator[Finding]:
        """Yield findings on records of dropped tables; the object of a finding is the id of its record."""
        repair = "remove the record"
        for entry in records:
            try:
                dropped = DropRecord.from_entry(entry)
                holds = next(self.places.objects.list(f"{self._key(dropped.location)}/"), None) is not None
            except (Damaged, InvalidInput) as error:
                yield Finding(Kind.BROKEN_RECORD, entry.object_id, str(error), repair)
                continue
            name = f"the dropped table {dropped.id} ({dropped.drop})"
            if dropped.is_purging:
                meaning = f"the removal of the files of {name} was begun; unless it is in progress, purge it again"
                yield Finding(Kind.UNFINISHED_PURGE, entry.object_id, meaning, "complete the purge")
            elif is_at(view, dropped.location):
                meaning = f"another process has registered the directory {dropped.location!r} of {name}"
                yield Finding(Kind.BROKEN_RECORD, entry.object_id, meaning, repair)
            elif not holds:
                meaning = f"the directory {dropped.location!r} of {name} holds nothing, so it cannot be brought back"
                yield Finding(Kind.BROKEN_RECORD, entry.object_id, meaning, repair)

    def _without_record(self, finding: Finding) -> Finding:
        """Remove the record of a dropped table if it is still broken, and return the finding."""

        def decide(view: CatalogView) -> tuple[list[Change], bool]:
            entry = view.find(finding.object)
            still = entry is not None and finding in self._of_dropped(view, [entry])
            return ([Remove(finding.object)] if still else []), still

        return attrs.evolve(finding, repaired=self.ledger.apply(decide))

    def _of_clones(self, entries: Iterable[ManifestEntry]) -> Iterator[tuple[Table, Finding]]:
        """Yield findings on deep clones that were stopped, or are in progress, with their tables."""
        for entry in entries:
            with suppress(Damaged, InvalidInput, CommitStoreMismatch):  # other findings report those
                table = Table.from_entry(entry)
                self.places.dataset_root(table)
                finding, _ = self._unfinished(table)
                if finding is not None:
                    yield table, finding

    def _unfinished(self, table: Table) -> tuple[Finding | None, BegunClone | None]:
        """Return the finding on an unfinished deep clone and the clone; None if the table is none.

        Repair removes the clone only if this clone wrote every file.
        """
        begun = UnfinishedClones(self.ledger, self.places).find(table)
        if begun is None:
            return None, None
        below = f"{self.places.key(table)}/"
        infos = list(self.places.objects.list(below))
        others = [path for info in infos if not begun.may_have_written(path := info.key.removeprefix(below))]
        meaning = (
            f"a deep clone of version {begun.version} of the table at {begun.source!r} has no version yet. Unless it "
            "is in progress, complete it by the same call of clone, or remove it by drop_table"
        )
        if others:
            meaning += f". Repair leaves it, because the clone did not write {others[0]!r}"
        found = Finding(Kind.UNFINISHED_CLONE, str(table.id), meaning, "" if others else "remove the table")
        return self._unless_young(found, [*infos, *self.places.objects.unfinished(below)]), begun

    def _of_directories(self, directories: Iterable[str], located: set[str]) -> Iterator[Finding]:
        """Yield findings on directories without an entry, at any depth above a table."""
        above = {directory for location in located for directory in ancestors(location)} - located
        waiting = [iter(directories)]  # not recursive, because a location may have thousands of levels
        while waiting:
            directory = next(waiting[-1], None)
            if directory is None:
                waiting.pop()
            elif directory in above:
                waiting.append(self._directories(directory))
            elif directory not in located:
                finding, _ = self._unreferenced(directory)
                # A user's empty directory is not reported, nor is a fence that is to stay.
                if finding.kind not in (Kind.EMPTY, Kind.FENCE) or finding.repair:
                    yield finding

    def _needed(self, findings: Sequence[Finding], located: set[str]) -> list[Finding]:
        """Return the findings, without repair for directories that remaining clones read."""
        readers: dict[str, str] = {}
        if any(finding.kind in _TABLES and finding.repair for finding in findings):
            doomed = {finding.object for finding in findings if finding.kind in _TABLES and finding.repair}
            readers = self.removal.clones.protected(doomed, {*located, *self.removal.clones.unowned_datasets(located)})
        for finding in findings:
            if finding.kind is Kind.UNREFERENCED and finding.repair:
                recorded = self.removal.clones.recorded_readers(finding.object)
                if recorded:
                    readers[finding.object] = recorded[0]
        return [self._unless_read(finding, readers.get(finding.object)) for finding in findings]

    def _unless_read(self, finding: Finding, reader: str | None) -> Finding:
        if reader is None or not finding.repair:
            return finding
        meaning = f"{finding.meaning}. Its files stay, because the clone {reader!r} reads them"
        return attrs.evolve(finding, meaning=meaning, repair="")

    def _of_manifest(self) -> dict[str, Finding]:
        """Return findings on files of the manifest table, by their keys.

        A file may belong to a version that is about to be published, or that a writer decided in a commit store before
        it crashed. So ``run`` commits an empty change before it removes anything. A decided version is published before
        that change. An undecided version conflicts with it, however long its writer is delayed.
        """
        findings = {}
        for info in self.ledger.manifest.leftovers():
            path = info.key.removeprefix(self.places.prefix)
            meaning = "no version of the catalog's own table needs it: an operation that was stopped left it"
            found = Finding(Kind.LEFTOVER, path, meaning, "remove the file")
            if foreign_files([path.removeprefix(f"{MANIFEST_DIRECTORY}/")]):
                found = Finding(Kind.FOREIGN_FILE, path, "neither Lance nor Lancekeep wrote it; repair leaves it")
            findings[info.key] = self._unless_young(found, [info])
        return findings

    def _removed(self, leftovers: Mapping[str, Finding]) -> dict[str, Finding]:
        """Remove the files that are still leftovers, and return the findings."""
        still = {info.key for info in self.ledger.manifest.leftovers()}
        done = {key for key, finding in leftovers.items() if finding.repair and key in still}
        for key in done:
            self.places.objects.delete(key)
            directory = posixpath.dirname(key)
            if posixpath.basename(directory) not in DIRECTORIES:  # such as the directory of an index
                self.places.objects.prune(directory)
        return {key: attrs.evolve(finding, repaired=key in done) for key, finding in leftovers.items()}

    def _unreferenced(self, directory: str) -> tuple[Finding, list[str]]:
        """Classify a directory to which no entry refers.

        Repair removes a directory only if Lance or Lancekeep wrote it: every file must be known, and at least one must
        prove it.

        Returns:
            The finding, and the keys of the directory's objects.
        """
        key = f"{self._key(directory)}/"
        infos = [*self.places.objects.list(key), *self.places.objects.unfinished(key)]
        names = [info.key[len(key) :] for info in infos]
        foreign = foreign_files(names)
        own_name = _HASHED.fullmatch(directory) is not None or v1_table(directory) is not None
        if not infos:
            return Finding(Kind.EMPTY, directory, "it holds no object", "remove the directory" if own_name else ""), []
        if MOVED_MARKER in names:
            meaning = "the table that was here has moved; the fence refuses writers that opened it before"
            repair = "remove the directory" if self.remove_tables and not foreign else ""
            found = Finding(Kind.FENCE, directory, meaning, repair)
        elif MOVING_MARKER in names and not foreign and self._still_at_its_source(key, names):
            meaning = "the copy of a table that a rename left when it was stopped; the table is at its former place"
            found = Finding(Kind.UNREFERENCED, directory, meaning, "remove the directory")
        elif any(name.startswith((f"{VERSIONS}/", f"{BRANCHES}/")) and _is_committed(name) for name in names):
            kind = Kind.DEREGISTERED if DEREGISTERED_MARKER in names else Kind.UNREGISTERED
            meaning = "a table that no entry refers to; register_table enters it (V1 tables: migrate does, too)"
            if foreign:
                meaning += f". It is never removed as a whole: {_described(foreign)}"
            found = Finding(kind, directory, meaning, "remove the table" if self.remove_tables and not foreign else "")
        elif foreign:
            meaning = f"no entry refers to it, and repair leaves it: {_described(foreign)}"
            return Finding(Kind.FOREIGN, directory, meaning), []
        elif own_name or all(map(is_own, names)):
            meaning = (
                "no entry refers to it, and it is no table: an operation that lost or was stopped left the directory"
            )
            repair = "remove the directory" if any(map(is_mark, names)) else ""
            found = Finding(Kind.UNREFERENCED, directory, meaning, repair)
        else:
            meaning = "no entry refers to it, and the name is not one that a catalog gives"
            return Finding(Kind.FOREIGN, directory, meaning), []
        return self._unless_young(found, infos), [info.key for info in infos]

    def _still_at_its_source(self, key: str, names: Iterable[str]) -> bool:
        """Return whether the source of a copied table has all versions of the copy.

        The source must also be in the catalog. The marker alone is not sufficient: the table may have moved and been
        deregistered, and another table may have its old name.
        """
        content = self._content(f"{key}{MOVING_MARKER}")
        source = (content or b"").decode(errors="replace")
        if not is_at(self.ledger.view(), source):
            return False
        copied = filter(_is_committed, names)
        return all(self._content(f"{self._key(source)}/{name}") == self._content(f"{key}{name}") for name in copied)

    def _content(self, key: str) -> bytes | None:
        try:
            return self.places.objects.get(key)
        except ObjectNotFound:
            return None

    # -- repair -------------------------------------------------------------------------------------------------

    def _repaired(self, finding: Finding) -> Finding:
        """Repair a finding that still holds, and return it. The catalog is read last."""
        if not finding.repair:
            return finding
        directory = finding.object
        if finding.kind is Kind.BROKEN_RECORD:
            return self._without_record(finding)
        if finding.kind is Kind.UNFINISHED_PURGE:
            entry = self.ledger.view().find(finding.object)
            with suppress(Refused, TableNotFound, Damaged):  # another process completes it, or a clone prevents it
                if entry is not None:
                    self.purge(DropRecord.from_entry(entry))
                    return attrs.evolve(finding, repaired=True)
            return finding
        if finding.kind is Kind.HIDDEN:
            if not is_at(self.ledger.view(), directory):
                return finding
            self.places.objects.delete(f"{self._key(directory)}/{DEREGISTERED_MARKER}")
        else:
            found, keys = self._unreferenced(directory)
            view = self.ledger.view()
            if found != finding or view.owner_of(directory) is not None:
                return finding
            if any(is_held(view, reader) for reader in self.removal.clones.recorded_readers(directory)):
                return finding
            table = Table(ObjectId((directory,)), directory, {})
            if finding.kind is Kind.UNREFERENCED:
                self.removal.remove_leftovers(table, keys)
            elif finding.kind is not Kind.EMPTY:
                self.removal.remove(table)
            else:  # do not list objects: a writer may just have created one
                self.places.objects.prune(self._key(directory))
                if directory in self._directories(posixpath.dirname(directory)):
                    return finding  # an object, or a file that is no object, lies in it
        return attrs.evolve(finding, repaired=True)

    def _removed_clone(self, table: Table, finding: Finding) -> Finding:
        """Remove an unfinished clone if it is still there as it was found, and return the finding."""
        if not finding.repair:
            return finding
        with suppress(TableNotFound):
            found, begun = self._unfinished(table)
            if found == finding and find_table(self.ledger.view(), table.id).location == table.location:
                removed = self.remove_unwritten(table, lambda: self.places.begun_clone(table) == begun)
                return attrs.evolve(finding, repaired=removed)
        return finding

    def _unless_young(self, finding: Finding, infos: Sequence[ObjectInfo]) -> Finding:
        return unless_young(finding, infos, self.grace, self.now())

    # -- places -------------------------------------------------------------------------------------------------

    def _hiding(self, location: str) -> ObjectInfo | None:
        return self.places.objects.head(f"{self._key(location)}/{DEREGISTERED_MARKER}")

    def _directories(self, above: str) -> Iterator[str]:
        key = self._key(above)
        names = self.places.objects.directories(f"{key}/" if key else "")
        return (f"{above}/{name}".lstrip("/") for name in names if above or name not in OWN_DIRECTORIES)

    def _key(self, location: str) -> str:
        return self.places.prefix + location if location else self.places.root_key


def require_span(span: timedelta, name: str = "grace") -> None:
    """Raise `InvalidInput` for a negative time span."""
    if span < timedelta(0):
        raise InvalidInput(f"{name} is {span}; it is a time span, at least 0")


def unless_young(finding: Finding, infos: Sequence[ObjectInfo], grace: timedelta, now: datetime) -> Finding:
    """Return the finding, without its repair if an object is young.

    An object of unknown age counts as young.
    """
    if not finding.repair or not grace:
        return finding
    if all(info.modified is not None and info.modified <= now - grace for info in infos):
        return finding
    meaning = f"{finding.meaning} (it is younger than {grace}, so a writer may still be running)"
    return attrs.evolve(finding, meaning=meaning, repair="")


def _without_names(rows: int) -> Iterator[Finding]:
    if rows:
        meaning = (
            f"{rows} rows without an object id or an object type; they are no entries. Remove them with pylance: "
            'delete("object_id IS NULL OR object_type IS NULL")'
        )
        yield Finding(Kind.MALFORMED, MANIFEST_DIRECTORY, meaning)


def _misfits(entries: Iterable[ManifestEntry]) -> Iterator[Finding]:
    """Yield findings on inconsistent entries, which native writers can make."""
    entries = list(entries)
    namespaces = {entry.object_id for entry in entries if entry.object_type == NAMESPACE}
    owners: dict[str, str] = {}
    seen: set[str] = set()
    for entry in entries:
        name = ObjectId.from_key(entry.object_id)
        if entry.defect is not None:
            yield Finding(Kind.MALFORMED, str(name), entry.defect)
            continue
        if entry.object_id in seen:
            yield Finding(Kind.DUPLICATE, str(name), "more than one entry has it; drop it and register its table again")
        seen.add(entry.object_id)
        if not name.parent.is_root and name.parent.key not in namespaces:
            yield Finding(Kind.ORPHAN, str(name), f"there is no namespace {name.parent}; create it, or drop {name}")
        if entry.location:
            location = posixpath.normpath(entry.location)
            if location in owners:
                yield _overlap(name, owners[location], location)
            owners.setdefault(location, entry.object_id)
    for location, object_id in owners.items():
        for directory in ancestors(location.rpartition("/")[0]):
            if directory in owners:
                yield _overlap(ObjectId.from_key(object_id), owners[directory], location)


def _overlap(name: ObjectId, other: str, location: str) -> Finding:
    meaning = (
        f"its directory {location!r} belongs to {ObjectId.from_key(other)}, or lies in it: dropping one removes files "
        "of both; deregister one of them"
    )
    return Finding(Kind.OVERLAP, str(name), meaning)


def _described(foreign: Sequence[str]) -> str:
    count = "1 file" if len(foreign) == 1 else f"{len(foreign)} files"
    return f"it holds {count} that neither Lance nor Lancekeep wrote, {foreign[0]!r} for example"


def _is_committed(name: str) -> bool:
    """Return whether a file is a final manifest of a table or branch."""
    directory, _, file_name = name.rpartition("/")
    parsed = ManifestName.parse(file_name)
    return posixpath.basename(directory) == VERSIONS and parsed is not None and not parsed.is_staged
