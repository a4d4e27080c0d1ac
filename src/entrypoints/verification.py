"""Verify that all files and rows of tables exist and can be read.

Storage layout, "Data Files" and "Deletion Files". The metadata of a version is decoded by Lancekeep. The footers of its
data files, or with ``deep`` all values, are read by the table engine in a child process, because the engine aborts its
process on some contents. `lancekeep.jobs.verify` divides the same work among the executors of Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from threading import Lock
from time import monotonic
from typing import Any
from uuid import uuid4

import attrs
import lance
from lance.file import LanceFileSession

from lancekeep.adapters.lance.batches import READ_AHEAD
from lancekeep.adapters.lance.panics import is_panic
from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.rows.digests import Digests, Recorded
from lancekeep.application.upkeep.directory import Directory
from lancekeep.application.upkeep.examination import Kept, Unreadable, contradiction, examine, kept_versions
from lancekeep.application.upkeep.file_checks import FileChecks, FileFault, Version
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.application.upkeep.named_files import named_files
from lancekeep.domain.errors import Damaged, InvalidInput, LancekeepError, NotFound
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.notebook import Shown
from lancekeep.domain.table import DIGESTS_DIRECTORY, Table
from lancekeep.entrypoints.hashing import HashedFile, difference, hashed_file
from lancekeep.entrypoints.index_verification import IndexCounts, VerifiedIndex, compared_indexes
from lancekeep.entrypoints.isolation import Crashed, Isolation
from lancekeep.entrypoints.scanning import batch_rows
from lancekeep.format.table_version import TableVersion

_FRAGMENTS_OF_A_TASK, _FILES_OF_A_TASK = 16, 16
_FEW_ROWS = 1024
_INDEXES = "indexes"
_POSITION = re.compile(r",? /\S+\.rs:\d+:\d+")
_OWN_FOOTER = 2
"""The first major version of data files whose footer states the number of rows."""

_CACHED = 32 << 20
"""The bytes of metadata that the engine keeps. Its default is 1 GB, but each file is read once."""

Options = tuple[tuple[str, str], ...]
Task = Callable[["Work"], "Found"]
Runner = Callable[[str, Sequence["Work"], Task], Iterable["Found | Crashed"]]


def _quiet(done: int, total: int, name: str) -> None:
    """Ignore progress."""


@attrs.frozen
class Problem:
    """A difference between a table and its manifest.

    Attributes:
        table: The table; ``table@branch`` for a branch.
        object: A file of the table, a fragment, or "" for the table itself. It begins with ``version N:`` for a
            fragment that only an older or detached version has.
        reason: What is wrong.
        fragment: The fragment of the latest version of the table that cannot be read for this reason, if one is
            concerned.
    """

    table: str
    object: str
    reason: str
    fragment: int | None = None


@attrs.frozen
class VerifiedTable(Shown):
    """The readable contents of the latest version of a table or branch.

    Attributes:
        table: The table; ``table@branch`` for a branch.
        version: The version.
        rows: The rows that were counted.
        fragments: The fragments.
        files: The data files.
        bytes: The size of the data files.
        digests: The number of files of all versions of the table that were compared with recorded digests.
        undigested: The number of files of these versions that have no recorded digest, if another file has one, or the
            property ``lancekeep.digests`` is set.
        unrecorded: The versions among these whose manifests have no recorded digest, likewise.
        indexes: The indexes of the table or branch, if they were to be compared.
        index_counts: How many of these were compared and by how many values; None if they were not to be compared.
    """

    table: str
    version: int
    rows: int
    fragments: int
    files: int
    bytes: int
    digests: int = 0
    undigested: int = 0
    unrecorded: tuple[int, ...] = ()
    indexes: tuple[VerifiedIndex, ...] = ()
    index_counts: IndexCounts | None = None


@attrs.frozen
class Verification(Shown):
    """The result of a verification.

    Attributes:
        tables: The tables and branches that were checked.
        problems: What is wrong.
        seconds: The duration.
        index_counts: The sums of the tables' counts of compared indexes; None if they were not to be compared.
    """

    tables: tuple[VerifiedTable, ...]
    problems: tuple[Problem, ...]
    seconds: float
    index_counts: IndexCounts | None = None

    def __str__(self) -> str:
        rows, size = sum(table.rows for table in self.tables), sum(table.bytes for table in self.tables)
        indexes = "" if self.index_counts is None else f", {self.index_counts}"
        return (
            f"{len(self.tables):,} tables, {rows:,} rows, {size / 1e6:,.1f} MB{indexes} in {self.seconds:.1f} s: "
            f"{len(self.problems):,} problems"
        )


def verify(
    catalog: Catalog,
    tables: Iterable[Identifier] | None = None,
    *,
    deep: bool = False,
    digests: bool = True,
    indexes: bool = False,
    threads: int | None = None,
    progress: Progress = _quiet,
) -> Verification:
    """Check the versions of tables to which a reader has a reference.

    Nothing is written. The versions are the latest version of each table and branch, tagged versions, versions at which
    branches begin, and detached versions. Every data, deletion and index file that their manifests name must exist,
    data files with the recorded size and number of rows. The memory use hardly depends on the size of the tables.
    Writers may continue, because later versions are ignored. If clean-up removes a version during the run, it is
    reported as a problem.

    Args:
        catalog: The catalog.
        tables: The tables; by default all of the catalog.
        deep: Also read every value.
        digests: Compare all files that have recorded digests (`lancekeep.digest`), which reads them whole.
        indexes: Also compare every index with the rows.
        threads: The number of files to read at a time; by default 8, or 1 for each CPU with ``deep``.
        progress: Called with the number of examined tables, then with the number of finished groups of fragments.

    Raises:
        TableNotFound: One of ``tables`` does not exist.
        InvalidInput: A table name is invalid.
    """
    most = threads or (os.cpu_count() or 1 if deep else 8)

    def in_a_child(name: str, work: Sequence[Work], task: Task) -> Iterator[Found | Crashed]:
        with Isolation(task, most) as child:
            for done, found in enumerate(child.run(work)):
                progress(done, len(work), f"verify: {name}")
                yield found

    return verify_by(in_a_child, catalog, tables, deep=deep, digests=digests, indexes=indexes, progress=progress)


def verify_by(
    run: Runner,
    catalog: Catalog,
    tables: Iterable[Identifier] | None,
    *,
    deep: bool,
    digests: bool,
    indexes: bool,
    progress: Progress,
) -> Verification:
    """Verify tables as `verify` does, by another runner.

    ``run`` yields in order the result of each task, or how the process of the task crashed.
    """
    began = monotonic()
    own = directory_of(catalog, "verify")
    own.recorder.flush()
    chosen = list(map(ObjectId.of, tables)) if tables is not None else list(catalog.list_all_tables())
    report = _Report(digests, indexes)
    work: list[Work] = []
    for at, table in enumerate(chosen):
        progress(at, len(chosen), f"examining {table}")
        try:
            work += report.open(own, table, partial(_tell, progress, at, len(chosen), table))
        except LancekeepError as error:
            if tables is not None and isinstance(error, InvalidInput | NotFound):
                raise
            report.add_problem(Problem(str(table), "", _line(error)))
    task, name = partial(look, deep=deep), f"{len(chosen)} tables"
    while work:
        crashed = [part for part, found in zip(work, run(name, work, task), strict=True) if not report.add(part, found)]
        work = [alone for part in crashed for alone in part.divided()]
    told = sorted(report.problems, key=lambda problem: (problem.table, problem.object, problem.reason))
    counts = IndexCounts.of(each for table in report.tables.values() for each in table.indexes) if indexes else None
    return Verification(tuple(report.tables.values()), tuple(told), monotonic() - began, counts)


def _tell(progress: Progress, done: int, total: int, table: ObjectId, count: int) -> None:
    progress(done, total, f"examining {table}, {count:,} files")


@attrs.frozen
class VersionSource:
    """A version for tasks to open, without a catalog; can be pickled.

    Tasks of one ``run`` share an opened version. Another run opens it again: the engine keeps what it has read.
    """

    uri: str
    version: int
    branch: str
    storage_options: Options = attrs.field(repr=False)
    run: str

    @property
    def options(self) -> dict[str, str] | None:
        return dict(self.storage_options) or None

    def open(self) -> Any:
        """Open the version."""
        version = None if self.branch else self.version
        opened = lance.dataset(
            self.uri, version=version, storage_options=self.options, metadata_cache_size_bytes=_CACHED
        )
        return opened.checkout_version((self.branch, self.version)) if self.branch else opened


@attrs.frozen
class Work:
    """Some fragments of a version.

    Attributes:
        table: The name of the table or branch.
        source: The version.
        fragments: The ids of the fragments.
        is_latest: Whether the version is the latest, so that its rows are counted.
        can_drop: Whether `drop_fragments` can remove a fragment of it.
        files: Files to compare with their digests.
        indexes: Whether to compare the indexes with the rows.
    """

    table: str
    source: VersionSource
    fragments: tuple[int, ...]
    is_latest: bool
    can_drop: bool
    files: tuple[HashedFile, ...] = ()
    indexes: bool = False

    def divided(self) -> Iterator[Work]:
        """Yield the work on each fragment."""
        return (attrs.evolve(self, fragments=(number,)) for number in self.fragments)


@attrs.frozen
class Found:
    """What a task found.

    A problem is a file, fragment or index, a reason, and the fragment that cannot be read.
    """

    rows: int
    problems: tuple[tuple[str, str, int | None], ...]
    indexes: tuple[VerifiedIndex, ...] = ()


class _Report:
    """The report, which the driver builds."""

    def __init__(self, digests: bool, indexes: bool) -> None:
        self._compares = digests
        self._indexes = indexes
        self._run = uuid4().hex
        self.tables: dict[str, VerifiedTable] = {}
        self.problems: set[Problem] = set()
        self._objects: set[tuple[str, str]] = set()

    def add_problem(self, problem: Problem) -> None:
        """Add a problem, unless one of the same object is known."""
        if (problem.table, problem.object) not in self._objects:
            self._objects.add((problem.table, problem.object))
            self.problems.add(problem)

    def open(self, own: Directory, table: ObjectId, tell: Callable[[int], object]) -> list[Work]:
        """Check the metadata of a table, and return the work for the tasks."""
        entry = own.tables.find(table)
        root = own.places.dataset_root(entry)
        examined: list[Kept] = []
        for kept in kept_versions(own.commits, root):
            if isinstance(kept, Unreadable):
                self.add_problem(Problem(str(table), kept.object.removeprefix(f"{root.key}/"), _text(kept.reason)))
                continue
            try:
                decoded = examine(own.commits, kept.version)
                if found := contradiction(own.commits, kept.version, decoded):
                    path = kept.version.key.removeprefix(f"{root.key}/")
                    reason = f"it differs from the version before it or from its transaction file: {found}"
                    self.add_problem(Problem(_named(table, kept), path, reason))
                examined.append(kept)
            except LancekeepError as error:
                name = _named(table, kept)
                self.add_problem(Problem(name, kept.version.key.removeprefix(f"{root.key}/"), _line(error)))
        unreadable = self._check_files(own, table, root, examined, tell)
        read, work = set[int](), list[Work]()
        options = tuple(own.places.storage_options.items())
        for kept in examined:  # decoded again, because several large manifests do not fit into memory
            content = own.commits.retry.call(partial(own.commits.objects.get, kept.version.key))
            version, name = TableVersion.parse(content, kept.version.key), _named(table, kept)
            uri = own.places.uri_at(root)
            source = VersionSource(uri, kept.version.number, kept.branch, options, self._run)
            if kept.is_latest:
                self.tables[name] = _described(name, version)
            ids = []
            for fragment in version.manifest.fragments:
                known = hash((kept.branch, fragment.files, fragment.deletion_file))
                if known not in read and (kept.version, fragment.id) not in unreadable:
                    ids.append(fragment.id)
                if len(examined) > 1:
                    read.add(known)
            if kept.is_latest and self._indexes:
                work.append(Work(name, source, (), True, False, indexes=True))
            starts, droppable = range(0, len(ids), _FRAGMENTS_OF_A_TASK), kept.is_latest and not kept.branch
            parts = (tuple(ids[at : at + _FRAGMENTS_OF_A_TASK]) for at in starts)
            work += (Work(name, source, part, kept.is_latest, droppable) for part in parts)
        if self._compares:
            work += self._comparisons(own, entry, root, examined, options)
        return work

    def _comparisons(
        self, own: Directory, entry: Table, root: DatasetRoot, kept: Sequence[Kept], options: Options
    ) -> Iterator[Work]:
        """Yield the work on files that have recorded digests."""
        table = entry.id
        records = Digests(own.commits.objects, own.commits.retry)

        @cache
        def recorded(history: str) -> Recorded:
            try:
                return records.recorded(history)
            except Damaged as error:
                self.add_problem(Problem(str(table), DIGESTS_DIRECTORY, _line(error)))
                return {}

        histories = dict.fromkeys((root.key, *(each.version.root.key for each in kept)))
        if not any(map(recorded, histories)) and not own.recorder.wants(entry):
            return
        checks = FileChecks(own.removal.clones)
        chosen, without = list[HashedFile](), set[str]()
        for file in named_files(checks, root, kept, own.commits.objects.list(f"{root.key}/")):
            digests = recorded(file.history).get(file.name, ())
            if not digests and file.source is not None:
                digests = recorded(file.source.history).get(file.source.name, ())
            if not digests:
                without.add(file.key)
            elif file.size not in {digest.size for digest in digests}:
                sizes = " or ".join(f"{digest.size:,}" for digest in digests)
                reason = f"the file has {file.size:,} bytes; its recorded digest is of {sizes}"
                self.add_problem(Problem(str(table), file.key.removeprefix(f"{root.key}/"), reason))
            else:
                expected = tuple(digest for digest in digests if digest.size == file.size)
                chosen.append(hashed_file(own.places, root, file, expected))
        if (told := self.tables.get(str(table))) is not None:
            self.tables[str(table)] = attrs.evolve(told, digests=len(chosen), undigested=len(without))
        for each in kept:
            if each.version.key in without and (told := self.tables.get(_named(table, each))) is not None:
                unrecorded = (*told.unrecorded, each.version.number)
                self.tables[told.table] = attrs.evolve(told, unrecorded=unrecorded)
        source = VersionSource(own.places.uri_at(root), 0, "", options, self._run)
        for at in range(0, len(chosen), _FILES_OF_A_TASK):
            yield Work(str(table), source, (), True, False, tuple(chosen[at : at + _FILES_OF_A_TASK]))

    def _check_files(
        self, own: Directory, table: ObjectId, root: DatasetRoot, kept: Sequence[Kept], tell: Callable[[int], object]
    ) -> set[tuple[Version, int]]:
        """Compare manifests with a listing of the files, and decode deletion files.

        Returns:
            The fragments with a damaged deletion file, which the engine must not read.
        """
        by_version, unreadable = {each.version: each for each in kept}, set[tuple[Version, int]]()
        for fault in FileChecks(own.removal.clones).faults(root, list(by_version), tell):
            version = by_version[fault.version]
            can_drop, name = version.is_latest and not version.branch, _named(table, version)
            fragment = fault.fragment if can_drop else None
            path = fault.key.removeprefix(f"{root.key}/").rstrip("/")
            self.add_problem(Problem(name, path, _reason(fault), fragment))
            if fault.fragment is not None and "_deletions/" in fault.key:
                unreadable.add((fault.version, fault.fragment))
                reason = f"its deletion file {'is not there' if fault.missing else 'is damaged'}"
                self.add_problem(Problem(name, _place(version, fault.fragment), reason, fragment))
        return unreadable

    def add(self, work: Work, found: Found | Crashed) -> bool:
        """Add the result of a task; return False if its fragments have to be read one by one."""
        if isinstance(found, Crashed):
            if len(work.fragments) > 1:
                return False
            reason = f"the table engine cannot read it: {found.reason}"
            places: Iterable[tuple[str, int | None]]
            places = (
                [(f"fragment {number}", number) for number in work.fragments] if work.fragments else [(_INDEXES, None)]
            )
            found = Found(0, tuple((place, reason, number) for place, number in places))
        for where, reason, number in found.problems:
            of_version = (
                "" if work.is_latest or not where.startswith("fragment") else f"version {work.source.version}: "
            )
            fragment = number if work.can_drop else None
            self.add_problem(Problem(work.table, of_version + where, reason, fragment))
        table = self.tables.get(work.table)
        if table is not None and work.indexes:
            counts = IndexCounts.of(found.indexes)
            self.tables[work.table] = attrs.evolve(table, indexes=found.indexes, index_counts=counts)
        elif table is not None and work.is_latest:
            self.tables[work.table] = attrs.evolve(table, rows=table.rows + found.rows)
        return True


def _described(name: str, version: TableVersion) -> VerifiedTable:
    files = size = 0
    for fragment in version.manifest.fragments:
        files += len(fragment.files)
        size += sum(file.file_size_bytes for file in fragment.files)
    return VerifiedTable(name, version.manifest.version, 0, len(version.manifest.fragments), files, size)


def _named(table: ObjectId, kept: Kept) -> str:
    return f"{table}@{kept.branch}" if kept.branch else str(table)


def _place(kept: Kept, fragment: int) -> str:
    return f"fragment {fragment}" if kept.is_latest else f"version {kept.version.number}: fragment {fragment}"


def _reason(fault: FileFault) -> str:
    return "the file is not there" if fault.missing else f"the file {_text(fault.reason)}"


# -- in the tasks ---------------------------------------------------------------------------------------------------

_opening = Lock()


def look(work: Work, *, deep: bool) -> Found:
    """Read the footers of some fragments, or with ``deep`` all values."""
    rows = 0
    problems: list[tuple[str, str, int | None]] = []
    indexes: list[VerifiedIndex] = []
    for file in work.files:
        reason = difference(file)
        if reason:
            problems.append((file.name, reason, None))
    if not work.fragments and not work.indexes:
        return Found(0, tuple(problems))
    try:
        with _opening:
            dataset = _opened(work.source)
    except BaseException as error:
        return Found(0, (("", _engine_error(error), None),))
    if work.indexes:
        try:
            for index, reason in compared_indexes(dataset, _unwatched):
                indexes.append(index)
                if reason:
                    problems.append((f"index {index.name}", reason, None))
        except BaseException as error:
            problems.append((_INDEXES, _engine_error(error), None))
    session = LanceFileSession(dataset.uri, work.source.options)
    for number in work.fragments:
        try:
            fragment = dataset.get_fragment(number)
            metadata = fragment.metadata
            expected = (metadata.physical_rows or 0) - (metadata.num_deletions or 0)
            fragment.validate()
            found = _read(dataset, fragment) if deep else fragment.count_rows()
        except BaseException as error:
            problems.append((f"fragment {number}", _engine_error(error), number))
            problems += _faulty_files(session, metadata, deep)
        else:
            rows += found
            if found != expected:
                problems.append(
                    (f"fragment {number}", f"it has {found:,} rows; its manifest says {expected:,}", number)
                )
    return Found(rows, tuple(problems), tuple(indexes))


def _unwatched(index: str) -> None:
    """Ignore progress: the child reports whole tasks."""


@lru_cache(2)
def _opened(source: VersionSource) -> Any:
    """Open a version once for all of its fragments, because its manifest may be large."""
    return source.open()


def _faulty_files(session: LanceFileSession, fragment: Any, deep: bool) -> Iterator[tuple[str, str, int]]:
    """Yield the data files of an unreadable fragment that cannot be read by themselves."""
    for file in fragment.files:
        if file.base_id is not None or file.file_major_version < _OWN_FOOTER:
            continue
        try:
            reader = session.open_reader(f"data/{file.path}")
            found = reader.num_rows()
            if deep:
                for _ in reader.read_all(batch_size=_FEW_ROWS, batch_readahead=2).to_batches():
                    pass
        except BaseException as error:
            yield f"data/{file.path}", _engine_error(error), fragment.id
        else:
            if found != fragment.physical_rows:
                reason = f"the file has {found:,} rows; its manifest says {fragment.physical_rows:,}"
                yield f"data/{file.path}", reason, fragment.id


def _engine_error(error: BaseException) -> str:
    """Return the text of an engine's error; raise any other error. The engine panics on some contents."""
    if not isinstance(error, Exception) and not is_panic(error):
        raise error
    return _line(error)


def _read(dataset: Any, fragment: lance.LanceFragment) -> int:
    rows = batch_rows(dataset.schema, dataset.schema.names, [fragment])
    scanner = dataset.scanner(fragments=[fragment], batch_size=rows, **READ_AHEAD)
    return sum(batch.num_rows for batch in scanner.to_batches())


def _line(error: BaseException) -> str:
    """Return an error's text as one line, without positions in the engine's source."""
    return _text(str(error)) or type(error).__name__


def _text(text: str) -> str:
    return _POSITION.sub("", " ".join(text.split()))
