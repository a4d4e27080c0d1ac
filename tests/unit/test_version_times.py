"""The search of a version by its time, judged by a scan over all versions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancekeep.application.rows.version_times import OUT_OF_ORDER, Times, latest_at, moment_of
from lancekeep.domain.errors import InvalidInput, VersionNotFound

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


class History:
    """Versions with times in seconds; those in ``removed`` do not exist."""

    def __init__(self, seconds: list[int], removed: frozenset[int] = frozenset()) -> None:
        self.seconds = {number: each for number, each in enumerate(seconds, 1) if number not in removed}
        self.latest = len(seconds)
        self.asked = 0

    def find(self, second: int) -> int | None:
        """Return the version of the search; None if there is none."""
        try:
            return latest_at(Times("the table t", self.latest, self._time, self._kept), at(second))
        except VersionNotFound:
            return None

    def scan(self, second: int) -> int | None:
        """Return the newest version that is not later, unless it is unknown how long it was the latest."""
        found = max((number for number, each in self.seconds.items() if each <= second), default=None)
        if found is None or found == self.latest or found + 1 in self.seconds or self.seconds[found] == second:
            return found
        return None

    def _time(self, version: int) -> datetime | None:
        self.asked += 1
        return at(self.seconds[version]) if version in self.seconds else None

    def _kept(self, until: int) -> list[int]:
        return [number for number in sorted(self.seconds) if number <= until]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(-1, 31))
def test_ascending_times_are_found_exactly(seconds: list[int], second: int) -> None:
    history = History(sorted(seconds))
    assert history.find(second) == history.scan(second)


@given(
    st.lists(st.integers(0, 30), min_size=2, max_size=40),
    st.sets(st.integers(1, 39)),
    st.integers(-1, 31),
)
def test_removed_versions_select_none(seconds: list[int], removed: set[int], second: int) -> None:
    seconds = sorted(seconds)
    history = History(seconds, frozenset(number for number in removed if number < len(seconds)))
    assert history.find(second) == history.scan(second)


@given(st.data())
def test_times_out_of_order_within_the_window_select_the_newest(data: Any) -> None:
    seconds = sorted(data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=60)))
    skewed = list(seconds)
    for place in range(0, len(seconds), OUT_OF_ORDER + 1):
        skewed[place : place + OUT_OF_ORDER + 1] = data.draw(st.permutations(seconds[place : place + OUT_OF_ORDER + 1]))
    history = History(skewed)
    second = data.draw(st.integers(-1, 31))
    assert history.find(second) == history.scan(second)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(-1, 31))
def test_any_order_selects_a_version_that_the_next_one_did_not_precede(seconds: list[int], second: int) -> None:
    history = History(seconds)
    found = history.find(second)
    if found is not None:
        assert history.seconds[found] <= second
        assert found == history.latest or history.seconds[found + 1] > second
    else:
        assert history.seconds[1] > second


@pytest.mark.parametrize("second", [-1, 0, 7, 9_999, 19_999, 30_000])
@pytest.mark.parametrize("removed", [0, 15_000])
def test_twenty_thousand_versions_take_few_reads(second: int, removed: int) -> None:
    history = History(list(range(20_000)), frozenset(range(1, removed + 1)))
    assert history.find(second) == history.scan(second)
    assert history.asked <= 15 + OUT_OF_ORDER + 3


def test_message_names_the_versions_that_are_left() -> None:
    history = History([0, 10, 20, 30, 40], frozenset({1, 3, 4}))
    with pytest.raises(VersionNotFound, match="version 2 of 2026-01-01 00:00:10 UTC and version 5 of"):
        latest_at(Times("the table t", 5, history._time, history._kept), at(25))
    with pytest.raises(VersionNotFound, match=r"the oldest version that is left is later.*version 2 of"):
        latest_at(Times("the table t", 5, history._time, history._kept), at(5))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (datetime(2026, 1, 1), "no time zone"),
        ("2026-01-01T00:00:00", "no time zone"),
        ("2026-01-01", "no time zone"),
        ("yesterday", "is not a time"),
        (1_767_225_600, "is not a time"),
        (START.date(), "is not a time"),
        (pd.NaT, "is not a time"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), "years 1 to 9999"),
    ],
)
def test_times_that_are_ambiguous_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        moment_of(given)


def test_texts_and_zones_name_the_same_moment() -> None:
    moment = datetime(2026, 1, 1, 10, 30, tzinfo=timezone(timedelta(hours=2)))
    assert moment_of("2026-01-01T10:30:00+02:00") == moment_of("2026-01-01T08:30Z") == moment_of(moment)
