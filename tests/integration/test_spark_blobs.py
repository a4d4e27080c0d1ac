"""Blob columns in Spark: SQL, the data source and streams read and write their bytes; Lance stores them as blobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.blob import BlobType
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lancekeep
import lancekeep.spark
from lancekeep.entrypoints.scanning import batch_rows
from lancekeep.jobs import compact, upsert

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
]

SMALL, PACKED, DEDICATED = b"abc", b"p" * 100_000, b"d" * 5_000_000
"""Blobs that Lance stores in the data file, with others in a file beside it, and in files of their own."""


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {"root": str(tmp_path / "lake"), "commit_store": f"sqlite://{tmp_path}/commits.db"}


@pytest.fixture
def catalog(spark: SparkSession, options: dict[str, str]) -> Iterator[lancekeep.Catalog]:
    with lancekeep.spark.install(spark, "blobs", options["root"], commit_store=options["commit_store"]) as catalog:
        yield catalog


def blobs(catalog: lancekeep.Catalog, table: str = "t") -> dict[int, bytes | None]:
    """Return the blobs that plain pylance reads, by the id of their rows."""
    dataset = lance.dataset(catalog.describe_table(table).uri)
    ids = dataset.to_table(columns=["id"])["id"].to_pylist()
    found = dataset.take_blobs("image", indices=range(len(ids)))
    return {row: None if blob is None else blob.readall() for row, blob in zip(ids, found, strict=True)}


def native_rows(values: list[bytes | None]) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("image")])
    return pa.table({"id": range(len(values)), "image": lance.blob_array(values)}, schema)


def test_sql_reads_and_writes_blobs(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    spark.sql("CREATE TABLE blobs.t (id BIGINT, image BINARY) TBLPROPERTIES ('blob.image' = 'true')")
    assert isinstance(catalog.open("t").schema.field("image").type, BlobType)
    spark.sql("INSERT INTO blobs.t VALUES (1, X'616263'), (2, NULL), (3, X'')")
    spark.sql("INSERT INTO blobs.t SELECT 4, CAST(repeat('p', 100000) AS BINARY)")
    spark.sql("UPDATE blobs.t SET id = 5 WHERE image IS NULL")
    spark.sql("UPDATE blobs.t SET image = X'7A' WHERE id = 3")
    spark.sql("DELETE FROM blobs.t WHERE image = X'616263'")
    spark.sql(
        "MERGE INTO blobs.t USING (SELECT 5 id, X'6D' image UNION SELECT 6, X'6E') s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert blobs(catalog) == {3: b"z", 4: PACKED, 5: b"m", 6: b"n"}
    assert {row.id: bytes(row.image) for row in spark.table("blobs.t").collect()} == blobs(catalog)
    assert [row.id for row in spark.sql("SELECT id FROM blobs.t WHERE image > X'6D' ORDER BY id").collect()] == [
        3,
        4,
        6,
    ]
    assert spark.sql("SELECT sum(length(image)) FROM blobs.t VERSION AS OF 3").collect() == [(len(PACKED) + 3,)]


def test_columns_of_blobs_keep_their_type(
    spark: SparkSession, catalog: lancekeep.Catalog, options: dict[str, str]
) -> None:
    catalog.write("t", native_rows([SMALL, None, PACKED, DEDICATED]))
    spark.sql("CREATE TABLE blobs.selected AS SELECT * FROM blobs.t WHERE id < 3")
    spark.sql("CREATE TABLE blobs.like_it LIKE blobs.t")
    spark.sql("CREATE TABLE blobs.peer (id BIGINT, image BINARY) TBLPROPERTIES ('image.lance.encoding' = 'blob')")
    source = spark.read.format("lancekeep").options(**options).load("t")
    source.write.format("lancekeep").options(**options).mode("overwrite").save("copied")
    source.write.format("lancekeep").options(**options).mode("append").save("t")
    for table in ("selected", "like_it", "peer", "copied", "t"):
        assert isinstance(catalog.open(table).schema.field("image").type, BlobType), table
    assert blobs(catalog, "selected") == {0: SMALL, 1: None, 2: PACKED}
    assert blobs(catalog, "copied") == {0: SMALL, 1: None, 2: PACKED, 3: DEDICATED}
    assert "'blob.image' = 'true'" in spark.sql("SHOW CREATE TABLE blobs.t").collect()[0][0]
    changes = spark.sql("SELECT id, length(image) FROM changes('blobs.t', 2, 2) ORDER BY id").collect()
    assert changes == [(0, 3), (1, None), (2, len(PACKED)), (3, len(DEDICATED))]


def test_stream_copies_blobs(
    spark: SparkSession, catalog: lancekeep.Catalog, options: dict[str, str], tmp_path: Path
) -> None:
    catalog.write("t", native_rows([SMALL, None, PACKED]))
    stream = spark.readStream.format("lancekeep").options(**options).load("t").writeStream.format("lancekeep")
    query = stream.options(**options, checkpointLocation=str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert query.start("copied").awaitTermination(300)
    assert blobs(catalog, "copied") == {0: SMALL, 1: None, 2: PACKED}


def test_older_encoding_of_blobs_is_read_and_kept(spark: SparkSession, tmp_path: Path) -> None:
    image = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    rows = pa.table({"id": [1, 2], "image": [SMALL, None]}, pa.schema([pa.field("id", pa.int64()), image]))
    lance.write_dataset(rows, tmp_path / "plain" / "t.lance", data_storage_version="2.1")
    with lancekeep.spark.install(spark, "plain", str(tmp_path / "plain")) as catalog:
        spark.sql("INSERT INTO plain.t VALUES (3, X'7A')")
        assert spark.sql("SELECT * FROM plain.t WHERE image IS NOT NULL ORDER BY id").collect() == [
            (1, SMALL),
            (3, b"z"),
        ]
        assert blobs(catalog) == {1: SMALL, 2: None, 3: b"z"}


def test_wrong_properties_are_refused(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    for columns, properties, message in (
        ("image STRING", "'blob.image' = 'true'", "only BINARY can be stored as blobs"),
        ("image BINARY", "'blob.image' = 'yes'", "'blob.image' is 'yes'|blob.image is 'yes'"),
        ("image BINARY", "'blob.other' = 'true'", "blob.other names no column"),
    ):
        with pytest.raises(PySparkException, match=message):
            spark.sql(f"CREATE TABLE blobs.t ({columns}) TBLPROPERTIES ({properties})")
    assert not catalog.table_exists("t")


def test_batches_of_large_blobs_have_few_rows(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", native_rows([DEDICATED, DEDICATED, SMALL]))
    dataset = catalog.open("t")
    assert batch_rows(dataset.schema, ["id", "image"], dataset.get_fragments()) == 1
    assert batch_rows(dataset.schema, ["id"], dataset.get_fragments()) == 8192


def test_jobs_and_searches_accept_blobs(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    schema = pa.schema([*native_rows([]).schema, pa.field("vector", pa.list_(pa.float32(), 2))])
    vectors = pa.array([[0.0, 1.0], [1.0, 0.0]], pa.list_(pa.float32(), 2))
    rows = pa.Table.from_arrays([*native_rows([SMALL, PACKED]).columns, vectors], schema=schema)
    catalog.write("t", rows)
    found = spark.sql("SELECT id, image FROM vector_search('blobs.t', 'vector', array(1f, 0f), 1)").collect()
    assert found == [(1, PACKED)]
    for _ in range(5):  # columns are compared by their content, whatever the order of their metadata
        upsert(catalog, "t", spark.sql("SELECT 1L id, X'7A' image, array(1f, 1f) vector"), on="id")
    compact(spark, catalog, "t")
    assert blobs(catalog) == {0: SMALL, 1: b"z"}
