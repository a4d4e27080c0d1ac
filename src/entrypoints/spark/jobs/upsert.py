"""Upsert rows by key, as one version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.adapters.lance.alignment import aligned
from lancekeep.application.catalog import Catalog
from lancekeep.domain.column_names import quoted
from lancekeep.domain.errors import ConcurrentModification, InvalidInput
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.entrypoints.spark.arrow_types import fit, key_of
from lancekeep.entrypoints.spark.failures import translated
from lancekeep.entrypoints.spark.jobs.staged import StagedRows
from lancekeep.entrypoints.spark.jobs.tasks import Clock, Summary, commit_transaction
from lancekeep.entrypoints.spark.projection import columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DUPLICATES = ("refuse", "last")

_ATTEMPTS = 50


def upsert(
    catalog: Catalog,
    table: Identifier,
    source: DataFrame | pa.Table,
    on: str | list[str] | None = None,
    *,
    duplicates: str = "refuse",
) -> Summary:
    """Update rows whose key is in ``source`` and insert other rows, as one version.

    The rows are staged first; Spark's tasks stage a DataFrame. The driver then reads only the keys (ADR 27). The commit
    is built against one version and rebuilt if another commit precedes it, so two upserts never insert one key twice.
    A repeated run changes no row but creates a version.

    Args:
        catalog: The catalog of the table.
        table: The table.
        source: The rows, with all columns of the table, matched by name.
        on: The columns of the key; by default the primary key of the table. Rows of the table that share a key become
            one row.
        duplicates: For keys that occur twice in the source: ``refuse`` them, or let the ``last`` row win, which only a
            pyarrow table supports, because its rows are ordered.

    Raises:
        InvalidInput: The source does not fit, or its keys are null or repeated.
        TableNotFound: The table does not exist.
        ConcurrentModification: Every attempt met a conflict, or the columns changed; nothing was committed.
        LancekeepError: The commit failed, as for `Catalog.write`.
    """
    clock = Clock()
    name = ObjectId.of(table)
    if duplicates not in DUPLICATES:
        raise InvalidInput(f"unknown rule for duplicates {duplicates!r}; choose {', '.join(DUPLICATES)}")
    if duplicates == "last" and not isinstance(source, pa.Table):
        raise InvalidInput(
            "the rows of a DataFrame have no order: reduce them to one for each key, or give an Arrow table"
        )
    dataset = catalog.open(name)
    keys = [on] if isinstance(on, str) else list(on or key_of(dataset.schema))
    if not keys:
        raise InvalidInput(f"{name} has no primary key; name the columns of a key with on")
    columns = columns_of(dataset)  # with the field ids that the staged files use
    rows = _staged(catalog, dataset, name, source, keys, duplicates)
    for _ in range(_ATTEMPTS):
        dataset = catalog.open(name)
        if not rows.rows:
            return Summary("upsert", str(name), 0, 0, clock.seconds, dataset.version, dataset.version)
        if columns_of(dataset) != columns:
            raise ConcurrentModification(
                f"{name}: its columns changed during the job; nothing was committed. Run it again"
            )
        transaction, updated = _built(dataset, rows, keys)
        try:
            committed = commit_transaction(catalog, name, transaction)
        except ConcurrentModification:
            continue
        counts = {"updated": updated, "inserted": max(0, rows.rows - updated)}
        return Summary(
            "upsert", str(name), rows.rows, rows.size, clock.seconds, dataset.version, committed.version, counts
        )
    raise ConcurrentModification(f"{name}: other writers kept changing it; nothing was committed. Run the job again")


def changes_in(spark: SparkSession, sources: Sequence[str], format: str) -> DataFrame:  # noqa: A002 - Spark's word
    """Load files as a DataFrame to upsert.

    Args:
        spark: The session.
        sources: The files.
        format: Spark's name of the format.

    Raises:
        InvalidInput: Spark cannot load the files.
    """
    with translated(", ".join(sources)):
        return spark.read.format(format).load(list(sources))


def _staged(
    catalog: Catalog, dataset: Any, name: ObjectId, source: Any, keys: list[str], duplicates: str
) -> StagedRows:
    """Stage the source. Raises `InvalidInput` if it does not fit, or if a key is null or repeated."""
    schema = dataset.schema
    if isinstance(source, pa.Table):
        _require_columns(source.column_names, schema, keys, str(name))
        fitted = pa.Table.from_batches([fit(batch, schema) for batch in source.to_batches()], schema)
        table = _keyed(fitted, keys, duplicates, str(name))
        return StagedRows.of_table(table, catalog.begin_write(name, schema, "append"))
    if not hasattr(source, "mapInArrow"):
        raise InvalidInput(f"cannot upsert a {type(source).__qualname__}; give a Spark DataFrame or a pyarrow Table")
    _require_columns(source.columns, schema, keys, str(name))
    staged = StagedRows.of_frame(source, catalog.begin_write(name, schema, "append"))
    if staged.rows:
        found, lacking = staged.keys(source, keys)
        _require_keys(staged.rows, found, lacking, str(name))
    return staged


def _require_columns(given: Sequence[str], schema: pa.Schema, keys: list[str], name: str) -> None:
    known, offered = dict.fromkeys(schema.names), dict.fromkeys(given)
    problems = [f"{column!r} is missing" for column in known if column not in offered]
    problems += [f"{column!r} is not a column of the table" for column in offered if column not in known]
    if problems:
        raise InvalidInput(f"{name}: the source does not fit; nothing was written: {'; '.join(problems)}")
    unknown = [key for key in keys if key not in known]
    if unknown or not keys:
        raise InvalidInput(
            f"{name} has no column {unknown[0]!r} for a key" if unknown else "name the columns of the key"
        )


def _require_keys(rows: int, found: int, lacking: Mapping[str, int], name: str) -> None:
    """Check that no key is repeated or null."""
    for key, nulls in lacking.items():
        if nulls:
            raise InvalidInput(f"{name}: {nulls} rows of the source have no {key!r}, which is of the key")
    if found < rows:
        raise InvalidInput(
            f"{name}: {rows} rows of the source have {found} keys; have each once, or say duplicates='last'"
        )


def _keyed(rows: pa.Table, keys: list[str], duplicates: str, name: str) -> pa.Table:
    """Return the rows with unique keys. Raises `InvalidInput` if a key is null or repeated."""
    same = rows.select(keys)
    for key in _floating(rows.schema, keys):
        same = same.set_column(same.column_names.index(key), key, pc.add(same[key], 0.0))  # -0.0 as 0.0
    numbered = same.append_column("lancekeep_at", pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(keys).aggregate([("lancekeep_at", "max")])
    found = rows.num_rows if duplicates == "last" else last.num_rows
    _require_keys(rows.num_rows, found, {key: rows[key].null_count for key in keys}, name)
    if last.num_rows == rows.num_rows:
        return rows
    places = last["lancekeep_at_max"].combine_chunks()
    return rows.take(places.take(pc.sort_indices(places)))


def _built(dataset: Any, rows: StagedRows, keys: list[str]) -> tuple[lance.Transaction, int]:
    """Return a transaction that replaces the rows of these keys, and the number of rows that it removes.

    The function reads only keys, unless the table has stable row ids: then it reads all columns, so that updated rows
    keep their ids.
    """
    merge = dataset.merge_insert(keys)
    floating = _floating(dataset.schema, keys)
    try:
        if dataset.has_stable_row_ids:
            merge = merge.when_matched_update_all().when_not_matched_insert_all()
            zeros = {key: _stored_zero(dataset, key) for key in floating}
            source = _mapped(rows.reader(dataset.schema.names), lambda batch: _with_stored_zeros(batch, zeros))
            transaction, stats = merge.execute_uncommitted(aligned(source))
            return transaction, stats["num_updated_rows"]
        matched = _mapped(rows.reader(keys), lambda batch: _with_both_zeros(batch, floating))
        removal, stats = merge.when_matched_delete().execute_uncommitted(aligned(matched))
    except ValueError as error:
        raise InvalidInput(f"the rows cannot be merged by {', '.join(keys)}: {error}") from error
    operation = replace(removal.operation, new_fragments=rows.fragments)
    return lance.Transaction(dataset.version, operation), stats["num_deleted_rows"]


# -- zeros: 0.0 and -0.0 are different keys in Lance and equal in SQL -------------------------------------------------


def _floating(schema: pa.Schema, keys: list[str]) -> list[str]:
    return [key for key in keys if pa.types.is_floating(schema.field(key).type)]


def _mapped(
    reader: pa.RecordBatchReader, change: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]
) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(reader.schema, (part for batch in reader for part in change(batch)))


def _with_both_zeros(batch: pa.RecordBatch, keys: list[str]) -> Iterable[pa.RecordBatch]:
    """Return the keys of a batch; keys with a zero appear with either zero."""
    parts = [batch]
    for key in keys:
        for part in list(parts):
            zeros = part.filter(pc.equal(part[key], 0))
            if zeros.num_rows:
                parts.append(
                    zeros.set_column(batch.schema.get_field_index(key), batch.schema.field(key), pc.negate(zeros[key]))
                )
    return parts


def _stored_zero(dataset: Any, key: str) -> pa.Scalar | None:
    """Return the zero that a column of the table stores; None if it stores none."""
    column = quoted(key)
    found = pc.unique(dataset.to_table([key], filter=f"{column} >= -0.0 AND {column} <= 0.0")[key]).drop_null()
    if len(found) > 1:
        raise InvalidInput(
            f"the key {key!r} has both 0.0 and -0.0 in the table, which are equal: update one of the two rows"
        )
    return found[0] if len(found) else None


def _with_stored_zeros(batch: pa.RecordBatch, zeros: Mapping[str, pa.Scalar | None]) -> Iterable[pa.RecordBatch]:
    """Replace the zeros in a batch's keys by the zeros that the table stores."""
    for key, zero in zeros.items():
        if zero is not None:
            field = batch.schema.field(key)
            same = pc.if_else(pc.fill_null(pc.equal(batch[key], 0), False), zero, batch[key])
            batch = batch.set_column(batch.schema.get_field_index(key), field, same)
    return [batch]
