"""The examples of the pages about Spark work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pages import ROOT, Reader, free_port, server_at

import lancekeep
import lancekeep.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

FLIGHTS = pa.table({"origin": ["EWR", "JFK"], "carrier": ["AA", None]})
DOCUMENTS = pa.table(
    {"id": [1, 2], "title": ["a", "b"], "embedding": pa.array([[0.0] * 4, [1.0] * 4], pa.list_(pa.float32(), 4))}
)

PAGES = {
    "spark-source.md": 2,
    "spark-sql.md": 2,
    "spark-search.md": 1,
    "spark-streams.md": 1,
    "spark-types.md": 1,
    "spark-deploy.md": 2,
}
"""Pages about Spark, and the numbers of their examples."""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lancekeep.Catalog:
    monkeypatch.chdir(tmp_path)
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db")
    for namespace in ("travel", "ml"):
        catalog.create_namespace(namespace)
    catalog.write("travel.flights", FLIGHTS)
    catalog.write("ml.queries", DOCUMENTS)
    catalog.write("ml.documents", DOCUMENTS)
    return catalog


def test_spark(spark: SparkSession, lake: lancekeep.Catalog, tmp_path: Path) -> None:
    def statements(statement: str) -> None:
        assert spark.sql(statement).collect() is not None

    places = {
        "s3://bucket/": f"{tmp_path}/",
        "dynamodb://lance-commits?region=eu-west-1": f"sqlite://{tmp_path}/commits.db",
        "lancekeep spark-jar": ": lancekeep spark-jar",  # test_spark_jar.py runs both commands
        "spark-sql --jars": ": spark-sql --jars",
        "768": "4",
    }
    flights = spark.createDataFrame([("LGA", "UA")], "origin STRING, carrier STRING")
    documents = spark.createDataFrame([(3, [0.0] * 4)], "id LONG, embedding ARRAY<FLOAT>")
    names: dict[str, Any] = {"spark": spark, "pa": pa, "frame": flights, "documents": documents}
    reader = Reader(places, names, statements=statements)
    try:
        for page, examples in PAGES.items():
            assert reader.read(ROOT / "docs" / page) == examples
    finally:
        for query in spark.streams.active:
            query.stop()
    assert lake.open("travel.flights").to_table()["carrier"].to_pylist() == ["AA", "XX", "UA"]


def test_tutorial(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def statements(statement: str) -> None:
        spark.sql(statement)

    page = ROOT / "docs" / "tutorial.md"
    assert Reader(server_at(tmp_path, free_port()), statements=statements).read(page) >= 15


def test_jobs(spark: SparkSession, lake: lancekeep.Catalog, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "a.csv").write_text("id,text\n1,one\n2,two\n")
    function = "import pyarrow.compute as pc\n\ndef twice(batch):\n    return pc.multiply(batch['id'], 2)\n"
    (tmp_path / "feats.py").write_text(function)
    places = {
        "sqlite:///var/lib/commits.db": f"sqlite://{tmp_path}/commits.db",
        "s3://bucket/": f"{tmp_path}/",
        "768": "4",
    }
    names: dict[str, Any] = {
        "lancekeep": lancekeep,
        "pa": pa,
        "changes": pa.table({"id": [2], "text": ["zwei"], "id2": [4]}),
        "model": lambda texts: [[0.0] * 4 for _ in texts],
    }
    reader = Reader(places, names)
    assert reader.read(ROOT / "docs" / "jobs.md") >= 5
    rows = sorted(lake.open("t").to_table().to_pylist(), key=lambda row: row["id"])
    assert [(row["text"], row["id2"], row["embedding"]) for row in rows] == [
        ("one", 2, [0.0] * 4),
        ("zwei", 4, [0.0] * 4),
    ]
