"""Which appends share a commit, and when the committer of a table pauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancekeep.domain.appends import MOST_APPENDS, MOST_TOGETHER, Pace, Waiting, group_of

LINES = st.lists(st.builds(Waiting, st.sampled_from("ab"), st.integers(1, MOST_TOGETHER)), min_size=1, max_size=20)


@given(LINES)
def test_groups_have_one_shape_a_size_limit_and_the_first_append(line: list[Waiting]) -> None:
    group = [line[at] for at in group_of(line)]
    assert group[0] is line[0]
    assert {each.shape for each in group} == {line[0].shape}
    assert len(group) == 1 or sum(each.size for each in group) <= MOST_TOGETHER


@given(LINES)
def test_every_append_commits_once_and_in_order_of_its_shape(line: list[Waiting]) -> None:
    committed: list[Waiting] = []
    waiting = line
    while waiting:
        chosen = group_of(waiting)
        assert chosen
        committed += [waiting[at] for at in chosen]
        waiting = [each for at, each in enumerate(waiting) if at not in chosen]
    assert [each for each in committed if each.shape == "a"] == [each for each in line if each.shape == "a"]
    assert len(committed) == len(line)


def test_a_group_has_a_limited_number_of_appends() -> None:
    assert group_of([Waiting("a", 1)] * (MOST_APPENDS + 1)) == list(range(MOST_APPENDS))


def test_only_a_committer_with_several_clients_lingers() -> None:
    alone = Pace().committed(1, 0.0, 0.1, met=False)
    assert alone.linger() == (0, 0.0)
    together = Pace().committed(64, 0.0, 0.08, met=False)
    assert together.linger() == (64, 0.06)
    slow = Pace().committed(64, 0.0, 9.0, met=False)
    assert slow.linger() == (64, 0.25)


def test_clients_that_are_split_into_two_groups_are_united() -> None:
    """The committer waits for the clients of the last group although those of the other one wait already."""
    split = Pace().committed(8, 0.0, 0.08, left=8, met=False)
    assert split.linger() == (16, 0.06)
    two_clients = Pace().committed(1, 0.0, 0.08, left=1, met=False)
    assert two_clients.linger() == (2, 0.06)


def busy(pace: Pace, seconds: float, *, met: bool = False) -> tuple[Pace, float]:
    """Commit a group every 0.1 seconds without a pause; return the pace and the time."""
    now = 0.0
    while now < seconds:
        pace = pace.committed(8, now, now + 0.1, met=met)
        now += 0.1
    return pace, now


def test_a_committer_breathes_more_often_beside_other_writers() -> None:
    pace, now = busy(Pace(), 3)
    assert pace.breath(now, others=0) == 0
    assert pace.breath(now, others=1) == pytest.approx(1.0)
    met, now = busy(Pace(), 3, met=True)
    assert met.breath(now, others=0) == pytest.approx(1.0)
    long, now = busy(Pace(), 39)
    assert long.breath(now, others=0) == 0
    longer, now = busy(Pace(), 41)
    assert longer.breath(now, others=0) == pytest.approx(0.8)


def test_a_committer_that_rested_does_not_breathe() -> None:
    pace, now = busy(Pace(), 11)
    assert pace.breath(now + 1, others=1) == 0
    rested = pace.committed(8, now + 1, now + 1.1, met=False)
    assert rested.breath(now + 1.1, others=1) == 0
