"""Run SQL on tables of a catalog by DuckDB, which may read nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from itertools import count
from typing import Any, TypeVar

import attrs
import duckdb
import pyarrow as pa
import pyarrow.dataset as pds

from lancekeep.application.catalog import Catalog
from lancekeep.application.scratch import disk_directory
from lancekeep.domain.errors import InvalidInput, NotFound, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.cli.reading import chosen_version, parsed_time

_BATCH = 4096
_PAUSE = 0.05
"""The seconds between two interrupts of a statement, and between two looks for Ctrl-C."""
_MOST_NAMES = 3
"""The most names with points between them that DuckDB finds: a database, a schema and a table."""
_CLOSED = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""Settings without which SQL could read files, extensions and variables of this process."""

T = TypeVar("T")
Node = dict[str, Any]
Names = tuple[str, ...]


@attrs.frozen
class _Read:
    """A table that a statement reads.

    Attributes:
        path: Its names in the statement.
        view: The names of the view that DuckDB reads in its place.
        at: The version, as arguments of `Catalog.open`; empty for the latest.
    """

    path: Names
    view: Names
    at: Mapping[str, Any]


@contextmanager
def answer(catalog: Catalog, statement: str, message: Callable[[str], None]) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Yield the schema and the batches of the answer to a SELECT.

    Args:
        catalog: The catalog. All tables are read at one moment, if the catalog can take snapshots.
        statement: The statement.
        message: Takes what a person should know: the versions, and columns that SQL cannot read.

    Raises:
        InvalidInput: The statement is malformed, or is not one SELECT.
        NotFound: A table or a version does not exist.
    """
    with (
        disk_directory("query") as scratch,
        duckdb.connect(":memory:", config={**_CLOSED, "temp_directory": f"{scratch}/spilled"}) as connection,
        ThreadPoolExecutor(1) as worker,
    ):
        sources: list[_Source] = []

        def run(step: Callable[..., T], *arguments: Any) -> T:
            with _explained(sources):
                return _interruptible(connection, worker.submit(step, *arguments))

        with _explained(sources):
            select, reads = _analyzed(connection, statement)
            for read, dataset in _opened(catalog, reads, message):
                sources.append(_source(connection, dataset, ".".join(read.path), message))
                _define(connection, read.view, sources)
        connection.execute("SET lock_configuration = true")
        with closing(run(lambda: connection.sql(select).to_arrow_reader(_BATCH))) as reader:
            names = _distinct(reader.schema.names)
            fields = [field.with_name(name) for field, name in zip(reader.schema, names, strict=True)]
            batches = iter(lambda: run(next, reader, None), None)
            yield pa.schema(fields), (batch.rename_columns(names) for batch in batches)


def _interruptible(connection: Any, step: Future[T]) -> T:
    """Return the result of a step of DuckDB, which runs in another thread so that Ctrl-C reaches this one.

    A signal that arrives just before a wait does not end it, so no wait is long.
    """
    try:
        while not step.done():
            wait([step], _PAUSE)
        return step.result()
    except KeyboardInterrupt:
        while not step.done():  # an interrupt before the statement has started is lost
            connection.interrupt()
            wait([step], _PAUSE)
        raise


def _distinct(names: Sequence[str]) -> list[str]:
    """Number names that an answer has twice: rows as objects have each name once."""
    found: dict[str, None] = {}
    for name in names:
        known = (f"{name}_{number}" for number in count(1))
        found[name if name not in found else next(each for each in known if each not in {*found, *names})] = None
    return list(found)


# -- the statement -------------------------------------------------------------------------------------------------


def _analyzed(connection: Any, statement: str) -> tuple[str, list[_Read]]:
    """Return a statement for DuckDB and the tables that it reads."""
    [[text]] = connection.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
    parsed = json.loads(text)
    if parsed["error"]:
        is_other = parsed["error_type"] == "not implemented"
        raise InvalidInput(
            "query runs one SELECT, which changes nothing. Use another command to change the catalog"
            if is_other
            else f"the SQL is malformed: {parsed['error_message']}"
        )
    if len(parsed["statements"]) != 1:
        raise InvalidInput(f"query runs one SELECT, and found {len(parsed['statements'])} statements")
    reads: dict[Names, _Read] = {}
    is_rewritten = False
    for node in _tables_of(parsed):
        at_clause = node["at_clause"]
        path: Names = tuple(node["qualified_name"]["path"])
        read = _Read(path, path, {})
        if at_clause is not None:
            is_rewritten = True
            read = _read_at(path, at_clause)
            node["alias"] = node["alias"] or path[-1]
            node |= {"at_clause": None, "table_name": read.view[-1], "qualified_name": {"path": list(read.view)}}
        other = reads.setdefault(tuple(each.casefold() for each in read.view), read)
        if other.view != read.view or other.path != path:
            raise InvalidInput(
                f"{'.'.join(other.path)} and {'.'.join(path)} differ only in case, and SQL ignores case. Query one of "
                "them, and export the other"
            )
    if is_rewritten:
        [[statement]] = connection.execute("SELECT json_deserialize_sql(?)", [json.dumps(parsed)]).fetchall()
    return statement, list(reads.values())


def _tables_of(node: Any) -> Iterator[Node]:
    """Find the tables in a parsed statement, also the names of its WITH clauses."""
    stack = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, list):
            stack.extend(each)
        elif isinstance(each, dict):
            stack.extend(each.values())
            if each.get("type") == "BASE_TABLE":
                yield each


def _read_at(path: Names, at_clause: Node) -> _Read:
    """Return what a table with ``AT (VERSION => …)`` or ``AT (TIMESTAMP => …)`` reads."""
    value = at_clause["expr"].get("literal", {}).get("text")
    if value is None:
        raise InvalidInput(
            f"{'.'.join(path)}: write AT (VERSION => 3), AT (VERSION => 'tag') or AT (TIMESTAMP => '2d')"
        )
    if at_clause["unit"] == "VERSION":
        at = chosen_version(value, None, None)
    else:
        at = chosen_version(None, None, parsed_time(value))
    return _Read(path, (*path[:-1], f"{path[-1]} AT ({at_clause['unit']} => {value})"), at)


# -- tables --------------------------------------------------------------------------------------------------------


def _opened(catalog: Catalog, reads: Sequence[_Read], message: Callable[[str], None]) -> Iterator[tuple[_Read, Any]]:
    """Open tables; names that are no table may be the names of a WITH clause, or of DuckDB itself."""
    found = [(read, object_id) for read in reads if (object_id := _identified(catalog, read)) is not None]
    latest = [object_id for read, object_id in found if not read.at]
    try:
        opened: Callable[[ObjectId], Any] = catalog.snapshot(latest).open
    except Unsupported:  # a server has the catalog
        opened = catalog.open
    for read, object_id in found:
        if len(read.path) > _MOST_NAMES:
            raise InvalidInput(f'SQL has no names of {len(read.path)} parts. Write "{object_id}" between double quotes')
        dataset = catalog.open(object_id, **read.at) if read.at else opened(object_id)
        message(f"Read {object_id} at version {dataset.version}.")
        yield read, dataset


def _identified(catalog: Catalog, read: _Read) -> ObjectId | None:
    """Return the table of names in SQL; a quoted name may be a whole identifier."""
    candidates = (read.path, tuple(".".join(read.path).split(".")))
    for names in dict.fromkeys(candidates):
        try:
            object_id = ObjectId.of(names)
        except InvalidInput:
            continue
        if catalog.table_exists(object_id):
            return object_id
    return None


class _Source(pds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The rows of a version, of which DuckDB asks for columns and rows with a filter.

    Attributes:
        schema: The columns that DuckDB can read.
        failure: The error of the engine, of which DuckDB reports only the text.
    """

    schema: Any = None  # in place of the property of the class

    def __init__(self, dataset: Any, schema: Any) -> None:
        """Create the source. The class of pyarrow is only an interface here, as it is for Lance."""
        self._dataset = dataset
        self.schema = schema
        self.failure: BaseException | None = None

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> _Scan:  # noqa: A002 - pylance's name
        """Return a scan.

        Lance applies the filter if it knows all of its expressions. It may keep more rows than DuckDB asks for, because
        for it a negative NaN is less than all numbers, so Arrow applies the filter again.
        """
        try:
            chosen = list(self.schema.names if columns is None else columns)
            needed = list(dict.fromkeys((*chosen, *self._named(filter))))
            try:
                scanner = self._dataset.scanner(columns=needed, filter=filter)
                scanner.explain_plan()
            except (ValueError, OSError, pa.ArrowException):
                if filter is None:
                    raise
                scanner = self._dataset.scanner(columns=needed)
            schema, batches = scanner.projected_schema, scanner.to_batches()
            if filter is not None:
                schema = pa.schema([schema.field(name) for name in chosen])
                batches = (batch.filter(filter).select(chosen) for batch in batches)
            return _Scan(schema, self._kept(batches))
        except Exception as error:
            self.failure = error
            raise

    def _named(self, filter: Any) -> Iterator[str]:  # noqa: A002 - as in scanner
        """Find the columns of a filter in its text, which may have the names of others too."""
        text = "" if filter is None else str(filter)
        return (name for name in self.schema.names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))

    def _kept(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except Exception as error:
            self.failure = error
            raise


@attrs.frozen
class _Scan:
    """The part of a scanner of pyarrow that DuckDB needs.

    pyarrow's own reads ahead in threads, which continue after the end of the answer.

    Attributes:
        projected_schema: The columns.
        batches: The rows.
    """

    projected_schema: Any
    batches: Iterator[Any]

    def to_reader(self) -> Any:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.batches)


def _source(connection: Any, dataset: Any, name: str, message: Callable[[str], None]) -> _Source:
    """Return the rows of a dataset without columns whose types DuckDB does not have."""
    schema = dataset.scanner().projected_schema  # in which blobs are descriptions
    if not _reads(connection, schema):
        hidden = [field for field in schema if not _reads(connection, pa.schema([field]))]
        schema = pa.schema([field for field in schema if field not in hidden])
        names = ", ".join(f"{field.name} ({field.type})" for field in hidden)
        message(f"DuckDB does not have the types of these columns of {name}, and cannot read them: {names}.")
        if not len(schema):
            raise InvalidInput(f"DuckDB has the type of no column of {name}")
    return _Source(dataset, schema)


def _reads(connection: Any, schema: Any) -> bool:
    try:
        connection.from_arrow(schema.empty_table())
    except (duckdb.Error, pa.ArrowException):
        return False
    return True


def _define(connection: Any, view: Names, sources: Sequence[_Source]) -> None:
    """Make the last source a view of a database, a schema or neither."""
    registered = f"lancekeep/{len(sources)}"  # which is no name of a catalog
    connection.register(registered, sources[-1])
    *parents, _ = view
    match parents:
        case [database, schema]:
            connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {_quoted(database)}")
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(database)}.{_quoted(schema)}")
        case [schema]:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
    name = ".".join(map(_quoted, view))
    connection.execute(f'CREATE VIEW {name} AS FROM temp.main."{registered}"')


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _explained(sources: Sequence[_Source]) -> Iterator[None]:
    """Raise the error of the engine, or the error of DuckDB as one about the statement."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # of a stream, pyarrow reports only the text
        for source in sources:
            if source.failure is not None:
                raise source.failure from error
        text = re.sub(r"^[A-Z][A-Za-z ]* Error: ", "", str(error).partition("\n")[0]).rstrip("!.")
        if isinstance(error, duckdb.CatalogException):
            raise NotFound(f"{text}. `lancekeep ls -r` lists the tables") from error
        if "system catalog" in text or "Ambiguous reference to catalog or schema" in text:
            raise InvalidInput(f'{text}. Write the whole name between double quotes: "ml.t"') from error
        raise InvalidInput(f"DuckDB cannot run this: {text}") from error
