"""Jobs over tables, run on Spark: tasks do the work on the workers, the driver commits once through the catalog."""

from __future__ import annotations

from lancekeep.adapters.spark.jobs.backfill import backfill
from lancekeep.adapters.spark.jobs.compact import compact
from lancekeep.adapters.spark.jobs.index import index
from lancekeep.adapters.spark.jobs.ingest import ingest
from lancekeep.adapters.spark.jobs.session import columns_of, session
from lancekeep.adapters.spark.jobs.tasks import Summary
from lancekeep.adapters.spark.jobs.upsert import upsert
from lancekeep.adapters.spark.jobs.verify import Problem, Verification, VerifiedTable, verify

__all__ = [
    "Problem",
    "Summary",
    "Verification",
    "VerifiedTable",
    "backfill",
    "columns_of",
    "compact",
    "index",
    "ingest",
    "session",
    "upsert",
    "verify",
]
