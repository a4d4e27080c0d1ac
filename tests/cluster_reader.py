"""Read a table in a cluster whose executor is a process of its own, from a session without and one with artifacts.

Prints for each session whether its scan returned columns, and the sum that it computed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import lancekeep.spark


def main(place: Path) -> list[tuple[bool, int]]:
    quick = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={place}"
    spark = (
        SparkSession.builder.master("local-cluster[1,1,1024]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", quick)
        .config("spark.executor.extraJavaOptions", quick)
        .config("spark.local.dir", str(place / "scratch"))
        .config("spark.sql.adaptive.enabled", "false")  # a plan then has its final form at once
        .config("spark.sql.catalogImplementation", "in-memory")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    isolated = spark.newSession()
    module = place / "given.py"
    module.write_text("")
    isolated.addArtifacts(str(module), pyfile=True)
    found = []
    for session in (spark, isolated):
        catalog = lancekeep.spark.install(session, "lake", str(place / "lake"), commit_store=f"sqlite://{place}/c.db")
        with catalog:
            if session is spark:
                session.range(100).writeTo("lake.t").create()
            frame = session.sql("SELECT sum(id) FROM lake.t")
            plan = str(frame._jdf.queryExecution().executedPlan().toString())
            found.append(("ColumnarToRow" in plan, frame.collect()[0][0]))
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
    os._exit(0)  # without waiting for the cluster
