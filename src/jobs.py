"""Jobs over tables, run on Spark: ``lancekeep.jobs``.

>>> from lancekeep.jobs import ingest, session
>>> spark = session()  # doctest: +SKIP
>>> ingest(spark, catalog, "travel.flights", "s3://bucket/landing/*.parquet")  # doctest: +SKIP

Start Spark before you connect: Spark forks when it starts, and a process that has used pylance should not fork.
"""

from __future__ import annotations

from lancekeep.entrypoints.spark.jobs.backfill import backfill
from lancekeep.entrypoints.spark.jobs.compact import compact
from lancekeep.entrypoints.spark.jobs.files import require_sources
from lancekeep.entrypoints.spark.jobs.index import index
from lancekeep.entrypoints.spark.jobs.ingest import ingest
from lancekeep.entrypoints.spark.jobs.session import columns_of, session, ship
from lancekeep.entrypoints.spark.jobs.tasks import Summary
from lancekeep.entrypoints.spark.jobs.upsert import changes_in, upsert
from lancekeep.entrypoints.spark.jobs.verify import verify
from lancekeep.entrypoints.verification import Problem, Verification, VerifiedTable

__all__ = [
    "Problem",
    "Summary",
    "Verification",
    "VerifiedTable",
    "backfill",
    "changes_in",
    "columns_of",
    "compact",
    "index",
    "ingest",
    "require_sources",
    "session",
    "ship",
    "upsert",
    "verify",
]
