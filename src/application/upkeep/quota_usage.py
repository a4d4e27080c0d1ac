"""How much of a quota is used."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import attrs

from lancekeep.domain.authorization import Quota
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.quotas import Held


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
