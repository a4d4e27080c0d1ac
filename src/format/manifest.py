"""What a commit layer reads of a manifest before it lets it become a version (table format, ``message Manifest``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_FOOTER = 16  # u64 position of the message, u16 major, u16 minor, "LANC"
_MAGIC = b"LANC"
_TRANSACTION_FILE = 12
_BUILT_ON_NOTHING = bytes([_TRANSACTION_FILE << 3 | 2, 42]) + b"0-"  # the field "0-{uuid}.txn", 42 bytes long

_FRAGMENTS = 2  # of a Manifest
_ID, _FILES, _DELETION_FILE, _PHYSICAL_ROWS = 1, 2, 3, 4  # of a DataFragment
_FILE_SIZE = 6  # of a DataFile
_DELETED_ROWS = 4  # of a DeletionFile


def is_manifest(content: bytes) -> bool:
    """Return whether a file ends as a manifest does, so that it is one and is not cut off."""
    return content[-4:] == _MAGIC


def reads_version_zero(content: bytes) -> bool:
    """Return whether the transaction of a manifest file was built on version 0, so on an empty table.

    Raises `ValueError` if the bytes are not a manifest.
    """
    if not is_manifest(content):
        raise ValueError("it does not end in 'LANC'")
    # Nearly every manifest lacks these bytes, so it is not decoded.
    return _BUILT_ON_NOTHING in content and transaction_file(content).startswith("0-")


def transaction_file(content: bytes) -> str:
    """Return the name of the transaction file of a manifest, ``{read_version}-{uuid}.txn``, or "" without one.

    Raises `ValueError` if the bytes are not a manifest.
    """
    try:
        return transaction_name(message_at(content))
    except IndexError as error:
        raise ValueError(str(error)) from error


def transaction_name(message: memoryview) -> str:
    """Return the name of the transaction file of a manifest's message; empty where there is none.

    The name holds a random uuid, so it identifies the version: another table has no version with this name.
    """
    return _field(message, _TRANSACTION_FILE).decode()


def message_at(content: bytes) -> memoryview:
    """The protobuf message of a manifest file. Raises `ValueError` if the bytes are no such file."""
    if content[-4:] != _MAGIC:
        raise ValueError("it does not end in 'LANC'")
    return section_at(content, int.from_bytes(content[-_FOOTER : -_FOOTER + 8], "little"))


def section_at(content: bytes, position: int) -> memoryview:
    """The section of a manifest file that begins at ``position``. Raises `ValueError` if it leaves the file."""
    length = int.from_bytes(content[position : position + 4], "little")
    section = memoryview(content)[position + 4 : position + 4 + length]
    if len(section) != length or not length:
        raise ValueError(f"a section of {length} bytes at {position} leaves the file of {len(content)}")
    return section


def _field(message: memoryview, number: int) -> bytes:
    """The last value of a length-delimited field of a protobuf message; empty where it is absent."""
    value = b""
    for found, content in fields(message):
        if found == number and isinstance(content, memoryview):
            value = bytes(content)
    return value


class FragmentEntry(NamedTuple):
    """What a manifest says of a fragment. rows: that are left, size: of its data files in bytes; None where untold.

    content: the entry itself, equal as long as nothing about the fragment has changed.
    """

    id: int
    rows: int | None
    size: int | None
    content: memoryview


def fragment_entries(message: memoryview) -> Iterator[FragmentEntry]:
    """The fragments of a manifest's message in their order, one at a time: a table may have millions of them."""
    for number, content in fields(message):
        if number == _FRAGMENTS and isinstance(content, memoryview):
            yield _entry(content)


def _entry(content: memoryview) -> FragmentEntry:
    fragment = physical = deleted = size = 0
    sized = counted = True
    for number, value in fields(content):
        if isinstance(value, memoryview):
            if number == _FILES:
                bytes_ = _number(value, _FILE_SIZE)
                sized &= bytes_ > 0
                size += bytes_
            elif number == _DELETION_FILE:
                deleted = _number(value, _DELETED_ROWS)
                counted = deleted > 0
        elif number == _ID:
            fragment = value
        elif number == _PHYSICAL_ROWS:
            physical = value
    counted &= physical > 0
    return FragmentEntry(fragment, physical - deleted if counted else None, size if sized else None, content)


def _number(message: memoryview, wanted: int) -> int:
    return next((value for number, value in fields(message) if number == wanted and isinstance(value, int)), 0)


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a protobuf message, each with its number; those of fixed length are passed over.

    Raises `IndexError` or `ValueError` where the bytes are not a message.
    """
    at, end = 0, len(message)
    while at < end:
        tag = message[at]  # nearly every tag, and most lengths, have one byte
        at += 1
        if tag > 0x7F:
            tag, at = varint(message, at - 1)
        wire = tag & 7
        if wire == 2:
            length = message[at]
            at += 1
            if length > 0x7F:
                length, at = varint(message, at - 1)
            yield tag >> 3, message[at : at + length]
            at += length
        elif wire == 0:
            value, at = varint(message, at)
            yield tag >> 3, value
        elif wire == 1:
            at += 8
        elif wire == 5:
            at += 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")


def varint(message: memoryview | bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    value, shift = 0, 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(f"a varint runs past 64 bits at byte {at}")
