"""A catalog in the SQL of a real Spark session: what statements do, and that refused ones change nothing."""

from __future__ import annotations

import gc
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import lance
import numpy as np
import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkException,
)
from pyspark.sql import DataFrame, SparkSession

import lancekeep
import lancekeep.spark
from lancekeep.application.catalog import directory_of
from lancekeep.domain.commit_token import StagedManifest
from lancekeep.entrypoints.spark.ingest import ingest
from lancekeep.entrypoints.spark.sql import scan
from lancekeep.entrypoints.spark.sql.predicates import translated
from pyspark_lancekeep import DefaultSource

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]


@attrs.frozen
class Lake:
    """A catalog with the name ``lake`` in SQL."""

    spark: SparkSession
    catalog: lancekeep.Catalog

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def versions(self, table: str = "t") -> list[tuple[int, int]]:
        """Number and rows of each, newest first."""
        return [(entry.version, entry.rows) for entry in self.catalog.versions.history(table)]

    def stored(self, table: str = "t") -> lance.LanceDataset:
        """Return the table as plain pylance reads it."""
        return lance.dataset(self.catalog.describe_table(table).uri)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """Each test's catalog takes the place of the last one's."""
    catalog = lancekeep.spark.install(
        spark, "lake", str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db"
    )
    with catalog:
        yield Lake(spark, catalog)


# -- namespaces -----------------------------------------------------------------------------------------------------


def test_namespaces_of_any_depth(lake: Lake) -> None:
    lake.sql("CREATE NAMESPACE lake.a COMMENT 'outer' WITH PROPERTIES ('k' = 'v')")
    lake.sql("CREATE NAMESPACE lake.a.b")
    lake.sql("CREATE NAMESPACE lake.a.b.c")
    lake.sql("CREATE NAMESPACE IF NOT EXISTS lake.a")
    lake.sql("CREATE TABLE lake.a.b.c.t (id INT)")
    assert lake.sql("SHOW NAMESPACES IN lake") == [("a",)]
    assert lake.sql("SHOW NAMESPACES IN lake.a.b") == [("a.b.c",)]
    assert lake.sql("SHOW TABLES IN lake.a.b.c") == [("a.b.c", "t", False)]
    assert lake.catalog.describe_namespace("a").properties == {"k": "v", "comment": "outer"}
    lake.sql("ALTER NAMESPACE lake.a SET PROPERTIES ('l' = 'w')")
    lake.sql("ALTER NAMESPACE lake.a UNSET PROPERTIES ('k')")
    assert ("Properties", "((l,w))") in lake.sql("DESCRIBE NAMESPACE EXTENDED lake.a")

    for statement, error in [
        ("CREATE NAMESPACE lake.a", "the name a is taken"),
        ("CREATE NAMESPACE lake.nowhere.deep", "the namespace nowhere does not exist"),
        ("SHOW NAMESPACES IN lake.nowhere", "the namespace nowhere does not exist"),
        ("CREATE NAMESPACE lake.x LOCATION '/tmp/x'", "LOCATION of a namespace is not supported"),
        ("DROP NAMESPACE lake.a.b", "SCHEMA_NOT_EMPTY"),
        ("DROP NAMESPACE lake", "the root namespace cannot be dropped"),
    ]:
        with pytest.raises(PySparkException, match=error):
            lake.sql(statement)
    lake.sql("DROP NAMESPACE IF EXISTS lake.nowhere")
    lake.sql("DROP NAMESPACE lake.a CASCADE")
    assert lake.catalog.list_namespaces() == []


# -- definitions ----------------------------------------------------------------------------------------------------

DEFINITION = """
    CREATE TABLE lake.t (
        id BIGINT NOT NULL COMMENT 'the key', name STRING, price DECIMAL(20,4), day DATE, instant TIMESTAMP,
        clock TIMESTAMP_NTZ, embedding ARRAY<FLOAT> COMMENT 'of the text', tags ARRAY<STRING>,
        place STRUCT<x: INT, shares: ARRAY<DOUBLE>>, counts MAP<STRING, BIGINT>
    ) COMMENT 'things' TBLPROPERTIES ('k' = 'v', 'vector.embedding' = '3')
"""
STORED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"comment": "the key"}),
        ("name", pa.string()),
        ("price", pa.decimal128(20, 4)),
        ("day", pa.date32()),
        ("instant", pa.timestamp("us", "UTC")),
        ("clock", pa.timestamp("us")),
        pa.field("embedding", pa.list_(pa.float32(), 3), metadata={"comment": "of the text"}),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("place", pa.struct([("x", pa.int32()), ("shares", pa.list_(pa.field("element", pa.float64())))])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def test_dropped_table_comes_back_unless_it_was_purged(lake: Lake) -> None:
    for name, purge, left in (("kept", "", ["kept"]), ("gone", "PURGE", ["kept"])):
        lake.sql(f"CREATE TABLE lake.{name} (id BIGINT) TBLPROPERTIES ('lancekeep.undrop' = '7d')")
        lake.sql(f"INSERT INTO lake.{name} VALUES (1)")
        lake.sql(f"DROP TABLE lake.{name} {purge}")
        assert [str(each.id) for each in lake.catalog.list_dropped()] == left
    lake.catalog.undrop("kept")
    assert lake.sql("SELECT id FROM lake.kept") == [(1,)]


def test_shown_definition_recreates_table(lake: Lake) -> None:
    lake.sql(DEFINITION)
    assert lake.stored().schema.equals(STORED, check_metadata=True)
    assert lake.catalog.find_table("t").properties == {"comment": "things", "k": "v"}

    shown = {row[0]: row[1] for row in lake.sql("DESCRIBE TABLE EXTENDED lake.t")}
    store = directory_of(lake.catalog).commits.rows.url
    assert shown["Location"] == lake.catalog.describe_table("t").uri
    assert (shown["Provider"], shown["Comment"], shown["id"]) == ("lancekeep", "things", "bigint")
    assert shown["Table Properties"] == (f"[k=v,lancekeep.commit_store={store},lancekeep.version=1,vector.embedding=3]")
    assert ("vector.embedding", "3") in lake.sql("SHOW TBLPROPERTIES lake.t")
    assert lake.sql("SHOW COLUMNS IN lake.t") == [(name,) for name in STORED.names]

    ((again,),) = lake.sql("SHOW CREATE TABLE lake.t")
    lake.sql("CREATE TABLE lake.likewise LIKE lake.t")
    assert lake.stored("likewise").schema.equals(STORED, check_metadata=True)
    lake.sql("DROP TABLE lake.t")
    lake.sql(again)
    assert lake.stored().schema.equals(STORED, check_metadata=True)
    assert lake.catalog.find_table("t").properties == {"comment": "things", "k": "v"}


def test_refused_definition_creates_no_table(lake: Lake) -> None:
    for definition, error in [
        ("(id INT, d DATE) PARTITIONED BY (d)", "a catalog has one partitioned table"),
        ("(id INT) CLUSTERED BY (id) INTO 4 BUCKETS", "leave PARTITIONED BY or CLUSTERED BY out"),
        ("(id ARRAY<INT>) CLUSTER BY (id)", "rows cannot be sorted by id, which is list"),
        ("(id INT) USING parquet", "USING parquet: tables here are Lance tables"),
        ("(id INT) OPTIONS ('x' = 'y')", "there is no option x"),
        ("(id INT, CHECK (upper(id) = 'A'))", "not every writer can evaluate it"),
        ("(id INT, CHECK (other > 3))", "other"),
        ("(id INT, UNIQUE (id))", "only PRIMARY KEY, and CHECK constraints that are enforced, are supported"),
        ("(id INT, g INT GENERATED ALWAYS AS (abs(id)))", "not every writer can evaluate it"),
        ("(a INTERVAL YEAR)", "a table cannot keep these types"),
        ("(`a.b` INT)", "a column cannot have the name 'a.b'"),
        ("(id INT) TBLPROPERTIES ('vector.v' = '3')", "vector.v names no column of id"),
        ("(v ARRAY<FLOAT>) TBLPROPERTIES ('vector.v' = 'x')", "cannot be vectors of length 'x'"),
        ("(id INT) TBLPROPERTIES ('lancekeep.mine' = '3')", "'lancekeep.mine' is the catalog's own"),
    ]:
        with pytest.raises(PySparkException, match=error):
            lake.sql(f"CREATE TABLE lake.u {definition}")
    assert lake.catalog.list_tables() == []


def test_taken_and_missing_names_are_refused(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (id INT)")
    lake.sql("CREATE TABLE IF NOT EXISTS lake.t (other INT)")
    lake.sql("DROP TABLE IF EXISTS lake.missing")
    for statement, condition in [
        ("CREATE TABLE lake.t (id INT)", "TABLE_OR_VIEW_ALREADY_EXISTS"),
        ("CREATE TABLE lake.t AS SELECT 1 id", "TABLE_OR_VIEW_ALREADY_EXISTS"),
        ("SELECT * FROM lake.missing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("INSERT INTO lake.missing SELECT 1", "TABLE_OR_VIEW_NOT_FOUND"),
        ("REPLACE TABLE lake.missing AS SELECT 1 a", "TABLE_OR_VIEW_NOT_FOUND"),
        ("DROP TABLE lake.missing", "TABLE_OR_VIEW_NOT_FOUND"),
    ]:
        with pytest.raises(AnalysisException) as refused:
            lake.sql(statement)
        assert refused.value.getCondition() == condition
    with pytest.raises(AnalysisException, match="the namespace nowhere does not exist"):
        lake.sql("CREATE TABLE lake.nowhere.t (id INT)")
    assert lake.versions() == [(1, 0)]


def test_supported_alterations_succeed_and_others_are_refused(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (id INT NOT NULL, v ARRAY<FLOAT>) TBLPROPERTIES ('vector.v' = '2', 'k' = 'v')")
    lake.sql("INSERT INTO lake.t VALUES (1, array(1f, 2f))")
    for change in [
        "ADD COLUMNS (a INT COMMENT 'new', b STRING)",
        "RENAME COLUMN a TO c",
        "ALTER COLUMN c COMMENT 'renamed'",
        "ALTER COLUMN id TYPE BIGINT",
        "ALTER COLUMN id DROP NOT NULL",
        "RENAME COLUMN v TO w",
        "DROP COLUMN b",
        "SET TBLPROPERTIES ('l' = 'm', 'comment' = 'said')",
        "UNSET TBLPROPERTIES ('k')",
    ]:
        lake.sql(f"ALTER TABLE lake.t {change}")
    assert lake.sql("SELECT * FROM lake.t") == [(1, [1.0, 2.0], None)]
    assert lake.stored().schema.equals(
        pa.schema(
            [
                ("id", pa.int64()),
                ("w", pa.list_(pa.float32(), 2)),
                pa.field("c", pa.int32(), metadata={"comment": "renamed"}),
            ]
        ),
        check_metadata=True,
    )
    assert lake.catalog.find_table("t").properties == {"l": "m", "comment": "said"}

    before = lake.versions()
    for change, error in [
        ("ADD COLUMN d INT NOT NULL", "cannot be added with NOT NULL"),
        ("ADD COLUMN d INT FIRST", "Lance adds columns and fields as the last"),
        ("ADD CONSTRAINT c CHECK (length(c) > 3)", "cannot be evaluated on these rows"),
        ("ALTER COLUMN c FIRST", "cannot be altered by moving a column"),
        ("ALTER COLUMN c TYPE STRING", "Cannot cast column"),
        ("CLUSTER BY (missing)", "missing"),
        ("SET TBLPROPERTIES ('vector.w' = '3')", "decided when the table is created"),
        ("SET TBLPROPERTIES ('lancekeep.version' = '3')", "is the catalog's own"),
        ("SET LOCATION '/tmp/x'", "location is not a property that can be changed"),
    ]:
        with pytest.raises(PySparkException, match=error):
            lake.sql(f"ALTER TABLE lake.t {change}")
    assert lake.versions() == before

    lake.sql("CREATE NAMESPACE lake.other")
    lake.sql("ALTER TABLE lake.t RENAME TO other.u")
    assert lake.sql("SELECT id FROM lake.other.u") == [(1,)]
    assert lake.catalog.list_tables() == []
    lake.sql("ALTER TABLE lake.other.u RENAME TO lake.other.v")
    lake.sql("ALTER TABLE lake.other.v RENAME TO lake.t")
    assert lake.sql("SELECT id FROM lake.t") == [(1,)]
    assert lake.catalog.list_tables("other") == []


def test_names_and_types_that_lance_cannot_read_back_are_refused(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (id INT)")
    for statement in [
        "CREATE TABLE lake.u (`a``b` INT)",
        "ALTER TABLE lake.t ADD COLUMN `a``b` INT",
        "ALTER TABLE lake.t RENAME COLUMN id TO `a``b`",
    ]:
        with pytest.raises(PySparkException, match="a column cannot have the name 'a`b'"):
            lake.sql(statement)
    assert lake.versions() == [(1, 0)]
    assert lake.catalog.list_tables() == ["t"]

    lance.write_dataset(pa.table({"id": [1, 2], "a`b": [3, 4]}), f"{lake.catalog.root_uri}/foreign.lance")
    lake.catalog.register_table("foreign", "foreign.lance")
    assert sorted(lake.sql("SELECT id FROM lake.foreign")) == [(1,), (2,)]
    for statement in ["SELECT * FROM lake.foreign", "ALTER TABLE lake.foreign DROP COLUMN `a``b`"]:
        with pytest.raises(PySparkException, match="RENAME COLUMN `a``b` TO"):
            lake.sql(statement)
    lake.sql("ALTER TABLE lake.foreign RENAME COLUMN `a``b` TO b")
    lake.sql("INSERT INTO lake.foreign VALUES (5, 6)")
    assert sorted(lake.sql("SELECT * FROM lake.foreign")) == [(1, 3), (2, 4), (5, 6)]


# -- rows -----------------------------------------------------------------------------------------------------------


def test_rows_of_every_type_are_read_back(lake: Lake) -> None:
    lake.sql(DEFINITION)
    instant = "timestamp'2013-03-10 07:30:01.123456Z', timestamp_ntz'2013-03-10 02:30:01.123456'"  # New York's gap
    lake.sql(
        f"INSERT INTO lake.t SELECT id, concat('naïve ✈ ', id), 1.25, date'1969-12-31', {instant}, array(id, 0.5, -1), "
        "array('a', null), named_struct('x', id, 'shares', array(1.5, null)), map('a', id) FROM range(0, 100, 1, 3)"
    )
    lake.sql("INSERT INTO lake.t (id) VALUES (200)")
    assert lake.versions() == [(3, 101), (2, 100), (1, 0)]
    rows = lake.stored().to_table().sort_by("id").to_pylist()
    assert rows[7] == {
        "id": 7,
        "name": "naïve ✈ 7",
        "price": Decimal("1.2500"),
        "day": date(1969, 12, 31),
        "instant": datetime.fromisoformat("2013-03-10T07:30:01.123456+00:00"),
        "clock": datetime(2013, 3, 10, 2, 30, 1, 123456),
        "embedding": [7.0, 0.5, -1.0],
        "tags": ["a", None],
        "place": {"x": 7, "shares": [1.5, None]},
        "counts": [("a", 7)],
    }
    assert rows[100] == dict.fromkeys(STORED.names) | {"id": 200}
    seen = lake.spark.table("lake.t").sort("id").toArrow()
    assert seen.num_rows == 101
    assert [row | {"instant": None} for row in seen.to_pylist()] == [row | {"instant": None} for row in rows]
    assert lake.sql("SELECT count(*) FROM lake.t WHERE instant = timestamp'2013-03-10 07:30:01.123456Z'") == [(100,)]

    joined = (
        "SELECT a.id, b.name FROM lake.t a JOIN lake.t b ON a.embedding = b.embedding AND a.id = b.id WHERE a.id < 2"
    )
    assert sorted(lake.sql(joined)) == [(0, "naïve ✈ 0"), (1, "naïve ✈ 1")]
    for statement, error in [
        ("INSERT INTO lake.t (id) VALUES (null)", "(?i)null"),
        ("INSERT INTO lake.t (id, embedding) VALUES (1, array(1f))", "'embedding' holds vectors of 3 values"),
        ("INSERT INTO lake.t SELECT 1", "(?i)not enough data columns"),
    ]:
        with pytest.raises(PySparkException, match=error):
            lake.sql(statement)
    assert lake.versions()[0] == (3, 101)


def test_overwrite_is_one_version_and_failing_query_changes_nothing(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT id FROM range(10)")
    lake.sql("INSERT OVERWRITE lake.t SELECT id + 1 FROM lake.t WHERE id < 3")  # reads what it replaces
    assert sorted(lake.sql("SELECT * FROM lake.t")) == [(1,), (2,), (3,)]
    assert lake.versions() == [(2, 3), (1, 10)]
    with pytest.raises(PySparkException, match="boom"):
        lake.sql("INSERT OVERWRITE lake.t SELECT if(id = 8, raise_error('boom'), id) FROM range(0, 9, 1, 2)")
    assert lake.versions() == [(2, 3), (1, 10)]
    lake.sql("TRUNCATE TABLE lake.t")
    assert lake.versions()[0] == (3, 0)


def test_create_table_as_select_is_atomic(lake: Lake) -> None:
    # One task: on a slow machine, a task that Spark stops writes its file after the statement has removed the others.
    failing = "SELECT if(id = 8, raise_error('boom'), id) id FROM range(0, 9, 1, 1)"
    with pytest.raises(PySparkException, match="boom"):
        lake.sql(f"CREATE TABLE lake.t AS {failing}")
    assert lake.catalog.list_tables() == []
    assert lake.sql("SHOW TABLES IN lake") == []

    lake.sql("CREATE TABLE lake.t TBLPROPERTIES ('k' = 'v', 'vector.v' = '1') AS SELECT id, array(1f) v FROM range(5)")
    assert lake.versions() == [(1, 5)]
    assert lake.stored().schema.field("v").type == pa.list_(pa.float32(), 1)
    with pytest.raises(PySparkException, match="boom"):
        lake.sql(f"CREATE OR REPLACE TABLE lake.t AS {failing}")
    assert lake.versions() == [(1, 5)]
    assert lake.catalog.find_table("t").properties == {"k": "v"}

    lake.sql("CREATE OR REPLACE TABLE lake.t TBLPROPERTIES ('l' = 'w') AS SELECT id * 2 twice FROM lake.t")
    assert lake.versions() == [(2, 5), (1, 5)]
    assert sorted(lake.sql("SELECT twice FROM lake.t")) == [(0,), (2,), (4,), (6,), (8,)]
    assert lake.catalog.find_table("t").properties == {"l": "w"}
    lake.sql("REPLACE TABLE lake.t (a INT)")
    assert lake.versions()[0] == (3, 0)
    assert lake.stored().schema.names == ["a"]


def test_unknown_commit_raises_token_and_keeps_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = StagedManifest("file:///x", 1, "m", 3, False, "", "")
    token = lancekeep.CommitToken(staged)

    def lose(*_: object, **__: object) -> None:
        raise lancekeep.CommitUnknown("the reply was lost", token)

    monkeypatch.setattr(lake.catalog, "commit_fragments", lose)
    with pytest.raises(PySparkException, match="the reply was lost") as lost:
        lake.sql("CREATE TABLE lake.t AS SELECT 1 id")
    assert str(token) in str(lost.value)
    assert lake.catalog.list_tables() == ["t"]  # its version may yet turn up
    assert lake.sql("SHOW TABLES IN lake") == []

    def lose_for_certain(*_: object, **__: object) -> None:
        raise lancekeep.ConcurrentModification("others were faster")

    monkeypatch.setattr(lake.catalog, "commit_fragments", lose_for_certain)
    with pytest.raises(PySparkException, match="others were faster"):
        lake.sql("CREATE TABLE lake.u AS SELECT 1 id")
    assert lake.catalog.list_tables() == ["t"]


# -- what goes to the engine ----------------------------------------------------------------------------------------


def test_a_narrow_scan_of_a_wide_table_is_broadcast(lake: Lake) -> None:
    """The size that counts is that of the columns that are read."""
    numbers = np.random.default_rng(7).random(64 * 2000, np.float32)
    wide = pa.table({"id": range(2000), "v": pa.FixedSizeListArray.from_arrays(pa.array(numbers), 64)})
    for name in ("t", "u"):
        lake.catalog.write(name, wide)
    threshold = "spark.sql.autoBroadcastJoinThreshold"
    lake.spark.conf.set(threshold, "100000")  # a sixth of each table
    try:
        narrow = "SELECT a.id FROM lake.t a JOIN lake.u b ON a.id = b.id"
        assert "BroadcastHashJoin" in str(lake.sql(f"EXPLAIN {narrow}")[0][0])
        assert len(lake.sql(narrow)) == 2000
        assert "BroadcastHashJoin" not in str(lake.sql(f"EXPLAIN {narrow.replace('a.id FROM', 'a.v, b.v FROM')}")[0][0])
    finally:
        lake.spark.conf.unset(threshold)


def test_only_needed_columns_rows_and_files_are_read(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT id, id % 7 g, concat('n', id) name FROM range(0, 1000, 1, 4)")

    def plan(query: str) -> str:
        return str(lake.sql(f"EXPLAIN {query}")[0][0])

    few = plan("SELECT name FROM lake.t WHERE id < 4 LIMIT 2")
    assert "columns [name], filter (`id` IS NOT NULL) AND (`id` < 4), limit 2" in few
    assert "Filter (" not in plan("SELECT name FROM lake.t WHERE id < 4 AND g IN (1, 2)")
    assert "Filter (" in plan("SELECT name FROM lake.t WHERE upper(name) = 'N4'")
    assert "counted, filter (`g` IS NOT NULL) AND (`g` = 3)" in plan("SELECT count(*) FROM lake.t WHERE g = 3")
    assert "LocalTableScan" in plan("SELECT count(*) FROM lake.t")
    lake.sql("CREATE TABLE lake.small AS SELECT 3 g")
    assert "BroadcastHashJoin" in plan("SELECT name FROM lake.t JOIN lake.small USING (g)")
    for query, rows in [
        ("SELECT count(*) FROM lake.t", [(1000,)]),
        ("SELECT count(*), count(1) FROM lake.t WHERE g = 3", [(143, 143)]),
        ("SELECT count(*) FROM lake.t WHERE upper(name) = 'N4'", [(1,)]),
        ("SELECT count(*), max(id) FROM lake.t", [(1000, 999)]),
        ("SELECT 1 FROM lake.t WHERE g = 3 LIMIT 2", [(1,), (1,)]),
        ("SELECT count(*) FROM (SELECT 1 FROM lake.t LIMIT 600)", [(600,)]),
        ("SELECT count(*) FROM lake.t WHERE id IN (SELECT id + 1 FROM lake.t WHERE g = 0)", [(143,)]),
    ]:
        assert lake.sql(query) == rows, query


NAN = struct.unpack("<d", b"\0\0\0\0\0\0\xf8\xff")[0]  # a negative one
CONDITIONS = """
    i8 = 1 | i8 < 300 | i8 BETWEEN -128 AND 0 | u64 > 5 | 1 < i8 | i8 <=> 1 | NOT (i8 <=> 1) | i8 <=> null | i8 = u64
    f > 0.05d | NOT (f > 0.05d) | f < 5d | NOT (f < 5d) | f = 0d | f <= 0d | f != 0.1d | f = double('NaN')
    d IN (1.23, -5) | d < 1.235 | s = "a'b" | s LIKE '%B' | s LIKE 'x%' | s LIKE '%''%' | s IN ('', null)
    NOT (s IN ('', 'x%')) | s >= 'A' AND s < 'b' | lower(s) = "a'b" | b > X'00' | day < date'2000-01-01'
    day > date'9000-01-01' | ts = timestamp'2013-03-10 07:30:01.123456Z' | ts < timestamp'1970-01-01 00:00:00Z'
    tn <= timestamp_ntz'1960-01-01 00:00:00' | flag | NOT flag | coalesce(flag, false) | st.x = 1 | st.x IS NULL
    st IS NULL | i8 = 1 OR (f > 0.05d AND s IS NOT NULL) | NOT (i8 = 1 AND flag) | NOT (f < 0.05d OR s = '')
"""


def test_parts_of_nested_columns_are_selected(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.n (id INT, st STRUCT<x: INT, y: STRING, deep: STRUCT<p: INT, q: INT>>, "
        "ar ARRAY<STRUCT<p: INT, q: INT>>, mp MAP<STRING, STRUCT<m: INT, n: INT>>)"
    )
    lake.sql(
        "INSERT INTO lake.n VALUES (1, named_struct('x', 1, 'y', 'a', 'deep', named_struct('p', 5, 'q', 6)), "
        "array(named_struct('p', 1, 'q', 2)), map('k', named_struct('m', 7, 'n', 8))), (2, null, null, null), "
        "(3, named_struct('x', null, 'y', 'b', 'deep', null), array(null, named_struct('p', 4, 'q', 5)), "
        "map('k', null))"
    )
    for selected, rows in [
        ("st.x", [(1,), (None,), (None,)]),
        ("sum(st.x), max(st.deep.q)", [(1, 6)]),
        ("ar[0].p, ar.q", [(1, [2]), (None, None), (None, [None, 5])]),
        ("mp['k'].m", [(7,), (None,), (None,)]),
        (
            "id, st IS NULL, st.deep IS NULL, st.y",
            [(1, False, False, "a"), (2, True, True, None), (3, False, True, "b")],
        ),
    ]:
        assert lake.sql(f"SELECT {selected} FROM lake.n") == rows, selected
    assert lake.sql("SELECT id FROM lake.n WHERE st IS NOT NULL AND st.x IS NULL") == [(3,)]
    assert lake.sql("SELECT st.deep.p FROM lake.n WHERE st.y = 'a' AND id = 1") == [(5,)]


def test_create_table_as_select_keeps_vectors(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (id INT, v ARRAY<FLOAT>) TBLPROPERTIES ('vector.v' = '2')")
    lake.sql("INSERT INTO lake.t VALUES (1, array(1f, 2f)), (2, null)")
    lake.spark.table("lake.t").createOrReplaceTempView("seen")
    lake.sql("CREATE TABLE lake.plain AS SELECT * FROM lake.t")
    lake.sql("CREATE TABLE lake.joined AS SELECT b.v AS w, slice(b.v, 1, 1) part FROM seen a JOIN lake.t b USING (id)")
    lake.sql("CREATE TABLE lake.replaced AS SELECT 1 id")
    lake.sql("CREATE OR REPLACE TABLE lake.replaced AS SELECT DISTINCT id, v FROM lake.t")
    lake.spark.table("lake.t").writeTo("lake.written").create()
    ingest(lake.spark.table("lake.t"), lake.catalog, "ingested")
    vectors = pa.list_(pa.float32(), 2)
    for name in ("plain", "joined", "replaced", "written", "ingested"):
        stored = lake.stored(name)
        column = "w" if name == "joined" else "v"
        assert stored.schema.field(column).type == vectors, name
        assert sorted(stored.to_table()[column].to_pylist(), key=bool) == [None, [1, 2]]
    assert lake.stored("joined").to_table().to_pylist() == [
        {"w": [1, 2], "part": [1]},
        {"w": None, "part": None},
    ]
    with pytest.raises(PySparkException, match="'v' holds vectors of 3 values"):
        lake.sql("CREATE TABLE lake.other TBLPROPERTIES ('vector.v' = '3') AS SELECT v FROM lake.t")


def test_conditions_select_same_rows_in_lance_and_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def noted(predicate: object, dataset: object, metadata: pa.Schema) -> str | None:
        asked.append(translated(predicate, dataset, metadata))
        return asked[-1]

    monkeypatch.setattr(scan, "translated", noted)
    moment = datetime(2013, 3, 10, 7, 30, 1, 123456)
    rows = pa.table(
        {
            "n": range(5),
            "i8": pa.array([1, 2, None, -128, 127], pa.int8()),
            "u64": pa.array([1, 2, None, 0, 2**64 - 1], pa.uint64()),
            "f": [0.1, float("nan"), None, NAN, -0.0],
            "d": pa.array([Decimal("1.23"), Decimal(-5), None, Decimal(0), Decimal("99.99")], pa.decimal128(20, 2)),
            "s": ["a'b", "x%", None, "", "A'B"],
            "b": [b"\x00\xff", b"b", None, b"", b"\x00"],
            "day": [date(1969, 12, 31), date(2020, 1, 1), None, date(1, 1, 1), date(9999, 12, 31)],
            "ts": pa.array(
                [moment, None, datetime(1960, 1, 1), datetime(1970, 1, 1), datetime.max], pa.timestamp("us", "UTC")
            ),
            "tn": pa.array(
                [moment, None, datetime(1960, 1, 1), datetime.min, datetime(1970, 1, 1)], pa.timestamp("us")
            ),
            "flag": [True, False, None, True, True],
            "st": [{"x": 1}, {"x": 2}, None, {"x": None}, {"x": 5}],
        }
    )
    lake.catalog.write("t", rows)
    conditions = [one.strip() for line in CONDITIONS.strip().splitlines() for one in line.split(" | ")]
    flags = lake.spark.table("lake.t").selectExpr("n", *(f"{one} AS c{i}" for i, one in enumerate(conditions)))
    expected = [(i, row["n"]) for row in flags.collect() for i in range(len(conditions)) if row[f"c{i}"]]
    chosen = " UNION ALL ".join(f"SELECT {i} c, n FROM lake.t WHERE {one}" for i, one in enumerate(conditions))
    assert sorted(lake.sql(chosen)) == sorted(expected)
    assert asked.count(None) < 9, "most of it is left to the engine"


# -- deletes, and what is refused -----------------------------------------------------------------------------------


def test_delete_by_condition_is_one_version(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT id, if(id % 5 = 0, null, concat('n', id)) name FROM range(20)")
    lake.sql("DELETE FROM lake.t WHERE id IN (1, 2) OR (name IS NULL AND id > 9)")
    left = [0, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19]
    assert [row["id"] for row in lake.stored().to_table().sort_by("id").to_pylist()] == left
    lake.sql("DELETE FROM lake.t WHERE name LIKE 'n1%'")
    assert lake.versions() == [(3, 8), (2, 16), (1, 20)]
    lake.sql("DELETE FROM lake.t")
    assert lake.versions()[0] == (4, 0)


def test_insert_only_merge_adds_missing_rows(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT id FROM range(5)")
    lake.sql("MERGE INTO lake.t USING (SELECT id FROM range(3, 8)) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")
    assert sorted(lake.sql("SELECT id FROM lake.t")) == [(n,) for n in range(8)]
    assert lake.versions() == [(2, 8), (1, 5)]


def test_options_without_effect_are_refused(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT id FROM range(5)")
    lake.sql("INSERT INTO lake.t SELECT 9")
    spark = lake.spark
    attempts: list[Callable[[], object]] = [
        lambda: spark.read.option("colour", "red").table("lake.t").collect(),
        lambda: spark.read.option("colour", "red").table("lake.t").count(),
        lambda: spark.range(1).writeTo("lake.t").option("colour", "red").append(),
    ]
    for attempt in attempts:
        with pytest.raises(IllegalArgumentException, match="there is no option colour"):
            attempt()
    assert spark.read.option("versionAsOf", 1).table("lake.t").count() == 5
    assert lake.versions() == [(2, 6), (1, 5)]


# -- time -----------------------------------------------------------------------------------------------------------


def test_time_travel_by_version_tag_and_time(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT id FROM range(3)")
    lake.sql("INSERT INTO lake.t SELECT 10")
    lake.sql("ALTER TABLE lake.t ADD COLUMN later INT")
    lake.catalog.open("t").tags.create("first", 1)
    times = {entry.version: entry.timestamp for entry in lake.catalog.versions.history("t")}
    assert lake.sql("SELECT count(*) FROM lake.t VERSION AS OF 2") == [(4,)]
    assert sorted(lake.sql("SELECT * FROM lake.t VERSION AS OF 'first'")) == [(0,), (1,), (2,)]
    for version, rows in ((1, 3), (2, 4)):
        at = times[version].isoformat()
        assert lake.sql(f"SELECT count(*) FROM lake.t TIMESTAMP AS OF '{at}'") == [(rows,)]
    early = (times[1] - timedelta(seconds=1)).isoformat()
    for moment, error in [
        ("VERSION AS OF 9", "has no version 9"),
        ("VERSION AS OF 'none'", "none"),
        (f"TIMESTAMP AS OF '{early}'", "has no version that was the latest at"),
    ]:
        with pytest.raises(PySparkException, match=error):
            lake.sql(f"SELECT * FROM lake.t {moment}")


def test_stream_between_two_tables(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT id FROM range(3)")
    lake.sql("CREATE TABLE lake.sink (id BIGINT)")
    stream = lake.spark.readStream.option("max_versions_per_trigger", 1).table("lake.t").writeStream
    stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).toTable("lake.sink").awaitTermination()
    assert lake.stored("sink").to_table().sort_by("id")["id"].to_pylist() == [0, 1, 2]


# -- sessions, threads and what stays behind ------------------------------------------------------------------------


def test_concurrent_threads_leave_no_query_objects(lake: Lake) -> None:
    kept = lake.spark.sparkContext._gateway.gateway_property.pool  # type: ignore[union-attr]  # a classic session has one
    before = set(kept.dict)  # those of other tests, which Spark may hold for longer
    lake.sql("CREATE TABLE lake.t (id BIGINT)")
    begin = threading.Barrier(4)

    def work(worker: int) -> None:
        begin.wait()
        for turn in range(2):
            lake.sql(f"INSERT INTO lake.t VALUES ({worker * 10 + turn})")
            assert lake.sql(f"SELECT count(*) FROM lake.t WHERE id = {worker * 10 + turn}") == [(1,)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert lake.versions() == [(version, version - 1) for version in range(9, 0, -1)]

    jvm: Any = lake.spark._jvm
    for _ in range(50):
        gc.collect()
        jvm.System.gc()
        jvm.System.runFinalization()
        added = [held for key, held in kept.dict.copy().items() if key not in before]
        left = {type(held).__name__ for held in added if type(held).__module__.startswith("lancekeep.")}
        if left <= {"SqlCatalog"}:
            break
    assert left <= {"SqlCatalog"}


def test_each_session_needs_its_own_install(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT 1 id")
    other = lake.spark.newSession()
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        other.sql("SELECT * FROM lake.t")
    with lancekeep.spark.install(other, "elsewhere", str(tmp_path / "other")):
        other.sql("CREATE TABLE elsewhere.u AS SELECT 2 id")
        assert other.sql("SELECT * FROM elsewhere.u").collect() == [(2,)]
    for name in ("spark_catalog", "a b", ""):
        with pytest.raises(lancekeep.InvalidInput, match="cannot be the name of a catalog"):
            lancekeep.spark.install(other, name, str(tmp_path / "other"))


def test_new_session_accepts_data_source_that_only_another_session_has(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DefaultSource, "name", classmethod(lambda _: "unlisted"))  # as if editable
    for session in (lake.spark, lake.spark.newSession()):
        lancekeep.spark.install(session, "elsewhere", str(tmp_path / "other")).close()
        assert session.sql("SHOW NAMESPACES IN elsewhere").collect() == []


def test_foreach_batch_reads_and_writes_by_name(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT 1 id")
    lake.sql("CREATE TABLE lake.u AS SELECT 1 id, 'one' name")

    def enrich(batch: DataFrame, _: int) -> None:
        batch.createOrReplaceTempView("batch")
        batch.sparkSession.sql("CREATE TABLE lake.joined AS SELECT name FROM batch JOIN lake.u USING (id)")

    stream = lake.spark.readStream.table("lake.t").writeStream.foreachBatch(enrich)
    stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert lake.stored("joined").to_table()["name"].to_pylist() == ["one"]


def test_unsupported_spark_falls_back_to_data_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.2.1")
    with (
        pytest.warns(lancekeep.spark.NoSqlCatalogWarning, match=r"Spark 4\.2\.1.*format\('lancekeep'\)"),
        lancekeep.spark.install(spark, "older", str(tmp_path / "lake")) as catalog,
    ):
        catalog.write("t", pa.table({"id": [1, 2]}))
    assert spark.read.format("lancekeep").option("root", str(tmp_path / "lake")).load("t").count() == 2
    assert "older" not in [row.catalog for row in spark.sql("SHOW CATALOGS").collect()]
