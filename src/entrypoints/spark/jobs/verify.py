"""Verify that all files and rows of tables exist and are readable."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import attrs
import lance
from lance.file import LanceFileSession
from pyarrow import fs

from lancekeep.application.catalog import Catalog
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.domain.errors import InvalidInput, LancekeepError, NotFound
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.entrypoints.spark.jobs.files import place
from lancekeep.entrypoints.spark.jobs.tasks import Clock, quiet, run
from lancekeep.entrypoints.spark.reading import READ_AHEAD, Snapshot, batch_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FRAGMENTS_OF_A_TASK = 16
_CHUNK = 8 << 20


@attrs.frozen
class Problem:
    """A difference between a table and its manifest.

    Attributes:
        table: The table.
        object: A file of the table, a fragment, or "" for the table itself.
        reason: What is wrong.
    """

    table: str
    object: str
    reason: str


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
    spark: SparkSession,
    catalog: Catalog,
    tables: Iterable[Identifier] | None = None,
    *,
    deep: bool = False,
    digests: str | None = None,
    progress: Progress = quiet,
) -> Verification:
    """Check the latest version of tables without writing to them.

    Every data, deletion and index file that a manifest names must exist, data files with the recorded size, and every
    fragment must have the recorded number of rows. The job is safe alongside writers: it ignores later versions. If
    clean-up removes a version during the run, the job reports a problem.

    Args:
        spark: The session.
        catalog: The catalog.
        tables: The tables; by default all of the catalog.
        deep: Also read every value.
        digests: A file of JSON lines with digests of data files. Listed data files must still have their digests; the
            job adds the others. Data files never change, so recorded digests remain valid.
        progress: Receives the number of finished tasks.

    Raises:
        TableNotFound: One of ``tables`` does not exist.
        InvalidInput: A table name or the file of digests is invalid.
        Retryable: The Spark job failed.
    """
    clock = Clock()
    chosen = list(map(ObjectId.of, tables)) if tables is not None else list(catalog.list_all_tables())
    known = _recorded(digests)
    report = _Report(known)
    work: list[_Work] = []
    for table in chosen:
        try:
            work += report.open(catalog, table)
        except LancekeepError as error:
            if tables is not None and isinstance(error, InvalidInput | NotFound):
                raise
            report.problems.add(Problem(str(table), "", _line(error)))
    task = partial(_look, deep=deep, hashed=digests is not None)
    for part, found in zip(work, run(spark, f"{len(chosen)} tables", "verify", work, task, progress), strict=True):
        report.add(part, found)
    if digests is not None and report.fresh:
        _record(digests, known | report.fresh)
    told = sorted(report.problems, key=lambda problem: (problem.table, problem.object, problem.reason))
    return Verification(tuple(report.tables.values()), tuple(told), len(report.fresh), clock.seconds)


class _Report:
    """The report, which the driver builds; ``known`` holds the recorded digests."""

    def __init__(self, known: Mapping[tuple[str, str], str]) -> None:
        self.tables: dict[str, VerifiedTable] = {}
        self.problems: set[Problem] = set()
        self.fresh: dict[tuple[str, str], str] = {}
        self._known = known

    def open(self, catalog: Catalog, table: ObjectId) -> list[_Work]:
        """Check the manifest against a listing of the files, and return the work for the workers."""
        if catalog.describe_table(table).version is None:
            return []
        name, dataset = str(table), catalog.open(table)
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        self.problems.update(_missing(catalog, table, dataset, fragments))
        files = [file for fragment in fragments for file in fragment.files]
        size = sum(file.file_size_bytes or 0 for file in files)
        self.tables[name] = VerifiedTable(name, dataset.version, 0, len(fragments), len(files), size, 0)
        ids, snapshot = [fragment.id for fragment in fragments], Snapshot.of(catalog, dataset)
        starts = range(0, len(ids), _FRAGMENTS_OF_A_TASK)
        return [_Work(name, snapshot, tuple(ids[at : at + _FRAGMENTS_OF_A_TASK])) for at in starts]

    def add(self, work: _Work, found: _Found) -> None:
        name = work.table
        recorded = {file: self._known[name, file] for file in found.digests if (name, file) in self._known}
        for file, digest in found.digests.items():
            if file not in recorded:
                self.fresh[name, file] = digest
            elif recorded[file] != digest:
                self.problems.add(Problem(name, f"data/{file}", "its content differs from the recorded digest"))
        self.problems.update(Problem(name, where, reason) for where, reason in found.problems)
        table = self.tables[name]
        self.tables[name] = attrs.evolve(table, rows=table.rows + found.rows, digests=table.digests + len(recorded))


@attrs.frozen
class _Work:
    table: str
    snapshot: Snapshot
    fragments: tuple[int, ...]


@attrs.frozen
class _Found:
    rows: int
    digests: Mapping[str, str]
    problems: tuple[tuple[str, str], ...]


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
                yield Problem(str(table), name, "the file is not there")
            elif file.file_size_bytes and sizes[name] != file.file_size_bytes:
                reason = f"the file has {sizes[name]:,} bytes; its manifest says {file.file_size_bytes:,}"
                yield Problem(str(table), name, reason)
        deletions = fragment.to_json()["deletion_file"]
        if deletions is not None and deletions["base_id"] is None:
            suffix = {"array": "arrow", "bitmap": "bin"}[deletions["file_type"]]
            name = f"_deletions/{fragment.id}-{deletions['read_version']}-{deletions['id']}.{suffix}"
            if name not in sizes:
                yield Problem(str(table), name, "the file is not there")
    for index in dataset.describe_indices():
        for segment in index.segments:
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


# -- in the workers -------------------------------------------------------------------------------------------------


def _look(work: _Work, *, deep: bool, hashed: bool) -> _Found:
    rows = 0
    problems: list[tuple[str, str]] = []
    digests: dict[str, str] = {}
    try:
        dataset = work.snapshot.open()
    except (OSError, ValueError) as error:
        return _Found(0, {}, (("", _line(error)),))
    session = LanceFileSession(work.snapshot.uri, work.snapshot.storage_options or None)
    for number in work.fragments:
        fragment = dataset.get_fragment(number)
        metadata = fragment.metadata
        expected = metadata.physical_rows - (metadata.num_deletions or 0)
        try:
            fragment.validate()
            found = _read(dataset, fragment) if deep else fragment.count_rows()
        except BaseException as error:  # the engine panics on some contents; the panic is not an Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            problems.append((f"fragment {number}", _line(error)))
        else:
            rows += found
            if found != expected:
                problems.append((f"fragment {number}", f"it has {found:,} rows; its manifest says {expected:,}"))
        for file in metadata.files if hashed else ():
            if file.base_id is None and file.file_size_bytes:
                try:
                    digests[file.path] = _digest(session, f"data/{file.path}", file.file_size_bytes)
                except (OSError, ValueError) as error:
                    problems.append((f"data/{file.path}", _line(error)))
    return _Found(rows, digests, tuple(problems))


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
    return " ".join(str(error).split()) or type(error).__name__
