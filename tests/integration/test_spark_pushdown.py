"""Aggregates and orders with a limit that are evaluated next to the rows, with the answers of Spark over parquet."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
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
TOGETHER = 12
"""The number of queries of one job."""

VALUES = {
    "b": ("BOOLEAN", ["true", "false"]),
    "i8": ("TINYINT", ["-128Y", "0Y", "127Y"]),
    "i64": ("BIGINT", ["-9223372036854775808L", "0L", "9223372036854775807L"]),
    "f32": ("FLOAT", ["float('NaN')", "-0.0f", "0.0f", "1.5f", "float('-Infinity')"]),
    "f64": ("DOUBLE", ["double('NaN')", "-0.0d", "0.0d", "-1e300d", "double('Infinity')"]),
    "d": ("DECIMAL(38,10)", ["0.0000000001", "-1234567890123456789012345678.0000000001", "2"]),
    "s": ("STRING", ["''", "'a'", "'Z'", "'naïve ✈'", "'\U0001f600'", "'\ufffd'"]),
    "bin": ("BINARY", ["X''", "X'00'", "X'ff00'", "X'7f'"]),
    "dt": ("DATE", ["date'1969-12-31'", "date'0001-01-01'", "date'9999-12-31'"]),
    "ts": ("TIMESTAMP", ["timestamp'2026-03-08 02:30:00Z'", "timestamp'1969-12-31 23:59:59.999999Z'"]),
    "tn": ("TIMESTAMP_NTZ", ["timestamp_ntz'2026-03-08 02:30:00'", "timestamp_ntz'0001-01-01 00:00:00'"]),
    "iv": ("INTERVAL DAY TO SECOND", ["interval '1' day", "interval '-1.5' second"]),
    "n": ("INT", ["null"]),
    "ar": ("ARRAY<INT>", ["array(1, null)", "array()"]),
}
ORDERED = [name for name in VALUES if name != "ar"]
CONDITIONS = ["", " WHERE id < 30", " WHERE s >= 'a'", " WHERE f64 > 0", " WHERE id > 1000", " WHERE upper(s) = 'A'"]


@attrs.frozen
class Lake:
    """A session with a catalog as ``lake``; the view ``copy`` is Spark's copy of ``lake.t``."""

    spark: SparkSession
    catalog: lancekeep.Catalog
    place: Path

    def answers(self, queries: Sequence[str], table: str = "lake.t") -> dict[str, Counter[str]]:
        """Return the rows of each query as text; several queries are one job of Spark."""
        answers: dict[str, Counter[str]] = {query: Counter() for query in queries}
        for first in range(0, len(queries), TOGETHER):
            parts = [
                f"SELECT {at} n, cast(struct(*) AS STRING) row FROM ({queries[at].replace('{t}', table)})"
                for at in range(first, min(first + TOGETHER, len(queries)))
            ]
            for number, row in self.spark.sql(" UNION ALL ".join(parts)).collect():
                answers[queries[number]][row] += 1
        return answers

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def plan(self, query: str) -> str:
        [[plan]] = self.spark.sql(f"EXPLAIN {query.replace('{t}', 'lake.t')}").collect()
        return str(plan)

    def copy(self) -> None:
        place = str(self.place / "copy")
        self.spark.table("lake.t").coalesce(1).write.mode("overwrite").parquet(place)
        self.spark.read.parquet(place).createOrReplaceTempView("copy")


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    store = f"sqlite://{tmp_path}/commits.db"
    with lancekeep.spark.install(spark, "lake", str(tmp_path / "lake"), commit_store=store) as catalog:
        before = {name: spark.conf.get(name, None) for name in CHEAP}
        for name, value in CHEAP.items():
            spark.conf.set(name, value)
        yield Lake(spark, catalog, tmp_path)
        for name, former in before.items():
            spark.conf.unset(name) if former is None else spark.conf.set(name, former)


def fill(lake: Lake, source: random.Random) -> None:
    """Write 60 rows as three fragments, with deleted rows in each, and NULL in every column."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in VALUES.items())
    lake.spark.sql(f"CREATE TABLE lake.t (id INT NOT NULL, {columns})")
    for first in (0, 20, 40):
        rows = []
        for number in range(first, first + 20):
            values = [
                f"cast({'null' if source.random() < 0.2 else source.choice(values)} AS {kind}) {name}"
                for name, (kind, values) in VALUES.items()
            ]
            rows.append(f"SELECT {number} id, {', '.join(values)}")
        lake.spark.sql(f"INSERT INTO lake.t {' UNION ALL '.join(rows)}")
    lake.spark.sql("DELETE FROM lake.t WHERE id % 7 = 3")


def test_pushed_aggregates_are_those_of_spark(lake: Lake) -> None:
    source = random.Random(87)
    fill(lake, source)
    lake.copy()
    queries = []
    for name in ORDERED:
        where = source.choice(CONDITIONS)
        queries.append(f"SELECT min({name}), max({name}), count(*), count({name}) FROM {{t}}{where}")
        queries.append(f"SELECT {name}, count(*), count(s), max(i64), min(s) FROM {{t}}{where} GROUP BY {name}")
    queries += [f"SELECT DISTINCT {name}, b FROM {{t}}" for name in ("f64", "s", "d")]
    queries += [f"SELECT min(f64), max(f32), count(ar), count(*) FROM {{t}}{where}" for where in CONDITIONS]
    queries += [f"SELECT b, dt, count(*) n FROM {{t}}{where} GROUP BY dt, b HAVING n > 1" for where in CONDITIONS]
    assert lake.answers(queries) == lake.answers(queries, "copy")
    for query, pushed in {
        "SELECT min(f64), count(s) FROM {t}": "aggregated [min(f64), count(s)]",
        "SELECT b, count(*) FROM {t} WHERE id < 9 GROUP BY b": "aggregated [count(*)] by [b], filter (`id` < 9)",
    }.items():
        assert pushed in lake.plan(query), query
    for query in (
        "SELECT min(f64) FROM {t} WHERE upper(s) = 'A'",
        "SELECT min(id + 1) FROM {t}",
        "SELECT count(DISTINCT s) FROM {t}",
        "SELECT sum(i8), count(*) FROM {t}",
        "SELECT b, max(f64) FROM {t} GROUP BY b",
        "SELECT max(_rowaddr) FROM {t}",
        "SELECT count(*) FILTER (WHERE b), max(id) FROM {t}",
    ):
        assert "aggregated" not in lake.plan(query), query


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


def test_first_rows_of_an_order_are_those_of_spark(lake: Lake) -> None:
    source = random.Random(88)
    fill(lake, source)
    lake.copy()
    queries = []
    for number, name in enumerate(ORDERED * 2):
        where = source.choice(CONDITIONS[:-1])
        order = f"{name} {source.choice(['ASC', 'DESC'])} {source.choice(['', 'NULLS FIRST', 'NULLS LAST'])}"
        limit = ("LIMIT 5", "LIMIT 3 OFFSET 4")[number % 2]
        queries.append(f"SELECT id, ar, {name} FROM {{t}}{where} ORDER BY {order}, id DESC {limit}")
    queries.append("SELECT id, s FROM {t} ORDER BY f64 DESC, f32, id LIMIT 9")
    assert lake.answers(queries) == lake.answers(queries, "copy")
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
