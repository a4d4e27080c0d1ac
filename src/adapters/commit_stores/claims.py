"""What every commit store decides alike, once it knows its rows."""

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
from lancekeep.ports.commit_store import ExternalCommitStore, require_atomic

ATTEMPTS = 20
"""How often rows are read again that others keep changing meanwhile."""


def may_claim(row: VersionRow, latest: VersionRow | None, *, first: bool) -> bool:
    """Whether a free version may be reserved: it begins an empty history, or follows the latest row, which is final."""
    if latest is None:
        return first
    return not first and latest.version == row.version - 1 and latest.is_final


def answer(row: VersionRow, held: VersionRow) -> Reservation:
    """What the claimant of a version that has a row is told: the staged path says whose it is."""
    return Reserved() if held.path == row.path else Taken(held)


def answer_claim(claim: Claim, held: VersionRow | None, latest: VersionRow | None) -> Reservation | None:
    """What a claimant is told, once the row of its version and the latest row are known; None: it may have it."""
    if held is not None:
        return answer(claim.row, held)
    return None if may_claim(claim.row, latest, first=claim.first) else NotReady(latest)


def answer_all(claims: Sequence[Claim], answers: Iterable[Reservation | None]) -> BatchReservation | None:
    """What the claimant of a batch is told, once the answer to each claim is known; None: it may have them all."""
    obstacles: dict[str, Taken | NotReady] = {}
    for claim, told in zip(claims, answers, strict=True):
        if isinstance(told, Reserved):
            return told
        if told is not None:
            obstacles[claim.row.base_uri] = told
    return Blocked(obstacles) if obstacles else None


def reserve_alone(store: ExternalCommitStore, claims: Sequence[Claim]) -> BatchReservation:
    """``reserve_all`` of a store that reserves one row at a time."""
    require_atomic(store, len(claims))
    for claim in claims:
        told = store.reserve(claim.row, first=claim.first)
        if not isinstance(told, Reserved):
            return Blocked({claim.row.base_uri: told})
    return Reserved()


def latest_agreed(store: ExternalCommitStore, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
    """``latest_all`` of a store that reads one row at a time: versions that two passes see were there in between."""
    seen = [store.latest(base_uri) for base_uri in base_uris]
    for _ in range(ATTEMPTS):
        before, seen = seen, [store.latest(base_uri) for base_uri in base_uris]
        if [row and row.version for row in before] == [row and row.version for row in seen]:
            return seen
    raise StoreUnavailable(f"{store.url}: others kept committing to these {len(base_uris)} tables; read them again")


def may_finalize(held: VersionRow) -> bool:
    """Whether a row may still move: final rows and fences never change again."""
    return not held.is_final and held.moved_to is None
