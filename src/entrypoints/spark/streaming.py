"""Streaming reads and writes of ``format("lancekeep")``.

Offsets of the source are versions; each version contributes the rows that it appended. The sink commits each batch
once, as one version whose transaction holds the ids of the query and the batch (docs/adr/0023). Source and sink
identify versions by number and transaction: a table that is dropped and created again reuses the numbers (ADR 36).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import attrs
import lance
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from lancekeep.application.catalog import Catalog
from lancekeep.domain.batches import is_repeated
from lancekeep.domain.errors import (
    ConcurrentModification,
    InvalidInput,
    Refused,
    VersionNotFound,
    VersionTaken,
)
from lancekeep.entrypoints.spark.batch import Written, begin_first_write, existing_schema, fragments_of
from lancekeep.entrypoints.spark.changes import CHANGE_COLUMNS, Step, initial_step, steps
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.options import ROW_IDS, Options
from lancekeep.entrypoints.spark.projection import SchemaHistory, columns_of, lacks, origins_by_id
from lancekeep.entrypoints.spark.reading import (
    MOST_PARTITIONS,
    Fragment,
    FragmentReader,
    Snapshot,
    entries,
    identity,
    partitions,
    require_types,
    stored_fragments,
)
from lancekeep.entrypoints.spark.versions import (
    LIMITS_BATCHES,
    DataSourceStreamArrowWriter,
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from lancekeep.entrypoints.spark.writing import target_schema, write_batches
from lancekeep.format.kept_values import keep_rows
from lancekeep.format.manifest import FragmentEntry

Offset = dict[str, Any]
"""``version``: the last version that was read. ``transaction``: its identity (see `identity`).

Version 0 and offsets in checkpoints of earlier releases have no identity.
"""


# -- the source -----------------------------------------------------------------------------------------------------


class VersionFragments(InputPartition):
    """The fragments of one version that one task reads."""

    def __init__(self, reader: FragmentReader | None, runs: Sequence[range]) -> None:
        self.reader = reader
        self.runs = runs


class VersionChanges(InputPartition):
    """The changes of one version."""

    def __init__(self, step: Step) -> None:
        self.step = step


class FragmentStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream whose tasks read fragments of versions.

    Args:
        open_catalog: Opens the catalog, once it is used: Spark pickles unused readers.
    """

    def __init__(self, open_catalog: Callable[[], Catalog]) -> None:
        self._open = open_catalog
        self._catalog: Catalog | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, VersionFragments)
        return iter(()) if partition.reader is None else partition.reader.read(partition.runs)

    def commit(self, end: Any) -> None:
        """Do nothing: versions are kept until clean-up."""

    def stop(self) -> None:
        if self._catalog is not None:
            self._catalog.close()

    def _opened(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self._open()
        return self._catalog


class StreamReader(FragmentStream):
    """Stream the rows that each version appended.

    Without ``starting_version``, the stream starts at offset 0, and its first batch holds all rows of the table. Rows
    of old versions have the columns that the table has when the stream starts: see `SchemaHistory`.
    """

    def __init__(self, options: Options, open_catalog: Callable[[], Catalog], schema: StructType) -> None:
        super().__init__(open_catalog)
        self._options = options
        self._schema: pa.Schema = arrow_of(schema)
        self._end: int | None = None
        self._checked: Offset | None = None
        self._history = SchemaHistory(self._version)
        self._current: int | None = None
        self._skips = options.flag("skip_change_commits")
        self._max_versions = options.number("max_versions_per_trigger")
        self._max_rows = options.number("max_rows_per_trigger")
        self._changes = options.flag("read_changes")
        self._columns = self._schema
        if self._changes:
            self._require_changes()
            self._columns = pa.schema(list(self._schema)[: -len(CHANGE_COLUMNS)])
        if not LIMITS_BATCHES and (self._max_versions or self._max_rows):
            raise InvalidInput(
                "max_versions_per_trigger and max_rows_per_trigger need PySpark 4.2 or later; leave them out"
            )

    def initialOffset(self) -> Offset:
        start = self._options.values.get("starting_version")
        if start is None:
            return {"version": 0}
        latest = self._latest()
        if start == "latest":
            return self._offset(latest)
        first = cast(int, self._options.number("starting_version"))
        if first > latest + 1:
            raise InvalidInput(f"starting_version is {first}, and the latest version of {self._table} is {latest}")
        try:
            return self._offset(first - 1)
        except VersionNotFound:  # cleaned up; reading the first version raises the error if the stream needs it
            return {"version": first - 1}

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = self._latest()

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Return the end of the next batch.

        It is the latest version, or an earlier version if options limit the batch, which has at least one version.
        PySpark before 4.2 gives no ``start``; `partitions` checks it.
        """
        latest = self._latest()
        if start is None:
            if self._checked is None or self._checked["version"] != latest:
                self._checked = self._offset(latest)
            return self._checked
        read = start["version"]
        if latest < read:
            raise self._replaced(read)
        if start != self._checked:  # checked once per offset: an idle query polls many times a second
            self._require_same(start)
            self._checked = start
        end = latest if self._end is None else max(read, min(self._end, latest))
        if end > read and not self._begins_with_all(read):
            if self._max_versions is not None:
                end = min(end, read + self._max_versions)
            if self._max_rows is not None:
                end = self._within(start, end, self._max_rows)
        self._checked = start if end == read else self._offset(end)
        return self._checked

    def reportLatestOffset(self) -> Offset:
        return {"version": self._latest()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        read, last = start["version"], end["version"]
        if last < read:
            raise self._replaced(read)
        parts: list[InputPartition] = []
        if self._changes and last > read:
            parts += map(VersionChanges, self._steps(start, end))
        elif self._begins_with_all(read) and last > read:
            dataset = self._require_same(end)
            parts += self._parts(dataset, stored_fragments(dataset), dataset.count_rows())
        else:
            for dataset, appended in self._appended(start, end):
                parts += self._parts(dataset, appended, sum(fragment.rows for fragment in appended))
        return parts or [VersionFragments(None, [])]  # one task must run, even without rows: it names the query

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, VersionChanges):
            return partition.step.read()
        return super().read(partition)

    # -- inside -------------------------------------------------------------------------------------------------

    @property
    def _table(self) -> str:
        return self._options.table

    def _require_changes(self) -> None:
        """Check that the options and the schema suit a stream of changes.

        Raises:
            InvalidInput: An option applies to appended rows only, or the schema lacks the columns of changes.
        """
        for name in ("columns", "skip_change_commits", "max_rows_per_trigger"):
            if name in self._options.values:
                raise InvalidInput(f"the option {name} does not apply to a stream with read_changes; leave it out")
        if self._schema.names[-len(CHANGE_COLUMNS) :] != CHANGE_COLUMNS.names:
            raise InvalidInput(
                f"a stream with read_changes has the columns {', '.join(CHANGE_COLUMNS.names)} at the end; load it "
                "without a schema"
            )

    def _steps(self, start: Offset, end: Offset) -> list[Step]:
        """Plan the changes of a batch; the first batch inserts all rows of the table."""
        before, dataset = self._require_same(start), self._require_same(end)
        if self._begins_with_all(start["version"]):
            return list(initial_step(self._opened(), self._table, dataset, self._schema, self._reader))
        known = {end["version"]: dataset} | ({} if before is None else {start["version"]: before})

        def open_version(version: int) -> Any:
            return known.get(version) or self._version(version)

        versions = range(start["version"] + 1, end["version"] + 1)
        return list(steps(self._opened(), self._table, open_version, versions, self._schema, self._reader))

    def _begins_with_all(self, read: int) -> bool:
        return read == 0 and "starting_version" not in self._options.values

    def _latest(self) -> int:
        return self._opened().describe_table(self._table).version or 0

    def _version(self, version: int) -> Any:
        try:
            return self._opened().open(self._table, version)
        except VersionNotFound as error:
            raise VersionNotFound(
                f"version {version} of {self._table}, which the stream still needs, was cleaned up. Keep "
                "versions longer than a stream may stand still; now begin with a new checkpoint, at what the table "
                "holds or at a starting_version that is left."
            ) from error

    def _offset(self, version: int) -> Offset:
        if not version:
            return {"version": 0}
        return {"version": version, "transaction": identity(self._version(version))}

    def _require_same(self, offset: Offset) -> Any:
        """Open the version of an offset; None for version 0.

        Raises:
            Refused: The offset belongs to another table.
        """
        version = offset["version"]
        if not version:
            return None
        dataset = self._version(version)
        if offset.get("transaction") not in (None, identity(dataset)):
            raise self._replaced(version)
        return dataset

    def _replaced(self, version: int) -> Refused:
        return Refused(
            f"{self._table} is not the table that the stream has read up to version {version}: it was dropped and "
            "created again. Start the query with a new checkpoint; it then reads the new table from the beginning, or "
            "from the option starting_version."
        )

    def _parts(self, dataset: Any, fragments: Iterable[Fragment], rows: int) -> list[InputPartition]:
        most = self._options.number("max_partitions") or MOST_PARTITIONS
        chosen = list(partitions(fragments, rows, most))
        if not chosen:
            return []
        reader = self._reader(dataset)
        return [VersionFragments(reader, part.runs) for part in chosen]

    def _reader(self, dataset: Any) -> FragmentReader:
        """Create a reader of a version in the columns that the table has at the first batch.

        Raises:
            InvalidInput: They lack a column of the stream, or have another type.
        """
        if self._current is None:
            current = self._latest()
            try:
                require_types(self._version(current).schema, self._columns)
            except InvalidInput as error:
                raise InvalidInput(
                    f"{error}. If the columns of {self._table} were changed after the stream was loaded, load it again "
                    "and start the query with its checkpoint"
                ) from error
            self._current = current
        snapshot = Snapshot.of(self._opened(), dataset)
        size = self._options.number("batch_size")
        return version_reader(self._history, self._current, dataset, snapshot, self._columns, size, self._table)

    def _appended(self, start: Offset, end: Offset) -> Iterator[tuple[Any, Sequence[Fragment]]]:
        """Yield each version after ``start`` up to ``end`` with the fragments that it added.

        Raises:
            Refused: A version changed rows of earlier versions, or an offset belongs to another table.
        """
        before = self._require_same(start)
        for version in range(start["version"] + 1, end["version"] + 1):
            dataset = self._version(version) if version < end["version"] else self._require_same(end)
            yield dataset, self._added(before, dataset)
            before = dataset

    def _added(self, before: Any, dataset: Any) -> Sequence[Fragment]:
        added = added_fragments(before, dataset)
        if added and self._skips and isinstance(_operation(dataset), lance.LanceOperation.Restore):
            return []  # it brings back rows that earlier versions have appended
        if added is None and not self._skips and changes_rows(before, dataset):
            raise Refused(
                f"version {dataset.version} of {self._table} is no append: it changed or removed rows. A stream has no "
                "way to say so: read with skip_change_commits=true to pass over such versions, rows that they added "
                "included, or begin with a new checkpoint."
            )
        return added or []

    def _within(self, start: Offset, end: int, rows: int) -> int:
        """Return the last version within a limit of appended rows, at least the next version."""
        for dataset, appended in self._appended(start, {"version": end}):
            rows -= sum(fragment.rows for fragment in appended)
            if rows < 0:
                read: int = start["version"]
                return max(int(dataset.version) - 1, read + 1)
        return end


def version_reader(
    history: SchemaHistory,
    current: int,
    dataset: Any,
    snapshot: Snapshot,
    schema: pa.Schema,
    batch_size: int | None,
    name: str,
) -> FragmentReader:
    """Create a reader of a version in the columns of a stream.

    Args:
        history: The schemas of the table.
        current: The version that has the columns of the stream.
        dataset: The version to read.
        snapshot: The same version for tasks.
        schema: The columns of the stream in Spark's Arrow types.
        batch_size: The most rows of a batch.
        name: The table, for errors.

    Raises:
        InvalidInput: The version lacks a column.
    """
    columns, old = history.schema(current), history.schema(dataset.version)
    if columns == old:
        return FragmentReader.of(snapshot, dataset.schema, schema, batch_size)
    origins = origins_by_id(schema, columns, old, history.ids(current, dataset.version))
    if dataset.version > current and any(map(lacks, origins)):
        raise InvalidInput(
            f"version {dataset.version} of {name} dropped a column that the stream reads. Load the table again and "
            "restart the query with its checkpoint."
        )
    return FragmentReader(snapshot, schema, batch_size=batch_size, origins=origins)


def added_fragments(before: Any, dataset: Any) -> Sequence[Fragment] | None:
    """Return the fragments that a version has in addition to an earlier one.

    Returns:
        None if a fragment of the earlier version changed or is missing.
    """
    after = entries(dataset)
    if all(_same(old, next(after, None)) for old in (entries(before) if before is not None else ())):
        return list(stored_fragments(dataset, after))  # the new fragments follow the old fragments
    return None


def changes_rows(before: Any, dataset: Any) -> bool:
    """Return whether a version that changed fragments changed rows.

    A compaction, and a change of columns, keep all rows.
    """
    operation, operations = _operation(dataset), lance.LanceOperation
    if isinstance(operation, operations.Merge):
        old, new = ({entry.id: entry.content for entry in entries(each)} for each in (before, dataset))
        return not keep_rows(old, new)
    return not isinstance(operation, operations.Rewrite)


def _operation(dataset: Any) -> Any:
    """Return the operation of a version; None if its transaction is missing."""
    try:
        transaction = dataset.read_transaction(dataset.version)
    except TypeError:  # pylance 14 cannot build the operation of a compaction that rewrites indexes
        return lance.LanceOperation.Rewrite([], [])
    return None if transaction is None else transaction.operation


def _same(before: FragmentEntry, after: FragmentEntry | None) -> bool:
    return after is not None and before.content == after.content


# -- the sink -------------------------------------------------------------------------------------------------------

QUERY, BATCH = "lancekeep.stream.query", "lancekeep.stream.batch"
"""Properties of the transaction that commits a batch: the ids of the query (from its checkpoint) and the batch."""

_ATTEMPTS = 100


def query_id() -> str:
    """Return the id of the streaming query whose task this is.

    Raises:
        Refused: Spark does not say it.
    """
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if query is None:
        raise Refused("Spark does not say which streaming query this is, so no batch of it could be committed once")
    return query


@attrs.frozen
class WrittenByQuery(Written):
    """The fragments of one task of a streaming query."""

    query: str


class StreamWriter(DataSourceStreamArrowWriter):
    """Commit each batch with rows as one version, even if Spark repeats it.

    The first batch of a query is committed even without rows. So if a table has no version of the query, it is not the
    table to which the query wrote earlier batches. A missing table is created, empty, before the first batch. In output
    mode ``complete`` a batch replaces the rows of the table.
    """

    def __init__(
        self, options: Options, open_catalog: Callable[[], Catalog], schema: StructType, overwrite: bool
    ) -> None:
        self._open = open_catalog
        self._table = options.table
        self._mode = "overwrite" if overwrite else "append"
        self._ignores_removed = options.flag("ignore_removed_versions")
        stable = options.choice(ROW_IDS)
        with open_catalog() as catalog:
            existing = existing_schema(catalog, self._table)
            wanted = target_schema(schema, existing, options.below("vector."), overwrite=overwrite)
            if existing is None:
                with suppress(ConcurrentModification):  # a concurrent writer created it; appends check its schema
                    catalog.commit_fragments(begin_first_write(catalog, self._table, wanted, stable), [], exactly=True)
            self._plan = catalog.begin_write(self._table, wanted, self._mode, stable_row_ids=stable)
            dataset = catalog.open(self._table, self._plan.read_version)
            self._identity, self._columns = identity(dataset), columns_of(dataset)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenByQuery:
        query = query_id()
        return WrittenByQuery(write_batches(iterator, self._plan), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch unless the table already holds it; idempotent across processes.

        The commit succeeds only as the successor of the version that was checked, so check and commit are atomic.
        """
        fragments = fragments_of(messages)
        queries = {message.query for message in messages if isinstance(message, WrittenByQuery)}
        if not queries or (self._mode == "append" and not fragments and batchId):
            return
        (query,) = queries
        looked_at = 0
        with self._open() as catalog:
            for _ in range(_ATTEMPTS):
                plan = catalog.begin_write(self._table, self._plan.schema, self._mode)
                dataset = catalog.open(self._table, plan.read_version)
                self._require_same(catalog, dataset, plan.uri)
                if self._is_committed(dataset, looked_at, query, batchId):
                    return
                looked_at = plan.read_version
                with suppress(ConcurrentModification, VersionTaken):
                    catalog.commit_fragments(
                        plan, fragments, properties={QUERY: query, BATCH: str(batchId)}, exactly=True
                    )
                    return
        raise ConcurrentModification(
            f"{self._table}: other writers kept committing before batch {batchId}; nothing was committed"
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: uncommitted fragments are invisible until clean-up."""

    def _require_same(self, catalog: Catalog, dataset: Any, uri: str) -> None:
        """Check that the tasks write to this table, and to its columns.

        Raises:
            Refused: The table was dropped and created again since the writer was created.
            ConcurrentModification: Another writer changed the columns since; Spark repeats the batch.
        """
        version = self._plan.read_version
        is_same = uri == self._plan.uri and dataset.version >= version
        if is_same:
            with suppress(VersionNotFound):  # cleaned up
                seen = dataset if dataset.version == version else catalog.open(self._table, version)
                is_same = identity(seen) == self._identity
        if not is_same:
            raise Refused(
                f"{self._table} was dropped and created again while a batch was written; nothing was committed. Start "
                "the query with a new checkpoint to write all rows of its source to the new table."
            )
        # The files of the tasks name columns by the ids of fields, which a retyped or replaced column does not keep.
        if self._mode == "append" and not set(self._columns) <= set(columns_of(dataset)):
            raise ConcurrentModification(
                f"{self._table}: another writer changed the columns while a batch was written; nothing was committed. "
                "Start the query again with its checkpoint."
            )

    def _is_committed(self, dataset: Any, looked_at: int, query: str, batch: int) -> bool:
        """Return whether a version after ``looked_at`` holds the batch.

        The query's last commit, usually the latest version, decides; a version that restores an earlier one leads to
        that version. Batch 0 counts as the query's first batch.

        Raises:
            Refused: Versions that may hold the batch were cleaned up, the table has no version of the query, or it has
                a later batch.
        """
        version = dataset.version
        while version > looked_at:
            record = _record(dataset, version)
            if record is None:
                if batch == 0 or self._ignores_removed:
                    return False
                raise Refused(
                    f"whether batch {batch} of the query {query} is in {self._table} cannot be known: versions up to "
                    f"{version} were cleaned up, and none since is the query's. If it is not, go on with the option "
                    "ignore_removed_versions=true; keep versions longer than a query stands still."
                )
            properties, restored = record
            if properties.get(QUERY) == query:
                return is_repeated(self._table, query, int(properties[BATCH]), batch)
            if restored is None:
                version -= 1
            else:
                version, looked_at = restored, 0
        if batch and not looked_at and not self._ignores_removed:
            raise Refused(
                f"{self._table} holds no batch of the query {query}, whose next batch is {batch}: the table was "
                "dropped and created again, or restored. Start the query with a new checkpoint to write all rows of "
                "its source, or continue with the option ignore_removed_versions=true to write only the rows that are "
                "left."
            )
        return False


def _record(dataset: Any, version: int) -> tuple[Mapping[str, str], int | None] | None:
    """Return the properties of a version's transaction, and the version that it restores.

    Returns:
        None if the version was removed. The second item is None if the transaction restores no earlier version: another
        program may have written it, and the search that follows it has to end.
    """
    try:
        transaction = dataset.read_transaction(version)
    except TypeError:  # pylance 14 cannot build the operation of a compaction that rewrites indexes
        return {}, None
    except OSError as error:
        if "not found" in str(error):
            return None
        raise
    if transaction is None:
        return {}, None
    operation = transaction.operation
    restored = int(operation.version) if isinstance(operation, lance.LanceOperation.Restore) else version
    return transaction.transaction_properties or {}, restored if restored < version else None
