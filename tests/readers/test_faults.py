"""Each deliberate fault is found by a short sequence of the machine's rules, which passes without the fault."""

from __future__ import annotations

from typing import Any

import pytest
from readers.faults import FAULTS, Fault
from readers.machine import Readers


def replay(fault: Fault) -> None:
    """Perform rules of the machine, each followed by the judge."""
    machine = Readers()
    try:
        machine.begin(fault.mode, fault.kind, fault.foreign)
        machine.check()
        for step in fault.steps:
            rule, *arguments = step.split()
            given = dict(argument.split("=") for argument in arguments)
            getattr(machine, rule)(**{name: _value(text) for name, text in given.items()})
            machine.check()
    finally:
        machine.teardown()


def _value(text: str) -> Any:
    return int(text) if text.isdigit() else {"True": True, "False": False}.get(text, text)


@pytest.mark.parametrize("name", FAULTS)
def test_a_deliberate_fault_is_found(name: str) -> None:
    with FAULTS[name].reintroduced(), pytest.raises(Exception) as found:  # noqa: PT011 - readers fail in many ways
        replay(FAULTS[name])
    print(f"{name}: {type(found.value).__name__}: {found.value}")


@pytest.mark.parametrize("name", FAULTS)
def test_same_sequence_passes_without_fault(name: str) -> None:
    replay(FAULTS[name])
