"""Two streams, a batch writer, compaction and clean-up on one table, and a stream that reads it: exact at the end.

`make test` runs it for seconds, `make soak` for minutes. The streams are interrupted and restarted all the time. The
source of one stream gets and loses columns.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import attrs
import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import lancekeep
import lancekeep.spark
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.jobs import compact

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
]

SECONDS = 60 * float(os.environ.get("LANCEKEEP_STREAM_MINUTES", "0.05"))
ROWS = 20
"""The rows of each append."""
KEPT = 300
"""The versions that clean-up keeps: more than a stream lags behind, and more than a restarted batch needs."""

Row = tuple[str, int]
"""Who wrote it, and its number."""


@attrs.frozen
class Lake:
    """The catalog, its name in SQL being ``lake``, and the options of its streams."""

    spark: SparkSession
    catalog: lancekeep.Catalog
    options: dict[str, str]
    checkpoints: Path

    def stream(self, source: str, sink: str) -> StreamingQuery:
        """Start a query that copies a table, or continue it from its checkpoint."""
        reader = self.spark.readStream.format("lancekeep").options(**self.options, starting_version="1")
        writer = reader.load(source).select("writer", "number").writeStream.format("lancekeep").options(**self.options)
        return writer.option("checkpointLocation", str(self.checkpoints / f"{source} to {sink}")).start(sink)

    def sql(self, statement: str) -> None:
        """Run a statement, again as long as other writers come between."""
        while True:
            try:
                self.spark.sql(statement)
            except PySparkException as error:
                if "Run the statement again" not in str(error):
                    raise
            else:
                return

    def rows(self, table: str) -> Counter[Row]:
        """Return the rows that plain pylance reads."""
        found = lance.dataset(self.catalog.describe_table(table).uri).to_table(columns=["writer", "number"])
        return Counter(zip(*(column.to_pylist() for column in found), strict=True))


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    options = {"root": str(tmp_path / "lake"), "commit_store": f"sqlite://{tmp_path}/commits.db"}
    with lancekeep.spark.install(spark, "lake", options["root"], commit_store=options["commit_store"]) as catalog:
        yield Lake(spark, catalog, options, tmp_path)


def numbered(writer: str, numbers: range) -> pa.Table:
    return pa.table({"writer": pa.array([writer] * len(numbers), pa.string()), "number": pa.array(numbers, pa.int64())})


def test_table_of_two_streams_and_a_batch_writer_is_exact(lake: Lake) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for table in ("alpha", "beta", "shared", "copy"):
        lake.catalog.write(table, numbered(table, range(0)), "create")
    end = time.monotonic() + SECONDS
    written = {"alpha": 0, "beta": 0, "batch": 0}

    def running() -> bool:
        return time.monotonic() < end

    def feed(writer: str, table: str) -> None:
        while running() or written[writer] == 0:
            numbers = range(written[writer], written[writer] + ROWS)
            lake.catalog.write(table, numbered(writer, numbers), "append")
            written[writer] += ROWS
            time.sleep(0.3)

    def evolve() -> None:
        for number in range(3):
            time.sleep(SECONDS / 4)
            lake.sql(f"ALTER TABLE lake.beta ADD COLUMN extra_{number} STRING")
            lake.sql(f"ALTER TABLE lake.beta DROP COLUMN extra_{number}")

    def upkeep() -> None:
        while running():
            compact(lake.spark, lake.catalog, "shared")
            lake.catalog.upkeep.cleanup(timedelta(seconds=5), keep=KEPT)
            time.sleep(0.5)

    streams = {
        "alpha": partial(lake.stream, "alpha", "shared"),
        "beta": partial(lake.stream, "beta", "shared"),
        "copy": partial(lake.stream, "shared", "copy"),
    }
    queries = {name: start() for name, start in streams.items()}
    with ThreadPoolExecutor(5) as pool:
        work = [pool.submit(feed, name, "shared" if name == "batch" else name) for name in written]
        work += [pool.submit(upkeep), pool.submit(evolve)]
        while running():
            time.sleep(chance.uniform(1, 5))
            name = chance.choice(list(streams))
            if queries[name].exception() is None and not queries[name].recentProgress:
                continue  # a query that never ends a batch lags behind what clean-up keeps
            queries[name].stop()
            queries[name] = streams[name]()
        for each in work:
            each.result()
    for name in ("alpha", "beta", "copy"):
        queries[name].processAllAvailable()
        queries[name].stop()

    expected = Counter((writer, number) for writer, count in written.items() for number in range(count))
    assert lake.rows("shared") == expected
    assert lake.rows("copy") == expected
    # A query that is stopped during a commit leaves the manifest that it had staged.
    assert [found for found in lake.catalog.upkeep.fsck(deep=True).findings if found.kind is not Kind.STAGED] == []
