"""The metrics of several processes as the metrics of one server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import attrs
from prometheus_client import CollectorRegistry, Metric, generate_latest

_MOMENT: Final = "_created"
"""The suffix of samples that say when a process began to count."""

_TIME: Final = "_timestamp_seconds"
"""The suffix of metrics that are times."""

_Labels = tuple[tuple[str, str], ...]


@attrs.frozen
class Family:
    """The samples of one metric.

    Attributes:
        documentation: What the metric counts.
        kind: ``counter``, ``histogram`` or ``gauge``.
        samples: The values, by the name of the sample and its labels.
    """

    documentation: str
    kind: str
    samples: dict[tuple[str, _Labels], float] = attrs.field(factory=dict)


Snapshot = dict[str, Family]
"""The metrics of one process at one moment, by name."""


def snapshot(registry: CollectorRegistry) -> Snapshot:
    """Return the present values of all metrics of a registry."""
    return {
        metric.name: Family(
            metric.documentation,
            metric.type,
            {
                (sample.name, tuple(sample.labels.items())): sample.value
                for sample in metric.samples
                if not sample.name.endswith(_MOMENT)
            },
        )
        for metric in registry.collect()
    }


def total(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Return the sums of the metrics of several processes; of times, the latest."""
    sums: Snapshot = {}
    for each in snapshots:
        for name, family in each.items():
            samples = sums.setdefault(name, Family(family.documentation, family.kind)).samples
            for key, value in family.samples.items():
                known = samples.get(key, 0.0)
                samples[key] = max(known, value) if name.endswith(_TIME) else known + value
    return sums


def counted(ended: Snapshot) -> Snapshot:
    """Return what a process that has ended counted, without its present state."""
    return {name: family for name, family in ended.items() if family.kind != "gauge"}


def text(metrics: Snapshot) -> bytes:
    """Return metrics in the text format of Prometheus."""
    return generate_latest(_Collected(metrics))


@attrs.frozen
class _Collected:
    metrics: Snapshot

    def collect(self) -> Iterator[Metric]:
        for name, family in self.metrics.items():
            metric = Metric(name, family.documentation, family.kind)
            for (sample, labels), value in family.samples.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
