"""Keep the history of a timetable from deliveries of flights, of which some are late.

``python examples/medallion.py LAKE --months 3`` delivers three months of flights, and moves them through bronze, silver
and gold tables. Run it again with more months: it changes only what they change. Kill it at any moment and run it
again: the result is the same. It ends with a check of its own result, and with status 1 if the check fails.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import zipfile
from collections import defaultdict
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import lance
from demo import package_file

import lancekeep
import lancekeep.spark
from lancekeep.jobs import ingest, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CARRIERS = ("AS", "F9", "FL", "HA", "VX")
LATE = range(10, 16)  # the flights of these days of a month come with the file of the next month
CONNECTION = ("carrier", "flight", "origin", "dest")
FLIGHT = (*CONNECTION, "date")
PERIOD = (*CONNECTION, "valid_from")


def main() -> int:
    parser = argparse.ArgumentParser(description="the history of a timetable, with late flights")
    parser.add_argument("lake", type=Path, help="the folder of the tables and files")
    parser.add_argument("--months", type=int, default=3, choices=range(1, 13), help="months to deliver")
    chosen = parser.parse_args()
    spark = session("local[2]")
    try:
        run(spark, chosen.lake.resolve(), chosen.months)
    except Wrong as error:
        print(f"WRONG: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


def run(spark: SparkSession, lake: Path, months: int) -> None:
    """Deliver files, move them through all tables, and check the result."""
    landing = lake / "landing"
    deliver(landing, months)
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    with lancekeep.spark.install(spark, "lake", str(lake), commit_store=f"sqlite://{quote(str(lake))}/commits.db") as c:
        for layer in ("bronze", "silver", "gold"):
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{layer}")
        bronze(spark, c, landing)
        flights(spark, c)
        timetable(spark, c)
        punctuality(spark, c)
        names = ("silver.flights", "silver.timetable", "gold.punctuality")
        check(landing, {name: c.describe_table(name).uri for name in names})


def deliver(landing: Path, months: int) -> None:
    """Write a file for each month, as senders do: with late flights, and with flights that were sent before."""
    with zipfile.ZipFile(package_file("flights.csv.zip")) as archive:
        lines = csv.DictReader(io.StringIO(archive.read("flights.csv").decode()))
        rows = [row for row in lines if row["carrier"] in CARRIERS]
    files: dict[int, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        month, day = int(row["month"]), int(row["day"])
        files[month + (day in LATE)].append(row)
        if day == 1:  # sent twice
            files[month + 1].append(row)
    landing.mkdir(parents=True, exist_ok=True)
    for month in range(1, months + 1):
        file = landing / f"2013-{month:02}.csv"
        if not file.exists():  # with another time, bronze would call it changed
            arriving = file.with_suffix(".arriving")
            with arriving.open("w", newline="") as text:
                writer = csv.DictWriter(text, list(rows[0]))
                writer.writeheader()
                writer.writerows(files[month])
            arriving.rename(file)  # whole or not at all


# -- the tables -----------------------------------------------------------------------------------------------------


def bronze(spark: SparkSession, catalog: lancekeep.Catalog, landing: Path) -> None:
    """Append the lines of new files, all text. The table remembers its files."""
    files = sorted(landing.glob("*.csv"))
    with files[0].open() as lines:
        columns = ", ".join(f"{column} STRING" for column in next(lines).strip().split(","))
    spark.sql(f"CREATE TABLE IF NOT EXISTS lake.bronze.flights ({columns})")
    done = ingest(spark, catalog, "bronze.flights", str(landing / "*.csv"))
    print(f"bronze.flights: {done.rows:,} lines from new files", flush=True)


def flights(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    """Insert the flights of new lines with their types, each once."""
    spark.sql("""
        CREATE TABLE IF NOT EXISTS lake.silver.flights (
            carrier STRING, flight INT, origin STRING, dest STRING, date DATE, departs INT, delay INT,
            PRIMARY KEY (carrier, flight, origin, dest, date)
        ) TBLPROPERTIES ('lancekeep.stable_row_ids' = 'true')
    """)
    read = changes(spark, catalog, "bronze.flights", "silver.flights")
    spark.sql("""
        SELECT DISTINCT carrier, int(flight) AS flight, origin, dest,
               make_date(int(year), int(month), int(day)) AS date, int(sched_dep_time) AS departs,
               int(nullif(dep_delay, 'NA')) AS delay
        FROM changed
    """).createOrReplaceTempView("arrived")
    spark.sql(f"""
        MERGE INTO lake.silver.flights t USING arrived s ON {equal(FLIGHT)}
        WHEN NOT MATCHED THEN INSERT *
    """)
    finish(spark, "silver.flights", read)


def timetable(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    """Compute the periods of the connections that have new flights: a slowly changing dimension of type 2.

    A connection departs at one time from the first flight at that time until the first flight at another time. A late
    flight may begin a period in the middle, or end one earlier, so all periods of its connection are computed.
    """
    spark.sql("""
        CREATE TABLE IF NOT EXISTS lake.silver.timetable (
            carrier STRING, flight INT, origin STRING, dest STRING, valid_from DATE, valid_to DATE, departs INT,
            PRIMARY KEY (carrier, flight, origin, dest, valid_from)
        ) TBLPROPERTIES ('lancekeep.stable_row_ids' = 'true')
    """)
    read = changes(spark, catalog, "silver.flights", "silver.timetable")
    spark.sql(f"""
        WITH flown AS (
            SELECT f.*, lag(departs) OVER (PARTITION BY {listed(CONNECTION)} ORDER BY date) AS before
            FROM lake.silver.flights VERSION AS OF {read["silver.flights"]} f
            LEFT SEMI JOIN changed USING ({listed(CONNECTION)})
        )
        SELECT {listed(CONNECTION)}, date AS valid_from,
               lead(date) OVER (PARTITION BY {listed(CONNECTION)} ORDER BY date) AS valid_to, departs
        FROM flown WHERE before IS NULL OR before <> departs
    """).createOrReplaceTempView("computed")
    replace(spark, "silver.timetable", PERIOD)
    finish(spark, "silver.timetable", read)


def punctuality(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    """Compute flights and delays of each period of the connections that have new flights."""
    spark.sql("""
        CREATE TABLE IF NOT EXISTS lake.gold.punctuality (
            carrier STRING, flight INT, origin STRING, dest STRING, valid_from DATE, departs INT,
            flights BIGINT, cancelled BIGINT, delay DOUBLE,
            PRIMARY KEY (carrier, flight, origin, dest, valid_from)
        ) TBLPROPERTIES ('lancekeep.stable_row_ids' = 'true')
    """)
    read = changes(spark, catalog, "silver.flights", "gold.punctuality")
    spark.sql(f"""
        SELECT {", ".join(f"p.{column}" for column in PERIOD)}, first(p.departs) AS departs,
               count(*) AS flights, count_if(delay IS NULL) AS cancelled, avg(delay) AS delay
        FROM lake.silver.timetable p
        JOIN lake.silver.flights VERSION AS OF {read["silver.flights"]} f
          ON {equal(CONNECTION, "f", "p")} AND f.date >= p.valid_from AND (p.valid_to IS NULL OR f.date < p.valid_to)
        LEFT SEMI JOIN changed c ON {equal(CONNECTION, "c", "p")}
        GROUP BY {", ".join(f"p.{column}" for column in PERIOD)}
    """).createOrReplaceTempView("computed")
    replace(spark, "gold.punctuality", PERIOD)
    finish(spark, "gold.punctuality", read)


# -- what each step of them does ------------------------------------------------------------------------------------


def changes(spark: SparkSession, catalog: lancekeep.Catalog, source: str, target: str) -> dict[str, int]:
    """Let the view ``changed`` be the rows of the source that the target has not read; return what it then has read.

    The target remembers the version of the source in a property, which is set after its rows. If the process is killed
    in between, the same rows are read again, and change nothing.
    """
    latest = catalog.describe_table(source).version or 0
    before = int(catalog.describe_table(target).properties.get(f"read.{source}", 1))  # version 1 has no rows
    if before < latest:
        spark.sql(f"""
            SELECT * FROM lake.{source} CHANGES FROM VERSION {before + 1} TO VERSION {latest}
        """).createOrReplaceTempView("changed")
    else:
        spark.table(f"lake.{source}").where("false").createOrReplaceTempView("changed")
    return {source: latest}


def finish(spark: SparkSession, target: str, read: dict[str, int]) -> None:
    for source, version in read.items():
        spark.sql(f"ALTER TABLE lake.{target} SET TBLPROPERTIES ('read.{source}' = '{version}')")


def replace(spark: SparkSession, target: str, key: tuple[str, ...]) -> None:
    """Let the target have the rows of ``computed`` for the connections of ``changed``, as one version."""
    columns = [column for column in spark.table(f"lake.{target}").columns if column not in key]
    differ = " OR ".join(f"NOT t.{column} <=> s.{column}" for column in columns)
    spark.sql(f"""
        SELECT *, false AS gone FROM computed
        UNION ALL
        SELECT t.*, true FROM lake.{target} t
        LEFT SEMI JOIN changed c ON {equal(CONNECTION, "c", "t")}
        LEFT ANTI JOIN computed s ON {equal(key)}
    """).createOrReplaceTempView("replacement")
    assigned = ", ".join(f"{column} = s.{column}" for column in columns)
    names = [*key, *columns]
    spark.sql(f"""
        MERGE INTO lake.{target} t USING replacement s ON {equal(key)}
        WHEN MATCHED AND s.gone THEN DELETE
        WHEN MATCHED AND ({differ}) THEN UPDATE SET {assigned}
        WHEN NOT MATCHED THEN INSERT ({listed(names)}) VALUES ({listed([f"s.{name}" for name in names])})
    """)


def equal(columns: tuple[str, ...], left: str = "t", right: str = "s") -> str:
    return " AND ".join(f"{left}.{column} = {right}.{column}" for column in columns)


def listed(columns: Any) -> str:
    return ", ".join(columns)


# -- the check, without Spark and without a catalog -----------------------------------------------------------------


class Wrong(Exception):
    """A table does not have the rows that follow from the files."""


def check(landing: Path, uris: dict[str, str]) -> None:
    """Compute all tables from the files with Python alone, and compare them with what pylance reads.

    Raises:
        Wrong: A table has other rows.
    """
    flown: dict[tuple[Any, ...], dict[date, tuple[int, int | None]]] = defaultdict(dict)
    for file in landing.glob("*.csv"):
        with file.open(newline="") as text:
            for row in csv.DictReader(text):
                day = date(int(row["year"]), int(row["month"]), int(row["day"]))
                delay = None if row["dep_delay"] == "NA" else int(row["dep_delay"])
                connection = (row["carrier"], int(row["flight"]), row["origin"], row["dest"])
                flown[connection][day] = (int(row["sched_dep_time"]), delay)
    expected: dict[str, list[tuple[Any, ...]]] = {"silver.flights": [], "silver.timetable": [], "gold.punctuality": []}
    for connection, days in flown.items():
        expected["silver.flights"] += [(*connection, day, *days[day]) for day in days]
        dates = sorted(days)
        begins = [dates[0], *(day for before, day in pairwise(dates) if days[before][0] != days[day][0])]
        for begin, end in zip(begins, [*begins[1:], None], strict=True):
            departs, inside = days[begin][0], [days[day][1] for day in dates if begin <= day < (end or date.max)]
            delays = [delay for delay in inside if delay is not None]
            mean = round(sum(delays) / len(delays), 6) if delays else None
            expected["silver.timetable"].append((*connection, begin, end, departs))
            expected["gold.punctuality"].append(
                (*connection, begin, departs, len(inside), len(inside) - len(delays), mean)
            )
    for name, rows in expected.items():
        dataset = lance.dataset(uris[name])
        found = [tuple(round(value, 6) if isinstance(value, float) else value for value in row.values())
                 for row in dataset.to_table().to_pylist()]  # fmt: skip
        if sorted(found, key=repr) != sorted(rows, key=repr):
            missing, more = set(rows) - set(found), set(found) - set(rows)
            raise Wrong(
                f"{name} has {len(found):,} rows, and the files {len(rows):,}; of which {len(missing):,} are missing "
                f"and {len(more):,} wrong, such as {next(iter(missing or more), 'one that is there twice')}"
            )
        print(f"{name}: {len(found):,} rows, as in the files (version {dataset.version})")


if __name__ == "__main__":
    sys.exit(main())
