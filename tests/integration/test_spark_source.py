"""``format("lancekeep")`` in a real Spark session: what is read and written, and what is refused before any task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import lancekeep
from pyspark_lancekeep import DefaultSource

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {"root": str(tmp_path / "lake"), "commit_store": f"sqlite://{tmp_path}/commits.db"}


@pytest.fixture
def catalog(options: Mapping[str, str]) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(options["root"], commit_store=options["commit_store"]) as catalog:
        catalog.create_namespace("travel")
        yield catalog


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """With filters pushed down."""
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)


def load(spark: SparkSession, options: Mapping[str, str], table: str = "travel.t", **more: Any) -> DataFrame:
    return spark.read.format("lancekeep").options(**options, **more).load(table)


def save(
    frame: DataFrame, options: Mapping[str, str], mode: str = "append", table: str = "travel.t", **more: Any
) -> None:
    frame.write.format("lancekeep").options(**options, **more).mode(mode).save(table)


def struct_type(ddl: str) -> StructType:
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


def test_written_rows_are_read_and_each_write_is_one_version(
    session: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    save(session.range(0, 50, 1, 2), options)
    save(session.range(50, 60, 1, 1), options)
    assert ids(load(session, options)) == list(range(60))
    save(session.range(0, 3, 1, 1).selectExpr("id", "'x' name"), options, "overwrite")
    assert load(session, options).collect() == [(0, "x"), (1, "x"), (2, "x")]
    assert [(entry.version, entry.operation, entry.rows) for entry in catalog.versions.history("travel.t")] == [
        (3, "Overwrite", 3),
        (2, "Append", 60),
        (1, "Overwrite", 50),
    ]


def test_read_options_select_columns_versions_and_rows(
    session: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    numbers = [pa.table({"id": range(at, at + 10), "name": [f"n{at}"] * 10}) for at in (0, 10, 20)]
    for part in numbers:
        catalog.write("travel.t", part, "overwrite" if part is numbers[0] else "append")
    dataset = catalog.open("travel.t")
    dataset.tags.create("first", 1)
    dataset.create_branch("trial", 2)

    assert load(session, options, columns=" name, id").columns == ["name", "id"]
    assert ids(load(session, options, version=2)) == list(range(20))
    assert ids(load(session, options, tag="first")) == list(range(10))
    assert ids(load(session, options, branch="trial")) == list(range(20))
    assert ids(load(session, options, limit=13)) == list(range(13))
    assert ids(load(session, options, limit=13).where("id > 10")) == [11, 12]  # a limit counts before filters do
    assert ids(load(session, options, batch_size=3)) == list(range(30))
    assert load(session, options).count() == 30
    assert load(session, options).where("id >= 9 and name = 'n0'").collect() == [(9, "n0")]


def test_reader_schema_selects_columns(
    session: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    catalog.write("travel.t", pa.table({"id": [1], "name": ["x"]}))
    chosen = session.read.format("lancekeep").options(**options)
    assert chosen.schema("name string").load("travel.t").collect() == [("x",)]
    with pytest.raises(
        PySparkException, match="the column 'id' of the table is int64 in Spark; it was asked for as int32"
    ):
        chosen.schema("id int").load("travel.t").collect()


# -- vectors --------------------------------------------------------------------------------------------------------


def test_vector_columns_come_from_option_or_read_table(
    session: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    vectors = session.range(0, 4, 1, 1).selectExpr("id", "if(id = 2, null, array(cast(id as float), 0.5f)) Embedding")
    save(vectors, options, "append", "travel.t", **{"vector.Embedding": "2"})
    stored = catalog.open("travel.t").schema.field("Embedding").type
    assert stored == pa.list_(pa.float32(), 2)

    save(load(session, options), options, table="travel.copy")  # the length travels in the metadata of the column
    save(session.range(1).selectExpr("id", "array(1f, 2f) Embedding"), options, "overwrite")  # the table says it
    for table, rows in (("copy", [[0.0, 0.5], [1.0, 0.5], None, [3.0, 0.5]]), ("t", [[1.0, 2.0]])):
        dataset = catalog.open(f"travel.{table}")
        assert dataset.schema.field("Embedding").type == stored
        assert dataset.to_table()["Embedding"].to_pylist() == rows
    with pytest.raises(PySparkException, match=r"vectors of 2 values; found lengths \[3\]"):
        save(session.range(1).selectExpr("id", "array(1f, 2f, 3f) Embedding"), options)
    assert catalog.open("travel.t").version == 2


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"colums": "id"}, "unknown option 'colums' of lancekeep; known here are: batch_size, branch, columns"),
        ({"vector.": "2"}, "unknown option 'vector.'"),
        ({"root": None}, "no catalog is named"),
        ({"path": None}, "name one table"),
        ({"table": "travel.other"}, "name one table"),
        ({"path": "file:///lake/t.lance"}, "is a location; name the table"),
        ({"version": "0"}, "the option version is '0'; give a whole number from 1 on"),
        ({"version": "2", "tag": "x"}, "a tag selects a version"),
        ({"version": "7"}, "no version 7"),
        ({"columns": "id,nam"}, "the table has no column 'nam'; it has id, name"),
        ({"unsafe": "perhaps"}, "'unsafe' is 'perhaps'; give 'true' or 'false'"),
        ({"mode": "v3"}, "unknown mode 'v3'"),
    ],
)
def test_invalid_read_is_refused(
    options: dict[str, str], catalog: lancekeep.Catalog, more: dict[str, str | None], message: str
) -> None:
    catalog.write("travel.t", pa.table({"id": [1], "name": ["x"]}))
    given = {name: value for name, value in {**options, "path": "travel.t", **more}.items() if value is not None}
    with pytest.raises(lancekeep.LancekeepError, match=message):
        DefaultSource(given).schema()


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ("id long", {}, "'name' is missing"),
        ("id long, name string, more int", {}, "'more' is not a column of the table"),
        ("id int, name string", {}, "'id' is int32, the table has int64"),
        ("id long, name string", {"vector.v": "3"}, "no column 'v' to store as vectors, only: id, name"),
        ("id long, name string", {"vector.name": "3"}, "is string; vectors of length 3 do not fit"),
        ("id long, name string", {"columns": "id"}, "unknown option 'columns'"),
    ],
)
def test_write_of_other_columns_is_refused_before_any_task(
    options: dict[str, str], catalog: lancekeep.Catalog, columns: str, more: dict[str, str], message: str
) -> None:
    catalog.write("travel.t", pa.table({"id": [1], "name": ["x"]}))
    source_ = DefaultSource({**options, **more, "path": "travel.t"})
    with pytest.raises(lancekeep.LancekeepError, match=message):
        source_.writer(struct_type(columns), False)
    assert catalog.open("travel.t").version == 1


def test_spark_errors_name_cause_and_no_secret(
    session: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    with pytest.raises(PySparkException, match=r"the table travel\.t does not exist"):
        load(session, options)
    with pytest.raises(PySparkException, match="the namespace nowhere does not exist"):
        save(session.range(1), options, table="nowhere.t")
    catalog.write("travel.t", pa.table({"id": [1]}))
    secret = {"commit_store.password": "hunter2"}
    with pytest.raises(PySparkException) as refused:
        load(session, {**options, **secret}, version=1)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_failing_task_commits_nothing(
    session: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog, mode: str
) -> None:
    broken = session.range(0, 100, 1, 2).selectExpr("if(id = 99, raise_error('the sensor was unplugged'), id) id")
    with pytest.raises(PySparkException, match="the sensor was unplugged"):
        save(broken, options, mode)
    assert not catalog.table_exists("travel.t")
    save(session.range(5), options, mode)
    with pytest.raises(PySparkException, match="the sensor was unplugged"):
        save(broken, options, mode)
    assert ids(load(session, options)) == list(range(5))
    assert [entry.version for entry in catalog.versions.history("travel.t")] == [1]


def test_one_of_two_racing_creators_makes_table(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    schema = struct_type("id long")
    first, second = (DefaultSource({**options, "path": "travel.t"}).writer(schema, False) for _ in range(2))
    numbers = pa.record_batch({"id": [1, 2]})
    answers = [[writer.write(iter([numbers]))] for writer in (first, second)]
    first.commit(list(answers[0]))
    with pytest.raises(lancekeep.ConcurrentModification):
        second.commit(list(answers[1]))
    assert catalog.open("travel.t").count_rows() == 2


# -- tables of Spark's session catalog ------------------------------------------------------------------------------


def test_session_catalog_tables_keep_location(
    session: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog, tmp_path: Path
) -> None:
    for name, rows in (("a", [1]), ("b", [2, 3])):
        catalog.write(f"travel.{name}", pa.table({"id": rows, "name": ["x"] * len(rows)}))
        given = ", ".join(f"`{key}` '{value}'" for key, value in {**options, "table": f"travel.{name}"}.items())
        session.sql(f"CREATE TABLE {name} USING lancekeep OPTIONS ({given})")
    catalog.write("travel.a", pa.table({"id": [9], "name": ["y"]}), "append")
    assert session.sql("SELECT a.id FROM a WHERE name = 'y'").collect() == [(9,)]
    assert session.sql("SELECT count(*) FROM a JOIN b ON a.name = b.name").collect() == [(2,)]
    assert ids(session.read.option("version", 1).table("a")) == [1]

    # Spark tells a writer the query's columns, which are those of b where they fit: it must not write to b
    for statement in ("INSERT INTO a SELECT * FROM b", "INSERT OVERWRITE a SELECT * FROM b"):
        with pytest.raises(PySparkException, match="no catalog is named"):
            session.sql(statement)
    given = ", ".join(f"'{key}' = '{value}'" for key, value in {**options, "table": "travel.a"}.items())
    session.sql(f"INSERT INTO a WITH ({given}) SELECT * FROM b")
    assert (ids(session.table("a")), ids(session.table("b"))) == ([1, 2, 3, 9], [2, 3])
    for name in ("a", "b"):
        session.sql(f"DROP TABLE {name}")
    assert catalog.list_tables("travel") == ["a", "b"]


def test_session_catalog_receives_no_secret(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    catalog.write("travel.t", pa.table({"id": [1]}))
    created = {**options, "table": "travel.t", "provider": "lancekeep", "owner": "me", "option.root": "x"}
    assert DefaultSource(created).schema().names == ["id"]
    with pytest.raises(lancekeep.InvalidInput, match=r"would keep storage\.aws_secret_access_key in clear text"):
        DefaultSource({**created, "storage.aws_secret_access_key": "hunter2"}).schema()
    with pytest.raises(lancekeep.InvalidInput, match="no LOCATION of its own"):
        DefaultSource({**created, "location": "file:/x"}).schema()
