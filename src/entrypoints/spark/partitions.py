"""Read and write partitioned namespaces as Spark DataFrames.

A write shuffles the rows by their partition values, so that one task holds all rows of a partition. Executors write
fragments; the driver commits each partition once and publishes all in one step. A read runs one task per partition
that matches the filter, at its published version. Executors receive URIs and storage options, never a catalog.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import attrs
import lance
import numpy as np
import pyarrow as pa

from lancekeep.application.partitions.namespace import PartitionedNamespace
from lancekeep.application.partitions.values import expression, is_understood, partition_arrays, split
from lancekeep.application.partitions.writing import APPEND, PartitionWritePlan, WrittenPartition
from lancekeep.domain.errors import MissingExtra
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.partitions import Partition, Values, key_of
from lancekeep.entrypoints.spark.arrow_types import arrow_schema, as_spark_sees, fit, require_fit
from lancekeep.entrypoints.spark.ingest import collected
from lancekeep.entrypoints.spark.internals.schemas import spark_of
from lancekeep.entrypoints.spark.worker_gc import freeze_imports
from lancekeep.entrypoints.spark.writing import write_batches
from lancekeep.native import CACHED_METADATA

try:
    from pyspark.sql.types import StringType, StructField, StructType
except ImportError as error:
    raise MissingExtra("this needs PySpark: pip install 'lancekeep[spark]'") from error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_KEY = "__lancekeep_partition"
"""The shuffle column: the partition values as text."""
_HELD_BYTES = 64 << 20
"""The most bytes of new rows that a task holds in memory, unless they are sorted by partition."""


def write_partitioned(frame: DataFrame, namespace: PartitionedNamespace, mode: str = APPEND) -> list[Partition]:
    """Write a DataFrame to its partitions and publish them in one step.

    Args:
        frame: The rows. Columns are matched by name.
        namespace: The partitioned namespace.
        mode: As for `PartitionedNamespace.write`.

    Returns:
        The written partitions.

    Raises:
        InvalidInput: The DataFrame does not fit the schema, or a value does not fit; nothing was published.
        Refused: As for `PartitionedNamespace.begin_write`.
        Retryable: The Spark job failed; nothing was published.
        LancekeepError: Publication failed, as for `PartitionedNamespace.write`.
    """
    plan = namespace.begin_write(mode)
    return namespace.publish(plan, written_partitions(frame, plan))


def written_partitions(frame: DataFrame, plan: PartitionWritePlan) -> list[WrittenPartition]:
    """Write a DataFrame to its partitions, which a publication makes visible.

    Raises:
        InvalidInput: The DataFrame does not fit the schema, or a value does not fit.
        Retryable: The Spark job failed.
    """
    require_fit(arrow_schema(frame.schema), plan.schema)
    columns = StructType([*frame.schema.fields, StructField(_KEY, StringType())])
    keyed = frame.mapInArrow(lambda batches: _keyed(batches, plan), columns)
    shuffled = keyed.repartition(_KEY).sortWithinPartitions(_KEY)
    rows = collected(shuffled, lambda batches: _written(batches, plan), _WRITTEN, "the partitions")
    return [_decoded(row, plan) for row in rows]


def read_partitioned(
    spark: SparkSession,
    namespace: PartitionedNamespace,
    filter: Any = None,  # noqa: A002 - the public name of the argument
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return the rows that satisfy a filter as a lazy DataFrame.

    The call pins the published versions; tasks read when the DataFrame is used.

    Args:
        spark: The session.
        namespace: The partitioned namespace.
        filter: As for `PartitionedNamespace.scan`; partitions that cannot match are skipped.
        columns: The columns to read; by default all.

    Raises:
        LancekeepError: As for `PartitionedNamespace.scan`.
    """
    scan = namespace.scan(filter)
    chosen = scan.select(columns)
    seen = pa.schema([pa.field(field.name, as_spark_sees(field.type)) for field in chosen])
    places = tuple(_place(namespace, each) for each in scan.partitions)
    tasks = spark.createDataFrame([(at,) for at in range(len(places))], "at int").repartition(max(1, len(places)), "at")
    read = _Read(scan.schema, scan.filter, tuple(chosen.names), seen, places)
    return tasks.mapInArrow(read, spark_of(seen, keep_zoneless=True))


def _keyed(batches: Iterable[pa.RecordBatch], plan: PartitionWritePlan) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        for values, part in split(rows, partition_values(batch, plan)):
            key = pa.array([repr(key_of(values))] * part.num_rows, pa.string())
            yield from part.append_column(_KEY, key).combine_chunks().to_batches()


def partition_values(batch: pa.RecordBatch, plan: PartitionWritePlan) -> list[pa.Array]:
    """Return the values of each partition field for rows in Spark's types."""
    fitted = pa.Table.from_batches([fit(batch, plan.schema)])
    return partition_arrays(fitted, plan.spec, plan.schema)


@attrs.define
class PartitionedRows:
    """The new rows of a task, by partition.

    Other tasks may write the same new partition: each writes to the directory that the plan derives.
    """

    plan: PartitionWritePlan
    written: list[WrittenPartition] = attrs.field(factory=list)
    _held: dict[Values, tuple[Values, list[pa.RecordBatch]]] = attrs.field(factory=dict)
    _bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for values, part in split(pa.Table.from_batches([batch]), partition_values(batch, self.plan)):
            self._held.setdefault(key_of(values), (values, []))[1].extend(part.combine_chunks().to_batches())
        self._bytes += batch.nbytes
        if self._bytes > _HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        for values, batches in self._held.values():
            place, location = self.plan.place(values, shared=True)
            self.written.append(WrittenPartition(values, tuple(write_batches(batches, place)), place, location))
        self._held.clear()
        self._bytes = 0


def _written(batches: Iterable[pa.RecordBatch], plan: PartitionWritePlan) -> Iterator[pa.RecordBatch]:
    for _, runs in groupby(_runs(batches), key=itemgetter(0)):
        parts = (rows for _, rows in runs)
        first = next(parts)
        arrays = partition_values(first.slice(0, 1), plan)
        place, location = plan.place(tuple(column[0].as_py() for column in arrays))
        fragments = write_batches(chain([first], parts), place)
        values = pa.RecordBatch.from_arrays(arrays, names=[str(at) for at in range(len(arrays))])
        row = {"names": list(place.table.names), "location": location, "fragments": fragments}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, values.schema) as stream:
            stream.write_batch(values)
        yield pa.RecordBatch.from_pydict({"place": [json.dumps(row)], "values": [sink.getvalue().to_pybytes()]})


_WRITTEN = "place string, values binary"
"""The columns of a task's answer per partition: name, location and fragments as JSON, values as an Arrow stream."""


def _decoded(row: Row, plan: PartitionWritePlan) -> WrittenPartition:
    found = json.loads(row.place)
    [batch] = pa.ipc.open_stream(bytes(row["values"]))
    values = tuple(column[0].as_py() for column in batch.columns)
    location = found["location"]
    place = plan.place(values)[0] if location is None else plan.at(ObjectId(tuple(found["names"])), location)
    return WrittenPartition(values, tuple(found["fragments"]), place, location)


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split batches into runs of consecutive rows with the same key."""
    for batch in batches:
        keys = batch.column(_KEY)
        rows = batch.drop_columns([_KEY])
        codes = keys.dictionary_encode().indices.to_numpy()
        starts = [*np.flatnonzero(np.diff(codes, prepend=-1)).tolist(), len(codes)]
        for start, end in pairwise(starts):
            yield keys[start].as_py(), rows.slice(start, end - start)


@attrs.frozen
class _Place:
    """A partition at its published version, which a task opens; can be pickled."""

    uri: str
    storage_options: dict[str, str] = attrs.field(repr=False)
    version: int | None
    branch: str | None
    tag: str | None

    def open(self) -> Any:
        version = self.tag if self.branch is None and self.tag is not None else self.version
        open_at = partial(
            lance.dataset,
            self.uri,
            storage_options=self.storage_options or None,
            metadata_cache_size_bytes=CACHED_METADATA,
        )
        if self.branch is None:
            return open_at(version=version)
        return open_at().checkout_version((self.branch, self.version))


def _place(namespace: PartitionedNamespace, partition: Partition) -> _Place:
    uri, options = namespace.place(partition)
    return _Place(uri, dict(options), partition.version, partition.branch, partition.tag)


@attrs.frozen
class _Read:
    """A task that reads partitions; can be pickled. Its input rows are positions in ``places``."""

    schema: pa.Schema
    filter: Any
    names: tuple[str, ...]
    seen: pa.Schema
    places: tuple[_Place, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        condition = expression(self.filter, self.schema)
        for place in (self.places[at] for batch in batches for at in batch.column("at").to_pylist()):
            dataset = place.open()
            if condition is None or is_understood(self.filter, self.schema):
                found = dataset.to_batches(columns=list(self.names), filter=condition)
            else:
                tables = (pa.Table.from_batches([batch]).filter(condition) for batch in dataset.to_batches())
                found = (batch for table in tables for batch in table.to_batches())
            for batch in found:
                yield pa.RecordBatch.from_arrays(
                    [batch.column(field.name).cast(field.type) for field in self.seen], schema=self.seen
                )
