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


@attrs.frozen
class TooShort:
    """The last bytes of a file do not suffice.

    Attributes:
        needed: how many of the last bytes suffice, or are needed at least.
    """

    needed: int


class _BeforeTail(Exception):
    """A part of the footer begins before the last bytes that are known."""

    def __init__(self, needed: int) -> None:
        self.needed = needed


@attrs.frozen
class _Tail:
    """The last bytes of a file."""

    content: memoryview
    size: int

    def read(self, position: int, length: int) -> memoryview:
        """Return bytes of the file.

        Raises:
            ValueError: They exceed the file.
        """
        self.check(position, length)
        begin = position - self.size + len(self.content)
        if begin < 0:
            raise _BeforeTail(self.size - position)
        return self.content[begin : begin + length]

    def check(self, position: int, length: int) -> None:
        if position + length > self.size:
            raise ValueError(f"{length} bytes at {position} exceed the file of {self.size}")


def read_footer(tail: bytes, size: int, name: str) -> DataFileFooter | TooShort:
    """Decode the footer of a data file from its last bytes.

    Args:
        tail: the last bytes of the file.
        size: the size of the file.
        name: the file, for messages.

    Raises:
        Damaged: the file has no footer of this format. The message gives the position of the damage.
    """
    try:
        return _footer(_Tail(memoryview(tail), size))
    except _BeforeTail as before:
        return TooShort(before.needed)
    except ValueError as error:
        raise Damaged(f"{name} is not a data file of format 2: {error}") from error


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
    descriptor = _parsed("FileDescriptor", memoryview(tail)[position - begin :][:length], position - begin)
    fields = tuple(decoded(SchemaField, parse(Field, field)) for field in descriptor.schema.fields)
    return DataFileSummary((major, minor), descriptor.length, fields, columns)


def _footer(tail: _Tail) -> DataFileFooter:
    end = tail.size - _FOOTER.size
    if end < 0:
        raise ValueError(f"its {tail.size} bytes do not end in a footer with {MAGIC.decode()!r}")
    footer = tail.read(end, _FOOTER.size)
    if footer[-len(MAGIC) :] != MAGIC:
        raise ValueError(f"its {tail.size} bytes do not end in a footer with {MAGIC.decode()!r}")
    _, columns_at, buffers_at, buffers, columns, major, minor, _ = _FOOTER.unpack(footer)
    if (major, minor) < _FIRST_OF_FORMAT_2:
        raise ValueError(f"the footer at {end} has the version {major}.{minor}")
    global_buffers = _table(tail, buffers_at, buffers)
    if not global_buffers:
        raise ValueError(f"the footer at {end} names no global buffer with the schema")
    descriptor = _part("FileDescriptor", tail, *global_buffers[0])
    fields = tuple(decoded(SchemaField, parse(Field, field)) for field in descriptor.schema.fields)
    pages = tuple(
        tuple(_page(page, tail) for page in _part("ColumnMetadata", tail, position, size).pages)
        for position, size in _table(tail, columns_at, columns)
    )
    return DataFileFooter(f"{major}.{minor}", tail.size, descriptor.length, fields, pages, global_buffers)


def _table(tail: _Tail, position: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return a table of positions and sizes, all of which are inside the file."""
    size = count * _RANGE.size
    if position + size > tail.size:
        raise ValueError(f"a table of {count} entries at {position} exceeds the file of {tail.size} bytes")
    found = tuple(_RANGE.iter_unpack(tail.read(position, size)))
    for start, length in found:
        tail.check(start, length)
    return found


def _part(kind: str, tail: _Tail, position: int, size: int) -> Any:
    return _parsed(kind, tail.read(position, size), position)


def _parsed(kind: str, content: memoryview, position: int) -> Any:
    try:
        return parse(_CLASSES[kind], content)
    except ValueError as error:
        raise ValueError(f"the message of {len(content)} bytes at {position}: {error}") from error


def _page(page: Any, tail: _Tail) -> Page:
    if len(page.buffer_offsets) != len(page.buffer_sizes):
        raise ValueError(f"a page has {len(page.buffer_offsets)} buffers and {len(page.buffer_sizes)} sizes")
    buffers = tuple(zip(page.buffer_offsets, page.buffer_sizes, strict=True))
    for position, size in buffers:
        tail.check(position, size)
    encoding = parse(_CLASSES["Any"], page.encoding.direct.encoding).type_url
    return Page(page.length, buffers, encoding.rpartition("/")[2])
