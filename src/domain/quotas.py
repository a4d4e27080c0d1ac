"""Whether changes of a catalog fit into quotas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

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


@attrs.frozen
class QuotaUsage:
    """A quota, and how much of it is used.

    Attributes:
        quota: The position of the quota in the policy, from 1.
        subtree: The object that the quota covers, with everything below it.
        max_tables: The maximum number of tables; None for any number.
        max_bytes: The bytes above which the subtree takes no more rows; None for any number.
        tables: The number of tables; None before the first measurement.
        bytes: The bytes; None if the quota does not limit them, or before the first measurement.
        measured: When they were measured; None before the first measurement.
    """

    quota: int
    subtree: ObjectId
    max_tables: int | None = None
    max_bytes: int | None = None
    tables: int | None = None
    bytes: int | None = None
    measured: datetime | None = None

    @staticmethod
    def of(quota: Quota, held: Held | None, measured: datetime | None) -> QuotaUsage:
        """Return the use of a quota.

        Args:
            quota: The quota.
            held: What its subtree holds; None before the first measurement.
            measured: When it was measured.
        """
        usage = QuotaUsage(quota.number, quota.subtree, quota.tables, quota.bytes)
        if held is None:
            return usage
        size = None if quota.bytes is None else held.bytes
        return attrs.evolve(usage, tables=held.tables, bytes=size, measured=measured)

    @property
    def shares(self) -> dict[str, float]:
        """The used share of each limit that has a figure; 1 is full."""
        figures = (("tables", self.tables, self.max_tables), ("bytes", self.bytes, self.max_bytes))
        return {
            resource: used / limit if limit else 1.0
            for resource, used, limit in figures
            if used is not None and limit is not None
        }

    @property
    def share(self) -> float | None:
        """The share of the limit that is used most; None without a figure."""
        return max(self.shares.values(), default=None)

    def document(self) -> dict[str, Any]:
        """Return the use as the fields of an answer."""
        fields = {name: getattr(self, name) for name in ("quota", "max_tables", "max_bytes", "tables", "bytes")}
        fields |= {"share": None if self.share is None else round(self.share, 4)}
        fields |= {"measured": None if self.measured is None else self.measured.isoformat(timespec="seconds")}
        return {"id": list(self.subtree.names), **{name: value for name, value in fields.items() if value is not None}}

    @staticmethod
    def parse(fields: dict[str, Any]) -> QuotaUsage:
        """Return the use that `document` has written."""
        given = {name: fields.get(name) for name in ("max_tables", "max_bytes", "tables", "bytes")}
        measured = fields.get("measured")
        at = None if measured is None else datetime.fromisoformat(measured).astimezone(UTC)
        return QuotaUsage(fields["quota"], ObjectId.of(fields["id"]), **given, measured=at)


def tables_in(view: CatalogView, subtree: ObjectId) -> Iterator[ManifestEntry]:
    """Yield the entries of the tables that count in a subtree, which may be one table."""
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
