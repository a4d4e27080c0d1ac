"""Ingest files: workers read them natively, one commit takes each file in once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import attrs
import lance
import pyarrow as pa

from lancekeep.application.catalog import Catalog
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.domain.column_names import quoted
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import ConcurrentModification, InvalidInput, Refused, TableNotFound
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.entrypoints.spark.arrow_types import require_storable
from lancekeep.entrypoints.spark.jobs.bad_records import BadRecords
from lancekeep.entrypoints.spark.jobs.files import Piece, SourceFile, absolute, format_of, list_files, pack
from lancekeep.entrypoints.spark.jobs.ingested import RUN_PROPERTY, IngestedFiles, run_of
from lancekeep.entrypoints.spark.jobs.merging import merged
from lancekeep.entrypoints.spark.jobs.readers import Inspection, Wanted, inspect, read
from lancekeep.entrypoints.spark.jobs.tasks import Clock, Summary, commit_transaction, quiet, run
from lancekeep.entrypoints.spark.writing import write_batches
from lancekeep.ports.table_engine import WriteMode, WritePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 128 << 20
MODES = ("append", "overwrite")
SCHEMAS = ("infer", "evolve", "enforce")
CHANGED = ("refuse", "append", "replace")

_ATTEMPTS = 50


def ingest(
    spark: SparkSession,
    catalog: Catalog,
    table: Identifier,
    sources: str | Iterable[str],
    *,
    mode: str = "append",
    format: str | None = None,  # noqa: A002 - the public name of the argument
    schema: str = "infer",
    columns: pa.Schema | None = None,
    vectors: Mapping[str, int] | None = None,
    source_column: str | None = None,
    bad_records: str | None = None,
    max_bad: int = 0,
    changed: str = "refuse",
    timezone: str | None = None,
    task_bytes: int = TASK_BYTES,
    progress: Progress = quiet,
) -> Summary:
    """Ingest files into a table as one version, each file exactly once.

    Files that an earlier run ingested are skipped. A stopped run has committed everything or nothing; a repeated run
    completes it. Uncommitted fragments remain until clean-up. Concurrent runs may overlap in files: exactly one of them
    ingests each file.

    Args:
        spark: The session.
        catalog: The catalog of the table.
        table: The table.
        sources: Paths, URIs (``s3://``, ``gs://``, ``hdfs://``) and patterns of either; a folder means all files below.
        mode: ``append`` creates a missing table; ``overwrite`` replaces its contents.
        format: ``parquet``, ``csv``, ``json`` (lines or one array), ``arrow`` (files, Feather, streams) or ``image``;
            by default the suffixes decide. An image is a row of ``uri``, ``format``, ``width``, ``height`` and
            ``image``, its bytes.
        schema: What happens if files have columns that an existing table lacks. ``infer`` refuses the files. ``evolve``
            first adds the columns, in a version of its own. ``enforce`` treats such files as bad records, and also
            files that lack a column; otherwise missing columns are null. A new table gets the columns of all files with
            widened types, or ``columns`` with ``enforce``.
        columns: The schema of a new or overwritten table.
        vectors: The dimensions of list columns to store as vectors of 32-bit floats.
        source_column: A column for the URI of each row's file.
        bad_records: A folder for rows that do not parse or fit and files that cannot be read, as JSON lines with file,
            row, reason and record.
        max_bad: The most bad records; with more, nothing is committed.
        changed: What happens to ingested files whose size or time has changed: ``refuse`` them, ``append`` their rows,
            or ``replace`` their old rows in the same commit, which requires a ``source_column``.
        timezone: The time zone, such as ``Europe/Berlin``, of CSV timestamps without one. A new table then stores
            instants. By default it stores timestamps without a zone, and columns of instants accept only texts with a
            zone.
        task_bytes: The approximate size of the files of a task; only Parquet files are split, by row groups.
        progress: Receives the number of finished tasks.

    Raises:
        InvalidInput: An argument is invalid, or there are more bad records than allowed; nothing was committed.
        NotFound: A source names no file.
        Refused: Files have changed.
        Retryable: The Spark job failed; nothing was committed.
        LancekeepError: The commit failed, as for `Catalog.write`.
    """
    _check(mode, schema, columns, bad_records, max_bad, changed, source_column, timezone, task_bytes)
    clock = Clock()
    listed = list_files(sources)
    options = _Options(
        mode, format_of(listed, format), schema, columns, dict(vectors or {}), source_column, absolute(bad_records),
        max_bad, changed, timezone, task_bytes,
    )  # fmt: skip
    job = _Ingest(spark, catalog, ObjectId.of(table), listed, options, progress)
    for _ in range(_ATTEMPTS):
        try:
            summary = job.attempt()
        except ConcurrentModification:
            continue
        return attrs.evolve(summary, seconds=clock.seconds)
    raise ConcurrentModification(f"{job.table}: other writers kept changing it; nothing was committed")


@attrs.frozen
class _Options:
    mode: str
    format: str
    schema: str
    columns: pa.Schema | None
    vectors: dict[str, int]
    source_column: str | None
    bad_records: str | None
    max_bad: int
    changed: str
    timezone: str | None
    task_bytes: int


@attrs.frozen
class _Written:
    """The result of tasks for a set of files; ``unread`` files gave no rows and are not recorded as ingested."""

    fragments: list[str]
    rows: int
    bad: int
    unread: frozenset[str]


class _Ingest:
    """One job, which keeps inspected files and written fragments between attempts."""

    def __init__(
        self,
        spark: SparkSession,
        catalog: Catalog,
        table: ObjectId,
        files: list[SourceFile],
        options: _Options,
        progress: Progress,
    ) -> None:
        self.table = table
        self._spark = spark
        self._catalog = catalog
        self._files = files
        self._options = options
        self._progress = progress
        self._inspected: dict[str, Inspection] = {}
        self._written: dict[tuple[Any, ...], _Written] = {}

    def attempt(self) -> Summary:
        """Ingest against the latest version. Raises `ConcurrentModification` if another commit precedes."""
        dataset = self._open()
        before = dataset.version if dataset is not None else None
        fresh, changed = self._choose(dataset)
        overwrites = self._options.mode == "overwrite"
        if not fresh:
            return self._summary(before, before, [], _Written([], 0, 0, frozenset()), 0)
        inspected = self._inspect(fresh)
        wanted = self._wanted(dataset, fresh, inspected)
        if dataset is not None and not overwrites and self._evolve(dataset, wanted):
            dataset = self._open()
        mode = WriteMode.APPEND if dataset is not None and not overwrites else WriteMode.OVERWRITE
        plan = self._catalog.begin_write(self.table, wanted.schema, mode.value)
        try:
            if plan.read_version != (dataset.version if dataset is not None else 0):
                raise ConcurrentModification(f"{self.table}: it has a new version")
            written = self._write(plan, wanted, fresh, inspected)
        except BaseException:
            self._catalog.abandon_write(plan)
            raise
        if mode is WriteMode.APPEND and len(written.unread) == len(fresh):
            return self._summary(before, plan.read_version, fresh, written, len(changed))
        committed = self._commit(plan, dataset, fresh, changed, written)
        return self._summary(before, committed.version, fresh, written, len(changed))

    # -- what there is to do ------------------------------------------------------------------------------------

    def _open(self) -> Any:
        """Open the table at its latest version; None if it has none."""
        try:
            if self._catalog.describe_table(self.table).version is None:
                return None
        except TableNotFound:
            return None
        return self._catalog.open(self.table)

    def _record(self) -> IngestedFiles:
        return IngestedFiles(self._catalog, self._catalog.find_table(self.table))

    def _choose(self, dataset: Any) -> tuple[list[SourceFile], list[SourceFile]]:
        """Return the files to read and the files among them that changed since their ingest. Raises `Refused`."""
        record = None if dataset is None else self._record().read(dataset)
        known = {} if record is None else dict(zip(*record.select(["uri", "state"]).to_pydict().values(), strict=True))
        if self._options.mode == "overwrite":
            same = known == {file.uri: file.state for file in self._files}
            return ([] if same and _is_last(record, dataset) else self._files), []
        changed = [file for file in self._files if known.get(file.uri, file.state) != file.state]
        if changed and self._options.changed == "refuse":
            raise Refused(
                f"{self.table}: {len(changed)} files changed since they were ingested, such as {changed[0].uri}. Pass "
                "changed='append' to keep the old rows too, or changed='replace' if a source column identifies them"
            )
        return [file for file in self._files if known.get(file.uri) != file.state], changed

    def _inspect(self, files: Sequence[SourceFile]) -> dict[str, Inspection]:
        options = self._options
        if options.schema != "enforce" or options.format == "parquet":
            missing = [file for file in files if file.uri not in self._inspected]
            portions = [missing[at : at + _PORTION] for at in range(0, len(missing), _PORTION)]
            look = partial(_look, format=options.format)
            answers = run(self._spark, str(self.table), "inspect", portions, look, self._progress)
            found = (inspection for portion in answers for inspection in portion)
            self._inspected.update(zip((file.uri for file in missing), found, strict=True))
        return {file.uri: self._inspected.get(file.uri, Inspection(None)) for file in files}

    # -- columns ------------------------------------------------------------------------------------------------

    def _wanted(self, dataset: Any, files: Sequence[SourceFile], inspected: Mapping[str, Inspection]) -> Wanted:
        """Return what the table finally stores. Raises `InvalidInput`."""
        options = self._options
        own = dataset.schema if dataset is not None and options.mode == "append" else None
        if own is not None and options.columns is not None:
            raise InvalidInput(f"{self.table} has its columns; give some for a new table, or to overwrite it")
        strict = options.schema == "enforce"
        if strict and own is None and options.columns is None:
            raise InvalidInput(f"{self.table} does not exist: there are no columns to enforce; give them")
        found = pa.schema([]) if strict else self._found(files, inspected)
        schema = self._stored(own or options.columns or found)
        if not schema.names:
            raise InvalidInput(f"no file of {len(files)} could be read as input, {files[0].uri} for example")
        known = frozenset(schema.names)
        new = [field for field in self._stored(found) if field.name not in known]
        if new and options.schema == "evolve":
            schema = pa.schema([*schema, *new])
        elif new:
            names = ", ".join(repr(field.name) for field in new)
            raise InvalidInput(
                f"{self.table} has no columns {names}, and the files do: nothing was written. Add them with "
                "schema='evolve', or set the files bad_records with schema='enforce'"
            )
        source = options.source_column
        if source is not None and source not in schema.names:
            if own is not None and options.schema != "evolve":
                raise InvalidInput(f"{self.table} has no column {source!r} for sources; add it with schema='evolve'")
            schema = schema.append(pa.field(source, pa.string()))
        for name, size in options.vectors.items():
            found_type = schema.field(name).type if name in schema.names else None
            if found_type is None or not pa.types.is_fixed_size_list(found_type) or found_type.list_size != size:
                raise InvalidInput(f"{self.table} has no column {name!r} of lists that could be vectors of {size}")
        require_storable(schema)
        return Wanted(schema, strict, source, options.timezone)

    def _found(self, files: Sequence[SourceFile], inspected: Mapping[str, Inspection]) -> pa.Schema:
        """Return the columns of all files."""
        is_csv = self._options.format == "csv"
        found = _widened(files, inspected, as_text=is_csv, sets_aside=self._options.max_bad > 0)
        if not is_csv or self._options.timezone is None:
            return found
        instants = {
            field.name: pa.timestamp(field.type.unit, "UTC") for field in found if pa.types.is_timestamp(field.type)
        }
        return pa.schema([field.with_type(instants.get(field.name, field.type)) for field in found])

    def _stored(self, schema: pa.Schema) -> pa.Schema:
        fields = []
        for field in schema:
            size = self._options.vectors.get(field.name)
            if size is not None and pa.types.is_list(field.type):
                field = field.with_type(pa.list_(pa.float32(), size))
            fields.append(field.with_type(pa.string()) if pa.types.is_null(field.type) else field)
        return pa.schema(fields)

    def _evolve(self, dataset: Any, wanted: Wanted) -> bool:
        """Add the columns that the table lacks, null in its rows, and return whether there were any."""
        known = frozenset(dataset.schema.names)
        new = [field.with_nullable(True) for field in wanted.schema if field.name not in known]

        def add(latest: lance.LanceDataset) -> lance.LanceDataset:
            latest.add_columns(new)
            return latest

        if new:
            self._catalog.commit_change(self.table, add, after=dataset.version)
        return bool(new)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _write(
        self, plan: WritePlan, wanted: Wanted, files: list[SourceFile], inspected: Mapping[str, Inspection]
    ) -> _Written:
        """Write the fragments in Spark's tasks; reuses fragments of the same files and columns."""
        options = self._options
        run_name = run_of(files, f"{options.mode} {self.table}")
        key = (run_name, plan.uri, plan.mode, bool(plan.read_version), wanted.schema)
        if key in self._written:
            return self._written[key]
        pieces = [piece for file in files for piece in _pieces(file, inspected[file.uri], options.task_bytes)]
        numbered = list(enumerate(pack(pieces, options.task_bytes)))
        task = partial(
            _take_in, plan=plan, format=options.format, wanted=wanted, folder=options.bad_records, run_name=run_name,
            limit=options.max_bad,
        )  # fmt: skip
        parts = run(self._spark, str(self.table), "ingest", numbered, task, self._progress)
        written = _Written(
            [fragment for part in parts for fragment in part.fragments],
            sum(part.rows for part in parts),
            sum(part.bad for part in parts),
            frozenset[str]().union(*(part.unread for part in parts)),
        )
        if written.bad > options.max_bad:
            raise InvalidInput(
                f"{self.table}: {written.bad} bad records, and {options.max_bad} are allowed; nothing was committed. "
                f"They are kept in {options.bad_records}"
            )
        self._written[key] = written
        return written

    def _commit(
        self, plan: WritePlan, dataset: Any, files: list[SourceFile], changed: list[SourceFile], written: _Written
    ) -> Committed:
        """Enter the files under the next version, and commit the rows as exactly that version."""
        overwrites = self._options.mode == "overwrite"
        name = run_of(files, f"{self._options.mode} {self.table} {self._options.changed}")
        record, version = self._record(), plan.read_version + 1
        record.propose(version, name, [file for file in files if file.uri not in written.unread], replaces=overwrites)
        if changed and self._options.changed == "replace":
            column = str(self._options.source_column)
            transaction = _replacing(dataset, [file.uri for file in changed], column, written.fragments, name)
            committed = commit_transaction(self._catalog, self.table, transaction)
        else:
            properties = {RUN_PROPERTY: name}
            committed = self._catalog.commit_fragments(plan, written.fragments, properties=properties, exactly=True)
        record.settle(version, name)
        return committed

    def _summary(
        self, before: int | None, version: int | None, files: list[SourceFile], written: _Written, changed: int
    ) -> Summary:
        counts = {
            "files": len(files) - len(written.unread),
            "files unread": len(written.unread),
            "files known already": len(self._files) - len(files),
            "files changed": changed,
            "bad records": written.bad,
        }
        size = sum(file.size for file in files)
        return Summary("ingest", str(self.table), written.rows, size, 0.0, before, version, counts)


_PORTION = 64
"""The number of files that one task inspects."""


# -- in the workers -------------------------------------------------------------------------------------------------


def _look(files: Sequence[SourceFile], format: str) -> list[Inspection]:  # noqa: A002 - as in `inspect`
    return [inspect(file, format) for file in files]


def _take_in(
    numbered: tuple[int, list[Piece]],
    *,
    plan: WritePlan,
    format: str,  # noqa: A002 - as in `read`
    wanted: Wanted,
    folder: str | None,
    run_name: str,
    limit: int,
) -> _Written:
    number, pieces = numbered
    rows: Counter[str] = Counter()

    def batches() -> Iterable[pa.RecordBatch]:
        for piece in pieces:
            for batch in read(piece, format, wanted, bad_records):
                rows[piece.file.uri] += batch.num_rows
                yield batch

    with BadRecords(folder, f"{run_name}-{number:05}", limit) as bad_records:
        fragments = write_batches(batches(), plan)
    return _Written(fragments, rows.total(), bad_records.count, frozenset(bad_records.files - rows.keys()))


# -- decisions ------------------------------------------------------------------------------------------------------


def _check(
    mode: str,
    schema: str,
    columns: pa.Schema | None,
    bad_records: str | None,
    max_bad: int,
    changed: str,
    source_column: str | None,
    timezone: str | None,
    task_bytes: int,
) -> None:
    for name, given, known in (("mode", mode, MODES), ("schema", schema, SCHEMAS), ("changed", changed, CHANGED)):
        if given not in known:
            raise InvalidInput(f"unknown {name} {given!r}; choose {', '.join(known)}")
    if columns is not None and not isinstance(columns, pa.Schema):
        raise InvalidInput(f"columns are a pyarrow.Schema; found {type(columns).__name__}")
    if timezone is not None:
        try:
            ZoneInfo(timezone)
        except (ValueError, OSError, LookupError) as error:
            raise InvalidInput(f"unknown time zone {timezone!r}; name one such as 'Europe/Berlin' or 'UTC'") from error
    if max_bad < 0 or task_bytes < 1:
        raise InvalidInput("max_bad is 0 or more, task_bytes 1 or more")
    if max_bad and bad_records is None:
        raise InvalidInput("bad records are never dropped: name a folder for them (bad_records), or allow none")
    if changed == "replace" and source_column is None:
        raise InvalidInput("changed='replace' needs a source_column, which shows the rows of each file")


def _is_last(record: Any, dataset: Any) -> bool:
    """Return whether an overwrite with these files is the latest version."""
    versions = set(record["version"].to_pylist())
    return versions == {dataset.version} and isinstance(
        dataset.read_transaction(dataset.version).operation, lance.LanceOperation.Overwrite
    )


def _pieces(file: SourceFile, inspection: Inspection, most: int) -> list[Piece]:
    """Return a file as one piece, or a large file as runs of its row groups."""
    if file.size <= most or len(inspection.groups) < 2:
        return [Piece(file, file.size)]
    pieces: list[Piece] = []
    row = 1
    for group, (rows, size) in enumerate(inspection.groups):
        last = pieces[-1] if pieces else None
        if last is not None and last.row_groups is not None and last.size + size <= most:
            pieces[-1] = attrs.evolve(last, size=last.size + size, row_groups=(*last.row_groups, group))
        else:
            pieces.append(Piece(file, size, (group,), row))
        row += rows
    return pieces


def _widened(
    files: Sequence[SourceFile], inspected: Mapping[str, Inspection], *, as_text: bool, sets_aside: bool
) -> pa.Schema:
    """Return a schema that fits all files.

    Args:
        files: The files.
        inspected: Their schemas, by URI.
        as_text: Whether columns without a common type become text.
        sets_aside: Whether such columns keep the type of earlier files, so that later rows are bad records.
    """
    found = pa.schema([])
    for file in files:
        schema = inspected[file.uri].schema
        for field in schema or ():
            at = found.get_field_index(field.name)
            if at < 0:
                found = found.append(field.with_nullable(True))
                continue
            known = found.field(at)
            both = merged(known.type, field.type)
            if both is None and not as_text and not sets_aside:
                raise InvalidInput(
                    f"{file.uri} has {field.name!r} as {field.type}, files before it as {known.type}: no type holds "
                    "both. Give the columns, or allow bad records with max_bad"
                )
            found = found.set(at, known.with_type(both or (pa.string() if as_text else known.type)))
    return found


def _replacing(
    dataset: Any, uris: Sequence[str], column: str, fragments: Sequence[str], name: str
) -> lance.Transaction:
    """Return a transaction that replaces the rows of files by new fragments."""
    listed = ", ".join("'" + uri.replace("'", "''") + "'" for uri in uris)
    predicate = f"{quoted(column)} IN ({listed})"
    updated, removed = [], []
    for fragment in dataset.get_fragments():
        if fragment.count_rows(filter=predicate):
            left = fragment.delete(predicate)
            if left is None:
                removed.append(fragment.fragment_id)
            else:
                updated.append(left)
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=removed,
        updated_fragments=updated,
        new_fragments=[lance.FragmentMetadata.from_json(fragment) for fragment in fragments],
    )
    return lance.Transaction(dataset.version, operation, transaction_properties={RUN_PROPERTY: name})
