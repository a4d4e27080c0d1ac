"""Whether the server runs (``/healthz``) and can work (``/readyz``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio.to_thread
import lance_namespace as api
from starlette.requests import Request
from starlette.responses import JSONResponse

from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.entrypoints.rest.audit import AuditLog

OK, UNAVAILABLE = "ok", "unavailable"
PATIENCE: Final = 2.0
"""The most seconds that ``/readyz`` waits for the checks of a catalog."""


def status_of(stopping: bool) -> str:
    """Return the result of the check of a server that may be shutting down."""
    return "stopping" if stopping else OK


class Health:
    """The endpoints for load balancers and orchestrators.

    Args:
        namespace: The namespace.
        threads: Returns the use of the threads of operations, see `Threads.use`.
        audit: The audit log; None without one.

    Attributes:
        stopping: Whether the server is shutting down and takes no new work.
    """

    def __init__(
        self, namespace: api.LanceNamespace, threads: Callable[[], Mapping[str, int]], audit: AuditLog | None = None
    ) -> None:
        self._namespace = namespace
        self._threads = threads
        self._audit = audit
        self._checking: asyncio.Task[dict[str, tuple[str, float]]] | None = None
        self.stopping = False

    def stop(self) -> None:
        """Answer from now on that the server is shutting down."""
        self.stopping = True

    async def alive(self, request: Request) -> JSONResponse:
        """Answer 200 while the process serves requests."""
        return JSONResponse({"status": OK})

    async def ready(self, request: Request) -> JSONResponse:
        """Answer 200 if the server can work, else 503.

        The response has what `found` returns, and nothing about the catalog: it needs no authentication.
        """
        found = await self.found()
        return JSONResponse(found, 200 if found["status"] == OK else 503)

    async def found(self) -> dict[str, Any]:
        """Return whether the server can work, as the content of a response.

        Storage and commit store must answer within `PATIENCE`, and the audit log must take lines. The content says
        which of them failed, the seconds that each took, and the use of the threads. A server whose threads are all in
        use is ready; its requests wait for their turn.

        A request that comes while checks run waits for the same checks, so a store that hangs takes one thread.
        """
        checking = self._checking
        if checking is None or checking.done():
            checking = self._checking = asyncio.create_task(self._checked())
        await asyncio.wait((checking,), timeout=PATIENCE)
        checks: dict[str, str] = {"server": status_of(self.stopping)}
        seconds: dict[str, float] = {}
        for name, (status, took) in checking.result().items() if checking.done() else ():
            checks[name], seconds[name] = status, took
        if not checking.done():
            checks |= dict.fromkeys(self._checks(), UNAVAILABLE)
        return {
            "status": OK if set(checks.values()) == {OK} else UNAVAILABLE,
            "checks": checks,
            "seconds": seconds,
            "threads": dict(self._threads()),
        }

    async def _checked(self) -> dict[str, tuple[str, float]]:
        found = {}
        for name, check in self._checks().items():
            start, status = time.perf_counter(), OK
            try:
                await anyio.to_thread.run_sync(check)
            except Exception:
                status = UNAVAILABLE
            found[name] = status, round(time.perf_counter() - start, 4)
        return found

    def _checks(self) -> Mapping[str, Callable[[], object]]:
        audit = {} if self._audit is None else {"audit log": self._audit.check}
        return {**self._checks_of_namespace(), **audit}

    def _checks_of_namespace(self) -> Mapping[str, Callable[[], object]]:
        catalog = getattr(self._namespace, "catalog", None)
        if not isinstance(catalog, Catalog):
            return {"namespace": lambda: self._namespace.list_namespaces(api.ListNamespacesRequest(id=[], limit=1))}
        own = directory_of(catalog, "health")
        rows, asked = own.commits.rows, own.places.probe_uri
        return {"storage": own.ledger.view, "commit store": lambda: rows.latest(asked)}
