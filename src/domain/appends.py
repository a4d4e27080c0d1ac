"""Which appends share a group commit, and when the committer waits.

The committer of a table commits one group at a time. All times are seconds of one monotonic clock, which the caller
reads. Times decide on pauses only, never on safety.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import attrs

MOST_BYTES = 8 << 20
"""A larger append commits alone, through the engine."""
MOST_TOGETHER = 64 << 20
"""The bytes of a group."""
MOST_APPENDS = 4096
ATTEMPTS = 30
"""How often a group is built again after another writer's commit."""

PATIENCE = 4
"""After how many lost attempts in a row a committer of a group asks other processes for a turn. Committers of
the same speed seldom lose as many."""

REBASED = ("lancekeep.committer", "rebase")
"""A property of transactions whose writer rebases them in memory after a lost commit. It needs no pause to win."""

LOOK_EVERY = 0.2
"""Seconds after which a committer that waits for such a writer checks again whether the writer has committed."""

HANDED_OVER_WITHIN = 1.0
"""Seconds for which another writer of the process waits for a turn between two groups."""
LOOK_EVERY_TURN = 0.05
"""Seconds after which it checks again whether appends are committed at all."""
LONGEST_TURN = 0.5
"""Seconds for which a group waits until such a writer has committed."""

_LONGEST_LINGER = 0.25
_BUSY = 1.0
"""Seconds of uninterrupted commits after which others may be starved."""
_REST = 0.5
"""Seconds without a commit after which no writer is starved."""
_ALONE, _SHARED = (40.0, 8, 1.2), (2.0, 10, 1.5)
"""Without and with other writers: seconds of uninterrupted commits between two breaths; how many groups a breath lasts,
and its longest duration in seconds. Fewer than one of 100 appends meet a breath without other writers."""
_REMEMBERED = 10.0
"""Seconds for which a commit of another writer counts, and for which other writers count a group."""


@attrs.frozen
class Waiting:
    """An append that waits.

    Attributes:
        shape: what the appends of a group have in common: their schema.
        size: its size in bytes.
    """

    shape: Hashable
    size: int


def group_of(waiting: Sequence[Waiting]) -> list[int]:
    """Return the positions of the appends that commit next, together.

    The first append is always one of them, so every append gets its turn. Appends of another shape wait for a later
    group.
    """
    chosen: list[int] = []
    size = 0
    for at, each in enumerate(waiting):
        if each.shape != waiting[0].shape:
            continue
        if chosen and (size + each.size > MOST_TOGETHER or len(chosen) == MOST_APPENDS):
            break
        chosen.append(at)
        size += each.size
    return chosen


class Turn(NamedTuple):
    """How the committer waits for another writer that has lost a commit.

    Attributes:
        longest: how long at most. The engine pauses after each loss, for longer each time, and then makes seven
            requests in sequence on an object store.
        impatient: how long not to wait again after a wait in which no other writer won: the loser may have given up,
            or never win.
    """

    longest: float
    impatient: float


def turn(is_owed: bool, is_owed_elsewhere: bool) -> Turn | None:
    """Return how to wait for another writer.

    None if none has lost a commit since the last wait.

    The wait ends once such a writer has won a commit. A native writer waits longer after each commit that it loses, and
    reads more versions. A breath of the committer is soon too short for a native writer, and often ends before the next
    attempt.

    Args:
        is_owed: whether a writer of this process has lost a commit.
        is_owed_elsewhere: whether a writer of another process has.
    """
    if is_owed:
        return Turn(3.0, 10.0)
    return Turn(2.2, 3.0) if is_owed_elsewhere else None


@attrs.frozen
class Pace:
    """The pace of one committer, from its last groups.

    Attributes:
        appends: the number of appends in the last group.
        left: the number of appends that waited when it was committed.
        took: how long its commit took.
        ended: when it was committed.
        busy_since: when the uninterrupted sequence of groups began.
        met: when a commit of another writer was last seen, or the change by one that has lost.
    """

    appends: int = 0
    left: int = 0
    took: float = 0.0
    ended: float = float("-inf")
    busy_since: float = float("-inf")
    met: float = float("-inf")

    def linger(self) -> tuple[int, float]:
        """Return how many appends to wait for, and how long at most.

        Clients of the last group return within a moment. Without a pause, the first one would commit alone and the
        others would wait for it, or the clients would stay split into two groups that wait for each other. A client
        that appends alone never waits.
        """
        clients = self.appends + self.left
        return (clients, min(self.took * 3 / 4, _LONGEST_LINGER)) if clients > 1 else (0, 0.0)

    def is_busy(self, now: float) -> bool:
        """Return whether groups have followed each other for some time."""
        return now - self.ended <= _REST and now - self.busy_since > _BUSY

    def is_recent(self, now: float) -> bool:
        """Return whether a writer that begins now may meet groups."""
        return now - self.ended < _REMEMBERED

    def breath(self, now: float, others: int) -> float:
        """Return how long to commit nothing, so that other writers can.

        A writer that reads a version and then commits the next one loses against a committer that never pauses. The
        pause covers such a commit, and is longer while another writer is known.

        Args:
            now: the time.
            others: the number of other writers of the table in this process.
        """
        if now - self.ended > _REST:
            return 0.0  # others have just had their chance
        shared = others > 0 or now - self.met < _REMEMBERED
        every, groups, longest = _SHARED if shared else _ALONE
        return min(groups * self.took, longest) if now - self.busy_since > every else 0.0

    def committed(self, appends: int, began: float, now: float, *, left: int = 0, met: bool) -> Pace:
        """Return the pace after a group.

        Args:
            appends: the number of its appends.
            began: when its commit began.
            now: the time.
            left: the number of appends that wait.
            met: whether it met a commit of another writer, except one that is `REBASED`.
        """
        rested = began - self.ended > _REST
        busy_since = began if rested else self.busy_since
        return Pace(appends, left, now - began, now, busy_since, now if met else self.met)
