"""Let Spark's UI show what scans read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lancekeep.entrypoints.spark.internals.metrics import custom_metrics, driver_metrics
from lancekeep.entrypoints.spark.reading import BY_INDEX, READ_BYTES, READ_ROWS, REQUESTS
from lancekeep.entrypoints.spark.sql.jvm import Proxy

PARTITIONS = "partitions"
PRUNED_PARTITIONS = "prunedPartitions"
FRAGMENTS = "fragments"
PRUNED = "prunedFragments"
NAMED = "namedRows"
"""The names of the numbers that the driver knows about a scan."""

_DESCRIPTIONS = {
    PARTITIONS: "partitions selected",
    PRUNED_PARTITIONS: "partitions pruned",
    FRAGMENTS: "fragments selected",
    PRUNED: "fragments pruned",
    NAMED: "rows named by an index",
    BY_INDEX: "reads by an index",
    READ_ROWS: "rows read",
    READ_BYTES: "bytes read from storage",
    REQUESTS: "requests to storage",
}
_OF_TASKS = (READ_ROWS, READ_BYTES, REQUESTS, BY_INDEX)


class Metered(Proxy):
    """Answers for a scan with metrics.

    Attributes:
        _of_plan: The names of the numbers that `_planned` returns.
    """

    _of_plan: tuple[str, ...] = ()

    def supportedCustomMetrics(self) -> Any:
        shown = (*self._of_plan, *(_OF_TASKS if self._reports() else ()))
        return custom_metrics(self._jvm, {name: _DESCRIPTIONS[name] for name in shown})

    def reportDriverMetrics(self) -> Any:
        return driver_metrics(self._jvm, self._planned())

    def _reports(self) -> bool:
        """Return whether the tasks report what they read."""
        return False

    def _planned(self) -> Mapping[str, int]:
        """Return the numbers that the driver knows when it has planned the tasks."""
        return {}
