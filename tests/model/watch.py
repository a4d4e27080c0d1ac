"""The progress of an exploration, and how long it may take."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import attrs
import pytest
from model.checker import Checker, Report, Setting

SECONDS = 10.0
"""Seconds between two reports of progress."""
MINUTES = float(os.environ.get("LANCEKEEP_MODEL_MINUTES", "30"))
"""Minutes that one setting may take."""


class Unfinished(Exception):
    """An exploration has taken longer than it may."""


@attrs.define
class Watch:
    """Prints how far an exploration is, and ends it after some time.

    Args:
        setting: What is explored.
        minutes: How long it may take.
        say: Prints a line.
        clock: Returns monotonic seconds.
    """

    setting: Setting
    minutes: float = MINUTES
    say: Callable[[str], object] = print
    clock: Callable[[], float] = time.monotonic
    _begun: float = attrs.field(init=False)
    _said: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._begun = self._said = self.clock()

    def __call__(self, depth: int, states: int) -> None:
        """Note how many states have been found at most ``depth`` steps from the beginning.

        Raises:
            Unfinished: The time is over. States that are further away may violate an invariant.
        """
        now = self.clock()
        took = now - self._begun
        found = f"{states:,} states within {depth} steps, {took:.0f} s"
        if took > 60 * self.minutes:
            raise Unfinished(
                f"{self.setting}: not finished after {self.minutes:g} minutes: {found}. No state so far violates an "
                "invariant. Set LANCEKEEP_MODEL_MINUTES to explore all"
            )
        if now - self._said >= SECONDS:
            self._said = now
            self.say(f"  {self.setting}: {found}, {states / took:,.0f} states per second")


def explored_whole(setting: Setting, capsys: pytest.CaptureFixture[str]) -> Report:
    """Return the report on a setting, and print it and the progress. A setting that takes too long fails the test."""
    with capsys.disabled():
        print()
        try:
            report = Checker(setting).run(watch=Watch(setting))
        except Unfinished as unfinished:
            pytest.fail(str(unfinished))
        print(report)
    return report
