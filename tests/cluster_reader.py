"""Read a table in a cluster whose executor is a process of its own, from a session without and one with artifacts.

Prints for each session whether its scan returned columns, the sum that it computed, and the rows that Spark's UI says
were read.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from clusters import session
from spark_metrics import shown

import lancekeep.spark


def main(place: Path) -> list[tuple[bool, int, str]]:
    spark = session("local-cluster[1,1,1024]", place, {"spark.sql.shuffle.partitions": "1"})
    isolated = spark.newSession()
    module = place / "given.py"
    module.write_text("")
    isolated.addArtifacts(str(module), pyfile=True)
    found = []
    for each in (spark, isolated):
        catalog = lancekeep.spark.install(each, "lake", str(place / "lake"), commit_store=f"sqlite://{place}/c.db")
        with catalog:
            if each is spark:
                each.range(100).writeTo("lake.t").create()
            frame = each.sql("SELECT sum(id) FROM lake.t")
            plan = str(frame._jdf.queryExecution().executedPlan().toString())
            total = frame.collect()[0][0]
            found.append(("ColumnarToRow" in plan, total, shown(each)["rows read"]))
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
    os._exit(0)  # without waiting for the cluster
