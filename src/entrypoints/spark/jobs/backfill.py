"""Compute columns by a Python function or by SQL in the workers, and commit once."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import attrs
import lance
import pyarrow as pa
from lance.file import LanceFileSession
from lance.schema import LanceSchema
from pyarrow import fs

from lancekeep.adapters.lance.alignment import aligned_array, require_storable
from lancekeep.adapters.lance.batches import READ_AHEAD
from lancekeep.application.catalog import Catalog
from lancekeep.application.rows.row_rules import check_texts
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.domain.column_names import require_readable
from lancekeep.domain.errors import ConcurrentModification, InvalidInput, Unsupported
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.row_rules import columns_of
from lancekeep.entrypoints.scanning import batch_rows
from lancekeep.entrypoints.spark import projection
from lancekeep.entrypoints.spark.jobs.files import absolute, place
from lancekeep.entrypoints.spark.jobs.tasks import Clock, Summary, commit_transaction, quiet, run
from lancekeep.entrypoints.spark.reading import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Function = Callable[[pa.RecordBatch], "pa.Array | pa.RecordBatch"]

_ATTEMPTS = 20


def backfill(
    spark: SparkSession,
    catalog: Catalog,
    table: Identifier,
    columns: str | Sequence[str],
    function: Function | str,
    *,
    reads: Sequence[str] | None = None,
    where: str | None = None,
    batch_rows: int | None = None,
    checkpoint: str | None = None,
    progress: Progress = quiet,
) -> Summary:
    """Add or recompute columns as one version, and read and write no other columns.

    Fragments that are appended during the run are computed before the commit, which is made against one version.
    Fragments that lose rows during the run are not recomputed. A repeated run recomputes the columns.

    Args:
        spark: The session.
        catalog: The catalog of the table.
        table: The table.
        columns: The columns to compute.
        function: Takes a batch and returns the column (an Arrow array) or all columns (a record batch), with the same
            rows in the same order, and of one type for the whole table. It is pickled and runs in the workers.
            Or an SQL expression of one column, as of `scanner`, which the engine evaluates in the workers.
        where: With an expression of an existing column, the SQL condition of the rows to compute; others keep their
            value.
        reads: The columns that the function receives; by default all that are not computed.
        batch_rows: The most rows of a batch.
        checkpoint: A folder that records finished fragments, so that a stopped job does not recompute them. It belongs
            to one function: empty it when the function changes.
        progress: Receives the number of finished tasks.

    Raises:
        InvalidInput: An argument is invalid, or the function failed.
        TableNotFound: The table does not exist.
        Retryable: The Spark job failed; nothing was committed.
        Unsupported: A constraint or generated column needs a computed column.
        ConcurrentModification: Every attempt met a conflict; nothing was committed.
    """
    clock = Clock()
    name, targets = ObjectId.of(table), (columns,) if isinstance(columns, str) else tuple(columns)
    needed = sorted(set(targets) & set(columns_of(catalog.find_table(name).rules)))
    if needed:
        raise Unsupported(f"{name}: a constraint or generated column needs {needed[0]}; drop that rule first")
    done: dict[str, _Computed] = {}
    rows = size = reused = 0
    for _ in range(_ATTEMPTS):
        dataset = catalog.open(name)
        work = _Work(
            Snapshot.of(catalog, dataset), targets, _sources(dataset, targets, reads, str(name)), function,
            targets[0] in dataset.schema.names, batch_rows, absolute(checkpoint),
            str(projection.columns_of(dataset)), where,
        )  # fmt: skip
        _require_expression(dataset, work)
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        if not fragments:
            raise InvalidInput(f"{name} has no rows yet; there is nothing to compute from")
        missing = [fragment for fragment in fragments if work.key(fragment) not in done]
        computed = run(
            spark, str(name), "backfill", [fragment.id for fragment in missing], partial(_compute, work=work), progress
        )
        done |= {work.key(fragment): result for fragment, result in zip(missing, computed, strict=True)}
        rows += sum(fragment.num_rows for fragment in missing)
        size += sum(result.bytes for result in computed)
        reused += sum(result.reused for result in computed)
        if work.exists and not any(done[work.key(fragment)].fields for fragment in fragments):
            return Summary("backfill", str(name), rows, size, clock.seconds, dataset.version, dataset.version, {})
        operation = _operation(
            [(fragment, done[work.key(fragment)]) for fragment in fragments], dataset, work, str(name)
        )
        transaction = lance.Transaction(dataset.version, operation)
        try:
            committed = commit_transaction(catalog, name, transaction)
        except ConcurrentModification:
            continue
        counts = {"fragments": len(fragments), "fragments computed before": reused}
        return Summary("backfill", str(name), rows, size, clock.seconds, dataset.version, committed.version, counts)
    raise ConcurrentModification(f"{name}: other writers kept changing it; nothing was committed. Run the job again")


@attrs.frozen
class _Computed:
    """The result for a fragment.

    Attributes:
        files: All files of the fragment, including new ones, as JSON.
        schema: The new schema of the table; None if the columns existed.
        fields: The ids of the recomputed fields; empty if no row satisfies the condition.
        bytes: The bytes that were read.
        reused: Whether the checkpoint had the result.
    """

    files: Any
    schema: Any
    fields: tuple[int, ...]
    bytes: int
    reused: bool = False


@attrs.frozen
class _Work:
    """The input of a task; ``exists`` states whether the columns exist and are recomputed."""

    snapshot: Snapshot
    columns: tuple[str, ...]
    reads: tuple[str, ...]
    function: Function | str
    exists: bool
    batch_rows: int | None
    checkpoint: str | None
    schema: str
    where: str | None

    def key(self, fragment: lance.FragmentMetadata) -> str:
        """Return a key of the fragment's values and the table's columns; deleted rows do not change it."""
        about = [self.snapshot.uri, self.schema, self.columns, self.reads, fragment.id, fragment.to_json()["files"]]
        return blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()


def _sources(dataset: Any, targets: tuple[str, ...], reads: Sequence[str] | None, name: str) -> tuple[str, ...]:
    """Return the columns that the function receives. Raises `InvalidInput`."""
    known = dataset.schema.names
    present = [column for column in targets if column in known]
    if not targets or (present and len(present) != len(targets)):
        raise InvalidInput(f"{name} has {', '.join(present) or 'no column'}: add new columns, or compute all again")
    if not present:
        require_readable(targets)
    chosen = tuple(reads) if reads is not None else tuple(column for column in known if column not in targets)
    unknown = [column for column in chosen if column not in known]
    if unknown:
        raise InvalidInput(f"{name} has no column {unknown[0]!r}; its columns are {', '.join(known)}")
    if not chosen:
        raise InvalidInput("name at least one column that the function reads")
    return chosen


def _require_expression(dataset: Any, work: _Work) -> None:
    """Check the expression and the condition, if there are any. Raises `InvalidInput`."""
    if not isinstance(work.function, str):
        if work.where is not None:
            raise InvalidInput("where needs an SQL expression; a function decides by itself which rows it changes")
        return
    if len(work.columns) != 1 or (work.where is not None and not work.exists):
        raise InvalidInput("an expression computes one column, and where needs a column that exists")
    try:
        dataset.scanner(columns={work.columns[0]: work.function}, filter=work.where, with_row_id=True).explain_plan()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InvalidInput(f"{work.function!r} cannot be computed: {error}; nothing was changed") from error


def _operation(
    results: list[tuple[lance.FragmentMetadata, _Computed]], dataset: Any, work: _Work, name: str
) -> lance.LanceOperation.BaseOperation:
    """Return an operation that adds the computed files to every fragment, without rows deleted since."""
    if len({str(result.schema) for _, result in results}) > 1:
        raise InvalidInput(f"{name}: the function gave {', '.join(work.columns)} in several types; return one")
    fragments = [
        lance.FragmentMetadata.from_json(json.dumps(fragment.to_json() | {"files": result.files}))
        for fragment, result in results
    ]
    if work.exists:
        changed = [fragment for fragment, (_, result) in zip(fragments, results, strict=True) if result.fields]
        # The engine names the leaves alone; an index of a list would answer old values.
        fields = projection.field_ids(dataset, work.columns)
        return lance.LanceOperation.Update(updated_fragments=changed, fields_modified=fields)
    return lance.LanceOperation.Merge(fragments, results[0][1].schema)


# -- in the workers -------------------------------------------------------------------------------------------------


def _compute(fragment_id: int, work: _Work) -> _Computed:
    dataset = work.snapshot.open()
    fragment = dataset.get_fragment(fragment_id)
    key = work.key(fragment.metadata)
    remembered = _remembered(work, key, fragment.metadata)
    if remembered is not None:
        return remembered
    if work.batch_rows is None:
        work = attrs.evolve(work, batch_rows=batch_rows(dataset.schema, work.reads, [fragment]))
    if work.exists:
        values = _read_computed(dataset, fragment, work)
        if not values.num_rows:  # the engine cannot join without rows
            return _Computed(fragment.metadata.to_json()["files"], None, (), 0)
        metadata, fields = fragment.update_columns(values)
        result = _Computed(metadata.to_json()["files"], None, tuple(fields), values.nbytes)
    else:
        result = _add_columns(fragment, work)
    _remember(work, key, result)
    return result


def _add_columns(fragment: Any, work: _Work) -> _Computed:
    if isinstance(work.function, str):
        metadata, schema = fragment.merge_columns({work.columns[0]: work.function}, batch_size=work.batch_rows)
        return _Computed(metadata.to_json()["files"], schema, (), 0)
    failures: list[Exception] = []
    read = 0

    def added(batch: pa.RecordBatch) -> pa.RecordBatch:
        """Call the function and keep its error, which the native engine would replace."""
        nonlocal read
        read += batch.nbytes
        try:
            return _called(work, batch)
        except Exception as error:
            failures.append(error)
            raise

    try:
        metadata, schema = fragment.merge_columns(added, columns=list(work.reads), batch_size=work.batch_rows)
    except Exception as error:
        raise (failures[0] if failures else error) from None
    return _Computed(metadata.to_json()["files"], schema, (), read)


def _read_computed(dataset: Any, fragment: Any, work: _Work) -> pa.Table:
    schema = pa.schema([pa.field("_rowid", pa.uint64()), *(dataset.schema.field(column) for column in work.columns)])
    parts = []
    evaluated = isinstance(work.function, str)
    scanner = dataset.scanner(
        columns={work.columns[0]: work.function} if evaluated else list(work.reads), fragments=[fragment],
        filter=work.where, with_row_id=True, batch_size=work.batch_rows, **READ_AHEAD,
    )  # fmt: skip
    for batch in scanner.to_batches():
        computed = batch if evaluated else _called(work, batch.select(list(work.reads)))
        arrays = [computed.column(column).cast(schema.field(column).type) for column in work.columns]
        parts.append(pa.RecordBatch.from_arrays([batch.column("_rowid"), *arrays], schema=schema))
    return pa.Table.from_batches(parts, schema)


def _called(work: _Work, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Call the function on a batch. Raises `InvalidInput` if it fails or returns something else than promised."""
    assert not isinstance(work.function, str)
    try:
        result = work.function(batch)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidInput(f"the function failed with {reason}") from error
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if isinstance(result, pa.Array) and len(work.columns) == 1:
        result = pa.RecordBatch.from_arrays([result], names=list(work.columns))
    if not isinstance(result, pa.RecordBatch) or sorted(result.schema.names) != sorted(work.columns):
        found = result.schema.names if isinstance(result, pa.RecordBatch) else type(result).__name__
        raise InvalidInput(f"the function has to return {', '.join(work.columns)} in Arrow's arrays; it gave {found}")
    if result.num_rows != batch.num_rows:
        raise InvalidInput(f"the function made {result.num_rows} rows of {batch.num_rows}; it has to keep them all")
    result = result.select(list(work.columns))
    require_storable(result.schema)
    check_texts(result)
    return pa.RecordBatch.from_arrays([aligned_array(each) for each in result.columns], schema=result.schema)


def _remembered(work: _Work, key: str, fragment: lance.FragmentMetadata) -> _Computed | None:
    """Return what an earlier run computed, if its files exist; None for an invalid checkpoint."""
    if work.checkpoint is None:
        return None
    store, path = place(work.checkpoint)
    file = f"{path}/{key}.json"
    if store.get_file_info(file).type != fs.FileType.File:
        return None
    with store.open_input_stream(file) as stream:
        content = stream.read()
    try:
        found = json.loads(content)
        schema = None if work.exists else _decoded(found["schema"])
        result = _Computed(found["files"], schema, tuple(map(int, found["fields"])), 0, reused=True)
        lance.FragmentMetadata.from_json(json.dumps(fragment.to_json() | {"files": result.files}))
        own = {each["path"] for each in fragment.to_json()["files"]}
        new = [each["path"] for each in result.files if each["path"] not in own]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    if not new or not all(map(_DATA_FILE.fullmatch, new)):
        return None
    session = LanceFileSession(work.snapshot.uri, **work.snapshot.access)
    return result if all(session.contains(f"data/{name}") for name in new) else None


_DATA_FILE = re.compile(r"[\w-]+\.lance")


def _remember(work: _Work, key: str, result: _Computed) -> None:
    if work.checkpoint is None:
        return
    store, path = place(work.checkpoint)
    store.create_dir(path, recursive=True)
    schema = None if result.schema is None else _encoded(result.schema)
    content = json.dumps({"files": result.files, "schema": schema, "fields": result.fields}).encode()
    with store.open_output_stream(f"{path}/{key}.part") as stream:
        stream.write(content)
    store.move(f"{path}/{key}.part", f"{path}/{key}.json")  # makes the checkpoint visible atomically


def _encoded(schema: LanceSchema) -> list[str]:
    """Return the schema, field ids included, as its metadata and the protobuf message of each field."""
    reduced: Any = schema.__reduce__()  # a function and its arguments
    metadata, *fields = reduced[1]
    return [metadata, *(b64encode(field).decode() for field in fields)]


def _decoded(encoded: Any) -> LanceSchema:
    """Decode a schema. Raises `ValueError`, `TypeError` or `KeyError` unless `_encoded` wrote it."""
    metadata, *fields = encoded
    schema: LanceSchema = LanceSchema._from_protos(metadata, *(b64decode(field, validate=True) for field in fields))
    return schema
