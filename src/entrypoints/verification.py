"""Verify that all files and rows of tables exist and can be read.

Storage layout, "Data Files" and "Deletion Files". A verification reads the footer of every data file, or with ``deep``
every value. `lancekeep.jobs.verify` divides the same work among the executors of Spark.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import Any, Protocol

import attrs
import lance
from lance.file import LanceFileSession
from pyarrow import fs

from lancekeep.application.catalog import Catalog
from lancekeep.application.panics import is_panic
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.domain.errors import ConcurrentModification, InvalidInput, LancekeepError, NotFound
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.indexes import Content, index_kind
from lancekeep.entrypoints.index_verification import index_problems
from lancekeep.entrypoints.scanning import READ_AHEAD, batch_rows
from lancekeep.entrypoints.spark.jobs.files import place

_FRAGMENTS_OF_A_TASK = 16
_CHUNK = 8 << 20
_FEW_ROWS = 1024
_POSITION = re.compile(r",? /\S+\.rs:\d+:\d+")
_OWN_FOOTER = 2
"""The first major version of data files whose footer tells the number of rows."""


def _quiet(done: int, total: int, name: str) -> None:
    """Ignore progress."""


@attrs.frozen
class Problem:
    """A difference between a table and its manifest.

    Attributes:
        table: The table.
        object: A file of the table, a fragment, or "" for the table itself.
        reason: What is wrong.
        fragment: The fragment that cannot be read for this reason, if one is concerned.
    """

    table: str
    object: str
    reason: str
    fragment: int | None = None


@attrs.frozen
class VerifiedTable:
    """The readable contents of one version of a table.

    Attributes:
        table: The table.
        version: The version.
        rows: The rows that were counted.
        fragments: The fragments.
        files: The data files.
        bytes: The size of the data files.
        digests: The number of data files that were compared with recorded digests.
    """

    table: str
    version: int
    rows: int
    fragments: int
    files: int
    bytes: int
    digests: int


@attrs.frozen
class Verification:
    """The result of a verification.

    Attributes:
        tables: The tables that were checked.
        problems: What is wrong.
        recorded: The number of digests that this run added.
        seconds: The duration.
    """

    tables: tuple[VerifiedTable, ...]
    problems: tuple[Problem, ...]
    recorded: int
    seconds: float

    def __str__(self) -> str:
        rows, size = sum(table.rows for table in self.tables), sum(table.bytes for table in self.tables)
        return (
            f"{len(self.tables):,} tables, {rows:,} rows, {size / 1e6:,.1f} MB in {self.seconds:.1f} s: "
            f"{len(self.problems):,} problems"
        )


def verify(
    catalog: Catalog,
    tables: Iterable[Identifier] | None = None,
    *,
    deep: bool = False,
    digests: str | None = None,
    indexes: bool = False,
    threads: int | None = None,
    progress: Progress = _quiet,
) -> Verification:
    """Check the latest version of tables without writing to them.

    Every data, deletion and index file that a manifest names must exist, data files with the recorded size and number
    of rows. The memory use does not depend on the size of the tables. Writers may continue, because later versions are
    ignored. If clean-up removes a version during the run, it is reported as a problem.

    Args:
        catalog: The catalog.
        tables: The tables; by default all of the catalog.
        deep: Also read every value.
        digests: A file of JSON lines with digests of data files. Listed data files must still have their digests; the
            others are added. Data files never change, so recorded digests remain valid.
        indexes: Also compare every index with the rows.
        threads: The number of files to read at a time; by default 8, or 1 for each CPU with ``deep``.
        progress: Called with the number of finished groups of fragments.

    Raises:
        TableNotFound: One of ``tables`` does not exist.
        InvalidInput: A table name or the file of digests is invalid.
    """

    def on_threads(name: str, work: Sequence[Work], task: Callable[[Work], Found]) -> Iterator[Found]:
        with ThreadPoolExecutor(threads or (os.cpu_count() if deep else 8)) as pool:
            for done, found in enumerate(pool.map(task, work)):
                progress(done, len(work), f"verify: {name}")
                yield found

    report = verify_by(on_threads, lambda dataset: _Held(catalog, dataset), catalog, tables, deep=deep, digests=digests)
    return _with_indexes(catalog, report, progress) if indexes else report


def _with_indexes(catalog: Catalog, report: Verification, progress: Progress) -> Verification:
    """Add what is wrong with the indexes of the verified versions."""
    found: list[Problem] = []
    for at, table in enumerate(report.tables):
        tell = partial(_tell, progress, at, len(report.tables), table.table)
        try:
            dataset = catalog.open(table.table, table.version)
            found += (Problem(table.table, where, reason) for where, reason in index_problems(dataset, tell))
        except LancekeepError as error:
            found.append(Problem(table.table, "", _line(error)))
    return attrs.evolve(report, problems=(*report.problems, *found))


def _tell(progress: Progress, done: int, total: int, table: str, index: str) -> None:
    progress(done, total, f"verify: {table}, index {index}")


def verify_by(
    run: Callable[[str, Sequence[Work], Callable[[Work], Found]], Iterable[Found]],
    source: Callable[[Any], Source],
    catalog: Catalog,
    tables: Iterable[Identifier] | None,
    *,
    deep: bool,
    digests: str | None,
) -> Verification:
    """Verify tables as `verify` does, by another runner.

    ``run`` yields the result of each task in order; ``source`` makes an opened version one for tasks.
    """
    began = monotonic()
    _ = catalog.commits  # a catalog over a server has none, and raises Unsupported
    chosen = list(map(ObjectId.of, tables)) if tables is not None else list(catalog.list_all_tables())
    known = _recorded(digests)
    report = _Report(known)
    work: list[Work] = []
    for table in chosen:
        try:
            work += report.open(catalog, table, source)
        except LancekeepError as error:
            if tables is not None and isinstance(error, InvalidInput | NotFound):
                raise
            report.problems.add(Problem(str(table), "", _line(error)))
    task = partial(look, deep=deep, hashed=digests is not None)
    for part, found in zip(work, run(f"{len(chosen)} tables", work, task), strict=True):
        report.add(part, found)
    if digests is not None and report.fresh:
        _record(digests, known | report.fresh)
    told = sorted(report.problems, key=lambda problem: (problem.table, problem.object, problem.reason))
    return Verification(tuple(report.tables.values()), tuple(told), len(report.fresh), monotonic() - began)


class Source(Protocol):
    """A version to verify, as a task receives it."""

    @property
    def uri(self) -> str: ...

    @property
    def storage_options(self) -> dict[str, str]: ...

    def open(self) -> Any:
        """Open the version."""


class _Held:
    """A version that this process has open."""

    def __init__(self, catalog: Catalog, dataset: Any) -> None:
        self.uri: str = dataset.uri
        self.storage_options = dict(catalog.storage_options)
        self._dataset = dataset

    def open(self) -> Any:
        return self._dataset


class _Report:
    """The report, which the driver builds; ``known`` holds the recorded digests."""

    def __init__(self, known: Mapping[tuple[str, str], str]) -> None:
        self.tables: dict[str, VerifiedTable] = {}
        self.problems: set[Problem] = set()
        self.fresh: dict[tuple[str, str], str] = {}
        self._known = known

    def open(self, catalog: Catalog, table: ObjectId, source: Callable[[Any], Source]) -> list[Work]:
        """Check the manifest against a listing of the files, and return the work for the workers."""
        if catalog.describe_table(table).version is None:
            return []
        name, dataset = str(table), catalog.open(table)
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        self.problems.update(_missing(catalog, table, dataset, fragments))
        files = [file for fragment in fragments for file in fragment.files]
        size = sum(file.file_size_bytes or 0 for file in files)
        self.tables[name] = VerifiedTable(name, dataset.version, 0, len(fragments), len(files), size, 0)
        ids, opened = [fragment.id for fragment in fragments], source(dataset)
        starts = range(0, len(ids), _FRAGMENTS_OF_A_TASK)
        return [Work(name, opened, tuple(ids[at : at + _FRAGMENTS_OF_A_TASK])) for at in starts]

    def add(self, work: Work, found: Found) -> None:
        name = work.table
        recorded = {file: self._known[name, file] for file in found.digests if (name, file) in self._known}
        for file, digest in found.digests.items():
            if file not in recorded:
                self.fresh[name, file] = digest
            elif recorded[file] != digest:
                self.problems.add(Problem(name, f"data/{file}", "its content differs from the recorded digest"))
        listed = {problem.object for problem in self.problems if problem.table == name}
        self.problems.update(
            Problem(name, where, reason, number) for where, reason, number in found.problems if where not in listed
        )
        table = self.tables[name]
        self.tables[name] = attrs.evolve(table, rows=table.rows + found.rows, digests=table.digests + len(recorded))


@attrs.frozen
class Work:
    """Some fragments of a version."""

    table: str
    source: Source
    fragments: tuple[int, ...]


@attrs.frozen
class Found:
    """What a task found.

    A problem is a file or fragment, a reason, and the fragment that cannot be read.
    """

    rows: int
    digests: Mapping[str, str]
    problems: tuple[tuple[str, str, int | None], ...]


def _missing(catalog: Catalog, table: ObjectId, dataset: Any, fragments: list[Any]) -> Iterator[Problem]:
    """Yield the files that the manifest names but a listing of the table's directory lacks."""
    prefix = f"{catalog.dataset_root(catalog.find_table(table)).key}/"
    objects, retry = catalog.commits.objects, catalog.commits.retry
    sizes = retry.call(lambda: {info.key.removeprefix(prefix): info.size for info in objects.list(prefix)})
    indices = {key.split("/")[1] for key in sizes if key.startswith("_indices/")}
    for fragment in fragments:
        for file in fragment.files:
            name = f"data/{file.path}"
            if file.base_id is not None:
                continue  # belongs to the table from which this one was cloned; its rows are still read
            if name not in sizes:
                yield Problem(str(table), name, "the file is not there", fragment.id)
            elif file.file_size_bytes and sizes[name] != file.file_size_bytes:
                reason = f"the file has {sizes[name]:,} bytes; its manifest says {file.file_size_bytes:,}"
                yield Problem(str(table), name, reason, fragment.id)
        deletions = fragment.to_json()["deletion_file"]
        if deletions is not None and deletions["base_id"] is None:
            suffix = {"array": "arrow", "bitmap": "bin"}[deletions["file_type"]]
            name = f"_deletions/{fragment.id}-{deletions['read_version']}-{deletions['id']}.{suffix}"
            if name not in sizes:
                yield Problem(str(table), name, "the file is not there", fragment.id)
    for index in dataset.describe_indices():
        kept_in_files = index_kind(index.name, index.type_url).content is Content.FILES
        for segment in index.segments if kept_in_files else ():
            if segment.base_id is None and str(segment.uuid) not in indices:
                yield Problem(
                    str(table), f"_indices/{segment.uuid}", f"a part of the index {index.name!r} is not there"
                )


def _recorded(digests: str | None) -> dict[tuple[str, str], str]:
    if digests is None:
        return {}
    store, path = place(digests)
    if store.get_file_info(path).type == fs.FileType.NotFound:
        return {}
    try:
        with store.open_input_stream(path) as stream:
            lines = [json.loads(line) for line in stream.read().splitlines()]
        return {(line["table"], line["file"]): line["blake2b"] for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{digests} holds no digests that verify has recorded: {error}") from error


def _record(digests: str, known: Mapping[tuple[str, str], str]) -> None:
    store, path = place(digests)
    lines = [json.dumps({"table": table, "file": file, "blake2b": digest}) for (table, file), digest in known.items()]
    with store.open_output_stream(f"{path}.part") as stream:
        stream.write("".join(line + "\n" for line in lines).encode())
    store.move(f"{path}.part", path)


# -- in the tasks ---------------------------------------------------------------------------------------------------


def look(work: Work, *, deep: bool, hashed: bool) -> Found:
    """Read the footers of some fragments, or with ``deep`` all values."""
    rows = 0
    problems: list[tuple[str, str, int | None]] = []
    digests: dict[str, str] = {}
    try:
        dataset = work.source.open()
    except (OSError, ValueError, LancekeepError) as error:
        return Found(0, {}, (("", _line(error), None),))
    session = LanceFileSession(work.source.uri, work.source.storage_options or None)
    for number in work.fragments:
        fragment = dataset.get_fragment(number)
        metadata = fragment.metadata
        expected = metadata.physical_rows - (metadata.num_deletions or 0)
        try:
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
        for file in metadata.files if hashed else ():
            if file.base_id is None and file.file_size_bytes:
                try:
                    digests[file.path] = _digest(session, f"data/{file.path}", file.file_size_bytes)
                except (OSError, ValueError) as error:
                    problems.append((f"data/{file.path}", _line(error), number))
    return Found(rows, digests, tuple(problems))


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
    """Return the text of an engine's error; raise others. The engine panics on some contents."""
    if not isinstance(error, Exception) and not is_panic(error):
        raise error
    return _line(error)


def _read(dataset: Any, fragment: lance.LanceFragment) -> int:
    rows = batch_rows(dataset.schema, dataset.schema.names, [fragment])
    scanner = dataset.scanner(fragments=[fragment], batch_size=rows, **READ_AHEAD)
    return sum(batch.num_rows for batch in scanner.to_batches())


def _digest(session: LanceFileSession, path: str, size: int) -> str:
    digest = blake2b(digest_size=16)
    for start in range(0, size, _CHUNK):
        digest.update(session.read_range(path, start, min(_CHUNK, size - start)))
    return digest.hexdigest()


def _line(error: BaseException) -> str:
    """Return an error's text as one line, without positions in the engine's source."""
    return _POSITION.sub("", " ".join(str(error).split())) or type(error).__name__


# -- removing what cannot be read ---------------------------------------------------------------------------------


@attrs.frozen
class LostRows:
    """The rows of a fragment that cannot be read.

    Attributes:
        table: The table.
        fragment: The fragment.
        first: The position of its first row among the live rows of the table, from 0.
        rows: The number of its live rows.
        reasons: Why it cannot be read.
    """

    table: str
    fragment: int
    first: int
    rows: int
    reasons: tuple[str, ...]


def lost_rows(catalog: Catalog, report: Verification) -> list[LostRows]:
    """Return the rows that `drop_fragments` would remove.

    Args:
        catalog: The catalog.
        report: A verification of the versions that are still the latest.

    Raises:
        ConcurrentModification: A table has a later version than the report.
    """
    verified = {table.table: table.version for table in report.tables}
    reasons: dict[tuple[str, int], list[str]] = {}
    for problem in report.problems:
        if problem.fragment is not None:
            reasons.setdefault((problem.table, problem.fragment), []).append(f"{problem.object}: {problem.reason}")
    found: list[LostRows] = []
    for table in dict.fromkeys(table for table, _ in reasons):
        dataset, first = catalog.open(table), 0
        if dataset.version != verified[table]:
            raise ConcurrentModification(
                f"{table} has version {dataset.version}; version {verified[table]} was verified. Verify it again"
            )
        for fragment in (each.metadata for each in dataset.get_fragments()):
            rows = fragment.physical_rows - (fragment.num_deletions or 0)
            if (table, fragment.id) in reasons:
                found.append(LostRows(table, fragment.id, first, rows, tuple(reasons[table, fragment.id])))
            first += rows
    return found


def drop_fragments(catalog: Catalog, report: Verification) -> list[LostRows]:
    """Remove the fragments that cannot be read, as a new version of each table.

    Older versions stay as they are. The arguments and errors are those of `lost_rows`.

    Raises:
        ConcurrentModification: Another writer committed a version after the report. Nothing was changed in that table.
    """
    lost = lost_rows(catalog, report)
    verified = {table.table: table.version for table in report.tables}
    for table in dict.fromkeys(each.table for each in lost):
        dead = [each.fragment for each in lost if each.table == table]
        removal = lance.LanceOperation.Delete([], dead, "false")
        version = verified[table]
        catalog.commit_change(table, partial(_commit, operation=removal, version=version), after=version)
    return lost


def _commit(latest: Any, *, operation: Any, version: int) -> Any:
    return lance.LanceDataset.commit(latest, operation, read_version=version)
