"""Transactions over two tables in every interleaving; the checker finds each deliberate fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from model import transactions
from model.transactions import Pair, Programme, Read, Single, Transact, explore

from lancekeep.adapters.commit_stores import claims
from lancekeep.application.commits.transaction_commits import TransactionCommits
from lancekeep.domain.commit import RESERVED, Unknown
from lancekeep.domain.transaction import Standing, Transaction
from lancekeep.domain.version_row import Blocked, Claim, Reserved

SETTINGS: dict[str, tuple[Sequence[Programme], int, int]] = {
    "opposite orders and a reader": ((Transact("X"), Transact("Y", (1, 0)), Read()), 0, 10_000),
    "a single commit and a reader": ((Transact("X"), Single("s"), Read(order=(1, 0))), 0, 3_000),
    "a single commit and a lost reply": ((Transact("X"), Single("s")), 1, 1_000),
    "a reader and a lost reply": ((Transact("X"), Read(order=(1, 0))), 1, 1_000),
    "two lost replies": ((Transact("X"),), 2, 200),
}
"""The participants, the number of calls without a reply, and the least number of states to visit."""


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_all_or_none_in_every_state(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    participants, faults, least = SETTINGS[setting]
    states, wrong = explore(participants, faults)
    with capsys.disabled():
        print(f"\n{setting}: {states:,} states")
    assert wrong is None, wrong
    assert states >= least


# -- deliberate faults ----------------------------------------------------------------------------------------------


def one_by_one(pair: Pair, wanted: tuple[Claim, ...]) -> tuple[Pair, Any]:
    """The commit store reserves what it can."""
    obstacles = {}
    for claim in wanted:
        at = transactions.place(claim.row.base_uri)
        world = pair.worlds[at]
        told = claims.answer_claim(claim, world.row(claim.row.version), world.latest_row)
        if told is None:
            pair = pair.evolved(at, world.with_row(claim.row))
        elif not isinstance(told, Reserved):
            obstacles[claim.row.base_uri] = told
    return pair, Blocked(obstacles) if obstacles else Reserved()


def undeterred(transaction: Transaction, decision: Standing) -> Transaction:
    """A ready member goes on, whatever the decision."""
    members = (each.after(RESERVED) if each.standing is Standing.READY else each for each in transaction.members)
    return Transaction(tuple(members), decision)


def unknown_removes(self: TransactionCommits, *args: Any) -> Any:
    """The runner removes the staged manifests of an unknown transaction."""
    outcome = _SETTLE(self, *args)
    if isinstance(outcome, Unknown):
        for staged in outcome.token.members:
            self._commits.objects.delete(staged.path)
    return outcome


_SETTLE = TransactionCommits._settle
TORN = "a lone reader finds [[True, False]]"
FAULTS: dict[str, tuple[str, Any, str, Any, str]] = {
    "one by one": (
        "a single commit and a reader",
        transactions,
        "reserve_all",
        one_by_one,
        TORN,
    ),
    "undeterred": ("a single commit and a reader", Transaction, "_decided", undeterred, TORN),
    "unknown removes": (
        "two lost replies",
        TransactionCommits,
        "_settle",
        unknown_removes,
        "points at a manifest that is gone",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_deliberate_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, owner, name, replacement, found = FAULTS[fault]
    monkeypatch.setattr(owner, name, replacement)
    participants, faults, _ = SETTINGS[setting]
    _, wrong = explore(participants, faults)
    assert wrong is not None
    assert found in wrong
