"""Read the partitions of a scan in Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import attrs
import numpy as np
import pyarrow as pa

from lancekeep.entrypoints.spark.reading import FragmentReader, Snapshot
from lancekeep.entrypoints.spark.sql.aggregates import Aggregation, Aggregator
from lancekeep.entrypoints.spark.sql.metadata_columns import ROW_ADDRESS
from lancekeep.entrypoints.spark.sql.predicates import conjunction
from lancekeep.entrypoints.spark.sql.samples import Sample
from lancekeep.entrypoints.spark.sql.scan import Counter
from lancekeep.entrypoints.spark.sql.top import Order, Rows, TopRows

PARTITION = "_partition"
"""The metadata column with the name of the partition's table."""


@attrs.frozen
class PartitionReader:
    """Compute the part of a query that a scan has accepted; can be pickled.

    Attributes:
        stored: The schema of all partitions.
        wanted: The columns of the results.
        condition: The condition of the rows.
        sample: The sample of the rows.
        limit: The most rows of a task.
        orders: The order of these rows.
        keys: The columns of the order.
        aggregation: The aggregates, whose results are ``wanted``.
        aggregated: The columns of the aggregation.
    """

    stored: pa.Schema
    wanted: pa.Schema
    condition: str | None
    sample: Sample | None
    limit: int | None
    orders: tuple[Order, ...]
    keys: pa.Schema
    aggregation: Aggregation | None
    aggregated: pa.Schema

    def read(self, task: tuple[Snapshot, Sequence[range], str]) -> Iterator[pa.RecordBatch]:
        """Yield the results of fragments of one partition."""
        snapshot, runs, partition = task
        sampled = None if self.sample is None else _sample_of(self.sample, partition).condition
        condition = conjunction([text for text in (self.condition, sampled) if text])

        def reader(wanted: pa.Schema) -> FragmentReader:
            return attrs.evolve(FragmentReader.of(snapshot, self.stored, wanted), filter=condition)

        if self.aggregation is not None and not self.aggregation.counts_rows:
            return Aggregator(self.aggregation, reader(self.aggregated), self.wanted).read(runs)
        if self.aggregation is not None or not self.wanted.names:
            return Counter(snapshot, condition, self.limit, per_row=self.aggregation is None).read(runs)
        own = pa.schema([field for field in self.wanted if field.name in self.stored.names])
        stored = reader(own)
        rows: Rows = stored if len(own) == len(self.wanted) else PartitionRows(stored, self.wanted, partition)
        if self.orders:
            return TopRows(self.orders, self.limit or 0, reader(self.keys), rows).read(runs)
        return rows.read(runs, limit=self.limit)


@attrs.frozen
class PartitionRows:
    """Read fragments of one partition with metadata columns; can be pickled.

    Attributes:
        stored: Reads the stored columns.
        schema: The exact schema of the batches.
        partition: The name of the partition's table.
    """

    stored: FragmentReader
    schema: pa.Schema
    partition: str

    def read(self, runs: Sequence[range], limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the fragments in order, at most ``limit``."""
        for batch, addresses in self.stored.read_with(runs, limit, (ROW_ADDRESS,)):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns[ROW_ADDRESS] = addresses.column(0).cast(pa.int64())
            name = pa.DictionaryArray.from_arrays(np.zeros(addresses.num_rows, np.int8), [self.partition])
            columns[PARTITION] = name.cast(pa.string())
            yield pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def restricted(self, condition: str) -> PartitionRows:
        """Return a reader of the rows that satisfy one condition alone."""
        return attrs.evolve(self, stored=self.stored.restricted(condition))


def _sample_of(sample: Sample, partition: str) -> Sample:
    """Return a sample that chooses other addresses in each partition."""
    return sample._replace(seed=sample.seed ^ int.from_bytes(blake2b(partition.encode(), digest_size=8).digest()))
