"""The mode of a write, and the checks and repetitions of a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lancekeep.application.retry import Retry
from lancekeep.domain.errors import ConcurrentModification, InvalidInput, VersionTaken
from lancekeep.domain.row_rules import Rules
from lancekeep.ports.table_engine import WriteMode


def until_committed() -> Retry:
    """Repeat a change that other writers have overtaken, for 30 s."""
    return Retry(30.0, first=0.02, retried=(ConcurrentModification, VersionTaken))


def after_checks(checks: Callable[[Any, Rules], None], rules: Rules, act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an ``act`` that first checks the rows."""

    def ruled(dataset: Any) -> Any:
        checks(dataset, rules)
        return act(dataset)

    return ruled


def mode_of(mode: str) -> WriteMode:
    """Return the mode of a write by its name. Raises `InvalidInput`."""
    try:
        return WriteMode(mode)
    except ValueError:
        raise InvalidInput(f"unknown write mode {mode!r}; choose create, append or overwrite") from None


def is_stream(data: Any) -> bool:
    """Return whether rows are still to be produced.

    The table that the writer has opened may change while they are.
    """
    return hasattr(data, "read_next_batch")
