"""Find the version of a table that was the latest at a time.

The time of a version is the time in its manifest, by the clock of its writer. The clocks of writers differ, so the
times of versions need not ascend (ADR 0111).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Protocol, TypeVar

import attrs

from lancekeep.domain.errors import Damaged, InvalidInput, VersionNotFound
from lancekeep.domain.identifiers import ObjectId

Moment = datetime | str
"""A time: a ``datetime`` with a zone, or an ISO 8601 text with an offset."""

OUT_OF_ORDER = 8
"""The versions by which the times of concurrent writers may be out of order."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_T = TypeVar("_T")


class HasVersionTimes(Protocol):
    """Finds versions by time; a `WriteService` is one."""

    def version_at(self, object_id: ObjectId, moment: datetime, branch: str | None) -> int: ...


def history_name(object_id: ObjectId, branch: str | None) -> str:
    """Return the name of a table's main history or branch, for messages."""
    return f"the table {object_id}" if branch is None else f"the branch {branch} of {object_id}"


@attrs.frozen
class Times:
    """The times of the versions of one history.

    Attributes:
        name: The history, for messages.
        latest: The latest version.
        of: Returns the time of a version; None if the version does not exist.
        kept: Returns the versions that exist up to a version, in order.
    """

    name: str
    latest: int
    of: Callable[[int], datetime | None]
    kept: Callable[[int], Sequence[int]]


def version_of(
    times: HasVersionTimes,
    object_id: ObjectId,
    version: int | None,
    tag: str | None,
    branch: str | None,
    timestamp: Moment | None,
) -> int | None:
    """Return the version that a caller has chosen: by its number, or by a time.

    Raises:
        InvalidInput: The time is ambiguous, or was given together with a version or a tag.
        VersionNotFound: No version of the table is left that was the latest at this time.
    """
    if timestamp is None:
        return version
    if version is not None or tag is not None:
        raise InvalidInput(f"{object_id}: a timestamp selects a version; pass no version or tag with it")
    return times.version_at(object_id, moment_of(timestamp), branch)


def moment_of(given: Moment) -> datetime:
    """Return a time in UTC.

    Raises:
        InvalidInput: It is no time, or has no zone.
    """
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError as error:
        raise InvalidInput(
            f"{given!r:.100} is not a time; give ISO 8601 with an offset, such as '2026-11-24T09:30:00+01:00'"
        ) from error
    if not isinstance(moment, datetime) or moment != moment:  # pandas' NaT is a datetime
        raise InvalidInput(f"{given!r:.100} is not a time; give a datetime with a time zone, or an ISO 8601 text")
    if moment.utcoffset() is None:
        raise InvalidInput(
            f"the time {given!s:.100} has no time zone, so that it means another moment on another machine; add the "
            f"offset, such as '{moment.isoformat()}Z' for UTC, or datetime.now(timezone.utc)"
        )
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidInput(f"the time {given!s:.100} is outside of the years 1 to 9999 in UTC") from error


def time_of_manifest(nanos: int, name: str) -> datetime:
    """Return the time of a manifest.

    It is computed in the floating point of pylance, because versions are compared by their times.

    Args:
        nanos: The time in nanoseconds since 1970.
        name: The manifest, for messages.
    """
    try:
        return _EPOCH + timedelta(seconds=nanos // 1e9, microseconds=(nanos % 1e9) // 1e3)
    except OverflowError as error:
        raise Damaged(f"{name} has the time {nanos} ns after 1970, which no calendar has") from error


def latest_at(times: Times, moment: datetime) -> int:
    """Return the version that was the latest at a time, by a binary search.

    A version is the latest from its own time on, inclusive. Of versions with the same time, the last one is. Times that
    are out of order by at most `OUT_OF_ORDER` versions do not change the result: the newest version that is not later
    than ``moment``.

    Raises:
        VersionNotFound: No version is left that was the latest at this time. The message says which are left.
    """
    time = cache(times.of)

    def is_later(version: int) -> bool:  # a missing version counts as an old one: cleanup begins with the oldest
        found = time(version)
        return found is not None and found > moment

    numbers = range(1, times.latest + 1)
    found = bisect_right(numbers, False, key=is_later)
    following = range(found + 2, min(found + 1 + OUT_OF_ORDER, times.latest) + 1)
    newer = (each for each in following if time(each) is not None and not is_later(each))
    found = max((each for each in newer if each == times.latest or is_later(each + 1)), default=found)
    if found and time(found) is not None:
        return found
    kept = times.kept(found)
    before = bisect_right(kept, False, key=is_later)
    candidate = kept[before - 1] if before else 0
    if candidate and (time(candidate) == moment or time(candidate + 1) is not None):
        return candidate  # without its successor, only its own time selects it
    neighbours = [*kept[max(before - 1, 0) : before + 1], found + 1]
    shown = [f"version {each} of {_shown(time(each))}" for each in neighbours if time(each) is not None]
    reason = "the versions of that time were removed" if before else "the oldest version that is left is later"
    raise VersionNotFound(
        f"{times.name} has no version that was the latest at {_shown(moment)}: {reason}. "
        f"The nearest that exist are {' and '.join(shown) or 'none'}"
    )


def _shown(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).isoformat(sep=" ").replace("+00:00", " UTC")
