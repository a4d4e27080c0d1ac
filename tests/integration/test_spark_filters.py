"""Filters that Spark pushes to ``format("lancekeep")`` select the rows that Spark selects itself."""

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
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql import datasource as source

import lancekeep
from lancekeep.entrypoints.spark.filters import pushed

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


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("lancekeep").options(**options).load("travel.t")


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


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
