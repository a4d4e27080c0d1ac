"""Arrow IPC streams of callers, bounded before they are decoded.

A stream of a few bytes can state 10⁹ rows, or expand to gigabytes. So the sizes that its messages state are checked
first; only then is the stream decoded: a small one at once, and a large one batch by batch.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

import attrs
import numpy as np
import pyarrow as pa

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.format.arrow_ipc import (
    CONTINUATION,
    ROWS_WITHOUT_BYTES,
    Message,
    expanded_size,
    message_of,
    stream_of,
    table_of,
)
from lancekeep.ports.data_files import Rows

MOST_METADATA: Final = 8 << 20
"""The maximum size in bytes of the metadata of a message, enough for 40,000 columns."""
MOST_COLUMNS: Final = 10_000
"""The maximum number of fields in a schema, including nested ones."""
MOST_NESTING: Final = 32
"""The maximum depth of nested fields."""

_AT_ONCE: Final = 1 << 18
"""The size in bytes, before and after decompression, up to which a stream is decoded at once."""

_VIEWS = (pa.types.is_string_view, pa.types.is_binary_view)


@contextmanager
def opened(body: BinaryIO, largest_batch: int, largest: int) -> Iterator[pa.RecordBatchReader | Rows]:
    """Yield the rows of a body: in memory if it is small, or as a stream of batches.

    Each call of Arrow lets other threads take the interpreter's lock. A small body needs few of them, so that many
    requests at the same time do not spend their time in waiting for each other.

    Args:
        body: The complete body; it is read from its start.
        largest_batch: The maximum size in bytes of a batch or a dictionary after decompression.
        largest: The maximum size in bytes of all of them, if each batch counts with its dictionaries.

    Raises:
        HttpError: The stream is too large (413).
        InvalidInput: The body is no Arrow IPC stream.
    """
    checked = _check_messages(body, largest_batch, largest)
    if checked.is_small:
        body.seek(0)
        content = body.read()
        table = _whole(content)
        if not _have_views(table.schema):
            yield Rows(table, table.num_rows, checked.size, content if checked.is_plain else None)
            return
    body.seek(0)
    with stream_of(body) as reader:
        schema = reader.schema
        _check_schema(schema)
        yield pa.RecordBatchReader.from_batches(schema, _validated(reader, largest_batch))


@attrs.frozen
class _Checked:
    """The messages of a stream.

    Attributes:
        size: The size of their bodies in bytes after decompression.
        is_small: Whether the stream is decoded at once.
        is_plain: Whether the messages have the format of Arrow 0.15 and are not compressed.
    """

    size: int
    is_small: bool
    is_plain: bool


def _whole(content: bytes) -> pa.Table:
    """Return all rows of a small stream."""
    stream = stream_of(content)
    _check_schema(stream.schema)
    return table_of(stream)


@attrs.frozen
class _Size:
    """The size of a batch, of a dictionary or of some of them.

    Attributes:
        stated: The size of the buffers in bytes after decompression.
        values: The lengths of all arrays.
        longest: The length of the longest array.
    """

    stated: int = 0
    values: int = 0
    longest: int = 0

    def __add__(self, other: _Size) -> _Size:
        return _Size(self.stated + other.stated, self.values + other.values, self.longest + other.longest)

    def __sub__(self, other: _Size) -> _Size:
        return _Size(self.stated - other.stated, self.values - other.values, self.longest - other.longest)

    @property
    def bytes(self) -> int:
        """The size in bytes, with at least a bit for each value: work with values grows with their number."""
        return max(self.stated, self.values // 8)


def _check_messages(body: BinaryIO, largest_batch: int, largest: int) -> _Checked:
    """Read the sizes that the messages of a stream state.

    The end of a stream that is cut off is left to the decoder, which says what is missing.
    """
    end = body.seek(0, os.SEEK_END)
    position, total, is_plain = 0, _Size(), True
    dictionaries, current = dict[int, _Size](), _Size()
    while (metadata := _metadata(body, position)) is not None:
        message = message_of(metadata[1])
        start = metadata[0]
        is_plain &= not message.is_compressed and start == position + 8 + len(metadata[1])
        expanded = _expanded(body, start, end, message) if message.is_compressed else sum(s for _, s in message.buffers)
        size = _Size(expanded, max(message.rows, sum(message.lengths)), max((message.rows, *message.lengths)))
        total += size
        if message.dictionary is None:
            _check_size(size, "batch", largest_batch)
            total += current  # each batch is validated, and written, with its dictionaries
        else:
            earlier = dictionaries.get(message.dictionary, _Size())
            whole = size + earlier if message.is_delta else size
            _check_size(whole, "dictionary", largest_batch)
            dictionaries[message.dictionary] = whole
            current += whole - earlier
        if total.bytes > largest:
            raise HttpError(
                413,
                f"The Arrow stream has more than {largest} bytes after decompression, if each batch counts with its "
                "dictionaries. Send larger batches, or dictionaries with fewer values.",
            )
        position = start + message.body_size
    is_small = max(end, total.bytes) <= _AT_ONCE and total.values <= ROWS_WITHOUT_BYTES
    return _Checked(total.bytes, is_small, is_plain)


def _check_size(size: _Size, name: str, largest: int) -> None:
    if size.longest > ROWS_WITHOUT_BYTES + 8 * size.stated:
        raise HttpError(
            413,
            f"A {name} of the Arrow stream states {size.longest} values in {size.stated} bytes; send at "
            f"most {ROWS_WITHOUT_BYTES} values without bytes in a {name}.",
        )
    if size.bytes > largest:
        raise HttpError(
            413,
            f"A {name} of the Arrow stream has {size.bytes} bytes; the server accepts {largest}. Send smaller "
            "batches, such as max_chunksize of pyarrow's write_table makes.",
        )


def _metadata(body: BinaryIO, position: int) -> tuple[int, bytes] | None:
    """Return where the body of the message at a position begins, and its metadata; None at the end of the stream."""
    body.seek(position)
    prefix = body.read(8)
    if len(prefix) < 8:
        return None
    first, second = struct.unpack("<II", prefix)
    start, size = (position + 8, second) if first == CONTINUATION else (position + 4, first)
    if size == 0:
        return None
    if size > MOST_METADATA and first == CONTINUATION:
        raise HttpError(413, f"The metadata of a message have {size} bytes; the server accepts {MOST_METADATA}.")
    if size > MOST_METADATA:
        raise InvalidInput(f"the body is not an Arrow IPC stream: it begins with the bytes {prefix!r}")
    body.seek(start)
    metadata = body.read(size)
    return None if len(metadata) < size else (start + size, metadata)


def _expanded(body: BinaryIO, start: int, end: int, message: Message) -> int:
    """Return the size of the buffers of a compressed batch after decompression."""
    expanded = 0
    for offset, size in message.buffers:
        if size == 0:
            continue
        if offset < 0 or size < 0 or start + offset + size > end:
            raise InvalidInput("a buffer of the Arrow stream lies outside of its message")
        body.seek(start + offset)
        expanded += expanded_size(body.read(min(size, 8)), size)
    return expanded


def _check_schema(schema: pa.Schema) -> None:
    fields = 0
    level = [(field, False) for field in schema]  # and whether it is in the values of a dictionary
    for _ in range(MOST_NESTING):
        fields += len(level)
        try:
            for field, _ in level:
                field.name.encode()
        except UnicodeError:
            raise InvalidInput("the schema of the body has a name that is not UTF-8") from None
        if fields > MOST_COLUMNS:
            raise HttpError(413, f"The schema of the body has more than {MOST_COLUMNS} fields.")
        if any(_is_nested(field.type, inside) for field, inside in level):  # each batch would validate all of them
            raise InvalidInput("the schema of the body has a dictionary in the values of a dictionary")
        level = [
            (child, inside or pa.types.is_dictionary(field.type))
            for field, inside in level
            for child in _children(field.type)
        ]
        if not level:
            return
    raise HttpError(413, f"The schema of the body nests fields deeper than {MOST_NESTING} levels.")


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_dictionary(kind):
        return _children(kind.value_type)
    return [kind.field(number) for number in range(kind.num_fields)]


def _have_views(schema: pa.Schema) -> bool:
    return any(_has_views(field.type) for field in schema)


def _is_nested(kind: pa.DataType, inside: bool) -> bool:
    """Return whether a dictionary is, or has, one in the values of another."""
    return pa.types.is_dictionary(kind) and (inside or pa.types.is_dictionary(kind.value_type))


def _has_views(kind: pa.DataType) -> bool:
    return any(is_view(kind) for is_view in _VIEWS) or any(_has_views(child.type) for child in _children(kind))


def _validated(reader: pa.RecordBatchReader, largest: int) -> Iterator[pa.RecordBatch]:
    """Return the batches whose values are valid: the engine trusts offsets, indices and text.

    Tables keep no views, so the bytes that views stand for count, although views can share them.
    """
    has_views = _have_views(reader.schema)
    for batch in reader:
        batch.validate(full=True)
        size = sum(_viewed(column) for column in batch.columns) if has_views else 0
        if size > largest:
            raise HttpError(
                413, f"The views of a batch stand for {size} bytes; the server accepts {largest}. Send smaller batches."
            )
        yield batch


def _viewed(array: pa.Array) -> int:
    """Return how many bytes the views of an array stand for."""
    if isinstance(array, pa.StringViewArray | pa.BinaryViewArray):
        views = np.frombuffer(array.buffers()[1] or b"", np.int32)  # 16 bytes each, of which the first 4 are the length
        return int(views[4 * array.offset : 4 * (array.offset + len(array)) : 4].clip(0).sum(dtype=np.int64))
    if isinstance(array, pa.DictionaryArray):
        return _viewed(array.dictionary)
    if isinstance(array, pa.StructArray):
        return sum(_viewed(array.field(number)) for number in range(array.type.num_fields))
    if isinstance(array, pa.MapArray):
        return _viewed(array.keys) + _viewed(array.items)
    return _viewed(array.values) if hasattr(array, "values") else 0
