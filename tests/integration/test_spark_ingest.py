"""DataFrames of a real Spark session into tables: exact rows, one commit each, nothing written where refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.partitions.values import partition_arrays
from lancekeep.entrypoints.spark.ingest import ingest
from lancekeep.entrypoints.spark.partitions import read_partitioned, write_partitioned

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

SPARK_SCHEMA = """
    id long, flag boolean, i8 byte, i16 short, i32 int, f32 float, f64 double, price decimal(20,4), text string,
    raw binary, day date, instant timestamp, clock timestamp_ntz, tags array<string>,
    place struct<x: int, shares: array<decimal(30,3)>>, counts map<string, long>
"""
ARROW_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("flag", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("price", pa.decimal128(20, 4)),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("instant", pa.timestamp("us", "UTC")),
        ("clock", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int32()), ("shares", pa.list_(pa.decimal128(30, 3)))])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def record(number: int) -> dict[str, Any]:
    """A row with a value of every type; each third has nulls, within the nested values too."""
    sparse = number % 3 == 2
    values: dict[str, Any] = {
        "flag": number % 2 == 0,
        "i8": -number,
        "i16": 300 + number,
        "i32": 70_000 + number,
        "f32": number + 0.5,
        "f64": number / 7,
        "price": Decimal(f"{number}.1234"),
        "text": f"naïve {number} ✈",
        "raw": bytes([0, number, 255]),
        "day": date(1969, 12, 28 + number % 3),
        "instant": datetime(2013, 3, 10, 7, 30, number, 123_456, tzinfo=UTC),  # the night that clocks went forward
        "clock": datetime(2013, 3, 10, 2, 30, number, 123_456),  # an hour that New York did not have
        "tags": ["a", None, f"t{number}"],
        "place": {"x": None if number % 2 else number, "shares": [Decimal("1.250"), None]},
        "counts": [("a", number), ("b", None)],
    }
    return {"id": number} | (dict.fromkeys(values) if sparse else values)


def expected(numbers: Iterable[int]) -> pa.Table:
    return pa.Table.from_pylist([record(number) for number in numbers], schema=ARROW_SCHEMA)


def frame_of(spark: SparkSession, numbers: Iterable[int]) -> DataFrame:
    rows = [record(number) for number in numbers]
    as_spark = [row | {"counts": row["counts"] and dict(row["counts"])} for row in rows]
    return spark.createDataFrame(as_spark, SPARK_SCHEMA)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db") as catalog:
        catalog.create_namespace("travel")
        yield catalog


def plain(catalog: lancekeep.Catalog, table: str = "travel.t") -> lance.LanceDataset:
    """Return the table as plain pylance reads it."""
    return lance.dataset(catalog.describe_table(table).uri)


def rows_of(catalog: lancekeep.Catalog, table: str = "travel.t") -> pa.Table:
    return plain(catalog, table).to_table().sort_by("id")


def files_of(catalog: lancekeep.Catalog) -> set[Path]:
    return {path for path in Path(catalog.root_uri.removeprefix("file://")).rglob("*") if path.is_file()}


def versions_of(catalog: lancekeep.Catalog, table: str = "travel.t") -> list[int]:
    return [entry.version for entry in catalog.versions.history(table)]


class Jobs:
    """Counts the Spark jobs that run inside it."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._group = uuid4().hex

    def __enter__(self) -> Jobs:
        self._context.setJobGroup(self._group, "counted")
        return self

    def __exit__(self, *_: object) -> None:
        self._context.setJobGroup("", "")

    @property
    def count(self) -> int:
        return len(self._context.statusTracker().getJobIdsForGroup(self._group))


# -- what arrives ---------------------------------------------------------------------------------------------------


def test_every_type_is_ingested_exactly_in_one_version(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    created = ingest(frame_of(spark, range(40)), catalog, "travel.t")
    assert rows_of(catalog) == expected(range(40))
    appended = ingest(frame_of(spark, range(40, 60)), catalog, ["travel", "t"], mode="append")
    assert rows_of(catalog) == expected(range(60))
    overwritten = ingest(frame_of(spark, range(5)), catalog, "travel.t", mode="overwrite")
    assert rows_of(catalog) == expected(range(5))

    assert [created.version, appended.version, overwritten.version] == [1, 2, 3]
    assert [(entry.version, entry.rows) for entry in catalog.versions.history("travel.t")] == [(3, 5), (2, 60), (1, 40)]
    assert catalog.open("travel.t", version=2).count_rows() == 60


@pytest.mark.parametrize(("rows", "partitions", "fragments"), [(100, 2, 2), (2, 4, 2), (1, 1, 1)])
def test_partitions_become_fragments_of_one_version(
    spark: SparkSession, catalog: lancekeep.Catalog, rows: int, partitions: int, fragments: int
) -> None:
    ingest(spark.range(0, rows, 1, partitions), catalog, "travel.t")
    dataset = plain(catalog)
    assert len(dataset.get_fragments()) == fragments
    assert dataset.to_table().sort_by("id")["id"].to_pylist() == list(range(rows))
    assert versions_of(catalog) == [1]


def test_empty_frame_creates_empty_table_and_appends_nothing(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    ingest(frame_of(spark, []), catalog, "travel.t")
    assert rows_of(catalog) == expected([])
    ingest(frame_of(spark, range(3)), catalog, "travel.t", mode="append")
    ingest(frame_of(spark, []), catalog, "travel.t", mode="append")
    assert rows_of(catalog) == expected(range(3))
    ingest(frame_of(spark, []), catalog, "travel.t", mode="overwrite")
    assert rows_of(catalog) == expected([])
    assert versions_of(catalog) == [4, 3, 2, 1]


def test_overwrite_creates_table_and_changes_columns(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    ingest(spark.range(3), catalog, "travel.t", mode="overwrite")
    ingest(spark.range(2).selectExpr("id", "'x' name"), catalog, "travel.t", mode="overwrite")
    assert rows_of(catalog).to_pylist() == [{"id": 0, "name": "x"}, {"id": 1, "name": "x"}]
    assert versions_of(catalog) == [2, 1]


def test_columns_are_matched_by_name(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    ingest(spark.range(1).selectExpr("id", "'x' name"), catalog, "travel.t")
    ingest(spark.range(1, 2).selectExpr("'y' name", "id"), catalog, "travel.t", mode="append")
    assert rows_of(catalog).to_pylist() == [{"id": 0, "name": "x"}, {"id": 1, "name": "y"}]


def test_retried_task_is_committed_once(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    def fail_first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails, after all its rows")

    ingest(spark.range(0, 50, 1, 2).mapInArrow(fail_first, "id long"), catalog, "travel.t")
    assert rows_of(catalog)["id"].to_pylist() == list(range(50))
    assert versions_of(catalog) == [1]


def test_large_strings_are_read(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        ingest(frame_of(spark, range(9)), catalog, "travel.t")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert rows_of(catalog) == expected(range(9))


# -- tables whose types are narrower than Spark's -------------------------------------------------------------------

VECTORS = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), 3)), ("w", pa.list_(pa.float32(), 2))])


def test_vectors_with_some_or_only_nulls(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    vectors = spark.range(0, 20, 1, 2).selectExpr(
        "id",
        "if(id % 2 = 0, array(cast(id as float), 0.5f, -1f), null) v",
        "cast(null as array<float>) w",
    )
    ingest(vectors, catalog, "travel.t", schema=VECTORS)
    ingest(vectors.selectExpr("id + 20 id", "v", "array(1f, 2f) w"), catalog, "travel.t", mode="append")
    found = rows_of(catalog)
    assert found.schema == VECTORS
    assert found["v"].to_pylist() == [[float(n % 20), 0.5, -1.0] if n % 2 == 0 else None for n in range(40)]
    assert found["w"].to_pylist() == [None] * 20 + [[1.0, 2.0]] * 20


def test_appends_follow_the_types_of_the_table(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    instant = datetime(2020, 2, 29, 12, tzinfo=UTC)
    table = pa.table(
        {
            "id": pa.array([0], pa.uint32()),
            "small": pa.array([200], pa.uint8()),
            "text": pa.array(["long"], pa.large_string()),
            "kind": pa.array(["a"]).dictionary_encode(),
            "instant": pa.array([instant], pa.timestamp("ms", "Europe/Berlin")),
            "tags": pa.array([[1, 2]], pa.large_list(pa.uint16())),
            "half": pa.array([[0.5, 1.5]], pa.list_(pa.float16(), 2)),
        }
    )
    catalog.write("travel.t", table)
    frame = spark.createDataFrame(
        [(1, 7, "short", "b", instant, [65_535], [2.5, -1.0])],
        "id long, small short, text string, kind string, instant timestamp, tags array<int>, half array<float>",
    )
    ingest(frame, catalog, "travel.t", mode="append")
    found = rows_of(catalog)
    assert found.schema == plain(catalog).checkout_version(1).schema
    assert found.drop_columns("instant").to_pylist() == [
        {"id": 0, "small": 200, "text": "long", "kind": "a", "tags": [1, 2], "half": [0.5, 1.5]},
        {"id": 1, "small": 7, "text": "short", "kind": "b", "tags": [65_535], "half": [2.5, -1.0]},
    ]
    assert found["instant"].cast(pa.timestamp("us", "UTC")).to_pylist() == [instant, instant]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["id", "array(1f) v", "array(1f, 2f) w"], r"'v' holds vectors of 3 values; found lengths \[1\]"),
        (["if(id = 9, null, id) id", "array(1f, 2f, 3f) v", "array(1f, 2f) w"], "'id' .* takes no nulls"),
        (["id", "array(1f, 2f, 3f) v", "if(id = 9, array(1f), array(1f, 2f)) w"], r"found lengths \[1, 2\]"),
    ],
)
def test_value_of_wrong_range_commits_nothing_and_leaves_no_file(
    spark: SparkSession, catalog: lancekeep.Catalog, columns: list[str], message: str
) -> None:
    strict = VECTORS.set(0, pa.field("id", pa.int64(), nullable=False))
    catalog.write("travel.t", strict.empty_table())
    before = files_of(catalog)
    with pytest.raises(lancekeep.InvalidInput, match=message):
        ingest(spark.range(0, 20, 1, 1).selectExpr(*columns), catalog, "travel.t", mode="append")
    assert files_of(catalog) == before
    assert versions_of(catalog) == [1]


# -- what is refused before any task --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["id"], "'name' is missing"),
        (["id", "'x' name", "1 more"], "'more' is not a column"),
        (["id", "'x' NAME"], "'name' is missing; 'NAME' is not a column"),
        (["cast(id as int) id", "'x' name"], "'id' is int32, the table has int64"),
        (["id", "array('x') name"], "'name' is list"),
        (["id", "'x' name", "'y' name"], "(?i)duplicate"),
        (["id", "'x' name", "make_ym_interval(1, 2) span"], "'span' is interval year to month"),
    ],
)
def test_append_of_other_columns_is_refused_before_any_task(
    spark: SparkSession, catalog: lancekeep.Catalog, columns: list[str], message: str
) -> None:
    ingest(spark.range(1).selectExpr("id", "'x' name"), catalog, "travel.t")
    before = files_of(catalog)
    with Jobs(spark) as jobs, pytest.raises(lancekeep.InvalidInput, match=message):
        ingest(spark.range(9).selectExpr(*columns), catalog, "travel.t", mode="append")
    assert jobs.count == 0
    assert files_of(catalog) == before
    assert versions_of(catalog) == [1]


@pytest.mark.parametrize(
    ("table", "mode", "error"),
    [
        ("travel.t", "create", lancekeep.TableAlreadyExists),
        ("travel.other", "append", lancekeep.TableNotFound),
        ("nowhere.t", "create", lancekeep.NamespaceNotFound),
        ("travel.t", "upsert", lancekeep.InvalidInput),
    ],
)
def test_refused_write_runs_no_task(
    spark: SparkSession, catalog: lancekeep.Catalog, table: str, mode: str, error: type[Exception]
) -> None:
    ingest(spark.range(1), catalog, "travel.t")
    before = files_of(catalog)
    with Jobs(spark) as jobs, pytest.raises(error):
        ingest(spark.range(9), catalog, table, mode=mode)
    assert jobs.count == 0
    assert files_of(catalog) == before


@pytest.mark.parametrize("columns", [["id `a.b`"], ["id", "id + 1 id"], ["id _rowid"], []])
def test_unsupported_columns_create_no_table(
    spark: SparkSession, catalog: lancekeep.Catalog, columns: list[str]
) -> None:
    with Jobs(spark) as jobs, pytest.raises(lancekeep.InvalidInput):
        ingest(spark.range(9).selectExpr(*columns), catalog, "travel.t")
    assert jobs.count == 0
    assert not catalog.table_exists("travel.t")


def test_driver_without_pandas_is_refused(
    spark: SparkSession, catalog: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(lancekeep.MissingExtra, match="Pandas >= 2"):
        ingest(spark.range(9), catalog, "travel.t")
    assert not catalog.table_exists("travel.t")


def test_jobs_are_counted(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    with Jobs(spark) as jobs:
        ingest(spark.range(9), catalog, "travel.t")
    assert jobs.count > 0


# -- what fails in a task -------------------------------------------------------------------------------------------


def broken(spark: SparkSession, how: str) -> DataFrame:
    """A frame of two partitions whose second one fails at its last row."""

    def fail(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if how == "python" and 99 in batch["id"].to_pylist():
                raise ValueError("the sensor was unplugged")
            if how == "crash" and 99 in batch["id"].to_pylist():
                os._exit(1)
            yield batch

    numbers = spark.range(0, 100, 1, 2)
    if how == "jvm":
        return numbers.selectExpr("if(id = 99, raise_error('the sensor was unplugged'), id) id")
    return numbers.mapInArrow(fail, "id long")


@pytest.mark.parametrize(
    ("how", "mode", "reason"),
    [
        ("python", "create", "ValueError: the sensor was unplugged"),
        ("python", "append", "ValueError: the sensor was unplugged"),
        ("python", "overwrite", "ValueError: the sensor was unplugged"),
        ("jvm", "append", "the sensor was unplugged"),
        ("crash", "append", "Python worker exited unexpectedly"),
    ],
)
def test_failing_task_commits_nothing(
    spark: SparkSession, catalog: lancekeep.Catalog, how: str, mode: str, reason: str
) -> None:
    if mode != "create":
        ingest(spark.range(5), catalog, "travel.t")
    with pytest.raises(lancekeep.Retryable, match=f"travel.t: the Spark job failed; nothing was committed: .*{reason}"):
        ingest(broken(spark, how), catalog, "travel.t", mode=mode)
    if mode == "create":
        assert not catalog.table_exists("travel.t")
        return
    assert rows_of(catalog)["id"].to_pylist() == list(range(5))
    assert versions_of(catalog) == [1]
    ingest(spark.range(5, 6), catalog, "travel.t", mode="append")
    assert rows_of(catalog)["id"].to_pylist() == list(range(6))


def test_frame_is_written_to_partitions_and_read_with_pruning(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("country", pa.string())])
    by = [
        lancekeep.PartitionBy.year("at"),
        lancekeep.PartitionBy.identity("country"),
        lancekeep.PartitionBy.bucket("id", 2),
    ]
    catalog = lancekeep.connect(f"{tmp_path}/lake", commit_store=f"sqlite://{tmp_path}/commits.db")
    namespace = catalog.partitions.create(schema, by)
    frame = (
        spark.range(40)
        .selectExpr(
            "cast(id % 2 as string) country",
            "timestamp_seconds((id % 3 - 2) * 31536000) at",
            "id",
        )
        .unionByName(spark.range(40, 42).selectExpr("cast(null as string) country", "cast(null as timestamp) at", "id"))
    )
    before = directory_of(catalog).ledger.view().version
    written = write_partitioned(frame, namespace)
    assert directory_of(catalog).ledger.view().version == before + 1
    assert {partition.version for partition in written} == {1}
    assert write_partitioned(frame.where("id = 3"), namespace)[0].version == 2
    everything = namespace.scan().to_table()
    assert sorted(everything["id"].to_pylist()) == sorted([*range(42), 3])
    for partition, dataset in namespace.scan().datasets():
        parts = partition_arrays(dataset.to_table(), partition.spec, schema=namespace.schema)
        assert {tuple(row) for row in zip(*(part.to_pylist() for part in parts), strict=True)} == {partition.values}

    wanted = [("at", "<", "1969-06-01"), ("country", "=", "1")]
    assert 0 < namespace.scan(wanted).skipped < len(namespace.scan().partitions)
    read = read_partitioned(spark, namespace, wanted, ["country", "id"])
    expected = frame.where("at < timestamp'1969-06-01 00:00:00Z' and country = '1'").select("country", "id")
    assert sorted(read.collect()) == sorted([*expected.collect(), ("1", 3)])
    pinned = read_partitioned(spark, namespace)
    assert pinned.dtypes == frame.select("id", "at", "country").dtypes
    write_partitioned(frame.where("id < 2").selectExpr("id", "at", "country"), namespace, mode="overwrite")
    assert pinned.count() == 43
    assert read_partitioned(spark, namespace).count() == namespace.scan().to_table().num_rows < 43

    with pytest.raises(lancekeep.InvalidInput, match="'at' is missing"):
        write_partitioned(frame.drop("at"), namespace)
