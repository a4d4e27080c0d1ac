"""Deliver the events of a catalog, to each subscriber in a thread of its own."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from threading import Event, Thread

from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.events.deliveries import Deliveries
from lancekeep.application.events.log import EventLog
from lancekeep.application.events.subscriptions import Subscription
from lancekeep.application.upkeep.lease import Lease
from lancekeep.config import ConnectionConfig
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.entrypoints.subscribers import ConfiguredSubscriber

_LOG = logging.getLogger(__name__)
_LONGEST = 60.0
"""The most seconds between two steps that fail."""
_LEASES = "deliveries"
_RENEWALS = 3
"""How often a lease is renewed within its term."""
_ASKED = 5.0
"""The most seconds between two questions whether a lease is free."""


class DeliveryWorker:
    """Delivers events to one subscriber while it has the lease, until it is stopped.

    No error ends it: it is logged, and the next step begins after a pause.

    Args:
        deliveries: The deliveries.
        lease: The lease on the subscriber.
        term: The seconds after which a lease that is not renewed is free.
    """

    def __init__(self, deliveries: Deliveries, lease: Lease, term: float) -> None:
        self.deliveries = deliveries
        self._lease = lease
        self._interval = term / _RENEWALS
        self._renew_at = 0.0
        self._stopping = Event()
        name = f"lancekeep-{deliveries.subscriber.name}"
        self._thread = Thread(target=copy_context().run, args=(self._run,), name=name, daemon=True)

    def start(self) -> None:
        """Store where the subscriber begins, and deliver in a thread."""
        try:
            self.deliveries.begin()
        except LancekeepError as error:  # each step tries it again
            _LOG.warning("Delivering events to %s cannot begin now: %s", self.deliveries.subscriber.name, error)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the attempt in progress."""
        self._stopping.set()

    def join(self, patience: float) -> bool:
        """Wait for the end within some seconds; return whether it came."""
        if self._thread.ident is not None:
            self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        name, pause, failed, due = self.deliveries.subscriber.name, 0.0, 0.0, 0.0
        while not self._stopping.wait(pause):
            try:
                if not self._has_lease():
                    pause, due = min(self._interval, _ASKED), 0.0
                    continue
                if time.monotonic() >= due:
                    pause = self.deliveries.step()
                    due = time.monotonic() + pause
                pause, failed = max(0.0, min(due - time.monotonic(), self._interval)), 0.0
            except LancekeepError as error:
                self.deliveries.count_error()
                pause = failed = min(_LONGEST, max(1.0, 2 * failed))
                _LOG.warning("Delivering events to %s failed, and goes on in %.0f seconds: %s", name, pause, error)
            except Exception:  # a defect must not end deliveries
                self.deliveries.count_error()
                pause = failed = _LONGEST
                _LOG.exception("Delivering events to %s failed, and goes on in %.0f seconds", name, pause)
        try:
            if self._lease.token is not None:
                self.deliveries.finish()
                self._lease.release()
        except LancekeepError as error:
            _LOG.warning(
                "The position of %s was not stored, or its lease not released, so it reads some events again, or waits "
                "for the end of the lease: %s",
                name,
                error,
            )

    def _has_lease(self) -> bool:
        """Return whether this worker delivers: it takes the lease if it is free, and renews it in time."""
        now = time.monotonic()
        had = self._lease.token is not None
        if had and now < self._renew_at:
            return True
        has = self._lease.renew() if had else self._lease.acquire(now)
        if not (had and has):
            self.deliveries.forget()
        self._renew_at = now + self._interval
        return has


class DeliveryWorkers:
    """The workers of all subscribers of a catalog.

    Args:
        workers: The workers.
    """

    def __init__(self, workers: Sequence[DeliveryWorker] = ()) -> None:
        self._workers = workers

    @property
    def deliveries(self) -> list[Deliveries]:
        """The deliveries, by subscriber."""
        return [each.deliveries for each in self._workers]

    def stop(self, seconds: float) -> bool:
        """Stop all workers; return whether they ended within some seconds."""
        for each in self._workers:
            each.stop()
        until = time.monotonic() + seconds
        ended = [each.join(max(0.0, until - time.monotonic())) for each in self._workers]
        return all(ended)


@contextmanager
def delivering(
    catalog: Catalog | None, config: ConnectionConfig, subscribers: Sequence[ConfiguredSubscriber], *, is_recorded: bool
) -> Iterator[DeliveryWorkers]:
    """Deliver the events of a catalog to subscribers while the block runs.

    Args:
        catalog: The catalog; None if the served namespace has none of this process.
        config: How the catalog was opened.
        subscribers: The subscribers.
        is_recorded: Whether the server records events.

    Raises:
        InvalidInput: The server records no events, or a subscriber cannot be reached by its settings.
        UnsafeStore: The storage of files has no create-only write.
    """
    if not subscribers:
        yield DeliveryWorkers()
        return
    if catalog is None or not is_recorded:
        raise InvalidInput(
            f"the subscriber {subscribers[0].subscriber.name!r} needs a server that records events: set events = true "
            "in [server] of the same file (--events), or remove its [[webhooks]] and [[event_files]]"
        )
    own = directory_of(catalog, "webhooks")
    holder = f"{socket.gethostname()} {os.getpid()}"
    with ExitStack() as stack:
        workers = []
        for each in subscribers:
            sink = each.open(config)
            stack.callback(sink.close)
            name = each.subscriber.name
            term = each.subscriber.takeover + (each.timeout if each.is_webhook else 0.0)
            deliveries = Deliveries(each.subscriber, EventLog.of(own), Subscription.of(own, name), sink)
            lease = Lease(own.places.objects, own.places.prefix, holder, term, f"{_LEASES}/{name}")
            workers.append(DeliveryWorker(deliveries, lease, term))
        running = DeliveryWorkers(workers)
        stack.callback(running.stop, _LONGEST)
        for worker in workers:
            worker.start()
        yield running
