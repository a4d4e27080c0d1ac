"""Run the tasks of a job on Spark, and summarize what the job did.

Tasks receive plain values (a URI, storage options, a version, fragment ids), never a catalog. They return what the
driver needs for its single commit. A task may run twice, so tasks must be idempotent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import attrs
import lance

from lancekeep.application.catalog import Catalog
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import Unsupported
from lancekeep.domain.identifiers import Identifier
from lancekeep.entrypoints.spark.failures import translated
from lancekeep.entrypoints.spark.internals.sessions import is_classic
from lancekeep.entrypoints.spark.worker_gc import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

MOST_TASKS = 4096

_INTERVAL = 0.2


def repetitions(*, exactly: bool) -> int:
    """Return how often the engine may repeat a commit that lost a race.

    Before it repeats a commit, the engine waits for several times the duration of the first attempt. A commit of an
    exact version can only fail again.
    """
    return 0 if exactly else 20


def commit_transaction(catalog: Catalog, table: Identifier, transaction: lance.Transaction) -> Committed:
    """Commit a transaction of the engine directly after the version that it read.

    Raises:
        ConcurrentModification: Another writer has that version.
    """

    def commit(latest: lance.LanceDataset) -> lance.LanceDataset:
        return lance.LanceDataset.commit(latest, transaction, max_retries=repetitions(exactly=True))

    return catalog.commit_change(table, commit, after=transaction.read_version)


@attrs.frozen
class Summary:
    """The result of a job.

    Attributes:
        job: The name of the job.
        table: The table.
        rows: The rows that it ingested, computed or rewrote.
        bytes: The bytes that it read.
        seconds: The duration.
        before: The version before the job; None if the job created the table.
        version: The version after the job; equal to ``before`` if there was nothing to do.
        counts: Further counts, by name.
    """

    job: str
    table: str
    rows: int
    bytes: int
    seconds: float
    before: int | None
    version: int | None
    counts: Mapping[str, int] = attrs.field(factory=dict)

    def __str__(self) -> str:
        size = f"{self.bytes / 1e6:,.1f} MB"
        versions = "nothing to do" if self.before == self.version else f"version {self.before or 0} -> {self.version}"
        counts = "".join(f", {number:,} {name}" for name, number in self.counts.items() if number)
        return f"{self.job} {self.table}: {versions}; {self.rows:,} rows, {size} in {self.seconds:.1f} s{counts}"


def quiet(done: int, total: int, name: str) -> None:
    """Ignore progress."""


class Clock:
    """Measure the seconds since its creation."""

    def __init__(self) -> None:
        self._began = monotonic()

    @property
    def seconds(self) -> float:
        return round(monotonic() - self._began, 3)


def run(
    spark: SparkSession, name: str, title: str, items: Sequence[T], task: Callable[[T], R], progress: Progress = quiet
) -> list[R]:
    """Apply a function to each item on Spark and return the results in order.

    Each item is one task; beyond `MOST_TASKS` items, neighbours share one, because Spark's state of a job grows with
    its tasks. An exception such as Ctrl-C cancels the tasks.

    Args:
        spark: The session.
        name: The table, for messages.
        title: The title of the progress report.
        items: The items.
        task: The function.
        progress: Receives the number of finished tasks.

    Raises:
        Unsupported: The session is one of Spark Connect.
        Retryable: A task failed as often as Spark allows.
        LancekeepError: A task raised it.
    """
    require_classic(spark)
    if not items:
        return []

    def answer(item: T) -> R:
        freeze_imports()
        return task(item)

    tasks = min(len(items), MOST_TASKS)
    with translated(name), _watched(spark, f"{title}: {name}", tasks, progress):
        return spark.sparkContext.parallelize(items, tasks).map(answer).collect()


def require_classic(spark: SparkSession) -> None:
    """Check that jobs can run functions on the executors through the driver's JVM.

    Raises:
        Unsupported: The session is one of Spark Connect.
    """
    if not is_classic(spark):
        raise Unsupported(
            "jobs need a classic session of Spark, and this is one of Spark Connect, whose driver is another process. "
            "Run the job in the driver, or start a session of its own: lancekeep.jobs.session()"
        )


@contextmanager
def _watched(spark: SparkSession, title: str, total: int, progress: Progress) -> Iterator[None]:
    """Group Spark's jobs of the context, so that they are cancelled together, and report their finished tasks."""
    context = spark.sparkContext
    tracker = context.statusTracker()
    group = f"lancekeep-{uuid4().hex}"
    before = {name: context.getLocalProperty(name) for name in _GROUP_PROPERTIES}
    context.setJobGroup(group, title, interruptOnCancel=True)
    stopped = threading.Event()

    def tell() -> None:
        while not stopped.wait(_INTERVAL):
            jobs = [job for number in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(number))]
            stages = [stage for job in jobs for number in job.stageIds if (stage := tracker.getStageInfo(number))]
            progress(sum(stage.numCompletedTasks for stage in stages), total, title)

    watcher = threading.Thread(target=tell, name="lancekeep-progress", daemon=True)
    watcher.start()
    try:
        yield
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        stopped.set()
        watcher.join()
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it
    progress(total, total, title)


_GROUP_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
