"""What Spark's UI shows of scans, beside the files and rows that they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from spark_metrics import shown

import lancekeep
import lancekeep.spark
from lancekeep import PartitionBy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
FRAGMENTS = 4
ROWS = 1000
"""The rows of a fragment."""


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lancekeep.Catalog]:
    place = tmp_path_factory.mktemp("metrics")
    with lancekeep.spark.install(spark, "lake", str(place / "lake"), commit_store=f"sqlite://{place}/c.db") as catalog:
        for number in range(FRAGMENTS):
            ids = range(number * ROWS, (number + 1) * ROWS)
            rows = pa.table({"id": ids, "third": [at % 3 for at in ids], "text": [f"t{at}" * 10 for at in ids]})
            catalog.write("t", rows, mode="append" if number else "create")
        spark.sql("CREATE INDEX ids ON lake.t USING btree (id)")
        with lancekeep.spark.install(spark, "parts", str(place / "parts")) as parts:
            divided = pa.table({"third": [at % 3 for at in range(99)], "id": range(99)})
            parts.partitions.create(divided.schema, [PartitionBy.identity("third")]).write(divided)
            yield catalog


def size(catalog: lancekeep.Catalog) -> int:
    fragments = catalog.open("t").get_fragments()
    return sum(file.file_size_bytes for fragment in fragments for file in fragment.metadata.files)


def in_bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]


def of(spark: SparkSession, statement: str) -> tuple[list[Any], dict[str, str]]:
    rows = spark.sql(statement).collect()
    return rows, shown(spark)


def test_scan_of_all_rows_shows_what_it_reads(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    rows, metrics = of(spark, "SELECT * FROM lake.t")
    read = metrics.pop("bytes read from storage")
    assert len(rows) == FRAGMENTS * ROWS
    assert size(lake) / 2 < in_bytes(read) < size(lake) * 1.5  # each task reads footers, too
    assert int(metrics.pop("requests to storage")) >= FRAGMENTS
    assert metrics == {
        "fragments selected": "4", "fragments pruned": "0", "rows read": "4,000", "reads by an index": "0",
    }  # fmt: skip


def test_scan_of_one_column_reads_fewer_bytes(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    _, metrics = of(spark, "SELECT id FROM lake.t")
    assert 0 < in_bytes(metrics["bytes read from storage"]) < size(lake) / 2


def test_condition_that_no_index_answers_reads_all_rows(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    rows, metrics = of(spark, "SELECT count(*) FROM lake.t WHERE third = 1")
    assert rows[0][0] == len(range(1, FRAGMENTS * ROWS, 3))
    assert (metrics["rows read"], metrics["reads by an index"]) == ("4,000", "0")
    assert in_bytes(metrics["bytes read from storage"]) > 0


def test_range_that_an_index_answers_reads_its_rows(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    rows, metrics = of(spark, "SELECT id, third FROM lake.t WHERE id >= 500 AND id < 3000")
    assert (len(rows), metrics["rows read"], metrics["fragments selected"]) == (2500, "2,500", "4")
    assert int(metrics["reads by an index"]) >= 1


def test_values_that_an_index_names_select_fragments(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    rows, metrics = of(spark, "SELECT id, _rowaddr FROM lake.t WHERE id IN (7, 8, 3001)")
    assert sorted(row.id for row in rows) == [7, 8, 3001]
    names = ["fragments selected", "fragments pruned", "rows named by an index", "rows read"]
    assert [metrics[name] for name in names] == ["2", "2", "3", "3"]


def test_count_from_the_manifest_reads_nothing(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    assert of(spark, "SELECT count(*) FROM lake.t") == ([(FRAGMENTS * ROWS,)], {})


@contextmanager
def columnar(spark: SparkSession, value: str) -> Iterator[None]:
    spark.conf.set("spark.lancekeep.columnar", value)
    try:
        yield
    finally:
        spark.conf.unset("spark.lancekeep.columnar")


def test_nothing_is_shown_in_place_of_numbers_that_are_not_counted(
    spark: SparkSession, lake: lancekeep.Catalog
) -> None:
    changes = "SELECT id FROM lake.t CHANGES FROM VERSION 1 TO VERSION 2"
    with columnar(spark, "false"):
        assert of(spark, "SELECT text FROM lake.t")[1] == {"fragments selected": "4", "fragments pruned": "0"}
        assert of(spark, changes)[1] == {}
    with columnar(spark, "true"):
        assert of(spark, "SELECT text FROM lake.t")[1]["rows read"] == "4,000"
        assert int(of(spark, changes)[1]["rows read"].replace(",", "")) >= ROWS


def test_scan_without_columns_reports_too(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    rows, metrics = of(spark, "SELECT 'found' FROM lake.t WHERE third = 1")
    assert (len(rows), metrics["rows read"]) == (1333, "4,000")


def test_partitions_show_how_many_are_left_out(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    rows, metrics = of(spark, "SELECT * FROM parts.dataset WHERE third = 1")
    assert len(rows) == 33
    names = ["partitions selected", "partitions pruned", "fragments selected", "rows read"]
    assert [metrics[name] for name in names] == ["1", "2", "1", "33"]


def test_both_tables_of_a_join_are_shown(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    frame = spark.sql("SELECT a.id FROM lake.t a JOIN parts.dataset b ON a.id = b.id WHERE a.third <> 0")
    assert len(frame.collect()) == 66
    assert {"partitions selected", "fragments pruned"} <= shown(spark).keys()


def test_stream_shows_no_numbers_that_are_not_counted(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    query = spark.readStream.table("lake.t").writeStream.format("memory").queryName("streamed")
    query.trigger(availableNow=True).start().awaitTermination()
    assert shown(spark) == {}
    assert spark.table("streamed").count() == FRAGMENTS * ROWS


def test_changed_rows_show_what_they_read(spark: SparkSession, lake: lancekeep.Catalog) -> None:
    spark.sql("CREATE OR REPLACE TABLE lake.changed AS SELECT id, id % 3 third FROM range(0, 300, 1, 1)")
    spark.sql("UPDATE lake.changed SET id = -id WHERE third = 1")
    metrics = shown(spark)
    assert (metrics["rows read"], metrics["fragments selected"]) == ("300", "1")
