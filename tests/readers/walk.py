"""Random walks over the machine's operations, and a search for the shortest walk that fails.

A walk draws every step independently, which reaches more combinations than Hypothesis, whose examples repeat and vary
earlier ones.
"""

from __future__ import annotations

import ast
import re
import time
import traceback
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import attrs
from readers.machine import Readers
from readers.operations import OPERATIONS
from readers.stores import MODES, STORES

LENGTH = 36
"""Steps of a walk. Some are impossible when their turn comes, and are skipped."""

FEWEST = 8
"""Operations that a walk draws from, at least: a few that meet often find what all of them seldom do."""


@attrs.frozen
class Walk:
    """A catalog and the operations to perform on it.

    Attributes:
        mode: The mode of the catalog.
        kind: Its commit store.
        steps: Calls of the machine's operations, for example ``"drop(at=0)"``.
        foreign: Whether another writer has created the manifest table.
    """

    mode: str
    kind: str
    steps: tuple[str, ...]
    foreign: bool = False

    @classmethod
    def random(cls, seed: int, kinds: Sequence[str] = STORES) -> Walk:
        """Draw a walk; equal seeds give equal walks."""
        random = Random(seed)
        mode, kind, foreign = random.choice(MODES), random.choice(kinds), random.random() < 0.4
        among = random.sample(list(OPERATIONS.values()), random.randint(FEWEST, len(OPERATIONS)))
        drawn = random.choices(among, [operation.weight for operation in among], k=LENGTH)
        steps = []
        for operation in drawn:
            given = {name: random.choice(values) for name, values in operation.choices.items()}
            steps.append(f"{operation.name}({', '.join(f'{name}={value!r}' for name, value in given.items())})")
        return cls(mode, kind, tuple(steps), foreign)

    def perform(self, servers: Mapping[str, Any] | None = None) -> None:
        """Perform the steps, each followed by the judge. Steps that are not possible are skipped."""
        machine = Readers()
        machine.servers = servers or {}
        try:
            machine.begin(self.mode, self.kind, self.foreign)
            machine.check()
            for step in self.steps:
                name, given = _parsed(step)
                if OPERATIONS[name].is_possible(machine):
                    getattr(machine, name)(**given)
                    machine.check()
        finally:
            machine.teardown()

    def failure(self, servers: Mapping[str, Any] | None = None) -> BaseException | None:
        """Perform the steps; return the error that ends them, if any."""
        try:
            self.perform(servers)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of native code is not an Exception
            return error
        return None

    def without(self, first: int, end: int) -> Walk:
        return attrs.evolve(self, steps=self.steps[:first] + self.steps[end:])

    def shrink(self, error: BaseException, seconds: float, servers: Mapping[str, Any] | None = None) -> Walk:
        """Remove steps for as long as the walk fails in the same way (delta debugging).

        Args:
            error: The failure of this walk.
            seconds: When to return the shortest walk found so far.
            servers: See `perform`.
        """
        end, shortest, symptom = time.monotonic() + seconds, self, _symptom(error)
        size = len(self.steps)
        while size:
            length = len(shortest.steps)
            for first in range(length - size, -1, -size):
                if time.monotonic() > end:
                    return shortest
                shorter = shortest.without(first, first + size)
                found = shorter.failure(servers)
                if found is not None and _symptom(found) == symptom:
                    shortest = shorter
            if size > 1 or len(shortest.steps) == length:
                size //= 2
        return shortest

    def __str__(self) -> str:
        """Return the walk as Python source."""
        steps = "".join(f"        {step!r},\n" for step in self.steps)
        return f"Walk(\n    {self.mode!r},\n    {self.kind!r},\n    (\n{steps}    ),\n    foreign={self.foreign},\n)"


def _parsed(step: str) -> tuple[str, dict[str, Any]]:
    """Return the operation and the arguments of a step."""
    call = ast.parse(step, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    return call.func.id, {str(given.arg): ast.literal_eval(given.value) for given in call.keywords}


def _symptom(error: BaseException) -> tuple[str, str, str]:
    """Return what failures of one cause share: the error, and the function of the machine that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [frame.name for frame in frames if "/readers/" in frame.filename]
    return type(error).__name__, where[-1] if where else "", re.sub(r"[0-9a-f]{6,}|\d+", "#", str(error))[:40]
