"""Versions of the manifest table: reading one into an index, and preparing the next.

Only the object store is asked; pylance encodes and decodes the data files, save the small ones of every day. What a
version shares with the one read before is not read again.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter
from pyroaring import BitMap, FrozenBitMap

from lancekeep.adapters.manifest_stores import data_file
from lancekeep.adapters.manifest_stores.columns import enter_columns
from lancekeep.adapters.manifest_stores.index import (
    OWN_COLUMNS,
    SMALL,
    UNWRITTEN,
    EntryRows,
    Fragment,
    IndexedView,
    Piece,
    Rows,
    column_of,
)
from lancekeep.adapters.manifest_stores.table_file import DataFragment, TableFile, Transaction
from lancekeep.domain.errors import Damaged, InvalidInput, LancekeepError, Refused
from lancekeep.domain.layout import VERSIONS
from lancekeep.ports.object_store import ObjectStore

PRIMARY_KEY = "lance-schema:unenforced-primary-key:position"
READER_FLAGS = "lance.namespace.manifest.reader_feature_flags"
WRITER_FLAGS = "lance.namespace.manifest.writer_feature_flags"
SCHEMA = pa.schema(
    [
        pa.field("object_id", pa.string(), nullable=False, metadata={PRIMARY_KEY: "0"}),
        pa.field("object_type", pa.string(), nullable=False),
        pa.field("location", pa.string()),
        pa.field("metadata", pa.string()),
        pa.field("base_objects", pa.list_(pa.field("object_id", pa.string()))),
    ]
)
REQUIRED = ("object_id", "object_type")

_DELETION_FILES = 1
_READABLE = _DELETION_FILES | 2 | 4 | 8  # stable row ids, the V2 format, table configuration
_WRITABLE = _DELETION_FILES | 4 | 8
_ARROW, _BITMAP = 0, 1
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where files that the engine shall encode or decode are put: in memory, where the system has a place for that."""
_MOST_AT_ONCE = 2**31 - 1
_MOST_DELETED = 4096
"""A fragment with more deleted rows is written anew, so that deletion files stay small."""


@attrs.frozen
class Version:
    """A version of the manifest table: its manifest, and what is in it."""

    number: int
    file: TableFile
    view: IndexedView


@attrs.frozen
class Prepared:
    """The next version: it exists once ``content`` lies under its name. keys: the files it needs, written already."""

    version: Version
    content: bytes
    keys: Sequence[str]


class TableVersions:
    """``key``: the directory of the manifest table in ``objects``."""

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects = objects
        self._key = key

    @cached_property
    def _scratch(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="lancekeep-", dir=_MEMORY, ignore_cleanup_errors=True)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, content: bytes, previous: Version | None) -> Version:
        """The version that a manifest describes, sharing rows with ``previous``.

        Raises `Damaged` where it is no manifest table, and `Refused` where it needs what is not known here.
        """
        try:
            return self._read(content, previous)
        except InvalidInput as error:  # a path that a manifest names is nobody's input
            raise Damaged(f"{self._key}: version is not readable: {error}") from error
        except LancekeepError:
            raise
        except (ArithmeticError, LookupError, OSError, TypeError, ValueError, MemoryError, pa.ArrowException) as error:
            raise Damaged(
                f"{self._key}: a file of the manifest table cannot be read ({error!r:.200}). Restore the table, or an "
                "older version of it with pylance."
            ) from error

    def _read(self, content: bytes, previous: Version | None) -> Version:
        file = TableFile.parse(content, f"{self._key}/{VERSIONS}")
        manifest = file.manifest
        properties = {item.key: item.value for item in manifest.table_metadata}
        flags = manifest.reader_feature_flags
        self._require_known("reader_feature_flags", flags, _READABLE, properties, READER_FLAGS)
        names = [field.name for field in manifest.fields if field.parent_id < 0]
        missing = set(OWN_COLUMNS) - set(names)
        if missing:
            raise Damaged(f"{self._key} is not a manifest table: it has no column {', '.join(sorted(missing))}")
        if previous is not None and list(previous.file.manifest.fields) != list(manifest.fields):
            previous = None
        known = {} if previous is None else {fragment.paths: fragment for fragment in previous.view.fragments}
        unknown = (fragment for fragment in manifest.fragments if _paths(fragment) not in known)
        read = {fragment.id: self._columns(fragment, manifest) for fragment in unknown}
        schema = _schema(names, read.values(), previous)
        if previous is not None and schema != previous.view.schema:
            return self._read(content, None)  # a column of an extension has its first value
        fragments = tuple(
            self._fragment(fragment, read.get(fragment.id), schema, known) for fragment in manifest.fragments
        )
        return Version(manifest.version, file, IndexedView(manifest.version, properties, fragments, schema))

    def _fragment(
        self,
        fragment: Any,
        columns: dict[str, pa.ChunkedArray] | None,
        schema: pa.Schema,
        previous: Mapping[tuple[str, ...], Fragment],
    ) -> Fragment:
        key = _paths(fragment)
        deletion = _deletion(fragment)
        known = previous.get(key)
        if known is not None and known.deletion == deletion:
            return attrs.evolve(known, id=fragment.id)
        deleted = self._deleted(fragment)
        if known is not None:
            return attrs.evolve(known, id=fragment.id, deletion=deletion, deleted=deleted)
        batch = _without_empty_columns(_aligned(columns or {}, schema))
        return Fragment(fragment.id, key, tuple(_pieces(batch, previous.values())), deletion, deleted)

    def _columns(self, fragment: Any, manifest: Any) -> dict[str, pa.ChunkedArray]:
        """The columns that the data files of a fragment hold, under the names that the manifest gives them."""
        columns: dict[str, pa.ChunkedArray] = {}
        roots = _roots(manifest)
        for file in fragment.files:
            if file.HasField("base_id"):
                raise Refused(f"{self._key}: the data file {file.path} lies in another table; that is not supported")
            table = self._decoded(self._objects.get(f"{self._key}/data/{file.path}"), fragment.physical_rows)
            names = list(dict.fromkeys(roots[number] for number in file.fields if number in roots))
            if len(names) != table.num_columns:
                raise Damaged(
                    f"{self._key}/data/{file.path} holds {table.num_columns} columns where the manifest knows "
                    f"{len(names)}; compact the table with pylance"
                )
            if table.num_rows != fragment.physical_rows:
                raise Damaged(
                    f"{self._key}/data/{file.path} holds {table.num_rows} rows where the manifest knows "
                    f"{fragment.physical_rows}"
                )
            columns.update(zip(names, table.columns, strict=True))
        incomplete = [name for name in REQUIRED if name not in columns or columns[name].null_count]
        if incomplete and fragment.physical_rows:
            raise Damaged(f"{self._key}: the fragment {fragment.id} has rows without {' and '.join(incomplete)}")
        return columns

    def _deleted(self, fragment: Any) -> FrozenBitMap:
        if not fragment.HasField("deletion_file"):
            return FrozenBitMap()
        file = fragment.deletion_file
        content = self._objects.get(self._deletion_key(fragment.id, file))
        if file.file_type == _BITMAP:
            return FrozenBitMap(BitMap.deserialize(content))
        return FrozenBitMap(pa.ipc.open_file(pa.py_buffer(content)).read_all().column(0).to_pylist())

    # -- writing ------------------------------------------------------------------------------------------------

    def prepare(self, base: Version, view: IndexedView) -> Prepared:
        """Write the files of the version behind ``base`` in which the catalog is as ``view`` shows it.

        New rows become one fragment. Fragments at the end that are not much larger are merged into it, so that their
        number grows with the logarithm of the rows; index metadata, unknown columns and configuration are kept.
        """
        manifest = base.file.manifest
        flags = manifest.writer_feature_flags
        self._require_known("writer_feature_flags", flags, _WRITABLE, base.view.properties, WRITER_FLAGS)
        kept, merged = _merge(view.fragments)
        keys: list[str] = []
        new: list[tuple[Fragment, Any]] = []
        following = type(manifest)()
        following.CopyFrom(manifest)
        schema = view.schema
        if schema is not base.view.schema:
            schema = enter_columns(following, schema, _example(schema, manifest.data_format.version).manifest)
        rows = _rows(merged, schema)
        if len(rows):
            new.append(self._write_fragment(rows, schema, following, keys))
        before = {fragment.id: fragment for fragment in base.view.fragments}
        changed = [fragment for fragment in kept if fragment.deleted != before[fragment.id].deleted]
        replaced = {fragment.id: self._write_deletions(fragment, base, keys) for fragment in changed}
        kept = [replaced[fragment.id][0] if fragment.id in replaced else fragment for fragment in kept]

        messages = {message.id: message for message in manifest.fragments}
        messages.update({fragment_id: message for fragment_id, (_, message) in replaced.items()})
        messages.update({fragment.id: message for fragment, message in new})
        fragments = (*kept, *(fragment for fragment, _ in new))
        del following.fragments[:]
        following.fragments.extend(messages[fragment.id] for fragment in fragments)
        for fragment, _ in new:
            following.max_fragment_id = fragment.id
        _advance(following, base.number + 1, view, deletions=any(fragment.deleted for fragment in fragments))
        removed = [
            fragment.id for fragment in base.view.fragments if fragment.id not in {kept.id for kept in fragments}
        ]
        transaction = _transaction(
            base,
            following,
            removed=removed,
            updated=[message for _, message in replaced.values()],
            new=[message for _, message in new],
        )
        file = TableFile(following, base.file.indexes)
        content = file.serialize(transaction)
        after = attrs.evolve(view, version=base.number + 1, fragments=fragments, schema=schema)
        return Prepared(Version(base.number + 1, file, after), content, keys)

    def discard(self, prepared: Prepared) -> None:
        """Remove the files of a version that did not come to be."""
        for key in prepared.keys:
            self._objects.delete(key)

    def _write_fragment(self, rows: Rows, schema: pa.Schema, manifest: Any, keys: list[str]) -> tuple[Fragment, Any]:
        content, example = self._encoded(rows, schema, manifest.data_format.version)
        name = f"{uuid4().hex}.lance"
        keys.append(f"{self._key}/data/{name}")
        self._objects.put(keys[-1], content)

        message = DataFragment(id=_next_fragment_id(manifest), physical_rows=len(rows))
        file = message.files.add()
        file.CopyFrom(example.manifest.fragments[0].files[0])
        names = set(_roots(example.manifest).values())
        own = [number for number, root in _roots(manifest).items() if root in names]
        ids = dict(zip((field.id for field in example.manifest.fields), own, strict=True))
        file.fields[:] = [ids[number] for number in file.fields]
        file.path, file.file_size_bytes = name, len(content)
        return Fragment(message.id, (name,), (Piece(rows),)), message

    def _write_deletions(self, fragment: Fragment, base: Version, keys: list[str]) -> tuple[Fragment, Any]:
        message = DataFragment()
        message.CopyFrom(next(known for known in base.file.manifest.fragments if known.id == fragment.id))
        file = message.deletion_file
        file.Clear()
        file.file_type, file.read_version, file.id = _ARROW, base.number, random.getrandbits(63)
        file.num_deleted_rows = len(fragment.deleted)
        offsets = pa.array(list(fragment.deleted), pa.uint32())
        table = pa.table([offsets], schema=pa.schema([pa.field("row_id", pa.uint32(), nullable=False)]))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        keys.append(self._deletion_key(message.id, file))
        self._objects.put(keys[-1], sink.getvalue().to_pybytes())
        return attrs.evolve(fragment, deletion=_deletion(message)), message

    # -- inside -------------------------------------------------------------------------------------------------

    def _deletion_key(self, fragment_id: int, file: Any) -> str:
        suffix = "bin" if file.file_type == _BITMAP else "arrow"
        return f"{self._key}/_deletions/{fragment_id}-{file.read_version}-{file.id}.{suffix}"

    def _encoded(self, rows: Rows, schema: pa.Schema, storage_version: str) -> tuple[bytes, _Example]:
        """A data file with these rows, and an example of one with the same columns."""
        texts = rows.texts() if storage_version == data_file.STORAGE_VERSION else None
        if texts is not None:
            example = _example(pa.schema([schema.field(name) for name in texts]), storage_version)
            content = data_file.encode(list(texts.values()), example.columns)
            if content is not None:
                return content, example
        filled = _without_empty_columns(rows.batch)
        with self._scratch_file() as path:
            with LanceFileWriter(str(path), filled.schema, version=storage_version) as writer:
                writer.write_batch(filled)
            return path.read_bytes(), _example(filled.schema, storage_version)

    def _decoded(self, content: bytes, rows: int) -> pa.Table:
        texts = data_file.decode(content)
        if texts is not None:
            return pa.table([pa.array(column, pa.string()) for column in texts], [str(n) for n in range(len(texts))])
        with self._scratch_file() as path:
            path.write_bytes(content)
            return _read_data_file(str(path), rows)

    @contextmanager
    def _scratch_file(self) -> Iterator[Path]:
        """A path for a file that the engine shall write or read: what it does need not work with any object store."""
        path = Path(self._scratch.name, uuid4().hex)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _require_known(self, name: str, flags: int, known: int, properties: Mapping[str, str], gate: str) -> None:
        """A bit that is not known means that something is required which is not done here."""
        gated = properties.get(gate, "0")
        unknown = f"{name} = {flags & ~known}" if flags & ~known else f"{gate} = {gated}"
        if flags & ~known or gated != "0":
            raise Refused(
                f"{self._key} requires features that this version of Lancekeep does not know ({unknown}); "
                "use a newer version"
            )


def empty_version() -> Version:
    """What the first version is built on: no entries, and the schema as the native engine writes it."""
    example = _example(SCHEMA, data_file.STORAGE_VERSION).manifest
    manifest = type(example)()
    manifest.CopyFrom(example)
    manifest.ClearField("max_fragment_id")
    del manifest.fragments[:]
    return Version(0, TableFile(manifest, None), IndexedView(0, {}, (), SCHEMA))


@attrs.frozen
class _Example:
    """A table of one row, as the native engine writes it.

    manifest: shows how fields are encoded and which of them have a column of their own in a data file. columns: what
    its data file says about its columns.
    """

    manifest: Any
    columns: bytes


@lru_cache(maxsize=16)
def _example(schema: pa.Schema, storage_version: str) -> _Example:
    row = {"object_id": "", "object_type": ""}
    with tempfile.TemporaryDirectory(prefix="lancekeep-") as directory:
        lance.write_dataset(
            pa.Table.from_pylist([row], schema=schema),
            f"{directory}/example",
            data_storage_version=cast(Any, storage_version),  # the same text as in the manifest
            enable_v2_manifest_paths=True,
        )
        [manifest] = Path(directory, "example", VERSIONS).glob("*.manifest")
        [data] = Path(directory, "example", "data").iterdir()
        parsed = TableFile.parse(manifest.read_bytes(), str(manifest)).manifest
        return _Example(parsed, data_file.schema_of(data.read_bytes()))


def _merge(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[Fragment]]:
    """Which fragments stay as they are, and which become one new fragment, in order."""
    kept = [fragment for fragment in fragments if fragment.id != UNWRITTEN]
    unwritten = [fragment for fragment in fragments if fragment.id == UNWRITTEN]
    worn = [fragment for fragment in kept if not fragment.live or len(fragment.deleted) > _MOST_DELETED]
    kept = [fragment for fragment in kept if fragment not in worn]
    rows = sum(fragment.live for fragment in (*worn, *unwritten))
    tail: list[Fragment] = []
    while kept and rows and kept[-1].live <= 2 * rows:
        tail.insert(0, kept.pop())
        rows += tail[0].live
    return kept, [*worn, *tail, *unwritten]


def _rows(fragments: Sequence[Fragment], schema: pa.Schema) -> Rows:
    """What is live in some fragments, in order."""
    if sum(fragment.live for fragment in fragments) <= data_file.MOST_ROWS:
        return EntryRows([entry for fragment in fragments for entry in fragment.entries()], schema)
    return Rows(_joined([batch for fragment in fragments for batch in fragment.batches()], schema))


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.concat_arrays([column_of(batch, field.name, field.type) for batch in batches]) for field in schema]
    return _without_empty_columns(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _without_empty_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without columns of nulls only: where no file holds a column, the format says, it consists entirely of nulls."""
    return batch.select(
        [
            name
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if column.null_count < len(column)
        ]
    )


def _advance(manifest: Any, number: int, view: IndexedView, *, deletions: bool) -> None:
    """Make a copy of the last manifest that of version ``number``."""
    manifest.version = number
    now = time.time_ns()
    manifest.timestamp.seconds, manifest.timestamp.nanos = divmod(now, 10**9)
    for flags in ("reader_feature_flags", "writer_feature_flags"):
        others = getattr(manifest, flags) & ~_DELETION_FILES
        setattr(manifest, flags, others | (_DELETION_FILES if deletions else 0))
    for field in ("transaction_file", "tag", "version_aux_data"):  # these belong to one version
        manifest.ClearField(field)
    del manifest.table_metadata[:]
    for key, value in view.properties.items():
        manifest.table_metadata.add(key=key, value=value)


def _transaction(base: Version, following: Any, *, removed: list[int], updated: list[Any], new: list[Any]) -> Any:
    """What was done, in the terms in which other writers look for conflicts."""
    transaction = Transaction(read_version=base.number, uuid=str(uuid4()))
    before = base.view.properties
    after = {item.key: item.value for item in following.table_metadata}
    changes = {key: after.get(key) for key in (*before, *after) if before.get(key) != after.get(key)}
    touches_rows = bool(removed or updated or new)
    widened = len(following.fields) != len(base.file.manifest.fields)
    if base.number == 0 or widened or (changes and touches_rows):
        transaction.overwrite.fragments.extend(following.fragments)
        transaction.overwrite.schema.extend(following.fields)
    elif changes or not touches_rows:
        for key, value in changes.items():
            transaction.update_config.table_metadata_updates.update_entries.add(key=key, value=value)
    elif not (removed or updated):
        transaction.append.fragments.extend(new)
    elif not new:
        transaction.delete.updated_fragments.extend(updated)
        transaction.delete.deleted_fragment_ids.extend(removed)
        transaction.delete.predicate = "true"
    else:
        transaction.update.removed_fragment_ids.extend(removed)
        transaction.update.updated_fragments.extend(updated)
        transaction.update.new_fragments.extend(new)
    return transaction


def _pieces(batch: pa.RecordBatch, known: Iterable[Fragment]) -> Iterator[Piece]:
    """A batch as pieces: native writers rewrite all rows in the order they had, so most of them are known in order."""
    at = 0
    if batch.num_rows >= SMALL:
        for rows in (piece.rows for fragment in known if not fragment.deleted for piece in fragment.pieces):
            if at + len(rows) > batch.num_rows or not _same(batch.slice(at, len(rows)), rows.batch):
                break
            yield Piece(rows, at)
            at += len(rows)
    if at < batch.num_rows or at == 0:
        yield Piece(Rows(batch if at == 0 else _joined([batch.slice(at)], batch.schema)), at)


def _same(some: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    fields = {field.name: field.type for field in (*some.schema, *other.schema)}
    return all(column_of(some, name, kind).equals(column_of(other, name, kind)) for name, kind in fields.items())


def _aligned(columns: Mapping[str, pa.ChunkedArray], schema: pa.Schema) -> pa.RecordBatch:
    """Columns as one batch, in the order and with the types of this schema."""
    arrays, fields = [], [field for field in schema if field.name in columns]
    for field in fields:
        array = columns[field.name].combine_chunks()
        array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _read_data_file(path: str, rows: int) -> pa.Table:
    """On a thread of its own: in a callback of the native engine, pylance's file reader ends the process.

    (Fatal Python error: PyEval_SaveThread, pylance 14.0.2. A native commit calls back into the catalog, which may have
    to read what another process has changed.)
    """
    batch_size = max(1, min(rows, _MOST_AT_ONCE))
    with ThreadPoolExecutor(max_workers=1) as thread:
        reading = thread.submit(lambda: LanceFileReader(path).read_all(batch_size=batch_size).to_table())
        error = reading.exception()
    if error is not None:  # of any kind, and a panic of the engine is no Exception
        raise ValueError(f"the native engine cannot read a data file: {error}") from error
    return reading.result()


def _schema(names: Sequence[str], read: Iterable[dict[str, pa.ChunkedArray]], previous: Version | None) -> pa.Schema:
    """The columns of which a value has been seen, and those of the specification, in the order of the table."""
    types = {name: column.type for columns in read for name, column in columns.items()}
    known = {} if previous is None else {field.name: field for field in previous.view.schema}
    known |= {field.name: field for field in SCHEMA}
    fields = [known.get(name) or (pa.field(name, types[name]) if name in types else None) for name in names]
    return pa.schema([field for field in fields if field is not None])


def _paths(fragment: Any) -> tuple[str, ...]:
    return tuple(file.path for file in fragment.files)


def _deletion(fragment: Any) -> tuple[int, int] | None:
    file = fragment.deletion_file
    return (file.read_version, file.id) if fragment.HasField("deletion_file") else None


def _next_fragment_id(manifest: Any) -> int:
    return manifest.max_fragment_id + 1 if manifest.HasField("max_fragment_id") else 0


def _roots(manifest: Any) -> dict[int, str]:
    """The column to which each field belongs, depth first."""
    roots: dict[int, str] = {}
    for field in manifest.fields:
        roots[field.id] = field.name if field.parent_id < 0 else roots[field.parent_id]
    return roots
