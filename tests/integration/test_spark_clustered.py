"""``CLUSTER BY`` in Spark SQL: kept as a property, shown, and used by compactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lancekeep
import lancekeep.spark
from lancekeep.domain.manifest_entry import CLUSTER_BY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]


def test_compaction_sorts_the_columns_of_the_clause(spark: SparkSession, tmp_path: Path) -> None:
    with lancekeep.spark.install(spark, "sorted", str(tmp_path / "lake")) as catalog:

        def sql(statement: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in spark.sql(statement).collect()]

        def stored() -> list[list[Any]]:
            fragments = catalog.open("t").get_fragments()
            return [list(zip(*fragment.to_table().to_pydict().values(), strict=True)) for fragment in fragments]

        sql("CREATE TABLE sorted.t (id INT, land STRING) CLUSTER BY (land, id) TBLPROPERTIES ('k' = 'v')")
        assert catalog.find_table("t").properties == {CLUSTER_BY: "land, id", "k": "v"}
        described = sql("DESCRIBE sorted.t")
        assert {("land", "string", None), ("id", "int", None)} <= set(described[described.index(_HEAD) :])
        [(statement,)] = sql("SHOW CREATE TABLE sorted.t")
        assert "PARTITIONED BY (cluster_by(land, id))" in statement
        assert CLUSTER_BY not in statement
        sql("DROP TABLE sorted.t")
        sql(statement)
        assert catalog.find_table("t").properties == {CLUSTER_BY: "land, id", "k": "v"}
        for values in ("(3, 'NL'), (2, 'US')", "(1, 'US'), (4, 'DE')"):
            sql(f"INSERT INTO sorted.t VALUES {values}")
        sql("CALL sorted.system.compact('t')")
        assert stored() == [[(4, "DE"), (3, "NL"), (1, "US"), (2, "US")]]
        assert sql("CALL sorted.system.compact('t')")[0][2] == 0

        for column in ("land", "id"):
            with pytest.raises(PySparkException, match=f"needs the column {column}; drop that first by ALTER TABLE"):
                sql(f"ALTER TABLE sorted.t DROP COLUMN {column}")
        sql("ALTER TABLE sorted.t CLUSTER BY (id)")
        sql("INSERT INTO sorted.t VALUES (0, 'ZZ')")
        sql("CALL sorted.system.optimize('t')")
        assert stored() == [[(0, "ZZ"), (1, "US"), (2, "US"), (3, "NL"), (4, "DE")]]
        for named, shown in (("gone, id, tags", ["id"]), ("gone", []), ("ID", [])):
            catalog.alter_table("t", {CLUSTER_BY: named})  # pylance can drop a column, too
            described = sql("DESCRIBE sorted.t")
            assert (_HEAD in described) == bool(shown)
            assert described.count(("id", "int", None)) == 1 + len(shown)
            assert (f"cluster_by({', '.join(shown)})" in sql("SHOW CREATE TABLE sorted.t")[0][0]) == bool(shown)
        sql("ALTER TABLE sorted.t CLUSTER BY NONE")
        assert catalog.find_table("t").properties == {"k": "v"}
        assert _HEAD not in sql("DESCRIBE sorted.t")
        sql("INSERT INTO sorted.t VALUES (-1, 'AA')")
        sql("CALL sorted.system.compact('t')")
        assert stored()[0][-1] == (-1, "AA")

        sql("CREATE OR REPLACE TABLE sorted.t CLUSTER BY (id) AS SELECT 1 AS id, 'x' AS land")
        assert catalog.find_table("t").properties == {CLUSTER_BY: "id"}
        catalog.alter_namespace("", {"lancekeep.stable_row_ids": "true"})
        for name in ("CREATE TABLE sorted.u (id INT)", "CREATE TABLE sorted.v CLUSTER BY (id) AS SELECT 1 AS id"):
            with pytest.raises(PySparkException, match="stable row ids"):
                sql(name if "SELECT" in name else f"{name} CLUSTER BY (id)")
        sql("CREATE TABLE sorted.w (id INT)")
        with pytest.raises(PySparkException, match="stable row ids"):
            sql("ALTER TABLE sorted.w CLUSTER BY (id)")
        assert catalog.list_tables("") == ["t", "w"]


_HEAD = ("# Clustering Information", "", "")
