"""Spark drivers in separate processes that tests kill: the program, and `Driver`, which controls it.

The program works on the tables of one lake, in one thread per kind of work, and prints each finished work. Its
arguments state how many works of each kind are acknowledged. If the interface commits a work exactly once, the program
repeats it after a restart. For the other kinds (`KINDS`) it reads the tables first, as any application would have to.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Condition, Thread
from time import monotonic
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyspark
import writers
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType
from spark_imports import WITH_IMPORTS

import lancekeep
import lancekeep.spark
from lancekeep.entrypoints.spark.partition_sink import PartitionStreamWriter, WrittenByTask
from lancekeep.entrypoints.spark.streaming import StreamWriter, WrittenByQuery
from lancekeep.jobs import backfill, compact, ingest, ship, upsert
from pyspark_lancekeep import DefaultSource

ROWS = 40
"""The rows of a work, in two partitions."""
PARTS = 3
"""The partitions among which a stream divides rows."""
PATIENCE = 600.0
"""Seconds after which a silent or running driver counts as stuck."""
CLUSTER = "local-cluster[2,1,1024]"
"""Two executors of one core, each in its own JVM."""


# -- who holds it ---------------------------------------------------------------------------------------------------


class Driver:
    """A running driver with all processes of its session: JVMs, executors, Python workers.

    ``done`` counts the acknowledged works of each kind, the initial ones included.
    """

    def __init__(
        self, place: Path, done: Mapping[str, int], master: str = "local[2,4]", commands: str = "commands"
    ) -> None:
        """Start a driver on the lake below ``place``; ``done`` counts the works of each kind.

        ``commands`` is a file in ``place``, one per driver.
        """
        self.done = dict(done)
        self._commands = place / commands
        self._commands.unlink(missing_ok=True)
        given = {
            **WITH_IMPORTS,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(place),
            "COMMANDS": str(self._commands),
        }
        if master == CLUSTER:
            given["SPARK_HOME"] = str(home(place))
        command = [sys.executable, __file__, str(place), master, *(f"{kind}={n}" for kind, n in done.items())]
        self._errors = place / f"{commands}.log"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **given}, start_new_session=True
            )
        self._rest = b""

    def await_works(self) -> None:
        """Wait until one more work of each kind is done."""
        before = dict(self.done)
        self._listen(lambda: all(self.done[kind] > before[kind] for kind in before), PATIENCE)
        assert all(self.done[kind] > before[kind] for kind in before), self._why(f"after {before} it did {self.done}")

    def go_on(self, seconds: float) -> None:
        """Let the driver work for a while."""
        self._listen(lambda: False, seconds)
        assert self._process.poll() is None, self._why("it ended")

    def command(self, what: str) -> None:
        """Command ``stop`` after the current works, or a crash at a moment of a stream (`die_at`)."""
        self._commands.write_text(what)

    def kill(self, victim: str, choose: Callable[[Sequence[int]], int]) -> None:
        """Kill ``all``, the ``program``, its ``jvm``, or one process of another name of `processes`."""
        processes = self.processes()
        if victim == "all":
            while processes:  # a process may be forking
                for pid in sorted(processes):
                    _kill(pid)
                processes = self.processes()
        else:
            _kill(choose(sorted(pid for pid, name in processes.items() if name == victim)))

    def processes(self) -> dict[int, str]:
        """Return the live processes by id: ``program``, ``jvm``, ``executor``, ``worker`` or ``other``."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(ProcessLookupError, FileNotFoundError, ValueError):
                pid = int(entry.name)
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if os.getsid(pid) == self._process.pid and state != "Z":
                    found[pid] = "program" if pid == self._process.pid else _role((entry / "cmdline").read_text())
        return found

    def end(self) -> int:
        """Wait for the end of all processes and their output, and return the program's exit code."""
        self._listen(lambda: False, PATIENCE)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                watched = os.pidfd_open(pid)
                assert select.select([watched], [], [], PATIENCE)[0], self._why(f"process {pid} lives on")
                os.close(watched)
        if self.processes():
            return self.end()
        return self._process.wait()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill("all", min)
        self._process.wait()
        self._output.close()

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _listen(self, enough: Callable[[], bool], seconds: float) -> None:
        """Read the output until it is enough, the time is over, or all processes have ended."""
        until = monotonic() + seconds
        while not enough() and select.select([self._output], [], [], max(0.0, until - monotonic()))[0]:
            said = os.read(self._output.fileno(), 1 << 16)
            if not said:
                return
            *lines, self._rest = (self._rest + said).split(b"\n")
            for line in lines:
                kind, number = line.decode().split()
                self.done[kind] = int(number)

    def _why(self, what: str) -> str:
        return f"{what}; its last words:\n{self._errors.read_text()[-5000:]}"


def home(place: Path) -> Path:
    """Return a home with links to the installed Spark, since a cluster writes into its home."""
    found = place / "spark"
    if not found.exists():
        found.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (found / entry.name).symlink_to(entry)
    return found


def _role(command: str) -> str:
    if "CoarseGrainedExecutorBackend" in command:
        return "executor"
    if "SparkSubmit" in command:
        return "jvm"
    return "worker" if command.endswith("spark_daemon\0pyspark.worker\0") else "other"


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# -- the program ----------------------------------------------------------------------------------------------------


class Lake:
    """The lake of a driver; ``place`` is the directory of all its files."""

    def __init__(self, place: Path, spark: SparkSession) -> None:
        self.place = place
        self.spark = spark
        self.options = options(place)
        root, store = self.options["root"], self.options["commit_store"]
        self.catalog = lancekeep.spark.install(spark, "lake", root, commit_store=store)

    def rows(self, work: int) -> DataFrame:
        return self.spark.range(work * ROWS, (work + 1) * ROWS, 1, 2)

    def ids(self, table: str) -> list[int]:
        if not self.catalog.table_exists(table) or self.catalog.describe_table(table).version is None:
            return []
        return sorted(self.catalog.open(table).to_table(columns=["id"])["id"].to_pylist())


def options(place: Path) -> dict[str, str]:
    """Return the options of the data source for the lake below ``place``."""
    return {"root": str(place / "lake"), "commit_store": f"sqlite://{place}/commits.db"}


def connect(place: Path) -> lancekeep.Catalog:
    """Open the catalog of the lake below ``place``."""
    return lancekeep.connect(options(place)["root"], commit_store=options(place)["commit_store"])


def divided_options(place: Path) -> dict[str, str]:
    """Return the options of the data source for the partitioned namespace below ``place``."""
    return {"root": str(place / "divided"), "commit_store": f"sqlite://{place}/divided.db"}


def connect_divided(place: Path) -> lancekeep.Catalog:
    """Open the catalog of the partitioned namespace below ``place``."""
    return lancekeep.connect(divided_options(place)["root"], commit_store=divided_options(place)["commit_store"])


def appends(lake: Lake, done: int) -> Iterator[int]:
    """Append rows, by the data source and by SQL in turn, and compact now and then."""
    for number in range(len(lake.ids("appended")) // ROWS, sys.maxsize):
        frame = lake.rows(number)
        if number % 2 == 0:
            frame.write.format("lancekeep").options(**lake.options).mode("append").save("appended")
        else:
            frame.createOrReplaceTempView("appending")
            lake.spark.sql("INSERT INTO lake.appended SELECT id FROM appending")
        yield number + 1
        if number % 8 == 7:
            compact(lake.spark, lake.catalog, "appended")


def overwrites(lake: Lake, done: int) -> Iterator[int]:
    """Replace all rows, by the data source and by SQL in turn."""
    for number in range(max(lake.ids("overwritten"), default=-1) // ROWS + 1, sys.maxsize):
        frame = lake.rows(number)
        if number % 2 == 0:
            frame.write.format("lancekeep").options(**lake.options).mode("overwrite").save("overwritten")
        else:
            frame.createOrReplaceTempView("overwriting")
            lake.spark.sql("INSERT OVERWRITE lake.overwritten SELECT id FROM overwriting")
        yield number + 1


def upserts(lake: Lake, done: int) -> Iterator[int]:
    """Update half of the rows of the last work and add as many, by a job and by MERGE in turn."""
    if not lake.catalog.table_exists("upserted"):
        lake.catalog.write("upserted", pa.table({"id": pa.array([], pa.int64()), "work": pa.array([], pa.int64())}))
    for number in range(done, sys.maxsize):
        changes = lake.spark.range(number * ROWS // 2, number * ROWS // 2 + ROWS, 1, 2)
        changes = changes.selectExpr("id", f"{number}L work")
        if number % 2 == 0:
            upsert(lake.catalog, "upserted", changes, on="id")
        else:
            changes.createOrReplaceTempView("upserting")
            lake.spark.sql(MERGE.format(table="upserted", source="upserting"))
        yield number + 1


def streams(lake: Lake, done: int) -> Iterator[int]:
    """Copy one table into another by a stream, one version per batch."""
    reader = lake.spark.readStream.format("mortal").options(**lake.options)
    query = None
    for number in range(done, sys.maxsize):
        if len(lake.ids("source")) == number * ROWS:
            rows = pa.table({"id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())})
            lake.catalog.write("source", rows, "append" if number else "create")
        if query is None:
            stream = reader.options(starting_version="1", max_versions_per_trigger="1").load("source")
            sink = stream.writeStream.format("mortal").options(**lake.options)
            query = sink.option("checkpointLocation", str(lake.place / "checkpoint")).start("sink")
        query.processAllAvailable()
        yield number + 1


def divides(lake: Lake, done: int) -> Iterator[int]:
    """Divide a table among partitions by a stream, and join the partitions in a table by another."""
    catalog = connect_divided(lake.place)
    if not catalog.list_namespaces(""):
        schema = pa.schema([("id", pa.int64()), ("part", pa.int64())])
        catalog.partitions.create(schema, [lancekeep.PartitionBy.identity("part")])
    queries: list[StreamingQuery] = []
    for number in range(done, sys.maxsize):
        if len(lake.ids("whole")) == number * ROWS:
            rows = pa.table({"id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())})
            lake.catalog.write("whole", rows, "append" if number else "create")
        if not queries:
            divided = divided_options(lake.place)
            for start, end, columns in (
                ({**lake.options, "path": "whole"}, {**divided, "path": "dataset"}, ["id", f"id % {PARTS} part"]),
                ({**divided, "path": "dataset"}, {**lake.options, "path": "joined"}, ["id"]),
            ):
                stream = lake.spark.readStream.format("mortal").options(**start).load().selectExpr(*columns)
                sink = stream.writeStream.format("mortal").options(**end)
                queries.append(sink.option("checkpointLocation", str(lake.place / f"to-{end['path']}")).start())
        for query in queries:
            query.processAllAvailable()
        yield number + 1


def pipes(lake: Lake, done: int) -> Iterator[int]:
    """Ingest a file into bronze, then write silver and gold in one transaction."""
    landing = lake.place / "landing"
    landing.mkdir(exist_ok=True)
    for number in range(len(lake.ids("silver")) // ROWS, sys.maxsize):
        arriving = lake.place / "arriving.csv"
        pyarrow.csv.write_csv(pa.table({"id": range(number * ROWS, (number + 1) * ROWS)}), arriving)
        arrived = landing / f"{number}.csv"
        if not arrived.exists():
            arriving.rename(arrived)
        ingest(lake.spark, lake.catalog, "bronze", str(landing))
        bronze = lake.spark.table("lake.bronze")
        new = bronze.where(f"id >= {number * ROWS}").toArrow()
        total = bronze.selectExpr("count(*) rows", "sum(id) total").toArrow()
        with lake.catalog.transaction() as tx:
            tx.write("silver", new, "append" if number else "create")
            tx.write("gold", total, "overwrite")
        yield number + 1


def keeps(lake: Lake, done: int) -> Iterator[int]:
    """Backfill a computed column of new rows, then compact the fragments."""
    ship(sys.modules[__name__])
    for number in range(done, sys.maxsize):
        rows = pa.table({"id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())})
        if len(lake.ids("kept")) == number * ROWS:
            lake.catalog.write("kept", rows, "append" if number else "create")
        backfill(lake.spark, lake.catalog, "kept", "twice", twice, reads=["id"])
        compact(lake.spark, lake.catalog, "kept")
        yield number + 1


def twice(batch: pa.RecordBatch) -> pa.Array:
    return pc.multiply(batch["id"], 2)


def shares(lake: Lake, done: int) -> Iterator[int]:
    """Do the works of `writers.share` by Spark, in the table of all writers; each third work is SQL."""
    for number in range(done, sys.maxsize):
        if number * ROWS not in lake.ids("shared"):
            frame = lake.rows(number).selectExpr("id", f"{number}L work")
            frame.write.format("lancekeep").options(**lake.options).mode("append").save("shared")
        if number % 3 == 1:
            merge(lake, "shared", f"(SELECT id, {number}L work FROM range(-{writers.COMMON}, 0))")
            merge(lake, "shared", f"(SELECT min(id) - 1 id, {number}L work FROM lake.shared)")
        else:
            upsert(lake.catalog, "shared", lake.spark.createDataFrame(writers.common(number)), on="id")
            upsert(lake.catalog, "shared", writers.following(lake.catalog.open("shared"), number), on="id")
        yield number + 1


MERGE = (
    "MERGE INTO lake.{table} t USING {source} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
    "WHEN NOT MATCHED THEN INSERT *"
)


def merge(lake: Lake, table: str, source: str) -> None:
    """Run a MERGE, again as long as other writers come between."""
    while True:
        try:
            lake.spark.sql(MERGE.format(table=table, source=source))
        except PySparkException as error:
            if "Run the statement again" not in str(error):
                raise
        else:
            return


KINDS: dict[str, Callable[[Lake, int], Iterator[int]]] = {
    "stream": streams,
    "partitions": divides,
    "append": appends,
    "overwrite": overwrites,
    "upsert": upserts,
    "pipeline": pipes,
    "upkeep": keeps,
}
"""The kinds of work: each continues after the acknowledged works and yields the number done."""
SHARING = {"share": shares}
"""The same for concurrent writers, which number their works differently."""


def commanded(what: str) -> bool:
    commands = Path(os.environ["COMMANDS"])
    return commands.exists() and commands.read_text() == what


def die_at(moment: str) -> None:
    """Kill the driver, its JVM, their workers, and this process last, if ``moment`` is commanded.

    ``written``: a task has written its rows. ``committing``: before the commit of a batch. ``committed``: after the
    commit, before Spark receives its outcome.
    """
    if not commanded(moment):
        return
    session = os.getsid(0)
    processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    for process in sorted(processes, key=lambda process: process == os.getpid()):
        with suppress(ProcessLookupError):
            if os.getsid(process) == session:
                os.kill(process, signal.SIGKILL)


class Mortal:
    """A writer whose process may die before and after its commit."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        die_at("committing")
        super().commit(messages, batchId)  # type: ignore[misc]  # of the writer that follows in the order of classes
        die_at("committed")


class MortalWriter(Mortal, StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenByQuery:
        written = super().write(iterator)
        if written.fragments:
            die_at("written")
        return written


class MortalPartitionWriter(Mortal, PartitionStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenByTask:
        written = super().write(iterator)
        if written.parts:
            die_at("written")
        return written


class MortalSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = MortalWriter if isinstance(writer, StreamWriter) else MortalPartitionWriter
        return writer


class Rounds:
    """Let every kind begin its next work together.

    Otherwise the quick kinds take the cores from the slow ones, and a death finds the slow ones at their beginning.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._finished = dict.fromkeys(kinds, 0)
        self._changed = Condition()

    def finish(self, kind: str) -> None:
        """Wait until every kind has finished as many works."""
        with self._changed:
            self._finished[kind] += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._finished[kind] <= min(self._finished.values()))

    def leave(self, kind: str) -> None:
        with self._changed:
            del self._finished[kind]
            self._changed.notify_all()


def work(session: SparkSession, kind: str, works: Iterator[int], rounds: Rounds | None = None) -> None:
    """Run the works in turn; an error ends the program."""
    try:
        session.createDataFrame([(1,)], "one int")  # a new thread has no active session otherwise
        for done in works:
            os.write(1, f"{kind} {done}\n".encode())
            if commanded("stop"):
                break
            if rounds:
                rounds.finish(kind)
        if rounds:
            rounds.leave(kind)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def main(place: Path, master: str, done: Mapping[str, int]) -> None:
    quick = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={place}"
    session = (
        SparkSession.builder.master(master)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", quick)
        .config("spark.executor.extraJavaOptions", quick)
        .config("spark.local.dir", str(place / "scratch"))
        .config("spark.deploy.maxExecutorRetries", "-1")
        .config("spark.sql.catalogImplementation", "in-memory")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")  # compiling costs more than the few rows
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(MortalSource)
    lake = Lake(place, session)
    kinds = {kind: (KINDS | SHARING)[kind](lake, number) for kind, number in done.items()}
    for kind, begun in kinds.items():  # one at a time: Spark gives a cold worker ten seconds to start
        work(session, kind, islice(begun, 1))
    rounds = Rounds(kinds)
    threads = [Thread(target=work, args=(session, *begun, rounds)) for begun in kinds.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.stop()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        {kind: int(number) for kind, _, number in (argument.partition("=") for argument in sys.argv[3:])},
    )
