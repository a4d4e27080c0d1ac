"""Small data files of text (file format 2.2).

A catalog operation adds a few rows of text. Starting the writer of the Lance engine for them costs more than all other
work of the operation. Every column is one page in the mini-block layout, and every page one uncompressed chunk:
definition levels (if there are nulls), offsets, text. `large_data_file` has files of more rows. The engine reads and
writes all other data files.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, product
from typing import Any, Final, Literal

import attrs
from google.protobuf.message import DecodeError

from lancekeep.format.manifest import MAGIC
from lancekeep.format.messages import message_classes

Column = Sequence[str | None]

MOST_ROWS = 1024
MOST_BYTES = 16 * 1024
"""The most UTF-8 text of a column; the format allows a chunk of twice the size."""
STORAGE_VERSION: Final[Literal["2.2"]] = "2.2"

_CLASSES = message_classes(
    "lancekeep.data_file",
    {
        "FileDescriptor": "schema=1:bytes length=2:uint64",
        "ColumnMetadata": "encoding=1:bytes pages=2:Page*",
        "Page": "buffer_offsets=1:uint64* buffer_sizes=2:uint64* length=3:uint64 encoding=4:bytes",
        "Encoding": "direct=2:Direct",
        "Direct": "encoding=1:bytes",
        "Any": "type_url=1:string value=2:bytes",
        "ColumnEncoding": "values=1:Empty",
        "Empty": "",
        "PageLayout": "mini_block=1:MiniBlock",
        "MiniBlock": "definition=2:Compression values=3:Compression layers=6:bytes num_buffers=7:uint64 "
        "num_items=9:uint64 has_large_chunk=10:bool",
        "Compression": "flat=1:Flat variable=2:Variable general=10:General",
        "Flat": "bits_per_value=1:uint64",
        "Variable": "offsets=1:Compression",
        "General": "compression=1:BufferCompression values=3:Compression",
        "BufferCompression": "scheme=1:uint32",
    },
)
_FOOTER = struct.Struct("<QQQIIHH4s")
_VERSION = (2, 2)
_RANGE = struct.Struct("<QQ")
_CHUNK_WORD = struct.Struct("<I")
_ALIGNMENT = 64
UNIT = 8
"""The size of a chunk, and of each buffer in it, is a multiple of this number of bytes."""
_ZSTD = 2
_ALL_VALID, _NULLABLE = b"\1", b"\3"


def schema_of(content: bytes) -> bytes:
    """Return the description of the columns of a data file, for `encode`."""
    _, _, tables, *_ = _FOOTER.unpack_from(content, len(content) - _FOOTER.size)
    position, size = _RANGE.unpack_from(content, tables)
    return bytes(_CLASSES["FileDescriptor"].FromString(content[position : position + size]).schema)


def encode(columns: Sequence[Column], schema: bytes) -> bytes | None:
    """Encode a data file.

    Args:
        columns: columns of equal length.
        schema: their description, from `schema_of`.

    Returns:
        The bytes of the file, or None if the columns exceed `MOST_ROWS` or `MOST_BYTES`.
    """
    rows = len(columns[0])
    if not 0 < rows <= MOST_ROWS:
        return None
    pages = []
    for column in columns:
        texts = [b"" if value is None else value.encode() for value in column]
        if sum(map(len, texts)) > MOST_BYTES:
            return None
        chunk = _chunk(texts, [value is None for value in column] if None in column else [])
        pages.append(Page(rows, None in column, False, chunk_word(chunk, 0), chunk))
    return file_of(pages, rows, schema)


def decode(content: bytes) -> list[list[str | None]] | None:
    """Return the columns of a file that `encode` wrote; None for any other file."""
    try:
        pages = pages_of(content)
        return None if pages is None else [_column(page) for page in pages]
    except (ValueError, struct.error):
        return None


@attrs.frozen
class Page:
    """The only page of a column.

    Attributes:
        rows: its number of rows.
        nullable: whether its chunks have definition levels.
        compressed: whether the values of its chunks are compressed by zstd.
        words: the size of each chunk, and how many rows it has.
        chunks: the chunks.
    """

    rows: int
    nullable: bool
    compressed: bool
    words: bytes
    chunks: bytes


def chunk_word(chunk: bytes, rows_log: int) -> bytes:
    """Return the description of a chunk of 2 ** ``rows_log`` rows; 0 for the last."""
    return _CHUNK_WORD.pack((len(chunk) // UNIT - 1) << 4 | rows_log)


def file_of(pages: Sequence[Page], rows: int, schema: bytes) -> bytes:
    """Return a data file with these pages, one for each column."""
    file, metadata = bytearray(), []
    for page in pages:
        places = [_append(file, part, _ALIGNMENT) for part in (page.words, page.chunks)]
        metadata.append(_column_metadata(places, rows, page.nullable, page.compressed))
    descriptor = _descriptor(schema, rows)
    globals_table = _RANGE.pack(*_append(file, descriptor, _ALIGNMENT))
    begin = len(file)
    columns_table = b"".join([_RANGE.pack(*_append(file, part)) for part in metadata])
    tables = [_append(file, table)[0] for table in (columns_table, globals_table)]
    return bytes(file + _FOOTER.pack(begin, *tables, 1, len(pages), *_VERSION, MAGIC))


def pages_of(content: bytes) -> list[Page] | None:
    """Return the pages of a file that `file_of` wrote; None for any other file."""
    try:
        _, table, _, _, count, *version, magic = _FOOTER.unpack_from(content, len(content) - _FOOTER.size)
        if (*version, magic) != (*_VERSION, MAGIC):
            return None
        places = [_RANGE.unpack_from(content, table + number * _RANGE.size) for number in range(count)]
        return [_page(content, content[start : start + size]) for start, size in places]
    except (ValueError, struct.error, DecodeError):
        return None


def padded(*parts: bytes) -> bytes:
    """Return the parts of a chunk, each padded to the alignment."""
    return b"".join(part + bytes(-len(part) % UNIT) for part in parts)


def _page(content: bytes, metadata: bytes) -> Page:
    """Decode the page of a column. Raises ValueError unless `file_of` wrote it."""
    [page] = _CLASSES["ColumnMetadata"].FromString(metadata).pages
    places = list(zip(page.buffer_offsets, page.buffer_sizes, strict=True))
    for nullable, compressed in product((False, True), repeat=2):
        if metadata == _column_metadata(places, page.length, nullable, compressed):
            words, chunks = (content[start : start + size] for start, size in places)
            return Page(page.length, nullable, compressed, words, chunks)
    raise ValueError("the column has another encoding")


def _append(file: bytearray, part: bytes, alignment: int = 1) -> tuple[int, int]:
    """Append a part at the next aligned position, and return its position and size."""
    file += bytes(-len(file) % alignment)
    place = len(file), len(part)
    file += part
    return place


def _column_metadata(places: Sequence[tuple[int, int]], rows: int, nullable: bool, compressed: bool) -> bytes:
    offsets, sizes = zip(*places, strict=True)
    layout = _layout(rows, nullable, compressed)
    page = _CLASSES["Page"](buffer_offsets=offsets, buffer_sizes=sizes, length=rows, encoding=layout)
    return bytes(_CLASSES["ColumnMetadata"](encoding=_column_encoding(), pages=[page]).SerializeToString())


@lru_cache(maxsize=64)
def _descriptor(schema: bytes, rows: int) -> bytes:
    return bytes(_CLASSES["FileDescriptor"](schema=schema, length=rows).SerializeToString())


@lru_cache(maxsize=1)
def _column_encoding() -> bytes:
    return _encoding("lance.encodings.ColumnEncoding", _CLASSES["ColumnEncoding"](values=_CLASSES["Empty"]()))


@lru_cache(maxsize=64)
def _layout(rows: int, nullable: bool, compressed: bool) -> bytes:
    compression, flat = _CLASSES["Compression"], _CLASSES["Flat"]
    block = _CLASSES["MiniBlock"](num_buffers=1, num_items=rows, has_large_chunk=True)
    values = block.values
    if compressed:
        values.general.compression.scheme = _ZSTD
        values = values.general.values
    values.variable.offsets.CopyFrom(compression(flat=flat(bits_per_value=32)))
    block.layers = _NULLABLE if nullable else _ALL_VALID
    if nullable:
        block.definition.CopyFrom(compression(flat=flat(bits_per_value=16)))
    return _encoding("lance.encodings21.PageLayout", _CLASSES["PageLayout"](mini_block=block))


def _encoding(name: str, message: Any) -> bytes:
    """Return an encoding as bytes, because copying bytes into each page is faster than copying messages."""
    described = _CLASSES["Any"](type_url=f"/{name}", value=message.SerializeToString())
    direct = _CLASSES["Direct"](encoding=described.SerializeToString())
    return bytes(_CLASSES["Encoding"](direct=direct).SerializeToString())


def _chunk(texts: Sequence[bytes], nulls: Sequence[int]) -> bytes:
    """Encode a chunk. ``nulls`` flags the texts that are null; it is empty if none is."""
    begin = 4 * (len(texts) + 1)
    offsets = struct.pack(f"<{len(texts) + 1}I", *accumulate(map(len, texts), initial=begin))
    values = offsets + b"".join(texts)
    values += bytes(-len(values) % 4)
    levels = struct.pack(f"<{len(nulls)}H", *nulls)
    header = struct.pack("<HHI", len(nulls), len(levels), len(values)) if nulls else struct.pack("<HI", 0, len(values))
    return padded(header, levels, values)


def _column(page: Page) -> list[str | None]:
    """Decode a column. Raises ValueError or struct.error unless `encode` wrote it."""
    if page.compressed:
        raise ValueError("the column has another encoding")
    rows, chunk = page.rows, page.chunks
    at = UNIT + (-(-2 * rows // UNIT) * UNIT if page.nullable else 0)
    nulls = struct.unpack_from(f"<{rows}H", chunk, UNIT) if page.nullable else ()
    offsets = struct.unpack_from(f"<{rows + 1}I", chunk, at)
    texts = [chunk[at + low : at + high].decode() for low, high in pairwise(offsets)]
    if _chunk([text.encode() for text in texts], nulls) != chunk:
        raise ValueError("the chunk has another encoding")
    return [None if null else text for null, text in zip(nulls or bytes(rows), texts, strict=True)]
