"""Calls of a Hive Metastore: its connections, deadlines and failover."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from typing import Any
from weakref import WeakValueDictionary

import attrs

from lancekeep.domain.errors import InvalidInput, LancekeepError, StoreUnavailable, Unsupported
from lancekeep.hive import messages
from lancekeep.hive.address import POOL_SIZE, Address
from lancekeep.hive.connection import Connection, Stalled
from lancekeep.hive.errors import ObjectMissing, ReplyLost, understood
from lancekeep.hive.messages import (
    AlterCatalogRequest,
    Catalog,
    CatalogName,
    CatalogRequest,
    Database,
    EnvironmentContext,
    GetTableRequest,
    GetTablesRequest,
    Method,
    Table,
)
from lancekeep.hive.wire import Failure, Malformed, Reader, request, struct_of

_EXPECTED_KEY, _EXPECTED_VALUE = "expected_parameter_key", "expected_parameter_value"
_UNKNOWN_METHOD = 1
_LEAST_SHARE = 0.2
"""The part of the time of a call that it needs once it may use a connection."""
_OPEN: WeakValueDictionary[Address, Metastore] = WeakValueDictionary()
_OPENING = Lock()


@attrs.frozen
class Read:
    """A request that reads, for `Metastore.together`.

    Attributes:
        method: The method.
        arguments: Its arguments.
        value: Returns the value of the answer.
        is_optional: The value is None if the object does not exist.
    """

    method: Method
    arguments: tuple[Any, ...]
    value: Callable[[Any], Any] = attrs.field(default=lambda answer: answer, eq=False)
    is_optional: bool = False

    @staticmethod
    def databases(pattern: str = "*", catalog: str | None = None) -> Read:
        """Read the names of the databases that match a pattern, such as ``a*|b``."""
        return Read(messages.GET_DATABASES, (_in_catalog(catalog, pattern),), list)

    @staticmethod
    def database(name: str, catalog: str | None = None) -> Read:
        """Read a database, or None."""
        return Read(messages.GET_DATABASE, (_in_catalog(catalog, name),), is_optional=True)

    @staticmethod
    def filtered(database: str, condition: str, most: int = -1, catalog: str | None = None) -> Read:
        """Read the names of tables; see `Metastore.filter_table_names`."""
        return Read(messages.FILTER_TABLES, (_in_catalog(catalog, database), condition, most), list)

    @staticmethod
    def table(database: str, name: str, catalog: str | None = None) -> Read:
        """Read a table or view, or None."""
        asked = GetTableRequest(database, name, catalog)
        return Read(messages.GET_TABLE, (asked,), lambda answer: answer.table, is_optional=True)

    @staticmethod
    def tables(database: str, names: Sequence[str], catalog: str | None = None) -> Read:
        """Read the tables that exist among some names, in any order."""
        asked = GetTablesRequest(database, list(names), catalog)
        return Read(messages.GET_TABLES_BY_NAME, (asked,), lambda answer: list(answer.tables or ()))

    @staticmethod
    def catalog(name: str) -> Read:
        """Read a catalog, or None."""
        return Read(messages.GET_CATALOG, (CatalogName(name),), lambda answer: answer.catalog, is_optional=True)

    @staticmethod
    def catalogs() -> Read:
        """Read the names of the catalogs. Raises `Unsupported` before Hive 3."""
        return Read(messages.GET_CATALOGS, (), lambda answer: list(answer.names or ()))


class Metastore:
    """The connections of a process to one Metastore; the first call connects.

    Several hosts are servers of one Metastore, over one database: a connection goes to the first one that accepts it,
    beginning with the one that accepted the last connection. Every method is one request and one step of the server.
    Each ends within the time-out of the address, also over a broken connection or a server that stopped.

    A method that reads is repeated once if its connection is broken. A method that changes something is not repeated:
    it raises `ReplyLost` if the request was sent and no reply arrived, so the caller reads the object to settle it.
    Names of databases and tables are lower-case in a Metastore. ``catalog`` is for Hive 3 and newer only.
    """

    def __init__(self, address: Address) -> None:
        self.url = address.url
        self._address = address
        self._idle: list[Connection] = []
        self._reset()

    @staticmethod
    def of(address: Address) -> Metastore:
        """Return the Metastore of an address, which all stores of the process share."""
        with _OPENING:
            metastore = _OPEN.get(address)
            if metastore is None:
                metastore = _OPEN[address] = Metastore(address)
            return metastore

    def __repr__(self) -> str:
        return f"Metastore({self.url!r})"

    def close(self) -> None:
        """Close the idle connections; a later call opens new ones."""
        if self._process == os.getpid():
            idle, self._idle = self._idle, []
            for connection in idle:
                connection.close()

    # -- databases -----------------------------------------------------------------------------------------------

    def databases(self, pattern: str = "*", catalog: str | None = None) -> list[str]:
        """Return the names of the databases that match a pattern, such as ``a*|b``."""
        names: list[str] = self.read(Read.databases(pattern, catalog))
        return names

    def database(self, name: str, catalog: str | None = None) -> Database | None:
        """Return a database, or None."""
        found: Database | None = self.read(Read.database(name, catalog))
        return found

    def create_database(self, database: Database) -> None:
        """Create a database, and its directory.

        Raises:
            ObjectExists: The Metastore has the database.
        """
        self._call(messages.CREATE_DATABASE, database)

    def alter_database(self, name: str, database: Database, catalog: str | None = None) -> None:
        """Replace the parameters, owner or location of a database.

        The last writer wins. Hive 2.3 ignores a missing database.
        """
        self._call(messages.ALTER_DATABASE, _in_catalog(catalog, name), database)

    def drop_database(
        self, name: str, *, delete_data: bool = False, cascade: bool = False, catalog: str | None = None
    ) -> None:
        """Drop a database. Reads it first, because Hive 2.3 fails on a missing one.

        Raises:
            ObjectMissing: The Metastore has no such database.
            Refused: The database is not empty.
        """
        if self.database(name, catalog) is None:
            raise ObjectMissing(f"{self.url}: database {name!r:.200} does not exist")
        self._call(messages.DROP_DATABASE, _in_catalog(catalog, name), delete_data, cascade)

    # -- tables ----------------------------------------------------------------------------------------------------

    def table_names(self, database: str, pattern: str = "*", catalog: str | None = None) -> list[str]:
        """Return the names of all tables and views that match a pattern.

        A missing database has none.
        """
        return list(self._call(messages.GET_TABLES, _in_catalog(catalog, database), pattern))

    def filter_table_names(
        self, database: str, condition: str, most: int = -1, catalog: str | None = None
    ) -> list[str]:
        """Return the names of at most ``most`` tables that match a condition.

        Args:
            database: The database.
            condition: A filter of Hive: ``hive_filter_field_params__KEY like "lance"``, where the key has word
                characters only.
            most: The maximum number of names, at most 32,767, or -1 for all.
            catalog: The catalog of the database.

        Raises:
            ObjectMissing: The Metastore has no such database.
        """
        names: list[str] = self.read(Read.filtered(database, condition, most, catalog))
        return names

    def table(self, database: str, name: str, catalog: str | None = None) -> Table | None:
        """Return a table or view, or None."""
        found: Table | None = self.read(Read.table(database, name, catalog))
        return found

    def tables(self, database: str, names: Sequence[str], catalog: str | None = None) -> list[Table]:
        """Return the tables that exist, in any order.

        Raises:
            ObjectMissing: The Metastore has no such database.
        """
        found: list[Table] = self.read(Read.tables(database, names, catalog)) if names else []
        return found

    def create_table(self, table: Table) -> None:
        """Create a table or view, by put-if-absent.

        Raises:
            ObjectExists: The Metastore has the table.
            ObjectMissing: The Metastore has no such database.
            InvalidInput: The Metastore permits no such name.
        """
        self._call(messages.CREATE_TABLE, table, None)

    def alter_table(
        self,
        database: str,
        name: str,
        table: Table,
        *,
        expected: tuple[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        catalog: str | None = None,
    ) -> None:
        """Replace a table, or rename it, if a parameter has the expected value.

        Args:
            database: The database.
            name: The name of the table.
            table: What replaces the table; pass what `table` returned, with changes.
            expected: A parameter of the table and its value. A Metastore that lacks HIVE-26882 ignores it.
            properties: Options of the environment context, such as ``DO_NOT_UPDATE_STATS``.
            catalog: The catalog of the database.

        Raises:
            Modified: The parameter has another value; nothing was changed.
            ObjectMissing: The Metastore has no such table.
            Refused: The Metastore refuses the change.
        """
        conditions = {} if expected is None else {_EXPECTED_KEY: expected[0], _EXPECTED_VALUE: expected[1]}
        context = EnvironmentContext({**(properties or {}), **conditions})
        self._call(messages.ALTER_TABLE, _in_catalog(catalog, database), name, table, context)

    def drop_table(
        self, database: str, name: str, *, delete_data: bool = False, purge: bool = False, catalog: str | None = None
    ) -> None:
        """Drop a table or view.

        Raises:
            ObjectMissing: The Metastore has no such table.
        """
        context = EnvironmentContext({"ifPurge": "TRUE"}) if purge else None
        self._call(messages.DROP_TABLE, _in_catalog(catalog, database), name, delete_data, context)

    # -- catalogs of Hive 3 ----------------------------------------------------------------------------------------

    def catalogs(self) -> list[str] | None:
        """Return the names of the catalogs.

        None if the Metastore has no catalogs, as before Hive 3.
        """
        try:
            names: list[str] = self.read(Read.catalogs())
        except Unsupported:
            return None
        return names

    def catalog(self, name: str) -> Catalog | None:
        """Return a catalog, or None."""
        found: Catalog | None = self.read(Read.catalog(name))
        return found

    def create_catalog(self, catalog: Catalog) -> None:
        """Create a catalog.

        Raises:
            ObjectExists: The Metastore has the catalog.
        """
        self._call(messages.CREATE_CATALOG, CatalogRequest(catalog))

    def alter_catalog(self, name: str, catalog: Catalog) -> None:
        """Replace the description or location of a catalog.

        Raises:
            ObjectMissing: The Metastore has no such catalog.
        """
        self._call(messages.ALTER_CATALOG, AlterCatalogRequest(name, catalog))

    def drop_catalog(self, name: str) -> None:
        """Drop an empty catalog.

        Raises:
            ObjectMissing: The Metastore has no such catalog.
            Refused: The catalog is not empty.
        """
        self._call(messages.DROP_CATALOG, CatalogName(name))

    # -- calls -----------------------------------------------------------------------------------------------------

    def together(self, *reads: Read) -> list[Any]:
        """Make several reads, in order, in one round trip.

        The requests are sent at once; the server answers one after the other.

        Returns:
            The value of each read, or the error that the server answered.
        """
        answers = self._calls([(each.method, each.arguments) for each in reads])
        return [_value(read, answer) for read, answer in zip(reads, answers, strict=True)]

    def read(self, read: Read) -> Any:
        """Make one read."""
        (found,) = self.together(read)
        if isinstance(found, LancekeepError):
            raise found
        return found

    def _call(self, method: Method, *arguments: Any) -> Any:
        """Send a request and return its result."""
        (answer,) = self._calls([(method, arguments)])
        if isinstance(answer, LancekeepError):
            raise answer
        return answer

    def _calls(self, asked: Sequence[tuple[Method, tuple[Any, ...]]]) -> list[Any]:
        """Send requests at once, and return the result or the error of each."""
        methods = [method for method, _ in asked]
        reads = all(method.reads for method in methods)
        content = b"".join(self._request(number, *each) for number, each in enumerate(asked, 1))
        if len(content) > self._address.limit:
            raise InvalidInput(f"{self.url}: a request of {len(content):,} bytes is larger than the option permits")
        deadline = time.monotonic() + self._address.seconds
        with self._room(deadline):
            for attempt in (1, 2):
                connection = self._connection(deadline)
                try:
                    results = self._answered(connection, methods, content, deadline)
                    self._idle.append(connection)
                    return results
                except (OSError, Malformed, EOFError) as error:
                    connection.close()
                    lost = f"{self.url}: {connection.peer}: {_text(error)}"
                    if attempt == 1 and reads and not isinstance(error, Stalled | Malformed):
                        continue
                    kind = StoreUnavailable if reads else ReplyLost
                    raise kind(lost) from error
                except BaseException:  # such as KeyboardInterrupt: the answer may still arrive
                    connection.close()
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _request(self, number: int, method: Method, arguments: tuple[Any, ...]) -> bytes:
        typed = tuple(zip(method.arguments, arguments, strict=True))
        try:
            return request(method.name, number, typed)
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{self.url}: a text holds {error.object[error.start]!r}, which UTF-8 lacks") from error

    def _answered(
        self, connection: Connection, methods: Sequence[Method], content: bytes, deadline: float
    ) -> list[Any]:
        connection.send(content, deadline)
        reader = Reader(lambda: connection.receive(deadline), self._address.limit)
        results = [self._answer(reader, number, method) for number, method in enumerate(methods, 1)]
        if reader.surplus:
            raise Malformed("the server sent more than the answer")
        return results

    def _answer(self, reader: Reader, number: int, method: Method) -> Any:
        """Return the result of one request, or the error that the server answered."""
        kinds = {each: struct_of(messages.Refusal) for each in method.refusals}
        if method.result is not None:
            kinds[0] = method.result
        found = reader.reply(method.name, number, kinds)
        if found is None:
            if method.result is None:
                return None
            return understood(self.url, messages.META, f"{method.name} returned neither a value nor an exception")
        place, value = found
        if place == 0:
            return value
        if isinstance(value, Failure):
            if value.kind == _UNKNOWN_METHOD:
                return Unsupported(f"{self.url}: the server has no method {method.name}; use a newer Metastore")
            return understood(self.url, "TApplicationException", value.message or "")
        return understood(self.url, method.refusals[place], value.message or "")

    def _reset(self) -> None:
        self._process = os.getpid()
        self._idle = []
        self._permits = BoundedSemaphore(self._address.pool_size)
        self._preferred = 0

    @contextmanager
    def _room(self, deadline: float) -> Iterator[None]:
        """Wait until the process may use another connection.

        A call that gets it too late to use it would fail for another reason.
        """
        if self._process != os.getpid():
            self._reset()  # the parent goes on using its connections
        permits = self._permits
        usable = deadline - _LEAST_SHARE * self._address.seconds
        if not permits.acquire(timeout=max(0.0, usable - time.monotonic())):
            raise StoreUnavailable(
                f"{self.url}: all {self._address.pool_size} connections of this process were in use for "
                f"{self._address.seconds:g} s; raise the option {POOL_SIZE}, or use fewer threads"
            )
        try:
            yield
        finally:
            permits.release()

    def _connection(self, deadline: float) -> Connection:
        """Return an idle connection that the server has not closed, or a new one."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connected(deadline)
            if not select.select([connection.socket], [], [], 0)[0]:  # else closed, or an answer to no request
                return connection
            connection.close()

    def _connected(self, deadline: float) -> Connection:
        hosts, failed = self._address.hosts, []
        first = self._preferred
        for tried in range(len(hosts)):
            place = (first + tried) % len(hosts)
            share = (deadline - time.monotonic()) / (len(hosts) - tried)
            try:
                connection = Connection(self._address, hosts[place], time.monotonic() + max(0.1, share))
            except (OSError, Malformed, EOFError) as error:
                failed.append(f"{hosts[place][0]}:{hosts[place][1]}: {_text(error)}")
                continue
            self._preferred = place
            return connection
        raise StoreUnavailable(f"{self.url}: {'; '.join(failed)}")


def _in_catalog(catalog: str | None, name: str) -> str:
    """Return a name of a database, or a pattern, as Hive 3 takes it in methods that have no catalog."""
    return name if catalog is None else f"@{catalog}#{name}"


def _value(read: Read, answer: Any) -> Any:
    if isinstance(answer, ObjectMissing) and read.is_optional:
        return None
    return answer if isinstance(answer, LancekeepError) else read.value(answer)


def _text(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
