"""The changes of a catalog in PostgreSQL, from its versions (ADR 126)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from operator import itemgetter

from lancekeep.adapters.manifest_stores.postgres_view import COLUMNS, PostgresView, entry_of
from lancekeep.domain.change_feed import CatalogVersion, ChangeCursor
from lancekeep.domain.errors import VersionNotFound
from lancekeep.domain.manifest_entry import NAMESPACE, ManifestEntry
from lancekeep.postgres.database import Database, Row
from lancekeep.postgres.listening import listening

CHANNEL = "lancekeep"
"""The channel of notifications about changes."""
ROOT = ""
"""The root namespace among the ids of changed objects."""

# One statement, so that a clean-up removes nothing between its parts. The version of the cursor is included, to compare
# its token.
_VERSIONS = f"""
WITH kept AS (
    SELECT coalesce(min(version), 0) AS oldest FROM {{schema}}.change WHERE catalog = %(catalog)s
), next AS (
    SELECT version, token, at, changed, properties, CASE
        WHEN version = %(version)s AND %(whole)s THEN 0 ELSE greatest(coalesce(cardinality(changed), 0), 1)
    END AS cost
    FROM {{schema}}.change WHERE catalog = %(catalog)s AND version >= %(version)s ORDER BY version LIMIT %(limit)s + 1
), bounded AS (
    SELECT *, sum(cost) OVER (ORDER BY version) - cost AS earlier FROM next
)
SELECT kept.oldest, version, token, (extract(epoch FROM at) * 1000000)::bigint, changed IS NULL, properties,
    since, {COLUMNS}
FROM kept
LEFT JOIN bounded ON earlier < %(limit)s
LEFT JOIN LATERAL (
    SELECT since, {COLUMNS} FROM {{schema}}.entry
    WHERE cost > 0 AND catalog = %(catalog)s AND object_id = ANY(changed) AND since <= version
        AND (since = version OR until = version)
) AS entry ON true
ORDER BY version
"""
# The feed begins after the last change of a release that kept no feed.
_OLDEST = """
(SELECT version, token, true FROM {schema}.change WHERE catalog = %(catalog)s AND changed IS NULL
 ORDER BY version DESC LIMIT 1)
UNION ALL
(SELECT version, token, false FROM {schema}.change WHERE catalog = %(catalog)s ORDER BY version LIMIT 1)
ORDER BY version DESC LIMIT 1
"""
_LATEST = "SELECT version, token FROM {schema}.change WHERE catalog = %s ORDER BY version DESC LIMIT 1"
_BEGIN = ChangeCursor(0, "")


class PostgresFeed:
    """The versions of a catalog in order.

    The lock on the row of the catalog makes the order of versions the order of their commits, so no version appears
    after a later one.

    Args:
        database: The database.
        view: Returns the view of the catalog.
        topic: The payload of notifications about the catalog.
    """

    def __init__(self, database: Database, view: Callable[[], PostgresView], topic: str) -> None:
        self._database, self._view, self._topic = database, view, topic
        self._versions = database.statement(_VERSIONS)
        self._oldest, self._latest = database.statement(_OLDEST), database.statement(_LATEST)

    def versions(self, after: ChangeCursor, limit: int) -> Sequence[CatalogVersion]:
        view = self._view()
        whole = after.key is None
        place = {"catalog": view.catalog, "version": after.version, "whole": whole, "limit": limit}
        rows = self._database.rows(self._versions, place)
        (oldest, version, token, *_) = rows[0]
        found = after == _BEGIN if after.version == 0 else (version, token) == (after.version, after.token)
        is_kept = oldest <= 1 or after.version > (oldest if not whole else oldest - 1)
        if not (found and is_kept):
            raise VersionNotFound(
                f"{self._database.url}: the changes after the cursor {str(after)!r:.80} are not kept. They are too old "
                "(optimize removes changes of earlier days), or the cursor is of another catalog, or the catalog was "
                "restored from a backup. List the catalog, and continue with the cursor of changes.latest() from "
                "before the list."
            )
        return list(
            self._grouped(row[1:] for row in rows if row[1] is not None and (row[1] > after.version or not whole))
        )

    def oldest(self) -> ChangeCursor:
        found = self._database.rows(self._oldest, {"catalog": self._view().catalog})
        return next(
            (
                _BEGIN if (version, older) == (1, False) else ChangeCursor(version, token)
                for version, token, older in found
            ),
            _BEGIN,
        )

    def latest(self) -> ChangeCursor:
        found = self._database.rows(self._latest, (self._view().catalog,))
        return next((ChangeCursor(*row) for row in found), _BEGIN)

    def listening(self) -> AbstractContextManager[Callable[[float], None]]:
        return listening(self._database, CHANNEL, self._topic)

    def _grouped(self, rows: Iterable[Row]) -> Iterator[CatalogVersion]:
        for version, group in groupby(rows, itemgetter(0)):
            before: dict[str, ManifestEntry] = {}
            after: dict[str, ManifestEntry] = {}
            for _, token, at, is_older, properties, since, *columns in group:  # noqa: B007 - used after the loop
                if is_older:
                    raise VersionNotFound(
                        f"{self._database.url}: version {version} of the catalog was made by a release of Lancekeep "
                        "that kept no feed of changes. List the catalog, and continue with the cursor of "
                        "changes.latest() from before the list."
                    )
                if since is not None:
                    entry = entry_of(tuple(columns))
                    (after if since == version else before)[entry.object_id] = entry
                if properties is not None:
                    after[ROOT] = ManifestEntry(ROOT, NAMESPACE, None, properties)
            yield CatalogVersion(version, token, at, before, after)
