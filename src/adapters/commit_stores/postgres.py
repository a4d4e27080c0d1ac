"""Commit store in PostgreSQL: unique constraints decide (ADR 122)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar

from psycopg.errors import UniqueViolation

from lancekeep.adapters.commit_stores.claims import ATTEMPTS, answer_all, answer_claim
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.domain.version_row import BatchReservation, Blocked, Claim, Reservation, Reserved, VersionRow
from lancekeep.ports.commit_store import CommitStoreGuarantees
from lancekeep.ports.object_store import ObjectStore
from lancekeep.postgres.address import OPTIONS, Address
from lancekeep.postgres.database import Connection, Database, Row, seconds_for
from lancekeep.postgres.version_rows import COLUMNS, latest_of, row_of
from lancekeep.store_urls import StoreUrl

DURABLE = "durable"
BATCH = 1000
"""Rows per statement that enters or deletes many."""
LONGEST_HISTORY = 1_000_000
"""How many rows a statement that deletes a history is expected to delete."""
_ABOVE_ALL = 2**63 - 1

_GET = f"SELECT {COLUMNS} FROM {{schema}}.version_row WHERE base_uri = %s AND version = %s"
_LATEST = f"SELECT {COLUMNS} FROM {{schema}}.version_row WHERE base_uri = %s ORDER BY version DESC LIMIT 1"
_LIST = f"""
SELECT {COLUMNS} FROM {{schema}}.version_row WHERE base_uri = %s AND version > %s ORDER BY version LIMIT %s
"""
_LIST_DESCENDING = f"""
SELECT {COLUMNS} FROM {{schema}}.version_row WHERE base_uri = %s AND version < %s ORDER BY version DESC LIMIT %s
"""
_LATEST_OF = latest_of("claim.base_uri", "final")
_LATEST_ALL = f"""
SELECT latest.version, latest.path, latest.size, latest.committer
FROM unnest(%s::text[]) WITH ORDINALITY AS claim (base_uri, place) {_LATEST_OF} ORDER BY place
"""
# In one order, because two transactions over the same tables in different orders would wait for each other.
_RESERVE_ALL = f"""
WITH claim AS (
    SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::text[], %s::boolean[])
    AS claim (base_uri, version, path, size, committer, first)
)
INSERT INTO {{schema}}.version_row (base_uri, version, path, size, committer, first)
SELECT * FROM claim
WHERE NOT EXISTS (
    SELECT FROM claim {_LATEST_OF}
    WHERE CASE WHEN claim.first THEN latest.version IS NOT NULL
    ELSE (latest.version, latest.final) IS DISTINCT FROM (claim.version - 1, true) END
)
ORDER BY base_uri, version
"""
_RESERVE = f"{_RESERVE_ALL} ON CONFLICT DO NOTHING"
_ANSWERS = f"""
SELECT held.version, held.path, held.size, held.committer, latest.version, latest.path, latest.size, latest.committer
FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS claim (base_uri, version, place)
LEFT JOIN {{schema}}.version_row AS held ON (held.base_uri, held.version) = (claim.base_uri, claim.version)
{_LATEST_OF} ORDER BY place
"""
_FINALIZE = """
WITH changed AS (
    UPDATE {schema}.version_row SET path = %(path)s, size = %(size)s
    WHERE base_uri = %(base_uri)s AND version = %(version)s AND NOT final AND path NOT LIKE 'moved-to:%%'
)
SELECT FROM {schema}.version_row WHERE base_uri = %(base_uri)s AND version = %(version)s
"""
_RECORD = """
INSERT INTO {schema}.version_row (base_uri, version, path, size, committer, first)
SELECT *, false FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::text[])
ON CONFLICT DO NOTHING
"""
_DELETE = "DELETE FROM {schema}.version_row WHERE base_uri = %s AND version = ANY(%s::bigint[])"
_DELETE_HISTORY = "DELETE FROM {schema}.version_row WHERE base_uri = %s"


class PostgresCommitStore:
    """Keep version rows in PostgreSQL, for many machines. The first call connects.

    Args:
        database: The database. A manifest store that has the same one reads rows together with entries (ADR 193).
        durable: The deployment declares that no failover loses an acknowledged row, which no client can see.
    """

    options: ClassVar[frozenset[str]] = OPTIONS | {DURABLE}

    def __init__(self, database: Database, *, durable: bool = False) -> None:
        self.database = database
        self.url = database.url
        self.guarantees = CommitStoreGuarantees(remembers=durable, shared=True, atomic_rows=sys.maxsize)
        statement = database.statement
        self._get, self._latest, self._latest_all = statement(_GET), statement(_LATEST), statement(_LATEST_ALL)
        self._list, self._list_descending = statement(_LIST), statement(_LIST_DESCENDING)
        self._reserve, self._reserve_all = statement(_RESERVE), statement(_RESERVE_ALL)
        self._answers, self._finalize, self._record = statement(_ANSWERS), statement(_FINALIZE), statement(_RECORD)
        self._delete, self._delete_history = statement(_DELETE), statement(_DELETE_HISTORY)

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> PostgresCommitStore:
        return cls(Database.of(Address.of(url)), durable=url.boolean(DURABLE, False))

    def __repr__(self) -> str:
        return f"PostgresCommitStore({self.url!r})"

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        if abs(version) > _ABOVE_ALL:
            return None
        return next((row_of(base_uri, row) for row in self.database.rows(self._get, (base_uri, version))), None)

    def latest(self, base_uri: str) -> VersionRow | None:
        return next((row_of(base_uri, row) for row in self.database.rows(self._latest, (base_uri,))), None)

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        if descending:
            statement, start = self._list_descending, _ABOVE_ALL if after is None else after
        else:
            statement, start = self._list, -1 if after is None else after
        return [VersionRow(base_uri, *row) for row in self.database.rows(statement, (base_uri, start, limit))]

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        told = self._claimed(self._reserve, [Claim(row, first)])
        return told.obstacles[row.base_uri] if isinstance(told, Blocked) else told

    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        return self._claimed(self._reserve_all, claims)

    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        found = self.database.rows(self._latest_all, (list(base_uris),), seconds=seconds_for(len(base_uris)))
        return [row_of(base_uri, row) for base_uri, row in zip(base_uris, found, strict=True)]

    def finalize(self, row: VersionRow) -> bool:
        values = {"base_uri": row.base_uri, "version": row.version, "path": row.path, "size": row.size}
        return bool(self.database.rows(self._finalize, values))

    def record(self, rows: Iterable[VersionRow]) -> None:
        rest = iter(rows)
        while batch := list(islice(rest, BATCH)):
            self.database.count(self._record, _columns(batch))

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        if versions is None:
            return self.database.count(self._delete_history, (base_uri,), seconds=seconds_for(LONGEST_HISTORY))
        count, rest = 0, iter(sorted(set(versions)))
        while batch := list(islice(rest, BATCH)):
            count += self.database.count(self._delete, (base_uri, batch))
        return count

    def close(self) -> None:
        """Close the idle connections; a later call opens new ones."""
        self.database.close()

    def _claimed(self, statement: str, claims: Sequence[Claim]) -> BatchReservation:
        """Reserve the rows of all claims in one statement, or tell what blocks them.

        The statement that reserves and the one that asks see two states, so both are repeated if nothing blocks.
        """
        rows = [claim.row for claim in claims]
        values = (*_columns(rows), [claim.first for claim in claims])
        for _ in range(ATTEMPTS):
            if self._inserted(statement, values, seconds_for(len(rows))) == len(rows):
                return Reserved()
            told = answer_all(claims, self._told(claims))
            if told is not None:
                return told
        raise StoreUnavailable(f"{self.url}: other writers kept changing the rows of {rows[0].base_uri}; try again")

    def _inserted(self, statement: str, values: Row, seconds: float) -> int:
        def insert(connection: Connection) -> int:
            try:
                return connection.execute(statement, values).rowcount
            except UniqueViolation:
                return 0

        return self.database.call(insert, seconds=seconds)

    def _told(self, claims: Sequence[Claim]) -> Iterable[Reservation | None]:
        columns = [claim.row.base_uri for claim in claims], [claim.row.version for claim in claims]
        answers = self.database.rows(self._answers, columns, seconds=seconds_for(len(claims)))
        for claim, found in zip(claims, answers, strict=True):
            held, latest = (row_of(claim.row.base_uri, part) for part in (found[:4], found[4:]))
            yield answer_claim(claim, held, latest)


def _columns(rows: Sequence[VersionRow]) -> Row:
    return (
        [row.base_uri for row in rows],
        [row.version for row in rows],
        [row.path for row in rows],
        [row.size for row in rows],
        [row.committer for row in rows],
    )
