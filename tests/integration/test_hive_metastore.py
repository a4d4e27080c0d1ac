"""Tables of Lancekeep in a session catalog that a real Hive Metastore keeps, from the jars within pyspark.

Spark enters them as MANAGED, of whose data the Metastore disposes: here it must find none to dispose of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from losing_proxy import losing_proxy

import lancekeep
from servers import hive_metastore

SESSION = """
import json, sys
from pyspark.sql import SparkSession
scratch, options, metastore = sys.argv[1:]
session = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .config("spark.hadoop.hive.metastore.uris", metastore)
    .config("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:derby:memory:metastore;create=true")
    .config("spark.hadoop.datanucleus.schema.autoCreateAll", "true")
    .config("spark.hadoop.hive.metastore.schema.verification", "false")
    .config("spark.local.dir", scratch)
    .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    .config("spark.sql.codegen.wholeStage", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .enableHiveSupport()
    .getOrCreate()
)
session.sparkContext.setLogLevel("OFF")
assert session.conf.get("spark.sql.catalogImplementation") == "hive"
session.sql("CREATE DATABASE metrics")
session.sql(f"CREATE TABLE metrics.t USING lancekeep OPTIONS ({options})")
"""

DROPS = """
kept = {row.col_name: row.data_type for row in session.sql("DESCRIBE EXTENDED metrics.t").collect()}
read = session.sql("SELECT id, column_99 FROM metrics.t ORDER BY id").collect()
session.sql("DROP TABLE metrics.t PURGE")
session.sql(f"CREATE TABLE metrics.t USING lancekeep OPTIONS ({options})")
session.sql("DROP DATABASE metrics CASCADE")
print(json.dumps({"type": kept["Type"], "read": [list(row) for row in read]}))
"""

ALTERS = """
def ids(table):
    return [row.id for row in session.sql(f"SELECT id FROM {table} ORDER BY id").collect()]

try:
    session.sql("ALTER TABLE metrics.t SET TBLPROPERTIES ('reviewed' = 'yes')")
    told = ""
except Exception as error:
    told = str(error)
state = session._jsparkSession.sessionState()  # SQL shows what the data source knows of the table, not what is kept
kept = state.catalog().getTableMetadata(state.sqlParser().parseTableIdentifier("metrics.t")).properties().toString()
session.sql(f"INSERT INTO metrics.t WITH ({options}) SELECT 3 AS id")
before = ids("metrics.t")
session.sql("ALTER TABLE metrics.t RENAME TO metrics.u")
print(json.dumps({"told": told, "kept": kept, "before": before, "after": ids("metrics.u")}))
"""


def drive(directory: Path, program: str, root: str, store: str, metastore: str = "") -> Any:
    """What a Spark program of its own prints last, JSON; the session catalog is within it unless ``metastore``."""
    options = f"'root' = '{root}', 'commit_store' = '{store}', 'table' = 'travel.t'"
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),  # an editable install hides pyspark_lancekeep
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    driver = subprocess.run(
        [sys.executable, "-c", SESSION + program, str(directory), options, metastore],
        env=environment,
        capture_output=True,
        text=True,
        cwd=directory,
    )
    assert driver.returncode == 0, driver.stderr[-3000:]
    return json.loads(driver.stdout.splitlines()[-1])


def test_metastore_that_manages_and_drops_table_removes_no_data(tmp_path: Path) -> None:
    root, store = str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db"
    with lancekeep.connect(root, commit_store=store) as catalog:
        catalog.create_namespace("travel")
        # The Metastore keeps 4,000 characters in one property, fewer than the columns take with their metadata.
        columns = {f"column_{number}": [number, -number] for number in range(100)}
        catalog.write("travel.t", pa.table({"id": [1, 2], **columns}))
        assert drive(tmp_path, DROPS, root, store) == {"type": "MANAGED", "read": [[1, 99], [2, -99]]}
        assert catalog.list_tables("travel") == ["t"]
        assert catalog.open("travel.t").to_table().num_rows == 2
        assert not catalog.upkeep.fsck(deep=True).findings


def test_connection_reset_during_alteration_loses_no_data_and_no_commit(tmp_path: Path) -> None:
    """The Metastore has altered the table, but its replies are lost, also that of the second attempt. It does not
    store which version is current, so none is lost, and none committed twice."""
    root, store = str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db"
    with lancekeep.connect(root, commit_store=store) as catalog:
        catalog.create_namespace("travel")
        catalog.write("travel.t", pa.table({"id": [1, 2]}))
        with hive_metastore(tmp_path) as address, losing_proxy(address, b"alter_table") as proxy:
            proxy.losses = 2
            found = drive(tmp_path, ALTERS, root, store, f"thrift://127.0.0.1:{proxy.port}")
            assert proxy.lost == 2
        assert "Unable to alter table" in found["told"]
        assert "reviewed -> yes" in found["kept"]
        assert found["before"] == found["after"] == [1, 2, 3]
        assert catalog.list_tables("travel") == ["t"]
        assert [entry.version for entry in catalog.versions.history("travel.t")] == [2, 1]
        assert not catalog.upkeep.fsck(deep=True).findings
