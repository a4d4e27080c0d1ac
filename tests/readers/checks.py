"""The checks of the product that the machine performs after its steps, without a new process for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self
from unittest.mock import patch

import lancekeep
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.isolation import apart
from lancekeep.entrypoints.verification import Problem, verify_by

Names = tuple[str, ...]


def problems_in(catalog: lancekeep.Catalog, tables: Iterable[Names] | None = None) -> tuple[Problem, ...]:
    """Verify tables as `lancekeep.verify` does, in a child process that is kept for the next call."""

    def run(_: str, work: Sequence[Any], task: Callable[[Any], Any]) -> Iterator[Any]:
        return (apart(each, task=task) for each in work)

    chosen = None if tables is None else map(ObjectId.of, tables)
    return verify_by(
        run, catalog, chosen, deep=False, digests=True, indexes=False, progress=lambda done, total, name: None
    ).problems


def digest(catalog: lancekeep.Catalog, tables: Iterable[Names] | None = None) -> None:
    """Record digests as `lancekeep.digest` does, and read the files in this process."""
    with patch("lancekeep.entrypoints.hashing.Isolation", _Here):
        lancekeep.digest(catalog, tables)


class _Here:
    """A child process that is this process."""

    def __init__(self, task: Callable[[Any], Any], threads: int) -> None:
        self._task = task

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, items: Sequence[Any]) -> Iterator[Any]:
        return map(self._task, items)
