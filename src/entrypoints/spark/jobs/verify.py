"""Verify tables on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lancekeep.application.catalog import Catalog
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.domain.identifiers import Identifier
from lancekeep.entrypoints.isolation import Crashed, apart
from lancekeep.entrypoints.spark.jobs.tasks import quiet, run
from lancekeep.entrypoints.verification import Found, Task, Verification, Work, verify_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify(
    spark: SparkSession,
    catalog: Catalog,
    tables: Iterable[Identifier] | None = None,
    *,
    deep: bool = False,
    digests: bool = True,
    progress: Progress = quiet,
) -> Verification:
    """Check tables on Spark, without writing to them.

    `lancekeep.verify` describes the checks, the arguments and the result.

    Args:
        spark: The session.
        catalog: As of `lancekeep.verify`, like the other arguments.
        tables: As of `lancekeep.verify`.
        deep: As of `lancekeep.verify`.
        digests: As of `lancekeep.verify`.
        progress: Receives the number of examined tables, then the number of finished tasks.

    Raises:
        TableNotFound: One of ``tables`` does not exist.
        InvalidInput: A table name is invalid.
        Retryable: The Spark job failed.
    """

    def on_spark(name: str, work: Sequence[Work], task: Task) -> Iterable[Found | Crashed]:
        return run(spark, name, "verify", work, partial(apart, task=task), progress)

    return verify_by(on_spark, catalog, tables, deep=deep, digests=digests, indexes=False, progress=progress)
