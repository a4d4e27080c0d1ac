"""Limits of readers: loops without an end and allocations without a limit are found."""

from __future__ import annotations

from itertools import count

import pytest
from fuzz import foreign

from lancekeep.testing.concurrency import PROCESSES


def test_endless_parser_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "PATIENCE", 0.01)
    with pytest.raises(AssertionError, match="no end after"):
        foreign.read(lambda: all(number >= 0 for number in count()))


def test_parser_with_unbounded_memory_is_detected() -> None:
    """In a process of its own: afterwards this one would have held as much, and would see no other for it."""
    with PROCESSES.Pool(1) as pool, pytest.raises(AssertionError, match="MB more than ever before"):
        pool.apply(_greedy)


def _greedy() -> None:
    foreign.read(lambda: b"x" * (2 * foreign.MEMORY))
