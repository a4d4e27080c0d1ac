"""Scans that return columns: the same rows as scans that return rows, with Spark's generated code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from clusters import printed_by
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

import lancekeep
import lancekeep.spark
from lancekeep import PartitionBy
from lancekeep.entrypoints.spark.internals import batch_classes
from lancekeep.entrypoints.spark.internals import columnar as readers
from lancekeep.entrypoints.spark.internals.driver import Driver
from lancekeep.entrypoints.spark.sql import write
from lancekeep.entrypoints.spark.sql.form import SETTING, returns_columns
from lancekeep.entrypoints.spark.writing import write_batches

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

ROWS = 100

COLUMNS = {
    "flag": "id % 3 = 0",
    "i8": "CAST(id - 50 AS BYTE)",
    "i16": "CAST(id * 300 - 15000 AS SHORT)",
    "i32": "CAST(id * 40000000 - 2000000000 AS INT)",
    "i64": "id * 90000000000000000 - 4000000000000000000",
    "f32": "CAST(IF(id % 7 = 0, 'NaN', id / 3) AS FLOAT)",
    "f64": "IF(id % 7 = 0, CAST('-Infinity' AS DOUBLE), id / 7)",
    "small": "CAST(id - 50 AS DECIMAL(5, 2))",
    "medium": "CAST(id * -1234567890123.567 AS DECIMAL(18, 3))",
    "large": "CAST(id - 50 AS DECIMAL(38, 18)) * 1.000000000000000001",
    "text": "IF(id % 5 = 0, '', repeat(concat('é✈', id), CAST(id % 4 AS INT)))",
    "raw": "CAST(concat('x', id) AS BINARY)",
    "day": "date_add(DATE '1969-12-01', CAST(id AS INT))",
    "clock_time": "CAST(concat('12:34:56.0000', 10 + id % 90) AS TIME(6))",
    "instant": "timestamp_micros(id * 1234567890123 - 60000000000000)",
    "local": "CAST(timestamp_micros(id * 1234567890123) AS TIMESTAMP_NTZ)",
    "span": "make_dt_interval(CAST(id - 50 AS INT), 1, 2, 3.000004)",
    "tags": "transform(sequence(0, id % 4), x -> IF(x = 1, NULL, concat('t', x)))",
    "prices": "array(CAST(id AS DECIMAL(30, 3)), NULL)",
    "place": "named_struct('x', CAST(id AS INT), 'inner', named_struct('name', concat('n', id), 'n', nullif(id, 3)))",
    "counts": "map(concat('k', id), id, 'other', NULL)",
    "deep": "array(map(CAST(id AS INT), array(named_struct('raw', CAST('r' AS BINARY), 'at', timestamp_micros(id)))))",
}
COMPILED = {
    "spark.sql.codegen.factoryMode": "CODEGEN_ONLY",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.fallback": "false",
    "spark.sql.timeType.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="module")
def configured(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with generated code, without which a failure to compile would fall back to rows."""
    before = {name: spark.conf.get(name, None) for name in COMPILED}
    for name, value in COMPILED.items():
        spark.conf.set(name, value)
    yield spark
    for name, kept in before.items():
        if kept is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, kept)


@pytest.fixture(scope="module")
def lake(configured: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lancekeep.Catalog]:
    place = tmp_path_factory.mktemp("columnar")
    with lancekeep.spark.install(
        configured, "lake", str(place / "lake"), commit_store=f"sqlite://{place}/c.db"
    ) as catalog:
        made = [f"IF(id % {3 + at} = 1, NULL, {value}) {name}" for at, (name, value) in enumerate(COLUMNS.items())]
        configured.range(0, ROWS, 1, 4).selectExpr("id", *made).writeTo("lake.t").create()
        rows = catalog.open("t").to_table()
        catalog.write("empty", rows.slice(0, 0))
        with lancekeep.spark.install(configured, "parts", str(place / "parts")) as parts:
            divided = pa.table(
                {
                    "id": [number % 3 for number in rows["id"].to_pylist()],
                    "text": rows["text"],
                    "x": pc.struct_field(rows["place"], "x"),
                }
            )
            parts.partitions.create(divided.schema, [PartitionBy.identity("id")]).write(divided)
            yield catalog


@contextmanager
def configured_as(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


class Reads:
    """Compute statements with and without columns."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def rows(self, statement: str, *, columnar: bool) -> list[str]:
        with configured_as(self._spark, SETTING, str(columnar).lower()):
            frame = self._spark.sql(statement)
            assert ("ColumnarToRow" in plan_of(frame)) is columnar
            return sorted(map(str, frame.collect()))  # as text, in which NaN equals NaN


@pytest.fixture(scope="module")
def reads(configured: SparkSession, lake: lancekeep.Catalog) -> Reads:
    return Reads(configured)


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def memory(spark: SparkSession) -> int:
    """Return the bytes that Arrow holds in the JVM, which has all tasks."""
    return int(Driver(spark).java("org.apache.spark.sql.util.ArrowUtils").rootAllocator().getAllocatedMemory())


@pytest.mark.parametrize("columnar", [True, False])
def test_writes_have_all_rows_and_values(configured: SparkSession, lake: lancekeep.Catalog, *, columnar: bool) -> None:
    copy = f"written_{columnar}".lower()
    with configured_as(configured, SETTING, str(columnar).lower()):
        configured.sql(f"CREATE TABLE lake.{copy} AS SELECT * FROM lake.t")
        configured.sql(f"INSERT INTO lake.{copy} SELECT * FROM lake.empty")
        configured.sql(f"UPDATE lake.{copy} SET id = id WHERE id % 3 = 0")
    assert repr(lake.open(copy).to_table().sort_by("id")) == repr(lake.open("t").to_table().sort_by("id"))


@pytest.mark.parametrize("columnar", [True, False])
def test_texts_that_no_table_could_give_back_are_refused(
    configured: SparkSession, lake: lancekeep.Catalog, *, columnar: bool
) -> None:
    wrong = "CAST(X'ff61' AS STRING)"
    with configured_as(configured, SETTING, str(columnar).lower()):
        configured.sql("CREATE OR REPLACE TABLE lake.texts AS SELECT id, 'é' a, 'x' b, id n FROM range(0, 9, 1, 1)")
        for statement in (
            f"INSERT INTO lake.texts SELECT 1, {wrong}, 'x', 1",
            f"UPDATE lake.texts SET a = {wrong}",
            f"UPDATE lake.texts SET a = {wrong} WHERE id = 3",
            f"MERGE INTO lake.texts t USING (SELECT 3 k) ON id = k WHEN MATCHED THEN UPDATE SET b = {wrong}",
        ):
            with pytest.raises(PySparkException, match=r"'[ab]' has a text that Lance could not read"):
                configured.sql(statement)
        configured.sql(f"UPDATE lake.texts SET a = make_valid_utf8({wrong}) WHERE id = 3")
    assert lake.open("texts").to_table().sort_by("id")["a"].to_pylist() == ["é"] * 3 + ["\ufffda"] + ["é"] * 5


@pytest.mark.parametrize("place", ["named_struct()", "array(named_struct('x', 1, 'y', named_struct()))"])
def test_structs_without_fields_are_refused(configured: SparkSession, lake: lancekeep.Catalog, place: str) -> None:
    with pytest.raises(PySparkException, match="a struct without fields"):
        configured.sql(f"CREATE TABLE lake.placeless AS SELECT {place} place, 'x' text")
    configured.sql("CREATE TABLE lake.placeless AS SELECT 1 id")
    with pytest.raises(PySparkException, match="a struct without fields"):
        configured.sql("ALTER TABLE lake.placeless ADD COLUMN place STRUCT<inner: STRUCT<>>")
    lake.drop_table("placeless")


LIMITS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.mark.parametrize(("most_bytes", "most_rows"), [("64k", "10000"), ("64m", "7"), ("16k", "30"), ("64m", "0")])
@pytest.mark.parametrize("columnar", [True, False])
def test_batches_of_a_write_end_at_the_limits_of_the_session(
    configured: SparkSession,
    lake: lancekeep.Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most_bytes: str,
    most_rows: str,
    *,
    columnar: bool,
) -> None:
    def spied(batches: Any, plan: Any) -> list[str]:
        def seen() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                Path(tmp_path, str(uuid4())).write_text(f"{batch.num_rows} {batch.nbytes}")
                yield batch

        return write_batches(seen(), plan)

    monkeypatch.setattr(write, "write_batches", spied)
    with (
        configured_as(configured, SETTING, str(columnar).lower()),
        configured_as(configured, LIMITS[0], most_bytes),
        configured_as(configured, LIMITS[1], most_rows),
    ):
        configured.range(0, 1000, 1, 1).selectExpr("id", "repeat('x', 1000) text").writeTo("lake.sized").create()
    sizes = [tuple(map(int, each.read_text().split())) for each in tmp_path.iterdir()]
    lake.drop_table("sized")
    assert sum(rows for rows, _ in sizes) == 1000
    most = min({"16k": 16, "64k": 64, "64m": 1000}[most_bytes], int(most_rows) or 1000)  # a row has about 1 kB
    found = max(rows for rows, _ in sizes)
    assert most * 0.9 <= found <= most * 1.1
    assert found <= int(most_rows) or most_rows == "0"
    assert len(sizes) <= 1000 / most * 1.3 + 1


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM lake.t",
        "SELECT * FROM lake.empty",
        "SELECT id, _rowid, _rowaddr, _fragment, place FROM lake.t WHERE i32 > 0 AND upper(text) <> 'x'",
        "SELECT * FROM lake.t VERSION AS OF 1 WHERE id % 2 = 0",
        "SELECT * FROM parts.dataset",
        "SELECT id, count(*), max(x) FROM parts.dataset GROUP BY id",
        f"SELECT {', '.join(f'hash({name})' for name in COLUMNS if 'map' not in COLUMNS[name])} FROM lake.t",
        f"SELECT {', '.join(f'count({name}), max({name} IS NULL)' for name in COLUMNS)} FROM lake.t WHERE id + 1 > 1",
        "SELECT place.inner.name, tags[0], counts['other'], deep[0] FROM lake.t WHERE place.inner.n IS NULL",
    ],
)
def test_columns_give_the_rows(reads: Reads, statement: str) -> None:
    assert reads.rows(statement, columnar=True) == reads.rows(statement, columnar=False)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT max(text), min(text), max(raw), min_by(place, i64), max_by(tags, i64) FROM lake.t",
        "SELECT sort_array(collect_list(text)), sort_array(collect_set(raw)) FROM lake.t",
        "SELECT id, lag(text) OVER (ORDER BY id), lead(large, 30) OVER (ORDER BY id) FROM lake.t",
        "SELECT a.text, b.place, b.counts FROM lake.t a JOIN lake.t b ON a.id = b.id + 25",
        "SELECT /*+ MERGE(b) */ a.text, b.deep FROM lake.t a JOIN lake.t b ON a.id = b.id + 25",
        "SELECT text, medium, place FROM (SELECT * FROM lake.t ORDER BY text, id DESC) WHERE id > 3",
        "SELECT text, count(DISTINCT small), sum(medium), first(flag) IS NULL FROM lake.t GROUP BY text",
        "SELECT explode(tags), place FROM lake.t",
    ],
)
def test_operators_keep_values_of_earlier_batches(reads: Reads, statement: str) -> None:
    """A task reads its batches into the same memory, one after the other."""
    assert reads.rows(statement, columnar=True) == reads.rows(statement, columnar=False)


def test_slices_of_batches_give_the_rows(reads: Reads, configured: SparkSession) -> None:
    expected = reads.rows("SELECT * FROM lake.t", columnar=False)
    with configured_as(configured, "spark.sql.execution.arrow.maxRecordsPerOutputBatch", "7"):
        assert reads.rows("SELECT * FROM lake.t", columnar=True) == expected


def test_python_functions_and_caches_take_columns(configured: SparkSession, lake: lancekeep.Catalog) -> None:
    names = ["id", "text", "place", "i32"]
    expected = configured.table("lake.t").select(names).orderBy("id").collect()
    with configured_as(configured, "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled", "true"):
        frame = configured.table("lake.t")
        assert frame.select(names).cache().orderBy("id").collect() == expected
        assert sorted(frame.select(names).rdd.collect(), key=lambda row: row.id) == expected
        assert frame.select(names).toArrow().sort_by("id").to_pylist() == [row.asDict(True) for row in expected]
        mapped = frame.select("id", "text").mapInArrow(lambda batches: batches, "id LONG, text STRING")
        assert [row.text for row in mapped.orderBy("id").collect()] == [row.text for row in expected]
        unchanged = udf(lambda text: text, "string", useArrow=True)
        called = frame.select("id", unchanged("text").alias("text"), "place", "i32")
        assert sorted(called.collect(), key=lambda row: row.id) == expected
        configured.catalog.clearCache()


# -- the end of a task ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def big(configured: SparkSession, lake: lancekeep.Catalog) -> str:
    """A table of one task with many batches."""
    lake.write("big", pa.table({"id": range(100_000), "text": ["x" * 20] * 100_000}))
    return "lake.big"


def await_release(spark: SparkSession) -> None:
    deadline = monotonic() + 60
    while memory(spark):
        assert monotonic() < deadline, f"{memory(spark)} bytes of Arrow memory remain"
        sleep(0.1)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT sum(id), max(text) FROM {t}",
        "SELECT * FROM {t} WHERE upper(text) <> 'x' LIMIT 1",
        "SELECT * FROM {t} LIMIT 200",
        "SELECT count(*) FROM {t} WHERE EXISTS (SELECT 1 FROM {t} s WHERE upper(s.text) = 'y')",
    ],
)
def test_memory_of_batches_is_released(configured: SparkSession, big: str, statement: str) -> None:
    assert configured.sql(statement.format(t=big)).collect()
    await_release(configured)


@pytest.mark.parametrize(
    "statement",
    ["SELECT count(*) FROM {big} WHERE {asleep} IS NULL", "INSERT INTO lake.slept SELECT {asleep} FROM {big}"],
)
def test_cancelled_statement_releases_its_memory(configured: SparkSession, big: str, statement: str) -> None:
    failures: list[str] = []
    configured.sql("CREATE TABLE IF NOT EXISTS lake.slept (text STRING)")

    def run() -> None:
        configured.sparkContext.setJobGroup("endless", "", interruptOnCancel=True)
        try:
            asleep = "reflect('java.lang.Thread', 'sleep', id * 0 + 5L)"  # for minutes, without processor time
            configured.sql(statement.format(big=big, asleep=asleep)).collect()
        except Exception as error:  # PySpark converts only some of Java's
            failures.append(str(error))

    thread = InheritableThread(target=run)
    thread.start()
    while not memory(configured):
        assert thread.is_alive(), failures
        sleep(0.1)
    while thread.is_alive():
        configured.sparkContext.cancelJobGroup("endless")
        thread.join(0.2)
    assert "cancelled" in failures[0]
    await_release(configured)
    assert configured.table("lake.slept").count() == 0
    assert configured.sql(f"SELECT sum(id) s FROM {big}").collect()[0].s == 4_999_950_000


def test_failed_worker_says_the_same(reads: Reads, configured: SparkSession, lake: lancekeep.Catalog) -> None:
    lake.write("damaged", lake.open("t").to_table(columns=["id", "text"]))
    for file in Path(lake.describe_table("damaged").uri.removeprefix("file://"), "data").iterdir():
        file.write_bytes(b"no data file")
    said = []
    for columnar in (True, False):
        with pytest.raises(PySparkException) as raised:
            reads.rows("SELECT * FROM lake.damaged", columnar=columnar)
        said.append(re.sub(r"\d+", "0", str(raised.value).partition("\n\tat ")[0]))  # numbers of stages and tasks
    assert said[0] == said[1]
    assert "Traceback" in said[0]
    await_release(configured)


def test_failed_write_says_why_and_releases_its_memory(configured: SparkSession, lake: lancekeep.Catalog) -> None:
    configured.sql("CREATE TABLE lake.unwritable (id BIGINT, text STRING)")
    with pytest.raises(PySparkException, match="Division by zero"):
        configured.sql("INSERT INTO lake.unwritable SELECT id, 1 / (id - 50) FROM range(0, 100, 1, 1)")
    await_release(configured)
    assert lake.open("unwritable").count_rows() == 0


def test_write_that_leaves_rows_untaken_releases_its_memory(
    configured: SparkSession, lake: lancekeep.Catalog, big: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured.sql("CREATE TABLE lake.untaken (id BIGINT, text STRING)")

    def none(batches: Any, plan: Any) -> list[str]:
        next(iter(batches))
        return []

    monkeypatch.setattr(write, "write_batches", none)
    configured.sql(f"INSERT INTO lake.untaken SELECT id, repeat(text, 20) FROM {big}")
    await_release(configured)


# -- columns or rows ------------------------------------------------------------------------------------------------


LONGS = StructType([StructField("a", LongType())])


@pytest.mark.parametrize(
    ("columns", "setting", "expected"),
    [
        (LONGS, "", True),
        (LONGS, "TRUE", True),
        (LONGS, "False", False),
        (StructType(), "", False),
        (StructType([StructField("a", ArrayType(MapType(StringType(), LONGS)))]), "", True),
        (StructType([StructField("a", VariantType())]), "", False),
        (StructType([*LONGS, StructField("b", ArrayType(StructType([StructField("c", VariantType())])))]), "", False),
        (StructType([StructField("a", MapType(YearMonthIntervalType(), LongType()))]), "", False),
        (StructType([StructField("a", MapType(LongType(), YearMonthIntervalType()))]), "", False),
    ],
)
def test_schema_and_setting_decide(columns: StructType, setting: str, *, expected: bool) -> None:
    assert returns_columns(columns, setting) is expected


def test_unknown_setting_is_refused(configured: SparkSession, lake: lancekeep.Catalog) -> None:
    configured.sql("CREATE TABLE lake.unwritten (id BIGINT)")
    with configured_as(configured, SETTING, "maybe"):
        for refused in ("SELECT * FROM lake.t", "INSERT INTO lake.unwritten VALUES (1)"):
            with pytest.raises(PySparkException, match="set it to true or false"):
                configured.sql(refused).collect()
    assert lake.open("unwritten").count_rows() == 0


def test_scan_reads_rows_where_no_reader_compiles(
    configured: SparkSession, lake: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = configured.sql("SELECT id, text FROM lake.t ORDER BY id").collect()
    monkeypatch.setattr(readers, "_doors", WeakKeyDictionary())
    monkeypatch.setattr(readers, "SOURCE", batch_classes.SOURCE.replace("ArrowPythonRunner", "MissingRunner"))
    for _ in range(2):
        frame = configured.sql("SELECT id, text FROM lake.t ORDER BY id")
        assert "ColumnarToRow" not in plan_of(frame)
        assert frame.collect() == expected
    configured.sql("CREATE TABLE lake.plain AS SELECT id, text FROM lake.t")
    assert configured.sql("SELECT id, text FROM lake.plain ORDER BY id").collect() == expected
    assert [record.message.partition(":")[0] for record in caplog.records if "of batches" in record.message] == [
        "this Spark has no readers and writers of batches; its own take longer"
    ]


def test_executors_of_a_cluster_return_columns(tmp_path: Path) -> None:
    assert printed_by("cluster_reader.py", tmp_path) == [[True, 4950, "100"]] * 2


def test_executors_without_the_package_end_statements_that_change_nothing(tmp_path: Path) -> None:
    errors, tables, rows = printed_by("cluster_without_package.py", tmp_path)
    assert errors == ["ModuleNotFoundError: No module named 'lancekeep'"] * 4
    assert (tables, rows) == (["t"], 10)
