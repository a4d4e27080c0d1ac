"""Running the tasks of a job on Spark, and what a job tells when it is done.

Tasks get plain values (a URI, storage options, a version, the ids of fragments), never a catalog, and answer with what
the driver needs for its one commit. A task may run twice: what it does has to come to the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import attrs

from lancekeep.application.upkeep.fsck import Progress
from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.spark.daemon import freeze_imports
from lancekeep.entrypoints.spark.failures import translated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

MOST_TASKS = 4096

_INTERVAL = 0.2


@attrs.frozen
class Summary:
    """What a job did.

    rows: that it took in, computed or rewrote. bytes: that it read. seconds: how long it took. before, version: of the
    table before and after it; ``before`` is None for a table that it made, and both are equal where there was nothing
    to do. counts: what else there is to count, by name.
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
    """Progress that nobody watches."""


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = monotonic()

    @property
    def seconds(self) -> float:
        return round(monotonic() - self._began, 3)


def run(
    spark: SparkSession, name: str, title: str, items: Sequence[T], task: Callable[[T], R], progress: Progress = quiet
) -> list[R]:
    """What ``task`` answers for each item, in their order; each is a task of Spark's, all of one job.

    With more items than `MOST_TASKS` neighbours share one: what Spark keeps of a job grows with its tasks. name: the
    table, for messages. Stopped by an exception (Ctrl-C), the tasks are cancelled. Raises `Retryable` where a task
    failed as often as Spark allows, and the error itself where it is one of Lancekeep's.
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
    """Raise `Unsupported` for a session of Spark Connect: jobs run functions on the executors by the driver's JVM."""
    if not hasattr(spark, "_jsparkSession"):
        raise Unsupported(
            "jobs need a classic session of Spark, and this is one of Spark Connect, whose driver is another process. "
            "Run the job in the driver, or start a session of its own: lancekeep.jobs.session()"
        )


@contextmanager
def _watched(spark: SparkSession, title: str, total: int, progress: Progress) -> Iterator[None]:
    """A group for Spark's jobs within it: they are cancelled together, and progress tells how many tasks are done."""
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
