"""Read and write tables in a cluster whose executors lack Lancekeep.

Prints the last line of each error, and the tables and rows afterwards.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
from clusters import session
from pyspark.errors import PySparkException

import lancekeep.spark

STATEMENTS = [
    "SELECT count(DISTINCT id) FROM lake.t",
    "INSERT INTO lake.t SELECT id FROM range(5)",
    "CREATE TABLE lake.copy AS SELECT id FROM range(5)",
    "UPDATE lake.t SET id = id + 1",
]


def interpreter(place: Path) -> Path:
    """Make an interpreter that does not find the package."""
    hidden = place / "hidden"
    hidden.mkdir()
    (hidden / "lancekeep.py").write_text("raise ModuleNotFoundError(\"No module named 'lancekeep'\")")
    program = place / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{hidden}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


def main(place: Path) -> tuple[list[str], list[str], int]:
    os.environ |= {"PYSPARK_PYTHON": str(interpreter(place)), "PYSPARK_DRIVER_PYTHON": sys.executable}
    spark = session("local-cluster[1,1,1024]", place, {})
    found = []
    with lancekeep.spark.install(spark, "lake", str(place / "lake")) as catalog:
        catalog.write("t", pa.table({"id": range(10)}), "create")
        for statement in STATEMENTS:
            try:
                spark.sql(statement).collect()
            except PySparkException as error:
                found.append(str(error).strip().splitlines()[-1])
        return found, catalog.list_tables(), catalog.open("t").count_rows()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
    os._exit(0)
