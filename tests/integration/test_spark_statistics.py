"""Statistics of columns are computed, kept for their version, shown, and used by Spark's planner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pyarrow.compute as pc
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

PREFIX = "statistics."
VALUES = pa.table(
    {
        "id": pa.array(range(700), pa.int64()),
        "k": pa.array([n % 7 for n in range(700)], pa.int32()),
        "s": [None if n % 10 == 0 else "é" * (n % 5) for n in range(700)],
        "d": [float("nan") if n == 3 else n / 2 for n in range(700)],
        "day": [date(2013, 1, 1 + n % 28) for n in range(700)],
        "at": pa.array([datetime(2013, 7, 1, n % 24, tzinfo=UTC) for n in range(700)], pa.timestamp("us", "UTC")),
        "yes": [n % 2 == 0 for n in range(700)],
        "none": pa.array([None] * 700, pa.int32()),
        "v": pa.array([[0.0, 1.0]] * 700, pa.list_(pa.float32(), 2)),
    }
)


@attrs.frozen
class Lake:
    """A catalog with the name ``analyzed`` in SQL, and a table ``ns.t``."""

    spark: SparkSession
    catalog: lancekeep.Catalog

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def kept(self) -> dict[str, dict[str, Any]]:
        """Return the statistics in the properties of the table."""
        properties = self.catalog.describe_table("ns.t").properties
        return {
            name.removeprefix(PREFIX): json.loads(text) for name, text in properties.items() if name.startswith(PREFIX)
        }

    def knows(self, table: str) -> bool:
        """Return whether the planner knows how many distinct values ``k`` has."""
        aggregate = next(line for line in self.groups("k", table).splitlines() if line.startswith("Aggregate"))
        return "rowCount=" in aggregate

    def groups(self, column: str, table: str = "ns.t") -> str:
        """Return the plan of a query by groups, with the planner's estimates."""
        self.spark.conf.set("spark.sql.cbo.enabled", "true")
        try:
            return str(self.sql(f"EXPLAIN COST SELECT {column}, sum(id) FROM analyzed.{table} GROUP BY {column}")[0][0])
        finally:
            self.spark.conf.unset("spark.sql.cbo.enabled")


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with lancekeep.spark.install(spark, "analyzed", str(tmp_path / "lake")) as catalog:
        catalog.create_namespace("ns")
        catalog.write("ns.t", VALUES)
        yield Lake(spark, catalog)


def test_statistics_are_stored_shown_and_used_by_the_planner(lake: Lake) -> None:
    before = lake.groups("k")
    found = {row[0]: row for row in lake.sql("CALL analyzed.system.analyze('ns.t')")}
    stored = lance.dataset(lake.catalog.describe_table("ns.t").uri)
    assert stored.version == 1  # an analysis is no version
    assert found.keys() == set(VALUES.column_names) - {"v"}
    for name, (_, version, rows, distinct, nulls, least, greatest) in found.items():
        column = stored.to_table([name])[name]
        assert (version, rows, nulls) == (1, 700, column.null_count)
        assert distinct == pytest.approx(len(pc.unique(column.drop_null())), rel=0.1)
        kept = lake.kept()[name]
        assert (kept["version"], kept["distinct"], kept.get("least"), kept.get("greatest")) == (
            1, distinct, least, greatest
        )  # fmt: skip
    assert {name: row[5:] for name, row in found.items()} == {
        "id": ("0", "699"),
        "k": ("0", "6"),
        "s": (None, None),
        "d": ("0.0", "349.5"),
        "day": ("2013-01-01", "2013-01-28"),
        "at": ("2013-07-01 00:00:00.000000", "2013-07-01 23:00:00.000000"),
        "yes": ("false", "true"),
        "none": (None, None),
    }
    assert (lake.kept()["s"]["average_length"], lake.kept()["s"]["longest"]) == (5, 8)
    shown = dict(lake.sql("DESCRIBE EXTENDED analyzed.ns.t day"))
    assert {name: shown[name] for name in ("min", "max", "num_nulls", "distinct_count")} == {
        "min": "Optional[15706]", "max": "Optional[15733]", "num_nulls": "0", "distinct_count": str(found["day"][3])
    }  # fmt: skip
    assert "rowCount=7)" in lake.groups("k")
    assert "rowCount=7)" not in before
    lake.sql("SELECT * FROM analyzed.ns.t WHERE at < TIMESTAMP'2013-07-01 05:00:00' AND s = 'é' AND none = 1 AND d > 2")


def test_statistics_are_used_by_the_version_that_they_name_alone(lake: Lake) -> None:
    lake.sql("CALL analyzed.system.analyze(table => 'analyzed.ns.t', columns => array('k', 's'))")
    lake.sql("CALL analyzed.system.create_branch('ns.t', 'draft')")
    assert lake.knows("ns.t")
    for statement in (
        "INSERT INTO analyzed.ns.t (id, k) VALUES (700, 70)",
        "CALL analyzed.system.rollback_to_version('ns.t', 1)",
        "INSERT OVERWRITE analyzed.ns.t SELECT * FROM analyzed.ns.t.branch_draft WHERE id < 3",
    ):
        lake.sql(statement)
        assert not lake.knows("ns.t")
    assert lake.knows("ns.t VERSION AS OF 1")
    assert not lake.knows("ns.t VERSION AS OF 2")
    lake.sql("INSERT INTO analyzed.ns.t.branch_draft (id, k) VALUES (700, 70)")
    lake.sql("CALL analyzed.system.analyze(table => 'ns.t', columns => array('k'))")
    assert lake.knows("ns.t")
    number = lake.kept()["k"]["version"]
    while (version := lake.catalog.open("ns.t", branch="draft").version) < number:
        lake.sql("INSERT INTO analyzed.ns.t.branch_draft (id, k) VALUES (701, 71)")
    assert version == number
    assert not lake.knows("ns.t.branch_draft")  # another version with the same number
    lake.sql(f"CALL analyzed.system.create_tag('ns.t', 'audit', {number}, 'draft')")
    assert not lake.knows("ns.t.tag_audit")


def test_statistics_follow_definitions(lake: Lake) -> None:
    lake.sql("CALL analyzed.system.analyze('ns.t', array('k', 's'))")
    lake.sql("DELETE FROM analyzed.ns.t WHERE id >= 3")
    lake.sql("CALL analyzed.system.analyze(table => 'ns.t', columns => array('k'))")
    assert {name: (each["version"], each["rows"]) for name, each in lake.kept().items()} == {"k": (2, 3), "s": (1, 700)}
    definition = str(lake.sql("SHOW CREATE TABLE analyzed.ns.t")[0][0])
    lake.sql("ALTER TABLE analyzed.ns.t RENAME COLUMN s TO z")
    assert not lake.knows("ns.t")
    lake.sql("CALL analyzed.system.analyze('ns.t')")
    assert "s" not in lake.kept()
    lake.sql("CREATE OR REPLACE TABLE analyzed.ns.t AS SELECT 1L AS id, 2L AS k")
    assert lake.kept() == {}
    lake.sql("DROP TABLE analyzed.ns.t")
    lake.sql(definition)
    assert lake.kept() == {}


def test_what_has_no_statistics_is_refused_before_any_effect(lake: Lake) -> None:
    wide = pa.table({f"c{n}": pa.array([1]) for n in range(101)})
    lake.catalog.write("ns.wide", wide)
    for call, reason in (
        ("'ns.t', array('k', 'missing')", "there is no column 'missing'; choose id, k"),
        ("'ns.t', array('v')", "the column v is array<float>, and only numbers, texts"),
        ("'ns.wide'", "101 columns have statistics, and one analysis keeps at most 100"),
    ):
        with pytest.raises(PySparkException, match=reason.replace("(", r"\(")):
            lake.sql(f"CALL analyzed.system.analyze({call})")
    with pytest.raises(PySparkException, match=r"ANALYZE TABLE"):
        lake.sql("ANALYZE TABLE analyzed.ns.t COMPUTE STATISTICS FOR COLUMNS k")
    lake.catalog.alter_table("ns.t", {f"{PREFIX}k": "none of ours"})
    assert lake.sql("SELECT count(k) FROM analyzed.ns.t WHERE k > 3") == [(300,)]
    assert "rowCount=7)" not in lake.groups("k")
