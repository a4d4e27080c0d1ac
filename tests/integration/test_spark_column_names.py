"""Every name of a column that a catalog accepts can be read, filtered and written everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lancekeep
import lancekeep.spark
from lancekeep.application.catalog import directory_of
from lancekeep.domain.column_names import plain_path, quoted, unquoted
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.row_rules import CONSTRAINT
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.jobs import backfill, index, upsert
from lancekeep.ports.table_structure import ColumnChange, NewIndex

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

KEY, TEXT, STRUCT = "the key-0", "a'b\"c[0] É", "sel ect"
DOT, TICK = "x.y", "x`y"
ROWS = pa.table(
    {
        KEY: [1, 2, 3, 4],
        TEXT: ["a", "b", "c", "d"],
        STRUCT: pa.array([{DOT: n, TICK: str(n)} for n in (1, 2, 3, 4)], pa.struct([(DOT, "int64"), (TICK, "string")])),
    }
)
TABLE = ObjectId.of("t")
UNREADABLE = ("a`b", "`", "", "a.b")


@attrs.frozen
class Lake:
    spark: SparkSession
    catalog: lancekeep.Catalog

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        names = {"k": quoted(KEY), "t": quoted(TEXT), "d": quoted(STRUCT, DOT), "b": quoted(STRUCT, TICK)}
        return [tuple(row) for row in self.spark.sql(statement.format(**names)).collect()]

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows as plain pylance reads them."""
        found = lance.dataset(self.catalog.describe_table("t").uri).to_table().to_pylist()
        return sorted((row[KEY], row[TEXT], row[STRUCT][DOT], row[STRUCT][TICK]) for row in found)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    store = f"sqlite://{tmp_path}/commits.db"
    with lancekeep.spark.install(spark, "lake", str(tmp_path / "lake"), commit_store=store) as catalog:
        catalog.write("t", ROWS)
        yield Lake(spark, catalog)


def test_sql_reads_filters_and_writes_every_column(lake: Lake) -> None:
    for condition in ("{k} = 2", "{t} = 'b'", "{d} = 2", "{b} = '2'", "{d} + 1 = 3"):
        assert lake.sql(f"SELECT {{k}}, {{d}}, {{b}} FROM lake.t WHERE {condition}") == [(2, 2, "2")]
    [[plan]] = lake.sql("EXPLAIN SELECT {k} FROM lake.t WHERE {d} = 2 AND {b} = '2'")
    assert f"{quoted(STRUCT, DOT)} = 2" in plan  # selected next to the rows
    assert f"{quoted(STRUCT, TICK)} = '2'" in plan
    assert lake.sql("SELECT max({k}), min({t}), max({d}), count({b}) FROM lake.t") == [(4, "a", 4, 4)]
    assert lake.sql("SELECT {k} FROM lake.t ORDER BY {t} DESC LIMIT 2") == [(4,), (3,)]
    lake.sql("UPDATE lake.t SET {d} = {d} + 10, {t} = 'u' WHERE {b} = '2'")
    lake.sql("DELETE FROM lake.t WHERE {b} = '3'")
    lake.sql("DELETE FROM lake.t WHERE {d} + 0 = 4")
    lake.sql(
        "MERGE INTO lake.t USING (SELECT 1L AS {k}, 'm' AS {t}) s ON lake.t.{k} = s.{k} "
        "WHEN MATCHED THEN UPDATE SET {t} = s.{t}"
    )
    lake.sql("INSERT INTO lake.t SELECT {k} + 10, {t}, " + quoted(STRUCT) + " FROM lake.t WHERE {k} = 1")
    assert lake.rows() == [(1, "m", 1, "1"), (2, "u", 12, "2"), (11, "m", 1, "1")]


def test_sql_alters_every_column(lake: Lake) -> None:
    lake.sql("ALTER TABLE lake.t ALTER COLUMN {d} COMMENT 'said'")
    lake.sql("ALTER TABLE lake.t RENAME COLUMN {d} TO `p.q`")
    lake.sql("ALTER TABLE lake.t DROP COLUMN {b}")
    lake.sql("ALTER TABLE lake.t RENAME COLUMN {t} TO `t[1]`")
    schema = lance.dataset(lake.catalog.describe_table("t").uri).schema
    assert schema.names == [KEY, "t[1]", STRUCT]
    [field] = schema.field(STRUCT).type
    assert (field.name, field.metadata[b"comment"]) == ("p.q", b"said")


def test_readers_and_streams_read_every_column(lake: Lake, tmp_path: Path) -> None:
    source = lake.spark.read.format("lancekeep").option("root", lake.catalog.root_uri).option("table", "t")
    source = source.option("commit_store", directory_of(lake.catalog).commits.rows.url)
    frame = source.load()
    found = frame.where(f"{quoted(STRUCT, DOT)} > 1 AND {quoted(STRUCT, TICK)} < '4'").select(quoted(KEY)).collect()
    assert sorted(row[0] for row in found) == [2, 3]
    lake.catalog.write("copy", ROWS.slice(0, 0))
    stream = lake.spark.readStream.table("lake.t").where(f"{quoted(TEXT)} > 'a'").writeStream
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    stream.toTable("lake.copy").awaitTermination()
    assert sorted(lake.catalog.open("copy").to_table()[KEY].to_pylist()) == [2, 3, 4]


def test_jobs_take_every_column(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    changes = pa.table({KEY: [4, 5], TEXT: ["new", "new"], STRUCT: ROWS[STRUCT].slice(0, 2)}).cast(ROWS.schema)
    upsert(lake.catalog, "t", changes, KEY)
    index(spark, lake.catalog, "t", TEXT, "BTREE")
    backfill(spark, lake.catalog, "t", "d-1", f"{quoted(STRUCT, DOT)} + 1")
    backfill(spark, lake.catalog, "t", "d-1", "0", where=f"{quoted(STRUCT, TICK)} = '1'")
    dataset = lance.dataset(lake.catalog.describe_table("t").uri)
    assert sorted(zip(dataset.to_table()[KEY].to_pylist(), dataset.to_table()["d-1"].to_pylist(), strict=True)) == [
        (1, 0),
        (2, 3),
        (3, 4),
        (4, 0),
        (5, 3),
    ]
    assert dataset.count_rows(f"{quoted(TEXT)} = 'new'") == 2
    lake.catalog.write("floats", pa.table({"a b": [0.0, 1.5], "n": [1, 2]}))
    upsert(lake.catalog, "floats", pa.table({"a b": [-0.0], "n": [7]}), "a b")
    assert lake.catalog.open("floats").count_rows("n = 7 AND `a b` = 0") == 1


def test_catalog_and_namespace_take_every_column(lake: Lake) -> None:
    catalog, namespace = lake.catalog, CatalogNamespace(lake.catalog)
    condition = f"{quoted(STRUCT, TICK)} = '2' AND {quoted(KEY)} < 3"
    catalog.data.update(TABLE, {TEXT: "'u'"}, condition)
    assert catalog.data.count(TABLE, f"{quoted(STRUCT, DOT)} = 2 AND {quoted(TEXT)} = 'u'") == 1
    catalog.data.delete(TABLE, f"{quoted(STRUCT, DOT)} = 3")
    catalog.structure.create_index(TABLE, NewIndex(KEY, "BTREE"), None)
    namespace.update_table(
        api.UpdateTableRequest(id=["t"], updates=[[TEXT, "'n'"]], predicate=f"{quoted(STRUCT, DOT)} = 4")
    )
    catalog.alter_table("t", {f"{CONSTRAINT}ticks": f"{quoted(STRUCT, TICK)} <> '9'"})
    assert lake.rows() == [(1, "a", 1, "1"), (2, "u", 2, "2"), (4, "n", 4, "4")]
    catalog.data.update(TABLE, {TEXT: "'ruled'"}, f"{quoted(KEY)} = 1")
    with pytest.raises(lancekeep.InvalidInput, match="constraint"):
        catalog.write("t", ROWS.slice(0, 1).set_column(2, STRUCT, pa.array([{DOT: 9, TICK: "9"}])), "append")
    assert lake.rows()[0] == (1, "ruled", 1, "1")


def _rename(lake: Lake, name: str) -> object:
    return lake.catalog.structure.alter_columns(TABLE, [ColumnChange(KEY, name=name)], None)


CREATIONS: list[Callable[[Lake, str], object]] = [
    lambda lake, name: lake.catalog.write("new", pa.table({name: [1]})),
    lambda lake, name: lake.catalog.write("t", pa.table({name: [1]}), "overwrite"),
    lambda lake, name: lake.catalog.data.insert(TABLE, pa.table({name: [1]}).to_reader(), overwrite=True),
    lambda lake, name: lake.catalog.structure.add_columns(TABLE, {name: "1"}, None),
    _rename,
    lambda lake, name: backfill(lake.spark, lake.catalog, "t", name, "1"),
    lambda lake, name: lake.spark.createDataFrame([(1,)], ["n"]).toDF(name).writeTo("lake.new").create(),
]


@pytest.mark.parametrize("create", CREATIONS)
def test_names_that_lance_cannot_read_are_refused(lake: Lake, create: Callable[[Lake, str], object]) -> None:
    for name in UNREADABLE:
        with pytest.raises((lancekeep.InvalidInput, PySparkException), match="a column cannot have the name"):
            create(lake, name)
    assert lake.catalog.list_tables("") == ["t"]
    assert lake.catalog.open("t").version == 1


def test_paths_are_quoted_and_read_again() -> None:
    assert quoted("a`b", "c.d") == "`a``b`.`c.d`"
    assert [unquoted(quoted(name)) for name in (KEY, TICK, "`", "``")] == [KEY, TICK, "`", "``"]
    assert plain_path(["a", "b.c", "d`e", "f g"]) == "a.`b.c`.`d``e`.f g"
