"""The example pipelines survive a kill, check their own result, and change only the rows that new data changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from spark_imports import WITH_IMPORTS

import lancekeep
import lancekeep.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_medallion_changes_only_the_periods_of_late_flights(spark: SparkSession, tmp_path: Path) -> None:
    tables = ("silver.flights", "silver.timetable", "gold.punctuality")
    medallion = import_module("medallion")
    medallion.run(session(spark), tmp_path, 2)
    with opened(tmp_path) as catalog:
        first = {table: latest(catalog, table) for table in tables}
    medallion.run(session(spark), tmp_path, 3)
    with opened(tmp_path) as catalog:
        for table in tables:
            assert_changed_rows_alone(catalog, table, first[table])
        periods = catalog.open("silver.timetable")
        ended = "_row_created_at_version <= {0} AND _row_last_updated_at_version > {0} AND valid_to < DATE '2013-03-01'"
        assert periods.count_rows(ended.format(first["silver.timetable"])), "a late flight ended a period earlier"
        uris = {table: catalog.describe_table(table).uri for table in tables}
    lance.dataset(uris["silver.timetable"]).delete("carrier = 'HA'")
    with pytest.raises(medallion.Wrong, match=r"silver\.timetable .* are missing"):
        medallion.check(tmp_path / "landing", uris)


def test_retrieval_embeds_only_the_chunks_that_changed(spark: SparkSession, tmp_path: Path) -> None:
    retrieval = import_module("retrieval")
    retrieval.run(session(spark), tmp_path, 1)
    with opened(tmp_path) as catalog:
        first = {table: latest(catalog, table) for table in ("docs.documents", "docs.chunks")}
    retrieval.run(session(spark), tmp_path, 2)
    with opened(tmp_path) as catalog:
        for table, version in first.items():
            assert_changed_rows_alone(catalog, table, version)
        (near,) = catalog.structure.indexes("docs.chunks")
        assert (near.unindexed_rows, near.kind) == (0, "IVF_FLAT")
        uris = {name: catalog.describe_table(f"docs.{name}").uri for name in ("documents", "chunks", "evaluations")}
    lance.dataset(uris["evaluations"]).update({"recall": "recall - 0.1"})
    with pytest.raises(retrieval.Wrong, match="the recorded recall"):
        retrieval.check(tmp_path / "documents", uris)


def test_insert_and_merge_without_new_rows_create_no_version(spark: SparkSession, tmp_path: Path) -> None:
    with lancekeep.spark.install(spark, "repeated", str(tmp_path)) as catalog:
        catalog.create_namespace("ns")
        catalog.write("ns.t", pa.table({"id": range(9)}))
        spark.sql("INSERT INTO repeated.ns.t SELECT * FROM repeated.ns.t WHERE id < 0")
        spark.sql("""
            MERGE INTO repeated.ns.t t USING (SELECT * FROM repeated.ns.t WHERE id > 3) s ON t.id = s.id
            WHEN NOT MATCHED THEN INSERT *
        """)
        assert lance.dataset(catalog.describe_table("ns.t").uri).version == 1


@pytest.mark.parametrize(
    ("name", "argument", "tables"),
    [
        ("medallion", "--months", ("bronze.flights", "silver.flights", "silver.timetable", "gold.punctuality")),
        ("retrieval", "--revision", ("docs.documents", "docs.chunks", "docs.evaluations")),
    ],
)
def test_killed_pipeline_is_completed_and_repeated_without_new_versions(
    spark: SparkSession, tmp_path: Path, name: str, argument: str, tables: tuple[str, ...]
) -> None:
    for table in tables:
        killed(f"{name}.py", tmp_path, argument, "2", table)
    example = import_module(name)
    example.run(session(spark), tmp_path, 2)
    with opened(tmp_path) as catalog:
        first = {table: latest(catalog, table) for table in tables}
    example.run(session(spark), tmp_path, 2)
    with opened(tmp_path) as catalog:
        assert {table: latest(catalog, table) for table in tables} == first


def session(spark: SparkSession) -> SparkSession:
    """Return a session that interprets plans: to compile them takes longer than to process so few rows."""
    found = spark.newSession()
    found.conf.set("spark.sql.codegen.wholeStage", "false")
    found.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return found


def killed(script: str, lake: Path, argument: str, value: str, table: str) -> None:
    """Run an example in a process, and kill the process and its JVM when a table has rows."""
    lake.mkdir(exist_ok=True)
    short_lived = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    environment = os.environ | WITH_IMPORTS | {"JDK_JAVA_OPTIONS": short_lived}
    with (lake / "output.txt").open("wb") as output:
        command = [sys.executable, str(EXAMPLES / script), str(lake), argument, value]
        run = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        try:
            with opened(lake) as catalog:
                while latest(catalog, table) < 2:
                    assert run.poll() is None, (lake / "output.txt").read_text()
                    time.sleep(0.05)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def opened(lake: Path) -> lancekeep.Catalog:
    return lancekeep.connect(str(lake), commit_store=f"sqlite://{lake}/commits.db")


def latest(catalog: lancekeep.Catalog, table: str) -> int:
    return (catalog.describe_table(table).version or 0) if catalog.table_exists(table) else 0


def assert_changed_rows_alone(catalog: lancekeep.Catalog, table: str, since: int) -> None:
    """Assert that the rows with another last update are exactly the rows that differ, by plain pylance."""
    uri = catalog.describe_table(table).uri
    old, new = rows(lance.dataset(uri, version=since)), rows(lance.dataset(uri))
    written = rows(lance.dataset(uri), f"_row_last_updated_at_version > {since}")
    assert written == new - old
    assert written
    assert len(written) < len(new)


def rows(dataset: Any, condition: str | None = None) -> set[str]:
    return {repr(row) for row in dataset.to_table(dataset.schema.names, filter=condition).to_pylist()}
