"""Stage rows as uncommitted fragments, from which the driver reads batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import lance
import pyarrow as pa
from lance.file import LanceFileSession
from pyspark.sql import functions as sql

from lancekeep.adapters.lance.batches import BATCH_BYTES, MOST_ROWS
from lancekeep.entrypoints.spark.arrow_types import as_spark_sees, as_spark_takes, fit, spark_schema
from lancekeep.entrypoints.spark.failures import translated
from lancekeep.entrypoints.spark.ingest import collected
from lancekeep.entrypoints.spark.writing import write_batches
from lancekeep.ports.table_engine import WritePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@attrs.frozen
class StagedFile:
    """A data file below ``data/``; ``size`` is in bytes."""

    path: str
    rows: int
    size: int

    @property
    def batch_rows(self) -> int:
        return max(1, min(MOST_ROWS, BATCH_BYTES * self.rows // max(1, self.size)))


class StagedRows:
    """Uncommitted fragments of a table.

    Fragments that are never committed are invisible and remain until clean-up.
    """

    def __init__(self, plan: WritePlan, fragments: Sequence[str]) -> None:
        self.fragments = [lance.FragmentMetadata.from_json(fragment) for fragment in fragments]
        self._plan = plan
        self._files = [
            StagedFile(file.path, fragment.physical_rows, file.file_size_bytes or 0)
            for fragment in self.fragments
            for file in fragment.files
        ]

    @staticmethod
    def of_frame(frame: DataFrame, plan: WritePlan) -> StagedRows:
        """Write the rows of a DataFrame in Spark's tasks.

        Raises:
            InvalidInput: A value does not fit.
            Retryable: The Spark job failed.
        """

        def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            fragments = write_batches(batches, plan)
            if fragments:
                yield pa.RecordBatch.from_pydict({"fragment": fragments})

        rows = collected(frame, stage, "fragment string", str(plan.table))
        return StagedRows(plan, [row.fragment for row in rows])

    @staticmethod
    def of_table(table: pa.Table, plan: WritePlan) -> StagedRows:
        return StagedRows(plan, write_batches(table.to_batches(), plan))

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self._files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self._files)

    def reader(self, names: list[str]) -> pa.RecordBatchReader:
        """Return a new reader of columns."""
        session, schema = _session(self._plan), pa.schema([self._plan.schema.field(name) for name in names])
        batches = (batch for file in self._files for batch in _read(session, file, schema))
        return pa.RecordBatchReader.from_batches(schema, batches)

    def keys(self, frame: DataFrame, names: list[str]) -> tuple[int, dict[str, int]]:
        """Count keys and nulls in Spark's tasks.

        Returns:
            The number of distinct keys, and the number of nulls in each column of the key.
        """
        plan = self._plan
        stored = pa.schema([plan.schema.field(name) for name in names])
        seen = pa.schema([pa.field(field.name, as_spark_sees(field.type)) for field in stored])

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            session = _session(plan)
            for batch in batches:
                for row in batch.to_pylist():
                    for part in _read(session, StagedFile(**row), stored):
                        yield as_spark_takes(part, seen)

        spark = frame.sparkSession
        files = spark.createDataFrame(
            [attrs.astuple(file) for file in self._files], "path string, rows long, size long"
        )
        columns = [f"key{at}" for at in range(len(names))]
        with translated(str(plan.table)):
            keys = files.repartition(len(self._files)).mapInArrow(read, spark_schema(stored)).toDF(*columns)
            counted = keys.groupBy(*columns).count()
            lacking = [sql.sum(sql.when(sql.col(name).isNull(), sql.col("count"))) for name in columns]
            [found] = counted.agg(sql.count("*"), *lacking).collect()
        return found[0], {name: nulls or 0 for name, nulls in zip(names, found[1:], strict=True)}


def _session(plan: WritePlan) -> LanceFileSession:
    return LanceFileSession(plan.uri, **plan.access)


def _read(session: LanceFileSession, file: StagedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    reader: Any = session.open_reader(f"data/{file.path}", columns=schema.names)
    for batch in reader.read_all(batch_size=file.batch_rows, batch_readahead=2).to_batches():
        yield fit(batch, schema)
