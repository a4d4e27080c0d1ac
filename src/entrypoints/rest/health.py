"""Whether the server runs (``/healthz``) and can work (``/readyz``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import anyio.to_thread
import lance_namespace as api
from starlette.requests import Request
from starlette.responses import JSONResponse

from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.entrypoints.rest.audit import AuditLog


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
        self.stopping = False

    def stop(self) -> None:
        """Answer from now on that the server is shutting down."""
        self.stopping = True

    async def alive(self, request: Request) -> JSONResponse:
        """Answer 200 while the process serves requests."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> JSONResponse:
        """Answer 200 if the server can work, else 503.

        Storage and commit store must answer, and the audit log must take lines. The response says which of them
        failed, the seconds that each took, and the use of the threads, but nothing about the catalog: it needs no
        authentication. A server whose threads are all in use is ready; its requests wait for their turn.
        """
        checks = {"server": "stopping" if self.stopping else "ok"}
        seconds = {}
        for name, check in self._checks().items():
            start = time.perf_counter()
            try:
                await anyio.to_thread.run_sync(check)
                checks[name] = "ok"
            except Exception:
                checks[name] = "unavailable"
            seconds[name] = round(time.perf_counter() - start, 4)
        ready = set(checks.values()) == {"ok"}
        answer = {
            "status": "ok" if ready else "unavailable",
            "checks": checks,
            "seconds": seconds,
            "threads": dict(self._threads()),
        }
        return JSONResponse(answer, 200 if ready else 503)

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
