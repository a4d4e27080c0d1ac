"""The mode of a write, and the checks and repetitions of a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lancekeep.application.retry import Retry
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import ConcurrentModification, InvalidInput, VersionTaken
from lancekeep.domain.row_rules import Rules
from lancekeep.ports.table_engine import WriteMode

Announce = Callable[[Callable[[], CommitToken] | None], object]
"""Is called before each attempt to commit a change writes anything, with a function that returns the token of the
attempt; or with None before the engine begins a change that it commits itself. An error prevents the attempt."""


def unannounced(token: Callable[[], CommitToken] | None) -> None:
    """Announce nothing."""


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
