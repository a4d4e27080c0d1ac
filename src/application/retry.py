"""Retries with exponential backoff and a time budget."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

import attrs

from lancekeep.domain.errors import LancekeepError, StoreUnavailable

T = TypeVar("T")


@attrs.define
class Retry:
    """Retry idempotent calls that raise `StoreUnavailable`, or other errors.

    The pauses grow exponentially, up to a limit, and have jitter, which separates writers that failed at the same
    time. Only idempotent calls may be retried, because a call that fails may have taken effect.

    Once the patience of a call runs out, calls that fail are not retried for as long again. A native writer asks five
    times about one commit; without this rule each request would wait for the whole outage again.

    Args:
        patience: Seconds until the last error is raised.
        first: The first pause, in seconds; each further pause is twice as long.
        cap: The longest pause, in seconds.
        clock: Returns monotonic seconds.
        sleep: Waits for a number of seconds.
        jitter: Returns a random number from 0 to 1.
        retried: The errors after which a call is retried.
    """

    patience: float = 20.0
    first: float = 0.01
    cap: float = 1.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random
    retried: tuple[type[LancekeepError], ...] = (StoreUnavailable,)
    _known_until: float = attrs.field(default=-math.inf, init=False)

    def deadline(self) -> float:
        """Return the time at which attempts that start now must end."""
        return self.clock() + self.patience

    def call(self, act: Callable[[], T], deadline: float | None = None) -> T:
        """Return the result of ``act``; several calls can share one ``deadline``."""
        pause = self.first
        while True:
            try:
                return act()
            except self.retried:
                now = self.clock()
                if now < self._known_until:
                    raise
                if deadline is None:
                    deadline = now + self.patience - pause
                if now + pause > deadline:
                    self._known_until = now + self.patience
                    raise
            self.sleep(pause * (0.5 + self.jitter() / 2))
            pause = min(self.cap, pause * 2)
