"""Views of Spark SQL that are kept in a catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

import lancekeep
import lancekeep.spark
from lancekeep.application.catalog import directory_of
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import SQL_VIEW
from lancekeep.testing.concurrency import race

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
]

Run = Callable[[str], list[Row]]


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, str]:
    return str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db"


@pytest.fixture
def catalog(spark: SparkSession, place: tuple[str, str]) -> Iterator[lancekeep.Catalog]:
    with lancekeep.spark.install(spark, "views", place[0], commit_store=place[1]) as catalog:
        catalog.create_namespace("ns")
        catalog.write("ns.t", pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
        yield catalog


@pytest.fixture
def run(spark: SparkSession, catalog: lancekeep.Catalog) -> Run:
    return lambda statement: spark.sql(statement).collect()


def test_view_is_created_read_replaced_and_dropped(run: Run) -> None:
    run("CREATE VIEW views.ns.v COMMENT 'late' AS SELECT id, upper(name) AS shout FROM views.ns.t WHERE id > 1")
    assert run("SELECT shout FROM views.ns.v ORDER BY id") == [("B",), ("C",)]
    run("INSERT INTO views.ns.t VALUES (4, 'd')")
    assert run("SELECT max(shout) FROM views.ns.v") == [("D",)]
    run("CREATE VIEW IF NOT EXISTS views.ns.v AS SELECT 1")
    with pytest.raises(PySparkException, match="already exists"):
        run("CREATE VIEW views.ns.v AS SELECT 1")
    run("CREATE OR REPLACE VIEW views.ns.v (first COMMENT 'key', second) AS SELECT id, name FROM views.ns.t")
    assert run("SELECT second FROM views.ns.v WHERE first = 2") == [("b",)]
    assert [row.comment for row in run("DESCRIBE views.ns.v")] == ["key", None]
    run("ALTER VIEW views.ns.v SET TBLPROPERTIES ('owner_of' = 'this')")
    assert ("owner_of", "this") in run("SHOW TBLPROPERTIES views.ns.v")
    run("ALTER VIEW views.ns.v AS SELECT count(*) AS n FROM views.ns.t")
    run("ALTER VIEW views.ns.v RENAME TO views.ns.w")
    assert [row.viewName for row in run("SHOW VIEWS IN views.ns")] == ["w"]
    assert [row.tableName for row in run("SHOW TABLES IN views.ns")] == ["t", "w"]
    assert run("SELECT n FROM views.ns.w") == [(4,)]
    run("DROP VIEW views.ns.w")
    run("DROP VIEW IF EXISTS views.ns.w")
    with pytest.raises(PySparkException, match="VIEW_NOT_FOUND"):
        run("DROP VIEW views.ns.w")


def test_names_of_views_and_tables_exclude_each_other(run: Run, catalog: lancekeep.Catalog) -> None:
    run("CREATE VIEW views.ns.v AS SELECT 1 AS one")
    for statement, message in (
        ("CREATE TABLE views.ns.v (id BIGINT)", "taken by a view"),
        ("CREATE TABLE views.ns.v AS SELECT 1 AS id", "taken by a view"),
        ("ALTER TABLE views.ns.t RENAME TO views.ns.v", "taken by a view"),
        ("CREATE VIEW views.ns.t AS SELECT 1 AS one", "already exists"),
        ("ALTER VIEW views.ns.v RENAME TO views.ns.t", "already exists|taken by a table"),
        ("DROP TABLE views.ns.v", "requires a TABLE"),
        ("DROP VIEW views.ns.t", "requires a VIEW"),
        ("INSERT INTO views.ns.v VALUES (1)", "cannot be found"),
        ("CREATE VIEW views.v AS SELECT 1 AS one", "cannot read a view of the root"),
        ("ALTER NAMESPACE views.ns SET PROPERTIES ('lancekeep.sql_view.x' = '{}')", "catalog's own"),
        ("DROP NAMESPACE views.ns", "not empty|SCHEMA_NOT_EMPTY"),
    ):
        with pytest.raises(PySparkException, match=message):
            run(statement)
    catalog.drop_table("ns.t")
    with pytest.raises(lancekeep.NamespaceNotEmpty, match="views"):
        catalog.drop_namespace("ns")
    assert run("SELECT one FROM views.ns.v") == [(1,)]
    catalog.write("ns.v", pa.table({"id": [7]}))  # by another client: the table hides the view
    assert run("SELECT * FROM views.ns.v") == [(7,)]
    run("DROP NAMESPACE views.ns CASCADE")
    assert not catalog.namespace_exists("ns")


def test_view_means_the_same_where_the_catalog_has_another_name(
    spark: SparkSession, run: Run, place: tuple[str, str]
) -> None:
    run("USE views.ns")
    try:
        run("CREATE VIEW relative AS SELECT id FROM t")
    finally:
        run("USE spark_catalog.default")
    with lancekeep.spark.install(spark, "elsewhere", place[0], commit_store=place[1]):
        assert [row.id for row in run("SELECT id FROM elsewhere.ns.relative ORDER BY id")] == [1, 2, 3]


def test_one_of_racing_creators_of_a_view_wins(place: tuple[str, str], catalog: lancekeep.Catalog) -> None:
    name = ObjectId.of("ns.v")

    def create(number: int) -> int | None:
        with lancekeep.connect(place[0], commit_store=place[1]) as mine:
            try:
                directory_of(mine).sql_views.create(name, f'{{"number": {number}}}', replaces=False)
            except lancekeep.ViewAlreadyExists:
                return None
            return number

    [winner] = [number for number in race(4, create) if number is not None]
    assert directory_of(catalog).sql_views.definition(name) == f'{{"number": {winner}}}'
    assert directory_of(catalog).sql_views.names(name.parent) == ["v"]


def test_unreadable_definition_is_named(run: Run, catalog: lancekeep.Catalog) -> None:
    name = ObjectId.of("ns.v")
    for definition in ("no json", "{}", '{"query": 1, "schema": []}'):
        directory_of(catalog).sql_views.create(name, definition, replaces=True)
        with pytest.raises(PySparkException, match=r"the definition of the view views\.ns\.v is not readable"):
            run("SELECT * FROM views.ns.v")
    assert SQL_VIEW + "v" in catalog.describe_namespace("ns").properties
    run("DROP VIEW views.ns.v")
    assert SQL_VIEW + "v" not in catalog.describe_namespace("ns").properties


def test_catalog_without_properties_refuses_views(spark: SparkSession, tmp_path: Path) -> None:
    with lancekeep.spark.install(spark, "flat", str(tmp_path / "flat"), mode="v1") as catalog:
        catalog.write("t", pa.table({"id": [1]}))
        with pytest.raises(PySparkException, match=r"V1 directory|root"):
            spark.sql("CREATE VIEW flat.v AS SELECT 1 AS one")
        assert [row.tableName for row in spark.sql("SHOW TABLES IN flat").collect()] == ["t"]
