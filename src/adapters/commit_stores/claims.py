"""What every commit store decides alike, once it knows its rows."""

from __future__ import annotations

from lancekeep.domain.version_row import Reservation, Reserved, Taken, VersionRow


def may_claim(row: VersionRow, latest: VersionRow | None, *, first: bool) -> bool:
    """Whether a free version may be reserved: it begins an empty history, or follows the latest row, which is final."""
    if latest is None:
        return first
    return not first and latest.version == row.version - 1 and latest.is_final


def answer(row: VersionRow, held: VersionRow) -> Reservation:
    """What the claimant of a version that has a row is told: the staged path says whose it is."""
    return Reserved() if held.path == row.path else Taken(held)


def may_finalize(held: VersionRow) -> bool:
    """Whether a row may still move: final rows and fences never change again."""
    return not held.is_final and held.moved_to is None
