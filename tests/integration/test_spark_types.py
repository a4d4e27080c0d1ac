"""Every type of Spark through a table and back, beside the same rows through parquet; and Arrow's types into Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, StringType, StructField, StructType, VariantType

import lancekeep
from lancekeep.entrypoints.spark.arrow_types import arrow_schema, spark_schema
from pyspark_lancekeep import DefaultSource

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
]

TYPES = {
    "flag": "boolean",
    "i8": "byte",
    "i16": "short",
    "i32": "int",
    "f32": "float",
    "f64": "double",
    "small": "decimal(5,2)",
    "large": "decimal(38,18)",
    "text": "string",
    "raw": "binary",
    "day": "date",
    "clock_time": "time(6)",
    "instant": "timestamp",
    "local": "timestamp_ntz",
    "span": "interval day to second",
    "tags": "array<string>",
    "grid": "array<array<double>>",
    "prices": "array<decimal(30,3)>",
    "place": "struct<x: int, `y z`: struct<moments: array<timestamp>, price: decimal(20,4)>>",
    "counts": "map<string, long>",
    "deep": "map<int, array<struct<raw: binary, span: interval day to second>>>",
}
VALUES: dict[str, list[Any]] = {
    "flag": [True, False],
    "i8": [-128, 127],
    "i16": [-32768, 32767],
    "i32": [-(2**31), 2**31 - 1],
    "f32": [float("nan"), -0.0],
    "f64": [float("inf"), 5e-324],
    "small": [Decimal("999.99"), Decimal("-0.01")],
    "large": [Decimal("99999999999999999999.999999999999999999"), Decimal("0")],
    "text": ["naïve ✈ \x00", ""],
    "raw": [b"\x00\xff", b""],
    "day": [date(1, 1, 1), date(9999, 12, 31)],
    "clock_time": [time(0), time(23, 59, 59, 999_999)],
    "instant": [datetime(1900, 1, 1, tzinfo=UTC), datetime(2013, 3, 10, 7, 30, 0, 123_456, tzinfo=UTC)],
    "local": [datetime(1, 1, 1), datetime(2013, 3, 10, 2, 30)],  # an hour that New York did not have
    "span": [timedelta(days=-3, microseconds=1), timedelta(0)],
    "tags": [["a", None, ""], []],
    "grid": [[[0.5], None, []], [None]],
    "prices": [[Decimal("1.250"), None], []],
    "place": [
        {"x": 1, "y z": {"moments": [datetime(2020, 1, 1, tzinfo=UTC), None], "price": Decimal("1.0000")}},
        {"x": None, "y z": None},
    ],
    "counts": [{"a": 1, "b": None}, {}],
    "deep": [{1: [{"raw": b"x", "span": timedelta(1)}, None]}, {2: None}],
}


if pyspark.__version__.startswith("4.0."):  # has no type TIME
    del TYPES["clock_time"], VALUES["clock_time"]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {"root": str(tmp_path / "lake"), "commit_store": f"sqlite://{tmp_path}/commits.db"}


@pytest.fixture
def catalog(options: dict[str, str]) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(options["root"], commit_store=options["commit_store"]) as catalog:
        yield catalog


def types_of(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


@pytest.fixture
def times(spark: SparkSession) -> Iterator[None]:
    """Spark 4.3 has the type TIME on request only."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


@pytest.mark.usefixtures("times")
def test_every_type_is_read_like_parquet(
    spark: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog, tmp_path: Path
) -> None:
    columns = ", ".join(f"`{name}` {kind}" for name, kind in TYPES.items())
    nulls: dict[str, Any] = dict.fromkeys(TYPES)
    rows = [nulls] + [{name: values[row] for name, values in VALUES.items()} for row in range(2)]
    frame = spark.createDataFrame(
        [{"id": number, **rows[number % 3]} for number in range(20)], f"id long, {columns}"
    ).repartitionByRange(2, "id")
    empty = frame.where("id < 0")
    only_nulls = frame.where("id % 3 = 0")
    for name, part in (("rows", frame), ("nulls", only_nulls), ("empty", empty)):
        part.write.format("lancekeep").options(**options).mode("append").save(name)
        part.write.parquet(str(tmp_path / name))
        ours = spark.read.format("lancekeep").options(**options).load(name)
        theirs = spark.read.parquet(str(tmp_path / name))
        assert types_of(ours.schema) == types_of(theirs.schema)
        assert str(sorted(ours.collect())) == str(sorted(theirs.collect()))  # as text, in which NaN equals NaN
    assert catalog.open("rows").count_rows() == 20
    assert catalog.open("empty").count_rows() == 0


@pytest.mark.parametrize(
    ("ddl", "named"),
    [
        ("id long, v variant", "'v' is variant"),
        ("id long, v array<struct<deep: map<string, variant>>>", "'v.element.deep.value' is variant"),
        ("id long, place geometry(4326)", "'place' is geometry"),
        ("id long, place geography(4326)", "'place' is geography"),
        ("id long, name string collate UTF8_LCASE", "'name' is string collate UTF8_LCASE"),
        ("id long, span interval year to month", "'span' is interval year to month"),
    ],
)
def test_unsupported_type_is_refused_by_name(
    options: dict[str, str], catalog: lancekeep.Catalog, ddl: str, named: str
) -> None:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    with pytest.raises(lancekeep.InvalidInput, match=f"(?i){named}"):
        DefaultSource({**options, "path": "t"}).writer(schema, False)
    assert not catalog.table_exists("t")


FOREIGN: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "u8": (pa.uint8(), [255, None], "smallint"),
    "u16": (pa.uint16(), [65_535, None], "int"),
    "u32": (pa.uint32(), [2**32 - 1, None], "bigint"),
    "u64": (pa.uint64(), [2**64 - 1, None], "decimal(20,0)"),
    "half": (pa.float16(), [0.5, None], "float"),
    "long_text": (pa.large_string(), ["a", None], "string"),
    "long_raw": (pa.large_binary(), [b"a", None], "binary"),
    "four": (pa.binary(4), [b"abcd", None], "binary"),
    "kind": (pa.dictionary(pa.int8(), pa.string()), ["a", None], "string"),
    "millis": (pa.date64(), [date(2020, 2, 29), None], "date"),
    "seconds": (pa.timestamp("s", "Europe/Berlin"), [datetime(2020, 2, 29, 12, tzinfo=UTC), None], "timestamp"),
    "nanos": (pa.timestamp("ns"), [datetime(1969, 12, 31, 23, 59, 59, 999_999), None], "timestamp_ntz"),
    "span": (pa.duration("s"), [timedelta(seconds=5), None], "interval day to second"),
    "noon": (pa.time32("s"), [time(12), None], "time(6)"),
    "list": (pa.large_list(pa.uint8()), [[1, None], None], "array<smallint>"),
    "vector": (pa.list_(pa.float32(), 2), [[0.5, 1.5], None], "array<float>"),
    "halves": (pa.list_(pa.float16(), 2), [[0.5, 1.5], None], "array<float>"),
    "void_vector": (pa.list_(pa.float32(), 3), [None, None], "array<float>"),
    "place": (
        pa.struct([("v", pa.list_(pa.float32(), 2)), ("u", pa.uint8())]),
        [{"v": None, "u": 1}, None],
        "struct<v:array<float>,u:smallint>",
    ),
    "map": (pa.map_(pa.large_string(), pa.uint8()), [[("a", 1)], None], "map<string,smallint>"),
}

if pyspark.__version__.startswith("4.0."):
    del FOREIGN["noon"]


def test_arrow_only_types_are_read_and_kept_by_writes(
    spark: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    table = pa.table({name: pa.array(values, kind) for name, (kind, values, _) in FOREIGN.items()})
    catalog.write("t", table)
    frame = spark.read.format("lancekeep").options(**options).load("t")
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == {
        name: seen for name, (_, _, seen) in FOREIGN.items()
    }
    first, second = frame.collect()
    assert first["u64"] == Decimal(2**64 - 1)
    assert (first["list"], first["halves"], first["place"]["u"]) == ([1, None], [0.5, 1.5], 1)
    assert set(second) == {None}

    frame.write.format("lancekeep").options(**options).mode("append").save("t")
    dataset = catalog.open("t")
    assert dataset.schema == table.schema
    assert dataset.to_table().to_pylist() == table.to_pylist() * 2


def test_column_without_spark_type_is_named() -> None:
    stored = pa.schema([("id", pa.int64()), ("huge", pa.decimal256(50, 2)), ("list", pa.list_(pa.decimal256(50, 2)))])
    with pytest.raises(lancekeep.InvalidInput, match=r"'huge' is decimal256\(50, 2\); 'list' is list"):
        spark_schema(stored)
    assert spark_schema(pa.schema([stored.field("id")])).simpleString() == "struct<id:bigint>"


def test_nested_types_are_checked() -> None:
    nested = StructType([StructField("a", ArrayType(StructType([StructField("b", StringType("UTF8_LCASE"))])))])
    with pytest.raises(lancekeep.InvalidInput, match=r"'a\.element\.b' is string collate"):
        arrow_schema(nested)
    with pytest.raises(lancekeep.InvalidInput, match="'v' is variant"):
        arrow_schema(StructType([StructField("v", VariantType())]))
