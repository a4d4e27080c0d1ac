"""Data files of text with many rows (file format 2.2).

A process that only lists or describes tables would spend most of its time on the start of the Lance engine. So files of
text are encoded here also if they are large. Every column is one page in the mini-block layout. Its chunks have 4096
rows and hold definition levels (if there are nulls), and offsets and text that zstd has compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancekeep.format.data_file import UNIT, Page, chunk_word, file_of, padded, pages_of

_ROWS_LOG = 12
_ROWS = 1 << _ROWS_LOG
_MOST_BYTES = 1 << 20
"""The most bytes of offsets and text in a chunk."""
_MOST_TEXT = 2**31 - 1
"""The most bytes of text in a column in memory."""
_WORD = np.dtype("<u4")
_OFFSET = np.dtype("<i4")
_LEVEL = np.dtype("<u2")
_RAW_SIZE = struct.Struct("<Q")
_NULLABLE_HEADER, _HEADER = struct.Struct("<HHI"), struct.Struct("<HI")
_TEXT = pa.string()


def encode(columns: Sequence[pa.StringArray], schema: bytes) -> bytes | None:
    """Encode a data file.

    Args:
        columns: columns of equal length.
        schema: their description, from `data_file.schema_of`.

    Returns:
        The bytes of the file, or None if a chunk would be too large, or zstd is not there.
    """
    if not pa.Codec.is_available("zstd") or not len(columns[0]):
        return None
    pages = [_page(column) for column in columns]
    return None if None in pages else file_of([page for page in pages if page], len(columns[0]), schema)


def decode(content: bytes) -> list[pa.StringArray] | None:
    """Return the columns of a file that `encode` wrote; None for any other file."""
    pages = pages_of(content)
    if not pages or not all(page.compressed for page in pages) or not pa.Codec.is_available("zstd"):
        return None
    try:
        return [_column(page) for page in pages]
    except (ValueError, struct.error, OSError, pa.ArrowException):
        return None


def _page(column: pa.StringArray) -> Page | None:
    nulls = _nulls(column)
    if nulls is not None:
        import pyarrow.compute as pc  # takes long to import, and few processes write such files

        column = pc.coalesce(column, _text(np.zeros(2, _OFFSET), b"", None)[0])
    offsets, data = _buffers(column)
    words, chunks = bytearray(), bytearray()
    codec = pa.Codec("zstd")
    for start in range(0, len(column), _ROWS):
        stop = min(start + _ROWS, len(column))
        if int(offsets[stop]) - int(offsets[start]) > _MOST_BYTES - 4 * (_ROWS + 2):
            return None
        own = (offsets[start : stop + 1] - offsets[start] + 4 * (stop - start + 1)).astype(_OFFSET)
        raw = own.tobytes() + data[offsets[start] : offsets[stop]].tobytes()
        raw += bytes(-len(raw) % 4)
        values = _RAW_SIZE.pack(len(raw)) + codec.compress(raw, asbytes=True)
        if nulls is None:
            chunk = padded(_HEADER.pack(0, len(values)), values)
        else:
            levels = nulls[start:stop].astype(_LEVEL).tobytes()
            chunk = padded(_NULLABLE_HEADER.pack(stop - start, len(levels), len(values)), levels, values)
        words += chunk_word(chunk, 0 if stop == len(column) else _ROWS_LOG)
        chunks += chunk
    return Page(len(column), nulls is not None, True, bytes(words), bytes(chunks))


def _column(page: Page) -> pa.StringArray:
    """Decode a column. Raises ValueError, struct.error or an error of Arrow unless `encode` wrote it."""
    ends = np.zeros(page.rows + 1, _OFFSET)
    texts, levels = [], []
    codec, row, text_size = pa.Codec("zstd"), 0, 0
    for rows, chunk in _chunks(page):
        size, at = _values(page, rows, chunk)
        if page.nullable:
            levels.append(np.frombuffer(chunk, _LEVEL, rows, UNIT))
        [raw_size] = _RAW_SIZE.unpack_from(chunk, at)
        begin = 4 * (rows + 1)
        if not begin <= raw_size <= _MOST_BYTES:
            raise ValueError("a chunk has too few or too many bytes")
        raw = codec.decompress(chunk[at + _RAW_SIZE.size : at + size], decompressed_size=raw_size, asbytes=True)
        offsets = np.frombuffer(raw, _OFFSET, rows + 1)
        end = int(offsets[-1])
        if offsets[0] != begin or end > len(raw) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("the offsets of a chunk are wrong")
        if text_size + end - begin > _MOST_TEXT:
            raise ValueError("the text is too large")
        texts.append(raw[begin:end])
        np.add(offsets[1:], text_size - begin, out=ends[row + 1 : row + rows + 1])
        row, text_size = row + rows, text_size + end - begin
    found = _text(ends, b"".join(texts), np.concatenate(levels) if levels else None)
    found.validate(full=True)
    return found


def _chunks(page: Page) -> Iterator[tuple[int, memoryview]]:
    """Yield the chunks of a page with their numbers of rows."""
    words = np.frombuffer(page.words, _WORD).tolist()
    if len(words) != -(-page.rows // _ROWS):
        raise ValueError("the page has another number of chunks")
    chunks, at = memoryview(page.chunks), 0
    for number, word in enumerate(words):
        is_last = number == len(words) - 1
        size = ((word >> 4) + 1) * UNIT
        if word & 15 != (0 if is_last else _ROWS_LOG) or at + size > len(chunks):
            raise ValueError("a chunk has another number of rows")
        yield page.rows - number * _ROWS if is_last else _ROWS, chunks[at : at + size]
        at += size


def _values(page: Page, rows: int, chunk: memoryview) -> tuple[int, int]:
    """Return the size of the values of a chunk, and where they begin."""
    if page.nullable:
        count, levels, size = _NULLABLE_HEADER.unpack_from(chunk)
        expected, at = (rows, _LEVEL.itemsize * rows), UNIT + -(-levels // UNIT) * UNIT
    else:
        (count, size), levels = _HEADER.unpack_from(chunk), 0
        expected, at = (0, 0), UNIT
    if (count, levels) != expected or at + size > len(chunk) or size < _RAW_SIZE.size:
        raise ValueError("a chunk has another header")
    return size, at


def _buffers(column: pa.StringArray) -> tuple[npt.NDArray[np.int32], memoryview]:
    """Return the offsets and the text of a column."""
    _, offsets, data = column.buffers()
    own = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return own, memoryview(data or b"")


def _nulls(column: pa.StringArray) -> npt.NDArray[Any] | None:
    """Return 1 for each null; None if there is none. `to_numpy` would import pandas."""
    if not column.null_count:
        return None
    bits = np.unpackbits(np.frombuffer(column.buffers()[0], np.uint8), bitorder="little")
    return 1 - bits[column.offset : column.offset + len(column)]


def _text(offsets: npt.NDArray[Any], text: bytes, levels: npt.NDArray[Any] | None) -> pa.StringArray:
    """Return an array of text; the level of a null is 1."""
    if levels is not None and levels.max(initial=0) > 1:
        raise ValueError("there are levels above 1")
    valid = None if levels is None else pa.py_buffer(np.packbits(levels == 0, bitorder="little"))
    return pa.Array.from_buffers(_TEXT, len(offsets) - 1, [valid, pa.py_buffer(offsets), pa.py_buffer(text)])
