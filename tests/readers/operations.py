"""Operations of the machine: rules for Hypothesis, and steps of a random walk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

F = TypeVar("F", bound=Callable[..., None])

FEW = range(6)
"""Numbers that pick from a pool, modulo its size."""

FLAG = (False, True)


@attrs.frozen
class Operation:
    """A method of the machine, and how a walk draws it.

    Attributes:
        choices: The values that each argument may take.
        is_possible: Whether a machine can perform it now.
        weight: How often a walk draws it, relative to the others.
    """

    name: str
    choices: Mapping[str, Sequence[Any]]
    is_possible: Callable[[Any], bool]
    weight: int


OPERATIONS: dict[str, Operation] = {}


def has_tables(machine: Any) -> bool:
    return bool(machine.tables)


def has_pending(machine: Any) -> bool:
    return bool(machine.pending)


def is_local(machine: Any) -> bool:
    return bool(machine.tables) and "://" not in machine.lake.root


def operation(
    is_possible: Callable[[Any], bool] | None = None, *, weight: int = 1, **choices: Sequence[Any]
) -> Callable[[F], F]:
    """Make a method a rule of Hypothesis's state machine and an operation of random walks."""

    def register(method: F) -> F:
        possible = is_possible or (lambda machine: True)
        OPERATIONS[method.__name__] = Operation(method.__name__, choices, possible, weight)
        made: Any = rule  # its overloads do not accept arguments by a mapping
        arguments = {name: st.sampled_from(values) for name, values in choices.items()}
        decorated: F = precondition(possible)(made(**arguments)(method))
        return decorated

    return register
