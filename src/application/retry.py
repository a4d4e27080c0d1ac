"""Trying again, within bounds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import attrs

from lancekeep.domain.errors import StoreUnavailable

T = TypeVar("T")


@attrs.frozen
class Retry:
    """Repeats what failed with `StoreUnavailable`, until it works or patience runs out.

    patience: seconds after which the last failure is raised. first, cap: the first and the longest pause, in seconds;
    pauses double in between and are jittered, so that writers that failed together do not return together.
    Only for what is idempotent: a call that failed may have had its effect.
    """

    patience: float = 20.0
    first: float = 0.01
    cap: float = 1.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random

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
                if deadline is None:
                    deadline = self.deadline() - pause
                if self.clock() + pause > deadline:
                    raise
            self.sleep(pause * (0.5 + self.jitter() / 2))
            pause = min(self.cap, pause * 2)
