"""Drivers that have the catalog by configuration alone: Spark Connect and ``spark-sql``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import lance
import pyspark
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.spark.sql.jar import CLASS, write_jar

pytestmark = pytest.mark.slow

HOME = Path(pyspark.__file__).parent


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jar") / "lancekeep-spark.jar"
    said = CliRunner().invoke(command, ["spark-jar", str(path)])
    assert (said.exit_code, f"spark.sql.catalog.lake={CLASS}" in said.output) == (0, True), said.output
    return path


@pytest.fixture
def settings(jar: Path, tmp_path: Path) -> dict[str, str]:
    return {
        "spark.jars": str(jar),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.catalog.lake": CLASS,
        "spark.sql.catalog.lake.root": str(tmp_path / "lake"),
        "spark.sql.catalog.lake.commit_store": f"sqlite://{tmp_path}/commits.db",
        "spark.sql.catalog.lake.python": sys.executable,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }


def run(arguments: list[str], place: Path, **environment: str) -> list[str]:
    """Run a program in a session of its own; return the lines that it prints."""
    given = {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    said, errors = place / "said", place / "errors"  # a server that outlives the program would keep a pipe open
    with said.open("w") as output, errors.open("w") as log:
        code = subprocess.run(
            arguments,
            cwd=place,
            env={**os.environ, **given},
            stdout=output,
            stderr=log,
            start_new_session=True,
            timeout=600,
            check=False,
        ).returncode
    assert code == 0, errors.read_text()[-5000:]
    return said.read_text().splitlines()


def rows(place: Path, table: str) -> list[tuple[int, str]]:
    with lancekeep.connect(str(place / "lake"), commit_store=f"sqlite://{place}/commits.db") as catalog:
        found = lance.dataset(catalog.describe_table(table).uri).to_table(columns=["id", "name"])
    return sorted(zip(*(column.to_pylist() for column in found), strict=True))


def test_sessions_of_connect_share_a_process_that_may_be_killed(settings: Mapping[str, str], tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the client of Spark Connect needs grpcio")
    client = Path(__file__).parents[1] / "connect_client.py"
    said = run([sys.executable, "-W", "ignore", str(client), json.dumps(settings)], tmp_path)
    assert json.loads(said[-1]) == [[3, 10], True, True]
    assert rows(tmp_path, "t") == [(0, "updated"), (1, "n1"), (2, "updated"), (3, "n3"), (10, "appended")]


def test_statements_of_spark_sql(settings: Mapping[str, str], tmp_path: Path) -> None:
    script = tmp_path / "statements.sql"
    script.write_text(
        "CREATE NAMESPACE lake.travel;\n"
        "CREATE TABLE lake.travel.t AS SELECT id, concat('n', id) name FROM range(4);\n"
        "MERGE INTO lake.travel.t t USING (SELECT 1L id, 'm' name UNION ALL SELECT 9L, 'new') s ON t.id = s.id\n"
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;\n"
        "CREATE INDEX names ON lake.travel.t USING bitmap (name);\n"
        "SELECT version, operation FROM lake.travel.t.history ORDER BY version;\n"
    )
    configured = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    said = run([str(HOME / "bin" / "spark-sql"), "--master", "local[1]", *configured, "-f", str(script)], tmp_path)
    assert said[-3:] == ["1\tOverwrite", "2\tUpdate", "3\tCreateIndex"]
    assert rows(tmp_path, "travel.t") == [(0, "n0"), (1, "m"), (2, "n2"), (3, "n3"), (9, "new")]


OPENING = """
import json, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for catalog in sys.argv[2:]:
    try:
        spark.sql(f"SHOW TABLES IN {catalog}").collect()
    except Exception as error:
        print(" ".join(str(error).split()), flush=True)
"""
"""Opens catalogs, and prints why each cannot be opened."""


def test_interpreters_that_do_not_answer_are_named(settings: Mapping[str, str], tmp_path: Path) -> None:
    impatient, program, waiting = tmp_path / "impatient.jar", tmp_path / "opening.py", tmp_path / "waiting"
    write_jar(impatient, silence=2)
    program.write_text(OPENING)
    waiting.write_text("#!/bin/sh\nexec sleep 1000\n")
    waiting.chmod(0o755)
    interpreters = {"absent": f"{tmp_path}/absent", "failing": "/bin/false", "waiting": str(waiting)}
    given = {name: value for name, value in settings.items() if "catalog.lake" not in name}
    for name, interpreter in interpreters.items():
        given |= {f"spark.sql.catalog.{name}": CLASS, f"spark.sql.catalog.{name}.python": interpreter}
    given |= {"spark.jars": str(impatient), "spark.sql.catalog.other": CLASS}
    found = [*interpreters, "other"]
    said = run([sys.executable, str(program), json.dumps(given), *found], tmp_path, PYSPARK_PYTHON="/bin/false")
    reasons = [
        f"cannot start {tmp_path}/absent -m pyspark_lancekeep: ",
        "the process /bin/false -m pyspark_lancekeep ended with the code 1;",
        f"the process {waiting} -m pyspark_lancekeep does not answer, and was ended",
        "the process /bin/false -m pyspark_lancekeep ended with the code 1;",
    ]
    origins = [*(f"spark.sql.catalog.{name}.python" for name in interpreters), "PYSPARK_PYTHON"]
    assert len(said) == len(found), said
    for line, name, reason, origin in zip(said, found, reasons, origins, strict=True):
        assert reason in line
        assert f"({origin} names this interpreter). Set spark.sql.catalog.{name}.python to" in line


@pytest.mark.parametrize("name", ["spark.zip", "missing/spark.jar"])
def test_path_that_cannot_be_the_jar_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be the jar"):
        write_jar(tmp_path / name)
