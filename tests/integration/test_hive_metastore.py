"""Tables of Lancekeep in a session catalog that a real Hive Metastore keeps, from the jars within pyspark.

Spark enters them as MANAGED, of whose data the Metastore disposes: here it must find none to dispose of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import lancekeep

DRIVER = """
import json, sys
from pyspark.sql import SparkSession
scratch, root, store = sys.argv[1:]
session = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .config("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:derby:memory:metastore;create=true")
    .config("spark.hadoop.datanucleus.schema.autoCreateAll", "true")
    .config("spark.hadoop.hive.metastore.schema.verification", "false")
    .config("spark.local.dir", scratch)
    .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .enableHiveSupport()
    .getOrCreate()
)
session.sparkContext.setLogLevel("OFF")
assert session.conf.get("spark.sql.catalogImplementation") == "hive"
session.sql("CREATE DATABASE metrics")
options = f"root '{root}', commit_store '{store}', table 'travel.t'"
session.sql(f"CREATE TABLE metrics.t USING lancekeep OPTIONS ({options})")
kept = {row.col_name: row.data_type for row in session.sql("DESCRIBE EXTENDED metrics.t").collect()}
read = session.sql("SELECT id, column_99 FROM metrics.t ORDER BY id").collect()
session.sql("DROP TABLE metrics.t PURGE")
session.sql(f"CREATE TABLE metrics.t USING lancekeep OPTIONS ({options})")
session.sql("DROP DATABASE metrics CASCADE")
print(json.dumps({"type": kept["Type"], "read": [list(row) for row in read]}))
"""


def test_what_a_metastore_manages_and_drops_takes_no_data_along(tmp_path: Path) -> None:
    root, store = str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db"
    with lancekeep.connect(root, commit_store=store) as catalog:
        catalog.create_namespace("travel")
        # The Metastore keeps 4,000 characters in one property, fewer than the columns take with their metadata.
        columns = {f"column_{number}": [number, -number] for number in range(100)}
        catalog.write("travel.t", pa.table({"id": [1, 2], **columns}))
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(sys.path),  # an editable install hides pyspark_lancekeep
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        driver = subprocess.run(
            [sys.executable, "-c", DRIVER, str(tmp_path), root, store],
            env=environment,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert driver.returncode == 0, driver.stderr[-3000:]
        assert json.loads(driver.stdout.splitlines()[-1]) == {"type": "MANAGED", "read": [[1, 99], [2, -99]]}
        assert catalog.list_tables("travel") == ["t"]
        assert catalog.open("travel.t").to_table().num_rows == 2
        assert not catalog.fsck(deep=True).findings
