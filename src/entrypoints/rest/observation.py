"""Logs, metrics and traces of requests.

Each request has an id: the header ``X-Request-Id`` if it is well-formed, else a new id. The id is in the response,
in every line of the log and, as ``instance``, in the body of an error. Neither logs, metrics nor spans hold a query, a
header or a body, which may contain secrets.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from random import Random
from typing import Any
from urllib.parse import parse_qs

from lance_namespace.errors import ErrorCode
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lancekeep.adapters.rest.routes import READS, Route, Router
from lancekeep.application.upkeep.automatic_maintenance import AutomaticMaintenance
from lancekeep.domain.rights import OF_ADMINS
from lancekeep.entrypoints.rest.audit import AuditLog, described, operation_of, outcome, reason_of
from lancekeep.entrypoints.rest.errors import RESOLVE_TOKEN, HttpError, Problem
from lancekeep.entrypoints.rest.logs import log_of
from lancekeep.entrypoints.rest.requests import DELIMITER, Call, route_of
from lancekeep.entrypoints.rest.settings import ServerSettings

REQUEST_ID = "x-request-id"
PREFIX = "prefix"
"""The entry of the state of a request with the path before the paths of a catalog; the paths of the scope lack it."""
_WELL_FORMED = re.compile("[A-Za-z0-9._-]{1,64}")
QUIET = ("/healthz", "/readyz", "/metrics")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Telemetry:
    """The log, the metrics and the tracer of one application.

    Args:
        settings: The settings of the server.
        catalog: The name of the catalog in the log, if the server serves several.
    """

    def __init__(self, settings: ServerSettings, catalog: str | None = None) -> None:
        self.log = log_of(settings) if catalog is None else log_of(settings).bind(catalog=catalog)
        self.tracer = _tracer() if settings.tracing else None
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "lancekeep_requests", "Requests by operation and status.", ("operation", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "lancekeep_request_seconds", "Time to answer.", ("operation",), registry=self.registry, buckets=_BUCKETS
        )
        self.in_progress = Gauge("lancekeep_requests_in_progress", "Requests in progress.", registry=self.registry)
        self.commits = Counter(
            "lancekeep_commits", "Changes by operation and outcome.", ("operation", "outcome"), registry=self.registry
        )

    def count_conflicts(self, last_hour: Callable[[], int]) -> None:
        """Show the commits of this process that lost their version in the last hour."""
        gauge = Gauge(
            "lancekeep_conflicts_last_hour",
            "Commits of this server that lost their version to another writer in the last hour.",
            registry=self.registry,
        )
        gauge.set_function(last_hour)

    def count_abandoned(self, abandoned: Callable[[], int]) -> None:
        """Show the operations of this process for which no caller waits."""
        gauge = Gauge(
            "lancekeep_abandoned_operations",
            "Operations that run although their callers have ceased to wait.",
            registry=self.registry,
        )
        gauge.set_function(abandoned)

    def count_maintenance(self, maintenance: AutomaticMaintenance) -> None:
        """Show the actions of automatic maintenance, and the expired versions."""
        self.registry.register(_Maintenance(maintenance))

    @contextmanager
    def span(self, headers: Headers) -> Iterator[Any]:
        """Run a request in a span below the span of the caller's ``traceparent``."""
        if self.tracer is None:
            yield None
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        parent = extract({name: headers[name] for name in ("traceparent", "tracestate") if name in headers})
        with self.tracer.start_as_current_span("request", context=parent, kind=SpanKind.SERVER) as span:
            yield span

    def record(self, scope: Scope, status: int, seconds: float, span: Any) -> None:
        """Log and count one answered request."""
        state: Mapping[str, Any] = scope["state"]
        method = scope["method"]
        route: Route | None = state.get("route")
        problem: Problem | None = state.get("problem")
        operation = operation_of(state)
        self.requests.labels(operation, str(status)).inc()
        self.seconds.labels(operation).observe(seconds)
        if route and route.operation not in (*READS, *OF_ADMINS):
            self.commits.labels(operation, _outcome(status, problem)).inc()
        fields: dict[str, Any] = {
            "request_id": state["request_id"],
            **described(state, status, scope),
            "method": method,
            "status": status,
            "milliseconds": round(seconds * 1000, 1),
        }
        if problem is not None:
            fields["error"] = reason_of(state["error"], problem)
        if span is not None:
            span.update_name(operation)
            span.set_attributes({"http.request.method": method, "http.response.status_code": status})
            if route:
                span.set_attribute("http.route", route.path)
        call: Call | None = state.get("call")
        failures = [] if call is None else [(each.problem, each.error) for each in list(call.progress.failures)]
        if problem is not None:
            failures.append((problem, state["error"]))
        unexpected = next((error for failed, error in failures if not failed.expected), None)
        if unexpected is not None:
            self.log.error("request", exc_info=unexpected, **fields)
        else:
            (self.log.warning if status >= 500 else self.log.info)("request", **fields)


class _Maintenance(Collector):
    """Collects the state of automatic maintenance."""

    def __init__(self, maintenance: AutomaticMaintenance) -> None:
        self._maintenance = maintenance

    def collect(self) -> Iterator[Metric]:
        """Return the present values."""
        family = CounterMetricFamily(
            "lancekeep_maintenance_actions",
            "Actions of automatic maintenance by kind and outcome.",
            labels=("action", "outcome"),
        )
        for (action, failed), count in dict(self._maintenance.actions).items():
            family.add_metric((action, "failed" if failed else "done"), count)
        yield family
        yield GaugeMetricFamily(
            "lancekeep_maintenance_expired_versions",
            "Versions that automatic maintenance could remove when it last examined their tables.",
            self._maintenance.expired(),
        )
        last = GaugeMetricFamily(
            "lancekeep_maintenance_last_done_timestamp_seconds",
            "When the last action of automatic maintenance had an effect.",
            labels=("action",),
        )
        now = time.time()
        for action, seconds in self._maintenance.since().items():
            last.add_metric((action,), now - seconds)
        yield last


class Observation:
    """ASGI middleware that gives each request an id, and records it.

    Args:
        app: The application.
        telemetry: The log and the metrics of the server.
        router: Names the operations of requests that are refused before they reach an operation.
        audit: The audit log; None without one.
        quiet: The paths whose requests are not recorded.
    """

    def __init__(
        self,
        app: ASGIApp,
        telemetry: Telemetry,
        router: Router,
        audit: AuditLog | None,
        quiet: Collection[str] = QUIET,
    ) -> None:
        self._app = app
        self._telemetry = telemetry
        self._router = router
        self._audit = audit
        self._quiet = quiet
        self._ids = Random()  # `uuid4` asks the system, and lets other threads take the interpreter's lock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        state = scope.setdefault("state", {})
        state["request_id"] = given if _WELL_FORMED.fullmatch(given) else f"{self._ids.getrandbits(128):032x}"
        status = 499  # the client closed the connection, unless a response starts

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if scope["path"] not in self._quiet:
                    self._settle(scope, status)
                MutableHeaders(scope=message)[REQUEST_ID] = state["request_id"]
            await send(message)

        if scope["path"] in self._quiet:
            await self._app(scope, receive, answer)
            return
        start = time.perf_counter()
        with self._telemetry.in_progress.track_inprogress(), self._telemetry.span(headers) as span:
            try:
                await self._app(scope, receive, answer)
            finally:
                if status == 499:
                    self._settle(scope, status)
                self._telemetry.record(scope, status, time.perf_counter() - start, span)

    def _settle(self, scope: Scope, status: int) -> None:
        """Name the operation of a request that was refused early, and write the line of the audit log."""
        state = scope["state"]
        if "route" not in state and "operation" not in state:
            with suppress(HttpError):
                state["route"], _ = route_of(scope, self._router)
        if "route" in state and state.get("call") is None:
            _, parameters = route_of(scope, self._router)
            [delimiter] = parse_qs(scope["query_string"].decode("latin-1")).get("delimiter", [DELIMITER])[-1:]
            state["named"] = [name for name in parameters.get("id", "").split(delimiter) if name]
        if self._audit is not None and any(name in state for name in ("route", "operation", "error")):
            request = {"request_id": state["request_id"], **described(state, status, scope)}
            self._audit.write("request", {**request, **outcome(state, status)})


def _outcome(status: int, problem: Problem | None) -> str:
    """Return the outcome of a change: committed, conflict, unknown, refused or failed."""
    if problem is None:
        return "committed" if status < 400 else "failed"
    if RESOLVE_TOKEN in problem.context:
        return "unknown"
    if problem.code is ErrorCode.CONCURRENT_MODIFICATION:
        return "conflict"
    return "refused" if status < 500 else "failed"


def _tracer() -> Any:
    """Return a tracer whose spans go to the exporter of ``OTEL_TRACES_EXPORTER``."""
    from lancekeep.entrypoints.rest.tracing import tracer

    return tracer()
