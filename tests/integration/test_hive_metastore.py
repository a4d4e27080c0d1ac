"""Spark and a real Hive Metastore: tables that Spark's session catalog enters there, and a catalog that is there.

Spark enters its own tables as MANAGED, of whose data the Metastore disposes: here it must find none to dispose of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import writers
from losing_proxy import losing_proxy

import lancekeep
from lancekeep.testing.concurrency import PROCESSES
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
"""

METRICS = """
session.sql("CREATE DATABASE metrics")
session.sql(f"CREATE TABLE metrics.t USING lancekeep OPTIONS ({options})")
"""

DROPS = (
    METRICS
    + """
kept = {row.col_name: row.data_type for row in session.sql("DESCRIBE EXTENDED metrics.t").collect()}
read = session.sql("SELECT id, column_99 FROM metrics.t ORDER BY id").collect()
session.sql("DROP TABLE metrics.t PURGE")
session.sql(f"CREATE TABLE metrics.t USING lancekeep OPTIONS ({options})")
session.sql("DROP DATABASE metrics CASCADE")
print(json.dumps({"type": kept["Type"], "read": [list(row) for row in read]}))
"""
)

ALTERS = (
    METRICS
    + """
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
)


HOME = """
import lancekeep.spark
settings, statements = json.loads(options)
lancekeep.spark.install(session, "lake", **settings)

def answer(statement):
    try:
        return [list(row) for row in session.sql(statement).collect()]
    except Exception as error:
        return str(error)[:200]

print(json.dumps([answer(statement) for statement in statements]))
"""

INSERTS = 3
"""The rows that Spark appends while other writers append, and are killed."""
ROUNDS = int(os.environ.get("LANCEKEEP_KILLS", "2")) // 2
"""The number of times that the other writers are killed."""


def drive(directory: Path, program: str, root: str, store: str, metastore: str = "") -> Any:
    """Return what a Spark program prints about a table; the session catalog is in its process unless ``metastore``."""
    return run(directory, program, f"'root' = '{root}', 'commit_store' = '{store}', 'table' = 'travel.t'", metastore)


def run(directory: Path, program: str, options: str, metastore: str) -> Any:
    """Return what a Spark program of its own prints last, as JSON."""
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


def test_spark_pylance_and_lancedb_share_a_catalog_in_the_metastore(tmp_path: Path, hive_url: str) -> None:
    """Spark's SQL catalog changes entries and rows. The session catalog sees external tables, and drops no file.

    Writers that append to the same table are killed all the time.
    """
    root, uri, store = str(tmp_path / "lake"), hive_url.replace("hive:", "thrift:"), f"{hive_url}/lancekeep_hot"
    appends = [f"INSERT INTO lake.hot.t VALUES (100, {number})" for number in range(INSERTS)]
    expected = {
        "CREATE NAMESPACE lake.shop": [],
        "CREATE TABLE lake.shop.t (id BIGINT, name STRING)": [],
        "INSERT INTO lake.shop.t VALUES (1, 'a'), (2, 'b')": [],
        "ALTER TABLE lake.shop.t SET TBLPROPERTIES ('reviewed' = 'yes')": [],
        "ALTER TABLE lake.shop.t RENAME TO shop.u": [],
        "SELECT * FROM lake.shop.u ORDER BY id": [[1, "a"], [2, "b"]],
        "SHOW TABLES IN lake.shop": [["shop", "u", False]],
        "SHOW TABLES IN shop": [["shop", "u", False]],
        "DESCRIBE EXTENDED shop.u": "",
        "INSERT INTO shop.u VALUES (3, 'c')": "",
        "DROP TABLE shop.u PURGE": [],
        "SHOW TABLES IN lake.shop ": [],
        "DROP DATABASE hot CASCADE": [],
        "SHOW NAMESPACES IN lake": "",
    }
    statements = [*appends, *expected]
    settings = {"root": root, "impl": "hive", "uri": uri, "commit_store": store, "storage_options": {"fsync": "false"}}
    ledger = tmp_path / "acknowledged"
    ledger.touch()
    with lancekeep.connect(**settings) as catalog:  # type: ignore[arg-type]
        catalog.create_namespace("hot")
        catalog.write("hot.t", writers.row(0, 0))
        location = catalog.describe_table("hot.t").uri
        with ThreadPoolExecutor(1) as thread:
            spark = thread.submit(run, tmp_path, HOME, json.dumps([settings, statements]), uri)
            given = {"root": root, "uri": uri, "commit_store": store, "storage.fsync": "false"}
            for kill in range(ROUNDS):
                append_and_kill(given, 2 * kill + 1, ledger)
            answers = dict(zip(statements, spark.result(), strict=True))
        for statement, answer in expected.items():
            assert answers[statement] == answer or answer == "", (statement, answers[statement])
        assert ["Type", "EXTERNAL", ""] in answers["DESCRIBE EXTENDED shop.u"]
        assert "reviewed=yes" in str(answers["DESCRIBE EXTENDED shop.u"])
        shown = [name for [name] in answers["SHOW NAMESPACES IN lake"]]
        assert ("shop" in shown, "hot" in shown, "lancekeep_hot" in shown) == (True, False, False)
        assert isinstance(answers["INSERT INTO shop.u VALUES (3, 'c')"], str)
        catalog.create_namespace("hot")
        catalog.register_table("hot.t", "hot.db/t")
        catalog.register_table("shop.u", "shop.db/t")
        assert catalog.open("shop.u").count_rows() == 2
        rows = catalog.open("hot.t").to_table().to_pylist()
        written = Counter((each["writer"], each["number"]) for each in rows)
        acknowledged = [tuple(map(int, line.split(","))) for line in ledger.read_text().splitlines()]
        assert {*acknowledged, *((100, number) for number in range(INSERTS))} <= written.keys()
        assert max(written.values()) == 1
        assert lance.dataset(location).count_rows() == len(rows)
        versions = [entry.version for entry in catalog.versions.history("hot.t")]
        assert versions == list(range(len(versions), 0, -1))


def append_and_kill(given: dict[str, str], writer: int, ledger: Path) -> None:
    """Append with pylance and with lancedb until each has appended, then kill both."""
    targets = (writers.append_until_killed, writers.add_until_killed)
    processes = [
        PROCESSES.Process(target=target, args=(given, writer + at, str(ledger), "HiveNamespace"), daemon=True)
        for at, target in enumerate(targets)
    ]
    for process in processes:
        process.start()
    while not all(f"{writer + at}," in ledger.read_text() for at in (0, 1)):
        assert all(process.is_alive() for process in processes)
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.join()
