"""The REST server of the Lance namespace specification as an ASGI application.

Any `lance_namespace.LanceNamespace` can be served. The namespace holds all state, in storage and in the commit store,
so several processes can serve one catalog.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Condition
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote

import attrs
import lance_namespace as api
import pyarrow as pa
from lance_namespace.errors import ErrorCode
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from lancekeep.adapters.lance.panics import is_panic
from lancekeep.adapters.rest.routes import ALL, GET, Body, Route, Router
from lancekeep.application.catalog import directory_of
from lancekeep.domain.errors import AccessDenied, StoreUnavailable
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.namespace.restricted import RestrictedOperations
from lancekeep.entrypoints.rest import openapi
from lancekeep.entrypoints.rest.arrow_bodies import opened
from lancekeep.entrypoints.rest.audit import AuditLog
from lancekeep.entrypoints.rest.batches import Batches
from lancekeep.entrypoints.rest.bodies import Bodies
from lancekeep.entrypoints.rest.channel import Loop, RequestBody, ResponseBody, disconnected
from lancekeep.entrypoints.rest.conditional import Conditional
from lancekeep.entrypoints.rest.deadlines import deadline
from lancekeep.entrypoints.rest.errors import HttpError, Problem
from lancekeep.entrypoints.rest.events import EventAnswers
from lancekeep.entrypoints.rest.health import Health
from lancekeep.entrypoints.rest.idempotency import Idempotency
from lancekeep.entrypoints.rest.metrics import Exposition
from lancekeep.entrypoints.rest.observation import REQUEST_ID, Observation, Telemetry
from lancekeep.entrypoints.rest.requests import Call, call_of, require_plain, route_of
from lancekeep.entrypoints.rest.responses import ARROW_FILE, refusal_of, response_of, write_file
from lancekeep.entrypoints.rest.security.refusal import refuse
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.entrypoints.rest.threads import AllThreads, Threads

T = TypeVar("T")
Handler = Callable[[Call], Any]
"""Performs a call in a worker thread: returns the response model, or a `pyarrow.RecordBatchReader` of rows."""

Around = Callable[[Call, Handler], Any]
"""Wraps the call of every operation: performs or refuses it, and returns the answer."""

STREAMS = {
    "create_table": "create_table_stream",
    "insert_into_table": "insert_stream",
    "merge_insert_into_table": "merge_insert_stream",
    "query_table": "query_stream",
}
"""The methods that take or return Arrow data batch by batch, by the operation that has them as bytes."""

PARSED_AT_ONCE = 1 << 16
"""The size in bytes up to which a JSON body is parsed by the event loop; larger ones take milliseconds."""

UNREAD = 1 << 24
"""How much of a refused request is read, so that the client gets to read the refusal."""


def create_app(
    namespace: api.LanceNamespace,
    settings: ServerSettings | None = None,
    *,
    around: Sequence[Around] = (),
    inside: Sequence[Around] = (),
    middleware: Sequence[Middleware] = (),
    others: Mapping[str, ASGIApp] | None = None,
    audit: AuditLog | None = None,
    decisions: Callable[[], object] | None = None,
    collectors: Sequence[Collector] = (),
    name: str | None = None,
    threads: Sequence[Threads] = (),
) -> Starlette:
    """Return the application that serves a namespace.

    Args:
        namespace: The namespace, whose methods must be safe to call from several threads.
        settings: The settings of the server.
        around: Wrappers of the call of every operation, the outermost first. Batches are outside of all of them, and
            idempotency is inside.
        inside: Wrappers inside of idempotency, which a repeated request does not reach.
        middleware: ASGI middleware of the operations, the outermost first; it runs inside the logs and metrics.
        others: Applications beside the operations, by the first segments of their paths.
        audit: The audit log; None without one.
        decisions: Returns what the wrappers decide by, next to the request and its principal: while it is the same
            object, they decide the same. None if the wrappers may decide otherwise at any time.
        collectors: Further metrics.
        name: The name of the catalog in the log, if the server serves several.
        threads: The threads of the other applications.
    """
    settings = settings or ServerSettings()
    telemetry = Telemetry(settings, name)
    metrics = Exposition(telemetry.registry)
    if isinstance(namespace, CatalogNamespace):
        own = directory_of(namespace.catalog)
        telemetry.count_conflicts(lambda: own.commits.conflicts.last_hour().count)
        telemetry.count_maintenance(own.automatic)
    for collector in collectors:
        telemetry.registry.register(collector)
    router = Router(ALL)
    conditional = Conditional(namespace, decisions or (object if around else lambda: None))
    innermost = Operations(namespace, settings, around, inside, router, conditional)
    health = Health(namespace, innermost.threads.use, audit)
    operations: Any = innermost
    for each in reversed(middleware):
        operations = each.cls(operations, *each.args, **each.kwargs)
    endpoints: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/healthz": health.alive,
        "/readyz": health.ready,
        "/metrics": metrics.answer,
        "/openapi.json": openapi.answer,
    }
    observation = Middleware(Observation, telemetry=telemetry, router=router, audit=audit)
    served = Endpoints(endpoints, operations, others or {})
    telemetry.count_abandoned(innermost.threads.abandoned)
    all_threads, running = AllThreads(lambda: (innermost.threads, *threads)), innermost.running
    return application_of(served, [observation], health, metrics, running, innermost.events, all_threads)


def application_of(
    endpoints: Endpoints,
    middleware: Sequence[Middleware],
    health: Any,
    metrics: Exposition,
    running: Any,
    events: Any,
    threads: AllThreads,
) -> Starlette:
    """Return an application that `Server` can stop.

    Args:
        endpoints: What it answers.
        middleware: What sees requests before, such as `Observation`, the outermost first.
        health: Has `stop`, called when the server stops.
        metrics: The metrics.
        running: Has `wait`, as `Running`.
        events: Has `stop`, called when the server stops.
        threads: The threads of this process.
    """
    app = Starlette(middleware=middleware, exception_handlers={Exception: _failure, StoreUnavailable: _failure})
    app.router.default = endpoints  # Starlette's routes answer errors as plain text
    app.router.redirect_slashes = False
    app.state.health = health
    app.state.metrics = metrics
    app.state.running = running
    app.state.events = events
    app.state.threads = threads
    return app


async def _failure(request: Request, error: Exception) -> Response:
    """Answer a failure outside of the operations. Starlette raises a defect again, for the log."""
    request_id = getattr(request.state, "request_id", "")
    response = refusal_of(Problem.of(error), request_id)
    response.headers[REQUEST_ID] = request_id  # the handler is outside of `Observation`
    return response


@attrs.frozen
class Endpoints:
    """The ASGI application of the paths that name no operation.

    Every path that is not named here belongs to the operations.
    """

    endpoints: Mapping[str, Callable[[Request], Awaitable[Response]]]
    operations: ASGIApp
    others: Mapping[str, ASGIApp]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
            return
        if len(Headers(scope=scope).getlist("host")) > 1:  # which of them a proxy before the server used is unknown
            await refuse(HttpError(400, "The request has several headers Host; send one."), scope, receive, send)
            return
        endpoint = self.endpoints.get(scope["path"])
        if endpoint is None:
            application = self.others.get(scope["path"].removeprefix("/").partition("/")[0], self.operations)
            await application(scope, receive, send)
            return
        request = Request(scope, receive)
        if request.method in ("GET", "HEAD"):
            response = await endpoint(request)
        else:
            message = f"{request.url.path} has the methods GET and HEAD."
            refused = HttpError(405, message, ErrorCode.UNSUPPORTED, {"allow": "GET, HEAD"})
            response = refusal_of(Problem.of(refused), request.state.request_id)
        await response(scope, receive, send)


class Running:
    """Counts the operations that run in worker threads."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait(self, seconds: float | None = None) -> int:
        """Wait until none runs, or for some seconds; return how many run."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0, seconds)
            return self._count


class Operations:
    """The ASGI application of all routes of operations."""

    def __init__(
        self,
        namespace: api.LanceNamespace,
        settings: ServerSettings,
        around: Sequence[Around],
        inside: Sequence[Around],
        router: Router,
        conditional: Conditional,
    ) -> None:
        self._namespace = namespace
        self._settings = settings
        self._router = router
        self._conditional = conditional
        self.threads = Threads(settings.threads)
        self._bodies = Bodies(settings.held_bodies)
        self._large = ThreadPoolExecutor(1, "lancekeep-parse")  # one at a time, because their values take memory
        self._places = _places(namespace)
        self._restricted = RestrictedOperations(namespace) if isinstance(namespace, CatalogNamespace) else None
        self.running = Running()
        self.events = EventAnswers(settings.long_seconds)
        self._perform: Handler = self.call
        wrappers: tuple[Around, ...] = (Batches(self._places), *around, Idempotency(namespace), *inside)
        for wrapper in reversed(wrappers):
            self._perform = _wrapped(wrapper, self._perform)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state: dict[str, Any] = scope.setdefault("state", {})
        loop = Loop(asyncio.get_running_loop())
        body = RequestBody(receive)
        rows: ResponseBody | None = None
        route: Route | None = None
        response: Response | None = None
        try:
            route, parameters = route_of(scope, self._router)
            state["route"] = route
            require_plain(route, Headers(scope=scope))
            caller = getattr(state.get("principal"), "name", "")
            async with self._bodies.received(body, caller) as content:
                call = await self._parsed(partial(call_of, route, parameters, scope, content), content)
                state["call"] = call
                if route.answer is Body.EVENTS:
                    waiting = partial(self._waiting, state.get("authenticate"), receive)
                    response = await self.events.answer(call, waiting, receive, send)
                    if response is not None:
                        await response(scope, receive, send)
                    return
                async with deadline(call, self._settings):
                    if route.answer is Body.ARROW:
                        rows = _response_body(route, send, loop)
                        answer = await self._stream(call, rows, receive, caller)
                    elif route.method == GET:
                        perform = partial(self._conditional, call, self._perform)
                        answer, response = await self._in_thread(caller, receive, perform)
                    else:
                        answer = await self._in_thread(caller, receive, partial(self._perform, call))
            if answer is None and rows is not None:
                await rows.finish()
                return
            state["answer"] = answer
            response = response or response_of(call, answer)
        except BaseException as error:  # a panic of native code is no Exception
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            if body.broken or (rows is not None and rows.abandoned and not isinstance(error, HttpError)):
                return  # the client is gone
            problem = Problem.of(error, route.unsupported if route else 501).without(self._places)
            state["error"], state["problem"] = error, problem
            if rows is not None and rows.started:
                return  # without an end of the body, the client learns that it is incomplete
            response = refusal_of(problem, state.get("request_id", ""))
            await body.discard(UNREAD)
        await response(scope, receive, send)

    async def _waiting(self, authenticate: Callable[[], Awaitable[Any]] | None, receive: Receive, call: Call) -> Any:
        """Perform a call for a caller that waits for events, as long as its credential is valid."""
        if authenticate is not None:
            call = attrs.evolve(call, principal=await authenticate())
        async with deadline(call, self._settings):
            return await self._in_thread(getattr(call.principal, "name", ""), receive, partial(self._perform, call))

    async def _parsed(self, parse: Callable[[], Call], content: BinaryIO) -> Call:
        """Return a request; others are answered while a large one is parsed."""
        size = content.seek(0, os.SEEK_END)
        content.seek(0)
        if size <= PARSED_AT_ONCE:
            return parse()
        return await asyncio.get_running_loop().run_in_executor(self._large, parse)

    def call(self, call: Call) -> Any:
        """Call the operation of the namespace; every request passes through here.

        Raises:
            HttpError: The namespace does not have the operation.
        """
        if call.restriction is not None:
            if self._restricted is None:
                raise AccessDenied("the server cannot restrict the columns and rows of the namespace that it serves")
            return self._restricted.perform(call.operation, call.request, call.restriction)
        stream = getattr(self._namespace, STREAMS.get(call.operation, ""), None)
        method = stream or getattr(self._namespace, call.operation, None)
        if method is None:
            raise HttpError(
                call.route.unsupported,
                f"The namespace does not support {call.route.operation_id}.",
                ErrorCode.UNSUPPORTED,
            )
        if call.body is None:
            return method(call.request)
        with opened(call.body, self._settings.largest_batch, self._settings.largest_body) as reader:
            if stream is not None:
                return method(call.request, reader)
        call.body.seek(0)
        return method(call.request, call.body.read())

    async def _stream(self, call: Call, rows: ResponseBody, receive: Receive, caller: str) -> Any:
        """Perform a call and send its rows; return an answer without rows."""

        def perform() -> Any:
            answer = self._perform(call)
            if not isinstance(answer, pa.RecordBatchReader):
                return answer
            write_file(answer, rows)
            return None

        watching = asyncio.create_task(_watch(receive, rows))
        try:
            return await self._in_thread(caller, receive, perform)
        except asyncio.CancelledError:  # by the deadline
            rows.abandon()
            raise
        finally:
            watching.cancel()

    async def _in_thread(self, caller: str, receive: Receive, act: Callable[[], T]) -> T:
        def run() -> T:
            with self.running:
                return act()

        return await self.threads.run(run, caller, partial(disconnected, receive))


def _wrapped(wrapper: Around, proceed: Handler) -> Handler:
    return lambda call: wrapper(call, proceed)


def _places(namespace: api.LanceNamespace) -> tuple[str, ...]:
    """Return how errors write the root of a catalog on this machine: they are sent to callers without it."""
    if not isinstance(namespace, CatalogNamespace) or not namespace.catalog.root_uri.startswith("file://"):
        return ()
    root = namespace.catalog.root_uri
    path = unquote(root.removeprefix("file://"))
    return tuple(f"{place}/" for place in (root, path.rstrip("/")) if place.strip("/"))


def _response_body(route: Route, send: Send, loop: Loop) -> ResponseBody:
    async def start() -> None:
        head: Message = {
            "type": "http.response.start",
            "status": route.status,
            "headers": [(b"content-type", ARROW_FILE.encode())],
        }
        await send(head)

    return ResponseBody(start, send, loop)


async def _watch(receive: Receive, rows: ResponseBody) -> None:
    """Stop the rows once the client has disconnected: the server discards what it sends to a closed connection."""
    await disconnected(receive)
    rows.abandon()
