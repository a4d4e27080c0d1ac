"""Behaviours of namespaces and their runner, without pytest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs
import lance
import lance_namespace as api
import pyarrow as pa
from lance_namespace import errors

from lancekeep.application.concurrency import race

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
OTHERS = pa.table({"a": pa.array([4], pa.int64())})


_MODELS = {"list_all_tables": "list_tables", "create_table_scalar_index": "create_table_index"}
"""Operations whose requests have the model of another operation."""


class Capability(StrEnum):
    """An optional part of the interface. All other parts are required."""

    NAMESPACES = "namespaces"
    """Namespaces below the root. V1 directories have none."""
    PROPERTIES = "properties"
    """Properties of namespaces and tables."""
    LOCATIONS = "locations"
    """Tables at locations that the caller chooses."""
    REGISTER = "register"
    """Registering and deregistering tables without touching their files."""
    RENAME = "rename"
    VERSIONS = "versions"
    """Listing and describing versions of tables."""
    DATA = "data"
    """Inserting, merging, updating, deleting and querying rows."""
    TAGS = "tags"
    BRANCHES = "branches"
    INDEXES = "indexes"
    SCHEMA = "schema"
    """Changing columns and metadata of tables."""
    TRANSACTIONS = "transactions"
    """Describing transactions, and batches that are committed as one. V1 directories have no batches."""
    VIEWS = "views"
    """Materialized views of kind ``query``. They need properties."""


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_OFFERED = "not offered"


@attrs.frozen
class Result:
    """The result of a behaviour; ``answer`` describes a departure in a few words."""

    outcome: Outcome
    answer: str = ""


@attrs.frozen
class Verdict:
    """What a check showed.

    Attributes:
        id: the name in reports: ``area/name``.
        sentence: the sentence of the specification.
        result: the result.
    """

    id: str
    sentence: str
    result: Result

    @property
    def area(self) -> str:
        """The part of the interface: the first word of the id."""
        return self.id.partition("/")[0]


class Departure(AssertionError):
    """The namespace departs from the specification; the message describes how."""


class NotOffered(Exception):
    """The namespace does not support the operation."""


Open = Callable[[], api.LanceNamespace]
"""Opens a namespace on an empty place; each further call opens another instance on the same place."""

Contents = Callable[[], object]
"""Returns the content of the place as a comparable value, to check that reads write nothing."""


@attrs.frozen
class Storage:
    """What is known of the storage of a namespace.

    Attributes:
        options: options to read tables with, beside those that the namespace answers.
        keeps_dropped: whether the files of dropped tables stay for a while.
    """

    options: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    keeps_dropped: bool = False


@attrs.frozen
class Behaviour:
    """One behaviour of a namespace.

    Attributes:
        id: the name in reports.
        sentence: the sentence of the specification.
        needs: the capabilities that the check uses.
        check: raises `Departure` or `NotOffered`.
        below: the namespace in which the check works.
    """

    id: str
    sentence: str
    needs: frozenset[Capability]
    check: Callable[[Bench], None]
    below: tuple[str, ...] = ()

    def run(self, open_: Open, contents: Contents | None = None, storage: Storage | None = None) -> Result:
        """Run the check on an empty place.

        Args:
            open_: opens the namespace.
            contents: returns the content of the place.
            storage: what is known of the storage.
        """
        try:
            self.check(Bench.prepared(open_, contents, self.below, storage or Storage()))
        except NotOffered as error:
            return Result(Outcome.NOT_OFFERED, str(error))
        except Departure as error:
            return Result(Outcome.FAILED, str(error))
        return Result(Outcome.PASSED)


def claim(holds: object, found: str) -> None:
    """Raise `Departure` with ``found`` unless ``holds`` is true."""
    if not holds:
        raise Departure(found)


@attrs.frozen
class Door:
    """A namespace, called by operation names and request fields."""

    namespace: api.LanceNamespace

    def attempt(self, operation: str, **fields: Any) -> Any:
        """Return the response or raise the error; ``data`` is the table to create."""
        data = [fields.pop("data")] if "data" in fields else []
        model = _MODELS.get(operation, operation)
        request = getattr(api, "".join(word.capitalize() for word in model.split("_")) + "Request")(**fields)
        return getattr(self.namespace, operation)(request, *(bytes_of(given) for given in data))

    def ask(self, operation: str, **fields: Any) -> Any:
        """Return the response; an error becomes `Departure` or `NotOffered`."""
        try:
            return self.attempt(operation, **fields)
        except (errors.UnsupportedOperationError, NotImplementedError) as error:
            raise NotOffered(f"`{operation}`: {type(error).__name__}") from error
        except Exception as error:
            raise Departure(f"`{operation}`: {type(error).__name__}") from error

    def refused(self, operation: str, *expected: type[errors.LanceNamespaceError], **fields: Any) -> None:
        """Require one of the errors, unless the operation is not offered."""
        try:
            self.attempt(operation, **fields)
        except expected:
            return
        except (errors.UnsupportedOperationError, NotImplementedError) as error:
            raise NotOffered(f"`{operation}`: {type(error).__name__}") from error
        except Exception as error:
            raise Departure(f"`{operation}`: {type(error).__name__}") from error
        raise Departure(f"`{operation}` succeeds")

    def has_namespace(self, names: Sequence[str]) -> bool:
        """Return whether a namespace exists; if the namespace cannot tell, it does not."""
        try:
            self.attempt("namespace_exists", id=list(names))
        except Exception:  # creating it reports what is wrong
            return False
        return True

    def names(self, operation: str, **fields: Any) -> list[str]:
        """Return the whole listing, in one page."""
        page = self.ask(operation, **fields)
        claim(not page.page_token, f"`{operation}` without a limit returns a page token")
        return sorted(_names(page))

    def pages(self, operation: str, limit: int, **fields: Any) -> Iterator[list[str]]:
        """Yield the pages of a listing, each requested on demand."""
        token, seen = None, set()
        while True:
            page = self.ask(operation, page_token=token, limit=limit, **fields)
            claim(len(_names(page)) <= limit, f"`{operation}` returns more than the limit")
            yield list(_names(page))
            token = page.page_token
            if not token:
                return
            claim(token not in seen, f"`{operation}` returns a page token for the second time")
            seen.add(token)


@attrs.frozen
class Bench:
    """Two instances on an empty place.

    Attributes:
        one: an instance.
        other: another instance.
        open: opens a further one.
        contents: returns the content of the place.
        below: the namespace to work in.
        present: the names of the namespaces that an empty place has.
        storage: what is known of the storage.
    """

    one: Door
    other: Door
    open: Open
    contents: Contents | None
    below: tuple[str, ...]
    present: frozenset[str] = frozenset()
    storage: Storage = Storage()

    @staticmethod
    def prepared(open_: Open, contents: Contents | None, below: tuple[str, ...], storage: Storage) -> Bench:
        one, present = Door(open_()), frozenset[str]()
        if not below:
            with suppress(Exception):  # the behaviours of namespaces report it
                present = frozenset(_names(one.attempt("list_namespaces", id=[])))
        bench = Bench(one, Door(open_()), open_, contents, below, present, storage)
        for depth in range(1, len(below) + 1):
            if depth == len(below) or not one.has_namespace(below[:depth]):
                one.ask("create_namespace", id=list(below[:depth]))
        return bench

    def at(self, *names: str) -> list[str]:
        return [*self.below, *names]

    def create(self, name: str, data: pa.Table = ROWS, **fields: Any) -> Any:
        return self.one.ask("create_table", id=self.at(name), data=data, **fields)

    def rows(self, *names: str, door: Door | None = None) -> list[int]:
        """Return the rows of a table at the location that an instance returns."""
        described = (door or self.other).ask("describe_table", id=self.at(*names))
        return self.rows_at(described.location, described.storage_options)

    def rows_at(self, location: str, vended: Mapping[str, str] | None = None) -> list[int]:
        """Return the rows of the Lance table at a location.

        Args:
            location: the location.
            vended: options that the namespace answers.
        """
        options = {**self.storage.options, **(vended or {})}
        try:
            return sorted(lance.dataset(location, storage_options=options or None).to_table()["a"].to_pylist())
        except Exception as error:
            raise Departure("there is no Lance table at the location that is answered") from error

    def is_gone(self, location: str) -> bool:
        """Return whether the table at a location is gone, as far as it has to be."""
        try:
            self.rows_at(location)
        except Departure:
            return True
        return self.storage.keeps_dropped

    def namespaces(self) -> list[str]:
        """Return the namespaces that the behaviour has created."""
        return [name for name in self.other.names("list_namespaces", id=self.at()) if name not in self.present]

    def tables(self, **fields: Any) -> list[str]:
        return self.other.names("list_tables", id=self.at(), **fields)

    def deregistered(self, name: str) -> str:
        """Create and deregister a table, and return its location."""
        self.create(name)
        location = self.one.ask("describe_table", id=self.at(name)).location
        self.one.ask("deregister_table", id=self.at(name))
        return str(location)

    def race(self, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
        """Return the responses or errors of calls that start together."""
        doors = [Door(self.open()) for _ in calls]

        def run(number: int) -> Any:
            operation, fields = calls[number]
            try:
                return doors[number].attempt(operation, **fields)
            except Exception as error:
                return error

        answers = race(len(calls), run)
        if all(isinstance(answer, errors.UnsupportedOperationError | NotImplementedError) for answer in answers):
            raise NotOffered(f"`{calls[0][0]}`: {type(answers[0]).__name__}")
        return answers


def run_all(
    behaviours: Sequence[Behaviour],
    place: Callable[[], tuple[Open, Contents | None]],
    capabilities: Collection[Capability] = tuple(Capability),
) -> dict[str, Result]:
    """Run each behaviour on its own place, and return the results by id.

    Behaviours that need other capabilities than ``capabilities`` are not offered.
    """
    results = {}
    for behaviour in behaviours:
        missing = behaviour.needs.difference(capabilities)
        undeclared = Result(Outcome.NOT_OFFERED, f"no {', '.join(sorted(missing))}")
        results[behaviour.id] = undeclared if missing else behaviour.run(*place())
    return results


def directory(location: str) -> str:
    """Return a location relative to the root.

    It is the last part, below a directory ``{database}.db`` if there is one.
    """
    path = unquote(urlsplit(location).path) if "://" in location else location
    *_, above, name = ("", *path.rstrip("/").split("/"))
    return f"{above}/{name}" if above.endswith(".db") else name


def _names(page: Any) -> list[str]:
    names = page.tables if hasattr(page, "tables") else page.namespaces
    return list(names or [])


def bytes_of(data: pa.Table | bytes) -> bytes:
    """Return a table as an Arrow IPC stream."""
    if isinstance(data, bytes):
        return data
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data)
    return bytes(sink.getvalue())
