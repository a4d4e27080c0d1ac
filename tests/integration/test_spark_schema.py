"""Schemas that evolve, defaults, CHECK constraints and generated columns, through Spark SQL."""

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
from lancekeep.application.rows.row_rules import check_rows
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.row_rules import rules_of

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
    options: dict[str, str]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def refuses(self, statement: str, error: str) -> None:
        with pytest.raises(PySparkException, match=error):
            self.sql(statement)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as plain pylance reads them."""
        found: list[dict[str, Any]] = lance.dataset(self.catalog.describe_table("t").uri).to_table().to_pylist()
        return sorted(found, key=lambda row: (row["id"] is None, row["id"]))

    def append(self, query: str, **options: str) -> None:
        writer = self.spark.sql(query).write.format("lancekeep").options(**self.options, **options)
        writer.mode("append").save("t")


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    options = {"root": str(tmp_path / "lake"), "commit_store": f"sqlite://{tmp_path}/commits.db"}
    with lancekeep.spark.install(spark, "lake", options["root"], commit_store=options["commit_store"]) as catalog:
        yield Lake(spark, catalog, options)


def test_fields_of_structs_are_added_renamed_and_dropped(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT 1 id, named_struct('a', 1, 'deep', named_struct('p', 2)) st, array(1) l")
    lake.sql("ALTER TABLE lake.t ADD COLUMNS (st.x INT, st.deep.y STRING, z DOUBLE)")
    lake.sql("ALTER TABLE lake.t RENAME COLUMN st.x TO w")
    lake.sql("ALTER TABLE lake.t DROP COLUMN st.a")
    lake.sql("INSERT INTO lake.t SELECT 2, named_struct('deep', named_struct('p', 3, 'y', 'q'), 'w', 7), null, 1.5")
    before = lake.catalog.versions.history("t")
    lake.refuses("ALTER TABLE lake.t ADD COLUMN st.v INT FIRST", "Lance adds columns and fields as the last")
    lake.refuses("ALTER TABLE lake.t ADD COLUMN st.v INT AFTER w", "Lance adds columns and fields as the last")
    lake.refuses("ALTER TABLE lake.t ALTER COLUMN z FIRST", "moving a column")
    lake.refuses("ALTER TABLE lake.t ADD COLUMN l.element.v INT", "INVALID_FIELD_NAME|Lance adds fields to")
    assert lake.catalog.versions.history("t") == before
    assert lake.rows() == [
        {"id": 1, "st": {"deep": {"p": 2, "y": None}, "w": None}, "l": [1], "z": None},
        {"id": 2, "st": {"deep": {"p": 3, "y": "q"}, "w": 7}, "l": None, "z": 1.5},
    ]


def test_fields_are_refused_where_the_file_format_lacks_them(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TABLE lake.first (id INT)")  # the catalog then remembers its commit store
    old = pa.table({"id": [1], "st": [{"a": 1}]})
    lance.write_dataset(old, tmp_path / "lake" / "t.lance", data_storage_version="2.1")
    lake.catalog.register_table("t", "t.lance")
    lake.refuses("ALTER TABLE lake.t ADD COLUMN st.x INT", "the table has files of the format 2.1")
    with pytest.raises(PySparkException, match=r"the table has files of the format 2\.1"):
        lake.append("SELECT 2L id, named_struct('a', 1L, 'b', 2) st", mergeSchema="true")
    assert lake.rows() == old.to_pylist()


def test_writes_merge_their_columns_into_the_table(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t AS SELECT 1 id, named_struct('a', 1) st")
    lake.sql("INSERT WITH SCHEMA EVOLUTION INTO lake.t BY NAME SELECT 'x' name, 2 id")
    lake.append("SELECT 3 id, named_struct('a', 4, 'b', 2.5d) st, 7 extra", mergeSchema="true")
    lake.sql(
        "MERGE WITH SCHEMA EVOLUTION INTO lake.t USING (SELECT 1 id, 'm' merged) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET *"
    )
    before = lake.catalog.versions.history("t")
    with pytest.raises(PySparkException, match="'other' is not a column of the table"):
        lake.append("SELECT 4 id, 'y' other")
    with pytest.raises(PySparkException, match="'id' is string, the table has int32"):
        lake.append("SELECT 'y' id, 'y' other", mergeSchema="true")
    assert lake.catalog.versions.history("t") == before
    nothing = {"name": None, "extra": None, "merged": None}
    assert lake.rows() == [
        {**nothing, "id": 1, "st": {"a": 1, "b": None}, "merged": "m"},
        {**nothing, "id": 2, "st": None, "name": "x"},
        {**nothing, "id": 3, "st": {"a": 4, "b": 2.5}, "extra": 7},
    ]


def test_defaults_fill_the_columns_that_a_statement_leaves_out(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (id INT, a STRING DEFAULT 'new', v ARRAY<FLOAT>) TBLPROPERTIES ('vector.v' = '2')")
    lake.sql("INSERT INTO lake.t (id) VALUES (1)")
    lake.sql("ALTER TABLE lake.t ADD COLUMN d DECIMAL(4,1) DEFAULT 2 + 1")
    lake.sql("ALTER TABLE lake.t ALTER COLUMN v SET DEFAULT array(1f, 2f)")
    lake.sql("ALTER TABLE lake.t ALTER COLUMN d SET DEFAULT 4")
    lake.sql("INSERT INTO lake.t (id) VALUES (2)")
    lake.sql("INSERT INTO lake.t VALUES (3, DEFAULT, NULL, 9)")
    lake.sql("UPDATE lake.t SET d = DEFAULT WHERE id = 3")
    lake.sql("MERGE INTO lake.t USING (SELECT 4 id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)")
    lake.sql("ALTER TABLE lake.t ALTER COLUMN d DROP DEFAULT")
    lake.sql("INSERT INTO lake.t (id) VALUES (5)")
    lake.refuses("ALTER TABLE lake.t DROP COLUMN a", "the property default.a needs the column a; drop that first")
    found = [(row["id"], row["a"], row["v"], None if row["d"] is None else float(row["d"])) for row in lake.rows()]
    vector = [1.0, 2.0]
    assert found == [
        (1, "new", None, 3.0),
        (2, "new", vector, 4.0),
        (3, "new", None, 4.0),
        (4, "new", vector, 4.0),
        (5, "new", vector, None),
    ]
    ((again,),) = lake.sql("SHOW CREATE TABLE lake.t")
    lake.sql("DROP TABLE lake.t")
    lake.sql(again)
    lake.sql("INSERT INTO lake.t (id) VALUES (1)")
    assert lake.rows() == [{"id": 1, "a": "new", "v": vector, "d": None}]


def test_fields_keep_their_comments(lake: Lake) -> None:
    types = "s STRUCT<a: INT COMMENT 'one', t: STRUCT<b: INT COMMENT 'two'>>, l ARRAY<STRUCT<c: INT COMMENT 'three'>>"
    lake.sql(f"CREATE TABLE lake.t (id INT, {types}, m MAP<INT, STRUCT<d: INT COMMENT 'four'>>)")
    lake.sql("INSERT INTO lake.t SELECT 1, struct(2, struct(3)), array(struct(4)), map(5, struct(6))")
    lake.sql("ALTER TABLE lake.t ADD COLUMN s.e INT COMMENT 'five'")
    lake.sql("ALTER TABLE lake.t ALTER COLUMN l.element.c COMMENT 'six'")
    ((shown,),) = lake.sql("SHOW CREATE TABLE lake.t")
    comments = re.findall("COMMENT '(.*?)'", shown)
    assert comments == ["one", "two", "five", "six", "four"]
    stored = lance.dataset(lake.catalog.describe_table("t").uri).schema
    assert stored.field("m").type.item_type.field("d").metadata == {b"comment": b"four"}
    lake.sql("DROP TABLE lake.t")
    lake.sql(shown)
    again = lance.dataset(lake.catalog.describe_table("t").uri).schema
    assert again.equals(stored, check_metadata=True)


def test_constraints_and_generated_columns_hold_for_each_statement(lake: Lake) -> None:
    """`test_row_rules` shows the writers outside of SQL."""
    lake.sql("CREATE TABLE lake.t (id INT, twice INT GENERATED ALWAYS AS (id * 2), CONSTRAINT low CHECK (id < 100))")
    lake.sql("INSERT INTO lake.t (id) VALUES (1), (NULL)")
    lake.sql("INSERT INTO lake.t VALUES (3, 6)")
    lake.refuses("INSERT INTO lake.t VALUES (3, 7)", "CHECK_CONSTRAINT_VIOLATION")
    lake.refuses("INSERT INTO lake.t (id) VALUES (100)", "CHECK_CONSTRAINT_VIOLATION")
    lake.refuses("UPDATE lake.t SET id = 5", "does not support UPDATE with generated columns")
    with pytest.raises(PySparkException, match="another value in the generated column 'twice'"):
        lake.append("SELECT 4 id, 9 twice")
    with pytest.raises(PySparkException, match="violate the constraint 'low'"):
        lake.append("SELECT 400 id, 800 twice")
    lake.refuses("ALTER TABLE lake.t ADD CONSTRAINT c CHECK (id < 3)", "violate|VIOLATION")
    lake.refuses("ALTER TABLE lake.t SET TBLPROPERTIES ('constraint.c' = 'id < 3')", "violate the constraint 'c'")
    lake.refuses("ALTER TABLE lake.t ADD CONSTRAINT c CHECK (sqrt(id) < 3)", "not every writer can evaluate it")
    lake.refuses("ALTER TABLE lake.t RENAME COLUMN id TO x", "needs the column id; drop that first")
    assert set(lake.catalog.find_table("t").properties) == {"constraint.low", "generated.twice"}
    lake.sql("ALTER TABLE lake.t UNSET TBLPROPERTIES ('generated.twice')")
    lake.sql("ALTER TABLE lake.t ADD CONSTRAINT positive CHECK (id > 0)")
    lake.refuses("UPDATE lake.t SET id = id - 3", "CHECK_CONSTRAINT_VIOLATION")
    lake.refuses(
        "MERGE INTO lake.t USING (SELECT 3 id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET id = -1",
        "CHECK_CONSTRAINT_VIOLATION",
    )
    lake.sql("ALTER TABLE lake.t DROP CONSTRAINT positive")
    lake.sql("UPDATE lake.t SET id = id - 3")
    assert [(row["id"], row["twice"]) for row in lake.rows()] == [(-2, 2), (0, 6), (None, None)]


CONDITIONS = [
    *(f"{left} {sign} {right}" for sign in ("=", "<>", "<", "<=", ">", ">=", "<=>") for left, right in [
        ("i", "2"), ("i", "s16"), ("i", "1.5"), ("d", "i"), ("d", "1.50"), ("f", "d"), ("f", "g"), ("g", "2"),
        ("t", "'b'"), ("dt", "DATE '2026-01-01'"), ("b", "TRUE"), ("i", "NULL"), ("st.x", "i"), ("ts", "ts2"),
    ]),
    "i BETWEEN 1 AND 2", "i NOT BETWEEN 1 AND 2", "i IN (1, 2)", "i NOT IN (1, NULL)", "t IN ('a', 'b')", "i IS NULL",
    "NOT i IS NOT NULL", "b AND i > 1", "b OR i > 1", "NOT b", "i + 1 > 2 AND i - 1 < s16 * 2",
    "f * 2.0 > 1 OR f + g = 0", "length(t) > 1", "(i = 1 OR i = 2) AND NOT (t = 'a')", "-1 < i", "i = -2147483648", "b",
]  # fmt: skip


def test_rules_are_evaluated_as_spark_evaluates_them(spark: SparkSession) -> None:
    values = [
        "(1, 2S, 1.50, 1.5f, 1.5d, 'a', DATE '2026-01-01', true, named_struct('x', 1), TIMESTAMP '2026-01-01', NULL)",
        "(2, -1S, 2.00, float('NaN'), double('NaN'), 'b', DATE '2025-01-01', false, named_struct('x', 5), "
        "TIMESTAMP '2026-01-01', TIMESTAMP '2026-01-01')",
        "(-2147483647, 0S, -0.01, -0.0f, 0.0d, 'naïve ✈', NULL, NULL, NULL, TIMESTAMP '2026-01-01', "
        "TIMESTAMP '2025-01-01')",
        "(3, 3S, 3.00, 1e30f, double('Infinity'), 'bb', DATE '2026-01-02', true, named_struct('x', NULL), NULL, NULL)",
        "(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    ]
    rows = f"VALUES {', '.join(values)} AS v(i, s16, d, f, g, t, dt, b, st, ts, ts2)"
    stored = spark.sql(f"SELECT * FROM {rows}").toArrow()
    wrong = []
    asked = ", ".join(f"({condition}) AS c{at}" for at, condition in enumerate(CONDITIONS))
    expected = spark.sql(f"SELECT {asked} FROM {rows}").toArrow()
    for at, condition in enumerate(CONDITIONS):
        rule = rules_of({"constraint.c": condition})
        for number, value in enumerate(expected[f"c{at}"].to_pylist()):
            passes = True
            try:
                check_rows(stored.slice(number, 1), rule)
            except InvalidInput as error:
                passes = "violate" not in str(error)
            if passes is (value is False):
                wrong.append((condition, stored.slice(number, 1).to_pylist(), value))
    assert wrong == []
