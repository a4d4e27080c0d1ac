"""Manifest files of a Lance table (table format, "Manifest").

A file holds the index section (if the table has indexes), the transaction and the manifest message, each after its
length in four bytes. A footer gives the position of the manifest message. If data files have the format 0.1, the file
begins with the values of their dictionaries.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import attrs

from lancekeep.domain.errors import Damaged
from lancekeep.format.messages import DataFragment, Manifest, ManifestOutline, ManifestTail, parse

MAGIC = b"LANC"
"""The last bytes of every manifest and data file."""

_FOOTER = struct.Struct("<QHH4s")  # position of the manifest message, major and minor version, magic
_LENGTH = struct.Struct("<I")
_FORMAT_VERSION = (0, 2)
TRANSACTION_SECTIONS = ("transaction_section", "transaction_section_21")
"""The fields for the position of the transaction. Engines from 14 on read the first field, older engines the second."""
OF_ONE_VERSION = ("index_section", *TRANSACTION_SECTIONS, "transaction_file", "tag", "version_aux_data")
"""Fields of a manifest that describe one version or file; the next version sets its own."""

_BUILT_ON_NOTHING = bytes([12 << 3 | 2, 42]) + b"0-"  # field 12, the transaction file, with "0-{uuid}.txn" of 42 bytes


def is_manifest(content: bytes) -> bool:
    """Return whether a file ends as a manifest does, so that it is complete."""
    return content[-len(MAGIC) :] == MAGIC


def message_span(content: bytes) -> tuple[int, int]:
    """Return where the manifest message of a file begins and ends.

    Raises `ValueError` if it has none.
    """
    if not is_manifest(content):
        raise ValueError(f"it does not end in {MAGIC.decode()!r}")
    if len(content) < _FOOTER.size:
        raise ValueError(f"it has {len(content)} bytes, fewer than the footer of a manifest")
    position, *_ = _FOOTER.unpack_from(content, len(content) - _FOOTER.size)
    begin, end = _section_span(content, position)
    if begin == end:
        raise ValueError(f"the manifest message at {position} is empty")
    return begin, end


def message_at(content: bytes) -> bytes:
    """Return the manifest message of a file. Raises `ValueError` if it has none."""
    begin, end = message_span(content)
    return content[begin:end]


def section_at(content: bytes, position: int) -> bytes:
    """Return the section of a manifest file at a position.

    Raises `ValueError` if it exceeds the file.
    """
    begin, end = _section_span(content, position)
    return content[begin:end]


def dictionaries_of(content: bytes, *positions: int | None) -> bytes:
    """Return the bytes with which a manifest file begins, up to its first section.

    The fields of data files of format 0.1 name positions in these bytes, where the values of dictionaries are. The
    values themselves contain such positions, so every version keeps these bytes at the same place.

    Args:
        content: the bytes of the file.
        positions: the positions of its sections, as far as it has them.
    """
    begin, _ = message_span(content)
    return content[: min(each for each in (begin - _LENGTH.size, *positions) if each is not None)]


def parse_message(kind: Any, content: bytes) -> Any:
    """Decode the manifest message of a file as `Manifest` or `ManifestOutline`.

    Raises:
        ValueError: the file has no such message. The error gives its position.
    """
    return parse_span(kind, content, *message_span(content))


def parse_section(kind: Any, content: bytes, position: int) -> Any:
    """Decode the section of a manifest file at a position.

    Raises:
        ValueError: the section exceeds the file or is no message of this kind. The error gives the position.
    """
    return parse_span(kind, content, *_section_span(content, position))


def reads_version_zero(content: bytes) -> bool:
    """Return whether the transaction of a manifest file was built on version 0.

    Raises `ValueError` if the bytes are not a manifest.
    """
    if not is_manifest(content):
        raise ValueError(f"it does not end in {MAGIC.decode()!r}")
    # Nearly every manifest lacks these bytes, so it is not decoded.
    if _BUILT_ON_NOTHING not in content:
        return False
    return str(parse_message(ManifestOutline, content).transaction_file).startswith("0-")


def transaction_name(message: bytes) -> str:
    """Return the name of the transaction file of a manifest message, or "".

    The name is ``{read_version}-{uuid}.txn``. Its UUID is random, so no version of another table has this name.

    Raises:
        ValueError: the bytes are not a message.
    """
    return str(parse(ManifestOutline, message).transaction_file)


def transaction_in(content: bytes) -> bytes:
    """Return the encoded transaction inside a manifest file that Lancekeep has built.

    Raises `ValueError` if the bytes are not a manifest.
    """
    return section_at(content, parse_message(ManifestOutline, content).transaction_section)


class FragmentEntry(NamedTuple):
    """A fragment as a manifest describes it.

    Attributes:
        id: its id.
        rows: the number of rows that are not deleted, or None if the manifest does not say.
        size: the size of its data files in bytes, or None if the manifest does not say.
        content: the encoded entry, which changes with anything about the fragment.
    """

    id: int
    rows: int | None
    size: int | None
    content: bytes


def fragment_entries(message: bytes) -> Iterator[FragmentEntry]:
    """Yield the fragments of a manifest message, in order.

    One entry is in memory at a time, because a table may have millions. Raises `ValueError` if the bytes are not a
    message.
    """
    for content in parse(ManifestOutline, message).fragments:
        fragment = parse(DataFragment, content)
        deleted = fragment.deletion_file.num_deleted_rows
        counted = fragment.physical_rows and (deleted or not fragment.HasField("deletion_file"))
        sizes = [file.file_size_bytes for file in fragment.files]
        rows = fragment.physical_rows - deleted if counted else None
        yield FragmentEntry(fragment.id, rows, sum(sizes) if all(sizes) else None, content)


class Summary(NamedTuple):
    """What the history of a table shows of a version.

    Attributes:
        committed: the time of the manifest, in nanoseconds since 1970.
        rows: the number of rows, as far as the fragments say it.
    """

    committed: int
    rows: int


def summary_of(content: bytes, name: str) -> Summary:
    """Summarize a manifest file, with one fragment in memory at a time.

    Args:
        content: the bytes of the file.
        name: the file, for messages.

    Raises:
        Damaged: the file is not a manifest.
    """
    try:
        rows = sum(entry.rows or 0 for entry in fragment_entries(message_at(content)))
    except ValueError as error:
        raise not_a_manifest(name, error) from error
    return Summary(committed_at(content, name), rows)


def committed_at(content: bytes, name: str) -> int:
    """Return the time of a manifest file in nanoseconds since 1970.

    Raises `Damaged`, which names the file ``name``.
    """
    try:
        return time_of(message_at(content))
    except ValueError as error:
        raise not_a_manifest(name, error) from error


def time_of(message: bytes) -> int:
    """Return the time of a manifest message in nanoseconds since 1970.

    Raises `ValueError` if the bytes are not a message.
    """
    time = parse(ManifestTail, message).timestamp
    return int(time.seconds * 10**9 + time.nanos)


@attrs.frozen
class ManifestFile:
    """A decoded manifest file.

    Attributes:
        manifest: the manifest message.
        indexes: the encoded index section, or None.
        dictionaries: the values of dictionaries of format 0.1, with which the file begins.
    """

    manifest: Any
    indexes: bytes | None
    dictionaries: bytes = b""

    @staticmethod
    def parse(content: bytes, name: str) -> ManifestFile:
        """Decode a manifest file. Raises `Damaged`, which names the file ``name``."""
        try:
            manifest = parse_message(Manifest, content)
            indexes = section_at(content, manifest.index_section) if manifest.HasField("index_section") else None
            dictionaries = b""
            if any(field.dictionary.length for field in manifest.fields):
                stated = (each for each in ("index_section", *TRANSACTION_SECTIONS) if manifest.HasField(each))
                dictionaries = dictionaries_of(content, *(getattr(manifest, each) for each in stated))
        except ValueError as error:
            raise not_a_manifest(name, error) from error
        return ManifestFile(manifest, indexes, dictionaries)

    def serialize(self, transaction: Any, fields: Sequence[str] = TRANSACTION_SECTIONS) -> bytes:
        """Encode the file with a transaction inside.

        The positions of the sections are set in the manifest message.
        """
        return self.serialize_with(transaction.SerializeToString(), fields)

    def serialize_with(self, transaction: bytes | None, fields: Sequence[str] = TRANSACTION_SECTIONS) -> bytes:
        """Encode the file; with an encoded transaction inside, if there is one."""
        for field in ("index_section", *TRANSACTION_SECTIONS):
            self.manifest.ClearField(field)
        sections = []
        if self.indexes is not None:
            self.manifest.index_section = len(self.dictionaries)
            sections.append(self.indexes)
        if transaction is not None:
            place_transaction(self.manifest, self.indexes, fields, after=len(self.dictionaries))
            sections.append(transaction)
        return file_of(self.manifest.SerializeToString(), *sections, head=self.dictionaries)


def without_columns(message: bytes, names: Collection[str]) -> bytes:
    """Return a manifest message without the columns of some names.

    Their data stays in the files, unread.
    """
    manifest = parse(Manifest, message)
    gone: set[int] = set()
    for field in manifest.fields:  # depth first
        if field.parent_id in gone or (field.parent_id < 0 and field.name in names):
            gone.add(field.id)
    kept = [field for field in manifest.fields if field.id not in gone]
    del manifest.fields[:]
    manifest.fields.extend(kept)
    return bytes(manifest.SerializeToString())


def make_successor(manifest: Any, version: int, now: int, transaction_file: str = "") -> None:
    """Turn a manifest message into the message of a later version.

    It keeps every field that does not describe one version. `successor` does the same with values.

    Args:
        manifest: the message. Positions of sections are cleared; the encoder sets them.
        version: the number of the later version.
        now: the time in nanoseconds since 1970.
        transaction_file: the name of its transaction file, if it has one.
    """
    clear_version(manifest)
    manifest.version = version
    manifest.timestamp.seconds, manifest.timestamp.nanos = divmod(now, 10**9)
    if transaction_file:
        manifest.transaction_file = transaction_file


def clear_version(manifest: Any) -> None:
    """Remove the fields of a manifest message that belong to one version."""
    for field in OF_ONE_VERSION:
        manifest.ClearField(field)


def transaction_position(indexes: bytes | None) -> int:
    """Return the position of the transaction in a file that `file_of` makes."""
    return 0 if indexes is None else _LENGTH.size + len(indexes)


def place_transaction(
    message: Any, indexes: bytes | None, fields: Sequence[str] = TRANSACTION_SECTIONS, *, after: int = 0
) -> None:
    """Set the position of the transaction, by default where every engine reads it.

    ``after`` is the number of bytes before the first section.
    """
    for field in fields:
        setattr(message, field, after + transaction_position(indexes))


def file_of(message: bytes, *sections: bytes, head: bytes = b"") -> bytes:
    """Return a manifest file of a manifest message, after the other sections.

    The file begins with ``head``.
    """
    position = len(head) + sum(_LENGTH.size + len(section) for section in sections)
    parts = [part for section in (*sections, message) for part in (_LENGTH.pack(len(section)), section)]
    return b"".join((head, *parts, _FOOTER.pack(position, *_FORMAT_VERSION, MAGIC)))


def with_index_section(content: bytes, indexes: bytes) -> bytes:
    """Return a manifest file with other indexes.

    The other sections keep their positions. The old index section stays in the file, and is not referred to.

    Raises:
        ValueError: the bytes are not a manifest file.
    """
    begin, _ = message_span(content)
    kept = content[: begin - _LENGTH.size]
    message = parse_message(Manifest, content)
    message.index_section = len(kept)
    return file_of(message.SerializeToString(), indexes, head=kept)


def not_a_manifest(name: str, error: ValueError) -> Damaged:
    """Return the error for a file ``name`` that cannot be decoded."""
    return Damaged(f"{name} is not a manifest of a Lance table: {error}")


def parse_span(kind: Any, content: bytes, begin: int, end: int) -> Any:
    """Decode the message between two positions of a file.

    Raises `ValueError`, which gives the position.
    """
    try:
        return parse(kind, memoryview(content)[begin:end])
    except ValueError as error:
        raise ValueError(f"the message of {end - begin} bytes at {begin}: {error}") from error


def _section_span(content: bytes, position: int) -> tuple[int, int]:
    begin = position + _LENGTH.size
    if begin > len(content):
        raise ValueError(f"a section at {position} exceeds the file of {len(content)} bytes")
    (length,) = _LENGTH.unpack_from(content, position)
    if begin + length > len(content):
        raise ValueError(f"a section of {length} bytes at {position} exceeds the file of {len(content)}")
    return begin, begin + length
