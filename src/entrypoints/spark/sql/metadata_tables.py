"""Show the state of a table as read-only tables, such as ``lake.t.history``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.application.catalog import Catalog, services_of
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.partitions import shown
from lancekeep.entrypoints.spark.internals.classes import CATALOG
from lancekeep.entrypoints.spark.internals.schemas import spark_of
from lancekeep.entrypoints.spark.sql.answers import Relation
from lancekeep.entrypoints.spark.sql.jvm import Jvm
from lancekeep.entrypoints.spark.sql.rows import Rows, RowsBuilder
from lancekeep.entrypoints.spark.sql.streams import given_options, refuse_options

_INSTANT = pa.timestamp("us", "UTC")
_MAIN = "main"
Row = tuple[Any, ...]


@attrs.frozen
class _Kind:
    """A metadata table.

    Attributes:
        schema: Its columns.
        rows: Computes its rows from the catalog, the table and the opened version.
        of_version: Whether it describes one version, and not the whole table.
    """

    schema: pa.Schema
    rows: Callable[[Catalog, ObjectId, Any], Iterable[Row]]
    of_version: bool = False


def _history(catalog: Catalog, table: ObjectId, _: Any) -> Iterator[Row]:
    for entry in catalog.versions.history(table):
        yield entry.version, entry.timestamp, entry.operation, entry.rows, entry.committer or None


def _versions(catalog: Catalog, table: ObjectId, dataset: Any) -> Iterator[Row]:
    for version in dataset.versions():
        found = version["metadata"]
        counts = ("total_rows", "total_fragments", "total_data_files", "total_deletion_file_rows", "total_files_size")
        numbers = [int(found[name]) if name in found else None for name in counts]
        yield version["version"], version["timestamp"].astimezone(UTC), *numbers


def _fragments(catalog: Catalog, table: ObjectId, dataset: Any) -> Iterator[Row]:
    for found in _stored(dataset):
        deleted = (found["deletion_file"] or {}).get("num_deleted_rows", 0)
        sizes = [file["file_size_bytes"] for file in found["files"]]
        size = None if None in sizes else sum(sizes)
        yield found["id"], found["physical_rows"] - deleted, deleted, len(found["files"]), size


def _files(catalog: Catalog, table: ObjectId, dataset: Any) -> Iterator[Row]:
    names = {field.id(): field.name() for field in _flat(dataset.lance_schema.fields())}
    for found in _stored(dataset):
        for file in found["files"]:
            columns = [names[number] for number in file["fields"] if number in names]
            form = f"{file['file_major_version']}.{file['file_minor_version']}"
            yield found["id"], "data", file["path"], file["file_size_bytes"], form, columns, None
        deletion = found["deletion_file"]
        if deletion:
            suffix = {"array": "arrow", "bitmap": "bin"}[deletion["file_type"].lower()]
            name = f"{found['id']}-{deletion['read_version']}-{deletion['id']}.{suffix}"
            yield found["id"], "deletion", name, None, None, None, deletion.get("num_deleted_rows")


def _indexes(catalog: Catalog, table: ObjectId, dataset: Any) -> Iterator[Row]:
    for index in services_of(catalog).engine.structure.indexes(dataset):
        counts = index.indexed_rows, index.unindexed_rows, index.segments, index.size
        yield index.name, list(index.columns), index.kind, *counts, index.created, index.uuid


def _tags(catalog: Catalog, table: ObjectId, _: Any) -> Iterator[Row]:
    for name, tag in catalog.tags.list(table).items():
        yield name, tag.branch or _MAIN, tag.version


def _branches(catalog: Catalog, table: ObjectId, _: Any) -> Iterator[Row]:
    for name, branch in sorted(catalog.branches.list(table).items()):
        yield name, branch.parent or _MAIN, branch.version, datetime.fromtimestamp(branch.created, UTC)


def _refs(catalog: Catalog, table: ObjectId, _: Any) -> Iterator[Row]:
    yield _MAIN, "BRANCH", _MAIN, catalog.open(table).version
    for name in sorted(catalog.branches.list(table)):
        yield name, "BRANCH", name, catalog.open(table, branch=name).version
    for name, branch, version in _tags(catalog, table, None):
        yield name, "TAG", branch, version


def _partitions(catalog: Catalog, table: ObjectId, _: Any) -> Iterator[Row]:
    for partition, dataset in catalog.partitions.open().scan().datasets():
        pairs = zip(partition.spec.fields, partition.values, strict=True)
        text = "/".join(f"{field.field_id}={'NULL' if value is None else shown(value)}" for field, value in pairs)
        counts = dataset.count_rows(), len(dataset.get_fragments())
        yield partition.spec.id, text, str(partition.table.id), dataset.version, *counts


def _stored(dataset: Any) -> Iterator[Mapping[str, Any]]:
    for fragment in dataset.get_fragments():
        yield fragment.metadata.to_json()


def _flat(fields: Iterable[Any]) -> Iterator[Any]:
    for field in fields:
        yield field
        yield from _flat(field.children())


def _columns(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


_LONG, _TEXT, _TEXTS = pa.int64(), pa.string(), pa.list_(pa.string())

PARTITIONS = "partitions"
"""The metadata table that only a partitioned table has."""

KINDS: Mapping[str, _Kind] = {
    "history": _Kind(
        _columns(version=_LONG, timestamp=_INSTANT, operation=_TEXT, rows=_LONG, committer=_TEXT), _history
    ),
    "versions": _Kind(
        _columns(
            version=_LONG,
            timestamp=_INSTANT,
            rows=_LONG,
            fragments=_LONG,
            data_files=_LONG,
            deleted_rows=_LONG,
            size=_LONG,
        ),
        _versions,
    ),
    "fragments": _Kind(
        _columns(fragment=_LONG, rows=_LONG, deleted_rows=_LONG, data_files=_LONG, size=_LONG), _fragments, True
    ),
    "files": _Kind(
        _columns(
            fragment=_LONG,
            content=_TEXT,
            path=_TEXT,
            size=_LONG,
            format_version=_TEXT,
            columns=_TEXTS,
            deleted_rows=_LONG,
        ),
        _files,
        True,
    ),
    "indexes": _Kind(
        _columns(
            name=_TEXT,
            columns=_TEXTS,
            type=_TEXT,
            indexed_rows=_LONG,
            unindexed_rows=_LONG,
            segments=_LONG,
            size=_LONG,
            created=_INSTANT,
            uuid=_TEXT,
        ),
        _indexes,
        True,
    ),
    "tags": _Kind(_columns(name=_TEXT, branch=_TEXT, version=_LONG), _tags),
    "branches": _Kind(_columns(name=_TEXT, parent_branch=_TEXT, parent_version=_LONG, created=_INSTANT), _branches),
    PARTITIONS: _Kind(
        _columns(spec=_LONG, partition=_TEXT, table=_TEXT, version=_LONG, rows=_LONG, fragments=_LONG), _partitions
    ),
    "refs": _Kind(_columns(name=_TEXT, type=_TEXT, branch=_TEXT, version=_LONG), _refs),
}


def require_version_allowed(kind: str, version: bool) -> None:
    """Check that a metadata table may be read at a version.

    Raises:
        InvalidInput: It describes all versions.
    """
    if version and not KINDS[kind].of_version:
        raise InvalidInput(f"{kind} describes all versions of a table; read it without VERSION or TIMESTAMP AS OF")


class MetadataTable(Relation):
    """A read-only table that shows the state of another.

    Without an opened version, it shows the published version of each partition, with the name of the partition's table.
    """

    class Java:
        implements = (CATALOG + "SupportsRead",)

    def __init__(self, jvm: Jvm, name: str, kind: str, catalog: Catalog, table: ObjectId, dataset: Any) -> None:
        self._jvm = jvm
        self._name = name
        self._kind = KINDS[kind]
        self._catalog = catalog
        self._table = table
        self._dataset = dataset
        self._shown = self._kind.schema
        if kind != PARTITIONS and dataset is None:
            self._shown = pa.schema([pa.field("partition", pa.string()), *self._shown])
        self._schema = jvm.struct(spark_of(self._shown))

    def properties(self) -> Any:
        return self._jvm.map({})

    def capabilities(self) -> Any:
        return self._jvm.set([self._jvm.java(CATALOG + "TableCapability").BATCH_READ])

    def newScanBuilder(self, options: Any) -> Any:
        refuse_options(self._name, given_options(options))
        return RowsBuilder(self._jvm, Rows(self._jvm, self._name, self._shown, self._computed))

    def _computed(self) -> pa.Table:
        names = self._shown.names
        return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in self._rows()], self._shown)

    def _rows(self) -> Iterator[Row]:
        if self._shown is self._kind.schema:
            yield from self._kind.rows(self._catalog, self._table, self._dataset)
            return
        for partition, dataset in self._catalog.partitions.open().scan().datasets():
            for row in self._kind.rows(self._catalog, partition.table.id, dataset):
                yield str(partition.table.id), *row
