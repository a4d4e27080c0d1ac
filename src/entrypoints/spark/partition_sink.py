"""Stream into all partitions of a catalog.

Tasks divide their rows by partition. The change that publishes all partitions of a batch also records the batch, so
each is published once (docs/adr/0182).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from lancekeep.application.catalog import Catalog
from lancekeep.application.partitions.writing import APPEND, PartitionWritePlan, WrittenPartition
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.partition_batches import Batch
from lancekeep.domain.partitions import key_of
from lancekeep.entrypoints.spark.arrow_types import arrow_schema, require_fit
from lancekeep.entrypoints.spark.options import ROW_IDS, Options
from lancekeep.entrypoints.spark.partitions import PartitionedRows
from lancekeep.entrypoints.spark.streaming import query_id
from lancekeep.entrypoints.spark.versions import DataSourceStreamArrowWriter


@attrs.frozen
class WrittenByTask(WriterCommitMessage):
    """The partitions that one task of a streaming query wrote, and their plan."""

    parts: list[WrittenPartition]
    plan: PartitionWritePlan
    query: str


class PartitionStreamWriter(DataSourceStreamArrowWriter):
    """Publish each batch once, even if Spark repeats it.

    Spark creates a writer for each batch, so its plan knows the partitions that earlier batches have created. Another
    writer commits; the tasks pass on their plan.
    """

    def __init__(
        self, options: Options, open_catalog: Callable[[], Catalog], schema: StructType, overwrite: bool
    ) -> None:
        require_append(options.table, overwrite=overwrite)
        for name in options.values:
            if name == ROW_IDS or name.startswith("vector."):
                raise InvalidInput(f"{options.table}: the option {name} applies to new tables only; leave it out")
        self._open = open_catalog
        self._ignores_missing = options.flag("ignore_removed_versions")
        with open_catalog() as catalog:
            self._plan = catalog.partitions.open().begin_write(APPEND)
        require_fit(arrow_schema(schema), self._plan.schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenByTask:
        query, rows = query_id(), PartitionedRows(self._plan)
        for batch in iterator:
            rows.add(batch)
        rows.flush()
        return WrittenByTask(rows.written, self._plan, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish a batch unless it is published; idempotent across processes."""
        written = [message for message in messages if isinstance(message, WrittenByTask)]
        queries = {message.query for message in written}
        if not queries:
            return
        (query,), plan = queries, written[0].plan
        batch = Batch(query, batchId, self._ignores_missing)
        parts = joined(part for message in written for part in message.parts)
        if not parts and batchId:
            return
        with self._open() as catalog:
            catalog.partitions.open().publish(attrs.evolve(plan, batch=batch), parts)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what was not published is invisible until clean-up."""


def require_append(name: str, *, overwrite: bool) -> None:
    """Check that a stream into all partitions replaces no rows.

    Raises:
        InvalidInput: It replaces them.
    """
    if overwrite:
        raise InvalidInput(
            f"{name} is all partitions of the catalog, to which the output mode complete does not apply; nothing was "
            "written. Use the output mode append, or foreachBatch with INSERT OVERWRITE."
        )


def joined(parts: Iterable[WrittenPartition]) -> list[WrittenPartition]:
    """Return the partitions, each once: several tasks may have written one."""
    found: dict[object, WrittenPartition] = {}
    for part in parts:
        key = key_of(part.values)
        before = found.get(key)
        found[key] = part if before is None else attrs.evolve(before, fragments=(*before.fragments, *part.fragments))
    return list(found.values())
