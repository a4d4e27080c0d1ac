"""The operations on materialized views."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import lance_namespace as api
import pyarrow as pa

from lancekeep.application.rows.views import Refreshed
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.view import ViewDefinition
from lancekeep.entrypoints.namespace.boundary import operation
from lancekeep.entrypoints.namespace.operations import Operations, choice, id_of

_CLUSTER = (
    "max_rows_per_fragment",
    "concurrency",
    "intra_applier_concurrency",
    "source_task_size",
    "cluster",
    "manifest",
)
"""Fields of a refresh that address a cluster of workers."""


class ViewOperations(Operations):
    """Create and refresh materialized views of kind ``query``.

    `ViewDefinition` documents ``source_query``.
    """

    @operation
    def create_materialized_view(
        self, request: api.CreateMaterializedViewRequest
    ) -> api.CreateMaterializedViewResponse:
        """Create a view; with ``with_no_data`` false, also refresh it."""
        kind = choice(request.kind, "kind", "query", "udtf", "chunker")
        if kind != "query":
            raise Unsupported(
                f"a view of kind {kind} runs a pickled function on a cluster of Ray, which Lancekeep does not have; "
                "kind query is supported. Nothing was created."
            )
        if request.udtf_spec is not None:
            raise InvalidInput("udtf_spec must be absent when kind is query; nothing was created")
        definition = ViewDefinition.parse(request.source_query, auto_refresh=bool(request.auto_refresh))
        schema = _schema(request.output_schema)
        version = self._catalog.views.create(id_of(request), definition, schema).version
        if request.with_no_data is not False:
            return api.CreateMaterializedViewResponse(version=version)
        refreshed = self._catalog.views.refresh(id_of(request))
        return api.CreateMaterializedViewResponse(version=version, job_id=_job(refreshed))

    @operation
    def refresh_materialized_view(
        self, request: api.RefreshMaterializedViewRequest
    ) -> api.RefreshMaterializedViewResponse:
        """Refresh a view; ``job_id`` is the id of its new transaction."""
        if request.output_limit is not None:
            raise InvalidInput("output_limit is for views of kind chunker; nothing was changed")
        given = [name for name in _CLUSTER if getattr(request, name) is not None]
        if given:
            raise Unsupported(
                f"{given[0]} directs a cluster of workers, but this refresh runs in one process; leave it out. Nothing "
                "was changed."
            )
        return api.RefreshMaterializedViewResponse(
            job_id=_job(self._catalog.views.refresh(id_of(request), request.src_version))
        )


def _schema(text: str) -> Any:
    try:
        return pa.ipc.read_schema(pa.py_buffer(b64decode(text, validate=True)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(
            f"output_schema is not an Arrow schema (IPC message) in base64: {error}; nothing was created"
        ) from error


def _job(refreshed: Refreshed) -> str:
    return refreshed.job or f"version {refreshed.version}"
