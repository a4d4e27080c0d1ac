"""Each deliberate fault is found by a short walk, which passes without the fault."""

from __future__ import annotations

import attrs
import pytest
from readers.faults import FAULTS


@pytest.mark.parametrize("name", FAULTS)
def test_deliberate_fault_is_found(name: str) -> None:
    fault = FAULTS[name]
    with fault.planted():
        found = fault.found_by.failure()
    assert found is not None
    print(f"{name}: {type(found).__name__}: {found}")


@pytest.mark.parametrize("name", FAULTS)
def test_same_walk_passes_without_fault(name: str) -> None:
    FAULTS[name].found_by.perform()


def test_failing_walk_is_shrunk_to_the_steps_that_fail() -> None:
    fault = FAULTS["commits need not descend from the version they follow"]
    superfluous = ("tag(at=1, tag=0, branch=0, version=0)", "write(at=1, mode='append', value=1)")
    walk = attrs.evolve(fault.found_by, steps=(*superfluous, *fault.found_by.steps, *superfluous))
    with fault.planted():
        found = walk.failure()
        assert found is not None
        assert walk.shrink(found, seconds=60) == fault.found_by
