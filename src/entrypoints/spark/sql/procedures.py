"""Implement the procedures of ``CALL lake.system``.

Spark parses, binds and checks the arguments. A procedure runs in the driver when Spark analyses the statement, and its
result is rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.partition_rules import DATASET
from lancekeep.entrypoints.spans import SPANS, parsed_span
from lancekeep.entrypoints.spark.internals.classes import PROCEDURE, TYPE
from lancekeep.entrypoints.spark.jobs.compact import compact
from lancekeep.entrypoints.spark.jobs.index import index
from lancekeep.entrypoints.spark.jobs.upsert import upsert
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy
from lancekeep.entrypoints.spark.sql.metadata_tables import PARTITIONS
from lancekeep.entrypoints.spark.sql.partitioned import is_partitioned
from lancekeep.entrypoints.spark.sql.rows import Rows
from lancekeep.entrypoints.spark.sql.statistics import analyzed, property_of, stored

NAMESPACE = "system"
_TYPES = {
    "text": '"string"',
    "texts": '{"type":"array","elementType":"string","containsNull":false}',
    "map": '{"type":"map","keyType":"string","valueType":"string","valueContainsNull":false}',
    "number": '"long"',
    "flag": '"boolean"',
    "instant": '"timestamp"',
    "span": '"string"',  # Spark 4.3 resolves a parameter with the type of an interval again and again
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = tuple[Any, ...]


@attrs.frozen
class Call:
    """The context of a call.

    Attributes:
        spark: The session that runs the statement.
        catalog: The catalog.
        name: The name of the catalog in SQL.
        arguments: The arguments by name; None if not given.
    """

    spark: SparkSession
    catalog: Catalog
    name: str
    arguments: Mapping[str, Any]

    def __getitem__(self, argument: str) -> Any:
        return self.arguments[argument]

    def given(self, *names: str) -> dict[str, Any]:
        """Return the arguments that were given."""
        return {name: self.arguments[name] for name in names if self.arguments[name] is not None}

    @property
    def table(self) -> ObjectId:
        """The table, which may be named with the catalog or without it.

        Raises:
            Unsupported: It is the table of all partitions.
        """
        if self._is_partitioned:
            raise Unsupported(
                f"{self.name}.{self._named} has no single version: it is all partitions of the catalog; nothing was "
                "changed. Call the procedure for the table of a partition. Their names are in "
                f"{self.name}.{self._named}.{PARTITIONS}."
            )
        return self._named

    @property
    def tables(self) -> list[ObjectId]:
        """The table; of the table of all partitions, the table of each partition."""
        if not self._is_partitioned:
            return [self._named]
        return sorted(partition.table.id for partition in self.catalog.partitions.open().scan().partitions)

    @property
    def _named(self) -> ObjectId:
        table = ObjectId.of(self.arguments["table"])
        first, *rest = table.names
        return ObjectId(tuple(rest)) if rest and first == self.name else table

    @property
    def _is_partitioned(self) -> bool:
        return self._named.names == (DATASET,) and is_partitioned(self.catalog)


@attrs.frozen
class Definition:
    """A procedure.

    Attributes:
        parameters: The names of its parameters with their types; types with ``?`` are optional.
        result: The columns of its rows.
        run: Runs it and returns rows.
    """

    parameters: Mapping[str, str]
    result: pa.Schema
    run: Callable[[Call], Iterable[Row]]


# -- upkeep ---------------------------------------------------------------------------------------------------------


def _compact(call: Call) -> Iterable[Row]:
    for table in call.tables:
        done = compact(call.spark, call.catalog, table, **call.given("target_rows"))
        yield done.before, done.version, done.rows


def _cleanup(call: Call) -> Iterable[Row]:
    tables = None if call["table"] is None else call.tables
    given = call.given("keep", "grace", "dry_run")
    for done in call.catalog.upkeep.cleanup(call["older_than"], tables=tables, **given).tables:
        yield done.table, done.branch or None, list(done.versions), done.files, done.bytes


def _optimize(call: Call) -> Iterable[Row]:
    for table in call.tables:
        done = compact(call.spark, call.catalog, table, **call.given("target_rows"))
        found = call.catalog.structure.indexes(table, None, None)
        names = [each.name for each in found if each.unindexed_rows]
        version = call.catalog.structure.merge_indexes(table, names).version if names else done.version
        yield done.before, version, done.rows, names


def _fsck(call: Call) -> Iterable[Row]:
    tables = None if call["table"] is None else call.tables
    for found in call.catalog.upkeep.fsck(tables=tables, **call.given("repair", "deep")).findings:
        yield str(found.kind.value), found.object, found.meaning, found.repair or None, found.repaired


def _migrate(call: Call) -> Iterable[Row]:
    done = call.catalog.upkeep.migrate(**call.given("dry_run"))
    yield from ((str(table), True, None) for table in done.registered)
    yield from ((skipped.location, False, skipped.reason) for skipped in done.skipped)


def _register_table(call: Call) -> Iterable[Row]:
    call.catalog.register_table(call.table, call["location"])
    yield (call.catalog.open(call.table).version,)


# -- indexes and columns --------------------------------------------------------------------------------------------


def _create_index(call: Call) -> Iterable[Row]:
    given = call.given("name", "metric", "partitions", "sub_vectors", "replace")
    for table in call.tables:
        done = index(call.spark, call.catalog, table, call["column"], call["type"].upper(), **given)
        yield done.before, done.version


def _drop_index(call: Call) -> Iterable[Row]:
    structure, name = call.catalog.structure, call["name"]
    having = [table for table in call.tables if name in [each.name for each in structure.indexes(table, None, None)]]
    for table in having or call.tables[:1]:
        yield (structure.drop_index(table, name, None).version,)


def _add_columns(call: Call) -> Iterable[Row]:
    yield (call.catalog.structure.add_columns(call.table, call["columns"], None).version,)


# -- versions -------------------------------------------------------------------------------------------------------


def _rollback_to_version(call: Call) -> Iterable[Row]:
    return _rollback(call, call["version"])


def _rollback_to_timestamp(call: Call) -> Iterable[Row]:
    return _rollback(call, call.catalog.versions.at(call.table, call["timestamp"]))


def _rollback(call: Call, target: int) -> Iterable[Row]:
    before = call.catalog.open(call.table).version
    yield before, call.catalog.versions.restore(call.table, target).version, target


def _create_tag(call: Call) -> Iterable[Row]:
    version = call.catalog.open(call.table, call["version"], branch=call["branch"]).version
    call.catalog.tags.create(call.table, call["tag"], version, call["branch"])
    yield call["tag"], version


def _drop_tag(call: Call) -> Iterable[Row]:
    call.catalog.tags.delete(call.table, call["tag"])
    yield (call["tag"],)


def _create_branch(call: Call) -> Iterable[Row]:
    call.catalog.branches.create(call.table, call["branch"], None, call["version"])
    yield call["branch"], call.catalog.branches.list(call.table)[call["branch"]].version


def _drop_branch(call: Call) -> Iterable[Row]:
    call.catalog.branches.delete(call.table, call["branch"])
    yield (call["branch"],)


def _fast_forward(call: Call) -> Iterable[Row]:
    yield call["branch"], call.catalog.branches.fast_forward(call.table, call["branch"]).version


# -- statistics -----------------------------------------------------------------------------------------------------


def _analyze(call: Call) -> Iterable[Row]:
    table, dataset = call.table, call.catalog.open(call.table)
    name = ".".join(f"`{part}`" for part in (call.name, *table.names))
    rows = call.spark.sql(f"SELECT * FROM {name} VERSION AS OF {dataset.version}")
    found = analyzed(rows, dataset, call["columns"])
    others = set() if call["columns"] else stored(call.catalog.find_table(table).properties).keys() - found.keys()
    kept = {property_of(column): each.text for column, each in found.items()}
    call.catalog.alter_table(table, kept, map(property_of, others))
    for column, each in found.items():
        yield column, each.version, each.rows, each.distinct, each.nulls, each.least, each.greatest


# -- rows -----------------------------------------------------------------------------------------------------------


def _upsert_from(call: Call) -> Iterable[Row]:
    done = upsert(call.catalog, call.table, call.spark.table(call["source"]), on=call["on"])
    yield done.before, done.version, done.counts.get("updated", 0), done.counts.get("inserted", 0)


def _columns(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


_LONG, _TEXT, _FLAG = pa.int64(), pa.string(), pa.bool_()
_TABLE = {"table": "text"}
_VERSION = _columns(version=_LONG)
_VERSIONS = _columns(previous_version=_LONG, version=_LONG)

PROCEDURES: Mapping[str, Definition] = {
    "analyze": Definition(
        _TABLE | {"columns": "texts?"},
        _columns(column=_TEXT, version=_LONG, rows=_LONG, distinct=_LONG, nulls=_LONG, least=_TEXT, greatest=_TEXT),
        _analyze,
    ),
    "add_columns": Definition(_TABLE | {"columns": "map"}, _VERSION, _add_columns),
    "cleanup": Definition(
        {"older_than": "span", "table": "text?", "keep": "number?", "grace": "span?", "dry_run": "flag?"},
        _columns(table=_TEXT, branch=_TEXT, versions=pa.list_(_LONG), files=_LONG, bytes=_LONG),
        _cleanup,
    ),
    "compact": Definition(
        _TABLE | {"target_rows": "number?"},
        _columns(previous_version=_LONG, version=_LONG, rewritten_rows=_LONG),
        _compact,
    ),
    "create_branch": Definition(
        _TABLE | {"branch": "text", "version": "number?"}, _columns(branch=_TEXT, version=_LONG), _create_branch
    ),
    "create_index": Definition(
        _TABLE
        | {
            "column": "text",
            "type": "text",
            "name": "text?",
            "metric": "text?",
            "partitions": "number?",
            "sub_vectors": "number?",
            "replace": "flag?",
        },
        _VERSIONS,
        _create_index,
    ),
    "create_tag": Definition(
        _TABLE | {"tag": "text", "version": "number?", "branch": "text?"},
        _columns(tag=_TEXT, version=_LONG),
        _create_tag,
    ),
    "drop_branch": Definition(_TABLE | {"branch": "text"}, _columns(branch=_TEXT), _drop_branch),
    "drop_index": Definition(_TABLE | {"name": "text"}, _VERSION, _drop_index),
    "drop_tag": Definition(_TABLE | {"tag": "text"}, _columns(tag=_TEXT), _drop_tag),
    "fast_forward": Definition(_TABLE | {"branch": "text"}, _columns(branch=_TEXT, version=_LONG), _fast_forward),
    "fsck": Definition(
        {"table": "text?", "repair": "flag?", "deep": "flag?"},
        _columns(kind=_TEXT, object=_TEXT, meaning=_TEXT, repair=_TEXT, repaired=_FLAG),
        _fsck,
    ),
    "migrate": Definition({"dry_run": "flag?"}, _columns(table=_TEXT, registered=_FLAG, reason=_TEXT), _migrate),
    "optimize": Definition(
        _TABLE | {"target_rows": "number?"},
        _columns(previous_version=_LONG, version=_LONG, rewritten_rows=_LONG, indexes=pa.list_(_TEXT)),
        _optimize,
    ),
    "register_table": Definition(_TABLE | {"location": "text"}, _VERSION, _register_table),
    "rollback_to_timestamp": Definition(
        _TABLE | {"timestamp": "instant"},
        _columns(previous_version=_LONG, version=_LONG, restored_version=_LONG),
        _rollback_to_timestamp,
    ),
    "rollback_to_version": Definition(
        _TABLE | {"version": "number"},
        _columns(previous_version=_LONG, version=_LONG, restored_version=_LONG),
        _rollback_to_version,
    ),
    "upsert_from": Definition(
        _TABLE | {"source": "text", "on": "texts?"},
        _columns(previous_version=_LONG, version=_LONG, updated=_LONG, inserted=_LONG),
        _upsert_from,
    ),
}


class Procedure(Proxy):
    """A procedure as Spark binds and calls it."""

    class Java:
        implements = (PROCEDURE + "SimpleProcedure",)

    def __init__(self, jvm: Jvm, catalog_name: str, name: str, catalog: Catalog) -> None:
        self._jvm = jvm
        self._catalog_name = catalog_name
        self._name = name
        self._definition = PROCEDURES[name]
        self._catalog = catalog

    def name(self) -> str:
        return self._name

    def description(self) -> str:
        return f"{self._catalog_name}.{NAMESPACE}.{self._name}({', '.join(self._definition.parameters)})"

    def bind(self, types: Any) -> Procedure:
        return self

    def isDeterministic(self) -> bool:
        return False

    def parameters(self) -> Any:
        kind, types = PROCEDURE + "ProcedureParameter", self._jvm.java(TYPE)
        built = []
        for name, type_name in self._definition.parameters.items():
            builder = getattr(self._jvm.java(kind), "in")(name, types.fromJson(_TYPES[type_name.removesuffix("?")]))
            built.append((builder.defaultValue("NULL") if type_name.endswith("?") else builder).build())
        return self._jvm.array(kind, built)

    def call(self, row: Any) -> Any:
        arguments = {}
        for at, (name, type_name) in enumerate(self._definition.parameters.items()):
            arguments[name] = None if row.isNullAt(at) else _argument(row, at, type_name.removesuffix("?"))
            if arguments[name] is None and not type_name.endswith("?"):
                raise InvalidInput(f"{self.description()}: the argument {name} is NULL; give a value")
        spark = SparkSession.getActiveSession() or self._jvm.spark
        rows = self._definition.run(Call(spark, self._catalog, self._catalog_name, arguments))
        names = self._definition.result.names
        table = pa.Table.from_pylist([dict(zip(names, each, strict=True)) for each in rows], self._definition.result)
        results = self._jvm.java("java.util.ArrayList")()
        results.add(Rows(self._jvm, self.description(), table.schema, lambda: table))
        return results.iterator()


def _argument(row: Any, at: int, kind: str) -> Any:
    match kind:
        case "text":
            return row.getUTF8String(at).toString()
        case "number":
            return row.getLong(at)
        case "flag":
            return row.getBoolean(at)
        case "instant":
            return _EPOCH + timedelta(microseconds=row.getLong(at))
        case "span":
            return _span(row.getUTF8String(at).toString())
        case "texts":
            return _texts(row.getArray(at))
    pairs = row.getMap(at)
    return dict(zip(_texts(pairs.keyArray()), _texts(pairs.valueArray()), strict=True))


def _span(text: str) -> timedelta:
    found = parsed_span(text)
    if found is None:
        raise InvalidInput(f"{text!r} is not a time span; expected {SPANS}")
    return found


def _texts(array: Any) -> list[str]:
    return [array.getUTF8String(at).toString() for at in range(array.numElements())]
