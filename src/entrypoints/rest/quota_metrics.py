"""The metrics of quotas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from threading import Lock

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lancekeep.domain.errors import QuotaExceeded
from lancekeep.entrypoints.metering import Meter


class QuotaMetrics(Collector):
    """Collects the limits of quotas, what is used of them, and refusals.

    The labels name a quota by its position in the policy: metrics need no credentials, so they name no object.

    Args:
        meter: What measures the quotas.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._refused: Counter[tuple[str, str]] = Counter()
        self._lock = Lock()

    def refused(self, error: QuotaExceeded) -> None:
        """Count a request that a quota refused."""
        with self._lock:
            self._refused[str(error.quota), error.resource] += 1

    def collect(self) -> Iterator[Metric]:
        """Return the present values."""
        labels = ("quota", "resource")
        limit = GaugeMetricFamily("lancekeep_quota_limit", "The tables or bytes of a quota.", labels=labels)
        used = GaugeMetricFamily(
            "lancekeep_quota_used", "What the subtree of a quota had when it was measured last.", labels=labels
        )
        refusals = CounterMetricFamily("lancekeep_quota_refusals", "Requests that a quota refused.", labels=labels)
        with self._lock:
            counted = dict(self._refused)
        for each in self._meter.usages():
            figures = (("tables", each.max_tables, each.tables), ("bytes", each.max_bytes, each.bytes))
            for resource, most, found in figures:
                if most is not None:
                    key = (str(each.quota), resource)
                    limit.add_metric(key, most)
                    counted.setdefault(key, 0)
                    if found is not None:
                        used.add_metric(key, found)
        for key, count in counted.items():
            refusals.add_metric(key, count)
        age = self._meter.age()
        yield limit
        yield used
        yield refusals
        measured = GaugeMetricFamily(
            "lancekeep_quota_measurement_age_seconds", "Seconds since the last measurement of the quotas began."
        )
        if age is not None:
            measured.add_metric((), age)
        yield measured
