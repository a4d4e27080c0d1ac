"""The footer of a data file: columns, pages and their sizes.

File format 2.0 and later.
"""

from __future__ import annotations

import struct
from typing import Any

import attrs

from lancekeep.domain.errors import Damaged
from lancekeep.domain.manifest import SchemaField
from lancekeep.format.manifest import MAGIC
from lancekeep.format.messages import Field, message_classes, parse
from lancekeep.format.values import decoded

_CLASSES = message_classes(
    "lancekeep.data_footer",
    {
        "FileDescriptor": "schema=1:Schema length=2:uint64",
        "Schema": "fields=1:bytes*",
        "ColumnMetadata": "encoding=1:Encoding pages=2:Page*",
        "Page": "buffer_offsets=1:uint64* buffer_sizes=2:uint64* length=3:uint64 encoding=4:Encoding priority=5:uint64",
        "Encoding": "direct=2:Direct",
        "Direct": "encoding=1:bytes",
        "Any": "type_url=1:string value=2:bytes",
    },
)
_FOOTER = struct.Struct("<QQQIIHH4s")
_RANGE = struct.Struct("<QQ")
_FIRST_OF_FORMAT_2 = (0, 3)


@attrs.frozen
class Page:
    """A page of a column.

    Attributes:
        rows: its logical length.
        buffers: position and size of each buffer.
        encoding: the type of its encoding.
    """

    rows: int
    buffers: tuple[tuple[int, int], ...]
    encoding: str


@attrs.frozen
class DataFileFooter:
    """The footer of a data file.

    Attributes:
        version: the version of the file format, such as ``2.1``.
        size: the size of the file in bytes.
        rows: the number of its rows.
        fields: its schema, depth first.
        columns: the pages of each column.
        global_buffers: position and size of each global buffer.
    """

    version: str
    size: int
    rows: int
    fields: tuple[SchemaField, ...]
    columns: tuple[tuple[Page, ...], ...]
    global_buffers: tuple[tuple[int, int], ...]


def read_footer(content: bytes, name: str) -> DataFileFooter:
    """Decode the footer of a data file.

    Args:
        content: the bytes of the file.
        name: the file, for messages.

    Raises:
        Damaged: the file has no footer of this format. The message gives the position of the damage.
    """
    try:
        return _footer(content)
    except ValueError as error:
        raise Damaged(f"{name} is not a data file of format 2: {error}") from error


@attrs.frozen
class TooShort:
    """The last bytes of a file do not suffice.

    Attributes:
        needed: how many of the last bytes suffice.
    """

    needed: int


@attrs.frozen
class DataFileSummary:
    """The footer of a data file without its pages.

    Attributes:
        version: the numbers of the version in the footer. Files of format 2.0 have 0 and 3.
        rows: the number of its rows; 0 before format 2.
        fields: its schema, depth first; empty before format 2.
        columns: the number of its columns; 0 before format 2.
    """

    version: tuple[int, int]
    rows: int = 0
    fields: tuple[SchemaField, ...] = ()
    columns: int = 0


def read_summary(tail: bytes, size: int, name: str) -> DataFileSummary | TooShort:
    """Decode the footer of a data file from its last bytes.

    Args:
        tail: the last bytes of the file.
        size: the size of the file.
        name: the file, for messages.

    Raises:
        Damaged: the file has no footer.
    """
    try:
        return _summary(tail, size)
    except ValueError as error:
        raise Damaged(f"{name} is not a data file: {error}") from error


def _summary(tail: bytes, size: int) -> DataFileSummary | TooShort:
    if len(tail) < min(size, _FOOTER.size):
        return TooShort(_FOOTER.size)
    if size < _FOOTER.size or tail[-len(MAGIC) :] != MAGIC:
        raise ValueError(f"its {size} bytes do not end in a footer with {MAGIC.decode()!r}")
    begin = size - len(tail)
    _, _, table, buffers, columns, major, minor, _ = _FOOTER.unpack_from(tail, len(tail) - _FOOTER.size)
    if (major, minor) < _FIRST_OF_FORMAT_2:
        return DataFileSummary((major, minor))
    if not buffers or table + _RANGE.size > size:
        raise ValueError(f"its footer names {buffers} global buffers at {table}, the first with the schema")
    if table < begin:
        return TooShort(size - table)
    position, length = _RANGE.unpack_from(tail, table - begin)
    if position + length > size:
        raise ValueError(f"{length} bytes at {position} exceed the file of {size}")
    if position < begin:
        return TooShort(size - position)
    descriptor = _message("FileDescriptor", tail, position - begin, length)
    fields = tuple(decoded(SchemaField, parse(Field, field)) for field in descriptor.schema.fields)
    return DataFileSummary((major, minor), descriptor.length, fields, columns)


def _footer(content: bytes) -> DataFileFooter:
    if len(content) < _FOOTER.size or content[-len(MAGIC) :] != MAGIC:
        raise ValueError(f"its {len(content)} bytes do not end in a footer with {MAGIC.decode()!r}")
    end = len(content) - _FOOTER.size
    _, columns_at, buffers_at, buffers, columns, major, minor, _ = _FOOTER.unpack_from(content, end)
    global_buffers = _table(content, buffers_at, buffers)
    if not global_buffers:
        raise ValueError(f"the footer at {end} names no global buffer with the schema")
    descriptor = _message("FileDescriptor", content, *global_buffers[0])
    fields = tuple(decoded(SchemaField, parse(Field, field)) for field in descriptor.schema.fields)
    pages = tuple(
        tuple(_page(page, content) for page in _message("ColumnMetadata", content, position, size).pages)
        for position, size in _table(content, columns_at, columns)
    )
    return DataFileFooter(f"{major}.{minor}", len(content), descriptor.length, fields, pages, global_buffers)


def _table(content: bytes, position: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return a table of positions and sizes, all of which are inside the file."""
    size = count * _RANGE.size
    if position + size > len(content):
        raise ValueError(f"a table of {count} entries at {position} exceeds the file of {len(content)} bytes")
    found = tuple(_RANGE.iter_unpack(content[position : position + size]))
    for start, length in found:
        _check(content, start, length)
    return found


def _check(content: bytes, position: int, size: int) -> None:
    if position + size > len(content):
        raise ValueError(f"{size} bytes at {position} exceed the file of {len(content)}")


def _message(kind: str, content: bytes, position: int, size: int) -> Any:
    try:
        return parse(_CLASSES[kind], memoryview(content)[position : position + size])
    except ValueError as error:
        raise ValueError(f"the message of {size} bytes at {position}: {error}") from error


def _page(page: Any, content: bytes) -> Page:
    if len(page.buffer_offsets) != len(page.buffer_sizes):
        raise ValueError(f"a page has {len(page.buffer_offsets)} buffers and {len(page.buffer_sizes)} sizes")
    buffers = tuple(zip(page.buffer_offsets, page.buffer_sizes, strict=True))
    for position, size in buffers:
        _check(content, position, size)
    encoding = parse(_CLASSES["Any"], page.encoding.direct.encoding).type_url
    return Page(page.length, buffers, encoding.rpartition("/")[2])
