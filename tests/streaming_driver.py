"""A driver that copies a table as a stream, one version a batch, and dies at a given moment; run as a program.

``DIE``: ``written`` kills everything when a task has written its rows, ``committing`` before the commit of a batch,
``committed`` behind it, before Spark knows.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lancekeep.adapters.spark.streaming import StreamWriter, WrittenByQuery
from pyspark_lancekeep import DefaultSource


def die_at(moment: str) -> None:
    """End every process of the session, which is the driver, its JVM and their workers, and this one last."""
    if os.environ.get("DIE") != moment:
        return
    session = os.getsid(0)
    processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    for process in sorted(processes, key=lambda process: process == os.getpid()):
        try:
            if os.getsid(process) == session:
                os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


class MortalWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenByQuery:
        written = super().write(iterator)
        if written.fragments:
            die_at("written")
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        die_at("committing")
        super().commit(messages, batchId)
        die_at("committed")


class MortalSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = MortalWriter
        return writer


def main() -> None:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.catalogImplementation", "in-memory")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(MortalSource)
    options = {"root": os.environ["LAKE"], "commit_store": os.environ["COMMITS"]}
    stream = session.readStream.format("mortal").options(**options, starting_version="1", max_versions_per_trigger="1")
    sink = stream.load("source").writeStream.format("mortal").options(**options)
    query = sink.option("checkpointLocation", os.environ["CHECKPOINT"]).trigger(availableNow=True).start("sink")
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main()
