"""Automatic maintenance: what is due for a table now.

All times are seconds. They decide what is worth doing, never what is safe: a compaction and an index are commits, and a
clean-up removes only what no version needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import attrs

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.manifest_entry import OWN_PROPERTIES

AUTO, OFF = "auto", "off"
MAINTENANCE = f"{OWN_PROPERTIES}maintenance"
"""The property that permits automatic maintenance: of the root namespace for all tables, or of one table."""
OLDER_THAN = f"{OWN_PROPERTIES}maintenance.older_than"
KEEP = f"{OWN_PROPERTIES}maintenance.keep"
TARGET_ROWS = f"{OWN_PROPERTIES}maintenance.target_rows"
MAINTENANCE_PROPERTIES = (MAINTENANCE, OLDER_THAN, KEEP, TARGET_ROWS)

SHARE = 0.2
"""The share of the time of one processor core that maintenance takes."""
SMALL_FRAGMENTS = 8
"""So many small fragments are worth a compaction."""
INDEXED_FRAGMENTS = 64
"""So many small fragments that indexes cover are worth a compaction, which the engine has to commit."""
MOST_BYTES = 256 << 20
"""A compaction makes no larger fragment, so that its duration is bounded."""
_TIERS = 8
_LEAST_REMOVED = 25
"""So many versions are worth a clean-up, which reads the manifests of the catalog."""
_SPAN = re.compile(r"([0-9]{1,9})([smhd])|0")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_PAUSE = 600.0


@attrs.frozen(kw_only=True)
class AutomaticPolicy:
    """How a table is maintained.

    Attributes:
        older_than: Versions whose successor is older are removed.
        keep: The latest versions that stay.
        target_rows: Fragments with fewer rows are small.
    """

    older_than: float = 3600.0
    keep: int = 100
    target_rows: int = 1 << 20

    def __str__(self) -> str:
        unit, seconds = next((one for one in reversed(_SECONDS.items()) if not self.older_than % one[1]), ("s", 1))
        age = f"{self.older_than / seconds:g}{unit}" if self.older_than else "0"
        return f"{AUTO}: older_than {age}, keep {self.keep}, target_rows {self.target_rows}"


def checked_maintenance(name: str, value: str) -> None:
    """Raise `InvalidInput` unless a value of a property has a meaning.

    The property is one of `MAINTENANCE_PROPERTIES`.
    """
    if name == MAINTENANCE:
        if value not in (AUTO, OFF):
            raise InvalidInput(f"the property {name!r} is {value!r}; its values are {AUTO!r} and {OFF!r}")
    elif name == OLDER_THAN:
        _span(value)
    elif not (value.isascii() and value.isdecimal() and len(value) <= 18 and int(value) >= 1):
        raise InvalidInput(f"the property {name!r} is {value!r}; expected a whole number, at least 1")


def _span(value: str) -> float:
    found = _SPAN.fullmatch(value)
    if found is None:
        raise InvalidInput(
            f"the property {OLDER_THAN!r} is {value!r}; expected a time such as '7d', '12h', '30m' or '0'"
        )
    return 0.0 if found[1] is None else float(int(found[1]) * _SECONDS[found[2]])


def policy_of(
    catalog: Mapping[str, str], table: Mapping[str, str], *, is_spared: bool = False
) -> AutomaticPolicy | None:
    """Return how a table is maintained; None if it is not.

    A property of the table overrides the property of the root namespace.

    Args:
        catalog: The properties of the root namespace.
        table: The properties of the table.
        is_spared: Only a property of the table itself permits maintenance: the table is protected, or its versions
            belong to the storage while a commit store manages the other tables.

    Raises:
        InvalidInput: A stored property has no meaning.
    """
    stated = {name: value for name in MAINTENANCE_PROPERTIES if (value := table.get(name, catalog.get(name)))}
    for name, value in stated.items():
        checked_maintenance(name, value)
    if stated.get(MAINTENANCE, AUTO) == OFF or (is_spared and table.get(MAINTENANCE) != AUTO):
        return None
    default = AutomaticPolicy()
    return AutomaticPolicy(
        older_than=_span(stated[OLDER_THAN]) if OLDER_THAN in stated else default.older_than,
        keep=int(stated.get(KEEP, default.keep)),
        target_rows=int(stated.get(TARGET_ROWS, default.target_rows)),
    )


@attrs.frozen
class FragmentFacts:
    """A fragment of the latest version.

    Attributes:
        id: Its id.
        rows: The rows that are not deleted.
        bytes: The size of its data files.
        is_indexed: Whether an index covers it.
    """

    id: int
    rows: int
    bytes: int
    is_indexed: bool = False


@attrs.frozen
class IndexFacts:
    """An index, by the rows of the fragments that it covers and does not cover."""

    name: str
    indexed_rows: int
    unindexed_rows: int


@attrs.frozen
class TableFacts:
    """What is known of a table.

    Attributes:
        fragments: The fragments of the latest version, in order.
        indexes: The indexes of the latest version.
        ages: The ages of the versions by the storage, in the order of their numbers.
        is_merged: Whether fragments were merged since the last clean-up, so that older versions hold a copy of rows.
    """

    fragments: Sequence[FragmentFacts] = ()
    indexes: Sequence[IndexFacts] = ()
    ages: Sequence[float] = ()
    is_merged: bool = False


@attrs.frozen(kw_only=True)
class Due:
    """What is due for a table now.

    Attributes:
        compact: Merge fragments with fewer rows than this; None if nothing is to be merged.
        excluded: The fragments that the compaction leaves alone.
        refresh: The indexes that lack rows.
        clean_up: Whether versions are to be removed.
        expired: How many versions may be removed now.
        again: After how many seconds versions will be due, without another commit; None if never.
    """

    compact: int | None = None
    excluded: tuple[int, ...] = ()
    refresh: tuple[str, ...] = ()
    clean_up: bool = False
    expired: int = 0
    again: float | None = None


def due(facts: TableFacts, policy: AutomaticPolicy) -> Due:
    """Return what is due for a table now."""
    compact, excluded = _compaction(facts.fragments, policy)
    clean_up, again = _clean_up(facts.ages, policy, facts.is_merged)
    expired = _expired(facts.ages, policy)
    refresh = tuple(index.name for index in facts.indexes if _lags(index, policy))
    return Due(compact=compact, excluded=excluded, refresh=refresh, clean_up=clean_up, expired=expired, again=again)


def _compaction(fragments: Sequence[FragmentFacts], policy: AutomaticPolicy) -> tuple[int | None, tuple[int, ...]]:
    """Return below how many rows fragments are merged, and which fragments are left alone.

    Fragments without an index come first: Lancekeep commits their compaction, which does not disturb appends.
    """
    indexed = tuple(each.id for each in fragments if each.is_indexed)
    target = _target([each for each in fragments if not each.is_indexed], policy, SMALL_FRAGMENTS)
    if target is not None:
        return target, indexed
    return (_target(fragments, policy, INDEXED_FRAGMENTS), ()) if indexed else (None, ())


def _target(fragments: Sequence[FragmentFacts], policy: AutomaticPolicy, many: int) -> int | None:
    """Return below how many rows fragments are merged; None if too few are small.

    At the highest tier at which this at least doubles the largest of the fragments. So a row is copied a number of
    times that grows with the logarithm of the rows, and the fragments that stay are a few for each tier.
    """
    rows, size = sum(each.rows for each in fragments), sum(each.bytes for each in fragments)
    target = policy.target_rows
    if size > rows:
        target = min(target, max(1, MOST_BYTES * rows // size))
    while target > 1:
        small = [each.rows for each in fragments if each.rows < target]
        if len(small) < many:
            return None
        if 2 * max(small) <= sum(small):
            return target
        target = max(small) if max(small) * _TIERS > target else target // _TIERS
    return None


def _lags(index: IndexFacts, policy: AutomaticPolicy) -> bool:
    """Return whether searches scan many rows without the index: a fifth of the table, or a large fragment."""
    return index.unindexed_rows > 0 and index.unindexed_rows >= min(index.indexed_rows / 4, policy.target_rows)


def _clean_up(ages: Sequence[float], policy: AutomaticPolicy, is_merged: bool) -> tuple[bool, float | None]:
    """Return whether versions are to be removed, and after how many seconds they will be.

    After a merge few versions may hold a copy of the whole table. They are removed once the writers pause.
    """
    worth, beyond = max(_LEAST_REMOVED, len(ages) // 5), len(ages) - policy.keep
    waits = []
    if beyond >= worth:
        waits.append(policy.older_than - min(ages[: worth + 1]))  # the age of the successor decides about a version
    if is_merged and beyond > 0:
        waits.append(policy.older_than - min(ages))
    again = min(waits, default=None)
    return (True, None) if again is not None and again <= 0 else (False, again)


def _expired(ages: Sequence[float], policy: AutomaticPolicy) -> int:
    """Return how many versions a clean-up removes at most; tags and branches keep some."""
    beyond = max(0, len(ages) - policy.keep)
    pairs = enumerate(pairwise(ages[: beyond + 1]))
    return next((at for at, pair in pairs if min(pair) < policy.older_than), beyond)


def listed_after(versions: int) -> int:
    """Return after how many commits to list the versions of a table again."""
    return max(_LEAST_REMOVED, versions // 20)


def rest_after(worked: float, share: float = SHARE) -> float:
    """Return the seconds of rest after work of so many seconds on one core."""
    return worked * (1 / share - 1)


def pause_after(failures: int) -> float:
    """Return for how many seconds a table rests after so many failures."""
    return min(_LONGEST_PAUSE, 5.0 * 2.0 ** min(failures - 1, 10))
