"""Readers see every acknowledged row: a state machine over real tables, with handles that outlive them.

``LANCEKEEP_READERS=500 pytest tests/readers`` runs so many examples of each mode; `make soak` runs fresh seeds.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test
from readers.machine import OUTCOMES, Readers
from readers.stores import MODES, STORES

EXAMPLES = int(os.environ.get("LANCEKEEP_READERS", "20"))
PHASES = (Phase.generate,) if "LANCEKEEP_READERS_NO_SHRINK" in os.environ else (Phase.generate, Phase.shrink)
STEPS = int(os.environ.get("LANCEKEEP_READERS_STEPS", "30"))


def machine_of(mode: str) -> type[Readers]:
    class Machine(Readers):
        @initialize(mode=st.just(mode), kind=st.sampled_from(STORES), foreign=st.booleans())
        def begin(self, mode: str, kind: str, foreign: bool) -> None:
            super().begin(mode, kind, foreign)

    return Machine


def run(machine: type[Readers], number: int, examples: int, **more: Any) -> None:
    """Run so many examples from a seed."""
    budget = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        report_multiple_bugs=False,
        **more,
    )
    run_state_machine_as_test(seed(number)(machine), settings=budget)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_reader_sees_what_was_acknowledged(mode: str) -> None:
    number = int(os.environ.get("LANCEKEEP_SEED", "0"))
    print(f"mode {mode}, seed {number}, {EXAMPLES} examples")
    run(machine_of(mode), number, EXAMPLES)


if "LANCEKEEP_SOAK_MINUTES" in os.environ:  # `make soak`; a test that is skipped would have failed in CI

    def test_fresh_seeds_find_nothing_for_some_minutes() -> None:
        end = time.monotonic() + 60 * float(os.environ["LANCEKEEP_SOAK_MINUTES"])
        number = time.time_ns() // 1_000_000
        runs = 0
        while time.monotonic() < end:
            mode = MODES[runs % len(MODES)]
            print(f"mode {mode}, seed {number + runs}", flush=True)
            run(machine_of(mode), number + runs, 10)
            runs += 1
        print("\n".join(f"{outcome}: {times}" for outcome, times in sorted(OUTCOMES.items())))
