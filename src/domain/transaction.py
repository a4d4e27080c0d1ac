"""Several commits that are decided as one: the new versions of some tables, together or not at all.

Each member takes part in the protocol of its own table (`lancekeep.domain.commit`), by its own rules, until it stands
where the others matter (`WAITS`): before its row is reserved, or once it is known whose its version is. Then what is
known of one is known of all, because rows of a batch are only ever reserved together: one version that is the batch's
own says that every one is, and one that went to another says that none is. So the batch is decided by the one step of
the commit store that reserves its rows, and everything after it is the usual publication, which any reader completes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

import attrs

from lancekeep.domain.commit import RESERVED, Committed, Conflict, Event, Progress, Unknown, advance, understand
from lancekeep.domain.commit_transitions import Reply, State
from lancekeep.domain.version_row import BatchReservation, Claim, Reserved


@attrs.frozen
class AllCommitted:
    """Every version of the batch is the caller's, in the order in which they were asked for."""

    versions: tuple[Committed, ...]


TransactionOutcome = AllCommitted | Conflict | Unknown


class Standing(Enum):
    """Where a member stands, or the whole batch: that of the member that comes first here."""

    OURS = auto()
    LOST = auto()
    UNSETTLED = auto()
    REFUSED = auto()
    READY = auto()


WAITS: Final[Mapping[State, Standing]] = {
    State.RESERVE: Standing.READY,
    State.RESERVE_FIRST: Standing.READY,
    State.COPY: Standing.OURS,
    State.PUBLISH: Standing.OURS,
    State.CLEAN: Standing.OURS,
    State.ABANDON: Standing.LOST,
    State.CONFLICT: Standing.LOST,
    State.UNKNOWN: Standing.UNSETTLED,
    State.GAP: Standing.REFUSED,
    State.MOVED: Standing.REFUSED,
    State.DISCARD: Standing.REFUSED,
}
"""The states in which a member waits for the others, and where it stands in them."""


def standing(members: Sequence[Progress]) -> Standing:
    """Where the batch stands, once every member waits."""
    return min((WAITS[member.state] for member in members), key=list(Standing).index)


def claims(members: Sequence[Progress]) -> list[Claim]:
    """What a batch that is `Standing.READY` asks the commit store for."""
    return [Claim(member.row, first=member.state is State.RESERVE_FIRST) for member in members]


def answered(members: Sequence[Progress], reservation: BatchReservation) -> list[Progress]:
    """The members after the commit store has answered; those with nothing in the way go on waiting."""
    if isinstance(reservation, Reserved):
        return [advance(member, RESERVED) for member in members]
    following = []
    for member in members:
        assert member.staged is not None
        obstacle = reservation.obstacles.get(member.row.base_uri)
        following.append(
            member
            if obstacle is None
            else advance(member, understand(member.staged, obstacle, repeated=member.repeated))
        )
    return following


def agreed(members: Sequence[Progress]) -> list[Progress]:
    """The members once it is decided whose the versions are: those that were ready hear it from the others."""
    news = {Standing.OURS: RESERVED, Standing.LOST: Event(Reply.TAKEN)}[standing(members)]
    return [advance(member, news) if WAITS[member.state] is Standing.READY else member for member in members]
