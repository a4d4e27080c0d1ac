"""A partitioned namespace as one table of Spark SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
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
from lancekeep import PartitionBy
from lancekeep.application.partitions.namespace import PartitionedNamespace
from lancekeep.application.partitions.writing import PartitionWritePlan, PartitionWriter
from lancekeep.entrypoints.spark.sql import partitioned_scan, workers
from lancekeep.entrypoints.spark.sql.partitioned import PartitionedTable

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
        "SELECT id FROM {} WHERE country = 'NL' AND at >= TIMESTAMP '2025-01-01 00:00:00Z'": "1 of 5",
        "SELECT id FROM {} WHERE country IN ('DE', 'US') AND id + 0 > 3": "2 of 5",
        "SELECT id FROM {} WHERE country IS NULL": "1 of 5",
        "SELECT id, f FROM {} WHERE f > 1": "5 of 5",
        "SELECT max(id) FROM {} WHERE upper(country) = 'NL' AND at < TIMESTAMP '2024-12-01 00:00:00Z'": "1 of 5",
    }.items():
        assert lake.scanned(query.format("lake.dataset")) == read, query
        found, expected = (sorted(map(str, lake.sql(query.format(table)))) for table in ("lake.dataset", "copy"))
        assert found == expected, query


COMPUTED = {
    "SELECT count(*) FROM {}": ("LocalTableScan",),
    "SELECT count(*) FROM {} WHERE id > 2": ("counted", "filter"),
    "SELECT count(country), min(id), max(at), count(*) FROM {}": ("aggregated [count(country), min(id), max(at)",),
    "SELECT country, max(id), count(*) FROM {} WHERE at IS NOT NULL GROUP BY country": ("by [country]", "filter"),
    "SELECT max(f) FROM {} WHERE id > 1000": ("aggregated [max(f)]",),
    "SELECT id, f FROM {} ORDER BY f DESC, id LIMIT 3": ("order [f DESC NULLS LAST, id", "limit 3"),
    "SELECT _partition IS NULL, id FROM {} ORDER BY id LIMIT 2": ("order [id ASC", "_partition"),
}
"""Queries, and what EXPLAIN shows of their scan."""
_OF = "SELECT id FROM {} WHERE country ="


def test_scan_computes_aggregates_orders_and_limits(lake: Lake) -> None:
    assert lake.sql("SELECT count(*), max(id) FROM lake.dataset") == [(0, None)]  # no partition
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.dataset SELECT * FROM {ROWS}")
    twice = f"SELECT *, 'p' AS _partition FROM (SELECT * FROM {ROWS} UNION ALL SELECT * FROM {ROWS})"
    lake.spark.sql(twice).createOrReplaceTempView("twice")
    for query, shown in COMPUTED.items():
        [(plan,)] = lake.sql(f"EXPLAIN {query.format('lake.dataset')}")
        assert all(text in plan for text in shown), plan
        found, expected = (sorted(map(str, lake.sql(query.format(table)))) for table in ("lake.dataset", "twice"))
        assert found == expected, query
    for query in ("SELECT id FROM lake.dataset LIMIT 4", "SELECT 1 FROM lake.dataset WHERE id > 1 LIMIT 4"):
        assert "limit 4" in str(lake.sql(f"EXPLAIN {query}"))
        assert len(lake.sql(query)) == 4
    wide = pa.table({"id": range(4000), "at": [None] * 4000, "country": ["A", "B"] * 2000, "f": [None] * 4000})
    lake.namespace.write(wide.cast(SCHEMA))
    sample = "lake.dataset TABLESAMPLE (25 PERCENT) REPEATABLE (7)"
    assert "sample 0 to 0.25 with seed 7" in str(lake.sql(f"EXPLAIN SELECT * FROM {sample}"))
    chosen = {country: {row[0] // 2 for row in lake.sql(f"{_OF.format(sample)} '{country}'")} for country in "AB"}
    assert all(400 < len(numbers) < 600 for numbers in chosen.values())
    assert 40 < len(chosen["A"] & chosen["B"]) < 220  # other rows in each partition
    assert len(lake.sql(f"{_OF.format(sample)} 'A'")) == len(chosen["A"])
    assert lake.sql(f"SELECT count(*) FROM {sample} WHERE country = 'A'") == [(len(chosen["A"]),)]
    keys = "SELECT v.c, count(*) FROM lake.dataset d JOIN (SELECT 'NL' c) v ON d.country = v.c GROUP BY v.c"
    assert lake.sql(keys) == [("NL", 6)]


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

    monkeypatch.setattr(partitioned_scan, "partitions", counted)
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


COLUMNS = "(id BIGINT NOT NULL, at TIMESTAMP COMMENT 'when', country STRING, v ARRAY<FLOAT>)"
CLAUSE = "PARTITIONED BY (days(at), country, bucket(4, id))"


def test_statement_creates_a_partitioned_table_and_drops_it(spark: SparkSession, tmp_path: Path) -> None:
    with lancekeep.spark.install(spark, "made", str(tmp_path / "made")) as catalog:
        spark.sql("CREATE TABLE made.other (k INT)")
        spark.sql(f"CREATE TABLE made.dataset {COLUMNS} {CLAUSE} TBLPROPERTIES ('vector.v' = '2')")
        rows = "VALUES (1L, TIMESTAMP '2025-12-10 01:00:00Z', 'NL', array(1f, 2f)), (2L, NULL, NULL, NULL)"
        spark.sql(f"INSERT INTO made.dataset {rows}")
        [spec] = catalog.partitions.open().specs.values()
        assert [field.field_id for field in spec.fields] == ["at_year", "at_month", "at_day", "country", "id_bucket_4"]
        found = {part.values[:4]: dataset for part, dataset in catalog.partitions.open().scan().datasets()}
        assert found.keys() == {(2025, 12, 10, "NL"), (None, None, None, None)}
        stored = lance.dataset(found[2025, 12, 10, "NL"].uri)
        assert stored.to_table()["v"].to_pylist() == [[1.0, 2.0]]
        assert stored.schema.field("v").type == pa.list_(pa.float32(), 2)
        assert not stored.schema.field("id").nullable

        assert [row.tableName for row in spark.sql("SHOW TABLES IN made").collect()] == ["dataset", "other"]
        described = {row.col_name: row.data_type for row in spark.sql("DESCRIBE made.dataset").collect()}
        assert [described[f"Part {at}"] for at in range(3)] == ["days(at)", "country", "bucket(4, id)"]
        shown = spark.sql("SELECT partition, version, rows FROM made.dataset.partitions").collect()
        assert {(row.partition.rpartition("/")[0], row.version, row.rows) for row in shown} == {
            ("at_year=2025/at_month=12/at_day=10/country=NL", 1, 1),
            ("at_year=NULL/at_month=NULL/at_day=NULL/country=NULL", 1, 1),
        }
        assert {row.partition.rpartition("/")[0] for row in spark.sql("SHOW PARTITIONS made.dataset").collect()} == {
            "at_year=2025/at_month=12/at_day=10/country=NL",
            "at_year=null/at_month=null/at_day=null/country=null",
        }
        [(statement,)] = spark.sql("SHOW CREATE TABLE made.dataset").collect()
        kept = list(catalog.list_tables(""))
        spark.sql("DROP TABLE made.dataset")
        assert not Path(stored.uri.removeprefix("file://")).exists()
        assert list(catalog.list_tables("")) == kept == ["other"]
        assert spark.sql("SHOW TABLES IN made").count() == 1
        spark.sql("DROP TABLE IF EXISTS made.dataset")

        spark.sql(statement)
        assert catalog.partitions.open().specs == {1: spec}
        with pytest.raises(PySparkException, match="NOT_NULL_ASSERT_VIOLATION"):
            spark.sql("INSERT INTO made.dataset VALUES (NULL, NULL, NULL, NULL)")
        assert spark.sql("SELECT * FROM made.dataset").collect() == []


def test_query_creates_a_partitioned_table(spark: SparkSession, tmp_path: Path) -> None:
    with lancekeep.spark.install(spark, "made", str(tmp_path / "made")) as catalog:
        with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
            spark.sql("CREATE TABLE made.dataset PARTITIONED BY (k) AS SELECT 1 / (id - 3) AS k FROM range(5)")
        assert spark.sql("SHOW TABLES IN made").collect() == []
        spark.sql("CREATE TABLE made.dataset PARTITIONED BY (k) AS SELECT id % 2 AS k, id FROM range(5)")
        found = {part.values: dataset.to_table()["id"] for part, dataset in catalog.partitions.open().scan().datasets()}
        assert {values: sorted(ids.to_pylist()) for values, ids in found.items()} == {(0,): [0, 2, 4], (1,): [1, 3]}


def test_replacement_changes_how_rows_are_divided(lake: Lake) -> None:
    lake.sql(f"INSERT INTO lake.dataset SELECT * FROM {ROWS}")
    lake.sql("CREATE TABLE lake.other (k INT)")
    for query in ("SELECT 1 / (id - 3) AS k FROM lake.dataset", "SELECT id AS k FROM lake.missing"):
        with pytest.raises(PySparkException, match=r"DIVIDE_BY_ZERO|TABLE_OR_VIEW_NOT_FOUND"):
            lake.sql(f"CREATE OR REPLACE TABLE lake.dataset PARTITIONED BY (k) AS {query}")
    assert lake.ids() == [1, 2, 3, 4, 5, 6]
    lake.sql(
        "CREATE OR REPLACE TABLE lake.dataset PARTITIONED BY (bucket(2, id)) AS "
        "SELECT id, country AS land FROM lake.dataset WHERE id > 2"
    )
    assert lake.ids() == [3, 4, 5, 6]
    assert lake.namespace.schema.names == ["id", "land"]
    assert lake.sql("SELECT land FROM lake.dataset WHERE id = 3") == [("US",)]
    lake.sql("REPLACE TABLE lake.dataset (id BIGINT, at DATE) PARTITIONED BY (months(at))")
    assert lake.sql("SELECT * FROM lake.dataset") == []
    lake.sql("INSERT INTO lake.dataset VALUES (7, DATE '2025-01-01')")
    assert lake.ids() == [7]
    assert [row[1] for row in lake.sql("SHOW TABLES IN lake")] == ["dataset", "other"]
    assert not lake.sql("CALL lake.system.fsck(deep => true)")
    with pytest.raises(PySparkException, match=r"spark\.lancekeep\.wap\.branch"), wap(lake.spark):
        lake.sql("CREATE OR REPLACE TABLE lake.dataset PARTITIONED BY (k) AS SELECT 1 AS k")


@contextmanager
def wap(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.lancekeep.wap.branch", "audit")
    try:
        yield
    finally:
        spark.conf.unset("spark.lancekeep.wap.branch")


_NL, _FR, _DE = (1, 2025, "NL", 2.0), (106, None, "FR", 0.0), (5, 2026, "DE", 3.0)
_BE = [(number, None, "BE", None) for number in (6, 8, 9, 10)]
_MERGED = [_NL, (2, 2025, "NL", None), (5, 2030, "DE", 50.0), (7, None, "NL", None)]

CHANGES: dict[str, list[tuple[Any, ...]]] = {
    "UPDATE {} SET f = f + 1 WHERE country = 'NL' AND id < 3 OR id + 0 = 3": [
        *(_NL, (2, 2025, "NL", None), (3, 2025, "US", None), (4, 2024, "NL", 2.0), _DE, (6, None, None, 0.0)),
    ],
    "UPDATE {} SET country = 'FR', id = id + 100 WHERE country IS NULL OR id = 3": [  # to two new partitions
        *(_NL, (2, 2025, "NL", None), (103, 2025, "FR", None), (4, 2024, "NL", 2.0), _DE, _FR),
    ],
    "DELETE FROM {} WHERE at < TIMESTAMP '2025-01-01 00:00:00Z'": [
        *(_NL, (2, 2025, "NL", None), (103, 2025, "FR", None), _DE, _FR),
    ],
    "DELETE FROM {} WHERE id IN (SELECT max(id) FROM {})": [
        *(_NL, (2, 2025, "NL", None), (103, 2025, "FR", None), _DE),
    ],
    "MERGE INTO {} t USING (SELECT id, id * 10 AS n FROM range(5, 9)) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET f = n, at = TIMESTAMP '2030-01-01 12:00:00Z' "
    "WHEN NOT MATCHED THEN INSERT (id, country) VALUES (s.id, if(s.id = 7, 'NL', 'BE')) "
    "WHEN NOT MATCHED BY SOURCE AND country = 'FR' THEN DELETE": [*_MERGED, *_BE[:2]],
    "MERGE INTO {} t USING (SELECT id FROM range(6, 11)) s ON t.id = s.id "
    "WHEN NOT MATCHED THEN INSERT (id, country) VALUES (s.id, 'BE')": [*_MERGED, *_BE],
    "MERGE INTO {} t USING (SELECT explode(array(8, 8)) AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE": [
        *(*_MERGED, _BE[0], *_BE[2:]),
    ],
    "UPDATE {} SET id = id WHERE id = 99": [*_MERGED, _BE[0], *_BE[2:]],
    "TRUNCATE TABLE {}": [],
}
"""Statements that run one after the other, and the rows after each: id, year, country and f."""


def test_changes_of_rows_reach_their_partitions(lake: Lake) -> None:
    lake.sql(f"INSERT INTO lake.dataset SELECT * FROM {ROWS}")
    before = 0
    for statement, expected in CHANGES.items():
        lake.sql(statement.format("lake.dataset", "lake.dataset"))
        found = []
        for part, dataset in lake.namespace.scan().datasets():
            for row in lance.dataset(dataset.uri, version=part.version).to_table().to_pylist():
                year, f = row["at"] and row["at"].year, row["f"]
                assert (year, row["country"]) == part.values, statement
                found.append((row["id"], year, row["country"], None if f != f else f))
        assert sorted(found) == sorted(expected), statement
        published = sum(part.version or 0 for part in lake.namespace.scan().partitions)
        assert (published == before) == ("99" in statement), statement
        before = published
    assert lake.sql("SELECT * FROM lake.dataset") == []


def test_procedures_maintain_all_partitions(lake: Lake) -> None:
    for _ in range(2):
        lake.sql("INSERT INTO lake.dataset VALUES (1, NULL, 'NL', 1), (2, NULL, 'US', 2)")
    assert [row[2] for row in lake.sql("CALL lake.system.compact('lake.dataset')")] == [2, 2]
    assert [len(dataset.get_fragments()) for _, dataset in lake.namespace.scan().datasets()] == [1, 1]
    assert len(lake.sql("CALL lake.system.create_index('dataset', 'id', 'BTREE')")) == 2
    lake.sql("INSERT INTO lake.dataset VALUES (3, NULL, 'NL', 1)")
    indexed = lake.sql("CALL lake.system.optimize(table => 'dataset')")
    assert sorted(row[3] for row in indexed) == [[], ["id_idx"]]
    for part, _ in lake.namespace.scan().datasets():
        stored = lance.dataset(lake.namespace.place(part)[0], version=part.version)
        assert [index.name for index in stored.describe_indices()] == ["id_idx"]
    assert lake.ids() == [1, 1, 2, 2, 3]
    lake.sql("UPDATE lake.dataset SET id = 4 WHERE id = 3")  # a row that an index has
    assert lake.sql("SELECT id FROM lake.dataset WHERE id IN (3, 4)") == [(4,)]
    shown = [(str(part.table.id), dataset) for part, dataset in lake.namespace.scan().datasets()]
    assert sorted(lake.sql("SELECT partition, name FROM lake.dataset.indexes")) == sorted(
        (name, "id_idx") for name, _ in shown
    )
    counts: dict[str, Callable[[Any], int]] = {
        "fragments": lambda dataset: len(dataset.get_fragments()),
        "files": lambda dataset: sum(1 + bool(each.deletion_file()) for each in dataset.get_fragments()),
        "history": lambda dataset: len(dataset.versions()),
        "versions": lambda dataset: len(dataset.versions()),
        "refs": lambda _: 1,
    }
    for kind, count in counts.items():
        rows = lake.sql(f"SELECT partition, count(*) FROM lake.dataset.{kind} GROUP BY partition")
        assert sorted(rows) == sorted((name, count(dataset)) for name, dataset in shown), kind
    with pytest.raises(PySparkException, match="each partition has its own"):
        lake.sql("SELECT * FROM lake.dataset.files VERSION AS OF 1")
    lake.sql("INSERT INTO lake.dataset VALUES (5, NULL, 'DE', 1)")  # a partition without the index
    assert len(lake.sql("CALL lake.system.drop_index('dataset', 'id_idx')")) == 2
    assert not any(dataset.describe_indices() for _, dataset in lake.namespace.scan().datasets())
    with pytest.raises(PySparkException, match=r"no single version.*lake\.dataset\.partitions"):
        lake.sql("CALL lake.system.rollback_to_version('dataset', 1)")


def test_refused_changes_change_no_partition(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.sql(f"INSERT INTO lake.dataset SELECT * FROM {ROWS}")
    for statement in ("DELETE FROM lake.dataset", "UPDATE lake.dataset SET f = 1", f"INSERT INTO lake.dataset {ROWS}"):
        with pytest.raises(PySparkException, match="partitions have no branches"), wap(lake.spark):
            lake.sql(statement.partition(" AS v")[0])
    begin = PartitionedTable._begin

    def late(table: PartitionedTable) -> PartitionWritePlan:
        monkeypatch.undo()
        lake.namespace.write(pa.table({"id": [7], "at": [None], "country": ["ZZ"], "f": [None]}, schema=SCHEMA))
        return begin(table)

    for statement in (
        "MERGE INTO lake.dataset t USING (SELECT id FROM range(7, 9)) s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
        "UPDATE lake.dataset SET country = 'ZZ', at = NULL WHERE id = 1",
    ):
        monkeypatch.setattr(PartitionedTable, "_begin", late)
        with pytest.raises(PySparkException, match="Run the statement again"):
            lake.sql(statement)
    assert lake.ids() == [1, 2, 3, 4, 5, 6, 7, 7]
    monkeypatch.setattr(PartitionedTable, "_begin", late)
    lake.sql("DELETE FROM lake.dataset WHERE country = 'NL'")  # the other write adds to another partition
    assert lake.ids() == [3, 5, 6, 7, 7, 7]


def test_date_range_reads_only_its_months(spark: SparkSession, tmp_path: Path) -> None:
    with lancekeep.spark.install(spark, "made", str(tmp_path / "made")) as catalog:
        spark.sql("CREATE TABLE made.dataset (at DATE, ts TIMESTAMP) PARTITIONED BY (months(at), hours(ts))")
        days = [date(2023, 11, 1) + timedelta(days=30 * at) for at in range(20)]
        at = pa.array(days, pa.date32())
        catalog.partitions.open().write(pa.table({"at": at, "ts": at.cast(pa.timestamp("us", "UTC"))}))
        for condition, first, last in [
            ("at >= DATE '2024-11-20'", date(2024, 11, 1), date(2099, 1, 1)),
            ("at < DATE '2024-02-10'", date(1, 1, 1), date(2024, 2, 29)),
            ("at BETWEEN DATE '2024-01-05' AND DATE '2025-01-05'", date(2024, 1, 1), date(2025, 1, 31)),
            ("ts > TIMESTAMP '2024-11-25 00:00:00Z'", date(2024, 11, 25), date(2099, 1, 1)),
        ]:
            [(plan,)] = spark.sql(f"EXPLAIN SELECT at FROM made.dataset WHERE {condition}").collect()
            read = sum(first <= day <= last for day in days)
            assert f"made.dataset, {read} of 20 partitions" in plan, condition
            assert 0 < read < 20


def test_definitions_that_partitions_cannot_have_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with lancekeep.spark.install(spark, "made", str(tmp_path / "made")) as catalog:
        catalog.create_namespace("ns")
        for statement, error in [
            ("CREATE TABLE made.ns.t (k INT) PARTITIONED BY (k)", "a catalog has one partitioned table"),
            ("CREATE TABLE made.ns.t PARTITIONED BY (k) AS SELECT 1 AS k", "a catalog has one partitioned table"),
            ("CREATE TABLE made.dataset (k ARRAY<INT>) CLUSTER BY (k)", "rows cannot be sorted by k"),
            ("CREATE TABLE made.dataset (k INT) PARTITIONED BY (zorder(k))", "zorder.* is not supported; use a column"),
            ("CREATE TABLE made.dataset (k INT) PARTITIONED BY (days(k))", "cannot partition by year"),
            ("CREATE TABLE made.dataset (k DATE) PARTITIONED BY (days(k), months(k))", "given twice"),
            ("CREATE TABLE made.dataset (k STRUCT<a: INT>) PARTITIONED BY (k.a)", "take columns of the table"),
            ("CREATE TABLE made.dataset (k INT) PARTITIONED BY (bucket(0, k))", "positive 32-bit integer"),
            ("CREATE TABLE made.dataset (k INT DEFAULT 1) PARTITIONED BY (k)", "no properties, defaults.*default.k"),
            ("CREATE TABLE made.dataset (k INT, PRIMARY KEY (k)) PARTITIONED BY (k)", "no .*keys.*PRIMARY KEY"),
            ("CREATE TABLE made.dataset (k INT) PARTITIONED BY (k) TBLPROPERTIES ('a' = 'b')", "found a"),
        ]:
            with pytest.raises(PySparkException, match=error):
                spark.sql(statement)
        assert spark.sql("SHOW TABLES IN made").collect() == []
        assert "schema" not in catalog.describe_namespace("").properties


def test_overwrite_replaces_the_rows_of_a_condition(lake: Lake) -> None:
    lake.sql(f"INSERT INTO lake.dataset SELECT * FROM {ROWS}")
    lake.sql("INSERT OVERWRITE lake.dataset PARTITION (country = 'NL') VALUES (7L, NULL, 7d), (8L, NULL, 8d)")
    assert lake.ids() == [3, 5, 6, 7, 8]
    assert lake.sql("SELECT id FROM lake.dataset WHERE country = 'NL'") == [(7,), (8,)]
    lake.sql("INSERT INTO lake.dataset REPLACE WHERE id >= 6 AND f < 8 SELECT id + 10, at, 'FR', f FROM lake.dataset")
    assert lake.ids() == [3, 5, 8, 13, 15, 16, 17, 18]
    for condition, query, error in [
        ("id > 0", "SELECT raise_error('stop'), NULL, 'NL', 1d", "stop"),
        ("id % 2 = 0", "SELECT 1L, NULL, 'NL', 1d", "_LEGACY_ERROR_TEMP_1332|only Spark can evaluate"),
    ]:
        with pytest.raises(PySparkException, match=error):
            lake.sql(f"INSERT INTO lake.dataset REPLACE WHERE {condition} {query}")
    assert lake.ids() == [3, 5, 8, 13, 15, 16, 17, 18]
    lake.sql("INSERT OVERWRITE lake.dataset SELECT 9L, NULL, 'BE', 1d")
    assert lake.ids() == [9]
    assert lake.sql("SELECT id, country FROM lake.dataset") == [(9, "BE")]


@pytest.mark.parametrize("statement", ["INSERT OVERWRITE {}", "INSERT INTO {} REPLACE WHERE id > 0"])
def test_overwrite_does_not_miss_rows_of_a_simultaneous_insert(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    lake.sql("INSERT INTO lake.dataset VALUES (1, NULL, 'NL', 1)")
    change = PartitionedNamespace.change

    def late(*arguments: Any, **named: Any) -> None:
        monkeypatch.undo()
        lake.sql("INSERT INTO lake.dataset VALUES (2, NULL, 'US', 1)")  # into another partition
        change(*arguments, **named)

    monkeypatch.setattr(PartitionedNamespace, "change", late)
    with pytest.raises(PySparkException, match=r"Run the statement again"):
        lake.sql(statement.format("lake.dataset") + " VALUES (3, NULL, 'NL', 1)")
    assert lake.ids() == [1, 2]
    lake.sql(statement.format("lake.dataset") + " VALUES (3, NULL, 'NL', 1)")
    assert lake.ids() == [3]


def test_altered_columns_change_all_partitions_at_once(lake: Lake) -> None:
    lake.sql(f"INSERT INTO lake.dataset SELECT * FROM {ROWS}")
    for statement in (
        "ADD COLUMNS (n INT COMMENT 'a number', s STRUCT<a: INT>)",
        "RENAME COLUMN country TO land",
        "DROP COLUMN f",
        "ALTER COLUMN n TYPE BIGINT",
        "ADD COLUMN s.b STRING",
        "ALTER COLUMN at COMMENT 'when'",
    ):
        lake.sql(f"ALTER TABLE lake.dataset {statement}")
    lake.sql("UPDATE lake.dataset SET n = id * 2, land = 'DE' WHERE land = 'US'")
    lake.sql("INSERT INTO lake.dataset VALUES (7, NULL, 'FR', 7, struct(1, 'x')), (8, NULL, 'DE', 8, NULL)")
    assert lake.scanned("SELECT * FROM lake.dataset WHERE land = 'DE'") == "3 of 8"
    found = lake.sql("SELECT id, n, s.b FROM lake.dataset WHERE land IN ('DE', 'FR')")
    assert sorted(found) == [(3, 6, None), (5, None, None), (7, 7, "x"), (8, 8, None)]
    columns = {row[0]: row[1:] for row in lake.sql("DESCRIBE lake.dataset")}
    assert columns["n"] == ("bigint", "a number")
    assert columns["at"] == ("timestamp", "when")
    assert "f" not in columns
    numbers = {field.name: int(field.metadata[b"lance:field_id"]) for field in lake.namespace.schema}
    assert numbers == {"id": 0, "at": 1, "land": 2, "n": 4, "s": 5}
    for part, _ in lake.namespace.scan().datasets():
        stored = lance.dataset(lake.namespace.place(part)[0], version=part.version)
        assert stored.schema.names == ["id", "at", "land", "n", "s"]
    assert not lake.sql("CALL lake.system.fsck(deep => true)")
    for statement, error in [
        ("DROP COLUMN land", "divide the rows into partitions"),
        ("ALTER COLUMN id TYPE STRING", "cannot be altered so"),
        ("ADD COLUMN k INT DEFAULT 1", "no properties, comment, defaults"),
        ("ADD COLUMN k INT NOT NULL", "NOT NULL"),
        ("SET TBLPROPERTIES ('a' = 'b')", "ALTER NAMESPACE"),
        ("ADD CONSTRAINT c CHECK (id > 0)", "no properties, comment, defaults, rules"),
        ("RENAME TO lake.other", "Drop it and create it"),
        ("CLUSTER BY (id)", "no properties, comment, defaults"),
    ]:
        with pytest.raises(PySparkException, match=error):
            lake.sql(f"ALTER TABLE lake.dataset {statement}")
    assert [field.name for field in lake.namespace.schema] == list(numbers)


def test_alteration_and_append_at_the_same_time_do_not_mix(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.sql("INSERT INTO lake.dataset VALUES (1, NULL, 'NL', 1)")
    change, publish = PartitionedNamespace.change, PartitionedNamespace.publish
    insert, add = "INSERT INTO lake.dataset VALUES ({}, NULL, 'NL', 1)", "ALTER TABLE lake.dataset ADD COLUMN n INT"

    def after(statement: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def late(*arguments: Any, **named: Any) -> Any:
            monkeypatch.undo()
            lake.sql(statement)
            return act(*arguments, **named)

        return late

    monkeypatch.setattr(PartitionedNamespace, "change", after(insert.format(3), change))
    with pytest.raises(PySparkException, match="nothing was published"):
        lake.sql(add)
    monkeypatch.setattr(PartitionedNamespace, "publish", after(add, publish))
    with pytest.raises(PySparkException, match=r"columns were changed.*nothing was published"):
        lake.sql(insert.format(4))
    assert lake.ids() == [1, 3]
    lake.sql("DELETE FROM lake.dataset WHERE id = 1")  # after versions that no reader sees
    lake.sql("INSERT INTO lake.dataset VALUES (5, NULL, 'NL', 1, 2)")
    assert sorted(lake.sql("SELECT id, n FROM lake.dataset")) == [(3, None), (5, 2)]


def test_statement_indexes_all_partitions(lake: Lake) -> None:
    with pytest.raises(PySparkException, match="no partition to index"):
        lake.sql("CREATE INDEX ids ON lake.dataset (id)")
    lake.sql("INSERT INTO lake.dataset VALUES (1, NULL, 'NL', 1), (2, NULL, 'US', 2)")
    lake.sql("CREATE INDEX ids ON lake.dataset (id)")
    for part, _ in lake.namespace.scan().datasets():
        stored = lance.dataset(lake.namespace.place(part)[0], version=part.version)
        assert [index.name for index in stored.describe_indices()] == ["ids"]
    with pytest.raises(PySparkException, match="has an index"):
        lake.sql("CREATE INDEX ids ON lake.dataset (f)")
    lake.sql("DROP INDEX ids ON lake.dataset")
    lake.sql("DROP INDEX IF EXISTS ids ON lake.dataset")
    assert not any(dataset.describe_indices() for _, dataset in lake.namespace.scan().datasets())


def test_query_that_is_killed_before_its_publication_leaves_no_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lancekeep.spark.install(spark, "made", str(tmp_path / "made")):

        def killed(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(PartitionWriter, "_first", killed)
        with pytest.raises(PySparkException):
            spark.sql("CREATE TABLE made.dataset PARTITIONED BY (k) AS SELECT id % 2 AS k, id FROM range(5)")
        monkeypatch.undo()
        assert spark.sql("SHOW TABLES IN made").collect() == []
        left = [each for each in (tmp_path / "made").iterdir() if not each.name.startswith("__")]
        assert len(left) == 2  # what was written, and no entry names
        spark.sql("CALL made.system.fsck(repair => true)")
        spark.sql("CREATE TABLE made.dataset PARTITIONED BY (k) AS SELECT 1 AS k")
        assert [tuple(row) for row in spark.sql("SELECT k FROM made.dataset").collect()] == [(1,)]


def test_other_statements_change_no_partition(lake: Lake) -> None:
    lake.namespace.write(pa.table({"id": [1], "at": [None], "country": ["NL"], "f": [None]}, schema=SCHEMA))
    for statement, error in [
        ("CREATE OR REPLACE TABLE lake.dataset (id INT)", "Drop it and create it"),
        ("CREATE OR REPLACE TABLE lake.dataset (id INT DEFAULT 1) PARTITIONED BY (id)", "no properties, defaults"),
        ("CREATE OR REPLACE TABLE lake.dataset AS SELECT 1 AS id", "Drop it and create it"),
        ("COMMENT ON TABLE lake.dataset IS 'x'", "COMMENT ON COLUMN describes a column"),
        ("ALTER TABLE lake.dataset DROP PARTITION (country = 'NL', at_year = 2025)", "Use INSERT and DELETE"),
        ("ALTER TABLE lake.dataset ADD PARTITION (country = 'NL', at_year = 2025)", "Use INSERT and DELETE"),
        ("TRUNCATE TABLE lake.dataset PARTITION (country = 'NL', at_year = 2025)", "Use INSERT and DELETE"),
        ("SELECT * FROM lake.dataset VERSION AS OF 3", "each partition has its own. Read the table"),
        ("SELECT * FROM lake.dataset TIMESTAMP AS OF '2026-01-01'", "each partition has its own. Read the table"),
        ("INSERT INTO lake.dataset SELECT 'x', NULL, NULL, NULL", "CAST_INVALID_INPUT|CANNOT_SAFELY_CAST"),
    ]:
        with pytest.raises(PySparkException, match=error):
            lake.sql(statement)
    assert lake.ids() == [1]
