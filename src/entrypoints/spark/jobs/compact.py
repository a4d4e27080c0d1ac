"""Compact tables: workers rewrite small fragments, the driver commits once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from lance.optimize import Compaction, CompactionOptions, CompactionTask, RewriteResult

from lancekeep.adapters.lance.sorted_rewrite import execute
from lancekeep.application.catalog import Catalog, services_of
from lancekeep.application.rows.compactions import ATTEMPTS, REPEATED, given_up
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.domain.clustering import cluster_columns
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.entrypoints.spark.jobs.tasks import Clock, Summary, quiet, run
from lancekeep.entrypoints.spark.reading import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compact(
    spark: SparkSession,
    catalog: Catalog,
    table: Identifier,
    *,
    target_rows: int = 1 << 20,
    progress: Progress = quiet,
) -> Summary:
    """Rewrite adjacent small fragments, and fragments with many deleted rows.

    The rows of a clustered table are sorted.

    Concurrent appends do not conflict. A concurrent delete, update or index of the same fragments wins; the job then
    plans again, for at most five attempts. A repeated run finds nothing to do.

    Args:
        spark: The session.
        catalog: The catalog of the table.
        table: The table.
        target_rows: Fragments with fewer rows are small.
        progress: Receives the number of finished tasks.

    Raises:
        InvalidInput: ``target_rows`` is less than 1.
        TableNotFound: The table does not exist.
        Retryable: The Spark job failed; nothing was committed.
        ConcurrentModification: Every attempt met a conflict; nothing was committed.
    """
    if target_rows < 1:
        raise InvalidInput("target_rows is 1 or more")
    clock = Clock()
    name = ObjectId.of(table)
    before = catalog.open(name).version
    options: CompactionOptions = {"target_rows_per_fragment": target_rows}
    compactions = services_of(catalog).compactions
    columns = cluster_columns(catalog.find_table(name).properties)
    root = compactions.root(name)
    for _ in range(ATTEMPTS):
        dataset = catalog.open(name)
        plan = Compaction.plan(dataset, options)
        if not plan.num_tasks():
            return Summary("compact", str(name), 0, 0, clock.seconds, before, before)
        old = [fragment for task in plan.tasks for fragment in task.fragments]
        snapshot = Snapshot.of(catalog, dataset)
        rewrite = partial(_rewrite, snapshot=snapshot, columns=columns, target_rows=target_rows)
        rewritten = run(spark, str(name), "compact", plan.tasks, rewrite, progress)
        try:
            committed = catalog.upkeep.commit_compaction(name, rewritten)
        except REPEATED as error:
            refusal = error
            compactions.discard(root, rewritten)
            continue
        counts = {
            "fragments removed": sum(result.metrics.fragments_removed for result in rewritten),
            "fragments added": sum(result.metrics.fragments_added for result in rewritten),
        }
        rows = sum(fragment.physical_rows - (fragment.num_deletions or 0) for fragment in old)
        size = sum(file.file_size_bytes or 0 for fragment in old for file in fragment.files)
        return Summary("compact", str(name), rows, size, clock.seconds, before, committed.version, counts)
    raise given_up(name, refusal) from refusal


def _rewrite(task: CompactionTask, snapshot: Snapshot, columns: Sequence[str], target_rows: int) -> RewriteResult:
    done: RewriteResult = execute(snapshot.open(), task, columns, target_rows)
    return done
