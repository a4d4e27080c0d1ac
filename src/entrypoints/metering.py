"""Measures, in a thread, what the subtrees of the quotas of a policy hold."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Final

from lancekeep.adapters.lance.panics import is_panic
from lancekeep.application.upkeep.quota_usage import QuotaUsage
from lancekeep.application.upkeep.usage import Usage
from lancekeep.domain.authorization import Quota
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.quotas import Held, Used

_REST: Final = 9
"""How many times as long as a measurement the pause after it is at least, so that it takes a tenth of the time."""

_LOG = logging.getLogger(__name__)


class Meter:
    """Measures subtrees at intervals; requests read the last figures.

    A measurement that fails leaves the figures as they are.

    Args:
        usage: What measures.
        quotas: Returns the quotas of the policy in force.
        every: The seconds between the beginnings of two measurements, unless they take longer than a tenth of it.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        usage: Usage,
        quotas: Callable[[], Sequence[Quota]],
        every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usage = usage
        self._quotas = quotas
        self._every = every
        self._clock = clock
        self._tried: Sequence[Quota] = ()
        self._measured: tuple[dict[ObjectId, Held], float] = {}, 0.0
        self._wanted = Event()
        self._stopping = False
        self._thread = Thread(target=copy_context().run, args=(self._run,), name="lancekeep-usage", daemon=True)

    def used(self, subtree: ObjectId) -> Used | None:
        """Return the bytes of a subtree, as they were measured last.

        Returns:
            None before their first measurement, which begins soon.
        """
        figures, measured_at = self._measured
        held = figures.get(subtree)
        if held is None or held.bytes is None:
            self._wanted.set()
            return None
        return Used(held.bytes, self._clock() - measured_at)

    def usages(self) -> list[QuotaUsage]:
        """Return how much of each quota of the policy was used at last."""
        age, quotas = self.age(), self._quotas()
        figures, _ = self._measured
        if quotas != self._tried:  # no failure: then each question would make the thread try again
            self._wanted.set()
        measured = None if age is None else datetime.now(UTC) - timedelta(seconds=age)
        return [QuotaUsage.of(each, figures.get(each.subtree), measured) for each in quotas]

    def age(self) -> float | None:
        """Return the seconds since the last measurement began; None before the first."""
        figures, measured_at = self._measured
        return self._clock() - measured_at if figures else None

    def measure(self) -> None:
        """Measure the subtrees of the policy in force.

        Raises:
            LancekeepError: A store failed.
        """
        self._tried, begun = self._quotas(), self._clock()
        figures = self._usage.measure(self._tried, lambda: not self._stopping) if self._tried else {}
        if not self._stopping:
            self._measured = figures, begun

    def start(self) -> None:
        """Measure now, and at intervals, in the thread."""
        self._thread.start()

    def stop(self, patience: float | None = None) -> bool:
        """Stop after the measurement in progress. Idempotent.

        Args:
            patience: How many seconds to wait for it; None for any time.

        Returns:
            Whether the thread has ended.
        """
        self._stopping = True
        self._wanted.set()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            begun = self._clock()
            try:
                self.measure()
            except LancekeepError as error:
                _LOG.warning("The subtrees with quotas were not measured: %s", error)
            except BaseException as error:  # a panic of native code is no Exception
                if not isinstance(error, Exception) and not is_panic(error):
                    raise
                _LOG.error("The subtrees with quotas were not measured.", exc_info=error)
            took = self._clock() - begun
            self._wanted.clear()
            if self._stopping:
                return
            self._wanted.wait(max(self._every - took, _REST * took))
