"""Create and update the schema of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import psycopg

from lancekeep.domain.errors import InvalidInput, StoreUnavailable
from lancekeep.postgres.address import OPTIONS, Address
from lancekeep.postgres.database import Connection, Database
from lancekeep.postgres.migrations import LATEST, MIGRATIONS
from lancekeep.store_urls import StoreUrl

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('lancekeep schema ' || %s, 0))"
# All other statements wait for a statement that waits for a lock on a table, so it must not wait as long as a backup
# holds one.
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '4s'"
_SECONDS = 3600.0
"""How long a migration may take."""
_EXISTS = "SELECT FROM pg_namespace WHERE nspname = %s"
_LOG = """
CREATE TABLE IF NOT EXISTS {schema}.migration (number integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())
"""
_APPLIED = "SELECT coalesce(max(number), 0) FROM {schema}.migration"


def migrate_schema(url: str, options: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Bring the schema of a database to the number of this release.

    One transaction makes all changes. Idempotent. Callers at the same time wait for each other.

    Args:
        url: The URL of a store, with a role that may create tables.
        options: The options of the store.

    Returns:
        The number of the schema before and after; 0 before the first migration.

    Raises:
        InvalidInput: The URL is invalid, or does not name a PostgreSQL database.
        Unsupported: A newer release has updated the schema.
        StoreUnavailable: The server cannot be reached, or another session holds a lock on the tables.
        AccessDenied: The server refuses the role.
    """
    location = StoreUrl.parse(url, options or {})
    if location.parts.scheme != "postgresql":
        raise InvalidInput(f"{location} has no schema; expected postgresql://[USER@]HOST[:PORT]/DATABASE")
    location.check_options(OPTIONS)
    database = Database(Address.of(location))
    try:
        with closing(database.connect()) as connection:
            connection.be_patient(_SECONDS)
            with connection.transaction():
                return _migrate(database, connection)
    except psycopg.Error as error:
        raise database.understood(error) from error
    except TimeoutError as error:
        raise StoreUnavailable(
            f"{database.url}: the server did not answer in time. Run migrate-schema again"
        ) from error


def _migrate(database: Database, connection: Connection) -> tuple[int, int]:
    connection.execute(_LOCK, [database.schema])
    connection.execute(_LOCK_TIMEOUT)
    if connection.execute(_EXISTS, [database.schema]).fetchone() is None:
        connection.execute(database.statement("CREATE SCHEMA {schema}"))
    connection.execute(database.statement(_LOG))
    (before,) = connection.execute(database.statement(_APPLIED)).fetchone() or (0,)
    database.require_known(before)
    for number, statements in enumerate(MIGRATIONS, 1):
        if number > before:
            connection.execute(database.statement(statements))
            connection.execute(database.statement("INSERT INTO {schema}.migration (number) VALUES (%s)"), [number])
    return before, LATEST
