"""Change a table in a cluster whose tasks hang, and whose executors are killed.

Prints the rows that plain pylance reads after each statement.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import lance
from clusters import session, start

import lancekeep.spark

HANGING = [
    "INSERT INTO lake.t SELECT id + 100, hung('insert', id) FROM range(0, 8, 1, 4)",
    "UPDATE lake.t SET v = v + hung('update', id) WHERE id < 4",
    "MERGE INTO lake.t t USING (SELECT id + 4 id, hung('merge', id) v FROM range(0, 8, 1, 4)) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *",
]
"""Statements of which one task hangs, so that a speculative copy must do its work."""
KILLING = [
    "INSERT INTO lake.t SELECT 200 + g, killed('insert', n) "
    "FROM (SELECT id % 4 g, count(*) n FROM range(0, 80, 1, 4) GROUP BY 1)",
    "DELETE FROM lake.t WHERE killed('delete', id) > 99",
]
"""Statements that lose an executor, with the results of an earlier stage."""


def hung(place: str, statement: str, number: int) -> int:
    """Hang in the first task of a statement."""
    if is_first(place, statement):
        time.sleep(600)
    return number


def killed(place: str, statement: str, number: int) -> int:
    """Kill the executor of the first task of a statement."""
    if is_first(place, statement):
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(daemon[1]), signal.SIGKILL)
        time.sleep(600)
    return number


def is_first(place: str, statement: str) -> bool:
    try:
        Path(place, statement).mkdir()
    except FileExistsError:
        return False
    return True


def main(place: Path) -> list[list[tuple[int, int]]]:
    speculation = {
        "spark.executor.memory": "1g",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "500ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.task.duration.threshold": "2s",  # of stages with one task
        "spark.sql.shuffle.partitions": "4",
    }
    spark = session(start(place, "127.0.0.1", "127.0.0.2"), place, speculation)
    catalog = lancekeep.spark.install(spark, "lake", str(place / "lake"), commit_store=f"sqlite://{place}/c.db")
    spark.sql(
        "CREATE TABLE lake.t TBLPROPERTIES ('lancekeep.stable_row_ids' = 'true') AS SELECT id, id v FROM range(8)"
    )
    found = []
    for name, function, statements in (("hung", hung, HANGING), ("killed", killed, KILLING)):
        marks = place / name
        marks.mkdir()
        spark.udf.register(name, lambda *values, of=function, at=str(marks): of(at, *values), "bigint")
        for statement in statements:
            spark.sql(statement)
            rows = lance.dataset(catalog.describe_table("t").uri).to_table(columns=["id", "v"]).to_pydict()
            found.append(sorted(zip(rows["id"], rows["v"], strict=True)))
            assert len([*marks.iterdir()]) == statements.index(statement) + 1, statement
    assert catalog.upkeep.fsck(deep=True).findings == ()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
    os._exit(0)
