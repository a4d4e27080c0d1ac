"""Aggregates and orders with a limit that are evaluated next to the rows.

`test_spark_oracle` compares their answers with Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lancekeep
import lancekeep.spark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

CHEAP = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
"""Settings that plan a statement fast: each runs once."""


@attrs.frozen
class Lake:
    """A session with a catalog as ``lake``."""

    spark: SparkSession
    catalog: lancekeep.Catalog

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def plan(self, query: str) -> str:
        [[plan]] = self.spark.sql(f"EXPLAIN {query.replace('{t}', 'lake.t')}").collect()
        return str(plan)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    store = f"sqlite://{tmp_path}/commits.db"
    with lancekeep.spark.install(spark, "lake", str(tmp_path / "lake"), commit_store=store) as catalog:
        before = {name: spark.conf.get(name, None) for name in CHEAP}
        for name, value in CHEAP.items():
            spark.conf.set(name, value)
        yield Lake(spark, catalog)
        for name, former in before.items():
            spark.conf.unset(name) if former is None else spark.conf.set(name, former)


def fill(lake: Lake) -> None:
    """Write 60 rows as three fragments, with deleted rows in each."""
    columns = "id INT NOT NULL, b BOOLEAN, i8 TINYINT, f64 DOUBLE, s STRING, ar ARRAY<INT>"
    lake.sql(f"CREATE TABLE lake.t ({columns}, d5 DECIMAL(5, 2), d20 DECIMAL(20, 3), d38 DECIMAL(38, 4))")
    numbers = "id, id % 2 = 0, CAST(id AS TINYINT), id % 5 / 2, char(97 + id % 7), array(id), id, id, id"
    for first in (0, 20, 40):
        lake.sql(
            f"INSERT INTO lake.t SELECT {numbers} FROM (SELECT CAST(id AS INT) id FROM range({first}, {first + 20}))"
        )
    lake.sql("DELETE FROM lake.t WHERE id % 7 = 3")


def test_plan_shows_aggregates_beside_the_rows(lake: Lake) -> None:
    fill(lake)
    for query, pushed in {
        "SELECT min(f64), count(s) FROM {t}": "aggregated [min(f64), count(s)]",
        "SELECT b, count(*) FROM {t} WHERE id < 9 GROUP BY b": "aggregated [count(*)] by [b], filter (`id` < 9)",
        "SELECT b, max(f64), sum(i8), avg(id) FROM {t} GROUP BY b": "aggregated [max(f64), sum(i8), avg(id)] by [b]",
        "SELECT b, sum(d5), avg(d20) FROM {t} GROUP BY b": "aggregated [sum(d5), avg(d20)] by [b]",
    }.items():
        assert pushed in lake.plan(query), query
    for query in (
        "SELECT min(f64) FROM {t} WHERE upper(s) = 'A'",
        "SELECT min(id + 1) FROM {t}",
        "SELECT count(DISTINCT s) FROM {t}",
        "SELECT stddev(i8), count(*) FROM {t}",
        "SELECT sum(d38) FROM {t}",
        "SELECT max(_rowaddr) FROM {t}",
        "SELECT count(*) FILTER (WHERE b), max(id) FROM {t}",
    ):
        assert "aggregated" not in lake.plan(query), query


def test_conditions_that_are_unknown_delete_no_rows(lake: Lake) -> None:
    """The engine takes such an alternative for true where the column is null."""
    lake.sql("CREATE TABLE lake.t (id INT NOT NULL, c INT, s STRING)")
    lake.sql("INSERT INTO lake.t VALUES (1, 1, 'a'), (2, null, null), (3, 3, 'b')")
    for condition in (
        "c NOT IN (1, 3) OR c NOT IN (3, 1, 7)",
        "NOT (c IN (1, 3) AND c IN (1, 3, 4))",
        "NOT ((c = 1 OR c = 3) AND s IN ('a', 'b'))",
    ):
        lake.sql(f"DELETE FROM lake.t WHERE {condition}")
        assert lake.sql("SELECT id FROM lake.t ORDER BY id") == [(1,), (2,), (3,)], condition
    unknown = "c NOT IN (2, 4) OR c NOT IN (5, 6)"
    assert "filter" in lake.plan(f"SELECT id FROM {{t}} WHERE {unknown}")
    assert lake.sql(f"SELECT id FROM lake.t WHERE {unknown} ORDER BY id") == [(1,), (3,)]
    lake.sql(f"DELETE FROM lake.t WHERE {unknown}")
    assert lake.sql("SELECT id FROM lake.t") == [(2,)]


def test_aggregates_of_no_rows_and_of_old_versions(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (id INT NOT NULL, x DOUBLE)")
    assert lake.sql("SELECT count(*) FROM lake.t WHERE x > 1") == [(0,)]
    lake.sql("INSERT INTO lake.t VALUES (1, 1), (2, 2), (3, null)")
    lake.sql("DELETE FROM lake.t WHERE id = 2")
    lake.sql("CALL lake.system.create_branch('t', 'dev')")
    lake.sql("INSERT INTO lake.t.branch_dev VALUES (4, -4)")
    for table, row in {
        "lake.t": (1.0, 1.0, 1, 2),
        "lake.t VERSION AS OF 2": (1.0, 2.0, 2, 3),
        "lake.t VERSION AS OF 1": (None, None, 0, 0),
        "lake.t.branch_dev": (-4.0, 1.0, 2, 3),
        "lake.t.branch_dev WHERE id > 9": (None, None, 0, 0),
    }.items():
        assert lake.sql(f"SELECT min(x), max(x), count(x), count(*) FROM {table}") == [row], table


EXTREMES = [
    (1, 2**63 - 1, 0.5, 2.0, "a b"),
    (1, -(2**63) + 1, -0.0, float("nan"), "a b"),
    (1, 2**62, 0.0, float("-inf"), None),
    (2, 2**63 - 1, float("nan"), 1.0, ""),
    (2, 2**62, 1.5, None, "a b"),
    (3, None, None, None, None),
    (4, -5, -0.0, 0.25, "x"),
    (4, -6, -0.5, 0.5, "x"),
    (4, None, None, None, "x"),
]
QUERIES = [
    "SELECT g, avg(n), count(n), avg(n) > 0 FROM {t} GROUP BY g",
    "SELECT g, min(x), max(x), max(y), min(y) FROM {t} WHERE g > 1 GROUP BY g",
    "SELECT min(x), max(x), min(y), max(y), avg(x), sum(y) FROM {t} WHERE g <> 1",
    "SELECT x, count(*), max(g) FROM {t} WHERE g < 4 GROUP BY x",
    "SELECT y, sum(G) total FROM {t} GROUP BY y HAVING total > 1",
    "SELECT `a' b`, g, sum(n) + count(*) FROM {t} WHERE g > 2 GROUP BY g, `a' b`",
    "SELECT sum(n) FROM {t} WHERE g = 3",
    "SELECT sum(n), avg(n), count(1), count(NULL) FROM {t} WHERE g > 9",
    "SELECT g, try_sum(n), try_avg(n) FROM {t} GROUP BY g",
    "SELECT g, sum(n) FROM {t} WHERE g = 2 GROUP BY g",
    "SELECT sum(n) FROM {t} WHERE g = 2",
    "SELECT avg(n) FROM {t} WHERE g = 2",
    "SELECT a.g, a.total, b.n FROM (SELECT g, sum(g) total FROM {t} GROUP BY g) a JOIN {t} b ON a.g = b.n + 9",
    "SELECT max(total) FROM (SELECT g, sum(x) total FROM {t} WHERE g IN (3, 4) GROUP BY g)",
    "SELECT g FROM {t} WHERE n = (SELECT max(n) FROM {t}) AND x < (SELECT avg(y) FROM {t} WHERE g = 4)",
    "SELECT g, avg(y) OVER (PARTITION BY g) FROM {t} WHERE g = 4",
    "SELECT g, grouping(g), count(*) FROM {t} GROUP BY CUBE (g)",
    "SELECT count(x) FROM (SELECT x FROM {t} WHERE x > 9 LIMIT 2)",
    "SELECT g, sum(g) FILTER (WHERE n > 0), sum(DISTINCT g) FROM {t} GROUP BY g",
]


@pytest.mark.parametrize("ansi", [True, False], ids=["ansi", "wraps"])
def test_sums_and_averages_are_those_of_spark(lake: Lake, ansi: bool) -> None:
    columns = "g INT, n BIGINT, x DOUBLE, y FLOAT, `a' b` STRING"
    rows = lake.spark.createDataFrame(EXTREMES[:-1], columns).repartition(1 if ansi else 3)
    rows.writeTo("lake.t").create()
    last = lake.spark.createDataFrame(EXTREMES[-1:], columns)
    last.writeTo("lake.t").append()
    rows.union(last).coalesce(1).localCheckpoint().createOrReplaceTempView("copy")
    settings = {"spark.sql.ansi.enabled": str(ansi), "spark.sql.adaptive.enabled": str(ansi)}
    before = {name: str(lake.spark.conf.get(name)) for name in settings}
    try:
        for name, value in settings.items():
            lake.spark.conf.set(name, value)
        assert "aggregated [count(*), max(g)] by [x], filter" in lake.plan(QUERIES[3])
        for query in QUERIES:
            found, expected = (answer(lake, query, table) for table in ("lake.t", "copy"))
            assert found == expected, query
        assert answer(lake, "SELECT sum(n) FROM {t} WHERE g = 2", "lake.t") == (
            ["ARITHMETIC_OVERFLOW"] if ansi else [f"{{{-(2**62) - 1}}}"]
        )
    finally:
        for name, former in before.items():
            lake.spark.conf.set(name, former)


def answer(lake: Lake, query: str, table: str) -> list[str]:
    """Return the rows as text in order, or the condition of the error."""
    text = f"SELECT cast(struct(*) AS STRING) FROM ({query.replace('{t}', table)})"
    try:
        return sorted(row for [row] in lake.sql(text))
    except PySparkException as error:
        return [str(error.getCondition())]


def test_partial_results_of_many_rows_are_merged_by_spark(lake: Lake) -> None:
    """Rows of 50,000 groups are not worth a partial result; the first partial results have no values of ``late``."""
    rows = "SELECT id, id % 50000 g, id % 3 few, if(id < 70000, null, id) late, "
    rows += "cast(if(id < 70000, null, id) AS DECIMAL(28, 3)) money, "
    rows += "cast((id % 77 - 9) / 4 AS DECIMAL(8, 2)) cents, make_dt_interval(id % 9, 0, 0, id) span "
    rows += "FROM range(0, 150000, 1, 1)"
    lake.sql(f"CREATE TABLE lake.t AS {rows}")
    groups = "SELECT g, few, count(*) n, sum(id) total, avg(id) mean, min(id) least FROM {t} GROUP BY g, few"
    assert "aggregated [count(*), sum(id), avg(id), min(id)] by [g, few]" in lake.plan(groups)
    for query in (
        f"SELECT count(*), sum(n), sum(total), sum(mean), sum(least) FROM ({groups})",
        "SELECT few, avg(late), sum(late), count(late), max(late) FROM {t} GROUP BY few",
        "SELECT avg(late), sum(late), count(late), max(late) FROM {t}",
        "SELECT few, min(span), max(span), count(span) FROM {t} GROUP BY few",
        "SELECT min(span), max(span) FROM {t} WHERE few = 1",
        "SELECT few, sum(money), avg(money), try_sum(money), max(money), id < 70000 FROM {t} GROUP BY few, id < 70000",
        "SELECT few, sum(money), avg(money), max(money) FROM {t} GROUP BY few",
        "SELECT few, sum(cents), avg(cents), min(cents) FROM {t} GROUP BY few",
        "SELECT sum(cents), avg(cents), sum(late) FROM {t} WHERE few < 2",
        "SELECT g, sum(money), avg(money) FROM {t} WHERE g < 9 OR g > 49000 GROUP BY g",
    ):
        assert answer(lake, query, "lake.t") == answer(lake, query, f"({rows})"), query


def test_plan_shows_orders_with_a_limit_beside_the_rows(lake: Lake) -> None:
    fill(lake)
    plan = lake.plan("SELECT id FROM {t} ORDER BY s DESC, id NULLS LAST LIMIT 3 OFFSET 4")
    assert "order [s DESC NULLS LAST, id ASC NULLS LAST], limit 7" in plan
    rows = lake.sql("SELECT _rowaddr, s FROM lake.t ORDER BY f64 DESC, id, upper(s)")
    assert lake.sql("SELECT _rowaddr, s FROM lake.t ORDER BY f64 DESC, id LIMIT 7") == rows[:7]
    for query in (
        "SELECT id FROM {t} ORDER BY id + 1 LIMIT 2",
        "SELECT id FROM {t} ORDER BY ar LIMIT 2",
        "SELECT id FROM {t} ORDER BY _rowaddr LIMIT 2",
        "SELECT id FROM {t} WHERE upper(s) = 'A' ORDER BY id LIMIT 2",
        "SELECT count(*) n FROM {t} ORDER BY n LIMIT 2",
        "SELECT id FROM {t} ORDER BY id LIMIT 10001",
    ):
        assert "order [" not in lake.plan(query), query
    assert lake.sql("SELECT count(*) n FROM lake.t ORDER BY n LIMIT 2") == [(51,)]


EVERY_TYPE = """
    CAST(id AS INT) id, id % 1000 key, id % 2 = 0 b, CAST(id % 100 AS TINYINT) i8, CAST(id AS FLOAT) f32, id * 0.1BD d,
    concat('text ', id) s, CAST('bytes' AS BINARY) bin, DATE '2024-01-31' + CAST(id AS INT) day,
    TIMESTAMP '1912-06-01 12:00:00.123456' + make_interval(0, 0, 0, 0, CAST(id AS INT)) at,
    TIMESTAMP_NTZ '2024-03-31 02:30:00' local, array(id, null) l, map('k', id) m,
    named_struct('key', id + 1, 'inner', named_struct('x', array(CAST(null AS STRING)))) st,
    CAST(null AS STRING) nothing
"""


def test_keys_of_joins_are_not_checked_for_null_again(lake: Lake) -> None:
    fill(lake)
    lake.sql("INSERT INTO lake.t (id, i8) VALUES (1000, NULL)")
    join = "SELECT count(*), sum(a.f64) FROM {t} a JOIN {t} b ON a.i8 = b.i8"
    plan = lake.plan(join)
    assert plan.count("filter (`i8` IS NOT NULL)") == 2
    assert "isnotnull" not in plan
    expected = lake.sql(join.replace("{t}", "(SELECT * FROM lake.t WHERE i8 + 0 IS NOT NULL)"))
    assert lake.sql(join.replace("{t}", "lake.t")) == expected
    assert re.search(r"Filter .*> 3\)", lake.plan(f"{join} WHERE a.i8 > 3"))  # Spark takes such a side for selective
    lake.spark.conf.set("spark.sql.cbo.enabled", "true")
    try:
        assert "Filter isnotnull(i8" in lake.plan(join)
    finally:
        lake.spark.conf.unset("spark.sql.cbo.enabled")


def test_the_driver_reads_the_few_rows_that_an_index_names(lake: Lake) -> None:
    lake.sql(f"CREATE TABLE lake.t AS SELECT {EVERY_TYPE} FROM range(0, 2000, 1, 1)")
    lake.sql(f"INSERT INTO lake.t SELECT {EVERY_TYPE} FROM range(2000, 2500, 1, 1)")
    for column in ("id", "key"):
        lake.sql(f"CREATE INDEX {column}_index ON lake.t ({column})")
    lake.sql("DELETE FROM lake.t WHERE id = 1007")
    is_local = "LocalTableScan"
    for condition, other, ids in (
        ("key = 7", "key + 0 = 7", [7, 2007]),
        ("key IN (7, 8) AND b", "key + 0 IN (7, 8) AND b", [8, 1008, 2008]),
        ("id = 5 AND s LIKE '%5' AND st.key = 6", "id + 0 = 5", [5]),
        ("id = 1007", "id + 0 = 1007", []),
    ):
        assert is_local in lake.plan(f"SELECT * FROM {{t}} WHERE {condition}"), condition
        found = lake.sql(f"SELECT * FROM lake.t WHERE {condition} ORDER BY id")
        assert found == lake.sql(f"SELECT * FROM lake.t WHERE {other} ORDER BY id"), condition
        assert [row[0] for row in found] == ids, condition
    assert lake.sql("SELECT s FROM lake.t WHERE key = 7 ORDER BY id DESC LIMIT 1") == [("text 2007",)]
    assert is_local in lake.plan("SELECT max(id) FROM {t} WHERE key = 7")
    assert lake.sql("SELECT max(id), avg(id) FROM lake.t WHERE key = 7") == [(2007, 1007.0)]
    assert lake.sql(
        "SELECT a.id, b.id FROM lake.t a JOIN lake.t b USING (key) WHERE a.id = 9 AND b.id > 9 ORDER BY 2"
    ) == [
        (9, 1009),
        (9, 2009),
    ]

    few = "an index names 2 rows in 2 fragments"
    for query, rows in {
        "SELECT count(*) FROM {t} WHERE key = 7": [(2,)],
        "SELECT id, _rowaddr FROM {t} WHERE key = 7 ORDER BY id": [(7, 7), (2007, (1 << 32) + 7)],
    }.items():
        assert few in lake.plan(query), query
        assert lake.sql(query.format(t="lake.t")) == rows, query
    assert "an index" not in lake.plan("SELECT * FROM {t} WHERE st.key = 7"), "the index is of another column"
    lake.sql("UPDATE lake.t SET s = 'changed' WHERE key = 7")
    assert lake.sql("SELECT s FROM lake.t WHERE key = 7") == [("changed",), ("changed",)]
    assert len(lake.sql("SELECT id FROM lake.t WHERE s = 'changed'")) == 2

    text = "array_join(transform(sequence(1, 200), i -> sha2(string(id * 1000 + i), 512)), '')"
    lake.sql(f"CREATE TABLE lake.many AS SELECT id, id % 2 half, {text} s FROM range(0, 250, 1, 1)")
    for column in ("id", "half"):
        lake.sql(f"CREATE INDEX {column}_index ON lake.many ({column})")
    assert "an index" not in lake.plan("SELECT * FROM lake.many WHERE half = 0"), "too many rows"
    large = "SELECT * FROM lake.many WHERE id < 90 AND id IN ({})".format(", ".join(map(str, range(90))))
    assert "BatchScan" in lake.plan(large), "rows of 2 MB"
    lake.sql("INSERT INTO lake.many VALUES (0, 0, 'new')")
    assert "an index" not in lake.plan("SELECT * FROM lake.many WHERE id = 0"), "a fragment without an index"
    assert len(lake.sql("SELECT * FROM lake.many WHERE id = 0")) == 2
    lake.catalog.open("many").optimize.optimize_indices()
    lake.catalog.open("many").optimize.compact_files(defer_index_remap=True)
    assert [] in [index.fields for index in lake.catalog.open("many").describe_indices()], "an index without columns"
    assert len(lake.sql("SELECT * FROM lake.many WHERE id = 0")) == 2


def test_the_driver_reads_the_first_rows_of_a_limit(lake: Lake) -> None:
    """Rows that it reads are those that tasks read, of every type."""
    is_local = "LocalTableScan"
    lake.sql(f"CREATE TABLE lake.t AS SELECT {EVERY_TYPE} FROM range(0, 8, 1, 1)")
    assert lake.sql("SELECT * FROM (SELECT * FROM lake.t LIMIT 0)") == []
    for first in (8, 28, 48):
        lake.sql(f"INSERT INTO lake.t SELECT {EVERY_TYPE} FROM range({first}, {first + 20}, 1, 1)")
    lake.sql("DELETE FROM lake.t WHERE id < 7 OR id = 8")
    rows = lake.sql("SELECT * FROM lake.t")
    assert len(rows) == 60
    for query, found in {
        "SELECT * FROM {t} LIMIT 3": rows[:3],
        "SELECT * FROM {t} LIMIT 100": rows,
        "SELECT id, st FROM {t} LIMIT 5 OFFSET 2": [(row[0], row[-2]) for row in rows[2:7]],
        "SELECT sum(id) FROM (SELECT id FROM {t} LIMIT 5)": [(sum(row[0] for row in rows[:5]),)],
        "SELECT id + 1 FROM {t} LIMIT 2": [(row[0] + 1,) for row in rows[:2]],
        "SELECT a.id FROM (SELECT * FROM {t} LIMIT 2) a JOIN {t} b ON a.id = b.id ORDER BY 1": [(7,), (9,)],
    }.items():
        assert is_local in lake.plan(query), query
        assert lake.sql(query.replace("{t}", "lake.t")) == found, query
    assert [tuple(row) for row in lake.spark.table("lake.t").take(4)] == rows[:4]
    for query in (
        "SELECT * FROM {t} LIMIT 101",
        "SELECT id, _rowaddr FROM {t} LIMIT 3",
        "SELECT * FROM {t} WHERE id > 3 LIMIT 3",
        "SELECT * FROM {t} ORDER BY id LIMIT 3",
        "SELECT * FROM {t} TABLESAMPLE (50 PERCENT) LIMIT 3",
        "SELECT max(id) FROM {t} LIMIT 3",
    ):
        assert is_local not in lake.plan(query), query
    earlier = lake.sql("SELECT count(*) FROM (SELECT * FROM lake.t VERSION AS OF 2 LIMIT 100)")
    assert earlier == lake.sql("SELECT count(*) FROM lake.t VERSION AS OF 2")

    lake.sql("CREATE TABLE lake.empty (id INT)")
    assert lake.sql("SELECT * FROM lake.empty LIMIT 3") == []
    text = "array_join(transform(sequence(1, 400), i -> sha2(string(id * 1000 + i), 512)), '')"
    lake.sql(f"CREATE TABLE lake.large AS SELECT id, {text} s FROM range(0, 60, 1, 1)")
    assert is_local in lake.plan("SELECT * FROM lake.large LIMIT 2")
    assert is_local not in lake.plan("SELECT * FROM lake.large LIMIT 60"), "rows of 2 MB"
    for _ in range(101):
        lake.catalog.write("few", pa.table({"id": [1]}), "append" if lake.catalog.table_exists("few") else "create")
    assert is_local in lake.plan("SELECT * FROM lake.few LIMIT 100")
    assert len(lake.sql("SELECT * FROM lake.few LIMIT 100")) == 100
    lake.sql("DELETE FROM lake.few")
    assert lake.sql("SELECT * FROM lake.few LIMIT 100") == []


def test_samples_are_chosen_by_lance(spark: SparkSession, tmp_path: Path) -> None:
    rows, fraction = 6000, 0.25
    with lancekeep.spark.install(spark, "sampled", str(tmp_path / "lake")) as catalog:
        for start in range(0, rows, 2000):
            part = pa.table({"id": range(start, start + 2000), "key": [number % 7 for number in range(2000)]})
            catalog.write("t", part, "append" if start else "create")
        catalog.open("t").delete("id % 1000 = 5")

        def ids(query: str) -> list[int]:
            return [row[0] for row in spark.sql(query).collect()]

        sample = "sampled.t TABLESAMPLE (25 PERCENT) REPEATABLE (7)"
        [plan] = [row[0] for row in spark.sql(f"EXPLAIN SELECT * FROM {sample} WHERE key = 3").collect()]
        assert "sample 0 to 0.25 with seed 7, filter" in plan
        assert "Sample" not in plan
        chosen = ids(f"SELECT id FROM {sample}")
        assert len(set(chosen)) == len(chosen)
        assert {number for number in chosen if number % 1000 != 5 and 0 <= number < rows} == set(chosen)
        for start in range(0, rows, 2000):  # five standard deviations of a random sample
            assert abs(sum(start <= number < start + 2000 for number in chosen) - 2000 * fraction) < 97
        assert sorted(ids(f"SELECT id FROM {sample}")) == sorted(chosen)
        assert ids(f"SELECT count(*) FROM {sample}") == [len(chosen)]
        assert ids(f"SELECT max(id) FROM {sample}") == [max(chosen)]
        assert ids(f"SELECT id FROM {sample} ORDER BY id DESC LIMIT 5") == sorted(chosen)[:-6:-1]
        kept = [number for number in chosen if number % 2000 % 7 == 3]
        assert sorted(ids(f"SELECT id FROM {sample} WHERE key = 3")) == sorted(kept)
        assert len(ids(f"SELECT _rowid FROM {sample}")) == len(chosen)
        assert set(ids(f"SELECT id FROM {sample.replace('(7)', '(8)')}")) != set(chosen)
        assert ids("SELECT id FROM sampled.t TABLESAMPLE (0 PERCENT)") == []
        assert len(ids("SELECT id FROM sampled.t TABLESAMPLE (100 PERCENT)")) == rows - 6
        frame = spark.table("sampled.t")
        assert abs(frame.sample(fraction=0.5, seed=-3).count() - rows / 2) < 200
        assert frame.sample(withReplacement=True, fraction=3.0, seed=1).count() > rows * 2


@pytest.mark.parametrize("query", ["SELECT * FROM lake.{t} LIMIT 3", "SELECT *, _rowid FROM lake.{t} WHERE c1 = 2"])
def test_plan_reads_the_schema_as_often_for_many_columns(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    reads: list[str] = []
    schema = lance.LanceDataset.schema.fget  # type: ignore[attr-defined]  # a property of the class

    def counted(dataset: lance.LanceDataset) -> Any:
        reads.append(dataset.uri)
        return schema(dataset)

    for name, columns in (("few", 3), ("many", 60)):
        lake.catalog.write(name, pa.table({f"c{number}": [1, 2, 3] for number in range(columns)}))
    monkeypatch.setattr(lance.LanceDataset, "schema", property(counted))
    counts = []
    for name in ("few", "many"):
        reads.clear()
        assert lake.sql(query.format(t=name))
        counts.append(len(reads))
    assert counts[0] == counts[1] > 0
