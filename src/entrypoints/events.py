"""Record the events of a catalog in a thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event, Thread

from lance_namespace import LanceNamespace

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import InvalidInput, LancekeepError, UnsafeStore, Unsupported
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace

_LOG = logging.getLogger(__name__)
_PAUSE = 1.0
"""Seconds between two runs at least. Each run with events is a batch, that is an object, or a few."""
_SHARE = 9
"""How many times as long as a run without events its pause is at least, so that it takes a tenth of a core."""
_LONGEST = 30.0


class EventRecording:
    """Records the events of a catalog until it is stopped.

    No error ends it: it is logged, and the next run begins after a pause.

    Args:
        catalog: The catalog.

    Attributes:
        recorded: How many events this process has recorded.
        failures: How many runs failed.
        succeeded_at: When the last run succeeded, in seconds since 1970; 0 before the first.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.recorded = 0
        self.failures = 0
        self.succeeded_at = 0.0
        self._catalog = catalog
        self._stopping = Event()
        self._thread = Thread(target=copy_context().run, args=(self._run,), name="lancekeep-events", daemon=True)

    def start(self) -> None:
        """Record what there is, so that the catalog has a log, and go on in a thread.

        Raises:
            Unsupported: The store of the entries keeps no changes.
            UnsafeStore: The storage has no create-only write.
        """
        try:
            self._record()
        except (Unsupported, UnsafeStore):
            raise
        except LancekeepError as error:
            self.failures += 1
            _LOG.warning("Recording events failed, and is tried again: %s", error)
        self._thread.start()

    def stop(self, patience: float | None = None) -> bool:
        """Stop after the run in progress; return whether it ended within some seconds."""
        self._stopping.set()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _record(self) -> int:
        recorded = self._catalog.events.record()
        self.recorded += recorded
        self.succeeded_at = time.time()
        return recorded

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            begin = time.monotonic()
            try:
                recorded = self._record()
                worked = time.monotonic() - begin
                pause = max(_PAUSE, worked if recorded else min(_LONGEST, _SHARE * worked))
            except LancekeepError as error:
                self.failures += 1
                pause = min(_LONGEST, max(_PAUSE, 2 * pause))
                _LOG.warning("Recording events failed, and is tried again in %.0f seconds: %s", pause, error)
            except Exception:  # a defect must not end the log of events
                self.failures += 1
                pause = _LONGEST
                _LOG.exception("Recording events failed, and is tried again in %.0f seconds", pause)


@contextmanager
def recording(namespace: LanceNamespace, *, is_wanted: bool) -> Iterator[EventRecording | None]:
    """Record the events of the catalog of a namespace while the block runs.

    Yields:
        The recording; None without one.

    Args:
        namespace: The namespace.
        is_wanted: Whether to record.

    Raises:
        InvalidInput: The namespace does not belong to a catalog of this process.
        Unsupported, UnsafeStore: The catalog cannot have a log of events.
    """
    if not is_wanted:
        yield None
        return
    if not isinstance(namespace, CatalogNamespace):
        raise InvalidInput("--events needs a catalog of Lancekeep; record events where the served catalog is")
    worker = EventRecording(namespace.catalog)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(_LONGEST)
