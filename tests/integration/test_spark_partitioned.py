"""A partitioned namespace as one table of Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lancekeep
import lancekeep.spark
from lancekeep import PartitionBy
from lancekeep.application.partitions.namespace import PartitionedNamespace
from lancekeep.entrypoints.spark.sql import partitioned, workers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("country", pa.string()), ("f", pa.float64())]
)
ROWS = (
    "VALUES (1L, TIMESTAMP '2025-12-10 00:00:00Z', 'NL', 1d), (2L, TIMESTAMP '2025-12-10 00:00:00Z', 'NL', NULL), "
    "(3L, TIMESTAMP '2025-01-10 00:00:00Z', 'US', double('NaN')), (4L, TIMESTAMP '2024-05-05 00:00:00Z', 'NL', 2d), "
    "(5L, TIMESTAMP '2026-05-05 00:00:00Z', 'DE', 3d), (6L, NULL, NULL, -0d) AS v(id, at, country, f)"
)


@attrs.frozen
class Lake:
    spark: SparkSession
    namespace: PartitionedNamespace

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def scanned(self, query: str) -> str:
        """Return which partitions a query reads, as EXPLAIN shows it."""
        [(plan,)] = self.sql(f"EXPLAIN {query}")
        return str(plan[plan.index("lake.dataset, ") + 14 :].partition(" partitions")[0])

    def ids(self) -> list[int]:
        """Return the ids as pylance reads them, partition by partition."""
        tables = [dataset.to_table() for _, dataset in self.namespace.scan().datasets()]
        return sorted(number for table in tables for number in table["id"].to_pylist())


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    store = f"sqlite://{tmp_path}/commits.db"
    with lancekeep.spark.install(spark, "lake", str(tmp_path / "lake"), commit_store=store) as catalog:
        namespace = catalog.partitions.create(SCHEMA, [PartitionBy.year("at"), PartitionBy.identity("country")])
        yield Lake(spark, namespace)


def test_partitions_are_one_table(lake: Lake) -> None:
    lake.sql(f"INSERT INTO lake.dataset SELECT * FROM {ROWS}")
    assert lake.ids() == [1, 2, 3, 4, 5, 6]
    assert len(lake.namespace.scan().partitions) == 5
    lake.spark.sql(f"SELECT * FROM {ROWS}").createOrReplaceTempView("copy")
    for query, read in {
        "SELECT * FROM {}": "5 of 5",
        "SELECT count(*) FROM {}": "5 of 5",
        "SELECT id FROM {} WHERE country = 'NL' AND at >= TIMESTAMP '2025-01-01 00:00:00Z'": "1 of 5",
        "SELECT id FROM {} WHERE country IN ('DE', 'US') AND id + 0 > 3": "2 of 5",
        "SELECT id FROM {} WHERE country IS NULL": "1 of 5",
        "SELECT id, f FROM {} WHERE f > 1": "5 of 5",
        "SELECT max(id) FROM {} WHERE upper(country) = 'NL' AND at < TIMESTAMP '2024-12-01 00:00:00Z'": "1 of 5",
    }.items():
        assert lake.scanned(query.format("lake.dataset")) == read, query
        found, expected = (sorted(map(str, lake.sql(query.format(table)))) for table in ("lake.dataset", "copy"))
        assert found == expected, query


def test_join_reads_only_the_partitions_of_its_keys(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.sql(f"INSERT INTO lake.dataset SELECT * FROM {ROWS}")
    dimension = "SELECT c, w FROM VALUES ('US', 'x'), ('NL', 'y'), ('ZZ', 'x') AS v(c, w)"
    lake.spark.sql(dimension).write.parquet(str(tmp_path / "dimension"))
    lake.spark.read.parquet(str(tmp_path / "dimension")).createOrReplaceTempView("dimension")
    planned: list[int] = []
    plan = workers.partitions

    def counted(jvm: Any, tasks: Sequence[Any]) -> Any:
        planned.append(len(tasks))
        return plan(jvm, tasks)

    monkeypatch.setattr(partitioned, "partitions", counted)
    join = "SELECT d.id FROM lake.dataset d JOIN dimension v ON d.country = v.c WHERE v.w = 'x'"
    assert lake.sql(join) == [(3,)]
    assert planned[-1] == 1


def test_dynamic_overwrite_replaces_the_partitions_that_get_rows(lake: Lake) -> None:
    lake.sql(f"INSERT INTO lake.dataset SELECT * FROM {ROWS}")
    new = "VALUES (7L, TIMESTAMP '2025-03-03 00:00:00Z', 'NL', 7d), (8L, TIMESTAMP '2026-03-03 00:00:00Z', 'FR', 8d)"
    lake.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        lake.sql(f"INSERT OVERWRITE lake.dataset {new}")
        assert lake.ids() == [3, 4, 5, 6, 7, 8]  # 1 and 2 were of the NL of 2025
        lake.sql("INSERT OVERWRITE lake.dataset SELECT id + 10, at, country, f FROM lake.dataset WHERE f >= 7")
        assert lake.ids() == [4, 5, 6, 13, 17, 18]
        assert sorted(lake.sql("SELECT id FROM lake.dataset WHERE country = 'NL'")) == [(4,), (17,)]
    finally:
        lake.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    frame = lake.spark.sql("SELECT 9L id, TIMESTAMP '2024-01-01 00:00:00Z' at, 'NL' country, 1d f")
    frame.writeTo("lake.dataset").overwritePartitions()
    assert lake.ids() == [5, 6, 9, 13, 17, 18]
    frame.where("false").writeTo("lake.dataset").overwritePartitions()
    assert lake.ids() == [5, 6, 9, 13, 17, 18]


def test_other_statements_change_no_partition(lake: Lake) -> None:
    lake.namespace.write(pa.table({"id": [1], "at": [None], "country": ["NL"], "f": [None]}, schema=SCHEMA))
    for statement, error in [
        ("INSERT OVERWRITE lake.dataset SELECT 7L, NULL, 'DE', 1d", "does not support"),
        ("DELETE FROM lake.dataset WHERE country = 'NL'", "does not support"),
        ("SELECT * FROM lake.dataset VERSION AS OF 3", "has no versions; each partition has its own"),
        ("INSERT INTO lake.dataset SELECT 'x', NULL, NULL, NULL", "CAST_INVALID_INPUT|CANNOT_SAFELY_CAST"),
    ]:
        with pytest.raises(PySparkException, match=error):
            lake.sql(statement)
    assert lake.ids() == [1]
