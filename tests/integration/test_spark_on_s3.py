"""Spark over a lake in an object store whose versions a server decides: nothing of it lies on the driver's disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from pyspark.sql import SparkSession

import lancekeep
from lancekeep import jobs
from lancekeep.spark import install

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
]


@pytest.fixture
def root(moto_endpoint: str) -> str:
    return f"s3://{bucket(moto_endpoint)}/lake"


@pytest.fixture
def catalog(root: str, moto_endpoint: str, redis_url: str) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(root, commit_store=redis_url, storage_options=s3_options(moto_endpoint)) as catalog:
        catalog.create_namespace("travel")
        yield catalog


def test_data_source_and_stream(
    spark: SparkSession, catalog: lancekeep.Catalog, root: str, moto_endpoint: str, redis_url: str, tmp_path: Path
) -> None:
    storage = {f"storage.{name}": value for name, value in s3_options(moto_endpoint).items()}
    options = {"root": root, "commit_store": redis_url, **storage}
    spark.range(0, 40, 1, 2).write.format("lancekeep").options(**options).mode("append").save("travel.t")
    spark.range(40, 50, 1, 1).write.format("lancekeep").options(**options).mode("append").save("travel.t")
    read = spark.read.format("lancekeep").options(**options).load("travel.t")
    assert sorted(row.id for row in read.where("id >= 30").collect()) == list(range(30, 50))

    query = (
        spark.readStream.format("lancekeep")
        .options(**options)
        .load("travel.t")
        .writeStream.format("lancekeep")
        .options(**options, table="travel.copy", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(catalog.open("travel.copy").to_table()["id"].to_pylist()) == list(range(50))
    assert [entry.version for entry in catalog.history("travel.t")] == [2, 1]


def test_jobs_and_sql(
    spark: SparkSession, catalog: lancekeep.Catalog, root: str, moto_endpoint: str, redis_url: str
) -> None:
    catalog.write("travel.t", pa.table({"id": [0, 1, 2], "name": ["a", "b", "c"]}))
    changes = spark.createDataFrame([(2, "C"), (3, "D")], "id long, name string")
    assert jobs.upsert(catalog, "travel.t", changes, on="id").counts == {"updated": 1, "inserted": 1}
    jobs.compact(spark, catalog, "travel.t")

    install(spark, "cloud", root=root, commit_store=redis_url, storage_options=s3_options(moto_endpoint))
    spark.sql("CREATE TABLE cloud.travel.u AS SELECT * FROM cloud.travel.t WHERE id > 0")
    spark.sql("INSERT INTO cloud.travel.u SELECT id + 10, name FROM cloud.travel.t")
    found = spark.sql("SELECT id FROM cloud.travel.u ORDER BY id").collect()
    assert [row.id for row in found] == [1, 2, 3, 10, 11, 12, 13]
    assert catalog.fsck(grace=0).findings == ()
