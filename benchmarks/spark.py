"""Spark over Lancekeep's tables beside Spark over parquet: processor time of the driver, the JVM and the workers.

    python benchmarks/spark.py [--rows 1000000] [--vectors 200000] [--rounds 3] [--only lookup]

Every figure is a ratio against parquet in the same run; times belong to the machine. What is measured is the user and
system time of this process and of all that it started, which other load on the machine changes little. Everything runs
once to warm up, then in turn; medians. Vectors are 128 floats. Both have the same rows, in as many files.

"source" is ``format("lancekeep")``, "SQL" a catalog that `lancekeep.spark.install` made; without either it is a job of
`lancekeep.jobs`, or pylance in the driver. The Java connector lance-spark is not measured: it has none for Spark 4.3.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from results import record

from lancekeep.jobs import backfill, index, ingest, session

LENGTH = 128
FILES = 8
WIDE = 2000  # columns
TICKS = os.sysconf("SC_CLK_TCK")
PARQUET = "parquet"

TARGETS = {
    "write, narrow": 1.2,
    "write, vectors": 0.45,
    "read two columns": 1.5,
    "lookup by key": 1.0,
    "lookup by key, BTREE": 0.5,
    "join with 1,000 rows": 1.1,
    "wide aggregate": 1.0,
    "lookup with vector": 0.4,
    "kNN, 10 of all": 0.1,
    "add a column": 0.15,
    "ingest of vectors": 0.4,
    "MERGE of 1 %": 0.5,
    "LIMIT 3 of 2,000 columns": 1.5,
    "UPDATE beside vectors": 0.15,
}
"""At most so much of parquet's processor time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the narrow table")
    parser.add_argument("--vectors", type=int, default=200_000, help="rows of the table with vectors")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="operations whose name holds this")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "lance is not fork-safe")  # the JVM is forked, and executes at once
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    spark = session(f"local[{min(FILES, os.cpu_count() or 1)}]")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            clock = ProcessorClock()
            contest = Contest(spark, Path(scratch), arguments.rows, arguments.vectors)
            print("processor time; parquet: median seconds, the others: ratio to it, * above the target\n")
            print(f"{'':32} {PARQUET:>8}   target", flush=True)
            for name, contestants in contest.operations().items():
                if arguments.only in name:
                    report(name, medians(contestants, arguments.rounds, clock))
    finally:
        spark.stop()


# -- what is measured -----------------------------------------------------------------------------------------------


Operations = dict[str, dict[str, Callable[[], object]]]
"""By operation and contestant; parquet is the first."""


class Contest:
    """One lake of each kind with the same rows."""

    def __init__(self, spark: Any, root: Path, rows: int, vectors: int) -> None:
        import lancekeep.spark  # after the session, whose start forks

        self._spark, self._root, self._numbers = spark, root, count()
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        store = f"sqlite://{root}/commits.db"
        self._lake = {"root": str(root / "lake"), "commit_store": store}
        self._catalog = lancekeep.spark.install(spark, "lake", str(root / "lake"), commit_store=store)
        self._narrow = spark.range(0, rows, 1, FILES).selectExpr(
            "id", "(id * 7919) % 1000003 key", "concat('c', id % 50) category", "id * 0.5D score"
        )
        numbers = ", ".join(f"cast(rand({seed}) AS FLOAT)" for seed in range(LENGTH))
        self._made = spark.range(0, vectors, 1, FILES).selectExpr(
            "id", "(id * 7919) % 1000003 key", "id * 0.5D score", "concat('a text of row ', id) text",
            f"array({numbers}) embedding",
        )  # fmt: skip
        self._key = 7919 * (vectors // 2) % 1_000_003
        self._parquet = str(root / "t.parquet")
        self._made.persist()  # making the numbers costs as much as writing them
        self._made.write.parquet(self._parquet)
        for table in ("t", "indexed", "wider", "updated"):
            self._ingest(table)
        self._merged = str(root / "merged.parquet")
        self._narrow.write.parquet(self._merged)
        self._narrow.writeTo("lake.merged").create()
        for table in ("narrow", "keyed"):
            self._narrow.writeTo(f"lake.{table}").create()
        index(spark, self._catalog, "keyed", "key", kind="BTREE")
        spark.range(1000).selectExpr("id * 1000 key", "id % 7 kind").createOrReplaceTempView("small")
        changes = self._narrow.where("id % 100 = 0").selectExpr("id", "key", "category", "score + 1 score")
        changes.createOrReplaceTempView("changes")
        index(spark, self._catalog, "indexed", "key", kind="BTREE")
        wide = spark.range(0, 10, 1, 1).selectExpr(*(f"id + {number} c{number}" for number in range(WIDE)))
        self._wide = str(root / "wide.parquet")
        wide.write.parquet(self._wide)
        wide.writeTo("lake.wide").create()

    def operations(self) -> Operations:
        every = ("id", "key", "score", "text", "embedding")
        return {
            "write, narrow": self._writes(self._narrow),
            "write, vectors": self._writes(self._made),
            "read everything": self._each("t", every, unread),
            "read two columns": self._each("t", ("id", "score"), unread),
            "lookup with vector": self._each("t", every, self._lookup),
            "lookup with vector, BTREE": self._each("indexed", every, self._lookup),
            "lookup by key": self._narrow_query(self._few),
            "lookup by key, BTREE": self._narrow_query(self._few, "keyed"),
            "join with 1,000 rows": self._narrow_query(self._joined),
            "wide aggregate": self._narrow_query(self._aggregated),
            "LIMIT 3 of 2,000 columns": {
                PARQUET: lambda: self._first(f"parquet.`{self._wide}`"),
                "SQL": lambda: self._first("lake.wide"),
            },
            "kNN, 10 of all": {
                PARQUET: self._nearest_by_sql,
                "pylance": self._nearest,
                "SQL": self._nearest_by_function,
            },
            "add a column": {PARQUET: self._rewrite_with_column, "backfill": self._backfill},
            "MERGE of 1 %": {PARQUET: self._rewrite_merged, "SQL": self._merge},
            "UPDATE beside vectors": {PARQUET: self._rewrite_updated, "SQL": self._update},
            "Python function over vectors": self._each("t", ("id", "embedding"), summed),
            "ingest of vectors": {
                PARQUET: lambda: self._spark.read.parquet(self._parquet).write.parquet(self._fresh()),
                "ingest": lambda: self._ingest(f"i{next(self._numbers)}"),
            },
        }

    def _fresh(self) -> str:
        return str(self._root / f"written-{next(self._numbers)}")

    def _ingest(self, table: str) -> None:
        largest = max(file.stat().st_size for file in Path(self._parquet).glob("*.parquet"))
        ingest(
            self._spark, self._catalog, table, self._parquet, vectors={"embedding": LENGTH}, task_bytes=largest
        )  # fmt: skip

    def _writes(self, frame: Any) -> dict[str, Callable[[], object]]:
        """To a new table each time."""
        vectors = {"vector.embedding": str(LENGTH)} if "embedding" in frame.columns else {}

        def by_source() -> None:
            writer = frame.write.format("lancekeep").options(**self._lake, **vectors).mode("append")
            writer.save(f"w{next(self._numbers)}")

        def by_sql() -> None:
            writer = frame.writeTo(f"lake.w{next(self._numbers)}")
            for name, value in vectors.items():
                writer = writer.tableProperty(name, value)
            writer.create()

        return {PARQUET: lambda: frame.write.parquet(self._fresh()), "source": by_source, "SQL": by_sql}

    def _each(
        self, table: str, columns: Iterable[str], act: Callable[[Any], object]
    ) -> dict[str, Callable[[], object]]:
        """The same done to the columns of the table, from each reader."""
        names = list(columns)
        source = self._spark.read.format("lancekeep").options(**self._lake, columns=",".join(names))
        return {
            PARQUET: lambda: act(self._spark.read.parquet(self._parquet).select(names)),
            "source": lambda: act(source.load(table)),
            "SQL": lambda: act(self._spark.table(f"lake.{table}").select(names)),
        }

    def _narrow_query(self, act: Callable[[str], None], table: str = "narrow") -> dict[str, Callable[[], object]]:
        """The same statement on the narrow table of each."""
        return {PARQUET: lambda: act(f"parquet.`{self._merged}`"), "SQL": lambda: act(f"lake.{table}")}

    def _few(self, table: str) -> None:
        assert self._spark.sql(f"SELECT * FROM {table} WHERE key = 7919").collect()

    def _joined(self, table: str) -> None:
        joined = f"SELECT kind, count(*), sum(score) FROM {table} JOIN small USING (key) GROUP BY kind"
        assert len(self._spark.sql(joined).collect()) == 7

    def _aggregated(self, table: str) -> None:
        figures = ", ".join(f"min({name}), max({name}), avg({name})" for name in ("id", "key", "score"))
        assert (
            len(self._spark.sql(f"SELECT category, count(*), {figures} FROM {table} GROUP BY category").collect()) == 50
        )

    def _lookup(self, frame: Any) -> None:
        [row] = frame.where(f"key = {self._key}").collect()
        assert len(row.embedding) == LENGTH

    def _first(self, table: str) -> None:
        assert len(self._spark.sql(f"SELECT * FROM {table} LIMIT 3").collect()) == 3

    def _nearest_by_sql(self) -> None:
        distance = (
            f"aggregate(zip_with(embedding, array_repeat(0.5F, {LENGTH}), (a, b) -> (a - b) * (a - b)), "
            "0D, (x, y) -> x + y)"
        )
        frame = self._spark.read.parquet(self._parquet).selectExpr("id", f"{distance} distance")
        assert len(frame.orderBy("distance").limit(10).collect()) == 10

    def _nearest(self) -> None:
        nearest = {"column": "embedding", "q": [0.5] * LENGTH, "k": 10}
        assert self._catalog.open("t").to_table(columns=["id", "_distance"], nearest=nearest).num_rows == 10

    def _nearest_by_function(self) -> None:
        vector = f"array_repeat(0.5F, {LENGTH})"
        search = f"SELECT id FROM vector_search('lake.t', 'embedding', {vector}, 10, columns => array('id'))"
        assert len(self._spark.sql(search).collect()) == 10

    def _merge(self) -> None:
        self._spark.sql(
            "MERGE INTO lake.merged t USING changes s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *"
        )

    def _rewrite_merged(self) -> None:
        """Write the whole table, as formats do that have no deletion files."""
        self._spark.read.parquet(self._merged).createOrReplaceTempView("whole")
        columns = ", ".join(f"coalesce(s.{name}, t.{name}) {name}" for name in self._narrow.columns)
        merged = self._spark.sql(f"SELECT {columns} FROM whole t FULL JOIN changes s ON t.id = s.id")
        merged.write.parquet(self._fresh())

    def _update(self) -> None:
        self._spark.sql("UPDATE lake.updated SET score = score + 1")

    def _rewrite_updated(self) -> None:
        frame = self._spark.read.parquet(self._parquet)
        frame.selectExpr("id", "key", "score + 1 score", "text", "embedding").write.parquet(self._fresh())

    def _rewrite_with_column(self) -> None:
        frame = self._spark.read.parquet(self._parquet)
        frame.selectExpr("*", "score * 2 doubled").write.parquet(self._fresh())

    def _backfill(self) -> None:
        column = f"doubled_{next(self._numbers)}"
        backfill(self._spark, self._catalog, "wider", column, doubled, reads=["score"])


def unread(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def summed(frame: Any) -> None:
    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            vectors = batch.column("embedding").flatten().to_numpy().reshape(batch.num_rows, -1)
            yield pa.record_batch([batch.column("id"), pa.array(vectors.sum(axis=1))], names=["id", "sum"])

    unread(frame.mapInArrow(task, "id LONG, sum FLOAT"))


def doubled(batch: Any) -> Any:
    import pyarrow.compute as pc

    return pc.multiply(batch.column("score"), 2.0)


# -- measuring ------------------------------------------------------------------------------------------------------


def medians(contestants: Mapping[str, Callable[[], object]], rounds: int, clock: ProcessorClock) -> dict[str, float]:
    """Median seconds of processor time by contestant, in turn; a first round warms up."""
    samples: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds + 1):
        for contestant, act in contestants.items():
            before = clock.seconds()
            act()
            samples[contestant].append(clock.seconds() - before)
    return {contestant: statistics.median(found[1:]) for contestant, found in samples.items()}


class ProcessorClock:
    """User and system time of this process and all its descendants.

    Spark's Python daemon does not wait for its workers, so the kernel adds their time to no other process. A thread
    therefore samples every process, and counts the last sample of a process that has ended.
    """

    def __init__(self, interval: float = 0.05) -> None:
        self._used: dict[tuple[int, int], float] = {}  # by process and start
        self._living = {os.getpid()}
        self._strangers: set[int] = set()
        self._own = 0.0
        self._lock = Lock()
        self._interval = interval
        Thread(target=self._watch, name="processor-clock", daemon=True).start()

    def seconds(self) -> float:
        """Since each process began, without what looking takes."""
        with self._lock:
            self._look()
            return sum(self._used.values()) - self._own

    def _watch(self) -> None:
        while True:
            time.sleep(self._interval)
            with self._lock:
                self._look()
                self._own = time.thread_time()

    def _look(self) -> None:
        there = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
        self._strangers &= there
        found = []
        for process in there - self._strangers:
            with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
                stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                parent, user, system, start = (int(stat[at]) for at in (1, 11, 12, 19))
                found.append((start, process, parent, (user + system) / TICKS))
        living = set()
        for start, process, parent, used in sorted(found):  # parents before their children
            if process in self._living or parent in self._living or parent in living:
                living.add(process)
                self._used[process, start] = used
            else:
                self._strangers.add(process)
        self._living = living


def report(name: str, seconds: Mapping[str, float]) -> None:
    peer, target = seconds[PARQUET], TARGETS.get(name)
    cells = []
    for contestant, own in seconds.items():
        if contestant != PARQUET:
            missed = target is not None and own / peer > target
            record("spark", f"{name}: {contestant}", "s CPU", own, peer, "parquet")
            cells.append(f"{contestant} {own / peer:.2f}{'*' if missed else ''}")
    print(f"{name:32} {peer:8.2f}   {f'<= {target}' if target else '':8}   {'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
