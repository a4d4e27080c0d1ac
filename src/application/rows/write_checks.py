"""The mode of a write, and the checks and repetitions of a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from lancekeep.application.retry import Retry
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import ConcurrentModification, InvalidInput, VersionTaken
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.row_rules import Rules
from lancekeep.ports.table_engine import WriteMode


@attrs.frozen
class BuiltVersion:
    """A version that this process has built.

    Attributes:
        after: The version that it follows: its table, number and transaction file.
        version: The number of the version.
        transaction: The name of its transaction file.
    """

    after: tuple[DatasetRoot, int, str]
    version: int
    transaction: str


@attrs.frozen
class CommitAttempt(BuiltVersion):
    """An attempt to commit a version that this process has built.

    Attributes:
        token: Returns the token of the attempt.
    """

    token: Callable[[], CommitToken]


Announce = Callable[[CommitAttempt | None], object]
"""Is called before each attempt to commit a change writes anything; or with None before the engine begins a change that
it commits itself. An error prevents the attempt."""


def unannounced(attempt: CommitAttempt | None) -> None:
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


def noting(act: Callable[[Any], Any], read: list[int]) -> Callable[[Any], Any]:
    """Return an ``act`` that first stores the version of its dataset in ``read``."""

    def noted(dataset: Any) -> Any:
        read[:] = [dataset.version]
        return act(dataset)

    return noted


def mode_of(mode: str) -> WriteMode:
    """Return the mode of a write by its name. Raises `InvalidInput`."""
    try:
        return WriteMode(mode)
    except ValueError:
        raise InvalidInput(f"unknown write mode {mode!r}; choose create, append or overwrite") from None


def require_no_location(object_id: ObjectId, location: str | None) -> None:
    """Check that no location is given for a table that exists."""
    if location is not None:
        raise InvalidInput(
            f"the table {object_id} exists and keeps its directory; a location is given when a table is created. "
            "`lancekeep relocate` moves a table."
        )


def is_stream(data: Any) -> bool:
    """Return whether rows are still to be produced.

    The table that the writer has opened may change while they are.
    """
    return hasattr(data, "read_next_batch")
