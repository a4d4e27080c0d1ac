"""Whether changes of a catalog fit into quotas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

import attrs

from lancekeep.domain.authorization import Quota
from lancekeep.domain.catalog import CatalogView, Change, Put, Remove
from lancekeep.domain.errors import QuotaExceeded
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry


@attrs.frozen
class Used:
    """The bytes of a subtree, as they were measured.

    Attributes:
        bytes: The bytes of all files in the directories of its tables, also of its dropped tables that are kept.
        age: The seconds since the measurement began.
    """

    bytes: int
    age: float


@attrs.frozen
class Held:
    """What a subtree holds.

    Attributes:
        tables: The number of its tables.
        bytes: Its bytes, as in `Used`; None if no quota limits them.
    """

    tables: int
    bytes: int | None = None


def tables_in(view: CatalogView, subtree: ObjectId) -> Iterator[ManifestEntry]:
    """Yield the entries of the tables of a subtree, which may be one table."""
    itself = None if subtree.is_root else view.find(subtree.key)
    for entry in (*(() if itself is None else (itself,)), *view.descendants(subtree)):
        if entry.object_type == TABLE:
            yield entry


def require_room(view: CatalogView, changes: Sequence[Change], quotas: Collection[Quota]) -> None:
    """Check that the tables that changes add fit into quotas.

    A directory that lists as a table, and is entered now, is new: a creation reserves it first. Tables are counted up
    to the limit.

    Raises:
        QuotaExceeded: A quota has no room for them.
    """
    added = {each.entry.object_id for each in changes if isinstance(each, Put) and _is_new(view, each.entry)}
    removed = {each.object_id for each in changes if isinstance(each, Remove) and _is_table(view.find(each.object_id))}
    for quota in quotas if added else ():
        more = {each for each in added if quota.covers(ObjectId.from_key(each))}
        less = {each for each in removed if quota.covers(ObjectId.from_key(each))}
        if quota.tables is None or len(more) <= len(less):
            continue
        others = _count(view, quota.subtree, more | less, quota.tables)
        if others + len(more) > quota.tables:
            found = others + len(less)
            held = f"{found:,}" if others <= quota.tables else f"more than {quota.tables:,}"
            raise QuotaExceeded(
                f"{ObjectId.from_key(min(more))}: no room in {quota.title}. It has {held} tables, and the request adds "
                f"{len(more) - len(less):,}. Drop tables, or ask an administrator for a higher quota; nothing was "
                "changed",
                quota.number,
                "tables",
            )


def require_space(object_id: ObjectId, quota: Quota, used: Used) -> None:
    """Check that a subtree is below the bytes of its quota.

    Args:
        object_id: The table to which a request adds bytes.
        quota: The quota, which covers the table.
        used: The bytes of its subtree.

    Raises:
        QuotaExceeded: The subtree has as many bytes as the quota, or more.
    """
    if quota.bytes is not None and used.bytes >= quota.bytes:
        raise QuotaExceeded(
            f"{object_id}: no room in {quota.title}. Its tables had {used.bytes:,} bytes {used.age:,.0f} s ago, with "
            "old versions and dropped tables. Purge dropped tables, or delete rows, compact and clean up, and repeat "
            "the request after the next measurement, or ask an administrator for a higher quota; nothing was committed",
            quota.number,
            "bytes",
        )


def _is_new(view: CatalogView, entry: ManifestEntry) -> bool:
    before = view.find(entry.object_id)
    return entry.object_type == TABLE and (not _is_table(before) or (before is not None and before.listed))


def _is_table(entry: ManifestEntry | None) -> bool:
    return entry is not None and entry.object_type == TABLE


def _count(view: CatalogView, subtree: ObjectId, but: Collection[str], limit: int) -> int:
    """Count the tables of a subtree, apart from some, up to one more than a limit."""
    others = (entry for entry in tables_in(view, subtree) if entry.object_id not in but)
    return sum(1 for _ in islice(others, limit + 1))
