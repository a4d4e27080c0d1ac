"""Commit store in a SQLite database, for the processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar
from urllib.parse import quote

from lancekeep.adapters.commit_stores.boundary import boundary
from lancekeep.adapters.commit_stores.claims import answer, answer_all, answer_claim
from lancekeep.domain.errors import AccessDenied, Damaged, InvalidInput, LancekeepError, StoreUnavailable
from lancekeep.domain.version_row import BatchReservation, Claim, NotReady, Reservation, Reserved, VersionRow
from lancekeep.ports.commit_store import CommitStoreGuarantees
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import StoreUrl

_SCHEMA = """
CREATE TABLE IF NOT EXISTS version_rows (
    base_uri TEXT NOT NULL,
    version INTEGER NOT NULL,
    path TEXT NOT NULL,
    size INTEGER NOT NULL,
    committer TEXT NOT NULL,
    final INTEGER NOT NULL,
    PRIMARY KEY (base_uri, version)
) WITHOUT ROWID
"""
_INDEX = """
CREATE INDEX IF NOT EXISTS version_rows_staged ON version_rows (base_uri, version)
WHERE NOT final AND path NOT LIKE 'moved-to:%'
"""
_STAGED = """
SELECT base_uri, version, path, size, committer, final FROM version_rows
WHERE NOT final AND path NOT LIKE 'moved-to:%' AND (base_uri, version) > (?1, ?2) AND base_uri < ?3
ORDER BY base_uri, version LIMIT ?4
"""
_COLUMNS = "SELECT version, path, size, committer, final FROM version_rows WHERE base_uri = ?"
_GET = f"{_COLUMNS} AND version = ?"
_LATEST = f"{_COLUMNS} ORDER BY version DESC LIMIT 1"
_LIST = f"{_COLUMNS} AND version > ? ORDER BY version LIMIT ?"
_LIST_DESCENDING = f"{_COLUMNS} AND version < ? ORDER BY version DESC LIMIT ?"
_RESERVE = """
INSERT INTO version_rows (base_uri, version, path, size, committer, final)
SELECT ?1, ?2, ?3, ?4, ?5, 0
WHERE (?6, ?7) IS (SELECT version, final FROM version_rows WHERE base_uri = ?1 ORDER BY version DESC LIMIT 1)
"""
_FINALIZE = """
UPDATE version_rows SET path = ?3, size = ?4, final = 1
WHERE base_uri = ?1 AND version = ?2 AND NOT final AND path NOT LIKE 'moved-to:%'
"""
_RECORD = "INSERT INTO version_rows VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_DELETE = "DELETE FROM version_rows WHERE base_uri = ? AND version = ?"
_DELETE_HISTORY = "DELETE FROM version_rows WHERE base_uri = ?"
_ABOVE_ALL = 2**63 - 1
_TYPES = (int, str, int, str, int)
_NO_TEXT = "Could not decode to UTF-8"
_Rows = list[VersionRow]

_inherited: list[sqlite3.Connection] = []
"""Connections inherited by a fork. Closing or collecting such a connection would release the parent's file locks."""


class SqliteCommitStore:
    """Keep version rows in one database file, which the first row creates.

    Connections are pooled rather than kept per thread, because a native writer's callback runs on a thread that Python
    discards afterwards.

    Args:
        path: The database file; its directory must exist.
        synchronous: ``full`` syncs to the disk before a row is acknowledged. ``normal`` leaves this to the next
            checkpoint, so a power loss may lose the last rows.
        timeout: Seconds to wait for another writer.
    """

    options: ClassVar[frozenset[str]] = frozenset(("synchronous", "timeout"))

    def __init__(self, path: str, synchronous: str = "full", timeout: float = 5.0) -> None:
        self._path = os.path.realpath(path)
        self._synchronous = synchronous
        self._timeout = timeout
        self._idle: list[sqlite3.Connection] = []
        self._origin = os.getpid(), 0
        self.url = f"sqlite://{quote(self._path)}"
        self.guarantees = CommitStoreGuarantees(remembers=synchronous == "full", shared=False, atomic_rows=sys.maxsize)

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> SqliteCommitStore:
        synchronous = url.choice("synchronous", {"normal": "normal", "full": "full"}, "full")
        return cls(url.absolute_path(), synchronous, url.seconds("timeout", 5.0))

    def __repr__(self) -> str:
        return f"SqliteCommitStore({self.url!r})"

    @boundary(sqlite3.Error, OSError)
    def get(self, base_uri: str, version: int) -> VersionRow | None:
        return next(iter(self._read(_GET, base_uri, version)), None) if abs(version) <= _ABOVE_ALL else None

    @boundary(sqlite3.Error, OSError)
    def latest(self, base_uri: str) -> VersionRow | None:
        return next(iter(self._read(_LATEST, base_uri)), None)

    @boundary(sqlite3.Error, OSError)
    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        count = -1 if limit is None else limit
        if descending:
            return self._read(_LIST_DESCENDING, base_uri, _ABOVE_ALL if after is None else after, count)
        return self._read(_LIST, base_uri, -1 if after is None else after, count)

    @boundary(sqlite3.Error, OSError)
    def unfinished(self, prefix: str, *, after: tuple[str, int] | None, limit: int) -> _Rows:
        if self._file() is None:
            self._check_directory()
            return []
        beyond = f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}" if prefix else "\U0010ffff"
        first = max(after or (prefix, -1), (prefix, -1))
        with self._connection() as connection:
            found = connection.execute(_STAGED, (*first, beyond, limit)).fetchall()
        return [self._row(base_uri, columns) for base_uri, *columns in found]

    @boundary(sqlite3.Error, OSError)
    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        with self._connection() as connection:
            predecessor = (None, None) if first else (row.version - 1, 1)
            values = (row.base_uri, row.version, row.path, row.size, row.committer, *predecessor)
            if connection.execute(_RESERVE, values).rowcount == 1:
                return Reserved()
        held = self.get(row.base_uri, row.version)
        if held is None:
            return NotReady(self.latest(row.base_uri))
        return answer(row, held)

    @boundary(sqlite3.Error, OSError)
    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        with self._transaction() as connection:
            told = answer_all(claims, (self._answer(connection, claim) for claim in claims))
            if told is None:
                rows = [claim.row for claim in claims]
                connection.executemany(
                    _RECORD, ((row.base_uri, row.version, row.path, row.size, row.committer, False) for row in rows)
                )
        return told or Reserved()

    @boundary(sqlite3.Error, OSError)
    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        if self._file() is None:
            self._check_directory()
            return [None] * len(base_uris)
        with self._transaction("DEFERRED") as connection:
            return [self._one(connection, _LATEST, base_uri) for base_uri in base_uris]

    @boundary(sqlite3.Error, OSError)
    def finalize(self, row: VersionRow) -> bool:
        if self._file() is None:
            return False
        with self._connection() as connection:
            if connection.execute(_FINALIZE, (row.base_uri, row.version, row.path, row.size)).rowcount == 1:
                return True
        return self.get(row.base_uri, row.version) is not None

    @boundary(sqlite3.Error, OSError)
    def record(self, rows: Iterable[VersionRow]) -> None:
        with self._transaction() as connection:
            connection.executemany(
                _RECORD, ((row.base_uri, row.version, row.path, row.size, row.committer, row.is_final) for row in rows)
            )

    @boundary(sqlite3.Error, OSError)
    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        if self._file() is None:
            return 0
        with self._transaction() as connection:
            if versions is None:
                return connection.execute(_DELETE_HISTORY, (base_uri,)).rowcount
            return connection.executemany(_DELETE, ((base_uri, version) for version in versions)).rowcount

    def close(self) -> None:
        """Close idle connections; a later call opens new ones."""
        while self._idle and self._origin[0] == os.getpid():
            self._idle.pop().close()

    def _read(self, statement: str, base_uri: str, *values: int) -> _Rows:
        if self._file() is None:
            self._check_directory()
            return []
        with self._connection() as connection:
            return [self._row(base_uri, columns) for columns in connection.execute(statement, (base_uri, *values))]

    def _answer(self, connection: sqlite3.Connection, claim: Claim) -> Reservation | None:
        row = claim.row
        held = self._one(connection, _GET, row.base_uri, row.version)
        return answer_claim(claim, held, self._one(connection, _LATEST, row.base_uri))

    def _one(self, connection: sqlite3.Connection, statement: str, base_uri: str, *values: int) -> VersionRow | None:
        columns = connection.execute(statement, (base_uri, *values)).fetchone()
        return None if columns is None else self._row(base_uri, columns)

    def _row(self, base_uri: str, columns: Sequence[Any]) -> VersionRow:
        """Check and convert a row; SQLite accepts any type in any column."""
        version, path, size, committer, final = columns
        row = VersionRow(base_uri, version, path, size, committer)
        if tuple(map(type, columns)) != _TYPES or row.is_final != bool(final):
            raise Damaged(
                f"{self.url}: a row of {base_uri} is {columns!r:.200}; expected version, path, size, committer, and 1 "
                "for a final path or 0 for any other. Another program writes there. Delete the row; it is restored "
                "from the manifest if that is final."
            )
        return row

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Provide exclusive use of a connection; each statement is its own transaction."""
        origin = os.getpid(), self._file() or self._create()
        if origin != self._origin:
            self._leave(origin)
        idle = self._idle
        try:
            connection = idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        idle.append(connection)

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._connection() as connection:
            connection.execute(f"BEGIN {kind}")
            yield connection  # an error closes the connection, which rolls back
            connection.execute("COMMIT")

    def _leave(self, origin: tuple[int, int]) -> None:
        """Abandon connections of a parent process, or to a file that was replaced."""
        if origin[0] != self._origin[0]:
            _inherited.extend(self._idle)
        self._idle, self._origin = [], origin

    def _file(self) -> int | None:
        """Return the inode of the database, or None: it may have been removed or recreated."""
        try:
            return os.stat(self._path).st_ino
        except FileNotFoundError:
            return None

    def _connect(self) -> sqlite3.Connection:
        connection = self._open(self._path)
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute(_SCHEMA)
        with suppress(sqlite3.OperationalError):  # without the index, `unfinished` takes longer
            connection.execute(_INDEX)
        return connection

    def _open(self, path: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(path)}?mode=rw", self._timeout, isolation_level=None, check_same_thread=False, uri=True
        )

    def _create(self) -> int:
        """Create the database under a temporary name and link it, because switching to WAL is not atomic."""
        self._check_directory()
        temporary = f"{self._path}.{os.urandom(8).hex()}"
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL, 0o644))
            connection = self._open(temporary)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(_SCHEMA)
            connection.execute(_INDEX)
            connection.close()
            with suppress(FileExistsError):
                os.link(temporary, self._path)
            # SQLite also syncs the directory before it acknowledges the first row of each write-ahead log, which covers
            # processes that find the file before this sync. Some builds omit that (SQLITE_DISABLE_DIRSYNC).
            directory = os.open(os.path.dirname(self._path), os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
        return os.stat(self._path).st_ino

    def _check_directory(self) -> None:
        directory = os.path.dirname(self._path)
        if not os.path.isdir(directory):
            raise InvalidInput(f"{self.url}: {directory} is not a directory; create it first")

    def understood(self, error: Exception) -> LancekeepError:
        if isinstance(error, OSError):
            if isinstance(error, PermissionError):
                return AccessDenied(f"{self.url}: {error.filename}: {error.strerror}; the directory must be writable")
            return StoreUnavailable(f"{self.url}: {error.filename}: {error.strerror}")
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(error).startswith(_NO_TEXT):
            return Damaged(
                f"{self.url}: {error}. Restore the file from a backup, or move it away: the rows are restored from the "
                "final manifests."
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return AccessDenied(f"{self.url}: {error}; the file and its directory must be writable")
        if code == sqlite3.SQLITE_CANTOPEN and not os.access(self._path, os.R_OK | os.W_OK):
            return AccessDenied(f"{self.url}: {error}; the file must be readable and writable")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreUnavailable(f"{self.url}: {error}: another process kept writing for {self._timeout} s")
        return StoreUnavailable(f"{self.url}: {error}")
