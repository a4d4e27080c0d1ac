"""TPC-H through the SQL catalog beside the same tables as parquet: equal rows, and processor time.

    pip install tpchgen-cli
    python benchmarks/tpch.py [--scale 0.1] [--rounds 1] [--only 9,21]

The 22 queries run over tables that ``CREATE TABLE … AS SELECT`` wrote, then again after the refresh functions: RF1
inserts one order of 1,000 with its items, RF2 deletes as many. Parquet's RF1 adds files, and its RF2 rewrites both
tables, because parquet cannot delete. The results must be equal, row by row. Measured is the user and system time of
all processes, so a ratio changes little with other load; the first round warms up.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lancekeep.spark
from lancekeep.jobs import session
from spark import ProcessorClock

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
KEYS = {"orders": "o_orderkey", "lineitem": "l_orderkey"}
"""The tables that the refresh functions change, and the column that names the order."""

Rows = list[tuple[Any, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="0.1", help="1 is about 1 GB of text")
    parser.add_argument("--rounds", type=int, default=1, help="measured runs of each query, after one to warm up")
    parser.add_argument("--only", default="", help="numbers of queries, separated by commas")
    arguments = parser.parse_args()
    if not generator():
        print("skipped: install the generator of the tables, pip install tpchgen-cli")
        return
    chosen = [int(number) for number in arguments.only.split(",") if number] or list(range(1, 23))
    spark = session("local[2]")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch), arguments.scale)
        clock = ProcessorClock()
        contest = Contest(spark, Path(scratch), clock)
        contest.load()
        total = contest.queries(chosen, arguments.rounds)
        contest.refresh()
        contest.queries(chosen, 0)
        print(f"\nall queries: {total:.2f} times parquet (target <= 1.3); rows equal before and after RF1 and RF2")
    spark.stop()


def generator() -> str:
    """Return the path of the program that generates the tables, empty if it is missing."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("tpchgen-cli", path=beside) or shutil.which("tpchgen-cli") or ""


def generate(folder: Path, scale: str) -> None:
    """Write the eight tables of one scale factor as parquet files."""
    subprocess.run([generator(), "parquet", "-s", scale, "--output-dir", str(folder)], check=True, capture_output=True)


def statements() -> dict[int, str]:
    """Return the 22 queries by number."""
    text = Path(__file__).with_name("tpch.sql").read_text()
    found = re.findall(r"^-- Q(\d+) .*\n([^;]*);", text, re.MULTILINE)
    return {int(number): query for number, query in found}


class Contest:
    """The tables of TPC-H in a catalog and as parquet."""

    def __init__(self, spark: Any, folder: Path, clock: ProcessorClock) -> None:
        self._spark, self._folder, self._clock = spark, folder, clock
        self._catalog = lancekeep.spark.install(
            spark, "lake", str(folder / "lake"), commit_store=f"sqlite://{folder}/commits.db"
        )

    def load(self) -> None:
        def lake() -> None:
            self._spark.sql("CREATE NAMESPACE lake.tpch")
            for table in TABLES:
                self._spark.sql(f"CREATE TABLE lake.tpch.{table} AS SELECT * FROM parquet.`{self._made(table)}`")

        def parquet() -> None:
            for table in TABLES:
                self._spark.read.parquet(self._made(table)).write.parquet(self._now(table))

        self._report("load", self._seconds(parquet), self._seconds(lake))

    def queries(self, chosen: list[int], rounds: int) -> float:
        """Compare the rows of each query, then measure; return the ratio of the sums."""
        texts, sums = statements(), [0.0, 0.0]
        for number in chosen:
            expected, found = self._on_parquet(texts[number]), self._on_lake(texts[number])
            if found != expected:
                raise SystemExit(f"Q{number} differs:\n  parquet   {expected[:3]}\n  lancekeep {found[:3]}")
            seconds = {self._on_parquet: 0.0, self._on_lake: 0.0}
            for turn in range(rounds):
                order = list(seconds) if (number + turn) % 2 else list(reversed(seconds))  # the JVM still warms up
                for run in order:
                    seconds[run] += self._seconds(partial(run, texts[number]))
            parquet, lake = seconds.values()
            if rounds:
                self._report(f"Q{number}", parquet / rounds, lake / rounds)
            sums = [sums[0] + parquet, sums[1] + lake]
        return sums[1] / sums[0] if sums[0] else 0.0

    def refresh(self) -> None:
        """Run RF1 and RF2 on both."""
        for table, key in KEYS.items():
            self._view(table)
            frame = self._spark.sql(f"SELECT * FROM {table} WHERE {key} % 1000 = 1")
            new = frame.withColumn(key, frame[key] + 8)  # of each 32 keys, TPC-H uses the first 8
            new.write.parquet(self._new(table))

        def insert() -> None:
            for table in KEYS:
                self._spark.sql(f"INSERT INTO lake.tpch.{table} SELECT * FROM parquet.`{self._new(table)}`")

        def add_files() -> None:
            for table in KEYS:
                self._spark.read.parquet(self._new(table)).write.mode("append").parquet(self._now(table))

        self._report("RF1", self._seconds(add_files), self._seconds(insert))
        gone = self._spark.sql("SELECT o_orderkey gone FROM orders WHERE o_orderkey % 1000 = 2")
        gone.createOrReplaceTempView("gone")

        def delete() -> None:
            for table, key in KEYS.items():
                self._spark.sql(f"DELETE FROM lake.tpch.{table} WHERE {key} IN (SELECT gone FROM gone)")

        def rewrite() -> None:
            for table, key in KEYS.items():
                self._spark.read.parquet(self._now(table)).createOrReplaceTempView(table)
                left = self._spark.sql(f"SELECT * FROM {table} WHERE {key} NOT IN (SELECT gone FROM gone)")
                left.write.parquet(self._now(table) + ".left")

        self._report("RF2", self._seconds(rewrite), self._seconds(delete))
        for table in KEYS:
            shutil.rmtree(self._now(table))
            Path(self._now(table) + ".left").rename(self._now(table))

    def _on_lake(self, query: str) -> Rows:
        self._spark.sql("USE lake.tpch")
        try:
            return self._rows(query)
        finally:
            self._spark.sql("USE spark_catalog.default")

    def _on_parquet(self, query: str) -> Rows:
        for table in TABLES:
            self._view(table)
        try:
            return self._rows(query)
        finally:
            for table in TABLES:  # a view would hide the catalog's table of that name
                self._spark.catalog.dropTempView(table)

    def _rows(self, query: str) -> Rows:
        return [tuple(row) for row in self._spark.sql(query).collect()]

    def _view(self, table: str) -> None:
        self._spark.read.parquet(self._now(table)).createOrReplaceTempView(table)

    def _made(self, table: str) -> str:
        return str(self._folder / f"{table}.parquet")

    def _now(self, table: str) -> str:
        return str(self._folder / "parquet" / table)

    def _new(self, table: str) -> str:
        return str(self._folder / "new" / table)

    def _seconds(self, act: Callable[[], object]) -> float:
        before = self._clock.seconds()
        act()
        return self._clock.seconds() - before

    def _report(self, name: str, parquet: float, lake: float) -> None:
        print(f"{name:6} parquet {parquet:6.2f} s   lancekeep {lake / parquet:5.2f}", flush=True)


if __name__ == "__main__":
    main()
