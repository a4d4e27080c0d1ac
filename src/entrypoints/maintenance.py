"""The maintenance worker: a policy file, a lease, and runs at intervals.

A policy file has any number of rules::

    every = "1h"
    refresh_views = true

    [[rules]]
    on = ""                    # a namespace or table with everything below it; "" is the whole catalog
    older_than = "30d"         # remove versions whose successor is older
    keep = 5                   # latest versions that stay
    grace = "7d"               # keep files younger than this
    target_rows = 1048576      # merge fragments with fewer rows ...
    small_fragments = 8        # ... once there are this many
    refresh_indexes = true
"""

from __future__ import annotations

import logging
import os
import socket
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import attrs
from lance_namespace import LanceNamespace

from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.entries.base_paths import restricted, within_one_table
from lancekeep.application.upkeep.lease import Lease
from lancekeep.application.upkeep.maintenance import MaintenanceAction
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.maintenance import MaintenancePolicy, MaintenanceRule
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.toml_values import values_of

TERM = 60.0
"""After how many seconds without renewal a lease is free; a worker renews it before each table."""

_LOG = logging.getLogger(__name__)
_KEYS: Mapping[str, type] = {
    "on": str,
    "older_than": float,
    "keep": int,
    "grace": float,
    "target_rows": int,
    "small_fragments": int,
    "refresh_indexes": bool,
}


@attrs.frozen
class Plan:
    """A policy, and whether materialized views that are due are refreshed."""

    policy: MaintenancePolicy
    refresh_views: bool = False


def read_plan(path: Path) -> Plan:
    """Read a policy file.

    Raises:
        InvalidInput: The file cannot be read, or is invalid.
    """
    place = f"the maintenance policy {path}"
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read {place}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f"{place} is not a TOML file: {error}") from error
    rules = content.pop("rules", [])
    if not isinstance(rules, list) or not all(isinstance(each, dict) for each in rules):
        raise InvalidInput(f"{place}: write each rule as a table [[rules]]")
    general = values_of(content, {"every": float, "refresh_views": bool}, place)
    refresh_views = general.pop("refresh_views", False)
    return Plan(
        MaintenancePolicy(tuple(_rule(each, f"{place}, rule {at}") for at, each in enumerate(rules, 1)), **general),
        refresh_views,
    )


def _rule(given: Mapping[str, Any], place: str) -> MaintenanceRule:
    subtree = given.get("on")
    if not isinstance(subtree, str | list):
        raise InvalidInput(
            f"{place}: on is {subtree!r}; give the identifier of a namespace or table; '' is the catalog"
        )
    others = {name: value for name, value in given.items() if name != "on"}
    return MaintenanceRule(subtree=ObjectId.of(subtree), **values_of(others, _KEYS, place))


class MaintenanceWorker:
    """Maintains a catalog, one worker at a time.

    Args:
        catalog: The catalog.
        plan: What to do.
        clock: Returns monotonic seconds.
        term: After how many seconds without renewal another worker takes over.
        confined: Whether the thread of `start` refuses to read through base paths that leave a table. It copies rows
            into tables without a caller who may read the source.
    """

    def __init__(
        self,
        catalog: Catalog,
        plan: Plan,
        *,
        clock: Callable[[], float] = time.monotonic,
        term: float = TERM,
        confined: bool = False,
    ) -> None:
        self._catalog = catalog
        self._plan = plan
        self._clock = clock
        self._term = term
        self._confined = confined
        self._stopping = Event()
        self._renewing = Lock()
        self._thread: Thread | None = None
        holder = f"{socket.gethostname()} {os.getpid()}"
        places = directory_of(catalog, "maintenance").places
        self._lease = Lease(places.objects, places.prefix, holder, term)

    def run_once(self) -> Iterator[MaintenanceAction] | None:
        """Run if this worker gets the lease; None if another worker has it."""
        return self._run() if self._lease.acquire(self._clock()) else None

    def _run(self) -> Iterator[MaintenanceAction]:
        done = Event()
        renewal = Thread(target=self._renew_until, args=(done,), name="maintenance lease", daemon=True)
        renewal.start()
        try:
            yield from self._catalog.upkeep.maintain(self._plan.policy, proceed=self._may_proceed)
            if self._plan.refresh_views and self._may_proceed():
                for view, outcome in self._catalog.views.refresh_due().items():
                    if isinstance(outcome, LancekeepError):
                        yield MaintenanceAction(str(view), "refresh", str(outcome), failed=True)
                    else:
                        source = outcome.source
                        read = "" if source is None else f" from version {source.version} of its source"
                        detail = f"version {outcome.version}{read}"
                        yield MaintenanceAction(str(view), "refresh", detail)
        finally:
            done.set()
            renewal.join()
            self._lease.release()

    def _may_proceed(self) -> bool:
        with self._renewing:
            return not self._stopping.is_set() and self._lease.renew()

    def _renew_until(self, done: Event) -> None:
        """Renew the lease while an action takes long."""
        while not done.wait(self._term / 3):
            with self._renewing, suppress(LancekeepError):  # the next renewal may succeed
                if not self._lease.renew():
                    return

    def start(self) -> None:
        """Run at the intervals of the policy, in a thread, until `stop`."""
        self._thread = Thread(target=copy_context().run, args=(self._loop,), name="maintenance", daemon=True)
        self._thread.start()

    def stop(self, patience: float | None = None) -> bool:
        """Stop after the action in progress. Idempotent.

        Args:
            patience: How many seconds to wait for it; None for any time.

        Returns:
            Whether the thread has ended.
        """
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        with restricted(within_one_table) if self._confined else nullcontext():
            self._run_at_intervals()

    def _run_at_intervals(self) -> None:
        wait = 0.0
        while not self._stopping.wait(wait):
            wait = self._plan.policy.every
            try:
                actions = self.run_once()
                if actions is None:
                    wait = min(wait, self._term)  # watch the holder, and take over if it stops
                    continue
                for each in actions:
                    level = logging.WARNING if each.failed else logging.INFO
                    _LOG.log(level, "Maintenance of %s: %s: %s", each.table, each.action, each.detail)
            except LancekeepError as error:
                _LOG.warning("Maintenance stopped, and runs again later: %s", error)


@contextmanager
def maintaining(
    namespace: LanceNamespace, plan: Plan | None, *, confined: bool = False
) -> Iterator[Callable[[float], bool]]:
    """Maintain the catalog of a namespace while the block runs.

    Without a plan, do nothing.

    Yields:
        A function that ends the maintenance within some seconds, and returns whether it has ended.

    Args:
        namespace: The namespace.
        plan: What to do.
        confined: As of `MaintenanceWorker`.

    Raises:
        InvalidInput: The namespace does not belong to a catalog, so its own server has to maintain it.
    """
    if plan is None:
        yield lambda seconds: True
        return
    if not isinstance(namespace, CatalogNamespace):
        raise InvalidInput("--maintenance needs a catalog of Lancekeep; maintain the served namespace where it is")
    worker = MaintenanceWorker(namespace.catalog, plan, confined=confined)
    worker.start()
    try:
        yield worker.stop
    finally:
        worker.stop()
