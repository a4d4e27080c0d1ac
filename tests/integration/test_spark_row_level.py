"""UPDATE, MERGE, DELETE and REPLACE WHERE through SQL: one version each, exact rows beside other writers.

`test_spark_oracle` compares the rows of generated statements with Spark's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import lancekeep
import lancekeep.spark
from lancekeep.entrypoints.spark.sql import row_level

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

MERGE = (
    "MERGE INTO lake.t USING {source} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name "
    "WHEN NOT MATCHED THEN INSERT *"
)


@attrs.frozen
class Lake:
    """A catalog that SQL knows as ``lake``."""

    spark: SparkSession
    catalog: lancekeep.Catalog

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows as plain pylance reads them."""
        table = lance.dataset(self.catalog.describe_table("t").uri).to_table(columns=["id", "name"])
        return sorted(zip(*(column.to_pylist() for column in table), strict=True))

    def operations(self) -> list[str]:
        return [entry.operation for entry in reversed(self.catalog.versions.history("t"))]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    store = f"sqlite://{tmp_path}/commits.db"
    with lancekeep.spark.install(spark, "lake", str(tmp_path / "lake"), commit_store=store) as catalog:
        lake = Lake(spark, catalog)
        lake.sql("CREATE TABLE lake.t AS SELECT id, concat('n', id) name FROM range(6)")
        lake.sql("INSERT INTO lake.t SELECT id, concat('n', id) name FROM range(6, 12)")
        yield lake


def named(*ids: int) -> list[tuple[int, str]]:
    return [(number, f"n{number}") for number in ids]


def test_each_statement_is_one_version(lake: Lake) -> None:
    lake.sql("UPDATE lake.t SET name = upper(name), id = id + 100 WHERE id % 6 = 0")
    lake.sql("DELETE FROM lake.t WHERE length(name) = 3 AND id < (SELECT max(id) - 50 FROM lake.t)")
    lake.sql(MERGE.format(source="(SELECT 1L id, 'x' name UNION ALL SELECT 77L, 'y')"))
    lake.sql("INSERT INTO lake.t REPLACE WHERE id >= 100 SELECT 200L, 'z'")
    assert lake.rows() == [(1, "x"), *named(2, 3, 4, 5, 7, 8, 9), (77, "y"), (200, "z")]
    assert lake.operations() == ["Overwrite", "Append", "Update", "Delete", "Update", "Update"]


def test_statement_without_changes_commits_no_version(lake: Lake) -> None:
    lake.sql("UPDATE lake.t SET name = 'x' WHERE id + 0 = 99")
    lake.sql("DELETE FROM lake.t WHERE name IN (SELECT name FROM lake.t WHERE id + 0 = 99)")
    lake.sql("MERGE INTO lake.t USING (SELECT 99L id) s ON t.id = s.id WHEN MATCHED THEN DELETE")
    assert lake.operations() == ["Overwrite", "Append"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lake.t SET name = name, id = id",
        "MERGE INTO lake.t USING (SELECT 1L id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = t.name",
    ],
)
def test_update_to_the_stored_values_keeps_rows(lake: Lake, statement: str) -> None:
    lake.sql(statement)
    assert lake.rows() == named(*range(12))
    assert lake.operations() == ["Overwrite", "Append", "Update"]


def test_merge_that_only_deletes_matches_takes_source_rows_twice(lake: Lake) -> None:
    lake.sql(
        "MERGE INTO lake.t USING (SELECT id % 9 AS id FROM range(8, 12)) s ON t.id = s.id WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 5 THEN UPDATE SET name = 'kept'"
    )
    lake.sql(
        "MERGE INTO lake.t USING (SELECT explode(array(3L, 3L, 40L, 40L)) AS id) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'new')"
    )
    assert lake.rows() == [*named(4), (5, "kept"), *named(6, 7, 9, 10, 11), (40, "new"), (40, "new")]


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        (MERGE.format(source="(SELECT 1L id, name FROM lake.t)"), PySparkException, "MERGE_CARDINALITY_VIOLATION"),
        ("UPDATE lake.t SET id = 'a' WHERE id + 0 = 1", AnalysisException, "CANNOT_SAFELY_CAST"),
        ("UPDATE lake.t SET name = raise_error('bad') WHERE id = 1", PySparkException, "bad"),
        (
            "INSERT INTO lake.t REPLACE WHERE upper(name) = 'N1' SELECT 1L, 'x'",
            PySparkException,
            "only Spark can evaluate",
        ),
    ],
)
def test_failed_statement_changes_nothing(lake: Lake, statement: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        lake.sql(statement)
    assert lake.rows() == named(*range(12))
    assert lake.operations() == ["Overwrite", "Append"]


def append(lake: Lake) -> None:
    lake.catalog.write("t", pa.table({"id": pa.array([50], pa.int64()), "name": ["new"]}), "append")


def delete(lake: Lake) -> None:
    lake.catalog.open("t").delete("id = 1")


@pytest.mark.parametrize(
    ("other", "statement", "passes"),
    [
        (append, "UPDATE lake.t SET name = 'x' WHERE id + 0 = 1", True),
        (append, "DELETE FROM lake.t WHERE upper(name) = 'N1'", True),
        (delete, "UPDATE lake.t SET name = 'x' WHERE id + 0 = 1", False),
        (delete, "DELETE FROM lake.t WHERE upper(name) = 'N2'", False),
        (append, "DELETE FROM lake.t WHERE id + 1 = (SELECT min(id) + 2 FROM lake.t)", False),
        (append, MERGE.format(source="(SELECT 50L id, 'mine' name)"), False),
    ],
)
def test_commit_of_another_writer_is_kept(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, other: Callable[[Lake], None], statement: str, passes: bool
) -> None:
    """Both are there, or the statement fails and nothing of it is there."""
    commit = row_level.commit_changes

    def late(*args: Any, **named_args: Any) -> None:
        other(lake)
        commit(*args, **named_args)

    monkeypatch.setattr(row_level, "commit_changes", late)
    if passes:
        lake.sql(statement)
        assert [row for row in lake.rows() if row[0] != 1] == [*named(0, *range(2, 12)), (50, "new")]
        assert (1, "n1") not in lake.rows()
    else:
        with pytest.raises(PySparkException, match="nothing"):
            lake.sql(statement)
        assert lake.rows() == [*named(*range(12)), (50, "new")] if other is append else named(0, *range(2, 12))


def test_statement_that_reads_two_versions_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark loads the table of a subquery by itself."""
    builder = row_level.OperationBuilder.__init__

    def built(self: Any, *given: Any) -> None:
        if lake.catalog.open("t").version == 2:
            append(lake)
        builder(self, *given)

    monkeypatch.setattr(row_level.OperationBuilder, "__init__", built)
    statement = "DELETE FROM lake.t WHERE id IN (SELECT id FROM lake.t WHERE id % 2 = 1)"
    with pytest.raises(PySparkException, match=r"Nothing was written|nothing of this call"):
        lake.sql(statement)
    assert lake.rows() == [*named(*range(12)), (50, "new")]
    lake.sql(statement)
    assert lake.rows() == [*named(0, 2, 4, 6, 8, 10), (50, "new")]


def test_merge_of_a_small_source_moves_only_its_rows(lake: Lake) -> None:
    """The table is reduced to the keys of a source that has the same rows each time, before the join moves rows."""

    def is_reduced(source: str, statement: str = MERGE) -> bool:
        plan = "".join(line for (line,) in lake.sql(f"EXPLAIN {statement.format(source=source)}"))
        assert "AppendData" in plan
        return "LeftSemi, BuildRight" in plan

    same = "(SELECT id, 'x' name FROM range(10, 14) UNION ALL SELECT id, 'y' FROM range(4, 6))"
    source = "(SELECT id, 'x' name FROM range(10, 14) WHERE id % 4 > 0)"
    assert is_reduced(source)
    assert is_reduced("(SELECT id + 9 id, name FROM lake.t)")
    assert not is_reduced("(SELECT id, name FROM lake.t LIMIT 2)")  # its rows could differ in the two joins
    assert not is_reduced(source, MERGE.replace("t.id = s.id", "t.id < s.id"))
    lake.spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        assert not is_reduced(source)
    finally:
        lake.spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    for each in (source, same):
        lake.sql(MERGE.format(source=each))
    kept = named(0, 1, 2, 3, 6, 7, 8, 9)
    assert lake.rows() == sorted([*kept, (4, "y"), (5, "y"), *((number, "x") for number in range(10, 14))])
    twice = "(SELECT id % 2 + 10 id, name FROM lake.t)"
    assert is_reduced(twice)
    with pytest.raises(PySparkException, match="MERGE_CARDINALITY_VIOLATION"):
        lake.sql(MERGE.format(source=twice))


@pytest.mark.parametrize("inserts_only", [False, True])
def test_concurrent_merges_insert_no_key_twice(lake: Lake, inserts_only: bool) -> None:
    """Two threads of Spark and one of pylance insert the same keys; each repeats what was refused."""
    done = threading.Barrier(3)
    statement = MERGE if not inserts_only else MERGE.replace("WHEN MATCHED THEN UPDATE SET name = s.name ", "")

    def merges(writer: int) -> None:
        done.wait()
        for first in range(100, 130, 10):
            source = f"(SELECT id, 'w{writer}' name FROM range({first}, {first + 10}))"
            while is_refused(statement.format(source=source)):
                pass

    def is_refused(text: str) -> bool:
        try:
            lake.sql(text)
        except PySparkException as error:
            if "nothing" not in str(error).lower():
                raise
            return True
        return False

    def native() -> None:
        done.wait()
        for number in range(1000, 1006):
            lake.catalog.write("t", pa.table({"id": pa.array([number], pa.int64()), "name": ["native"]}), "append")

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(merges, 1), pool.submit(merges, 2), pool.submit(native)]
        for job in jobs:
            job.result()
    assert [number for number, _ in lake.rows()] == [*range(12), *range(100, 130), *range(1000, 1006)]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO lake.t SELECT id, held(id) FROM range(100, 110, 1, 2)",
        "INSERT OVERWRITE lake.t SELECT id, held(id) FROM range(100, 110, 1, 2)",
        "UPDATE lake.t SET name = held(id) WHERE id > 2",
        "DELETE FROM lake.t WHERE held(id) > 'a'",
        "MERGE INTO lake.t USING (SELECT id, held(id) name FROM range(100, 110, 1, 2)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *",
        "CREATE TABLE lake.made AS SELECT id, held(id) name FROM range(100, 110, 1, 2)",
    ],
    ids=lambda statement: statement.split()[0].lower() + ("_overwrite" if "OVERWRITE" in statement else ""),
)
def test_cancelled_statement_changes_nothing(lake: Lake, statement: str, tmp_path: Path) -> None:
    """Other tasks may have written files, which clean-up removes."""
    started = str(tmp_path / "started")

    def held(number: int) -> str:
        if number % 2:
            with suppress(FileExistsError):
                Path(started).mkdir()
            time.sleep(120)
        return f"n{number}"

    lake.spark.udf.register("held", held)
    before = lake.rows(), lake.operations()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(lake.sql, statement)
        while not Path(started).exists() and not running.done():
            time.sleep(0.05)
        lake.spark.sparkContext.cancelAllJobs()
        with pytest.raises(Exception, match="SPARK_JOB_CANCELLED"):
            running.result(60)
    assert (lake.rows(), lake.operations()) == before
    assert not lake.catalog.table_exists("made")
    lake.sql("INSERT INTO lake.t VALUES (99, 'n99')")
    assert lake.rows()[-1] == (99, "n99")
    lake.catalog.upkeep.cleanup(0, grace=0)
    assert lake.catalog.upkeep.fsck(deep=True, grace=0, repair=True).findings == ()
