"""``format("lancekeep")`` in a real Spark session: what is read and written, and what is refused before any task."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql import datasource as source
from pyspark.sql.types import StructType

import lancekeep
from lancekeep.entrypoints.spark.filters import pushed
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
    assert [(entry.version, entry.operation, entry.rows) for entry in catalog.history("travel.t")] == [
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


# -- filters --------------------------------------------------------------------------------------------------------

NEGATIVE_NAN = struct.unpack("<d", bytes.fromhex("000000000000f8ff"))[0]
MOMENTS = [
    datetime(1, 1, 1),
    datetime(2020, 2, 29, 1, 2, 3, 456_789),
    datetime(9999, 12, 31),
    None,
    datetime(1969, 1, 1),
]
AWARE = [moment and moment.replace(tzinfo=UTC) for moment in MOMENTS]
FLOATS = [float("nan"), NEGATIVE_NAN, -0.0, 0.0, 0.1, math.inf, -math.inf, None]
NASTY: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "i8": (pa.int8(), [-128, 127, None]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, 0, None]),
    "u8": (pa.uint8(), [0, 255, None]),
    "u64": (pa.uint64(), [0, 2**64 - 1, None]),
    "f16": (pa.float16(), [0.5, float("nan"), None]),
    "f32": (pa.float32(), [0.10000000149011612 if value == 0.1 else value for value in FLOATS]),
    "f64": (pa.float64(), FLOATS),
    "price": (pa.decimal128(20, 4), [Decimal("1.1000"), Decimal("-9999999999999999.9999"), Decimal("0"), None]),
    "big": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-1), None]),
    "text": (pa.string(), ["it's", "100%", "a_b", "a\\b", "", "é ✈", 'say "x"', "line\nend", None]),
    "long": (pa.large_string(), ["a", "b", None]),
    "kind": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
    "raw": (pa.binary(), [b"\x00\xff", b"", b"x", None]),
    "day": (pa.date32(), [date(1, 1, 1), date(2020, 2, 29), date(9999, 12, 31), None]),
    "instant": (pa.timestamp("us", "UTC"), AWARE),
    "berlin": (pa.timestamp("ms", "Europe/Berlin"), [moment and moment.replace(microsecond=0) for moment in AWARE]),
    "clock": (pa.timestamp("us"), MOMENTS),
    "nanos": (pa.timestamp("ns"), [datetime(2020, 2, 29, 1, 2, 3, 456_789), None]),
    "UPPER case": (pa.int32(), [1, 2, None]),
    'q"uote': (pa.int32(), [1, 2, None]),
}
COMPARISONS: list[tuple[type[Any], Callable[[Any, Any], Any]]] = [
    (source.EqualTo, lambda column, value: column == value),
    (source.EqualNullSafe, lambda column, value: column.eqNullSafe(value)),
    (source.LessThan, lambda column, value: column < value),
    (source.LessThanOrEqual, lambda column, value: column <= value),
    (source.GreaterThan, lambda column, value: column > value),
    (source.GreaterThanOrEqual, lambda column, value: column >= value),
]
TEXTS: list[tuple[type[Any], Callable[[Any, Any], Any]]] = [
    (source.StringStartsWith, lambda column, value: column.startswith(value)),
    (source.StringEndsWith, lambda column, value: column.endswith(value)),
    (source.StringContains, lambda column, value: column.contains(value)),
]


def nasty_table() -> pa.Table:
    rows = max(len(values) for _, values in NASTY.values())
    columns = {name: pa.array((values * rows)[:rows], kind) for name, (kind, values) in NASTY.items()}
    nested = [None if row % 3 == 2 else {"x": row % 2 or None, "text": "it's"} for row in range(rows)]
    place = pa.array(nested, pa.struct([("x", pa.int32()), ("text", pa.string())]))
    return pa.table({"id": pa.array(range(rows)), **columns, "place": place})


def literal_of(value: Any) -> Column:
    """By its text where Java's own dates would take the value for another day, or for an instant."""
    if isinstance(value, datetime):
        return functions.lit(str(value)).cast("timestamp" if value.tzinfo else "timestamp_ntz")
    return functions.lit(str(value)).cast("date") if isinstance(value, date) else functions.lit(value)


def nasty_filters() -> Iterator[tuple[source.Filter, Any]]:
    """Every kind of filter with every nasty value, as Spark hands it to a source, and as Spark computes it itself."""
    columns: dict[tuple[str, ...], list[Any]] = {(name,): values for name, (_, values) in NASTY.items()}
    columns |= {("place", "x"): [1, None], ("place", "text"): ["it's", None]}
    for path, values in columns.items():
        column = functions.col(".".join("`" + name.replace("`", "``") + "`" for name in path))
        yield source.IsNull(path), column.isNull()
        yield source.IsNotNull(path), column.isNotNull()
        for value in values:
            wide = Decimal(value) if path == ("u64",) and value is not None else value
            literal = literal_of(wide)
            for kind, compute in COMPARISONS:
                if value is None and kind is not source.EqualNullSafe:
                    continue
                condition, computed = kind(path, wide), compute(column, literal)
                yield condition, computed
                yield source.Not(condition), ~computed
            if value is not None:
                condition, computed = source.In(path, (wide,)), column.isin(literal)
                yield condition, computed
                yield source.Not(condition), ~computed
                nulls = functions.lit(None)
                yield source.In(path, (wide, None)), column.isin(literal, nulls)
                yield source.Not(source.In(path, (wide, None))), ~column.isin(literal, nulls)
            for kind, compute in TEXTS if isinstance(value, str) else ():
                yield kind(path, value), compute(column, value)
                yield source.Not(kind(path, value)), ~compute(column, value)
    for value in (-1, 300, 2**40):  # out of the range of what is stored
        yield source.GreaterThan(("u8",), value), functions.col("u8") > value


def test_pushed_filters_select_same_rows_as_spark(
    spark: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    catalog.write("travel.t", nasty_table())
    dataset = catalog.open("travel.t")
    filters = list(nasty_filters())
    frame = load(spark, options).localCheckpoint()
    chosen = [functions.coalesce(computed, functions.lit(False)) for _, computed in filters]
    rows = sorted(frame.select("id", functions.array(*chosen)).collect())

    wrong, taken, exact = [], 0, 0
    for position, (condition, _) in enumerate(filters):
        translated = pushed(condition, dataset.schema)
        if translated is None:
            continue
        found = set(dataset.to_table(columns=["id"], filter=translated.sql)["id"].to_pylist())
        wanted = {row[0] for row in rows if row[1][position]}
        taken += 1
        exact += translated.exact
        if not (found == wanted if translated.exact else found >= wanted):
            wrong.append((condition, translated, sorted(found), sorted(wanted)))
    assert wrong == []
    assert taken > len(filters) / 2, "most filters are pushed"
    assert exact > taken / 2
    beside = dataset.schema.append(pa.field("we`ird", pa.int32()))  # a name that the scanner cannot read with a filter
    assert pushed(source.IsNull(("id",)), beside) is None


def test_filters_are_pushed_down_to_scanner(
    session: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    catalog.write("travel.t", nasty_table())
    conditions = [
        ("flag = true and i8 < 0", True),
        ("price in (1.1000, 0.0000)", True),
        ("text like 'it%' and text is not null", True),
        ('text = "it\'s" or text is null', False),  # a disjunction stays with Spark
        ("raw = X'00ff'", True),
        ("day >= date'2020-02-29'", True),
        ("instant = timestamp'2020-02-29 01:02:03.456789Z'", True),
        ("clock = timestamp_ntz'2020-02-29 01:02:03.456789'", True),
        ("not (u64 <=> 18446744073709551615)", True),
        ("f64 > 0.05 and isnotnull(f32)", False),  # both filter
        ('place.x = 1 and place.text = "it\'s"', True),
        ("`UPPER case` in (1, 3)", True),
    ]
    for condition, pushes in conditions:
        frame = load(session, options).where(condition)
        plan = frame._jdf.queryExecution().executedPlan().toString()
        session.conf.set(PUSHDOWN, "false")
        wanted = ids(load(session, options).where(condition))
        session.conf.set(PUSHDOWN, "true")
        assert ids(frame) == wanted != [], condition
        assert ("Filter" not in plan.replace("RuntimeFilters", "")) == pushes, plan
    catalog.open("travel.t").create_scalar_index("i8", "BTREE")
    assert ids(load(session, options).where("i8 = 127")) == [1, 4, 7]


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
        ({"root": None}, "no root: give the place of the catalog"),
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
    assert [entry.version for entry in catalog.history("travel.t")] == [1]


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
        with pytest.raises(PySparkException, match="no root: give the place of the catalog"):
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
