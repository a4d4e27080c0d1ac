"""The application that serves one catalog, in its own process or in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from starlette.applications import Starlette

from lancekeep.application.catalog import directory_of
from lancekeep.composition import Sharing, open_catalog
from lancekeep.entrypoints.deliveries import delivering
from lancekeep.entrypoints.events import recording
from lancekeep.entrypoints.maintenance import maintaining, read_plan
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.namespace.implementations import namespace_of
from lancekeep.entrypoints.page.app import SEGMENTS, THREADS
from lancekeep.entrypoints.page.serving import page_of
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.audit import AuditLog
from lancekeep.entrypoints.rest.event_metrics import EventMetrics
from lancekeep.entrypoints.rest.security.setup import Authenticators, security_of
from lancekeep.entrypoints.rest.task import Served, Task
from lancekeep.entrypoints.rest.threads import Threads
from lancekeep.local_files import not_reported


@contextmanager
def application(
    task: Task, name: str | None = None, authenticators: Authenticators | None = None
) -> Iterator[tuple[Starlette, Served, Callable[[float], bool]]]:
    """Open what a server serves.

    Args:
        task: The task.
        name: The name of the catalog, if the server serves several.
        authenticators: What verifies credentials, if several catalogs share it.

    Yields:
        The application, what it serves, and a function that ends the work in the background within some seconds.

    Raises:
        LancekeepError: A setting or a file is not valid, or the catalog cannot be opened.
    """
    config, settings = task.config, task.settings
    plan = None if task.maintenance is None else read_plan(task.maintenance)
    with ExitStack() as stack:
        sharing = Sharing(task.committers, settings.cluster)
        namespace, root = stack.enter_context(namespace_of(config, native=task.native, sharing=sharing))
        own = namespace.catalog if isinstance(namespace, CatalogNamespace) else None
        directory = None if own is None else directory_of(own, "serve")
        base_paths = None if directory is None else directory.versions.base_paths
        usage = None if directory is None else directory.usage
        if own is not None and config.impl != "rest":
            own.initialize()
        audit = AuditLog(Path(settings.audit), name) if settings.audit else None
        reloaded = not_reported if audit is None else audit.reloaded
        security = security_of(settings, config.storage_options, base_paths, reloaded, authenticators, usage)
        end_maintenance = stack.enter_context(maintaining(namespace, plan, confined=bool(settings.policy)))
        if security.meter is not None:
            security.meter.start()
            stack.callback(security.meter.stop)
        is_recorded = settings.events and task.records
        recorder = stack.enter_context(recording(namespace, is_wanted=is_recorded))
        subscribers = task.subscribers if task.records else ()
        workers = stack.enter_context(delivering(own, config, subscribers, is_recorded=is_recorded))
        catalog = stack.enter_context(open_catalog(config)) if config.impl == "rest" else own
        of_page = Threads(THREADS)
        page = None if catalog is None else page_of(catalog, settings, security, of_page)
        others = {} if page is None else dict.fromkeys(SEGMENTS, page)
        app = create_app(
            namespace,
            settings,
            around=security.around,
            inside=security.inside,
            middleware=security.middleware,
            others=others,
            audit=audit,
            decisions=security.decisions,
            collectors=[
                *security.collectors,
                *([] if recorder is None else [EventMetrics(recorder, workers.deliveries)]),
            ],
            name=name,
            threads=[of_page],
        )

        def end_background(seconds: float) -> bool:
            end = time.monotonic() + seconds

            def left() -> float:
                return max(0.0, end - time.monotonic())

            ended = directory is None or directory.leave_committers(left())
            ended &= directory is None or directory.automatic.close(left())
            ended &= security.meter is None or security.meter.stop(left())
            ended &= recorder is None or recorder.stop(left())
            ended &= workers.stop(left())
            return end_maintenance(left()) and ended

        yield app, Served(root, page is not None), end_background
