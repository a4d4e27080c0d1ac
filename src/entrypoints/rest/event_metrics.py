"""The metrics of recording and delivering events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lancekeep.application.events.deliveries import Deliveries, DeliveryCounts
from lancekeep.entrypoints.events import EventRecording

_COUNTERS: dict[str, tuple[str, Callable[[DeliveryCounts], int]]] = {
    "lancekeep_delivered_events": ("Events that a subscriber has taken.", lambda counts: counts.events),
    "lancekeep_dead_letters": ("Deliveries that were given up and stored.", lambda counts: counts.dead_letters),
    "lancekeep_delivery_gaps": (
        "How often events were removed from the log before a subscriber had them.",
        lambda counts: counts.gaps,
    ),
    "lancekeep_delivery_errors": (
        "How often the log or the storage failed while events were delivered.",
        lambda counts: counts.errors,
    ),
}


class EventMetrics(Collector):
    """Collects what recording and delivering events led to, in this process.

    Args:
        recording: The recording.
        deliveries: The deliveries to each subscriber.
    """

    def __init__(self, recording: EventRecording, deliveries: Sequence[Deliveries]) -> None:
        self._recording = recording
        self._deliveries = deliveries

    def collect(self) -> Iterator[Metric]:
        """Return the present values."""
        recording, each_of = self._recording, self._deliveries
        yield CounterMetricFamily("lancekeep_events_recorded", "Events that were recorded.", recording.recorded)
        yield CounterMetricFamily("lancekeep_event_failures", "Runs of the recorder that failed.", recording.failures)
        yield GaugeMetricFamily(
            "lancekeep_events_last_run_timestamp_seconds",
            "When the last run of the recorder succeeded.",
            recording.succeeded_at,
        )
        for name, (documentation, value) in _COUNTERS.items():
            counter = CounterMetricFamily(name, documentation, labels=("subscriber",))
            for each in each_of:
                counter.add_metric((each.subscriber.name,), value(each.counts))
            yield counter
        attempts = CounterMetricFamily(
            "lancekeep_deliveries", "Attempts to deliver events by their results.", labels=("subscriber", "result")
        )
        lag = GaugeMetricFamily(
            "lancekeep_delivery_lag_seconds",
            "The age of the oldest event that was read for a subscriber and that it has not taken.",
            labels=("subscriber",),
        )
        stopped = GaugeMetricFamily(
            "lancekeep_delivery_stopped", "Whether deliveries to a subscriber have stopped.", labels=("subscriber",)
        )
        now = time.time()
        for each in each_of:
            name, counts = each.subscriber.name, each.counts
            for result, count in counts.attempts.items():
                attempts.add_metric((name, result), count)
            since = counts.pending_since
            lag.add_metric((name,), 0.0 if since is None else max(0.0, now - since))
            stopped.add_metric((name,), counts.is_stopped)
        yield attempts
        yield lag
        yield stopped
