"""Trying again, within bounds."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

import attrs

from lancekeep.domain.errors import StoreUnavailable

T = TypeVar("T")


@attrs.define
class Retry:
    """Repeat what failed with `StoreUnavailable`, until it works or patience runs out.

    patience: seconds after which the last failure is raised. first, cap: the first and the longest pause, in seconds;
    pauses double in between and are jittered, so that writers that failed together do not return together.
    Only for what is idempotent: a call that failed may have had its effect.

    Once patience has run out, the outage is known: for as long again, a call that fails is not repeated. A native
    writer asks five times about one commit, and without this each question would wait out the outage anew.
    """

    patience: float = 20.0
    first: float = 0.01
    cap: float = 1.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random
    _known_until: float = attrs.field(default=-math.inf, init=False)

    def deadline(self) -> float:
        """The moment at which a run of attempts that starts now has to end."""
        return self.clock() + self.patience

    def call(self, act: Callable[[], T], deadline: float | None = None) -> T:
        """The result of ``act``; several calls share a budget by sharing a ``deadline``."""
        pause = self.first
        while True:
            try:
                return act()
            except StoreUnavailable:
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
