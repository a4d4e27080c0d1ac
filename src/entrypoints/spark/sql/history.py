"""Find versions of tables by time."""

from __future__ import annotations

from datetime import UTC, datetime

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import VersionNotFound
from lancekeep.domain.identifiers import ObjectId


def version_at(catalog: Catalog, table: ObjectId, moment: datetime) -> int:
    """Return the version that was the latest at a time.

    Raises:
        VersionNotFound: All versions are later.
    """
    versions = catalog.open(table).versions()
    before = [one["version"] for one in versions if one["timestamp"].astimezone(UTC) <= moment]
    if not before:
        raise VersionNotFound(f"{table} has no version as old as {moment:%Y-%m-%d %H:%M:%S.%f} UTC")
    return int(max(before))
