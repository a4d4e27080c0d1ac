"""Arrow IPC streams of callers and for callers, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from lancekeep.adapters.lance.namespace_errors import namespace_error
from lancekeep.domain.errors import LancekeepError, origin
from lancekeep.entrypoints.namespace.dictionaries import OPTIONS, Dictionaries
from lancekeep.format.arrow_ipc import INVALID, malformed, stream_of
from lancekeep.ports.data_files import Rows


class Incoming:
    """The rows of a caller, validated and counted as they are read.

    The table engine turns an error of a stream into a text, so the stream keeps its error, and `blamed` raises it.

    Args:
        source: The stream; or rows that have been validated.
        valid: Every batch has been validated.
    """

    def __init__(self, source: pa.RecordBatchReader | Rows, *, valid: bool = False) -> None:
        self.rows = 0
        self._error: Exception | None = None
        self._source = source
        self._valid = valid

    @staticmethod
    def of_bytes(data: bytes) -> Incoming:
        """Return the rows of an Arrow IPC stream, which are not copied.

        Raises:
            InvalidInput: The stream is malformed; it is validated before anything is written.
        """
        stream = stream_of(data)
        try:
            for batch in stream:
                batch.validate(full=True)
        except INVALID as error:
            raise malformed(error) from error
        return Incoming(stream_of(data), valid=True)

    @contextmanager
    def blamed(self) -> Iterator[pa.RecordBatchReader | Rows]:
        """Yield the rows; if their stream fails, raise its error instead of the engine's.

        Raises:
            InvalidInput: The stream is malformed.
        """
        source = self._source
        if isinstance(source, Rows):
            self.rows = source.count
            yield source
            return
        try:
            # Not an attribute: a reader that has this object in its batches would never be released, unread.
            yield pa.RecordBatchReader.from_batches(source.schema, self._batches(source))
        except Exception as error:
            if self._error is None:
                raise
            raise self._error from origin(self._error, error)

    def _batches(self, stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            for batch in stream:
                if not self._valid:
                    batch.validate(full=True)
                self.rows += batch.num_rows
                yield batch
        except INVALID as error:
            self._error = malformed(error)
            raise self._error from error
        except Exception as error:
            self._error = error
            raise


def file_of(reader: pa.RecordBatchReader) -> bytes:
    """Return a stream of batches as an Arrow IPC file."""
    sink = pa.BufferOutputStream()
    write_batches(reader, sink)
    return bytes(sink.getvalue())


def write_batches(reader: pa.RecordBatchReader, sink: Any) -> None:
    """Write a stream of batches as an Arrow IPC file.

    If a batch fails, the file stays without its footer, so no client takes it for complete.
    """
    dictionaries = Dictionaries()
    writer = pa.ipc.new_file(sink, reader.schema, options=OPTIONS)
    for batch in reader:
        writer.write_batch(dictionaries.merged(batch))
    writer.close()


def translated(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return the stream with errors of the interface.

    It is read after the operation has returned it.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except LancekeepError as error:
            raise namespace_error(error) from error

    return pa.RecordBatchReader.from_batches(reader.schema, batches())
