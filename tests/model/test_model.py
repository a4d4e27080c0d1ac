"""Every interleaving of the commit protocol, with crashes, faults and losses, in the settings below.

``LANCEKEEP_MODEL=large`` visits the large settings too, each for at most ``LANCEKEEP_MODEL_MINUTES``.
"""

from __future__ import annotations

import os
import re
from functools import cache

import attrs
import pytest
from model.checker import CREATES, NEITHER, Checker, Report, Setting
from model.watch import Unfinished, Watch, explored_whole

from lancekeep.application.commits import protocol_runner
from lancekeep.domain.commit import Event, Progress, advance
from lancekeep.domain.commit_transitions import TRANSITIONS, Reply, State

Transition = tuple[State, Reply]

SETTINGS = {
    Setting((1, 1, 1), versions=0): 45_000,
    Setting((1, 1), losses=1, readers=1, versions=0): 50_000,
    Setting((2, 2), readers=1): 200_000,
    Setting((1, 1), losses=1, faults=1, padded=True): 10_000,
    Setting((2, 1), readers=1, faults=1): 200_000,
    Setting((2, 1), cleaners=1): 100_000,
    Setting((1, 1), readers=1, cleaners=1): 250_000,
    Setting((1, 1), cleaners=1, faults=2): 300_000,
    Setting((1, 1), failovers=1, faults=1, versions=2): 75_000,
    Setting((1,), hasty=1, readers=1, faults=2): 50_000,
    Setting((1, 1), faults=2, readers=1, versions=0): 100_000,
    Setting((1, 1), losses=1, faults=2): 50_000,
    Setting((1, 1), losses=2): 8_000,
    Setting((1,), readers=1, failovers=1, versions=2, looks=True): 8_000,
    Setting((1, 1), readers=1, looks=True, store=NEITHER): 30_000,
    Setting((1,), readers=1, cleaners=1, versions=2, looks=True): 20_000,
    Setting((1,), readers=1, faults=1, losses=1, looks=True): 4_000,
    Setting((1,), hasty=1, losses=1, faults=2): 70_000,
    Setting((1, 1), readers=1, faults=1, store=CREATES): 30_000,
    Setting((1, 1), readers=1, faults=1, store=NEITHER): 50_000,
}
"""With the number of states below which a checker has not looked."""

LARGE = {
    Setting((1, 1, 1), readers=1): 500_000,
    Setting((1, 1, 1), faults=1): 150_000,
    Setting((1, 1), readers=1, losses=1, looks=True): 300_000,
    Setting((1, 1, 1), losses=1): 400_000,
    Setting((2, 1), losses=1, faults=1, padded=True): 100_000,
    Setting((2, 1), cleaners=1, faults=1): 1_500_000,
    Setting((1, 1), readers=1, cleaners=1, faults=1): 1_500_000,
    Setting((2, 2), faults=2): 100_000,
    Setting((1, 1, 1), faults=2): 500_000,
    Setting((1, 1, 1), readers=1, faults=1): 1_000_000,
    Setting((2, 1), losses=1, faults=2): 300_000,
    Setting((1, 1, 1), failovers=1, versions=0): 300_000,
}

OUTSIDE: set[Transition] = {
    # The store of the model keeps rows. The simulator runs the store that derives them.
    (State.RESERVE, Reply.FINAL),
    # No history moves to another commit store in the model.
    (State.RESERVE, Reply.MOVED),
    # No store of the model refuses permanently: credentials, rights and capabilities do not change there.
    (State.RESERVE, Reply.REFUSED),
    (State.FINALIZE_PREDECESSOR, Reply.REFUSED),
    (State.FIND_PREDECESSOR, Reply.REFUSED),
    (State.ADOPT_PREDECESSOR, Reply.REFUSED),
    (State.DISCARD, Reply.DONE),
    (State.DISCARD, Reply.FAULT),
    # `test_direct_commits.py` has tables that hold direct commits.
    (State.FIND_PREDECESSOR, Reply.DIRECT),
    (State.FINALIZE_PREDECESSOR, Reply.DIRECT),
    (State.COMPARE, Reply.DIRECT),
    (State.HELP_COMPARE, Reply.DIRECT),
    # No participant of the model removes a staged manifest wrongly.
    (State.HELP_REREAD, Reply.UNCHANGED),
    (State.HELP_REREAD, Reply.CHANGED),
    # More faults, or losses, at once than there are in these settings.
    (State.FINALIZE_PREDECESSOR, Reply.FAULT),
    (State.FINALIZE_HOLDER, Reply.FAULT),
    (State.RECOGNIZE, Reply.FAULT),
    (State.HELP_REREAD, Reply.FAULT),
}
"""Transitions that no setting comes by."""


@attrs.frozen
class Exploration:
    report: Report
    taken: frozenset[Transition]


@cache
def explored(setting: Setting) -> Exploration:
    taken: set[Transition] = set()

    def noting(progress: Progress, event: Event) -> Progress:
        taken.add((progress.state, event.reply))
        return advance(progress, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol_runner, "advance", noting)
        report = Checker(setting).run()
    return Exploration(report, frozenset(taken))


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_invariant_holds_in_every_state(setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    report = explored(setting).report
    with capsys.disabled():
        print(f"\n{report}")
    assert report.violation is None, str(report)
    assert report.states >= SETTINGS[setting]


@pytest.mark.slow
def test_together_the_settings_take_every_transition() -> None:
    taken = frozenset[Transition]().union(*(explored(setting).taken for setting in SETTINGS))
    assert taken <= set(TRANSITIONS)
    assert _named(set(TRANSITIONS) - taken) == _named(OUTSIDE)


def test_clean_up_while_the_commit_store_forgets_is_known_to_be_unsafe() -> None:
    """See docs/model.md. Once this fails, the page promises too little."""
    report = Checker(Setting((1, 1), cleaners=1, losses=1)).run()
    assert report.violation == "a lone writer cannot bring the table forward"


def test_exploration_tells_its_progress_and_ends_in_time() -> None:
    said: list[str] = []
    seconds = iter(range(0, 10_000, 4))
    setting = Setting((1, 1), losses=2)
    watch = Watch(setting, minutes=1, say=said.append, clock=lambda: next(seconds))
    with pytest.raises(Unfinished, match=r"not finished after 1 minutes: [\d,]+ states within \d+ steps, 64 s"):
        Checker(setting).run(watch=watch)
    assert len(said) == 5
    assert str(setting) in said[0]
    assert "states per second" in said[0]
    steps = [int(re.findall(r"within (\d+) steps", each)[0]) for each in said]
    assert steps == sorted(steps)
    assert Checker(setting).run(watch=Watch(setting)) == Checker(setting).run()


def _named(transitions: set[Transition]) -> list[str]:
    return sorted(f"{state.name} {reply.name}" for state, reply in transitions)


if os.environ.get("LANCEKEEP_MODEL") == "large":

    @pytest.mark.slow
    @pytest.mark.parametrize("setting", LARGE, ids=str)
    def test_every_invariant_holds_in_every_state_of_a_large_setting(
        setting: Setting, capsys: pytest.CaptureFixture[str]
    ) -> None:
        report = explored_whole(setting, capsys)
        assert report.violation is None, str(report)
        assert report.states >= LARGE[setting]
