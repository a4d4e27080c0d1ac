"""The whole catalog under a seeded scheduler: fixed seeds, fresh ones in `make soak`, one again by LANCEKEEP_SEED."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

import pytest
from faults import Crash
from planted.fault import MISFITS
from simulation import simulator
from simulation.model import EFFECTS
from simulation.simulator import Failure, Run, simulate

from lancekeep.adapters.manifest_stores import lance_table, table_cleanup
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.application.commits.protocol_runner import ProtocolRunner
from lancekeep.application.entries.removal import Removal
from lancekeep.domain.commit import DONE, Event
from lancekeep.domain.commit_transitions import Reply
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.domain.naming import final_path

TESTS = Path(__file__).parents[1]
SEEDS = range(100)
ONE_SEED = pytest.mark.skipif("LANCEKEEP_SEED" in os.environ, reason="one seed is asked for")


def chosen_seeds() -> list[int]:
    chosen = os.environ.get("LANCEKEEP_SEED")
    return [int(chosen)] if chosen else list(SEEDS)


def test_fixed_seeds_pass() -> None:
    outcomes: Counter[str] = Counter()
    runs = [simulate(seed) for seed in chosen_seeds()]
    for run in runs:
        print(f"seed {run.seed}: {run.steps} steps, trace {run.trace_hash}")
        outcomes += run.outcomes
    if len(runs) > 1:  # a run in which nothing works, or nothing fails, would find nothing either
        kinds = [kind for kind in EFFECTS if kind != "register"]
        told = [(kind, outcome) for kind in kinds for outcome in ("ok", "refused", "unknown")]
        assert not [pair for pair in told if outcomes[" ".join(pair)] < 3]


if "LANCEKEEP_SOAK_MINUTES" in os.environ:  # `make soak`; a test that is skipped would have failed in CI

    def test_fresh_seeds_pass() -> None:
        end = time.monotonic() + 60 * float(os.environ["LANCEKEEP_SOAK_MINUTES"])
        first = time.time_ns() // 1_000_000
        runs = 0
        while time.monotonic() < end:
            simulate(first + runs)
            runs += 1
        print(f"{runs} runs, from seed {first}")


_AGAIN = """
import sys, threading
from simulation.simulator import simulate

def spin():
    while True:
        pass

sys.setswitchinterval(1e-5)
threading.Thread(target=spin, daemon=True).start()
for seed in map(int, sys.argv[1:]):
    print(seed, simulate(seed).trace_hash)
"""


def test_seeds_replay_exactly_in_another_process_order_and_beside_a_busy_thread() -> None:
    runs = [simulate(seed) for seed in chosen_seeds()[::-10]]
    path = os.pathsep.join([str(TESTS), *sys.path])  # the same product as here, wherever that is
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"}
    again = [sys.executable, "-c", _AGAIN, *(str(run.seed) for run in runs)]
    found = subprocess.run(again, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    traces = {int(seed): trace for seed, trace in map(str.split, found.splitlines())}
    assert traces == {run.seed: run.trace_hash for run in runs}


def test_port_that_another_thread_calls_is_a_violation() -> None:
    def in_a_thread(act: Callable[[], object]) -> None:
        def run() -> None:
            with suppress(Crash):
                act()

        thread = Thread(target=run)
        thread.start()
        thread.join()

    def all_seeds() -> list[Run]:
        return [simulate(seed) for seed in SEEDS]

    with patch.object(simulator, "_inline", in_a_thread), pytest.raises(Failure, match="threads outside the scheduler"):
        all_seeds()


# -- deliberate faults: each has to be found -------------------------------------------------------------------------


def _put(self: LanceManifestStore, name: str, content: bytes) -> tuple[bool, bool]:
    self._objects.put(name, content)
    return True, True


def _believe(self: Any, requests: Any) -> None:
    """As `_decide_and_publish`, without the fresh look before a refusal."""
    if self._latest is not None:
        self._refresh = lambda: False
    try:
        DECIDE(self, requests)
    finally:
        self.__dict__.pop("_refresh", None)


def _create_once(self: LanceManifestStore, name: str, content: bytes) -> tuple[bool, bool]:
    """A lost reply is followed by a second try, whose answer is believed."""
    try:
        return self._publish_object(name, content), True
    except StoreUnavailable:
        return self._publish_object(name, content), True


def _publish_discarding(self: LanceManifestStore, base: Any, prepared: Any) -> Any:
    """What is not known to be there is cleared away."""
    try:
        return PUBLISH(self, base, prepared)
    except StoreUnavailable:
        self._versions.discard(prepared)
        raise


def _clean_up_all(objects: Any, key: str, forget: Any = None) -> int:
    """Nothing is kept but the manifest of the latest version."""
    for info in objects.list(f"{key}/data/"):
        objects.delete(info.key)
    return 1


def _remove_without_rows(self: Any, table: Any, *, copied: bool = False, record: str | None = None) -> None:
    root = self._places.dataset_root(table)
    for info in list(self._places.objects.list(f"{root.key}/")):
        self._places.objects.delete(info.key)


def _same(self: ProtocolRunner, progress: Any, content: Any) -> Any:
    return Event(Reply.SAME)


def _copy_over(self: ProtocolRunner, progress: Any, content: Any) -> Any:
    """The final manifest is written without a condition."""
    source = progress.row.path
    self.objects.put(final_path(source), content if content is not None else self.objects.get(source))
    return DONE


PUBLISH: Callable[..., Any] = LanceManifestStore._publish
DECIDE: Callable[..., None] = LanceManifestStore._decide_and_publish
FAULTS: dict[str, tuple[Any, str, Any]] = {
    "the manifest is published without a condition": (LanceManifestStore, "_create", _put),
    "a second try is believed after a lost reply": (LanceManifestStore, "_create", _create_once),
    "files are discarded although they may be needed": (LanceManifestStore, "_publish", _publish_discarding),
    "a refusal is believed without a fresh look": (LanceManifestStore, "_decide_and_publish", _believe),
    "a view is believed without a look": (LanceManifestStore, "view", LanceManifestStore.recent),
    "a version is never taken for cleaned up": (LanceManifestStore, "_is_overtaken", lambda *_: False),
    "clean-up keeps nothing": (lance_table, "clean_up", _clean_up_all),
    "clean-up goes by no age": (table_cleanup, "_is_old", lambda *_: True),
    "any final manifest is taken for the own one": (ProtocolRunner, "_compare", _same),
    "the final manifest is written over": (ProtocolRunner, "_copy", _copy_over),
    "a drop forgets no rows": (Removal, "remove", _remove_without_rows),
}


FOUND_LATE = {
    "a second try is believed after a lost reply": 12,
    "files are discarded although they may be needed": 9,
    "a version is never taken for cleaned up": 1821,
    "clean-up keeps nothing": 22,
    "clean-up goes by no age": 14,
    "the final manifest is written over": 11,
    "a drop forgets no rows": 12,
}
"""Seeds that find faults which take long to find, to begin with: a change of the code may make others of them."""
MOST = 2000
"""How many seeds are tried before a fault counts as one that is not found."""


@ONE_SEED
@pytest.mark.parametrize("fault", FAULTS)
def test_deliberate_fault_is_found(fault: str) -> None:
    target, name, replacement = FAULTS[fault]
    with patch.object(target, name, replacement):
        for seed in [FOUND_LATE.get(fault, 0), *range(MOST)]:
            try:
                simulate(seed)
            except Failure as failure:
                if isinstance(failure.__cause__, MISFITS):
                    raise
                print(f"{fault}: found by {str(failure).splitlines()[0]}")
                return
    pytest.fail(f"{MOST} seeds do not find: {fault}")
