"""Encode the rows of appends as data files, with the Lance engine's file writer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, cast

import attrs
import pyarrow as pa

from lancekeep.adapters.lance.alignment import aligned
from lancekeep.adapters.lance.panics import without_panics
from lancekeep.application.concurrency import in_a_thread
from lancekeep.application.scratch import scratch_directory, scratch_file
from lancekeep.domain.dataset_files import DATA
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.layout import VERSIONS
from lancekeep.format.append import Appendable, layout_of
from lancekeep.local_files import content_of
from lancekeep.native import lance
from lancekeep.ports.data_files import EncodedFile, Rows

_REMEMBERED = 64
_Columns = tuple[str, tuple[bytes, ...]]


@attrs.define
class _Known:
    """What is known about tables of one schema.

    Attributes:
        schema: the schema that the engine reads.
        layout: the encoded layout of a data file; None before the first file is written.
    """

    schema: pa.Schema
    layout: bytes | None = None


@without_panics
class LanceDataFiles:
    """A `DataFiles` that uses pylance.

    The first file of a schema is written as a scratch dataset in memory, which shows how the engine lays it out. Files
    after it need the file writer only.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[_Columns, _Known] = OrderedDict()
        self._lock = Lock()

    def gather(
        self, data: pa.RecordBatchReader | pa.Table | Rows, most: int
    ) -> tuple[Rows | None, pa.RecordBatchReader | pa.Table | Rows]:
        if isinstance(data, pa.RecordBatchReader):
            return self._gathered(data, most)
        rows = data if isinstance(data, Rows) else Rows(data, data.num_rows, data.nbytes)
        return rows if rows.count and rows.size <= most else None, data

    def _gathered(self, reader: pa.RecordBatchReader, most: int) -> tuple[Rows | None, pa.RecordBatchReader]:
        schema, batches, size = reader.schema, list[pa.RecordBatch](), 0
        failed: list[Exception] = []
        try:
            for batch in reader:
                batches.append(batch)
                size += batch.nbytes
                if size > most:
                    break
        except Exception as error:  # the stream that is returned raises it
            failed.append(error)

        def every() -> Iterator[pa.RecordBatch]:
            yield from batches
            if failed:
                raise failed[0]
            yield from reader

        count = sum(batch.num_rows for batch in batches)
        again = pa.RecordBatchReader.from_batches(schema, every())
        small = not failed and count > 0 and size <= most
        return Rows(pa.Table.from_batches(batches, schema), count, size) if small else None, again

    def conforming(self, rows: Rows, version: Appendable) -> Rows | None:
        wanted = self._of(version).schema
        given = rows.schema
        if given.names != wanted.names or given.types != wanted.types:
            return None
        columns = rows.table.columns
        if any(not field.nullable and column.null_count for field, column in zip(wanted, columns, strict=True)):
            return None
        return attrs.evolve(rows, table=pa.Table.from_arrays(columns, schema=wanted), encoded=None)

    def encode(self, rows: Sequence[Rows], version: Appendable) -> EncodedFile:
        known = self._of(version)
        table = aligned(pa.concat_tables([each.table for each in rows]).combine_chunks())
        try:
            if known.layout is None:
                content, example = self._as_dataset(table, version)
                known.layout = layout_of(example, version, "the table")
            else:
                content = self._as_file(table, version)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InvalidInput(f"the engine cannot store these rows: {error!s:.300}") from error
        return EncodedFile(content, table.num_rows, known.layout)

    def _as_file(self, table: pa.Table, version: Appendable) -> bytes:
        with scratch_file("data.lance") as path:
            with lance.file.LanceFileWriter(path, table.schema, version=version.storage_version) as writer:
                writer.write_batch(table)
            return content_of(path)

    def _as_dataset(self, table: pa.Table, version: Appendable) -> tuple[bytes, bytes]:
        """Return a data file, and the manifest file that describes it."""
        with scratch_directory() as directory:
            dataset = directory / "example"
            lance.write_dataset(
                table,
                str(dataset),
                max_rows_per_file=table.num_rows,
                max_bytes_per_file=2**62,
                data_storage_version=cast(Any, version.storage_version),  # the manifest has the same text
            )
            [data] = (dataset / DATA).iterdir()
            [manifest] = (dataset / VERSIONS).glob("*.manifest")
            return data.read_bytes(), manifest.read_bytes()

    def _of(self, version: Appendable) -> _Known:
        key = version.storage_version, version.fields
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = _Known(self._schema(version))
        with self._lock:
            known = self._known.setdefault(key, known)
            self._known.move_to_end(key)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known

    def _schema(self, version: Appendable) -> pa.Schema:
        with scratch_directory() as directory:
            (directory / VERSIONS).mkdir()
            (directory / VERSIONS / "1.manifest").write_bytes(version.alone())
            try:
                schema = in_a_thread(lambda: lance.dataset(str(directory)).schema)
            except (OSError, ValueError) as error:
                raise Unsupported(f"the engine cannot read the schema of the table alone: {error}") from error
        obstacle = next((field.name for field in schema if not _is_plain(field.type)), None)
        if obstacle is not None:
            raise Unsupported(f"the column {obstacle} has a type that only the engine appends")
        return schema.remove_metadata()


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether columns of a type need nothing but their values."""
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind) or pa.types.is_map(kind):
        return False
    fields = [kind.field(at) for at in range(kind.num_fields)]
    return all(field.nullable and not field.metadata and _is_plain(field.type) for field in fields)
