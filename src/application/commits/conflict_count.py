"""Count commits that lost their version to another writer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

HOUR = 3600.0
MOST = 100_000
"""The most conflicts that are remembered."""


@attrs.frozen
class Conflicts:
    """The conflicts of the commits of this process; other processes count their own.

    Attributes:
        count: The commits that lost their version to another writer.
        seconds: The time in which they lost: an hour, or since the catalog was opened.
    """

    count: int
    seconds: float


class ConflictCount:
    """The conflicts of the last hour. Threads may share an instance.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._lost: deque[tuple[float, str]] = deque(maxlen=MOST)

    def add(self, base_uri: str) -> None:
        """Count a conflict of a history."""
        self._lost.append((self._clock(), base_uri))

    def last_hour(self, base_uri: str | None = None) -> Conflicts:
        """Return the conflicts of a history; None for all histories."""
        now = self._clock()
        seconds = min(HOUR, now - self._since)
        lost = list(self._lost)  # other threads append
        return Conflicts(sum(at > now - HOUR and base_uri in (None, history) for at, history in lost), seconds)
