"""Readers see every acknowledged row: a state machine over real tables, with handles that outlive them.

``LANCEKEEP_READERS=500 pytest tests/readers`` runs so many examples of each mode; `make soak` runs random walks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from deployments import bucket, s3_options
from engines import ALL, Engine
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test
from readers.machine import OUTCOMES, Readers
from readers.stores import MODES, STORES
from readers.walk import Walk

SEED = int(os.environ.get("LANCEKEEP_SEED", "0"))
EXAMPLES = int(os.environ.get("LANCEKEEP_READERS", "6"))
PHASES = (Phase.generate,) if "LANCEKEEP_READERS_NO_SHRINK" in os.environ else (Phase.generate, Phase.shrink)
STEPS = int(os.environ.get("LANCEKEEP_READERS_STEPS", "30"))

SHRINK_SECONDS = 300


def machine_of(mode: str, kinds: Sequence[str] = STORES, servers: Mapping[str, Any] | None = None) -> type[Readers]:
    class Machine(Readers):
        @initialize(mode=st.just(mode), kind=st.sampled_from(kinds), foreign=st.booleans())
        def begin(self, mode: str, kind: str, foreign: bool) -> None:
            super().begin(mode, kind, foreign)

    Machine.servers = servers or {}

    return Machine


def run(machine: type[Readers], number: int, examples: int, **more: Any) -> None:
    """Run so many examples from a seed."""
    print(f"seed {number}, {examples} examples", flush=True)
    budget = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
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
def test_every_reader_sees_acknowledged_rows(mode: str) -> None:
    run(machine_of(mode), SEED, EXAMPLES)


@pytest.mark.slow
def test_every_reader_sees_acknowledged_rows_over_redis(redis_url: str) -> None:
    run(machine_of("compatible", ("redis",), {"redis": redis_url}), SEED, max(EXAMPLES // 12, 1))


@pytest.mark.slow
def test_every_reader_sees_acknowledged_rows_on_s3(moto_endpoint: str) -> None:
    lakes = bucket(moto_endpoint)
    servers = {"root": lambda: f"s3://{lakes}/{uuid4().hex}/lake", "storage_options": s3_options(moto_endpoint)}
    run(machine_of("compatible", ("sqlite", "conditional-put"), servers), SEED, max(EXAMPLES // 12, 1))


@pytest.mark.slow
def test_every_reader_sees_acknowledged_rows_beside_other_engines(engine_of: Callable[[str], Engine]) -> None:
    engines = {name: engine_of(name) for name in ALL}
    run(
        machine_of("compatible", ("sqlite", "conditional-put", "none"), {"engines": engines}),
        SEED,
        max(EXAMPLES // 3, 1),
    )


if "LANCEKEEP_SOAK_MINUTES" in os.environ:  # `make soak`; a test that is skipped would have failed in CI

    def test_fresh_seeds_pass(redis_url: str, engine_of: Callable[[str], Engine]) -> None:
        end = time.monotonic() + 60 * float(os.environ["LANCEKEEP_SOAK_MINUTES"])
        first = int(os.environ.get("LANCEKEEP_SOAK_SEED", time.time_ns() // 1_000_000))
        servers = {"redis": redis_url, "engines": {name: engine_of(name) for name in ALL}}
        print(f"seed {first}", flush=True)
        for walks in count(1):
            walk = Walk.random(first + walks - 1, (*STORES, "redis"))
            error = walk.failure(servers)
            if error is not None:
                shortest = walk.shrink(error, SHRINK_SECONDS, servers)
                raise AssertionError(
                    f"LANCEKEEP_SOAK_SEED={first + walks - 1} found, shortened to:\n{shortest}"
                ) from error
            if time.monotonic() > end:
                break
        print(f"{walks} walks")
        print("\n".join(f"{outcome}: {times}" for outcome, times in sorted(OUTCOMES.items())))
