"""A client of Spark Connect with a server of its own, whose catalog ``lake`` is configured by the settings given.

It uses the catalog from two sessions, kills the catalog's process in between, and prints what it found.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any


def driver_processes() -> list[int]:
    """Return the catalog processes of this session of the system."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            process, command = int(entry.name), (entry / "cmdline").read_text()
            if "-m\0pyspark_lancekeep\0" in command and os.getsid(process) == os.getsid(0):
                found.append(process)
    return found


def main(settings: dict[str, str]) -> None:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.remote("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sql("CREATE TABLE lake.t AS SELECT id, concat('n', id) name FROM range(4)").collect()
    other = spark.newSession()
    other.sql("UPDATE lake.t SET name = 'updated' WHERE id % 2 = 0").collect()
    [first] = driver_processes()
    os.kill(first, signal.SIGKILL)
    while Path(f"/proc/{first}").exists():  # the JVM has not yet noticed its end
        time.sleep(0.05)
    spark.range(10, 11).selectExpr("id", "'appended' name").writeTo("lake.t").append()
    found = other.sql("SELECT id FROM lake.t WHERE id > 2 ORDER BY id").collect()
    [second] = driver_processes()
    [plan] = other.sql("EXPLAIN SELECT id FROM lake.t").collect()
    print(json.dumps([[row.id for row in found], first != second, "ColumnarToRow" in plan[0]]), flush=True)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # ends the server as well; the client would wait for it
