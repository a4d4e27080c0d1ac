"""OpenTelemetry traces; needs the extra ``[tracing]``."""

from __future__ import annotations

import os
from importlib.metadata import entry_points

from lancekeep.domain.errors import InvalidInput, MissingExtra

try:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
except ImportError as error:
    raise MissingExtra("traces need OpenTelemetry: pip install 'lancekeep[server,tracing]'") from error

_EXPORTER = "OTEL_TRACES_EXPORTER"


def tracer() -> trace.Tracer:
    """Return the tracer of the server.

    A process that has configured OpenTelemetry keeps its configuration. Otherwise spans go to the exporter that
    ``OTEL_TRACES_EXPORTER`` names, as the OpenTelemetry specification describes; ``console`` is always installed.

    Raises:
        InvalidInput: No exporter is named, or the named one is not installed.
    """
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(_exporter()))
        trace.set_tracer_provider(provider)
    return trace.get_tracer("lancekeep")


def _exporter() -> SpanExporter:
    name = os.environ.get(_EXPORTER, "")
    found = entry_points(group="opentelemetry_traces_exporter", name=name)
    if not found:
        installed = ", ".join(sorted(entry_points(group="opentelemetry_traces_exporter").names))
        raise InvalidInput(f"{_EXPORTER} is {name!r}, which names no installed exporter; installed are {installed}")
    exporter: SpanExporter = next(iter(found)).load()()
    return exporter
