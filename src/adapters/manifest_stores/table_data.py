"""Data files of the manifest table, as bytes (table format, "Data Files").

A data file says which field of the table each of its columns holds. Columns are matched by that field id, never by
position: other writers may order columns differently, and add or drop columns without rewriting files.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import numpy as np
import pyarrow as pa

from lancekeep.adapters.manifest_stores.columns import REQUIRED, SCHEMA, TEXT, column_of
from lancekeep.adapters.manifest_stores.index import Rows
from lancekeep.application.concurrency import in_a_thread
from lancekeep.application.scratch import scratch_directory
from lancekeep.domain.dataset_files import DATA
from lancekeep.domain.errors import Refused
from lancekeep.domain.layout import VERSIONS
from lancekeep.format import data_file
from lancekeep.format.manifest import ManifestFile, clear_version
from lancekeep.format.messages import Manifest, Transaction
from lancekeep.native import compute as pc
from lancekeep.native import lance

T = TypeVar("T")

_MOST_AT_ONCE = 2**31 - 1
_WITHOUT_NULL_STRUCTS = "2.0"
_PLAIN_ENCODING, _VARIABLE_ENCODING = 1, 2
"""`lance.file.Encoding` of a field."""


class DataFiles:
    """Encode and decode data files.

    Files of text are handled by `data_file` and `large_data_file`, all others by the Lance engine, which gets a scratch
    dataset of one fragment and applies the format's rules itself.
    """

    def decode(self, manifest: Any, fragment: Any, contents: Sequence[bytes]) -> Mapping[str, pa.ChunkedArray]:
        """Return the columns of a fragment by name; columns without data may be missing.

        Args:
            manifest: the manifest message of the version.
            fragment: one of its fragments, of which the deletion file is ignored.
            contents: the bytes of the fragment's data files, in order.

        Raises:
            ValueError: the files do not agree with the manifest.
        """
        columns: dict[str, pa.ChunkedArray] = {}
        types = {field.id: field.logical_type for field in manifest.fields}
        roots = roots_of(manifest)
        for file, content in zip(fragment.files, contents, strict=True):
            texts = _texts_in(content)
            held = [(number, at) for number, at in zip(file.fields, file.column_indices, strict=True) if at >= 0]
            known = [(number, at) for number, at in held if number in roots]
            if texts is None or any(types[number] != "string" for number, _ in known):
                return self._decode_by_engine(manifest, fragment, contents)
            for number, at in known:
                columns[roots[number]] = pa.chunked_array([texts(at)])
        return columns

    def encode(self, rows: Rows, stored: StoredColumns) -> tuple[bytes, Any]:
        """Return a data file with these rows, and its message without a path.

        Args:
            rows: the rows to write.
            stored: the columns of the table.
        """
        if stored.version == data_file.STORAGE_VERSION:
            texts = rows.texts()
            example = None if texts is None else stored.example_of(tuple(texts))
            if texts is not None and example is not None:
                content = data_file.encode([texts[name] for name in example.names], example.columns)
                if content is not None:
                    return content, sized(example.file, content)
            batch = filled(rows.batch)
            example = stored.example_of(tuple(batch.schema.names))
            if example is not None and not any(column_of(batch, name).null_count for name in REQUIRED):
                from lancekeep.format import large_data_file  # a process that lists a small catalog does not need it

                content = large_data_file.encode([batch.column(name) for name in example.names], example.columns)
                if content is not None:
                    return content, sized(example.file, content)
        return self._encode_by_engine(filled(conforming(rows.batch, stored.schema)), stored)

    def _decode_by_engine(
        self, manifest: Any, fragment: Any, contents: Sequence[bytes]
    ) -> Mapping[str, pa.ChunkedArray]:
        alone = _bare(manifest)
        added = alone.fragments.add()
        added.CopyFrom(fragment)
        added.ClearField("deletion_file")
        for number, file in enumerate(added.files):
            file.path, file.file_size_bytes = f"{number}.lance", len(contents[number])
        with scratch_directory() as directory:
            _write(directory, alone)
            (directory / DATA).mkdir()
            for number, content in enumerate(contents):
                (directory / DATA / f"{number}.lance").write_bytes(content)
            batch_size = max(1, min(fragment.physical_rows, _MOST_AT_ONCE))
            table = _by_engine(
                lambda: lance.dataset(str(directory)).to_table(batch_size=batch_size, blob_handling="all_binary")
            )
        return dict(zip(table.column_names, table.columns, strict=True))

    def _encode_by_engine(self, batch: pa.RecordBatch, stored: StoredColumns) -> tuple[bytes, Any]:
        with scratch_directory() as directory:
            try:
                _write_dataset(batch, directory, stored.version, rows=batch.num_rows)
            except OSError as error:
                raise Refused(
                    f"the manifest table cannot hold these rows in Lance file version {stored.version}: "
                    f"{error!s:.300}. Give every column of an extension a value that this version can store"
                ) from error
            [data] = (directory / DATA).iterdir()
            content = data.read_bytes()
            return content, sized(stored.file_of(_manifest_in(directory)), content)

    def split(self, rows: Rows, stored: StoredColumns) -> list[Rows]:
        """Split rows into groups that one data file can hold.

        Lance file version 2.0 cannot store a null in a column of structs, but a file may leave out the column.
        """
        if stored.version != _WITHOUT_NULL_STRUCTS:
            return [rows]
        parts = [rows.batch]
        for name in [field.name for field in rows.batch.schema if pa.types.is_struct(field.type)]:
            missing = [column_of(part, name).is_null() for part in parts]
            parts = [
                part.filter(chosen)
                for part, nulls in zip(parts, missing, strict=True)
                for chosen in (nulls, pc.invert(nulls))
            ]
        return [Rows(filled(part)) for part in parts if part.num_rows]


@attrs.frozen(eq=False)
class TextFile:
    """How a data file with some columns of text looks.

    names: the columns, in their order in the file. columns: their description in the file. file: the message of such a
    file, with the field ids of the table.
    """

    names: Sequence[str]
    columns: bytes
    file: Any


@attrs.frozen(eq=False)
class StoredColumns:
    """The columns of a table, as its manifest describes them.

    Versions with the same fields share this object, because a commit that derived all of it again would take a fifth
    longer.

    Attributes:
        schema: the schema that the engine reads from the manifest.
        version: the version of the table's data files.
        ids: the field ids, by the names that lead to each field.
    """

    schema: pa.Schema
    version: str
    ids: Mapping[tuple[str, ...], int]
    _examples: dict[tuple[str, ...], TextFile | None] = attrs.field(factory=dict, init=False)

    @staticmethod
    def of(manifest: Any) -> StoredColumns:
        """Return the columns of a manifest message. Raises ValueError."""
        ids = {path: number for number, path in _paths(manifest).items()}
        return StoredColumns(schema_of(manifest), manifest.data_format.version, ids)

    def example_of(self, names: tuple[str, ...]) -> TextFile | None:
        """Return the example of a data file; None if a column is not text."""
        if names not in self._examples:
            fields = [field for field in self.schema if field.name in names]
            example = None
            if all(field.type == pa.string() for field in fields):
                written = example_of(pa.schema(fields), self.version)
                example = TextFile([field.name for field in fields], written.columns, self.file_of(written.manifest))
            self._examples[names] = example
        return self._examples[names]

    def file_of(self, written: Any) -> Any:
        """Return the message of a manifest's only data file, for this table."""
        file = type(written.fragments[0].files[0])()
        file.CopyFrom(written.fragments[0].files[0])
        ids = {number: self.ids[path] for number, path in _paths(written).items()}
        file.fields[:] = [ids[number] for number in file.fields]
        return file


@attrs.frozen
class Example:
    """A table of one row, as the engine writes it.

    manifest: its manifest message. columns: the description of the columns in its data file.
    """

    manifest: Any
    columns: bytes


@lru_cache(maxsize=16)
def example_of(schema: pa.Schema, storage_version: str) -> Example:
    """Return an example of a table with this schema and storage version."""
    texts = [name for name in schema.names if schema.field(name).type == pa.string()]
    with scratch_directory() as scratch:
        directory = scratch / "example"
        row = pa.Table.from_pylist([dict.fromkeys(texts, "")], schema=nullable(schema))
        _write_dataset(row, directory, storage_version, rows=1)
        [data] = (directory / DATA).iterdir()
        return Example(_manifest_in(directory), data_file.schema_of(data.read_bytes()))


@cache
def standard_fields() -> Any:
    """Return the fields of the standard schema, as the engine writes them."""
    manifest = Manifest()
    for number, field in enumerate(SCHEMA):
        added = manifest.fields.add(name=field.name, id=number or None, parent_id=-1, nullable=field.nullable or None)
        if field.type == TEXT:
            added.logical_type, added.encoding = "string", _VARIABLE_ENCODING
        else:
            added.logical_type, added.encoding = "list", _PLAIN_ENCODING
            manifest.fields.add(
                name=field.type.value_field.name,
                id=len(SCHEMA),
                parent_id=number,
                logical_type="string",
                nullable=True,
                encoding=_VARIABLE_ENCODING,
            )
        for key, value in (field.metadata or {}).items():
            added.metadata.add(key=key.decode(), value=value)
            added.unenforced_primary_key = True
    return manifest.fields


def schema_of(manifest: Any) -> pa.Schema:
    """Return the schema that the engine reads from a manifest. Raises ValueError."""
    if manifest.fields == standard_fields():
        return SCHEMA
    roots_of(manifest)
    bare = _bare(manifest)
    bare.ClearField("schema_metadata")
    del bare.table_metadata[:]
    return _schema_in(bare.SerializeToString(deterministic=True))


@lru_cache(maxsize=16)
def _schema_in(manifest: bytes) -> pa.Schema:
    with scratch_directory() as directory:
        parsed = Manifest.FromString(manifest)
        required = {field.name for field in parsed.fields if field.parent_id < 0 and not field.nullable}
        _write(directory, parsed)
        schema = _by_engine(lambda: lance.dataset(str(directory)).schema).remove_metadata()
    return pa.schema([field.with_nullable(field.name not in required) for field in schema])


def roots_of(manifest: Any) -> dict[int, str]:
    """Return the column of each field id. Raises KeyError if a parent is missing."""
    return {number: path[0] for number, path in _paths(manifest).items()}


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all columns nullable except the required ones."""
    return pa.schema([field if field.name in REQUIRED else field.with_nullable(True) for field in schema])


def filled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without columns of nulls, which need not be stored."""
    return batch.select(
        [
            name
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if column.null_count < len(column)
        ]
    )


def conforming(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the column order and types of a schema.

    All columns are nullable except the required ones.
    """
    fields = [field for field in nullable(schema) if field.name in batch.schema.names]
    columns = [batch.column(field.name) for field in fields]
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for field, column in zip(fields, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _texts_in(content: bytes) -> Callable[[int], pa.Array] | None:
    """Return a function from the number of a column to its text; None if the engine has to read the file."""
    small = data_file.decode(content)
    if small is not None:
        return lambda number: _texts(small[number])
    from lancekeep.format import large_data_file  # a process that lists a small catalog does not need it

    large = large_data_file.decode(content)
    return None if large is None else large.__getitem__


def _texts(values: data_file.Column) -> pa.Array:
    """Return an array of text. `pa.array` would import pandas where it is installed, which takes 0.2 s."""
    encoded = [(value or "").encode() for value in values]
    offsets = array("i", accumulate(map(len, encoded), initial=0))
    nulls = None in values
    valid = pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little")) if nulls else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(TEXT, len(encoded), buffers)


def _paths(manifest: Any) -> dict[int, tuple[str, ...]]:
    """Return the names that lead to each field, by field id."""
    paths: dict[int, tuple[str, ...]] = {}
    for field in manifest.fields:
        above = () if field.parent_id < 0 else paths[field.parent_id]
        paths[field.id] = (*above, field.name)
    return paths


def sized(file: Any, content: bytes) -> Any:
    """Return a copy of the message of a data file, for a file with this content."""
    copy = type(file)()
    copy.CopyFrom(file)
    copy.file_size_bytes = len(content)
    return copy


def _bare(manifest: Any) -> Any:
    """Return a copy of a manifest message as version 1, without fragments."""
    bare = type(manifest)()
    bare.CopyFrom(manifest)
    clear_version(bare)
    del bare.fragments[:]
    bare.version = 1
    return bare


def _write(directory: Path, manifest: Any) -> None:
    """Write a manifest as the only version of a scratch dataset.

    Columns of extensions become nullable, because earlier releases of Lancekeep wrote nulls into columns that are not
    nullable.
    """
    for field in manifest.fields:
        if field.parent_id < 0 and field.name not in REQUIRED:
            field.nullable = True
    (directory / VERSIONS).mkdir()
    (directory / VERSIONS / "1.manifest").write_bytes(ManifestFile(manifest, None).serialize(Transaction()))


def _write_dataset(data: pa.Table | pa.RecordBatch, directory: Path, storage_version: str, *, rows: int) -> None:
    lance.write_dataset(
        data,
        str(directory),
        max_rows_per_file=max(rows, 1),
        max_bytes_per_file=2**62,
        data_storage_version=cast(Any, storage_version),  # The manifest has the same text.
        enable_v2_manifest_paths=True,
    )


def _manifest_in(directory: Path) -> Any:
    [manifest] = (directory / VERSIONS).glob("*.manifest")
    return ManifestFile.parse(manifest.read_bytes(), str(manifest)).manifest


def _by_engine(call: Callable[[], T]) -> T:
    """Call the engine in a separate thread; any failure, even a panic, is a ValueError.

    See `in_a_thread` for why.
    """
    try:
        return in_a_thread(call)
    except BaseException as error:
        raise ValueError(f"the Lance engine cannot read the table: {error}") from error
