"""Every interleaving of a table that holds direct commits: with direct writers, and operators that settle them."""

from __future__ import annotations

import os

import pytest
from model.checker import CREATES, Checker, Setting
from model.watch import explored_whole

from lancekeep.application.commits.direct_commits import DirectCommits
from lancekeep.application.commits.holding import Holding
from lancekeep.domain.direct_commits import Decision, approval_of

ADOPT, DISCARD = Decision.ADOPT, Decision.DISCARD
SETTINGS = {
    Setting((1, 1), direct=1, looks=True): 6_000,
    Setting((1,), direct=1, readers=1, looks=True): 1_500,
    Setting((1,), direct=1, faults=1, looks=True): 200,
    Setting((1,), direct=1, looks=True, store=CREATES): 90,
    Setting((1,), direct=1, misled=1, looks=True): 10_000,
    Setting((), direct=2, looks=True, settlers=(DISCARD,)): 900,
    Setting((1,), direct=1, settlers=(DISCARD,)): 5_000,
    Setting((), direct=1, looks=True, settlers=(ADOPT, DISCARD)): 20_000,
    Setting((), direct=1, readers=1, looks=True, settlers=(DISCARD,), owners=1): 8_000,
    Setting((), direct=1, faults=1, looks=True, settlers=(DISCARD,), owners=1): 600,
    Setting((1,), direct=1, settlers=(DISCARD,), owners=1): 30_000,
    Setting((1,), direct=1, readers=1, looks=True, owners=1): 15_000,
}
"""With the number of states below which a checker has not looked."""

LARGE = {
    Setting((1,), direct=1, faults=1, settlers=(DISCARD,)): 25_000,
    Setting((1,), direct=1, looks=True, settlers=(DISCARD,)): 40_000,
    Setting((1,), direct=1, looks=True, settlers=(ADOPT,)): 40_000,
    Setting((1,), direct=1, readers=1, settlers=(DISCARD,)): 80_000,
    Setting((), direct=1, faults=1, looks=True, settlers=(ADOPT, DISCARD)): 50_000,
    Setting((), direct=1, misled=1, looks=True, settlers=(ADOPT,)): 40_000,
    Setting((1,), direct=1, misled=1, looks=True, settlers=(DISCARD,)): 1_500_000,
    Setting((1,), direct=1, settlers=(DISCARD, DISCARD)): 8_000_000,
}
CHOSEN = {**SETTINGS, **(LARGE if os.environ.get("LANCEKEEP_MODEL") == "large" else {})}


@pytest.mark.parametrize("setting", CHOSEN, ids=str)
def test_no_direct_commit_is_reflected_and_no_commit_is_lost(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    report = explored_whole(setting, capsys)
    assert report.violation is None, str(report)
    assert report.states >= CHOSEN[setting]


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "setting", "found"),
    [
        (
            DirectCommits,
            "is_approved",
            lambda *_: True,
            Setting((1,), direct=1, readers=1, looks=True),
            "which was not adopted",
        ),
        (
            DirectCommits,
            "approve",
            lambda self, base_uri, version, content: approval_of(base_uri, version, content),
            Setting((), direct=1, looks=True, settlers=(ADOPT, DISCARD)),
            "",
        ),
        (
            Holding,
            "require_reflected",
            lambda *_: None,
            Setting((), direct=1, misled=1, settlers=(DISCARD,)),
            "and its predecessor",
        ),
    ],
    ids=["everything is approved", "the first decision does not stand", "a predecessor may be replaced"],
)
def test_deliberate_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, wrong: object, setting: Setting, found: str
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    violation = Checker(setting).run().violation
    assert violation is not None
    assert found in violation
