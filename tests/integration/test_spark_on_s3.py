"""Spark over a lake in an object store, with versions decided by a server, and no local files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
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
    assert [entry.version for entry in catalog.versions.history("travel.t")] == [2, 1]


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
    spark.sql(f"CREATE TABLE cloud.travel.placed LOCATION '{root.replace('s3:', 's3a:')}/places/p' AS SELECT 1 AS id")
    assert lance.dataset(f"{root}/places/p", storage_options=s3_options(moto_endpoint)).count_rows() == 1
    assert catalog.upkeep.fsck(grace=0).findings == ()


def test_a_server_vends_and_renews_the_credentials_of_tasks(
    spark: SparkSession, moto_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every describe vends other credentials; the storage refuses those that the driver had."""
    from rest_server import running  # not above: Spark's workers import this module to find the functions in it
    from s3_front import s3_front
    from vending import Enforcing, Lake, unremembered

    from lancekeep.adapters.credential_vendors.sts import StsVendor

    enforcing = Enforcing(monkeypatch)

    def single(self: StsVendor, *arguments: Any) -> Mapping[str, str]:
        options = unremembered(self, *arguments)
        return options if enforcing.expired else {**options, "expires_at_millis": "1"}

    monkeypatch.setattr(StsVendor, "vend", single)
    with s3_front(moto_endpoint, enforcing.answer) as endpoint:
        lake = Lake(moto_endpoint, tmp_path, through=endpoint)
        with running(lake.app) as uri:
            options = {"root": uri, "rest.api_key": lake.keys["writer"]}
            source = spark.range(0, 40, 1, 2).write.format("lancekeep").options(**options)
            source.mode("append").save("a.t")
            read = spark.read.format("lancekeep").options(**options).load("a.t")
            enforcing.expired.update(enforcing.policies)  # those that planned the read
            assert sorted(row.id for row in read.where("id >= 30").collect()) == list(range(30, 40))
            reader = {"root": uri, "rest.api_key": lake.keys["reader"]}
            refused = spark.range(40, 50).write.format("lancekeep").options(**reader).mode("append")
            with pytest.raises(Exception, match="AccessDenied"):
                refused.save("a.t")
            over = lancekeep.connect(uri, api_key=lake.keys["writer"])
            jobs.backfill(spark, over, "a.t", "twice", lambda batch: pc.multiply(batch["id"], 2), reads=["id"])
            jobs.compact(spark, over, "a.t")
        found = lance.dataset(lake.catalog.describe_table("a.t").uri, storage_options=lake.options).to_table()
        assert sorted(found["id"].to_pylist()) == sorted([1, *range(40)])
        assert found["twice"].to_pylist() == [2 * number for number in found["id"].to_pylist()]
        lake.catalog.close()
