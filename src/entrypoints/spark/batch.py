"""Batch reads and writes of ``format("lancekeep")``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from lancekeep.application.catalog import Catalog
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import ConcurrentModification, InvalidInput, TableNotFound
from lancekeep.domain.stable_row_ids import require_row_ids
from lancekeep.entrypoints.spark.arrow_types import arrow_schema, require_fit, require_storable
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.options import MERGE_SCHEMA, ROW_IDS, Options
from lancekeep.entrypoints.spark.reading import (
    MOST_PARTITIONS,
    FragmentReader,
    Snapshot,
    first_rows,
    partitions,
    stored_fragments,
)
from lancekeep.entrypoints.spark.versions import PUSHES_FILTERS
from lancekeep.entrypoints.spark.writing import added_fields, require_extensible, target_schema, write_batches
from lancekeep.ports.table_engine import WritePlan

if TYPE_CHECKING or PUSHES_FILTERS:
    from pyspark.sql.datasource import Filter

    from lancekeep.entrypoints.spark.filters import pushed


def open_version(catalog: Catalog, options: Options) -> Any:
    """Open the version that the options name as a ``LanceDataset``.

    Raises:
        LancekeepError: As for `Catalog.open`.
    """
    tag, branch = options.values.get("tag"), options.values.get("branch")
    return catalog.open(options.table, options.number("version"), tag=tag, branch=branch)


# -- reading --------------------------------------------------------------------------------------------------------


class Fragments(InputPartition):
    """The fragments that one task reads."""

    def __init__(self, runs: Sequence[range], limit: int | None = None) -> None:
        self.runs = runs
        self.limit = limit


class BatchReader(DataSourceReader):
    """Read one version, which is pinned when the query is planned."""

    def __init__(self, options: Options, open_catalog: Callable[[], Catalog], schema: StructType) -> None:
        with open_catalog() as catalog:
            dataset = open_version(catalog, options)
            snapshot = Snapshot.of(catalog, dataset, options.values.get("branch"))
        limit = options.number("limit")
        self._stored: pa.Schema = dataset.schema
        wanted = arrow_of(schema)
        self._reader = FragmentReader.of(snapshot, self._stored, wanted, options.number("batch_size"))
        self._limited = limit is not None
        most = options.number("max_partitions") or MOST_PARTITIONS
        parts = partitions(stored_fragments(dataset), dataset.count_rows(), most)
        if limit is not None:
            self._partitions = [Fragments(part.runs, part.rows) for part in first_rows(parts, limit)]
        else:
            self._partitions = [Fragments(part.runs) for part in parts]
        if PUSHES_FILTERS:
            self.pushFilters = _Offer(self._push)  # type: ignore[method-assign]  # set for one reader: see `_Offer`

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Push filters to the scanner and return the filters that Spark must apply.

        A limit counts rows before any filter, so a limited read pushes no filter.
        """
        if self._limited:
            return filters
        taken = [(condition, pushed(condition, self._stored)) for condition in filters]
        conditions = [condition.sql for _, condition in taken if condition is not None]
        self._reader = attrs.evolve(self._reader, filter=" AND ".join(conditions) or None)
        return [given for given, condition in taken if condition is None or not condition.exact]

    def partitions(self) -> Sequence[InputPartition]:
        return self._partitions or [Fragments([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Fragments)
        return self._reader.read(partition.runs, partition.limit)


class _Offer:
    """Accept filters if Spark offers them.

    With ``spark.sql.python.filterPushdown.enabled`` off, its default, Spark offers no filters and refuses a reader that
    overrides `pushFilters`. Spark detects an override by ``__func__``.
    """

    def __init__(self, push: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._push = push

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


# -- writing --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Written(WriterCommitMessage):
    """The fragments that one task wrote, as JSON."""

    fragments: list[str]


class BatchWriter(DataSourceArrowWriter):
    """Commit one write as one version.

    Like Spark's own formats, an append creates a missing table.
    """

    def __init__(
        self, options: Options, open_catalog: Callable[[], Catalog], schema: StructType, overwrite: bool
    ) -> None:
        self._open = open_catalog
        stable = options.choice(ROW_IDS)
        with open_catalog() as catalog:
            existing = existing_schema(catalog, options.table)
            if existing is not None and stable is not None:
                require_row_ids(options.table, bool(catalog.open(options.table).has_stable_row_ids), stable)
            if options.flag(MERGE_SCHEMA) and existing is not None:
                if overwrite:
                    raise InvalidInput("mergeSchema is for appends; an overwrite replaces the columns anyway")
                existing = merged_schema(catalog, options.table, schema, existing)
            wanted = target_schema(schema, existing, options.below("vector."), overwrite=overwrite)
            self._creates = existing is None and not overwrite
            if self._creates:
                self._plan = begin_first_write(catalog, options.table, wanted, stable)
            else:
                mode = "overwrite" if overwrite else "append"
                self._plan = catalog.begin_write(options.table, wanted, mode, stable_row_ids=stable)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(write_batches(iterator, self._plan))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with self._open() as catalog:
            try:
                catalog.commit_fragments(self._plan, fragments_of(messages), exactly=self._creates)
            except CommitUnknown:
                raise
            except Exception:
                catalog.abandon_write(self._plan)
                raise

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abandon the write unless all tasks finished.

        If all finished, Spark has called `commit`, which cleans up unless the outcome is unknown.
        """
        if None in messages:
            with self._open() as catalog:
                catalog.abandon_write(self._plan)


def existing_schema(catalog: Catalog, table: str) -> pa.Schema | None:
    """Return a table's schema; None if the table or its first version is missing."""
    with suppress(TableNotFound):
        if catalog.describe_table(table).version is not None:
            return catalog.open(table).schema
    return None


def merged_schema(catalog: Catalog, table: str, frame: StructType, existing: pa.Schema) -> pa.Schema:
    """Add the columns and fields that a table lacks, as one version.

    Returns:
        The columns to write. Columns that the DataFrame lacks stay NULL.

    Raises:
        InvalidInput: The DataFrame does not fit the table; no column was added.
    """
    offered = arrow_schema(frame)
    missing = added_fields(offered, existing)
    given = frozenset(offered.names)
    kept = given.intersection(existing.names)
    lacking = [field.name for field in existing if field.name not in kept and not field.nullable]
    if lacking:
        raise InvalidInput(f"{table}: the DataFrame lacks {lacking[0]!r}, which takes no nulls")
    merged = pa.unify_schemas([existing.remove_metadata(), pa.schema(missing)]) if missing else existing
    wanted = pa.schema([merged.field(name) for name in offered.names])
    require_fit(offered, wanted)
    require_storable(merged)

    def act(dataset: Any) -> Any:
        require_extensible(dataset, missing)
        dataset.add_columns(pa.schema(missing))
        return dataset

    if missing:
        catalog.commit_change(table, act)
    stored = catalog.open(table).schema
    return pa.schema([stored.field(name) for name in stored.names if name in given])


def begin_first_write(catalog: Catalog, table: str, schema: pa.Schema, stable_row_ids: bool | None) -> WritePlan:
    """Prepare version 1 of a table, which may be declared; commit it ``exactly``.

    ``stable_row_ids`` is the argument of `Catalog.begin_write`.

    Raises:
        ConcurrentModification: A concurrent writer has created the table.
    """
    plan = catalog.begin_write(table, schema, "overwrite", stable_row_ids=stable_row_ids)
    if plan.read_version:
        raise ConcurrentModification(
            f"{table}: another writer has just created the table; nothing was written. Write again."
        )
    return plan


def fragments_of(messages: Iterable[WriterCommitMessage | None]) -> list[str]:
    """Return the fragments that all tasks wrote."""
    return [fragment for message in messages if isinstance(message, Written) for fragment in message.fragments]
