"""Connections to a PostgreSQL database, and what its errors mean."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from lancekeep.domain.errors import (
    AccessDenied,
    Damaged,
    InvalidInput,
    LancekeepError,
    StoreUnavailable,
    Unsupported,
)
from lancekeep.postgres.address import Address
from lancekeep.postgres.migrations import LATEST

T = TypeVar("T")
Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]

ATTEMPTS = 20
"""Maximum number of attempts of a transaction that the server ends because of concurrent ones."""
SECONDS = 5.0
"""Seconds until a statement without an answer is given up, as is the wait for a connection of the process."""
_ROWS_PER_SECOND = 2000
"""How many rows the slowest server is expected to change in a second."""
_INTERVAL = 0.1
_SHARED_ROWS = 1000
"""Most rows that an idle connection holds."""

_RIGHTS = "Check user and password, and the privileges of the role (docs/postgres.md)"
_SCHEMA = "Its owner creates or updates the tables: lancekeep migrate-schema"
_POOLED = "A connection pooler gives each transaction another session. Add the option prepared_statements=false"
_READ_ONLY = "This server is read-only, such as a standby. Connect to the primary, or name all hosts in the URL"
_CONNECTIONS = "The server has no connection left. Raise max_connections, or put PgBouncer in front of it"
_DISK = "The disk of the server is full. Free space there"
_FILES = "Check the paths in sslrootcert, sslcert and sslkey"
_SERVICE = "Define the service in ~/.pg_service.conf, or in the file that PGSERVICEFILE names"
_DATABASE = "Create the database first: createdb"
_LOCKED = "Another session holds a lock on the table, such as a backup. Repeat the call when it has ended"
_UNSTORABLE = "The name of the table is too long or holds a character that PostgreSQL cannot store"

_MEANINGS: tuple[tuple[str, str, type[LancekeepError], str], ...] = (
    ("28", "", AccessDenied, _RIGHTS),
    ("42501", "", AccessDenied, _RIGHTS),
    ("", "password authentication failed", AccessDenied, _RIGHTS),
    ("", "authentication failed", AccessDenied, _RIGHTS),
    ("", "no password supplied", AccessDenied, _RIGHTS),
    ("", "no pg_hba.conf entry", AccessDenied, _RIGHTS),
    ("", "permission denied", AccessDenied, _RIGHTS),
    ("", "too many clients", StoreUnavailable, _CONNECTIONS),
    ("", "connection slots are reserved", StoreUnavailable, _CONNECTIONS),
    ("", "too many connections", StoreUnavailable, _CONNECTIONS),
    ("53100", "", StoreUnavailable, _DISK),
    ("", "role ", AccessDenied, _RIGHTS),
    ("", "certificate file", InvalidInput, _FILES),
    ("", "private key file", InvalidInput, _FILES),
    ("", "definition of service", InvalidInput, _SERVICE),
    ("", "session is read-only", StoreUnavailable, _READ_ONLY),
    ("", " does not exist", InvalidInput, _DATABASE),
    ("25006", "", Unsupported, _READ_ONLY),
    ("3F000", "", InvalidInput, _SCHEMA),
    ("42P01", "", InvalidInput, _SCHEMA),
    ("42703", "", InvalidInput, _SCHEMA),
    ("26000", "", InvalidInput, _POOLED),
    ("42P05", "", InvalidInput, _POOLED),
    ("22", "", InvalidInput, _UNSTORABLE),
    ("54000", "", InvalidInput, _UNSTORABLE),
    ("55P03", "", StoreUnavailable, _LOCKED),
    ("XX001", "", Damaged, "Restore the database from a backup"),
    ("XX002", "", Damaged, "Rebuild the index: REINDEX DATABASE"),
)
"""The begin of an error's code, or a part of the text of an error without a code (which a refused connection is); the
resulting error and the advice. The first match decides; all other errors are `StoreUnavailable`."""

# Every statement finds its rows by an index, whatever its values. The planner would plan many of them again each time,
# which takes longer than the statement, and would scan a table that has grown since its statistics were made. A pooler
# may give the session to others, so its settings stay: it shows another process than the session's.
_PREPARE = """
SELECT max(number), CASE WHEN pg_backend_pid() = %s THEN
    set_config('plan_cache_mode', 'force_generic_plan', false) || set_config('enable_seqscan', 'off', false)
END FROM {schema}.migration
"""

_OPEN: WeakValueDictionary[Any, Database] = WeakValueDictionary()
_OPENING = Lock()
_CONCURRENT = (errors.SerializationFailure, errors.DeadlockDetected)
_ENDS = (errors.IdleInTransactionSessionTimeout, errors.IdleSessionTimeout)
_REPEATED = (*_CONCURRENT, *_ENDS)
"""The errors with which the server undoes a transaction that is then repeated."""
_LOST = ("08", "40003", "57P")
"""The beginnings of codes after which a statement may have been completed. With any other code, the server has undone
the transaction."""


class Unanswered(StoreUnavailable):
    """The server did not answer in time.

    It may still complete the statement.
    """


class Unmade(StoreUnavailable):
    """The server has made no change: it refused a statement, or a connection."""


def seconds_for(rows: int) -> float:
    """Return how long the server may take to change so many rows."""
    return SECONDS + rows / _ROWS_PER_SECOND


class Database:
    """The connections of a process to one database; the first call connects.

    Connections are pooled without threads of their own, so a fork needs no care, and the first error is the driver's.
    Every statement outside of a transaction is a transaction of its own.
    """

    def __init__(self, address: Address) -> None:
        self.url, self.schema = address.url, address.schema
        self.has_sessions = address.prepares
        """Whether each connection is a session of its own: no pooler gives each transaction another session."""
        self.pipelines = address.prepares and psycopg.Pipeline.is_supported()
        """Whether `transact` is possible. Not every pooler understands pipelines."""
        self._address = address
        self._idle: list[BoundedConnection] = []
        self._reset()

    @staticmethod
    def of(address: Address) -> Database:
        """Return the database of an address, which all stores of the process share."""
        arguments = tuple(sorted(address.arguments.items()))
        key = (address.url, address.schema, address.prepares, address.connections, arguments)
        with _OPENING:
            database = _OPEN.get(key)
            if database is None:
                database = _OPEN[key] = Database(address)
            return database

    def statement(self, text: str) -> str:
        """Return a statement with the schema in place of ``{schema}``."""
        return text.replace("{schema}", f'"{self.schema}"')

    def rows(self, statement: str, values: Any = None, *, seconds: float = SECONDS) -> list[Row]:
        """Return the rows of an idempotent statement."""
        return self.call(lambda connection: connection.read(statement, values), seconds=seconds)

    def count(self, statement: str, values: Any = None, *, seconds: float = SECONDS) -> int:
        """Return how many rows an idempotent statement changed."""
        return self.call(lambda connection: connection.execute(statement, values).rowcount, seconds=seconds)

    def transact(self, steps: Sequence[tuple[str, Any]], *, seconds: float = SECONDS) -> list[Row]:
        """Run statements as one transaction, in one round trip.

        Args:
            steps: Statements and their values. Each sees what was committed before it began.
            seconds: How long the server may be silent.

        Returns:
            The rows of the last statement.

        Raises:
            Unmade: The server, or the lack of a connection, has prevented the transaction.
            StoreUnavailable: The connection broke, or the server was silent. It may still make the transaction.
            LancekeepError: As `call`.
        """
        return self.call(lambda connection: connection.transact(steps), seconds=seconds, once=True)

    def call(self, act: Callable[[BoundedConnection], T], *, seconds: float = SECONDS, once: bool = False) -> T:
        """Run an idempotent action over a connection.

        The action is repeated if the server ends its transaction because of concurrent ones or of a pause, and once
        over a new connection if the connection is broken, as pooled ones are after a restart of the server.

        Args:
            act: The action. It may change how long the connection waits.
            seconds: How long the server may be silent during one statement.
            once: Do not repeat the action if the connection is broken, because it is not idempotent.

        Raises:
            Unanswered: The server was silent for too long. It may still complete the statement.
            Unmade: The server, or the lack of a connection, has prevented the action.
            StoreUnavailable: The connection broke twice, or ``once``; the action may have been completed.
            LancekeepError: The action failed; see `_MEANINGS`.
        """
        lost: psycopg.Error | None = None
        for attempt in range(1, ATTEMPTS + 1):
            used: BoundedConnection | None = None
            try:
                if self._process != os.getpid():
                    self._reset()  # the driver leaves the parent's connections open
                room = self._room
                used = self._taken(room)
                try:
                    used.seconds = seconds
                    return act(used)
                finally:
                    self._give_back(used, room)
            except TimeoutError as error:
                waited = SECONDS if used is None else used.seconds
                raise Unanswered(f"{self.url}: no answer within {waited:.0f} s") from error
            except UnicodeEncodeError as error:
                raise InvalidInput(
                    f"{self.url}: a text holds {error.object[error.start]!r}, which UTF-8 lacks"
                ) from error
            except psycopg.Error as error:
                if lost is not None:  # the first attempt may have succeeded, so its error counts
                    raise StoreUnavailable(f"{self.url}: {_line(lost)}; then: {_line(error)}") from error
                if used is not None and _ends_session(error, used):
                    self.close()
                    lost = None if isinstance(error, _ENDS) else error
                if lost is not None and once:
                    raise StoreUnavailable(f"{self.url}: {_line(lost)}") from error
                if lost is None and (not isinstance(error, _REPEATED) or attempt == ATTEMPTS):
                    if isinstance(error, errors.ReadOnlySqlTransaction):
                        self.close()  # after a failover, another server may be the primary
                    meaning = self.understood(error)
                    raise (Unmade(str(meaning)) if type(meaning) is StoreUnavailable else meaning) from error
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close the idle connections; a later call opens new ones."""
        if self._process == os.getpid():
            idle, self._idle = self._idle, []
            for connection in idle:
                connection.close()

    def connect(self) -> BoundedConnection:
        """Return a new connection, without a check of the schema."""
        arguments: Any = self._address.arguments
        connection = BoundedConnection.connect(
            **arguments, autocommit=True, prepare_threshold=5 if self._address.prepares else None
        )
        if connection.info.parameter_status("server_encoding") != "UTF8":
            connection.close()
            raise InvalidInput(f"{self.url}: the encoding of the database is not UTF8; create one with ENCODING 'UTF8'")
        return connection

    def _reset(self) -> None:
        self._process = os.getpid()
        self._idle = []
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._address.connections):
            self._room.put(None)

    def _taken(self, room: SimpleQueue[None]) -> BoundedConnection:
        """Return a connection for exclusive use, until it is given back."""
        try:
            room.get(timeout=SECONDS)
        except Empty:
            raise Unmade(
                f"{self.url}: all {self._address.connections} connections of this process were in use for "
                f"{SECONDS:.0f} s; raise the option connections, or use fewer threads"
            ) from None
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return self._checked_connection()
        except BaseException:
            room.put(None)
            raise

    def _give_back(self, connection: BoundedConnection, room: SimpleQueue[None]) -> None:
        """Make a connection idle. A connection that is left in a transaction, or broken, is closed."""
        try:
            if connection.pgconn.transaction_status != TransactionStatus.IDLE:
                connection.close()
            else:
                self._idle.append(connection)
        finally:
            room.put(None)

    def _checked_connection(self) -> BoundedConnection:
        connection = self.connect()
        try:
            self._check_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def require_known(self, number: int) -> None:
        """Raise `Unsupported` if a newer release has updated the schema."""
        if number > LATEST:
            raise Unsupported(
                f"{self.url}: the schema {self.schema!r} has the number {number}, and this release of Lancekeep knows "
                f"{LATEST}; install a newer release"
            )

    def _check_schema(self, connection: Connection) -> None:
        found = connection.execute(self.statement(_PREPARE), (connection.info.backend_pid,)).fetchone()
        number = (found and found[0]) or 0
        self.require_known(number)
        if number < LATEST:
            raise InvalidInput(
                f"{self.url}: the schema {self.schema!r} has the number {number}; expected {LATEST}. {_SCHEMA} "
                f"{self.url}"
            )

    def understood(self, error: psycopg.Error) -> LancekeepError:
        code, text = error.sqlstate or "", _line(error)
        if isinstance(error, psycopg.DataError) and not code:  # the driver's, of a value that it cannot send
            return InvalidInput(f"{self.url}: {text}")
        for beginning, part, meaning, advice in _MEANINGS:
            if code.startswith(beginning) if beginning else not code and part in text:
                where = f" {self.url}" if advice is _SCHEMA else ""
                return meaning(f"{self.url}: {text}. {advice}{where}.")
        return StoreUnavailable(f"{self.url}: {text}")


class BoundedConnection(psycopg.Connection[Row]):
    """A connection that gives up a silent server.

    Such a server is stopped, or behind a dead network.

    Attributes:
        seconds: How long the server may be silent.
    """

    seconds: float = SECONDS
    _cursor: psycopg.Cursor[Row] | None = None

    def read(self, statement: str, values: Any = None) -> list[Row]:
        """Return the rows of a statement.

        Statements share a cursor, which takes a fifth of the driver's time to make.
        """
        cursor = self.cursor() if self._cursor is None else self._cursor
        self._cursor = None  # a cursor that has failed, or that holds many rows, is not used again
        found = cursor.execute(statement, values).fetchall()
        if len(found) <= _SHARED_ROWS:
            self._cursor = cursor
        return found

    def transact(self, steps: Sequence[tuple[str, Any]]) -> list[Row]:
        """Run statements as one transaction, in one round trip.

        Returns the rows of the last one.
        """
        failed: psycopg.Error | None = None
        try:
            with self.pipeline():  # its statements are one transaction, which its end commits
                try:
                    *_, last = [self.execute(*step) for step in steps]
                except psycopg.Error as error:  # otherwise the driver logs that the statements after it fail, too
                    failed = error
        except psycopg.Error as error:
            failed = failed or error
        if failed is not None:
            if not self.closed:
                self.rollback()
            raise failed
        return last.fetchall()

    def be_patient(self, seconds: float) -> None:
        """Let the server be silent for some seconds from now on."""
        self.seconds = seconds

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL, timeout: float | None = None) -> T:
        return super().wait(_bounded(gen, timeout or self.seconds), interval)


def _bounded(steps: PQGen[T], seconds: float) -> PQGen[T]:
    """Run the steps of a statement, until the connection has had no event for some seconds."""
    deadline = time.monotonic() + seconds
    try:
        waits_for = next(steps)
        while True:
            ready = yield waits_for
            if ready:
                deadline = time.monotonic() + seconds
            elif time.monotonic() > deadline:
                raise TimeoutError
            waits_for = steps.send(ready)
    except StopIteration as end:
        return cast(T, end.value)


def _ends_session(error: psycopg.Error, connection: Connection) -> bool:
    """Return whether an error ended the session of its connection, or leaves open what the server has done."""
    return connection.closed or (error.sqlstate or "").startswith(_LOST) or isinstance(error, _ENDS)


def _line(error: psycopg.Error) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
