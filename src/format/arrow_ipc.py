"""Arrow IPC streams, and the sizes that their messages state.

A message says how many rows it holds and how large its buffers are, also after decompression ("Encapsulated message
format" of the Arrow specification). So a few bytes can stand for any number of rows. A reader that takes streams from
others checks the sizes before it decodes anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import attrs
import pyarrow as pa

from lancekeep.domain.errors import InvalidInput

CONTINUATION: Final = 0xFFFFFFFF
"""The four bytes before the size of the metadata; streams before Arrow 0.15 lack them."""

ROWS_WITHOUT_BYTES: Final = 1 << 20
"""The rows of an array that need no bytes, such as nulls; each further byte carries up to 8 rows (booleans)."""

_ALIGNED: Final = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
"""The engine panics on values that are not aligned, as in messages whose metadata are not padded."""

INVALID: Final = (pa.ArrowException, OSError, TypeError, ValueError)
"""What decoding and validation raise."""

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
"""Kinds of messages: the variants of the union ``MessageHeader``."""
_PLAIN = -1
"""The stated size of a buffer in a compressed batch that is itself not compressed."""


@attrs.frozen
class Message:
    """What the metadata of a message say.

    Attributes:
        is_schema: Whether the message is the schema, which has no body.
        body_size: The size of the body in bytes.
        rows: The rows of the batch, or the values of the dictionary.
        lengths: The lengths of the arrays of the batch, also of nested ones.
        buffers: Offset and size of each buffer in the body.
        is_compressed: Whether each buffer begins with its size after decompression.
        dictionary: The number of the dictionary that gets the values; None if the message is none.
        is_delta: Whether the values extend an earlier dictionary.
    """

    is_schema: bool
    body_size: int
    rows: int = 0
    lengths: tuple[int, ...] = ()
    buffers: tuple[tuple[int, int], ...] = ()
    is_compressed: bool = False
    dictionary: int | None = None
    is_delta: bool = False


def stream_of(source: Any) -> pa.RecordBatchReader:
    """Return the batches of a stream, of which only the schema is read.

    Args:
        source: The bytes, or a file.

    Raises:
        InvalidInput: The source does not begin with a schema.
    """
    try:
        return pa.ipc.open_stream(source, options=_ALIGNED)
    except INVALID as error:
        raise malformed(error) from error


def table_of(stream: pa.RecordBatchReader) -> pa.Table:
    """Return all rows of a stream, whose values are valid.

    The engine trusts offsets, indices and text.

    Raises:
        InvalidInput: The stream is damaged, or has values that are not valid.
    """
    try:
        table = stream.read_all()
        table.validate(full=True)
    except INVALID as error:
        raise malformed(error) from error
    return table


def malformed(error: Exception) -> InvalidInput:
    """Return the error of a stream that cannot be decoded."""
    return InvalidInput(f"the data are not a valid Arrow IPC stream: {error}")


def message_of(metadata: bytes) -> Message:
    """Decode the metadata of a message.

    Raises:
        InvalidInput: The bytes are no metadata of a schema, a batch or a dictionary.
    """
    try:
        message = _Table.root(metadata)
        kind, body_size, header = message.number(1, "B"), message.number(3, "q"), message.table(2)
        if kind == _SCHEMA and body_size == 0 and header is not None:
            return Message(is_schema=True, body_size=0)
        dictionary = header if kind == _DICTIONARY else None
        batch = header if dictionary is None else dictionary.table(1)
        if kind not in (_DICTIONARY, _BATCH) or batch is None or body_size < 0:
            raise InvalidInput(f"a message of the Arrow stream has the kind {kind} and a body of {body_size} bytes")
        found = Message(
            is_schema=False,
            body_size=body_size,
            rows=batch.number(0, "q"),
            lengths=tuple(length for length, _ in batch.pairs(1)),
            buffers=tuple(batch.pairs(2)),
            is_compressed=batch.table(3) is not None,
            dictionary=None if dictionary is None else dictionary.number(0, "q"),
            is_delta=dictionary is not None and dictionary.number(2, "?") != 0,
        )
        if min((found.rows, *found.lengths, *chain.from_iterable(found.buffers))) < 0:
            raise InvalidInput("a message of the Arrow stream states a negative number of rows or bytes")
        return found
    except struct.error as error:
        raise InvalidInput(f"the metadata of a message of the Arrow stream are damaged: {error}") from error


def expanded_size(stated: bytes, size: int) -> int:
    """Return the size of a buffer of a compressed batch after decompression.

    Args:
        stated: The first 8 bytes of the buffer.
        size: Its size.

    Raises:
        InvalidInput: The buffer states no size.
    """
    if len(stated) < 8:
        raise InvalidInput("a buffer of the Arrow stream is shorter than the size that it begins with")
    (expanded,) = struct.unpack("<q", stated)
    if expanded < _PLAIN:
        raise InvalidInput(f"a buffer of the Arrow stream states a size of {expanded} bytes")
    return size - 8 if expanded == _PLAIN else int(expanded)


@attrs.frozen
class _Table:
    """A table of a FlatBuffer. Its methods raise `struct.error` beyond the end of the bytes."""

    _bytes: bytes
    _position: int

    @classmethod
    def root(cls, content: bytes) -> _Table:
        return cls(content, _unpack("<I", content, 0))

    def number(self, field: int, kind: str) -> int:
        """Return a field that is a number; 0 if it is absent."""
        position = self._field(field)
        return 0 if position is None else _unpack(f"<{kind}", self._bytes, position)

    def table(self, field: int) -> _Table | None:
        """Return a field that is a table; None if it is absent."""
        position = self._field(field)
        return None if position is None else _Table(self._bytes, self._target(position))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """Return a field that is a vector of structs of two 64-bit integers."""
        position = self._field(field)
        if position is None:
            return iter(())
        start = self._target(position)
        end = start + 4 + 16 * _unpack("<I", self._bytes, start)
        if end > len(self._bytes):
            raise struct.error(f"a vector ends at {end} of {len(self._bytes)} bytes")
        return struct.iter_unpack("<qq", memoryview(self._bytes)[start + 4 : end])

    def _field(self, field: int) -> int | None:
        vtable = self._position - _unpack("<i", self._bytes, self._position)
        slot = 4 + 2 * field
        if slot + 2 > _unpack("<H", self._bytes, vtable):
            return None
        offset = _unpack("<H", self._bytes, vtable + slot)
        return self._position + offset if offset else None

    def _target(self, position: int) -> int:
        return position + _unpack("<I", self._bytes, position)


def _unpack(form: str, content: bytes, position: int) -> int:
    if position < 0:  # counts from the end otherwise
        raise struct.error(f"an offset leads to {position}")
    (number,) = struct.unpack_from(form, content, position)
    return int(number)
