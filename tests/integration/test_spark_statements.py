"""Every statement on every kind of relation is done or refused; it is never reported as done without an effect."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession
from rest_server import serving

import lancekeep
import lancekeep.spark
from lancekeep import PartitionBy
from lancekeep.application.catalog import directory_of
from lancekeep.domain.identifiers import ObjectId

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

NAMES = {
    "table": "ns.t",
    "branch": "ns.t.branch_dev",
    "tag": "ns.t.tag_one",
    "metadata": "ns.t.history",
    "view": "ns.v",
    "partitioned": "dataset",
    "missing": "ns.missing",
}
TABLE = ObjectId.of("ns.t")
ROWS = pa.table({"i": [1, 2, 3], "s": ["a", "b", "c"]})
_SOURCE = "(SELECT * FROM VALUES (1L, 'm'), (8L, 'n') AS q(i, s)) q"
_TWICE = "(SELECT * FROM VALUES (1L, 'm'), (1L, 'n') AS q(i, s)) q"

DONE: dict[str, str] = {
    "INSERT INTO {r} VALUES (9, 'z')": "table branch partitioned",
    "INSERT INTO {r} BY NAME SELECT 'z' AS s, 9L AS i": "table branch partitioned",
    "INSERT OVERWRITE {r} VALUES (9, 'z')": "table branch partitioned",
    "INSERT INTO {r} REPLACE WHERE i = 1 VALUES (1, 'y')": "table branch partitioned",
    "UPDATE {r} SET s = 'u' WHERE i = 1": "table branch partitioned",
    "UPDATE {r} SET i = i": "table branch partitioned",
    "DELETE FROM {r} WHERE i = 1": "table branch partitioned",
    "DELETE FROM {r} WHERE i + 1 = 2": "table branch partitioned",
    "TRUNCATE TABLE {r}": "table branch partitioned",
    f"MERGE INTO {{r}} t USING {_SOURCE} ON t.i = q.i WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *": (
        "table branch partitioned"
    ),
    f"MERGE INTO {{r}} t USING {_SOURCE} ON t.i = q.i WHEN MATCHED THEN UPDATE SET s = t.s": "table branch partitioned",
    f"MERGE INTO {{r}} t USING {_TWICE} ON t.i = q.i WHEN MATCHED THEN DELETE": "table branch partitioned",
    "CREATE TABLE {r} (k INT)": "missing",
    "CREATE OR REPLACE TABLE {r} (k INT)": "table missing",
    "REPLACE TABLE {r} (k INT)": "table",
    "CREATE TABLE {r} AS SELECT 1L AS k": "missing",
    "CREATE OR REPLACE TABLE {r} AS SELECT 1L AS k": "table missing",
    "CREATE TABLE {r} LIKE {c}.ns.t": "missing",
    "CREATE TABLE {r} (k INT) PARTITIONED BY (k)": "",  # test_spark_partitioned.py creates the table of that name
    "DROP TABLE {r}": "table partitioned",
    "DROP TABLE {r} PURGE": "table partitioned",
    "CREATE OR REPLACE VIEW {r} AS SELECT 1 AS k": "view missing",
    "ALTER VIEW {r} AS SELECT 1 AS k": "view",
    "DROP VIEW {r}": "view",
    "ALTER TABLE {r} RENAME TO {c}.ns.renamed": "table",
    "ALTER TABLE {c}.ns.t RENAME TO {r}": "missing",
    "ALTER TABLE {r} SET TBLPROPERTIES ('a' = 'b')": "table",
    "ALTER TABLE {r} ADD COLUMN n INT": "table partitioned",
    "ALTER TABLE {r} RENAME COLUMN s TO z": "table partitioned",
    "ALTER TABLE {r} DROP COLUMN s": "table",
    "ALTER TABLE {r} ADD PARTITION (s = 'x')": "",
    "ALTER TABLE {r} CLUSTER BY (i)": "table",
    "COMMENT ON TABLE {r} IS 'said'": "table",
    "ANALYZE TABLE {r} COMPUTE STATISTICS": "",
    "MSCK REPAIR TABLE {r}": "",
    "CREATE INDEX ix ON {r} (i)": "table partitioned",
    "ALTER TABLE {r} REPLACE COLUMNS (k INT)": "",
}
"""The kinds of relations on which a statement has an effect; it is refused on all others."""

OPTIONAL: dict[str, tuple[str, str]] = {
    "DROP TABLE IF EXISTS {r}": ("table partitioned", "missing"),
    "DROP VIEW IF EXISTS {r}": ("view", "missing"),
    "DROP INDEX IF EXISTS ix ON {r}": ("", "table partitioned"),
    "CREATE TABLE IF NOT EXISTS {r} (k INT)": ("missing", "table branch tag metadata partitioned view"),
}
"""The kinds on which a statement has an effect, and those on which it does nothing as it says."""


@attrs.frozen
class Lake:
    """A catalog with a relation of each kind, under a name of its own in SQL."""

    spark: SparkSession
    name: str
    catalog: lancekeep.Catalog

    def run(self, statement: str, kind: str) -> None:
        self.spark.sql(statement.format(r=f"{self.name}.{NAMES[kind]}", c=self.name)).collect()

    def state(self) -> dict[str, Any]:
        """Return everything that statements can change, as plain pylance reads it."""
        found: dict[str, Any] = {}
        names = [f"ns.{name}" for name in self.catalog.list_tables("ns")]
        for table in map(ObjectId.of, [*self.catalog.list_tables(ObjectId(())), *names]):
            described = self.catalog.describe_table(table)
            dataset = lance.dataset(described.uri)
            versions = {name: branch.version for name, branch in self.catalog.branches.list(table).items()}
            found[str(table)] = (dict(described.properties), dataset.schema, dataset.version, versions)
            for name in versions:
                found[f"{table}:{name}"] = dataset.checkout_version((name, None)).version
        views = directory_of(self.catalog).sql_views
        found |= {name: views.definition(ObjectId.of(["ns", name])) for name in views.names(ObjectId.of("ns"))}
        with suppress(lancekeep.NamespaceNotFound):
            scan = self.catalog.partitions.open().scan()
            found["partitions"] = sorted((part.values, part.version) for part in scan.partitions)
        return found


class Lakes:
    """Copies of one catalog; a statement that changes its copy gets the next test a new one."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._numbers = count()
        self._current: tuple[Lake, dict[str, Any]] | None = None

    def fresh(self) -> tuple[Lake, dict[str, Any]]:
        if self._current is None or self._current[0].state() != self._current[1]:
            lake = self._copy()
            self._current = lake, lake.state()
        return self._current

    def listing(self) -> Lake:
        """Return an empty catalog of the first specification, which keeps no entries."""
        name, directory = f"statements{next(self._numbers)}", self._directory / "listing"
        catalog = lancekeep.spark.install(self._spark, name, str(directory), mode="v1")
        return Lake(self._spark, name, catalog)

    @contextmanager
    def served(self) -> Iterator[Lake]:
        """Yield an empty catalog of a server."""
        name = f"statements{next(self._numbers)}"
        with serving(lancekeep.DirectoryNamespace(root=str(self._directory / "served"))) as front:
            yield Lake(self._spark, name, lancekeep.spark.install(self._spark, name, front.uri))

    def _copy(self) -> Lake:
        name = f"statements{next(self._numbers)}"
        shutil.copytree(self._directory / "template", self._directory / name)
        return Lake(self._spark, name, lancekeep.spark.install(self._spark, name, str(self._directory / name)))


@pytest.fixture(scope="module")
def lakes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    directory = tmp_path_factory.mktemp("statements")
    with lancekeep.spark.install(spark, "template", str(directory / "template")) as catalog:
        catalog.create_namespace("ns")
        catalog.write("ns.t", ROWS)
        catalog.tags.create(TABLE, "one", 1, None)
        catalog.branches.create(TABLE, "dev", None, 1)
        spark.sql("CREATE VIEW template.ns.v AS SELECT 1L AS i, 'a' AS s")
        catalog.partitions.create(ROWS.schema, [PartitionBy.identity("s")]).write(ROWS)
    return Lakes(spark, directory)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("statement", [*DONE, *OPTIONAL])
def test_statement_is_done_or_refused(lakes: Lakes, statement: str, kind: str) -> None:
    done, nothing = OPTIONAL.get(statement) or (DONE[statement], "")
    lake, before = lakes.fresh()
    if kind in done.split():
        lake.run(statement, kind)
        assert lake.state() != before
        return
    if kind in nothing.split():
        lake.run(statement, kind)
    else:
        with pytest.raises(PySparkException) as refusal:
            lake.run(statement, kind)
        assert not isinstance(refusal.value, PythonException)  # a refusal, no crash of a task
        assert str(refusal.value)
    assert lake.state() == before


def test_location_places_a_new_table_in_an_empty_directory_of_the_root(lakes: Lakes) -> None:
    lake, before = lakes.fresh()
    root = Path(lake.catalog.root_uri.removeprefix("file://"))
    (root / "full").mkdir()
    (root / "full" / "report.txt").write_text("kept")
    taken = lance.dataset(lake.catalog.describe_table("ns.t").uri).uri.removeprefix("file://")
    for clause, error in [
        (
            f"(k INT) LOCATION '{root}-other/t'",
            "inside the root .* an empty directory below the root",
        ),
        (f"(k INT) LOCATION '{root}/../t'", "not a relative path inside the root"),
        ("(k INT) LOCATION 's3://bucket/lake/t'", "not a relative path inside the root"),
        (f"(k INT) LOCATION '{root}'", "not a relative path inside the root"),
        (f"(k INT) LOCATION '{root}/__manifest/t'", "reserved for the catalog"),
        (f"(k INT) LOCATION '{taken}'", "overlaps the directory of the table ns.t"),
        (f"(k INT) LOCATION '{taken}/data'", "overlaps the directory of the table ns.t"),
        (f"(k INT) LOCATION '{root}/full'", "files lie in 'full' already"),
        (f"LOCATION '{root}/full' AS SELECT 1 AS k", "files lie in 'full' already"),
    ]:
        with pytest.raises(PySparkException, match=error):
            lake.run(f"CREATE TABLE IF NOT EXISTS {{r}} {clause}", "missing")
    with pytest.raises(PySparkException, match="EXTERNAL of a table is not supported"):
        lake.run(f"CREATE EXTERNAL TABLE {{r}} (k INT) LOCATION '{root}/sales/eu 1'", "missing")
    with pytest.raises(PySparkException, match="REPLACE TABLE keeps the directory of a table"):
        lake.run(f"CREATE OR REPLACE TABLE {{r}} (k INT) LOCATION '{root}/sales/eu 1'", "table")
    with pytest.raises(PySparkException, match="is not true"):
        lake.run("CREATE TABLE {r} LOCATION 'sales/eu 1' AS SELECT assert_true(false) AS k", "missing")
    assert lake.state() == before
    assert not list(root.rglob(".lance-reserved"))
    assert (root / "full" / "report.txt").read_text() == "kept"

    lake.run(f"CREATE TABLE {{r}} (k INT) LOCATION '{root}/sales/eu 1'", "missing")
    lake.run("INSERT INTO {r} VALUES (1)", "missing")
    place = root / "sales" / "eu 1"
    assert lance.dataset(str(place)).to_table().to_pylist() == [{"k": 1}]
    shown = lake.spark.sql(f"SHOW CREATE TABLE {lake.name}.ns.missing").collect()[0][0]
    lake.run("DROP TABLE {r}", "missing")
    assert not place.exists()
    lake.spark.sql(shown)
    lake.run(f"CREATE OR REPLACE TABLE {{r}} LOCATION '{place}' AS SELECT 2 AS k", "missing")
    assert lance.dataset(str(place)).to_table().to_pylist() == [{"k": 2}]
    lake.run("CREATE TABLE {r}_2 LIKE {r} LOCATION 'sales/us'", "missing")
    assert lake.catalog.find_table("ns.missing_2").location == "sales/us"


def test_location_in_a_directory_without_entries_is_the_name_of_the_table(lakes: Lakes) -> None:
    lake = lakes.listing()
    root = lake.catalog.root_uri
    for place in ("sales/t", "u.lance"):
        with pytest.raises(PySparkException, match=r"stores each table in \{name\}\.lance"):
            lake.spark.sql(f"CREATE TABLE {lake.name}.t (k INT) LOCATION '{root}/{place}'")
    assert lake.catalog.list_tables() == []
    lake.spark.sql(f"CREATE TABLE {lake.name}.t (k INT) LOCATION '{root}/t.lance'")
    assert "LOCATION" not in lake.spark.sql(f"SHOW CREATE TABLE {lake.name}.t").collect()[0][0]


def test_lengths_of_texts_hold_for_each_writer_and_statement(lakes: Lakes) -> None:
    lake = lakes.fresh()[0]

    def row(v: str, k: str) -> pa.Table:
        return pa.table({"i": pa.array([9], pa.int32()), "v": [v], "k": [k]})

    def lengths(name: str = "ns.missing") -> dict[str, str]:
        return dict(lake.catalog.find_table(name).properties)

    def refused(statement: str, error: str) -> None:
        with pytest.raises(PySparkException, match=error):
            lake.run(statement, "missing")

    lake.run("CREATE TABLE {r} (i INT, v VARCHAR(3) COMMENT 'said', k CHAR(4))", "missing")
    lake.run("INSERT INTO {r} VALUES (1, 'abc', 'k'), (2, 'ab   ', NULL)", "missing")
    too_long = "Exceeds char/varchar type length limitation: 3"
    refused("INSERT INTO {r} VALUES (3, 'abcd', 'k')", too_long)
    refused("UPDATE {r} SET v = 'abcd'", too_long)
    refused("MERGE INTO {r} t USING (SELECT 'abcd' v) q ON t.i = 1 WHEN MATCHED THEN UPDATE SET v = q.v", too_long)
    lake.catalog.write("ns.missing", row("äöü", "k   "), "append")
    for wrong, error in ((row("äöüß", "k   "), r"length\(`v`\) <= 3"), (row("ä", "k"), r"length\(`k`\) = 4")):
        with pytest.raises(lancekeep.InvalidInput, match=error):
            lake.catalog.write("ns.missing", wrong, "append")
    lake.run("UPDATE {r} SET v = 'u' WHERE k = 'k' AND i = 1", "missing")
    lake.run("DELETE FROM {r} WHERE k = 'k ' AND i = 9", "missing")
    assert sorted(lake.catalog.open("ns.missing").to_table().to_pylist(), key=str) == [
        {"i": 1, "v": "u", "k": "k   "},
        {"i": 2, "v": "ab ", "k": None},
    ]

    def shown(name: str) -> list[str]:
        return [row[1] for row in lake.spark.sql(f"DESCRIBE {lake.name}.ns.{name}").collect()[:3]]

    again = lake.spark.sql(f"SHOW CREATE TABLE {lake.name}.ns.missing").collect()[0][0]
    lake.run("CREATE TABLE {r}_as AS SELECT * FROM {r}", "missing")
    lake.run("CREATE TABLE {r}_like LIKE {r}", "missing")
    for name in ("missing", "missing_as", "missing_like"):
        assert shown(name) == ["int", "varchar(3)", "char(4)"]
        assert lengths(f"ns.{name}") == {"varchar.v": "3", "char.k": "4"}

    lake.run("ALTER TABLE {r} ALTER COLUMN v TYPE VARCHAR(5)", "missing")
    lake.run("ALTER TABLE {r} RENAME COLUMN v TO w", "missing")
    lake.run("ALTER TABLE {r} ADD COLUMN c CHAR(2) DEFAULT 'y'", "missing")
    assert lengths() == {"varchar.w": "5", "char.k": "4", "char.c": "2", "default.c": "'y'"}
    assert lake.catalog.open("ns.missing").to_table()["c"].to_pylist() == ["y ", "y "]
    before = lake.state()
    refused("ALTER TABLE {r} ALTER COLUMN w TYPE VARCHAR(2)", "NOT_SUPPORTED_CHANGE_COLUMN")
    refused("ALTER TABLE {r} SET TBLPROPERTIES ('varchar.w' = '1')", "violate the constraint 'w'")
    refused("ALTER TABLE {r} SET TBLPROPERTIES ('char.i' = '1')", "length of int32")
    refused("ALTER TABLE {r} SET TBLPROPERTIES ('varchar.w' = 'x')", "expected a number of characters")
    refused("ALTER TABLE {r} ADD COLUMN d STRUCT<x: VARCHAR(2)>", r"'d\.x' is varchar\(2\)\. Declare STRING")
    refused("CREATE TABLE {r}_2 (d ARRAY<CHAR(2)>)", r"'d\.element' is char\(2\)\. Declare STRING")
    refused("ALTER TABLE {c}.dataset ADD COLUMN d VARCHAR(2)", "has no properties, .* and lengths of texts")
    with pytest.raises(PySparkException, match="cannot store the properties"):
        lake.spark.sql(f"CREATE TABLE {lakes.listing().name}.lengths (v VARCHAR(2))")
    assert lake.state() == before

    lake.run("ALTER TABLE {r} ALTER COLUMN w TYPE STRING", "missing")
    lake.run("ALTER TABLE {r} DROP COLUMN k", "missing")
    assert lengths() == {"char.c": "2", "default.c": "'y'"}
    lake.run("DROP TABLE {r}", "missing")
    lake.spark.sql(again)
    assert shown("missing") == ["int", "varchar(3)", "char(4)"]


DEFINITIONS = [
    "(i INT NOT NULL COMMENT 'k''ey', b BINARY, v ARRAY<DOUBLE>, PRIMARY KEY (i)) TBLPROPERTIES ('blob.b' = 'true', "
    "'vector.v' = '2', 'lancekeep.stable_row_ids' = 'true', 'a b' = 'it''s')",
    "(i INT DEFAULT 3, s STRING DEFAULT 'x''y', c VARCHAR(4) NOT NULL, d DATE DEFAULT DATE '2020-01-01', `g h` INT "
    "GENERATED ALWAYS AS (i + 1), CONSTRAINT low CHECK (i < 9), CHECK (length(s) > 0)) COMMENT 'it''s'",
    "(s STRUCT<a: INT, `b c`: ARRAY<STRING>>, m MAP<STRING, STRUCT<x: DECIMAL(9,2)>>, t TIMESTAMP_NTZ)",
]


def test_the_shown_definition_of_each_kind_of_relation_recreates_it(lakes: Lakes) -> None:
    lake = lakes.fresh()[0]

    def shown(kind: str) -> str:
        text: str = lake.spark.sql(f"SHOW CREATE TABLE {lake.name}.{NAMES[kind]}").collect()[0][0]
        return text

    def state() -> tuple[Any, ...]:
        dataset = lance.dataset(lake.catalog.describe_table("ns.missing").uri)
        metadata = [(field, field.metadata) for field in dataset.schema]
        return metadata, dict(lake.catalog.find_table("ns.missing").properties), dataset.has_stable_row_ids

    for definition in DEFINITIONS:
        lake.run(f"CREATE TABLE {{r}} {definition}", "missing")
        again, before = shown("missing"), state()
        lake.run("DROP TABLE {r}", "missing")
        lake.spark.sql(again)
        assert state() == before
        lake.run("DROP TABLE {r}", "missing")
    for kind, drop in (("view", "DROP VIEW {r}"), ("partitioned", "DROP TABLE {r}")):
        again = shown(kind)
        lake.run(drop, kind)
        lake.spark.sql(again)
        assert shown(kind) == again


def test_functions_are_those_of_spark(lakes: Lakes) -> None:
    lake, before = lakes.fresh()
    for statement, found in (
        ("SHOW SYSTEM FUNCTIONS IN {c}.ns LIKE 'ab*'", ["abs"]),
        ("SHOW USER FUNCTIONS IN {c} LIKE 'vector*'", ["vector_search"]),
    ):
        assert [row[0] for row in lake.spark.sql(statement.format(c=lake.name)).collect()] == found
    for statement, error in (
        ("SHOW FUNCTIONS IN {c}.nowhere", "the namespace nowhere does not exist"),
        ("SELECT {c}.ns.f(1)", "UNRESOLVED_ROUTINE"),
        ("CREATE TABLE {c}.ns.u (i ARRAY<INT>) CLUSTER BY (i)", "rows cannot be sorted by i"),
    ):
        with pytest.raises(PySparkException, match=error):
            lake.run(statement, "table")
    assert lake.state() == before


def test_a_table_is_saved_without_a_format_where_lancekeep_is_the_default(lakes: Lakes) -> None:
    lake, _ = lakes.fresh()
    frame = lake.spark.range(3)
    with pytest.raises(PySparkException, match=r"set spark\.sql\.sources\.default to lancekeep"):
        frame.write.saveAsTable(f"{lake.name}.ns.missing")
    lake.spark.conf.set("spark.sql.sources.default", "lancekeep")
    try:
        frame.write.saveAsTable(f"{lake.name}.ns.missing")
        frame.write.mode("append").saveAsTable(f"{lake.name}.ns.missing")
    finally:
        lake.spark.conf.unset("spark.sql.sources.default")
    assert sorted(lake.catalog.open("ns.missing").to_table()["id"].to_pylist()) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("home", ["server", "listing"])
def test_a_catalog_that_cannot_change_properties_refuses_the_whole_statement(lakes: Lakes, home: str) -> None:
    def refused(lake: Lake, *statements: str) -> None:
        dataset = lake.catalog.open("t")
        for statement in statements:
            with pytest.raises(
                PySparkException, match=r"'properties of a table that exists'|cannot store the properties"
            ):
                lake.spark.sql(statement.format(r=f"{lake.name}.t"))
        latest = lake.catalog.open("t")
        assert (latest.version, latest.schema) == (dataset.version, dataset.schema)

    added = ("ALTER TABLE {r} ADD COLUMN d INT DEFAULT 3", "ALTER TABLE {r} ADD COLUMN d VARCHAR(2)")
    replaced = "CREATE OR REPLACE TABLE {r} TBLPROPERTIES ('a' = 'b') AS SELECT 2 AS k"
    if home == "listing":
        lake = lakes.listing()
        lake.run("CREATE OR REPLACE TABLE {c}.t AS SELECT 1 AS k", "missing")
        refused(lake, *added, replaced)
        return
    with lakes.served() as lake:
        lake.run("CREATE TABLE {c}.t (k VARCHAR(2))", "missing")
        refused(lake, *added, replaced, "ALTER TABLE {r} DROP COLUMN k", "CREATE OR REPLACE TABLE {r} AS SELECT 2 AS k")
