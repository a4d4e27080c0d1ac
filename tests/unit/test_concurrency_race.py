"""Threads that start together."""

from __future__ import annotations

from itertools import count
from threading import Thread

import pytest

from lancekeep.application.concurrency import race


def test_a_race_returns_the_results_in_order() -> None:
    assert race(3, lambda number: number * 10) == [0, 10, 20]


def test_an_interruption_before_all_threads_have_started_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    start, numbers = Thread.start, count()

    def interrupted(thread: Thread) -> None:
        if next(numbers) == 2:
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        race(4, lambda number: number)
