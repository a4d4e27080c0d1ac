"""The metrics of several workers as those of one server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lancekeep.entrypoints.rest.metrics import counted, snapshot, text, total


def process(requests: int, running: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = Counter("requests", "Requests.", ("status",), registry=registry)
    seconds = Histogram("seconds", "Time.", registry=registry, buckets=(1, 2))
    Gauge("running", "Running.", registry=registry).set(running)
    for _ in range(requests):
        counter.labels("200").inc()
        seconds.observe(1.5)
    return registry


def lines(content: bytes) -> set[str]:
    return {line for line in content.decode().splitlines() if "_created" not in line}


def test_metrics_of_one_process_are_shown_as_without_workers() -> None:
    registry = process(3, 2)
    assert lines(text(snapshot(registry))) == lines(generate_latest(registry))


def test_metrics_of_processes_are_added() -> None:
    both = total((snapshot(process(3, 2)), snapshot(process(4, 1))))
    assert lines(text(both)) == lines(generate_latest(process(7, 3)))


def test_the_latest_time_of_processes_is_shown() -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    for registry, at in zip(registries, (5.0, 3.0), strict=True):
        Gauge("last_timestamp_seconds", "Last.", registry=registry).set(at)
    assert lines(text(total(map(snapshot, registries)))) == lines(generate_latest(registries[0]))


def test_ended_process_counts_and_is_not_running() -> None:
    both = total((counted(snapshot(process(3, 2))), snapshot(process(4, 1))))
    assert lines(text(both)) == lines(generate_latest(process(7, 1)))
