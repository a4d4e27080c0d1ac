"""Decisions that all commit stores share, given their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lancekeep.domain.errors import StoreUnavailable
from lancekeep.domain.version_row import (
    BatchReservation,
    Blocked,
    Claim,
    NotReady,
    Reservation,
    Reserved,
    Taken,
    VersionRow,
)
from lancekeep.domain.version_row import may_claim as may_claim
from lancekeep.ports.commit_store import ExternalCommitStore, require_atomic

ATTEMPTS = 20
"""Maximum number of attempts to read rows that change concurrently."""


def answer(row: VersionRow, held: VersionRow) -> Reservation:
    """Answer a claim of a version with a row, whose staged path names its owner."""
    return Reserved() if held.path == row.path else Taken(held)


def answer_claim(claim: Claim, held: VersionRow | None, latest: VersionRow | None) -> Reservation | None:
    """Answer a claim by the version's row and the latest row; None grants it."""
    if held is not None:
        return answer(claim.row, held)
    return None if may_claim(claim.row, latest, first=claim.first) else NotReady(latest)


def answer_all(claims: Sequence[Claim], answers: Iterable[Reservation | None]) -> BatchReservation | None:
    """Combine the answers to the claims of a transaction; None grants all of them."""
    obstacles: dict[str, Taken | NotReady] = {}
    for claim, told in zip(claims, answers, strict=True):
        if isinstance(told, Reserved):
            return told
        if told is not None:
            obstacles[claim.row.base_uri] = told
    return Blocked(obstacles) if obstacles else None


def reserve_alone(store: ExternalCommitStore, claims: Sequence[Claim]) -> BatchReservation:
    """Implement ``reserve_all`` for a store that reserves one row at a time."""
    require_atomic(store, len(claims))
    for claim in claims:
        told = store.reserve(claim.row, first=claim.first)
        if not isinstance(told, Reserved):
            return Blocked({claim.row.base_uri: told})
    return Reserved()


def latest_agreed(store: ExternalCommitStore, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
    """Implement ``latest_all`` for a store that reads one row at a time.

    If two passes see the same versions, these versions existed at one moment between the passes.
    """
    seen = [store.latest(base_uri) for base_uri in base_uris]
    for _ in range(ATTEMPTS):
        before, seen = seen, [store.latest(base_uri) for base_uri in base_uris]
        if [row and row.version for row in before] == [row and row.version for row in seen]:
            return seen
    raise StoreUnavailable(
        f"{store.url}: other writers kept committing to these {len(base_uris)} tables; read them again"
    )


def may_finalize(held: VersionRow) -> bool:
    """Return whether a row may become final; fences and final rows may not."""
    return not held.is_final and held.moved_to is None
