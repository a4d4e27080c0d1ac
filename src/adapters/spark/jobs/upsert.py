"""Rows into a table by key: those that are there are updated, the others added, as one version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.adapters.spark.arrow_types import fit
from lancekeep.adapters.spark.failures import translated
from lancekeep.adapters.spark.jobs.tasks import Clock, Summary
from lancekeep.application.catalog import Catalog, Identifier
from lancekeep.domain.errors import ConcurrentModification, InvalidInput
from lancekeep.domain.identifiers import ObjectId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DUPLICATES = ("refuse", "last")

_ATTEMPTS = 50


def upsert(
    catalog: Catalog,
    table: Identifier,
    source: DataFrame | pa.Table,
    on: str | list[str],
    *,
    duplicates: str = "refuse",
) -> Summary:
    """Update the rows whose key is in ``source`` and add the others, as one version.

    source: with all columns of the table, by name; a DataFrame is collected first, so it should be changes, not the
    whole table. on: the columns of the key; nulls in it are refused. duplicates: of a key in the source, ``refuse``, or
    have the ``last`` row win, which only a pyarrow table has an order for.

    Built and committed against one version: where others commit meanwhile, it is built again, so that two upserts
    never add one key twice. Again, it changes no row; it does make a version. Raises `InvalidInput`, `TableNotFound`,
    and as `Catalog.write`; then nothing was committed.
    """
    clock = Clock()
    name, keys = ObjectId.of(table), [on] if isinstance(on, str) else list(on)
    if duplicates not in DUPLICATES:
        raise InvalidInput(f"unknown rule for duplicates {duplicates!r}; choose {', '.join(DUPLICATES)}")
    if duplicates == "last" and not isinstance(source, pa.Table):
        raise InvalidInput(
            "the rows of a DataFrame have no order: reduce them to one for each key, or give an Arrow table"
        )
    dataset = catalog.open(name)
    given = _collected(source, str(name))
    rows = _keyed(_fitted(given, dataset.schema, str(name)), keys, duplicates, str(name))
    for _ in range(_ATTEMPTS):
        dataset = catalog.open(name)
        if not rows.num_rows:
            return Summary("upsert", str(name), 0, 0, clock.seconds, dataset.version, dataset.version)
        transaction, stats = _built(dataset, rows, keys)

        def commit(latest: lance.LanceDataset, transaction: lance.Transaction = transaction) -> lance.LanceDataset:
            return lance.LanceDataset.commit(latest, transaction)

        try:
            committed = catalog.commit_change(name, commit, after=dataset.version)
        except ConcurrentModification:
            continue
        counts = {"updated": stats["num_updated_rows"], "inserted": stats["num_inserted_rows"]}
        return Summary(
            "upsert", str(name), rows.num_rows, rows.nbytes, clock.seconds, dataset.version, committed.version, counts
        )
    raise ConcurrentModification(f"{name}: others kept changing it; nothing was committed")


def changes_in(spark: SparkSession, sources: Sequence[str], format: str) -> DataFrame:  # noqa: A002 - Spark's word
    """Files as a DataFrame to upsert; format as Spark takes it. Raises `InvalidInput`."""
    with translated(", ".join(sources)):
        return spark.read.format(format).load(list(sources))


def _collected(source: Any, name: str) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if not hasattr(source, "toArrow"):
        raise InvalidInput(f"cannot upsert a {type(source).__qualname__}; give a Spark DataFrame or a pyarrow Table")
    with translated(name):
        return source.toArrow()


def _fitted(rows: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    problems = [f"{column!r} is missing" for column in schema.names if column not in rows.column_names]
    problems += [
        f"{column!r} is not a column of the table" for column in rows.column_names if column not in schema.names
    ]
    if problems:
        raise InvalidInput(f"{name}: the source does not fit; nothing was written: {'; '.join(problems)}")
    return pa.Table.from_batches([fit(batch, schema) for batch in rows.to_batches()], schema)


def _keyed(rows: pa.Table, keys: list[str], duplicates: str, name: str) -> pa.Table:
    """Each key once, and none of them null. Raises `InvalidInput`."""
    unknown = [key for key in keys if key not in rows.column_names]
    if unknown or not keys:
        raise InvalidInput(
            f"{name} has no column {unknown[0]!r} for a key" if unknown else "name the columns of the key"
        )
    for key in keys:
        if rows[key].null_count:
            raise InvalidInput(
                f"{name}: {rows[key].null_count} rows of the source have no {key!r}, which is of the key"
            )
    numbered = rows.select(keys).append_column("lancekeep_at", pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(keys).aggregate([("lancekeep_at", "max")])
    if last.num_rows == rows.num_rows:
        return rows
    if duplicates == "refuse":
        raise InvalidInput(
            f"{name}: {rows.num_rows} rows of the source have {last.num_rows} keys; have each once, or say "
            "duplicates='last'"
        )
    places = last["lancekeep_at_max"].combine_chunks()
    return rows.take(places.take(pc.sort_indices(places)))


def _built(dataset: Any, rows: pa.Table, keys: list[str]) -> tuple[lance.Transaction, dict[str, int]]:
    try:
        merge = dataset.merge_insert(keys).when_matched_update_all().when_not_matched_insert_all()
        transaction, stats = merge.execute_uncommitted(rows)
    except ValueError as error:
        raise InvalidInput(f"the rows cannot be merged by {', '.join(keys)}: {error}") from error
    return transaction, stats
