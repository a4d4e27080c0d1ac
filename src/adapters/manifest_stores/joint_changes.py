"""Changes of a catalog that threads of one process make together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from threading import Lock
from typing import Any, Protocol

import attrs

from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.domain.joint_changes import decide_jointly
from lancekeep.ports.manifest_store import Decision, Result

MOST_TOGETHER = 64
"""The most decisions that one change carries out."""


class Apply(Protocol):
    """The change of a manifest store: `ManifestStore.apply`."""

    def __call__(self, decide: Decision[Result], /) -> tuple[CatalogView, Result]: ...


@attrs.define(eq=False)
class _Waiting:
    """A decision that waits.

    Attributes:
        decide: The decision.
        is_taken: Whether a thread has taken it up.
        applied: The catalog after it was carried out, and its result; None if its own thread has to carry it out.
        error: The error of the change that it was a part of.
    """

    decide: Decision[Any]
    is_taken: bool = False
    applied: tuple[CatalogView, Any] | None = None
    error: StoreUnavailable | None = None

    def take(self) -> _Waiting:
        self.is_taken = True
        return self

    def end(self, applied: tuple[CatalogView, Any] | None, error: StoreUnavailable | None) -> None:
        self.applied, self.error = applied, error


class JointChanges:
    """Carry out decisions of several threads by one change of the catalog (ADR 167).

    A change takes a sync to disk, and changes of one catalog are made one after the other. While one thread makes a
    change, the decisions of other threads gather for the next.

    Args:
        apply: Makes a change, atomically.
    """

    def __init__(self, apply: Apply) -> None:
        self._apply = apply
        self._begin()

    def apply(self, decide: Decision[Result]) -> tuple[CatalogView, Result]:
        """Carry out a decision; see `ManifestStore.apply`."""
        if self._process != os.getpid():
            self._begin()
        mine = _Waiting(decide)
        with self._gate:
            self._waiting.append(mine)
        try:
            with self._turn:
                while not mine.is_taken:  # of many, the first are taken
                    self._carry_out(self._taken())
                if mine.error is not None:
                    raise copy(mine.error) from mine.error  # several threads raise it
                return mine.applied or self._apply(decide)
        finally:
            with self._gate:
                if not mine.is_taken:  # the wait was interrupted
                    self._waiting.remove(mine)

    def _begin(self) -> None:
        """Begin without the threads of a parent process, which a forked child does not have."""
        self._process = os.getpid()
        self._gate, self._turn = Lock(), Lock()
        self._waiting: list[_Waiting] = []

    def _taken(self) -> list[_Waiting]:
        with self._gate:
            group, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            return [each.take() for each in group]

    def _carry_out(self, group: Sequence[_Waiting]) -> None:
        """Carry out decisions by one change, except those that have to be carried out alone."""
        if len(group) == 1:
            return
        error: StoreUnavailable | None = StoreUnavailable(
            "the change was interrupted in the thread that made it; it is unknown whether it was made. Read the "
            "catalog before you repeat it"
        )
        decisions = [each.decide for each in group]
        applied: list[tuple[CatalogView, Any] | None] = [None] * len(group)
        try:
            view, results = self._apply(lambda before: decide_jointly(before, decisions))
            applied = [None if decided is None else (view, decided.result) for decided in results]
            error = None
        except StoreUnavailable as unavailable:
            error = unavailable
        except Exception:  # of one decision, perhaps: it then meets its error alone
            error = None
        finally:
            for each, made in zip(group, applied, strict=True):
                each.end(made, error)
