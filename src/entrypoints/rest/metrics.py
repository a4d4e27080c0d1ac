"""The metrics of several processes as the metrics of one server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

_MOMENT: Final = "_created"
"""The suffix of samples that say when a process began to count."""

_TIME: Final = "_timestamp_seconds"
"""The suffix of metrics that are times."""

_OF_ALL: Final = "lancekeep_quota_"
"""The beginning of gauges that each process measures for the whole catalog."""

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
    """Return the sums of the metrics of several processes.

    Of times, return the latest. Of gauges that each process measures for the whole catalog, return the greatest.
    """
    sums: Snapshot = {}
    for each in snapshots:
        for name, family in each.items():
            samples = sums.setdefault(name, Family(family.documentation, family.kind)).samples
            is_shared = name.endswith(_TIME) or (family.kind == "gauge" and name.startswith(_OF_ALL))
            for key, value in family.samples.items():
                known = samples.get(key, 0.0)
                samples[key] = max(known, value) if is_shared else known + value
    return sums


def counted(ended: Snapshot) -> Snapshot:
    """Return what a process that has ended counted, without its present state."""
    return {name: family for name, family in ended.items() if family.kind != "gauge"}


def text(metrics: Snapshot) -> bytes:
    """Return metrics in the text format of Prometheus."""
    return generate_latest(_Collected(metrics))


def labelled(metrics: Snapshot, name: str, value: str) -> Snapshot:
    """Return metrics with one more label on each sample."""
    return {
        each: attrs.evolve(
            family,
            samples={(sample, (*labels, (name, value))): count for (sample, labels), count in family.samples.items()},
        )
        for each, family in metrics.items()
    }


class Exposition:
    """Answers with the metrics of a server.

    Attributes:
        registry: The metrics of this process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._gather: Callable[[], Awaitable[Snapshot]] | None = None

    def gather_by(self, gather: Callable[[], Awaitable[Snapshot]]) -> None:
        """Show the metrics of all workers of the server, not of this process alone."""
        self._gather = gather

    async def answer(self, request: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        content = generate_latest(self.registry) if self._gather is None else text(await self._gather())
        return Response(content, media_type=CONTENT_TYPE_LATEST)


class OfCatalogs(Collector):
    """Collects the metrics of several catalogs.

    Each sample has the name of its catalog as the label ``catalog``.

    Args:
        registries: Returns the metrics of each catalog by its name; the server's own have the name "".
    """

    def __init__(self, registries: Callable[[], Mapping[str, CollectorRegistry]]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        """Return the present values."""
        found = self._registries().items()
        return _Collected(total(labelled(snapshot(each), "catalog", name) for name, each in found)).collect()


@attrs.frozen
class _Collected:
    metrics: Snapshot

    def collect(self) -> Iterator[Metric]:
        for name, family in self.metrics.items():
            metric = Metric(name, family.documentation, family.kind)
            for (sample, labels), value in family.samples.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
